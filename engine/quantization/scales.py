"""Scales: from the largest magnitude of a block to what is stored, and the bytes of that.

All of it is float32 arithmetic. A stored scale is the least value of its
dtype that is not below the wanted one: rounded down, it would cut off the
block's largest number.
"""

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from engine.backend import Array
from engine.primitive import quiet

from .scheme import QuantScheme, ScaleDtype

TINY: Final = np.float32(2.0**-126)  # the least normal float32

_DROPPED_BITS: Final = {ScaleDtype.F16: 13, ScaleDtype.BF16: 16, ScaleDtype.UE4M3: 20, ScaleDtype.UE8M0: 23}
_BELOW_NORMAL: Final = {ScaleDtype.F16: (2.0**-14, 2.0**-24), ScaleDtype.UE4M3: (2.0**-6, 2.0**-9)}
_FEWEST: Final = 0x0040_0000  # 2^-127, the least value of UE8M0, as bits of a float32


def round_up(xp: Any, scales: Array, dtype: ScaleDtype) -> Array:
    """The least values of a dtype that are not below float32 scales; at most its largest one (Q21).

    NaN stays NaN. UE8M0 has no zero: what is below 2^-127 becomes that.

    Args:
        scales: float32, none negative.
    """
    if dtype is ScaleDtype.F32:
        return scales
    kept = ~np.uint32((1 << _DROPPED_BITS[dtype]) - 1)
    with quiet():
        bits = scales.view(xp.uint32)
        if dtype is ScaleDtype.UE8M0:
            raised = xp.where(bits <= _FEWEST, np.uint32(_FEWEST), (bits + ~kept) & kept)
        else:
            raised = (bits + ~kept) & kept
        rounded = raised.view(xp.float32)
        if dtype in _BELOW_NORMAL:
            normal, spacing = map(np.float32, _BELOW_NORMAL[dtype])
            rounded = xp.where(scales < normal, xp.ceil(scales / spacing) * spacing, rounded)
        largest = np.float32(dtype.largest)
        rounded = xp.where(scales >= largest, largest, rounded)
        return xp.where(xp.isnan(scales), scales, rounded)


def stored(xp: Any, scales: Array, dtype: ScaleDtype) -> Array:
    """What is stored for float32 scales: rounded up, or the least one where that is not positive and finite (Q22)."""
    rounded = round_up(xp, scales, dtype)
    least = round_up(np, np.full(1, TINY), dtype)[0]
    return xp.where((rounded > 0) & xp.isfinite(rounded), rounded, least)


def from_magnitudes(xp: Any, magnitudes: Array, scheme: QuantScheme) -> tuple[Array, Array | None]:
    """The stored scales of a grid, and the global scale of a two-level scheme (Q16 to Q22).

    Args:
        magnitudes: float32, the grid of the largest magnitudes that are to be held.

    Returns:
        float32: scales like `magnitudes`, and the global scale, shape [1], or None.
    """
    value = scheme.value
    with quiet():
        raw = (np.float32(2) * magnitudes) / np.float32(value.high - value.low)
        if not scheme.is_two_level:
            return stored(xp, raw, scheme.scale_dtype), None
        largest = raw.max() if raw.size else raw.sum()
        factor = xp.maximum(largest / np.float32(scheme.scale_dtype.largest), TINY).reshape(1)
        # Where 2 * magnitude overflowed, the division is by that infinity, and only then is another factor stored.
        return stored(xp, raw / factor, scheme.scale_dtype), stored(xp, factor, ScaleDtype.F32)


def encode(scales: NDArray[np.float32], dtype: ScaleDtype) -> bytes:
    """Stored scales as little-endian bytes of their dtype, in row-major order (Q42)."""
    if dtype is ScaleDtype.F32:
        return scales.astype("<f4").tobytes()
    if dtype is ScaleDtype.F16:
        return scales.astype("<f2").tobytes()
    bits = np.ascontiguousarray(scales).view(np.uint32)
    if dtype is ScaleDtype.BF16:
        return (bits >> 16).astype("<u2").tobytes()
    if dtype is ScaleDtype.UE8M0:
        return (bits >> 23).astype(np.uint8).tobytes()
    return scales.astype(ml_dtypes.float8_e4m3fn).tobytes()


def decode(data: NDArray[np.uint8], dtype: ScaleDtype) -> NDArray[np.float32]:
    """float32 scales of the bytes of their dtype, whatever they are: also what no scale may be."""
    if dtype is ScaleDtype.F32:
        return data.view("<f4").astype(np.float32)
    if dtype is ScaleDtype.F16:
        return data.view("<f2").astype(np.float32)
    if dtype is ScaleDtype.BF16:
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype is ScaleDtype.UE8M0:
        bits = np.maximum(data.astype(np.uint32) << 23, np.uint32(_FEWEST))
        return np.where(data == 255, np.float32(np.nan), bits.view(np.float32))
    return data.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
