"""Losses: one number, or one for each example, that training makes small."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from engine.backend import Array
from engine.dtype import FLOATS, INT64
from engine.errors import ShapeError
from engine.primitive import Primitive, Pull, checked_operand

from .checks import check_indices, check_shape
from .softmax import log_softmax_array

if TYPE_CHECKING:
    from engine.tensor import Tensor

Reduction: TypeAlias = Literal["mean", "sum", "none"]


def _cross_entropy_array(xp: Any, logits: Array, targets: Array, reduction: Reduction) -> Array:
    places = targets.astype(INT64, copy=False)[..., None]
    return _reduced(-xp.take_along_axis(log_softmax_array(xp, logits, -1), places, axis=-1)[..., 0], reduction)


def _mse_array(xp: Any, prediction: Array, target: Array, reduction: Reduction) -> Array:
    away = prediction - target
    away *= away
    return _reduced(away, reduction)


def _reduced(losses: Array, reduction: Reduction) -> Array:
    if reduction == "none":
        return losses
    return losses.sum() / (losses.size if reduction == "mean" else 1)


def _cross_entropy_vjp(xp: Any, y: Array, logits: Array, targets: Array, reduction: Reduction) -> tuple[Pull, None]:
    """The slope is softmax(logits), less 1 at the target."""

    def pull(g: Array) -> Array:
        slopes = xp.exp(log_softmax_array(xp, logits, -1)).reshape(targets.size, logits.shape[-1])
        slopes[xp.arange(targets.size), targets.astype(INT64, copy=False).reshape(-1)] -= 1
        slopes *= _each(g, targets.size, reduction).reshape(-1, 1)
        return slopes.reshape(logits.shape)

    return pull, None


def _mse_vjp(xp: Any, y: Array, prediction: Array, target: Array, reduction: Reduction) -> tuple[Pull, Pull]:
    return (
        lambda g: (prediction - target) * (2 * _each(g, prediction.size, reduction)),
        lambda g: (target - prediction) * (2 * _each(g, target.size, reduction)),
    )


def _each(g: Array, examples: int, reduction: Reduction) -> Array:
    """The gradient of each example's loss: rank 0 where it is the same for all."""
    return g / examples if reduction == "mean" else g


_CROSS_ENTROPY = Primitive(
    "cross_entropy", _cross_entropy_array, takes=FLOATS, mixed=True, wide=True, vjp=_cross_entropy_vjp
)
_MSE = Primitive("mse", _mse_array, takes=FLOATS, wide=True, vjp=_mse_vjp)


def cross_entropy(logits: "Tensor", targets: "Tensor", reduction: Reduction = "mean") -> "Tensor":
    """−log softmax(logits) at the target of each example.

    Args:
        logits: floats, shape [..., classes].
        targets: integers from 0 up to, without, the number of classes; shape [...].
        reduction: ``"mean"`` or ``"sum"`` over the examples, or ``"none"``.

    Returns:
        Rank 0, or the shape of `targets`.

    Raises:
        IndexError: a target is out of range.
        DTypeError: `targets` are no integers.
        ShapeError: the shapes do not go together, or a mean is of no examples.
        ValueError: no such reduction.
    """
    shape = checked_operand("cross_entropy", logits)._data.shape
    if not shape:
        raise ShapeError("cross_entropy: logits have rank 0; they must be [..., classes]")
    check_shape("cross_entropy", "targets", targets, shape[:-1])
    _check_reduction("cross_entropy", reduction, targets)
    check_indices("cross_entropy", targets, shape[-1], "target", "a number of classes of")
    return _CROSS_ENTROPY(logits, targets, reduction=reduction)


def mse(prediction: "Tensor", target: "Tensor", reduction: Reduction = "mean") -> "Tensor":
    """The squared distance of each element from its target.

    Args:
        prediction: floats.
        target: of the same shape and dtype.
        reduction: ``"mean"`` or ``"sum"`` over all elements, or ``"none"``.

    Returns:
        Rank 0, or the shape of `prediction`.

    Raises:
        ShapeError: the shapes differ, or a mean is of no elements.
        ValueError: no such reduction.
    """
    check_shape("mse", "target", target, checked_operand("mse", prediction)._data.shape)
    _check_reduction("mse", reduction, prediction)
    return _MSE(prediction, target, reduction=reduction)


def _check_reduction(name: str, reduction: str, examples: Any) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{name}: reduction is {reduction!r}; it must be 'mean', 'sum' or 'none'")
    if reduction == "mean" and examples._data.size == 0:
        raise ShapeError(f"{name}: no mean of no examples (shape {examples._data.shape}); use reduction='sum'")
