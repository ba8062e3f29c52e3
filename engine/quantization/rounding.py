"""Numbers to values and back, one element at a time: divide, clamp, round to nearest with halves to even."""

from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from engine.backend import Array
from engine.dtype import FLOAT32
from engine.primitive import quiet

from .blocks import Blocks
from .scheme import QuantValue


class _Format(NamedTuple):
    """A small float: explicit bits of its mantissa, least normal exponent, bit of the sign, and the code of NaN."""

    mantissa: int
    least: int
    sign: int
    nan: int
    dtype: Any


_FORMATS: Final = {
    QuantValue.E4M3: _Format(3, -6, 0x80, 0x7F, ml_dtypes.float8_e4m3fn),
    QuantValue.E5M2: _Format(2, -14, 0x80, 0x7E, ml_dtypes.float8_e5m2),
    QuantValue.E2M1: _Format(1, 0, 0x08, 0x07, ml_dtypes.float4_e2m1fn),
}


def _table(value: QuantValue) -> NDArray[np.float32]:
    """The float32 of each code of a kind; codes that are too wide count by their low bits."""
    codes = np.arange(256, dtype=np.uint8) & np.uint8((1 << value.bits) - 1)
    return codes.view(_FORMATS[value].dtype).astype(FLOAT32)


_TABLES: Final = {value: _table(value) for value in _FORMATS}


def value_dtype(value: QuantValue) -> Any:
    """The dtype of a kind's values in memory: int8, uint8 for codes."""
    return np.dtype(np.uint8 if value.is_float else np.int8)


def to_values(xp: Any, x: Array, scales: Array, blocks: Blocks, value: QuantValue, *, clean: bool) -> Array:
    """The nearest values of x / scale within the range of their kind (Q24, Q25, Q27, Q30).

    NaN becomes 0 as an integer, NaN as a float, and 6 in E2M1, which has
    none; 0 / 0 becomes 0 in each kind (Q69).

    Args:
        x: floats, seen as `blocks` sees them.
        scales: float32, the effective ones, of the shape of the grid.
        clean: whether no quotient can be NaN.

    Returns:
        Values of the shape that `blocks` has for them.
    """
    made = xp.empty(blocks.values, value_dtype(value))
    low, high = np.float32(value.low), np.float32(value.high)
    with quiet():
        for at, in_grid in blocks.parts(xp):
            part = x[at].astype(FLOAT32, copy=False)
            quotient = part / scales[in_grid]
            if not clean:
                missing = xp.isnan(quotient)
                if value.is_float:
                    missing &= ~xp.isnan(part)
                quotient[missing] = 0
            xp.clip(quotient, low, high, out=quotient)
            if value.is_float:
                made[at] = _codes(xp, quotient, _FORMATS[value])
            else:
                made[at] = xp.rint(quotient, out=quotient)
    return made


def _codes(xp: Any, x: Array, form: _Format) -> Array:
    """The codes of the nearest small floats, ties to even, of float32 numbers within their range."""
    bits = x.view(xp.uint32)
    magnitude = bits & np.uint32(0x7FFF_FFFF)
    exponent = xp.maximum(magnitude >> 23, np.uint32(127 + form.least))  # biased; that of subnormals is the least
    unit = ((np.uint32(254 + form.mantissa) - exponent) << 23).view(FLOAT32)  # 1 / the spacing there
    steps = xp.rint(magnitude.view(FLOAT32) * unit).astype(xp.uint32)  # a carry becomes the next exponent
    codes = ((exponent - np.uint32(127 + form.least)) << form.mantissa) + steps
    codes = xp.where(xp.isnan(x), np.uint32(form.nan), codes | ((bits >> 31) * np.uint32(form.sign)))
    return codes.astype(xp.uint8)


def to_numbers(xp: Any, values: Array, scales: Array, blocks: Blocks, value: QuantValue, out: Array) -> None:
    """Write scale * value into a float array, computed in float32 (Q29).

    Args:
        values: as in memory, seen as `blocks` sees them.
        scales: float32, the effective ones, of the shape of the grid.
        out: floats of the shape that `blocks` has for values.
    """
    table = xp.asarray(_TABLES[value]) if value.is_float else None
    with quiet():
        for at, in_grid in blocks.parts(xp):
            whole = values[at] if table is None else table[values[at]]
            target = out[at]
            if target.dtype != FLOAT32:
                target[...] = (whole.astype(FLOAT32) * scales[in_grid]).astype(target.dtype)
                continue
            target[...] = whole
            target *= scales[in_grid]
