"""What a layered model must do, computed from its spec alone: outputs, copies, refusals, stages.

Each step is a line of NumPy. Sums may be taken in another order than an
implementation takes them, so outputs are compared by `close`, in float64.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .layered import BATCH, DROP, ROWS, LayeredSpec, LayerName, LayerSpec, Placement, Signal, hardware
from .layered_operations import Taken
from .observations import TransferLog
from .spec_tree import Value, numpy_dtype, tensors

Array: TypeAlias = NDArray[Any]
Reader: TypeAlias = Callable[[str], Array]
Live: TypeAlias = Callable[[str, Array], Array]
Crossings: TypeAlias = Mapping[tuple[str, str], tuple[int, int]]

CLOSE: Final = 2.0**-30
"""What outputs in float64 may differ by, as a part of the largest number met on the way.

A step rounds some ten times, that is by 2**-49 of the largest number; it makes
differences some ten times larger, and there are up to eight steps.
"""


# Outputs


def step(layer: LayerSpec, dtype: str, read: Reader, x: Array) -> Array:
    """What a layer makes of a tensor; `STEPS` says it in words.

    Args:
        layer: the layer.
        dtype: of the model.
        read: gives a value of the layer by the name of its field.
        x: the tensor.
    """
    if layer.step == "embed":
        return read("weight")[x] if x.dtype == np.int64 else x
    if x.dtype != numpy_dtype(dtype):
        return x
    with np.errstate(all="ignore"):
        return np.asarray(_float_step(layer.step, read, x), x.dtype)


def _float_step(name: str, read: Reader, x: Array) -> Any:
    match name:
        case "scale":
            return x * read("weight")
        case "centre" if x.size:
            return x - x.mean()
        case "double" if x.ndim:
            return np.concatenate([x, x])
        case "prefix" if x.ndim:
            return np.cumsum(x, axis=0) * read("weight")
        case "attend" if x.ndim == 2:
            return _attended(x) * read("weight")
        case "position" if x.ndim == 2 and len(x) <= ROWS and x.shape[1] == read("weight").shape[1]:
            return x + read("weight")[: len(x)]
        case "affine" | "norm" | "shift" | "project" if x.ndim and x.shape[-1] == _width(name, read):
            return _along_last_axis(name, read, x)
    return x


def _width(name: str, read: Reader) -> int:
    return read("table" if name == "shift" else "weight").shape[-1]


def _along_last_axis(name: str, read: Reader, x: Array) -> Any:
    match name:
        case "affine":
            return np.tanh(x @ read("weight") + read("bias"))
        case "norm":
            return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1) * read("weight")
        case "shift":
            return x + read("state") - read("table")
    return x @ read("weight").T


def _attended(x: Array) -> Array:
    """Row by row: the mean of the rows so far, weighted by how their tanh goes with this row's."""
    h = np.tanh(x)
    made = np.zeros_like(x)
    for row in range(len(x)):
        weights = np.exp(h[: row + 1] @ h[row])
        made[row] = weights @ x[: row + 1] / weights.sum()
    return made


# A whole forward


@dataclass
class Course:
    """A forward: what came out, what crossed, and the largest number met on the way."""

    output: Signal
    crossings: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    peak: float = 1.0


def values_of(spec: LayeredSpec) -> Reader:
    """The values that a fresh build has."""
    held = tensors(spec.tree)
    return lambda path: held[path].value.numpy()


def course(
    spec: LayeredSpec,
    signal: Signal,
    read: Reader,
    placement: Placement | None = None,
    until: LayerName | None = None,
    live: Live | None = None,
) -> Course:
    """The forward over a signal.

    Args:
        spec: the layers.
        signal: the input, each of its tensors on any device.
        read: gives the model's values by path.
        placement: where the signal is moved to before each layer (P35); None: nothing moves.
        until: the layer before which it ends, once the signal is there.
        live: gives what the layer at a path makes of a tensor, where its step has state; None: just the tensor.
    """
    arrays = {path: value.numpy() for path, value in signal.values().items()}
    places = {path: value.hardware for path, value in signal.values().items()}
    made = Course(signal)
    devices = placement.layers if placement else (None,) * len(spec.layers)
    for (name, path), layer, device in zip(spec.paths.items(), spec.layers, devices, strict=True):
        if device is not None:
            _cross(made.crossings, arrays, places, hardware(device))
        if name == until:
            return made
        inside = _inside(read, path)
        arrays = {at: step(layer, spec.dtype, inside, array) for at, array in arrays.items()}
        if layer.step in (DROP, BATCH) and live is not None:
            arrays = {at: live(path, array) for at, array in arrays.items()}
        met = (float(np.abs(a).max()) for a in arrays.values() if a.size and a.dtype == numpy_dtype(spec.dtype))
        made.peak = max([made.peak, *met])
    made.output = signal.with_values(
        {at: Value(str(array.dtype), array.shape, array.tobytes(), places[at]) for at, array in arrays.items()}
    )
    return made


def _inside(read: Reader, path: str) -> Reader:
    return lambda name: read(f"{path}.{name}")


def _cross(
    crossings: dict[tuple[str, str], tuple[int, int]], arrays: Mapping[str, Array], places: dict[str, str], to: str
) -> None:
    """Move each tensor that is elsewhere, and count it: one copy for each distinct one (P38, D7)."""
    for path, array in arrays.items():
        if places[path] != to:
            copies, nbytes = crossings.get((places[path], to), (0, 0))
            crossings[places[path], to] = copies + 1, nbytes + array.nbytes
            places[path] = to


def crossed(log: TransferLog) -> Crossings:
    """What an adapter's log says, by way."""
    total: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for one in log:
        total[one.source, one.destination] += one.copies
        sizes[one.source, one.destination] += one.nbytes
    return {way: (copies, sizes[way]) for way, copies in total.items()}


def close(one: Signal, other: Signal, peak: float) -> bool:
    """Whether two signals are alike but for values of float64, which may differ by `CLOSE` of the peak."""
    a, b = one.values(), other.values()
    if one.each(_blank) != other.each(_blank):
        return False
    return all(_close(a[path], b[path], peak) for path in a)


def _blank(value: Value) -> Value:
    return replace(value, data=b"")


def _close(one: Value, other: Value, peak: float) -> bool:
    if one.dtype != "float64":
        return one.data == other.data
    return one.data == other.data or bool(np.all(np.abs(one.numpy() - other.numpy()) <= CLOSE * peak))


# Placements


@dataclass(frozen=True)
class Misplaced:
    """Why a model is refused: the first layer that is elsewhere, or, without a layer, two numbers of hidden layers."""

    expected: str
    found: str
    layer: LayerName | None = None
    path: str | None = None

    @property
    def reason(self) -> str:
        """Which check failed."""
        if self.layer is None:
            return "too few layers" if int(self.found) < int(self.expected) else "too many layers"
        return "a hidden layer" if isinstance(self.layer, int) else f"the {self.layer} layer"

    @property
    def said(self) -> tuple[str, ...]:
        """What the message must name (P25 to P29)."""
        inside = () if self.path is None else (self.path,)
        return self.expected, self.found, *(() if self.layer is None else (str(self.layer),)), *inside


def misplaced(there: Mapping[LayerName, Mapping[str, str]], placement: Placement) -> Misplaced | None:
    """The first of the checks of P25 to P28 that fails; None if none does.

    Args:
        there: for each layer, in forward order, the device of each value in it, without flags.
        placement: by which it is checked.
    """
    if len(there) - 2 != len(placement.hidden):
        return Misplaced(str(len(placement.hidden)), str(len(there) - 2))
    for (name, values), device in zip(there.items(), placement.plain.layers, strict=True):
        for path, found in values.items():
            if found != device:
                return Misplaced(device, found, name, path)
    return None


def stages(devices: Sequence[str]) -> list[tuple[str, int]]:
    """The longest runs of equal devices (P21)."""
    found: list[tuple[str, int]] = []
    for device in map(hardware, devices):
        if found and found[-1][0] == device:
            found[-1] = device, found[-1][1] + 1
        else:
            found.append((device, 1))
    return found


def hidden_apart(spec: LayeredSpec) -> list[int]:
    """The hidden layers as `into_layers` gives them."""
    hidden = list(range(len(spec.layers) - 2))
    match spec.apart:
        case "swapped" if len(hidden) > 1:
            hidden[:2] = 1, 0
        case "repeated" if len(hidden) > 1:
            hidden[1] = 0
        case "dropped" if hidden:
            hidden.pop()
        case "added" if hidden:
            hidden.append(hidden[-1])
    return hidden


def taken_apart(
    spec: LayeredSpec, there: Mapping[LayerName, Mapping[str, str]], placement: Placement
) -> Taken | Misplaced:
    """What taking a wrapped model apart gives, or why it is refused (P47 to P50)."""
    hidden = hidden_apart(spec)
    if len(hidden) != len(placement.hidden):
        return Misplaced(str(len(placement.hidden)), str(len(hidden)))
    given = {"input": there["input"], **{place: there[number] for place, number in enumerate(hidden)}}
    if stray := misplaced({**given, "output": there["output"]}, placement):
        return stray
    left: list[LayerName] = [*hidden]
    runs = tuple((device, tuple(left.pop(0) for _ in range(count))) for device, count in stages(placement.hidden))
    return Taken("input", runs, "output")


def devices_in_order(devices: Iterable[str]) -> tuple[str, ...]:
    """Each device once, by hardware, in order of first use."""
    return tuple(dict.fromkeys(map(hardware, devices)))
