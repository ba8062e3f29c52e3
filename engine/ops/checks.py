"""What the functions of tensors refuse before they compute: axes, indices and shapes that are not there."""

import math
from collections.abc import Iterable
from typing import Any, TypeAlias

from engine.dtype import INTS
from engine.errors import DTypeError, ShapeError
from engine.primitive import checked_operand

Axes: TypeAlias = int | tuple[int, ...] | None


def checked_integer(name: str, what: str, value: Any) -> int:
    """A setting that must be an integer, as Python's own.

    Raises:
        TypeError: it is none.
    """
    try:
        return value.__index__()
    except (TypeError, AttributeError):
        raise TypeError(f"{name}: {what} is {value!r}; it must be an integer") from None


def checked_integers(name: str, what: str, values: Any) -> tuple[int, ...]:
    """A setting that must be a sequence of integers.

    Raises:
        TypeError: it is none, or holds something else.
    """
    if not isinstance(values, Iterable):
        raise TypeError(f"{name}: {what} is {values!r}; it must be a sequence of integers")
    return tuple(checked_integer(name, what, value) for value in values)


def checked_number(name: str, what: str, value: Any) -> float:
    """A setting that must be a number; infinite where it is an integer beyond every float.

    Raises:
        TypeError: it is none.
    """
    try:
        return value.__float__()  # which text lacks
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, AttributeError):
        raise TypeError(f"{name}: {what} is {value!r}; it must be a number") from None


def checked_axis(name: str, x: Any, axis: int) -> int:
    """`axis` of a tensor, counted from the front.

    Raises:
        TypeError: x is no Tensor, or `axis` no integer.
        ShapeError: x has no such axis.
    """
    shape = checked_operand(name, x)._data.shape
    position = checked_integer(name, "axis", axis)
    if not -len(shape) <= position < len(shape):
        raise ShapeError(f"{name}: a tensor of shape {shape} has no axis {axis}")
    return position % len(shape)


def checked_axes(name: str, x: Any, axis: Axes) -> tuple[int, ...]:
    """Axes of a tensor, counted from the front; None stands for all of them.

    Raises:
        TypeError: x is no Tensor, or an axis no integer.
        ShapeError: x lacks one of the axes, or one is named twice.
    """
    if axis is None:
        return tuple(range(checked_operand(name, x)._data.ndim))
    if isinstance(axis, list):
        raise TypeError(f"{name}: axis is {axis}; it must be an integer, a tuple of them, or None")
    axes = tuple(checked_axis(name, x, one) for one in (axis if isinstance(axis, tuple) else (axis,)))
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{name}: axis {axis} of a tensor of shape {x._data.shape} names one axis twice")
    return axes


def refuse_nothing(name: str, x: Any, axes: tuple[int, ...]) -> None:
    """Refuse to reduce axes without elements, where that has no value.

    Raises:
        ShapeError: one of the axes has extent 0.
    """
    shape = x._data.shape
    if any(shape[axis] == 0 for axis in axes):
        raise ShapeError(f"{name}: of no elements there is none (a tensor of shape {shape}, over axes {axes})")


def check_indices(name: str, indices: Any, extent: int, what: str = "index", of: str = "an axis of extent") -> None:
    """Refuse indices that are no integers, or are out of range: CuPy would wrap those around without a word.

    They are read on the host; for a tensor on a GPU this waits.

    Raises:
        TypeError: `indices` is no Tensor.
        DTypeError: its dtype is no integer one.
        IndexError: one is below 0, or not below `extent`.
    """
    if checked_operand(name, indices)._data.dtype not in INTS:
        raise DTypeError(f"{name}: {what} of dtype {indices._data.dtype}; it must be of integers, such as int64")
    host = indices._host()
    if host.size == 0:
        return
    low, high = int(host.min()), int(host.max())
    if low < 0 or high >= extent:
        raise IndexError(f"{name}: {what} {low if low < 0 else high} is out of range for {of} {extent}")


def check_shape(name: str, what: str, operand: Any, shape: tuple[int, ...]) -> None:
    """Refuse an operand of another shape than the one that goes with the others.

    Raises:
        TypeError: it is no Tensor.
        ShapeError: its shape differs.
    """
    if checked_operand(name, operand)._data.shape != shape:
        raise ShapeError(f"{name}: {what} has shape {operand._data.shape}; here it must be {shape}")


def pair(name: str, what: str, value: int | tuple[int, int], least: int) -> tuple[int, int]:
    """Two integers for height and width, given as two or as one for both.

    Raises:
        TypeError: they are no integers.
        ShapeError: not two of them, or one is below `least`.
    """
    both = checked_integers(name, what, value if isinstance(value, (tuple, list)) else (value, value))
    if len(both) != 2 or min(both) < least:
        raise ShapeError(f"{name}: {what} is {value}; it must be one or two integers of {least} or more")
    return both[0], both[1]
