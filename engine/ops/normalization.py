"""Normalisations: layer norm, root-mean-square norm, batch norm."""

from typing import TYPE_CHECKING, Any

from engine.backend import Array
from engine.dtype import FLOATS
from engine.errors import ShapeError
from engine.primitive import Primitive, checked_operand

from . import reductions
from .checks import check_shape

if TYPE_CHECKING:
    from engine.tensor import Tensor


def _layer_norm_array(xp: Any, x: Array, gamma: Array, *beta: Array, epsilon: float) -> Array:
    _check_last("layer_norm", x, gamma, *beta)
    count = x.shape[-1] or 1
    y = x - x.sum(axis=-1, keepdims=True) / count
    spread = (y * y).sum(axis=-1, keepdims=True)
    spread /= count
    spread += epsilon
    y /= xp.sqrt(spread)
    y *= gamma
    if beta:
        y += beta[0]
    return y


def _rms_norm_array(xp: Any, x: Array, gamma: Array, epsilon: float) -> Array:
    _check_last("rms_norm", x, gamma)
    # Out of place: with a Python number beside it, `/=` takes twice as long as `/` for a single row.
    spread = (x * x).sum(axis=-1, keepdims=True) / (x.shape[-1] or 1) + epsilon
    y = x / xp.sqrt(spread)
    y *= gamma
    return y


def _batch_norm_array(xp: Any, x: Array, mean: Array, var: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    shape = (-1,) + (1,) * (x.ndim - 2)
    y = x - mean.reshape(shape)
    y *= (gamma / xp.sqrt(var + epsilon)).reshape(shape)
    y += beta.reshape(shape)
    return y


_LAYER_NORM = Primitive("layer_norm", _layer_norm_array, takes=FLOATS, wide=True)
_RMS_NORM = Primitive("rms_norm", _rms_norm_array, takes=FLOATS, wide=True)
_BATCH_NORM = Primitive("batch_norm", _batch_norm_array, takes=FLOATS, wide=True)


def layer_norm(x: "Tensor", gamma: "Tensor", beta: "Tensor | None" = None, epsilon: float = 1e-5) -> "Tensor":
    """(x − mean) / √(var + ε) · γ + β, with mean and biased variance along the last axis.

    Args:
        x: floats, shape [..., d].
        gamma: shape [d].
        beta: shape [d], or None for 0.
        epsilon: added to the variance.

    Raises:
        ShapeError: x has rank 0, or gamma or beta another shape.

    Source: J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer normalization" (2016), equation 4.
    """
    parameters = (gamma,) if beta is None else (gamma, beta)
    return _LAYER_NORM(x, *parameters, epsilon=epsilon)


def rms_norm(x: "Tensor", gamma: "Tensor", epsilon: float = 1e-5) -> "Tensor":
    """x / √(mean(x²) + ε) · γ, with the mean along the last axis.

    Args:
        x: floats, shape [..., d].
        gamma: shape [d].
        epsilon: added to the mean square.

    Raises:
        ShapeError: x has rank 0, or gamma another shape.

    Source: B. Zhang, R. Sennrich, "Root mean square layer normalization" (2019), equation 4.
    """
    return _RMS_NORM(x, gamma, epsilon=epsilon)


def batch_norm(
    x: "Tensor", mean: "Tensor", var: "Tensor", gamma: "Tensor", beta: "Tensor", epsilon: float = 1e-5
) -> "Tensor":
    """(x − mean) / √(var + ε) · γ + β, each channel with its own four numbers.

    In training `mean` and `var` are those of x itself (`batch_statistics`), otherwise running ones.

    Args:
        x: floats, shape [batch, channels, ...].
        mean, var, gamma, beta: shape [channels].
        epsilon: added to the variance.

    Raises:
        ShapeError: x has rank 0 or 1, or one of the four another shape.

    Source: S. Ioffe, C. Szegedy, "Batch normalization" (2015), algorithms 1 and 2.
    """
    channels = (_channels("batch_norm", x),)
    for name, operand in {"mean": mean, "var": var, "gamma": gamma, "beta": beta}.items():
        check_shape("batch_norm", name, operand, channels)
    return _BATCH_NORM(x, mean, var, gamma, beta, epsilon=epsilon)


def batch_statistics(x: "Tensor") -> "tuple[Tensor, Tensor]":
    """Mean and biased variance of each channel, over all other axes.

    Args:
        x: floats, shape [batch, channels, ...].

    Returns:
        Two tensors of shape [channels].

    Raises:
        ShapeError: x has rank 0 or 1, or a channel has no elements.
    """
    _channels("batch_statistics", x)
    others = tuple(axis for axis in range(x._data.ndim) if axis != 1)
    return reductions.mean(x, others), reductions.var(x, others)


def _check_last(name: str, x: Array, *parameters: Array) -> None:
    for parameter in parameters:
        if x.ndim == 0 or parameter.shape != x.shape[-1:]:
            shapes = f"{x.shape} and {parameter.shape}"
            raise ShapeError(f"{name}: x and a parameter of shapes {shapes} must be [..., d] and [d]")


def _channels(name: str, x: Any) -> int:
    shape = checked_operand(name, x)._data.shape
    if len(shape) < 2:
        raise ShapeError(f"{name}: x has shape {shape}; it must be [batch, channels, ...]")
    return shape[1]
