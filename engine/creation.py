"""Tensors made from nothing but a shape. Each is given its device; the default dtype is float32 (arange: int64)."""

from collections.abc import Callable, Sequence
from typing import Any

from .device import Device
from .dtype import FLOAT32, FLOATS, INT64, INTS, as_dtype
from .errors import DTypeError, ShapeError
from .tensor import Tensor


def checked_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` as a tuple of extents of 0 or more.

    Raises:
        ShapeError: it is none.
    """
    try:
        extents = tuple(int(extent.__index__()) for extent in shape)
    except (TypeError, AttributeError):
        raise ShapeError(f"{name}: {shape!r} is no shape; give a tuple of integers") from None
    if any(extent < 0 for extent in extents):
        raise ShapeError(f"{name}: shape {extents} has a negative extent")
    return extents


def zeros(shape: Sequence[int], *, device: Device | str, dtype: Any = FLOAT32) -> Tensor:
    """A tensor of zeros (False for bool)."""
    return full(shape, 0, device=device, dtype=dtype)


def ones(shape: Sequence[int], *, device: Device | str, dtype: Any = FLOAT32) -> Tensor:
    """A tensor of ones (True for bool)."""
    return full(shape, 1, device=device, dtype=dtype)


def full(shape: Sequence[int], value: float, *, device: Device | str, dtype: Any = FLOAT32) -> Tensor:
    """A tensor of one number.

    Raises:
        DTypeError: an integer dtype, and `value` is no integer or does not fit.
    """
    extents, of = checked_shape("full", shape), as_dtype(dtype)
    if of in INTS and value != int(value):
        raise DTypeError(f"full: {value!r} is no {of}")
    try:
        number = of.type(int(value) if of in INTS else value)
    except OverflowError:
        raise DTypeError(f"full: {value!r} does not fit {of}") from None
    return _made(device, lambda xp: xp.full(extents, number, dtype=of))


def arange(
    start: float, stop: float | None = None, step: float = 1, *, device: Device | str, dtype: Any = INT64
) -> Tensor:
    """The numbers from `start` (0 if only one is given) by `step` up to, without, `stop`; shape [n].

    Raises:
        ShapeError: `step` is 0.
        DTypeError: `dtype` is bool.
    """
    if step == 0:
        raise ShapeError("arange: step is 0")
    of = as_dtype(dtype)
    if of not in INTS and of not in FLOATS:
        raise DTypeError(f"arange: no numbers of dtype {of}")
    begin, end = (0, start) if stop is None else (start, stop)
    return _made(device, lambda xp: xp.arange(begin, end, step).astype(of))


def _made(device: Device | str, make: Callable[[Any], Any]) -> Tensor:
    place = Device(device)
    with place:
        return Tensor._make(make(place.xp), place)
