"""Tensors made from nothing but a shape and numbers. Each is given its device (`randn`, `uniform`: see `random`)."""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from .backend import Array
from .device import Device
from .dtype import FLOAT32, FLOAT64, FLOATS, INT64, INTS, as_dtype
from .errors import DTypeError, ShapeError
from .ops.checks import checked_number
from .tensor import Tensor

_MOST_AXES: Final = 64  # of an array, in NumPy and CuPy
_MOST_ELEMENTS: Final = sys.maxsize // 8  # as many of the widest dtype can be addressed


def checked_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` as a tuple of extents of 0 or more.

    Raises:
        ShapeError: it is none, or no array can have it: it has too many axes, or more bytes than can be addressed.
    """
    try:
        extents = tuple(extent.__index__() for extent in shape)
    except (TypeError, AttributeError):
        raise ShapeError(f"{name}: {shape!r} is no shape; give a tuple of integers") from None
    if any(extent < 0 for extent in extents):
        raise ShapeError(f"{name}: shape {extents} has a negative extent")
    if len(extents) > _MOST_AXES:
        raise ShapeError(f"{name}: a shape of {len(extents)} axes; a tensor has at most {_MOST_AXES}")
    if math.prod(extent for extent in extents if extent) > _MOST_ELEMENTS:  # an extent of 0 excuses no other
        raise ShapeError(f"{name}: shape {extents} is of more bytes than can be addressed")
    return extents


def zeros(shape: Sequence[int], *, device: Device | str, dtype: Any = FLOAT32) -> Tensor:
    """A tensor of zeros (False for bool)."""
    return _filled("zeros", shape, 0, device=device, dtype=dtype)


def ones(shape: Sequence[int], *, device: Device | str, dtype: Any = FLOAT32) -> Tensor:
    """A tensor of ones (True for bool)."""
    return _filled("ones", shape, 1, device=device, dtype=dtype)


def full(shape: Sequence[int], value: float, *, device: Device | str, dtype: Any = FLOAT32) -> Tensor:
    """A tensor of one number.

    Raises:
        DTypeError: the dtype is of integers or bool and cannot hold `value`, or it is no number.
        ShapeError: `shape` is none.
    """
    return _filled("full", shape, value, device=device, dtype=dtype)


def _filled(name: str, shape: Sequence[int], value: float, *, device: Device | str, dtype: Any) -> Tensor:
    extents, of = checked_shape(name, shape), as_dtype(dtype)
    try:
        number = of.type(float(value) if of in FLOATS else int(value))
        fits = of in FLOATS or number == value
    except (TypeError, ValueError, OverflowError):
        raise DTypeError(f"{name}: {value!r} is no number of dtype {of}") from None
    if not fits:
        raise DTypeError(f"{name}: {value!r} is no number of dtype {of}")
    return _made(device, lambda xp: xp.full(extents, number, dtype=of))


def arange(
    start: float, stop: float | None = None, step: float = 1, *, device: Device | str, dtype: Any = INT64
) -> Tensor:
    """The numbers from `start` (0 if only one is given) by `step` up to, without, `stop`; shape [n].

    Raises:
        TypeError: a bound or `step` is no number.
        ShapeError: `step` is 0, a bound is not finite, or they are too many.
        DTypeError: `dtype` is bool, or one of integers that cannot hold the numbers.
    """
    begin, end = (0, start) if stop is None else (start, stop)
    of = as_dtype(dtype)
    first, last, by = (
        checked_number("arange", what, value) for what, value in {"start": begin, "stop": end, "step": step}.items()
    )
    if step == 0 or not all(map(math.isfinite, (first, last, by))) or not math.isfinite((last - first) / by):
        raise ShapeError(f"arange: from {begin} to {end} by {step} are no finite number of steps")
    checked_shape("arange", (max(0, math.ceil((last - first) / by)),))
    if of in FLOATS:
        with Device(device).host():
            numbers = np.arange(first, last, by, dtype=FLOAT64)
        return Tensor.adopt(numbers, device).cast(of)
    whole = range(int(begin), int(end), int(step) or 1)
    if of not in INTS or (int(begin), int(end), int(step)) != (begin, end, step):
        raise DTypeError(f"arange: the numbers from {begin} to {end} by {step} are not of dtype {of}")
    limits = np.iinfo(of)
    if whole and not (limits.min <= min(whole[0], whole[-1]) and max(whole[0], whole[-1]) <= limits.max):
        raise DTypeError(f"arange: the numbers from {begin} to {end} do not fit dtype {of}")
    return _made(device, lambda xp: xp.arange(whole.start, whole.stop, whole.step, dtype=of))


def causal_mask(queries: int, keys: int, *, device: Device | str) -> Tensor:
    """A bool mask, true where a query may see a key: those up to its own position, the queries being the last ones.

    Args:
        queries: how many; at most `keys`.
        keys: how many.

    Returns:
        Shape [queries, keys].

    Raises:
        ShapeError: there are more queries than keys, or a number is negative.
    """
    queries, keys = checked_shape("causal_mask", (queries, keys))
    if queries > keys:
        raise ShapeError(f"causal_mask: {queries} queries and {keys} keys; there must be as many keys at least")
    return _made(device, lambda xp: xp.arange(keys) <= xp.arange(keys - queries, keys)[:, None])


def rotary_tables(
    length: int, d: int, *, base: float = 10000.0, device: Device | str, dtype: Any = FLOAT32
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles position · base^(−2i/d), for `ops.rope`; computed in float64 and rounded once.

    Args:
        length: number of positions, from 0 on.
        d: features of a head; even.
        base: of the frequencies, above 0.
        dtype: a float one; float32 serves float16 and bfloat16 too, and better.

    Returns:
        Two tensors of shape [length, d/2].

    Raises:
        ShapeError: `d` is odd, or a number is negative.
        ValueError: `base` is not finite and above 0.
        DTypeError: `dtype` is no float dtype.

    Source: J. Su and others, "RoFormer" (2021), equation 15.
    """
    (length, d), of = checked_shape("rotary_tables", (length, d)), as_dtype(dtype)
    if d % 2:
        raise ShapeError(f"rotary_tables: d is {d}; features are turned in pairs")
    if of not in FLOATS:
        raise DTypeError(f"rotary_tables: takes a float dtype, not {of}")
    base = checked_number("rotary_tables", "base", base)
    if not 0 < base < math.inf:
        raise ValueError(f"rotary_tables: base is {base}; it must be finite and above 0")
    with Device(device).host():
        angles = np.arange(length)[:, None] * base ** (-2.0 * np.arange(d // 2) / (d or 1))
        cos, sin = np.cos(angles), np.sin(angles)
    return Tensor.adopt(cos, device).cast(of), Tensor.adopt(sin, device).cast(of)


def _made(device: Device | str, make: Callable[[Any], Array]) -> Tensor:
    place = Device(device)
    with place:
        return Tensor._make(make(place.xp), place)
