"""What the tests of optimizers share: optimizers of every kind, small modules, and gradients made to order."""

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine import Gradients, Tensor, tensor
from modules import SGD, Adam, AdamW, Module, Param, RunningState
from modules.optim.optimizer import Optimizer
from modules.tree import leaves

OPTIMIZERS: Final[Mapping[str, Callable[[], Optimizer]]] = {
    "sgd": lambda: SGD(0.1, weight_decay=0.1),
    "momentum": lambda: SGD(0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda: SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: Adam(0.1, weight_decay=0.1),
    "adamw": lambda: AdamW(0.1, weight_decay=0.1),
}
STATEFUL: Final = ("momentum", "nesterov", "adam", "adamw")


class Three(Module):
    """Two parameters of floats, one of integers, and a running state."""

    def __init__(self, device: str = "cpu:0+autodiff", dtype: str = "float32") -> None:
        self.weight = Param(tensor([[1.0, -2.0], [0.5, 3.0]], device=device, dtype=dtype))
        self.bias = Param(tensor([0.25, -0.75], device=device, dtype=dtype))
        self.steps = Param(tensor([1, 2], device=device))
        self.mean = RunningState(tensor([7.0], device=device))


def gradients_of(module: Module, *paths: str, scale: float = 1.0) -> Gradients:
    """Gradients of these parameters, each element another number."""
    return reduce(add, (_gradient(module.at(path), scale) for path in paths))


def _gradient(param: Param, scale: float) -> Gradients:
    value = param.val()
    numbers = (np.arange(value.size, dtype="float64").reshape(value.shape) - 1.5) * scale
    return value.backward(tensor(numbers, device=value.device.inner(), dtype="float64").cast(value.dtype))


def values(module: Module) -> dict[str, bytes]:
    """The bits of every parameter and running state."""
    return {path: _value(leaf).tobytes() for path, leaf in leaves(module) if isinstance(leaf, (Param, RunningState))}


def _value(leaf: Any) -> Tensor:
    return leaf.base() if isinstance(leaf, Param) else leaf.value()


def states(optimizer: Optimizer) -> dict[str, Any]:
    """All that an optimizer keeps, as its record has it."""
    record = optimizer.into_record()
    entries: dict[str, Any] = {path: (entry.id, entry.host().tobytes()) for path, entry in record.items()}
    return entries | {name: int(scalar) for name, scalar in record.scalars.items()}


def array(module: Module, path: str) -> NDArray[Any]:
    """The value of a parameter on a CPU device."""
    return module.at(path).base().numpy()
