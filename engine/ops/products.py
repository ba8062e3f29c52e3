"""Matrix products. Those of float16 and bfloat16 sum in float32 and round once."""

from typing import TYPE_CHECKING, Any

from engine.backend import Array
from engine.primitive import Operand, Primitive, not_a_tensor

if TYPE_CHECKING:
    from engine.tensor import Tensor


def _linear_array(xp: Any, x: Array, weight: Array, *bias: Array) -> Array:
    # One product of two matrices, whatever the rank of x: a batched one would copy a transposed weight (C 3.5.3).
    rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    y = xp.matmul(rows, weight)
    if bias:
        y += bias[0]
    return y if x.ndim == 2 else y.reshape(*x.shape[:-1], weight.shape[1])


_MATMUL = Primitive("matmul", lambda xp, a, b: xp.matmul(a, b), wide=True)
_LINEAR = Primitive("linear", _linear_array, wide=True)


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
    for operand in (a, b):
        if not isinstance(operand, Operand):
            raise not_a_tensor("matmul", operand)
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
