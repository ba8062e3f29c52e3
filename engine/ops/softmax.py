"""Softmax and its logarithm, along one axis of floats, without overflow."""

from typing import TYPE_CHECKING, Any

from engine.backend import Array
from engine.dtype import FLOATS
from engine.primitive import Primitive, Pull, quiet

from .checks import checked_axis

if TYPE_CHECKING:
    from engine.tensor import Tensor


def _softmax_array(xp: Any, x: Array, axis: int) -> Array:
    if x.size == 0:
        return xp.array(x, copy=True)
    with quiet():  # where all are −∞, or one is ∞, the result is NaN
        y = x - x.max(axis=axis, keepdims=True)
    y = xp.exp(y)
    y /= y.sum(axis=axis, keepdims=True)
    return y


def log_softmax_array(xp: Any, x: Array, axis: int) -> Array:
    if x.size == 0:
        return xp.array(x, copy=True)
    with quiet():
        y = x - x.max(axis=axis, keepdims=True)
    y -= xp.log(xp.exp(y).sum(axis=axis, keepdims=True))
    return y


def _logsumexp_array(xp: Any, x: Array, axis: int, keepdims: bool) -> Array:
    if x.shape[axis] == 0:
        shape = list(x.shape)
        shape[axis : axis + 1] = [1] if keepdims else []
        return xp.full(shape, -xp.inf, dtype=x.dtype)
    largest = x.max(axis=axis, keepdims=True)
    largest = xp.where(xp.isfinite(largest), largest, 0)
    with quiet():  # the logarithm of 0 is meant
        y = xp.log(xp.exp(x - largest).sum(axis=axis, keepdims=keepdims))
    y += largest if keepdims else largest.squeeze(axis)
    return y


def _softmax_vjp(xp: Any, y: Array, x: Array, axis: int) -> tuple[Pull]:
    return (lambda g: y * (g - (g * y).sum(axis=axis, keepdims=True)),)


def _log_softmax_vjp(xp: Any, y: Array, x: Array, axis: int) -> tuple[Pull]:
    return (lambda g: g - xp.exp(y) * g.sum(axis=axis, keepdims=True),)


def _logsumexp_vjp(xp: Any, y: Array, x: Array, axis: int, keepdims: bool) -> tuple[Pull]:
    def pull(g: Array) -> Array:
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        total = y.reshape(shape)
        shares = xp.exp(x - xp.where(total == -xp.inf, 0, total))  # all 0 where all of x are −∞
        return g.reshape(shape) * shares

    return (pull,)


_SOFTMAX = Primitive("softmax", _softmax_array, takes=FLOATS, wide=True, vjp=_softmax_vjp)
_LOG_SOFTMAX = Primitive("log_softmax", log_softmax_array, takes=FLOATS, wide=True, vjp=_log_softmax_vjp)
_LOGSUMEXP = Primitive("logsumexp", _logsumexp_array, takes=FLOATS, wide=True, vjp=_logsumexp_vjp)


def softmax(x: "Tensor", axis: int = -1) -> "Tensor":
    """eˣ divided by its sum along an axis: shares that sum to 1. NaN where all are −∞, or one is ∞.

    Raises:
        ShapeError: x has no such axis.
    """
    return _SOFTMAX(x, axis=checked_axis("softmax", x, axis))


def log_softmax(x: "Tensor", axis: int = -1) -> "Tensor":
    """The logarithm of `softmax`, exact where that is too small to hold.

    Raises:
        ShapeError: x has no such axis.
    """
    return _LOG_SOFTMAX(x, axis=checked_axis("log_softmax", x, axis))


def logsumexp(x: "Tensor", axis: int = -1, keepdims: bool = False) -> "Tensor":
    """log Σ eˣ along an axis; −∞ over no elements.

    Raises:
        ShapeError: x has no such axis.
    """
    return _LOGSUMEXP(x, axis=checked_axis("logsumexp", x, axis), keepdims=keepdims)
