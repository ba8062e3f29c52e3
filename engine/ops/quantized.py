"""Operations that need not dequantize a whole tensor: layouts, rows of a table, products with a large weight.

Each function here chooses how a primitive computes with quantized arrays
among its operands; None stands for dequantizing them first.
"""

from collections.abc import Callable
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from engine.backend import Array
from engine.dtype import FLOAT32, FLOAT64
from engine.errors import ShapeError
from engine.primitive import is_scheme
from engine.quantization.quantized import Quantized

Forward: TypeAlias = Callable[..., Array]

_LARGE: Final = 2**18  # elements of a weight that are dequantized at once: 1 MiB of float32


def moved(forward: Forward) -> Callable[..., Forward | None]:
    """Of an operation that only puts elements elsewhere: without blocks, integers and scale are kept (Q35).

    Args:
        forward: of the operation on dense arrays.
    """

    def kept(xp: Any, x: Quantized, *others: Array, **settings: Any) -> Quantized:
        values = xp.asarray(forward(xp, x.values, *others, **settings))
        return Quantized(x.scheme.of_rank(values.ndim), values, x.scales, x.factor)

    def chosen(x: Array, *others: Array) -> Forward | None:
        return kept if is_scheme(x.dtype) and x.scheme.block is None else None

    return chosen


def turned(order: Callable[..., tuple[int, ...]]) -> Callable[..., Forward | None]:
    """Of a permutation of axes: integers and scales are kept, with blocks too (Q13, Q35).

    Args:
        order: ``order(ndim, **settings)``, the axes in their new order.
    """
    return lambda x: lambda xp, x, **settings: x.transpose(order(x.ndim, **settings))


def rows_of(table: Array, ids: Array) -> Forward | None:
    """Of reading rows of a table: the others are not dequantized."""
    return (lambda xp, table, ids: table.rows(xp, ids).dequantized(xp)) if is_scheme(table.dtype) else None


def product_with(x: Array, weight: Array, *bias: Array) -> Forward | None:
    """Of a product with a large quantized weight, which is not made whole."""
    if not isinstance(weight, Quantized) or weight.ndim != 2 or weight.size <= _LARGE or x.ndim < 2:
        return None
    dense = x.dtype in (FLOAT32, FLOAT64) and not any(is_scheme(array.dtype) for array in bias)
    return quantized_linear_array if dense else None


def quantized_linear_array(xp: Any, x: Array, weight: Quantized, *bias: Array) -> Array:
    """x @ weight + bias, with some columns of the weight after others.

    The last bits may differ from those of one product: BLAS adds up in
    another order where the shape is another.
    """
    length, columns = weight.shape
    rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    y = xp.empty((len(rows), columns), dtype=x.dtype)
    width = (_LARGE if xp is np else weight.size) // max(1, length)
    for at, part in weight.by_columns(width):
        y[:, at] = rows.dot(part.dequantized(xp, x.dtype))
    if bias:
        if bias[0].shape != (columns,):
            raise ShapeError(f"linear: bias has shape {bias[0].shape}; here it must be {(columns,)}")
        y += bias[0]
    return y.reshape(*x.shape[:-1], columns)
