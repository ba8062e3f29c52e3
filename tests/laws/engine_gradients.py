"""Losses, gradients and steps of training of the engine, by its public API."""

from collections.abc import Sequence
from typing import Any, Final

import modules
from engine import Gradients, Tensor, ops
from modules import Module, ModuleVisitor, Param, RunningState

from .observations import Bits, Gradient

_OPTIMIZERS: Final = {name: getattr(modules, name) for name in ("SGD", "Adam", "AdamW")}


def gradients_of(module: Module, used: Sequence[str]) -> Gradients:
    """The gradients of the sum of all elements of these floats, each as often as its path is there.

    Raises:
        AutodiffError: none of them is tracked.
    """
    terms = [ops.sum(_value(module.at(path))).cast("float64") for path in used]
    loss = terms[0]
    for term in terms[1:]:
        loss = loss + term.to_device(loss.device)
    return loss.backward()


def _value(leaf: Param | RunningState) -> Tensor:
    return leaf.base() if isinstance(leaf, Param) else leaf.value()


def reported(module: Module, gradients: Gradients) -> tuple[Gradient, ...]:
    """The gradient of each parameter that has one."""
    reader = _Reader(gradients)
    module.visit(reader)
    return tuple(reader.found)


class _Reader(ModuleVisitor):
    def __init__(self, gradients: Gradients) -> None:
        self.gradients = gradients
        self.found: list[Gradient] = []

    def visit_float(self, path: str, param: Param, /) -> None:
        gradient = param.grad(self.gradients)
        if gradient is not None:
            device = gradient.device
            bits = Bits(str(gradient.dtype), gradient.shape, gradient.tobytes())
            self.found.append(Gradient(path, bits, str(device.inner()), device.is_autodiff))


def stepped(module: Module, name: str, settings: dict[str, Any], used: Sequence[str], number: int) -> Module:
    """The module after so many steps of one optimizer."""
    optimizer = _OPTIMIZERS[name](**settings)
    for _ in range(number):
        module = optimizer.step(module, gradients_of(module, used))
    return module
