"""Elements by position: rows of a table, elements along an axis, and sums into places.

Positions are checked on the host (a tensor on a GPU is waited for): each must
be from 0 up to, without, the extent of the axis. What a sum adds up is added
in an order that only the positions decide, so bits repeat on every device;
the gradient of what was read is such a sum.
"""

from math import prod
from typing import TYPE_CHECKING, Any

from engine.backend import Array
from engine.dtype import INT64
from engine.errors import ShapeError
from engine.primitive import NUMBERS, Primitive, Pull, check_alike, checked_operand

from .checks import check_indices, check_shape, checked_axis
from .quantized import moved, rows_of

if TYPE_CHECKING:
    from engine.tensor import Tensor


def take_array(xp: Any, x: Array, indices: Array, axis: int) -> Array:
    return xp.take(x, indices.astype(INT64, copy=False), axis=axis)


def take_vjp(xp: Any, y: Array, x: Array, indices: Array, axis: int) -> tuple[Pull, None]:
    extent, others = x.shape[axis], (*x.shape[:axis], *x.shape[axis + 1 :])
    # In the memory order of a table that is stored column by column, so that an optimizer goes through both alike.
    order = "C" if x.flags.c_contiguous else "F"

    def to_x(g: Array) -> Array:
        values = xp.moveaxis(g.reshape(*others[:axis], indices.size, *others[axis:]), axis, 0)
        places, sums = segment_sums(xp, indices.astype(INT64, copy=False).ravel(), values)
        whole = xp.zeros((extent, *others), dtype=g.dtype, order=order)
        whole[places] = sums
        return xp.moveaxis(whole, 0, axis)

    return to_x, None


def _gather_array(xp: Any, x: Array, indices: Array, axis: int) -> Array:
    return xp.take_along_axis(x, indices.astype(INT64, copy=False), axis=axis)


def _gather_vjp(xp: Any, y: Array, x: Array, indices: Array, axis: int) -> tuple[Pull, None]:
    shape = x.shape
    return lambda g: _scatter_add_array(xp, xp.zeros(shape, dtype=g.dtype), indices, g, axis), None


def _scatter_add_array(xp: Any, x: Array, indices: Array, values: Array, axis: int) -> Array:
    x, indices, values = (xp.moveaxis(array, axis, -1) for array in (x, indices.astype(INT64, copy=False), values))
    rows = xp.arange(prod(x.shape[:-1])).reshape(*x.shape[:-1], 1)
    places, sums = segment_sums(xp, (indices + rows * x.shape[-1]).ravel(), values.ravel())
    y = xp.array(x, order="C", copy=True)
    y.reshape(-1)[places] += sums  # no place stands twice
    return xp.moveaxis(y, -1, axis)


def _scatter_add_vjp(xp: Any, y: Array, x: Array, indices: Array, values: Array, axis: int) -> tuple[Pull, None, Pull]:
    return lambda g: g, None, lambda g: _gather_array(xp, g, indices, axis)


def segment_sums(xp: Any, keys: Array, values: Array) -> tuple[Array, Array]:
    """The keys without repetition, ascending, and for each the sum of its values.

    Equal keys are brought together by a stable sort and added up by doubling
    (each sum of 2n neighbours from two of n): the order of the additions
    depends on the keys alone, where the atomic sums of a GPU vary. Only rows
    that are added to are touched.

    Args:
        keys: integers, shape [n].
        values: shape [n, ...]; the sums have their dtype.
    """
    order = xp.argsort(keys, kind="stable")
    keys, sums = keys[order], values[order]
    is_first = xp.ones(keys.shape, dtype=bool)
    is_first[1:] = keys[1:] != keys[:-1]
    firsts = xp.flatnonzero(is_first)
    run = xp.cumsum(is_first) - 1
    rank = xp.arange(len(keys)) - firsts[run]
    left = xp.diff(firsts, append=len(keys))[run] - rank  # how many of a run lie from here on
    step, heads = 1, xp.arange(len(keys))
    while heads.size:
        heads = heads[xp.flatnonzero((rank[heads] % (2 * step) == 0) & (left[heads] > step))]
        sums[heads] += sums[heads + step]
        step *= 2
    return keys[firsts], sums[firsts]


def _embedding_vjp(xp: Any, y: Array, weight: Array, ids: Array) -> tuple[Pull, None]:
    return take_vjp(xp, y, weight, ids, 0)


def _embedding_array(xp: Any, weight: Array, ids: Array) -> Array:
    if weight.flags.c_contiguous:
        return take_array(xp, weight, ids, 0)
    # A table that a head shares may be stored column by column, and NumPy's take would copy such a one whole.
    return xp.ascontiguousarray(xp.moveaxis(take_array(xp, weight.T, ids, 1), 0, -1))


_TAKE = Primitive("take", take_array, mixed=True, vjp=take_vjp, quantized=moved(take_array))
_EMBEDDING = Primitive("embedding", _embedding_array, mixed=True, vjp=_embedding_vjp, quantized=rows_of)
_GATHER = Primitive("gather", _gather_array, mixed=True, vjp=_gather_vjp, quantized=moved(_gather_array))
_SCATTER_ADD = Primitive("scatter_add", _scatter_add_array, takes=NUMBERS, mixed=True, wide=True, vjp=_scatter_add_vjp)


def take(x: "Tensor", indices: "Tensor", axis: int = 0) -> "Tensor":
    """Slices of x along an axis, by position: shape of x with the axis replaced by the shape of `indices`.

    Args:
        x: any tensor of rank 1 or more.
        indices: integers of any shape.
        axis: the axis of x.

    Raises:
        IndexError: an index is out of range.
        DTypeError: `indices` are no integers.
        ShapeError: x has no such axis.
    """
    place = checked_axis("take", x, axis)
    check_indices("take", indices, x._data.shape[place])
    return _TAKE(x, indices, axis=place)


def embedding(weight: "Tensor", ids: "Tensor") -> "Tensor":
    """The rows of a table that the ids name.

    Args:
        weight: shape [vocabulary, d].
        ids: integers, shape [...].

    Returns:
        Shape [..., d].

    Raises:
        IndexError: an id is negative, or not below the extent of the vocabulary.
        DTypeError: `ids` are no integers.
        ShapeError: `weight` has not two axes.
    """
    shape = checked_operand("embedding", weight)._data.shape
    if len(shape) != 2:
        raise ShapeError(f"embedding: weight has shape {shape}; it must be [vocabulary, d]")
    check_indices("embedding", ids, shape[0], "id", "a vocabulary of")
    return _EMBEDDING(weight, ids)


def gather(x: "Tensor", indices: "Tensor", axis: int) -> "Tensor":
    """Single elements along an axis: ``y[i, j] = x[indices[i, j], j]`` for axis 0, and so on.

    Args:
        x: any tensor of rank 1 or more.
        indices: integers, of x's shape but for `axis`.
        axis: the axis of x.

    Returns:
        The shape of `indices`.

    Raises:
        IndexError: an index is out of range.
        DTypeError: `indices` are no integers.
        ShapeError: x has no such axis, or other extents differ.
    """
    place = checked_axis("gather", x, axis)
    _check_beside("gather", "indices", x, indices, place)
    check_indices("gather", indices, x._data.shape[place])
    return _GATHER(x, indices, axis=place)


def scatter_add(x: "Tensor", indices: "Tensor", values: "Tensor", axis: int) -> "Tensor":
    """x with values added at places along an axis: ``y[indices[i, j], j] += values[i, j]`` for axis 0, and so on.

    The values of one place are added up first, by neighbours in the order
    in which they stand, then to x.

    Args:
        x: numbers, of rank 1 or more.
        indices: integers, of x's shape but for `axis`.
        values: of the shape of `indices` and the dtype of x.
        axis: the axis of x.

    Raises:
        IndexError: an index is out of range.
        DTypeError: `indices` are no integers, or `values` of another dtype than x.
        ShapeError: x has no such axis, or extents differ.
    """
    place = checked_axis("scatter_add", x, axis)
    _check_beside("scatter_add", "indices", x, indices, place)
    check_alike("scatter_add", x, values)
    check_shape("scatter_add", "values", values, indices._data.shape)
    check_indices("scatter_add", indices, x._data.shape[place])
    return _SCATTER_ADD(x, indices, values, axis=place)


def _check_beside(name: str, what: str, x: Any, operand: Any, axis: int) -> None:
    """Refuse an operand that differs from x in another extent than that of `axis`."""
    shape, other = list(x._data.shape), list(checked_operand(name, operand)._data.shape)
    if len(shape) != len(other) or shape[:axis] + shape[axis + 1 :] != other[:axis] + other[axis + 1 :]:
        raise ShapeError(f"{name}: {what} {tuple(other)} must have the shape of x, {tuple(shape)}, but for axis {axis}")
