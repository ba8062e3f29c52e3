"""Operations that arrange elements anew: reshape, transpose, slices, joins.

Results are dense (see `engine.primitive`): transposes and reshapes are views
where they can be, a slice is a view where it has no gaps and otherwise a copy.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.backend import Array
from engine.dtype import INT64, INTS
from engine.errors import DTypeError, ShapeError
from engine.primitive import Operand, Primitive, dense, not_a_tensor

if TYPE_CHECKING:
    from engine.tensor import Tensor

_RESHAPE = Primitive("reshape", lambda xp, x, shape: x.reshape(shape))
_TRANSPOSE = Primitive("transpose", lambda xp, x, axes: xp.transpose(x, axes or None))
_SWAP_AXES = Primitive("swap_axes", lambda xp, x, first, second: xp.swapaxes(x, first, second))
_BROADCAST_TO = Primitive(
    "broadcast_to", lambda xp, x, shape: xp.array(xp.broadcast_to(x, shape), order="C", copy=True)
)
_CONCATENATE = Primitive("concatenate", lambda xp, *arrays, axis: xp.concatenate(arrays, axis=axis))
_STACK = Primitive("stack", lambda xp, *arrays, axis: xp.stack(arrays, axis=axis))
_SLICE = Primitive("index", lambda xp, x, index: dense(xp, x[index]))


def _taken(xp: Any, x: Array, indices: Array, axis: int) -> Array:
    return xp.take(x, indices, axis=axis)


_TAKE = Primitive("take", _taken, mixed=True)


def reshape(x: "Tensor", *shape: int) -> "Tensor":
    """The elements of x, row-major, in another shape; one extent may be -1 and is worked out.

    Raises:
        ShapeError: the number of elements differs.
    """
    extents = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
    return _RESHAPE(x, shape=tuple(extents))


def transpose(x: "Tensor", *axes: int) -> "Tensor":
    """x with its axes in another order, all of them named; without any reversed. A view.

    Raises:
        ShapeError: `axes` is no permutation of x's axes.
    """
    order = axes[0] if len(axes) == 1 and isinstance(axes[0], Sequence) else axes
    return _TRANSPOSE(x, axes=tuple(order))


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
    return _BROADCAST_TO(x, shape=tuple(shape))


def concatenate(tensors: "Sequence[Tensor]", axis: int) -> "Tensor":
    """Tensors one after another along an axis, their other extents equal.

    Raises:
        ShapeError: there is no tensor, no such axis, or other extents differ.
    """
    if not tensors:
        raise ShapeError("concatenate: no tensors")
    return _CONCATENATE(*tensors, axis=axis)


def stack(tensors: "Sequence[Tensor]", axis: int) -> "Tensor":
    """Tensors of one shape along a new axis.

    Raises:
        ShapeError: there is no tensor, or shapes differ.
    """
    if not tensors:
        raise ShapeError("stack: no tensors")
    return _STACK(*tensors, axis=axis)


def split(x: "Tensor", sizes: Sequence[int], axis: int) -> "list[Tensor]":
    """x cut along an axis into pieces of the given extents.

    Raises:
        ShapeError: x has no such axis, or the extents do not sum to its extent.
    """
    shape = _operand("split", x)._data.shape
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(f"split: a tensor of shape {shape} has no axis {axis}")
    place = axis % len(shape)
    if sum(sizes) != shape[place] or any(size < 0 for size in sizes):
        raise ShapeError(f"split: sizes {list(sizes)} do not cut an axis of extent {shape[place]}")
    pieces, start = [], 0
    for size in sizes:
        pieces.append(_SLICE(x, index=(slice(None),) * place + (slice(start, start + size),)))
        start += size
    return pieces


def index(x: "Tensor", at: Any) -> "Tensor":
    """``x[at]``: integers, slices, None and ``...`` as in NumPy, or one tensor of integers along the first axis.

    Raises:
        IndexError: an index is out of range, or there are more than axes.
        TypeError: `at` holds something else.
    """
    if isinstance(at, Operand):
        return take(x, at, 0)
    parts = at if isinstance(at, tuple) else (at,)
    for part in parts:
        if isinstance(part, bool) or not (
            part is None or part is ... or isinstance(part, slice) or hasattr(part, "__index__")
        ):
            raise TypeError(
                f"index: {part!r} is no integer, slice, None or ...; one tensor of integers may stand alone"
            )
    return _SLICE(x, index=parts)


def take(x: "Tensor", indices: "Tensor", axis: int = 0) -> "Tensor":
    """Elements of x along an axis, by position: shape of x with the axis replaced by the shape of `indices`.

    Args:
        x: any tensor of rank 1 or more.
        indices: an integer dtype; from 0 up to, without, the extent of the axis.
        axis: the axis of x.

    Raises:
        IndexError: an index is out of range.
        DTypeError: `indices` are no integers.
        ShapeError: x has no such axis.
    """
    _operand("take", x)
    if _operand("take", indices)._data.dtype not in INTS:
        raise DTypeError(f"take: indices of dtype {indices._data.dtype}; they must be integers, such as {INT64}")
    if not -x._data.ndim <= axis < x._data.ndim:
        raise ShapeError(f"take: a tensor of shape {x._data.shape} has no axis {axis}")
    check_indices("take", indices, x._data.shape[axis])
    return _TAKE(x, indices, axis=axis)


def check_indices(name: str, indices: "Tensor", extent: int) -> None:
    """Refuse indices out of range: CuPy would wrap them around without a word.

    Raises:
        IndexError: one is below 0 or not below `extent`.
    """
    if indices._data.size == 0:
        return
    low, high = int(indices._host().min()), int(indices._host().max())
    if low < 0 or high >= extent:
        raise IndexError(f"{name}: index {low if low < 0 else high} is out of range for an axis of extent {extent}")


def _operand(name: str, value: Any) -> Any:
    if not isinstance(value, Operand):
        raise not_a_tensor(name, value)
    return value
