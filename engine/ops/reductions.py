"""Reductions over axes, and running sums.

An axis is an integer, a tuple of them, or None for all; with `keepdims` the
axes that were reduced stay, with extent 1. The dtype is kept (sums and
products of booleans are int64, positions too); float16 and bfloat16 are
summed in float32 and rounded once. NaN goes through everything, and counts as
the largest and the smallest. Over no elements a sum is 0, a product 1, `all`
True and `any` False; what has no such value is a ShapeError.
"""

from math import prod as product
from typing import TYPE_CHECKING, Any

from engine.backend import Array
from engine.dtype import BOOL, FLOATS, INT64
from engine.primitive import BOOLEANS, Primitive, Pull

from .checks import Axes, checked_axes, checked_axis, refuse_nothing

if TYPE_CHECKING:
    from engine.tensor import Tensor


def _sum_array(xp: Any, x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return x.sum(axis=axis, dtype=INT64 if x.dtype == BOOL else x.dtype, keepdims=keepdims)


def _prod_array(xp: Any, x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return x.prod(axis=axis, dtype=INT64 if x.dtype == BOOL else x.dtype, keepdims=keepdims)


def _mean_array(xp: Any, x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return x.sum(axis=axis, keepdims=keepdims) / product(x.shape[one] for one in axis)


def _var_array(xp: Any, x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    away = x - _mean_array(xp, x, axis, True)
    away *= away
    return _mean_array(xp, away, axis, keepdims)


def _cumsum_array(xp: Any, x: Array, axis: int) -> Array:
    return xp.cumsum(x, axis=axis, dtype=INT64 if x.dtype == BOOL else x.dtype)


# Vector-Jacobian products: from the gradient g of the result


def _kept(x: Array, shape: tuple[int, ...], axis: tuple[int, ...]) -> Array:
    """What a reduction over `axis` of a tensor of `shape` gave, with the axes that it may have dropped."""
    return x.reshape([1 if at in axis else extent for at, extent in enumerate(shape)])


def _sum_vjp(xp: Any, y: Array, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Pull]:
    shape = x.shape
    return (lambda g: xp.broadcast_to(_kept(g, shape, axis), shape),)


def _mean_vjp(xp: Any, y: Array, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Pull]:
    shape = x.shape
    count = product(shape[one] for one in axis)
    return (lambda g: xp.broadcast_to(_kept(g / count, shape, axis), shape),)


def _var_vjp(xp: Any, y: Array, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Pull]:
    def pull(g: Array) -> Array:
        away = x - _mean_array(xp, x, axis, True)
        away *= _kept(g, x.shape, axis) * (2 / product(x.shape[one] for one in axis))
        return away

    return (pull,)


def _prod_vjp(xp: Any, y: Array, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Pull]:
    """By each element the product of those before it and of those after it: y / x would fail at 0."""

    def pull(g: Array) -> Array:
        last = tuple(range(x.ndim - len(axis), x.ndim))
        moved = xp.moveaxis(x, axis, last)
        rows = moved.reshape(*moved.shape[: x.ndim - len(axis)], product(x.shape[one] for one in axis))
        slopes = _product_before(xp, rows) * _product_before(xp, rows[..., ::-1])[..., ::-1]
        return xp.moveaxis(slopes.reshape(moved.shape), last, axis) * _kept(g, x.shape, axis)

    return (pull,)


def _product_before(xp: Any, x: Array) -> Array:
    """For each element the product of those before it on the last axis."""
    before = xp.ones(x.shape, dtype=x.dtype)
    before[..., 1:] = xp.cumprod(x[..., :-1], axis=-1)
    return before


def _extreme_vjp(xp: Any, y: Array, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Pull]:
    """Elements that tie share evenly, as for PyTorch's amax."""

    def pull(g: Array) -> Array:
        reached = x == _kept(y, x.shape, axis)
        return xp.where(reached, _kept(g, x.shape, axis), 0) / reached.sum(axis=axis, dtype=x.dtype, keepdims=True)

    return (pull,)


def _cumsum_vjp(xp: Any, y: Array, x: Array, axis: int) -> tuple[Pull]:
    return (lambda g: xp.flip(xp.cumsum(xp.flip(g, axis), axis=axis), axis),)


_SUM = Primitive("sum", _sum_array, wide=True, vjp=_sum_vjp)
_PROD = Primitive("prod", _prod_array, wide=True, vjp=_prod_vjp)
_MEAN = Primitive("mean", _mean_array, takes=FLOATS, wide=True, vjp=_mean_vjp)
_VAR = Primitive("var", _var_array, takes=FLOATS, wide=True, vjp=_var_vjp)
_MAX = Primitive("max", lambda xp, x, axis, keepdims: x.max(axis=axis, keepdims=keepdims), wide=True, vjp=_extreme_vjp)
_MIN = Primitive("min", lambda xp, x, axis, keepdims: x.min(axis=axis, keepdims=keepdims), wide=True, vjp=_extreme_vjp)
_ARGMAX = Primitive("argmax", lambda xp, x, axis, keepdims: x.argmax(axis=axis, keepdims=keepdims), wide=True)
_ARGMIN = Primitive("argmin", lambda xp, x, axis, keepdims: x.argmin(axis=axis, keepdims=keepdims), wide=True)
_ANY = Primitive("any", lambda xp, x, axis, keepdims: x.any(axis=axis, keepdims=keepdims), takes=BOOLEANS)
_ALL = Primitive("all", lambda xp, x, axis, keepdims: x.all(axis=axis, keepdims=keepdims), takes=BOOLEANS)
_CUMSUM = Primitive("cumsum", _cumsum_array, wide=True, vjp=_cumsum_vjp)


def sum(x: "Tensor", axis: Axes = None, keepdims: bool = False) -> "Tensor":
    """The sum over axes, in x's dtype (integers wrap around); of booleans how many are true, int64.

    Raises:
        ShapeError: x has no such axis.
    """
    return _SUM(x, axis=checked_axes("sum", x, axis), keepdims=keepdims)


def prod(x: "Tensor", axis: Axes = None, keepdims: bool = False) -> "Tensor":
    """The product over axes, in x's dtype (integers wrap around); of booleans int64.

    Raises:
        ShapeError: x has no such axis.
    """
    return _PROD(x, axis=checked_axes("prod", x, axis), keepdims=keepdims)


def mean(x: "Tensor", axis: Axes = None, keepdims: bool = False) -> "Tensor":
    """The mean over axes, of floats.

    Raises:
        ShapeError: x has no such axis, or a mean is of no elements.
        DTypeError: integers or booleans; cast them first.
    """
    return _over_some(_MEAN, x, axis, keepdims)


def var(x: "Tensor", axis: Axes = None, keepdims: bool = False) -> "Tensor":
    """The mean squared distance from the mean (biased: divided by the number of elements), of floats.

    Raises:
        ShapeError: x has no such axis, or a variance is of no elements.
        DTypeError: integers or booleans; cast them first.
    """
    return _over_some(_VAR, x, axis, keepdims)


def max(x: "Tensor", axis: Axes = None, keepdims: bool = False) -> "Tensor":
    """The largest element over axes; NaN if there is one.

    Raises:
        ShapeError: x has no such axis, or it is of no elements.
    """
    return _over_some(_MAX, x, axis, keepdims)


def min(x: "Tensor", axis: Axes = None, keepdims: bool = False) -> "Tensor":
    """The smallest element over axes; NaN if there is one.

    Raises:
        ShapeError: x has no such axis, or it is of no elements.
    """
    return _over_some(_MIN, x, axis, keepdims)


def argmax(x: "Tensor", axis: int | None = None, keepdims: bool = False) -> "Tensor":
    """Where the largest element is along an axis, int64: the first of equal ones, the first NaN if there is one.

    Without an axis it is a position in row-major order.

    Raises:
        ShapeError: x has no such axis, or no elements along it.
    """
    return _position(_ARGMAX, x, axis, keepdims)


def argmin(x: "Tensor", axis: int | None = None, keepdims: bool = False) -> "Tensor":
    """Where the smallest element is along an axis, int64: the first of equal ones, the first NaN if there is one.

    Without an axis it is a position in row-major order.

    Raises:
        ShapeError: x has no such axis, or no elements along it.
    """
    return _position(_ARGMIN, x, axis, keepdims)


def any(x: "Tensor", axis: Axes = None, keepdims: bool = False) -> "Tensor":
    """Whether one of the booleans over axes is true.

    Raises:
        ShapeError: x has no such axis.
    """
    return _ANY(x, axis=checked_axes("any", x, axis), keepdims=keepdims)


def all(x: "Tensor", axis: Axes = None, keepdims: bool = False) -> "Tensor":
    """Whether all booleans over axes are true.

    Raises:
        ShapeError: x has no such axis.
    """
    return _ALL(x, axis=checked_axes("all", x, axis), keepdims=keepdims)


def cumsum(x: "Tensor", axis: int) -> "Tensor":
    """The sum of the elements up to each one along an axis, that one included; of booleans int64.

    Raises:
        ShapeError: x has no such axis.
    """
    return _CUMSUM(x, axis=checked_axis("cumsum", x, axis))


def _over_some(primitive: Primitive, x: "Tensor", axis: Axes, keepdims: bool) -> "Tensor":
    axes = checked_axes(primitive.name, x, axis)
    refuse_nothing(primitive.name, x, axes)
    return primitive(x, axis=axes, keepdims=keepdims)


def _position(primitive: Primitive, x: "Tensor", axis: int | None, keepdims: bool) -> "Tensor":
    axes = checked_axes(primitive.name, x, axis)
    refuse_nothing(primitive.name, x, axes)
    return primitive(x, axis=None if axis is None else axes[0], keepdims=keepdims)
