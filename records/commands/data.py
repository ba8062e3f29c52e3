"""The numbers of entries, gone through a part at a time: what is not finite among them, and how two entries differ."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine import Device, QuantScheme, dequantize
from engine.dtype import FLOATS, INTS
from records.entry import RecordEntry

_HOST: Final = Device("cpu:0")
_PART: Final = 2**19  # elements looked at together


class NotFinite(NamedTuple):
    """How many elements are no numbers, or infinite."""

    nans: int
    infinities: int


class Difference(NamedTuple):
    """How the data of two entries of one shape differs.

    Attributes:
        elements: how many differ in their bits, or in value where the dtypes differ.
        largest: the largest difference of two numbers: an integer where both are, NaN where only one is a NaN.
        place: where that is.
    """

    elements: int
    largest: int | float
    place: tuple[int, ...]


def numbers(entry: RecordEntry) -> NDArray[Any]:
    """The data of an entry on the host; of a quantized one what it stands for, float32.

    Raises:
        RecordError: it cannot be read.
    """
    if isinstance(entry.dtype, QuantScheme):
        return dequantize(entry.read(_HOST)).numpy()
    return entry.host()


def not_finite(array: NDArray[Any]) -> NotFinite:
    """How many elements are NaN or infinite."""
    nans = infinities = 0
    if array.dtype in FLOATS:
        for part in _parts(array):
            with _quiet():
                finite = np.isfinite(part)
                rest = np.isnan(part[~finite])
            if len(rest):
                nans += int(rest.sum())
                infinities += int((~rest).sum())
    return NotFinite(nans, infinities)


def difference(one: NDArray[Any], other: NDArray[Any]) -> Difference | None:
    """How two arrays of one shape differ; None if they do not: the same bits, or values where the dtypes differ."""
    elements, offset, place = 0, 0, 0
    largest: int | float = -1
    for a, b in zip(_parts(one), _parts(other), strict=True):
        count = int((_bits(a) != _bits(b) if a.dtype == b.dtype else ~_equal(a, b)).sum())
        if count:
            at, found = _largest(a, b)
            if largest == largest and not found <= largest:  # a NaN is larger than all, and nothing larger than it
                largest, place = found, offset + at
        elements += count
        offset += len(a)
    if not elements:
        return None
    return Difference(
        elements, largest, tuple(int(at) for at in np.unravel_index(place, one.shape)) if one.shape else ()
    )


def _parts(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The elements in row-major order, some at a time; a copy of the whole only where they do not lie so."""
    flat = array.reshape(-1)
    for first in range(0, flat.size, _PART):
        yield flat[first : first + _PART]


def _bits(part: NDArray[Any]) -> NDArray[Any]:
    return part.view(f"u{part.dtype.itemsize}")


def _equal(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    one, other = _wide(a), _wide(b)
    return (one == other) | (np.isnan(one) & np.isnan(other))


def _wide(part: NDArray[Any]) -> NDArray[Any]:
    with _quiet():
        return part.astype(np.float64)


def _quiet() -> np.errstate:
    """No warnings of signalling NaNs, which become quiet ones; bfloat16 is widened to be looked at."""
    return np.errstate(invalid="ignore")


def _largest(a: NDArray[Any], b: NDArray[Any]) -> tuple[int, int | float]:
    """Where the largest difference is, and how large."""
    if a.dtype == b.dtype and a.dtype in INTS:
        unsigned = f"u{a.dtype.itemsize}"
        apart = np.maximum(a, b).view(unsigned) - np.minimum(a, b).view(unsigned)  # which cannot overflow
        at = int(apart.argmax())
        return at, int(apart[at])
    one, other = _wide(a), _wide(b)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, np.abs(one - other))
    at = int(apart.argmax())  # of a NaN, where there is one
    return at, float(apart[at])
