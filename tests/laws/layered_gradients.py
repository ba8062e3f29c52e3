"""The gradients of a layered model, computed from its spec alone, and what the backward pass copies.

Each step's gradients are a line or two of NumPy, walked from the last layer to
the first. As outputs, they are compared by `close`, in float64.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from .layered import BATCH, DROP, LayeredSpec, LayerSpec, Placement, Signal, hardware
from .layered_expected import CLOSE, Array, Reader, step
from .spec_tree import numpy_dtype
from .training_operations import Cotangents

Grads: TypeAlias = dict[str, Array]
PullBack: TypeAlias = Callable[[Array], tuple[Array | None, Grads]]
"""From the gradient of a layer's output, those of its input (None for ids) and of what it holds, by path inside."""
Live: TypeAlias = Callable[[str, Array], tuple[Array, PullBack]]

HOLDS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("scale", "norm", "prefix", "position", "attend", "embed", "project"), ("weight",)),
    "affine": ("weight", "bias"),
    BATCH: ("norm.gamma", "norm.beta"),
}
"""The parameters that a step uses, by path inside the layer."""


@dataclass
class Pulled:
    """A backward pass: gradients by path, each place of a tied parameter by itself, what was copied, and the peaks.

    `crossings` are those of the forward and of the backward pass, by way:
    copies and bytes. `peak` is the largest number met on the way there times
    the largest met on the way back.
    """

    gradients: Grads = field(default_factory=dict)
    crossings: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    peak: float = 1.0

    def cross(self, source: str, destination: str, nbytes: int) -> None:
        copies, before = self.crossings.get((source, destination), (0, 0))
        self.crossings[source, destination] = copies + 1, before + nbytes


def pulled(
    spec: LayeredSpec,
    signal: Signal,
    read: Reader,
    cotangents: Cotangents,
    trains: Callable[[str], bool],
    placement: Placement | None = None,
    live: Live | None = None,
) -> Pulled:
    """The gradients of a forward over a signal.

    Args:
        spec: the layers.
        signal: the input.
        read: gives the model's values by path.
        cotangents: of the output's tensors.
        trains: whether the parameter at a path requires a gradient.
        placement: where the signal is moved to before each layer; None: nothing moves.
        live: gives what the layer at a path makes of a tensor, and its pull-back, where its step has state.
    """
    made = Pulled()
    arrays = {path: value.numpy() for path, value in signal.values().items()}
    places = {path: value.hardware for path, value in signal.values().items()}
    tracked: set[str] = set()
    ran: list[tuple[str, dict[str, PullBack]]] = []
    forth = 1.0
    devices = placement.layers if placement else (None,) * len(spec.layers)
    for path, layer, device in zip(spec.paths.values(), spec.layers, devices, strict=True):
        if device is not None:
            _move(made, arrays, places, tracked, hardware(device))
        used = any(trains(f"{path}.{name}") for name in HOLDS.get(layer.step, ()))
        back: dict[str, PullBack] = {}
        for at, x in arrays.items():
            y, pull = _run(spec, path, layer, read, x, live)
            if y is x:
                continue
            arrays[at], back[at] = y, pull
            if used:
                tracked.add(at)
        ran.append((path, back))
        forth = max(forth, _largest(arrays.values(), spec.dtype))
    if not tracked:
        return made
    grads = {at: value.numpy() for at, value in cotangents if at in tracked}
    backwards = _walk(made, grads, ran, trains)
    made.peak = forth * backwards
    return made


def _move(made: Pulled, arrays: Mapping[str, Array], places: dict[str, str], tracked: set[str], to: str) -> None:
    """Move each tensor that is elsewhere; the gradient of a tracked one comes back (P37)."""
    for path, array in arrays.items():
        if places[path] != to:
            made.cross(places[path], to, array.nbytes)
            if path in tracked:
                made.cross(to, places[path], array.nbytes)
            places[path] = to


def _run(
    spec: LayeredSpec, path: str, layer: LayerSpec, read: Reader, x: Array, live: Live | None
) -> tuple[Array, PullBack]:
    if layer.step in (DROP, BATCH):
        assert live is not None
        return live(path, x)

    def inside(name: str) -> Array:
        return read(f"{path}.{name}")

    y = step(layer, spec.dtype, inside, x)
    return y, lambda g: _pulled_through(layer.step, inside, x, y, g)


def _walk(
    made: Pulled, grads: Grads, ran: list[tuple[str, dict[str, PullBack]]], trains: Callable[[str], bool]
) -> float:
    """Pull the gradients of the output's tensors back through all layers; the largest number met."""
    peak = max([1.0, *(_peak(g) for g in grads.values())])
    for path, back in reversed(ran):
        for at, pull in back.items():
            if at not in grads:
                continue
            before, found = pull(grads.pop(at))
            if before is not None:
                grads[at] = before
                peak = max(peak, _peak(before))
            for name, g in found.items():
                if trains(f"{path}.{name}"):
                    known = made.gradients.get(f"{path}.{name}")
                    made.gradients[f"{path}.{name}"] = g if known is None else known + g
                    peak = max(peak, _peak(made.gradients[f"{path}.{name}"]))
    return peak


def _peak(array: Array) -> float:
    return float(np.abs(array).max()) if array.size else 0.0


def _largest(arrays: Any, dtype: str) -> float:
    return max([0.0, *(_peak(array) for array in arrays if array.dtype == numpy_dtype(dtype))])


# Steps


def _pulled_through(name: str, read: Reader, x: Array, y: Array, g: Array) -> tuple[Array | None, Grads]:
    """The gradients of what a step was given and of what it holds; g is that of what it gave."""
    match name:
        case "embed":
            rows = np.zeros_like(read("weight"))
            np.add.at(rows, x, g)
            return None, {"weight": rows}
        case "centre":
            return np.asarray(g - g.mean(), g.dtype), {}
        case "double":
            return g[: len(x)] + g[len(x) :], {}
        case "position":
            rows = np.zeros_like(read("weight"))
            rows[: len(x)] = g
            return g, {"weight": rows}
        case "shift":
            return g, {}
        case "scale":
            return np.asarray(g * read("weight"), g.dtype), {"weight": np.sum(g * x)}
        case "prefix":
            back = np.cumsum((g * read("weight"))[::-1], axis=0)[::-1]
            return back, {"weight": np.sum(g * np.cumsum(x, axis=0))}
        case "attend":
            return _attended_back(x, g, read("weight"))
    return _pulled_along_last_axis(name, read, x, y, g)


def _pulled_along_last_axis(name: str, read: Reader, x: Array, y: Array, g: Array) -> tuple[Array, Grads]:
    weight = read("weight")
    match name:
        case "affine":
            inner = g * (1 - y * y)
            return inner @ weight.T, {"weight": _rows(x).T @ _rows(inner), "bias": _rows(inner).sum(axis=0)}
        case "project":
            return g @ weight, {"weight": _rows(g).T @ _rows(x)}
    root = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1)
    normal, inner = x * root, g * weight
    back = root * (inner - normal * (inner * normal).mean(axis=-1, keepdims=True))
    return back, {"weight": _rows(g * normal).sum(axis=0)}


def _rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


def _attended_back(x: Array, g: Array, weight: Array) -> tuple[Array, Grads]:
    """Through the mean of the rows so far: by the rows themselves, and by how they are weighted."""
    h = np.tanh(x)
    shares = np.tril(np.exp(h @ h.T))
    shares /= shares.sum(axis=1, keepdims=True)
    inner = g * weight
    slopes = inner @ x.T
    slopes = shares * (slopes - (slopes * shares).sum(axis=1, keepdims=True))
    of_h = slopes @ h + slopes.T @ h
    return shares.T @ inner + of_h * (1 - h * h), {"weight": np.sum(g * (shares @ x))}


def near(one: Array, other: Array, peak: float) -> bool:
    """Whether two gradients in float64 are alike but for `CLOSE` of the peak."""
    return one.shape == other.shape and bool(np.all(np.abs(one - other) <= CLOSE * peak))
