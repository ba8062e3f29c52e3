"""Casts: every change of dtype is asked for, rounds once, and is defined for every value.

Float to float rounds to nearest even; what is too large becomes infinite.
Float to integer cuts the fraction off; NaN becomes 0, and what the integer
dtype cannot hold its nearest limit (NumPy and CuPy leave both to the
processor). Integer to integer keeps the low bits. To bool: whether it is not 0.
"""

from typing import TYPE_CHECKING, Any

from engine.backend import Array
from engine.dtype import BFLOAT16, FLOAT32, FLOAT64, FLOATS, INTS, DType, as_dtype
from engine.primitive import Primitive, checked_operand, quiet, widened

if TYPE_CHECKING:
    from engine.tensor import Tensor


def cast_array(xp: Any, x: Array, dtype: DType) -> Array:
    """A new array of the elements of x in another dtype."""
    if x.dtype in FLOATS and dtype in INTS:
        return _saturated(xp, widened(x), dtype)
    with quiet():
        if dtype == BFLOAT16 and x.dtype.itemsize > 2:
            x = _rounded_to_odd(xp, x.astype(FLOAT64, copy=False))
        return x.astype(dtype)


def _saturated(xp: Any, x: Array, dtype: DType) -> Array:
    """Floats as integers: towards 0, then into the limits of the dtype; NaN as 0."""
    limits = xp.iinfo(dtype)
    low, high = float(limits.min), float(limits.max)  # of 64 bits rounded up, to what is just out of reach
    whole = xp.where((x >= low) & (x < high), x, 0).astype(dtype)
    whole = xp.where(x < low, dtype.type(limits.min), whole)
    return xp.where(x >= high, dtype.type(limits.max), whole)


def _rounded_to_odd(xp: Any, x: Array) -> Array:
    """float64 as float32, cut towards 0 with the last bit set where that lost something.

    Rounding the result to a shorter dtype then rounds x once; to nearest, twice would round a near tie wrongly.
    Source: S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums" (2008), on rounding to odd.
    """
    with quiet():
        near = x.astype(FLOAT32)
    back = near.astype(FLOAT64)
    bits = near.view(xp.uint32) - (abs(back) > abs(x)).astype(xp.uint32)
    return (bits | (back != x).astype(xp.uint32)).view(FLOAT32)


_CAST = Primitive("cast", cast_array, vjp=lambda xp, y, x, dtype: (lambda g: g,))  # which the primitive casts back


def cast(x: "Tensor", dtype: Any) -> "Tensor":
    """x in another dtype, converted as this file says; itself where it has that dtype.

    Args:
        x: any tensor.
        dtype: what ``numpy.dtype()`` takes.

    Raises:
        DTypeError: a tensor cannot have it.
    """
    of = as_dtype(dtype)
    return x if checked_operand("cast", x)._data.dtype == of else _CAST(x, dtype=of)
