"""Operations that arrange elements anew: reshape, transpose, slices, joins.

Results are dense (see `engine.primitive`): transposes and reshapes are views
where they can be, a slice is a view where it has no gaps and otherwise a copy.
A gradient takes the way back: what a slice left out has gradient 0.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from engine.backend import Array
from engine.errors import ShapeError
from engine.primitive import Operand, Primitive, Pull, checked_operand, dense, not_a_tensor

from .checks import check_indices, checked_axis, checked_integer, checked_integers
from .elementwise import where_array
from .indexing import take_array, take_vjp
from .quantized import moved, turned

if TYPE_CHECKING:
    from engine.tensor import Tensor


def _broadcast_to_array(xp: Any, x: Array, shape: tuple[int, ...]) -> Array:
    return xp.array(xp.broadcast_to(x, shape), order="C", copy=True)


def _reshape_array(xp: Any, x: Array, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


def _tril_array(xp: Any, x: Array, diagonal: int) -> Array:
    rows, columns = x.shape[-2:]
    return where_array(xp, xp.arange(columns) <= xp.arange(rows)[:, None] + diagonal, x, x.dtype.type(0))


def _reshape_vjp(xp: Any, y: Array, x: Array, shape: tuple[int, ...]) -> tuple[Pull]:
    before = x.shape
    return (lambda g: g.reshape(before),)


def _transpose_vjp(xp: Any, y: Array, x: Array, axes: tuple[int, ...] | None) -> tuple[Pull]:
    if axes is None:
        return (lambda g: g.transpose(),)
    order = [axis % y.ndim for axis in axes]
    back = [order.index(axis) for axis in range(y.ndim)]
    return (lambda g: g.transpose(back),)


def _order(ndim: int, axes: tuple[int, ...] | None) -> tuple[int, ...]:
    """The axes as `transpose` takes them, none negative."""
    return tuple(range(ndim))[::-1] if axes is None else tuple(_place(ndim, axis) for axis in axes)


def _swapped_order(ndim: int, first: int, second: int) -> tuple[int, ...]:
    order = list(range(ndim))
    first, second = _place(ndim, first), _place(ndim, second)
    order[first], order[second] = second, first
    return tuple(order)


def _place(ndim: int, axis: int) -> int:
    if not -ndim <= axis < ndim:
        raise ValueError(f"axis {axis} is out of bounds")
    return axis % ndim


def _concatenate_vjp(xp: Any, y: Array, *arrays: Array, axis: int) -> tuple[Pull, ...]:
    extents = [array.shape[axis] for array in arrays]
    ends = accumulate(extents)
    return tuple(
        _part_along(axis % y.ndim, slice(end - extent, end)) for extent, end in zip(extents, ends, strict=True)
    )


def _stack_vjp(xp: Any, y: Array, *arrays: Array, axis: int) -> tuple[Pull, ...]:
    return tuple(_part_along(axis % y.ndim, position) for position in range(len(arrays)))


def _part_along(axis: int, part: int | slice) -> Pull:
    at = (*(slice(None),) * axis, part)
    return lambda g: g[at]


def _index_array(xp: Any, x: Array, at: Any) -> Array:
    return dense(xp, x[at])


def _index_vjp(xp: Any, y: Array, x: Array, at: Any) -> tuple[Pull]:
    shape = x.shape

    def to_x(g: Array) -> Array:
        whole = xp.zeros(shape, dtype=g.dtype)
        whole[at] = g
        return whole

    return (to_x,)


_RESHAPE = Primitive("reshape", _reshape_array, vjp=_reshape_vjp, quantized=moved(_reshape_array))
_TRANSPOSE = Primitive("transpose", lambda xp, x, axes: x.transpose(axes), vjp=_transpose_vjp, quantized=turned(_order))
_SWAP_AXES = Primitive(
    "swap_axes",
    lambda xp, x, first, second: xp.swapaxes(x, first, second),
    vjp=lambda xp, y, x, first, second: (lambda g: xp.swapaxes(g, first, second),),
    quantized=turned(_swapped_order),
)
_BROADCAST_TO = Primitive(
    "broadcast_to",
    _broadcast_to_array,
    vjp=lambda xp, y, x, shape: (lambda g: g,),
    quantized=moved(_broadcast_to_array),
)
_CONCATENATE = Primitive(
    "concatenate", lambda xp, *arrays, axis: xp.concatenate(arrays, axis=axis), vjp=_concatenate_vjp
)
_STACK = Primitive("stack", lambda xp, *arrays, axis: xp.stack(arrays, axis=axis), vjp=_stack_vjp)
_INDEX = Primitive("index", _index_array, vjp=_index_vjp, quantized=moved(_index_array))
_PICK = Primitive("index", take_array, mixed=True, vjp=take_vjp, quantized=moved(take_array))
_SPLIT = Primitive("split", _index_array, vjp=_index_vjp, quantized=moved(_index_array))
_TRIL = Primitive("tril", _tril_array, vjp=lambda xp, y, x, diagonal: (lambda g: _tril_array(xp, g, diagonal),))


def reshape(x: "Tensor", *shape: int | Sequence[int]) -> "Tensor":
    """The elements of x, row-major, in another shape; one extent may be -1 and is worked out.

    Raises:
        ShapeError: the number of elements differs.
    """
    return _RESHAPE(x, shape=_given(shape))


def transpose(x: "Tensor", *axes: int | Sequence[int]) -> "Tensor":
    """x with its axes in another order, all of them named; without any reversed. A view.

    Raises:
        ShapeError: `axes` is no permutation of x's axes.
    """
    return _TRANSPOSE(x, axes=_given(axes) or None)


def _given(numbers: tuple[Any, ...]) -> tuple[int, ...]:
    """Integers that were given one by one, or as one sequence."""
    return tuple(numbers[0]) if len(numbers) == 1 and isinstance(numbers[0], Sequence) else numbers


def swap_axes(x: "Tensor", first: int, second: int) -> "Tensor":
    """x with two axes exchanged; a view.

    Raises:
        ShapeError: x has no such axis.
    """
    return _SWAP_AXES(x, first=first, second=second)


def broadcast_to(x: "Tensor", shape: Sequence[int]) -> "Tensor":
    """x repeated along new axes and axes of extent 1, by NumPy's rules; a copy.

    Raises:
        ShapeError: x does not broadcast to `shape`.
    """
    return _BROADCAST_TO(x, shape=checked_integers("broadcast_to", "shape", shape))


def tril(x: "Tensor", diagonal: int = 0) -> "Tensor":
    """x with 0 (False) above a diagonal of its last two axes: the main one, or one so many places to its right.

    Raises:
        ShapeError: x has rank 0 or 1.
    """
    if checked_operand("tril", x)._data.ndim < 2:
        raise ShapeError(f"tril: a tensor of shape {x._data.shape} has no diagonal; it must have two axes")
    return _TRIL(x, diagonal=checked_integer("tril", "diagonal", diagonal))


def concatenate(tensors: "Iterable[Tensor]", axis: int) -> "Tensor":
    """Tensors one after another along an axis, their other extents equal.

    Raises:
        ShapeError: there is no tensor, no such axis, or other extents differ.
    """
    return _CONCATENATE(*_some("concatenate", tensors), axis=checked_integer("concatenate", "axis", axis))


def stack(tensors: "Iterable[Tensor]", axis: int) -> "Tensor":
    """Tensors of one shape along a new axis.

    Raises:
        ShapeError: there is no tensor, or shapes differ.
    """
    return _STACK(*_some("stack", tensors), axis=checked_integer("stack", "axis", axis))


def _some(name: str, tensors: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(tensors, Operand):
        raise TypeError(f"{name}: takes a list of Tensors, not one Tensor")
    if not isinstance(tensors, Iterable):
        raise not_a_tensor(name, tensors)
    given = tuple(tensors)
    if not given:
        raise ShapeError(f"{name}: no tensors")
    return given


def split(x: "Tensor", sizes: Sequence[int], axis: int) -> "list[Tensor]":
    """x cut along an axis into pieces of the given extents.

    Raises:
        ShapeError: x has no such axis, or the extents do not sum to its extent.
    """
    place = checked_axis("split", x, axis)
    extent, extents = x._data.shape[place], checked_integers("split", "sizes", sizes)
    if sum(extents) != extent or any(size < 0 for size in extents):
        raise ShapeError(f"split: sizes {list(extents)} do not cut an axis of extent {extent}")
    pieces, start = [], 0
    for size in extents:
        pieces.append(_SPLIT(x, at=(slice(None),) * place + (slice(start, start + size),)))
        start += size
    return pieces


def index(x: "Tensor", at: Any) -> "Tensor":
    """``x[at]``: integers, slices, None and ``...`` as in NumPy, or one tensor of integers along the first axis.

    Raises:
        IndexError: an index is out of range, or there are more than axes.
        DTypeError: `at` is a tensor of no integers.
        TypeError: `at` holds something else.
    """
    if isinstance(at, Operand):
        axis = checked_axis("index", x, 0)
        check_indices("index", at, x._data.shape[axis])
        return _PICK(x, at, axis=axis)
    return _INDEX(x, at=tuple(map(_part, at)) if isinstance(at, tuple) else _part(at))


def _part(part: Any) -> Any:
    """One part of an index; an integer as Python's own (a Tensor of one is taken for its value)."""
    if part is None or part is ... or isinstance(part, slice):
        return part
    try:
        if not isinstance(part, bool):
            return part.__index__()
    except (AttributeError, TypeError):
        pass
    raise TypeError(
        f"index: {part!r} is no integer, slice, None or ...; a tensor of integers may stand alone, "
        "and where() chooses by booleans"
    )
