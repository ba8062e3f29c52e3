"""Normalisations: layer norm, root-mean-square norm, batch norm.

Their gradients compute the normalised x anew: to keep it would cost as much
memory as x, which the graph keeps anyway.
"""

from typing import TYPE_CHECKING, Any

from engine.backend import Array
from engine.dtype import FLOATS
from engine.errors import ShapeError
from engine.primitive import JointPull, Primitive, checked_operand

from . import reductions
from .checks import check_shape
from .products import as_rows

if TYPE_CHECKING:
    from engine.tensor import Tensor


def _layer_norm_array(xp: Any, x: Array, gamma: Array, *beta: Array, epsilon: float) -> Array:
    _check_last("layer_norm", x, gamma, *beta)
    y, _ = _centred(xp, x, epsilon)
    y *= gamma
    if beta:
        y += beta[0]
    return y


def _centred(xp: Any, x: Array, epsilon: float) -> tuple[Array, Array]:
    """(x − mean) / √(var + ε) in memory of its own, and that root."""
    count = x.shape[-1] or 1
    y = x - x.sum(axis=-1, keepdims=True) / count
    spread = (y * y).sum(axis=-1, keepdims=True)
    spread /= count
    spread += epsilon
    root = xp.sqrt(spread)
    y /= root
    return y, root


def _layer_norm_vjp(xp: Any, y: Array, x: Array, gamma: Array, *beta: Array, epsilon: float) -> JointPull:
    def pull(g: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
        of_x, of_gamma = needs[:2]
        if not (of_x or of_gamma):
            return None, None, g
        rows = as_rows(g)
        normal, root = _centred(xp, as_rows(x), epsilon)
        to_gamma = _sum_of_products(xp, rows, normal, 0) if of_gamma else None
        to_x = None
        if of_x:
            to_x = rows * gamma
            to_x -= to_x.sum(axis=-1, keepdims=True) / (x.shape[-1] or 1)
            to_x = _across(xp, to_x, normal, root).reshape(x.shape)
        return to_x, to_gamma, *(g for _ in beta)

    return pull


def _across(xp: Any, g: Array, normal: Array, root: Array) -> Array:
    """The gradient of rows that were divided by their root mean squares, to give `normal`; it overwrites both."""
    normal *= _sum_of_products(xp, g, normal, 1)[:, None] / (g.shape[-1] or 1)
    g -= normal
    g /= root
    return g


def _sum_of_products(xp: Any, a: Array, b: Array, axis: int) -> Array:
    """(a · b).sum(axis) of matrices without the memory for all products, whose fresh pages cost most of the time."""
    return xp.einsum("ij,ij->j" if axis == 0 else "ij,ij->i", a, b)


def _rms_norm_array(xp: Any, x: Array, gamma: Array, epsilon: float) -> Array:
    _check_last("rms_norm", x, gamma)
    rows = x if x.ndim == 2 else as_rows(x)
    y = rows / _root_mean_square(xp, rows, epsilon)
    y *= gamma[None]  # of y's rank: NumPy's short way for a single row
    return y if x.ndim == 2 else y.reshape(x.shape)


def _root_mean_square(xp: Any, x: Array, epsilon: float) -> Array:
    """√(mean(x²) + ε) of each row of a matrix, as a column."""
    # A token that is decoded is a single row, whose squares are summed in a quarter of the time by a product.
    squares = x.dot(x.T) if len(x) == 1 else (x * x).sum(axis=-1, keepdims=True)
    return xp.sqrt(squares / (x.shape[-1] or 1) + epsilon)


def _rms_norm_vjp(xp: Any, y: Array, x: Array, gamma: Array, epsilon: float) -> JointPull:
    def pull(g: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
        rows, g = as_rows(x), as_rows(g)
        root = _root_mean_square(xp, rows, epsilon)
        normal = rows / root
        to_gamma = _sum_of_products(xp, g, normal, 0) if needs[1] else None
        return _across(xp, g * gamma, normal, root).reshape(x.shape) if needs[0] else None, to_gamma

    return pull


def _batch_norm_array(xp: Any, x: Array, mean: Array, var: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    shape = (-1,) + (1,) * (x.ndim - 2)
    y = x - mean.reshape(shape)
    y *= (gamma / xp.sqrt(var + epsilon)).reshape(shape)
    y += beta.reshape(shape)
    return y


def _batch_norm_vjp(
    xp: Any, y: Array, x: Array, mean: Array, var: Array, gamma: Array, beta: Array, epsilon: float
) -> JointPull:
    shape = (-1,) + (1,) * (x.ndim - 2)
    others = (0, *range(2, x.ndim))

    def pull(g: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
        of_x, of_mean, of_var, of_gamma, of_beta = needs
        root = xp.sqrt(var + epsilon)
        factor = gamma / root
        total = along = factor  # stand-ins, where neither is asked for
        if of_mean or of_beta:
            total = g.sum(axis=others)
        if of_var or of_gamma:
            away = x - mean.reshape(shape)
            away *= g
            along = away.sum(axis=others) / root
        return (
            g * factor.reshape(shape) if of_x else None,
            -total * factor if of_mean else None,
            along * factor / root * -0.5 if of_var else None,
            along if of_gamma else None,
            total if of_beta else None,
        )

    return pull


_LAYER_NORM = Primitive("layer_norm", _layer_norm_array, takes=FLOATS, wide=True, vjp=_layer_norm_vjp)
_RMS_NORM = Primitive("rms_norm", _rms_norm_array, takes=FLOATS, wide=True, vjp=_rms_norm_vjp)
_BATCH_NORM = Primitive("batch_norm", _batch_norm_array, takes=FLOATS, wide=True, vjp=_batch_norm_vjp)


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
