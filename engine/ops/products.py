"""Matrix products and their gradients, which are products too. float16 and bfloat16 sum in float32 and round once."""

from math import prod
from typing import TYPE_CHECKING, Any

from engine.backend import Array
from engine.errors import ShapeError
from engine.primitive import NUMBERS, Primitive, Pull
from engine.quantization.quantized import Quantized

from .quantized import product_with, quantized_linear_array

if TYPE_CHECKING:
    from engine.tensor import Tensor


def matmul_array(xp: Any, a: Array, b: Array) -> Array:
    if b.ndim == 2 and a.ndim > 1:
        return _linear_array(xp, a, b)
    if a.ndim > 1 and b.ndim > 1 and a.shape[-2] == b.shape[-1]:
        b = _apart(xp, a, b)
    return xp.matmul(a, b)


def _linear_array(xp: Any, x: Array, weight: Array, *bias: Array) -> Array:
    if weight.ndim != 2 or x.ndim == 0:
        raise ShapeError(
            f"linear: x {x.shape} and weight {weight.shape} must be [..., d_input] and [d_input, d_output]"
        )
    # One product of two matrices, whatever the rank of x: a batched one would copy a transposed weight (C 3.5.3).
    # `dot` is the same product as `matmul` and takes half as long to start.
    rows = x if x.ndim == 2 else as_rows(x)
    if len(rows) == weight.shape[1]:
        weight = _apart(xp, rows, weight)
    y = rows.dot(weight)
    if bias:
        if bias[0].shape != weight.shape[1:]:
            raise ShapeError(f"linear: bias has shape {bias[0].shape}; here it must be {weight.shape[1:]}")
        y += bias[0][None]  # of y's rank: NumPy's short way for a single row
    return y if x.ndim == 2 else y.reshape(*x.shape[:-1], weight.shape[1])


def _apart(xp: Any, a: Array, b: Array) -> Array:
    """b, in memory of its own if it shares that of a; asked for where the product is square.

    NumPy multiplies a matrix by its own transpose in another way, which rounds
    differently: the bits would depend on where the operands lie.
    """
    return xp.array(b, order="K", copy=True) if xp.may_share_memory(a, b) else b


def _matmul_vjp(xp: Any, y: Array, a: Array, b: Array) -> tuple[Pull | None, ...]:
    if b.ndim == 2 and a.ndim > 1:
        return _linear_vjp(xp, y, a, b)
    if b.ndim == 1:
        return lambda g: g[..., None] * b, lambda g: g.reshape(-1).dot(as_rows(a))
    if a.ndim == 1:
        return lambda g: xp.matmul(b, g[..., None])[..., 0], lambda g: a[:, None] * g[..., None, :]
    return lambda g: matmul_array(xp, g, b.swapaxes(-1, -2)), lambda g: matmul_array(xp, a.swapaxes(-1, -2), g)


def _linear_vjp(xp: Any, y: Array, x: Array, weight: Array, *bias: Array) -> tuple[Pull | None, ...]:
    if isinstance(weight, Quantized):
        columns = weight.transpose((1, 0))
        return lambda g: quantized_linear_array(xp, g, columns), None, *(lambda g: g for _ in bias)
    by_columns = not weight.flags.c_contiguous

    def to_weight(g: Array) -> Array:
        # In the memory order of the weight, so that an optimizer goes through both alike.
        if by_columns:
            return _linear_array(xp, as_rows(g).T, as_rows(x)).T
        return _linear_array(xp, as_rows(x).T, as_rows(g))

    return lambda g: _linear_array(xp, g, weight.T), to_weight, *(lambda g: g for _ in bias)


def as_rows(x: Array) -> Array:
    """The vectors along the last axis as the rows of a matrix."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])


_MATMUL = Primitive("matmul", matmul_array, takes=NUMBERS, wide=True, vjp=_matmul_vjp, quantized=product_with)
_LINEAR = Primitive("linear", _linear_array, takes=NUMBERS, wide=True, vjp=_linear_vjp, quantized=product_with)


def matmul(a: "Tensor", b: "Tensor") -> "Tensor":
    """The matrix product over the last axis of `a` and the last but one of `b`; the axes before broadcast.

    Args:
        a: shape [..., n, k], or [k].
        b: shape [..., k, m], or [k].

    Returns:
        Shape [..., n, m], without the axis that a vector lacks.

    Raises:
        ShapeError: the extents k differ, or an operand has rank 0.
    """
    return _MATMUL(a, b)


def linear(x: "Tensor", weight: "Tensor", bias: "Tensor | None" = None) -> "Tensor":
    """x @ weight + bias.

    Args:
        x: shape [..., d_input].
        weight: shape [d_input, d_output].
        bias: shape [d_output], or None.

    Returns:
        Shape [..., d_output].

    Raises:
        ShapeError: the extents do not go together.
    """
    return _LINEAR(x, weight) if bias is None else _LINEAR(x, weight, bias)
