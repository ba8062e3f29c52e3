"""Faults of differentiation; see `faults`."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from engine import Device, Gradients, Tensor, primitive, transfer
from engine.graph import Step
from engine.ops import elementwise

from .faults import Patch, fault


@fault("X40 fan-out overwrites instead of adding", "L109")
def _x40(patch: Patch) -> None:
    patch.setattr("engine.gradients.ops", SimpleNamespace(add=lambda before, part: part))


@fault("X41 broadcasting undone over leading axes only", "L110")
def _x41(patch: Patch) -> None:
    original = primitive._settled

    def settled(xp: Any, part: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        part = part.sum(axis=tuple(range(part.ndim - len(shape))))
        return original(xp, part[tuple(slice(extent) for extent in shape)], shape, dtype)

    patch.setattr(primitive, "_settled", settled)


@fault("Y90 the slope of a quotient by its divisor lacks a factor", "L106")
def _y90(patch: Patch) -> None:
    patch.setattr(elementwise._DIVIDE, "vjp", lambda xp, y, a, b: (lambda g: g / b, lambda g: -g * y))


@fault("Y91 a gradient is cut off at 1", "L107")
def _y91(patch: Patch) -> None:
    original = primitive._settled

    def settled(xp: Any, part: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        return xp.minimum(original(xp, part, shape, dtype), dtype.type(1))

    patch.setattr(primitive, "_settled", settled)


@fault("Y92 steps are walked from the oldest to the newest", "L108")
def _y92(patch: Patch) -> None:
    patch.setattr("engine.gradients._age", lambda node: -node.number)


@fault("Y93 the gradients of a second pass take the place of those of the first", "L108")
def _y93(patch: Patch) -> None:
    patch.setattr(Gradients, "__add__", lambda self, other: Gradients({**self._by_leaf, **other._by_leaf}))


@fault("Y94 detach keeps the history", "L112")
def _y94(patch: Patch) -> None:
    patch.setattr(Tensor, "detach", lambda self: self)


@fault("X39 the gradient of a copy stays on the destination", "L93", "L111")
def _x39(patch: Patch) -> None:
    patch.setattr(transfer, "_back_to", lambda source: lambda gradient: [gradient])


@fault("Y95 the gradient of a copy goes back uncounted", "L111")
def _y95(patch: Patch) -> None:
    def back_to(source: Device) -> Callable[[Tensor], list[Tensor]]:
        def pull(gradient: Tensor) -> list[Tensor]:
            with source:
                return [Tensor.from_numpy(gradient.numpy(), source)]

        return pull

    patch.setattr(transfer, "_back_to", back_to)


@fault("Y96 the gradient of a copy goes back in another order of memory", "L93")
def _y96(patch: Patch) -> None:
    def back_to(source: Device) -> Callable[[Tensor], list[Tensor]]:
        def pull(gradient: Tensor) -> list[Tensor]:
            (back,) = transfer.copy([gradient], source)
            return [Tensor._make(np.copy(back._data, order="C"), source)]

        return pull

    patch.setattr(transfer, "_back_to", back_to)


@fault("Y97 a graph that was released gives its gradients again", "L113")
def _y97(patch: Patch) -> None:
    patch.setattr(Step, "take", lambda self: (self.parents, self._pull_back))


@fault("Y98 what is not tracked has no gradients, without a word", "L113")
def _y98(patch: Patch) -> None:
    original = Tensor.backward

    def backward(self: Tensor, cotangent: Tensor | None = None) -> Gradients:
        return original(self, cotangent) if self.is_tracked else Gradients({})

    patch.setattr(Tensor, "backward", backward)
