"""What quantization must give, one element and one block at a time: scalar float32 steps and tables of all values.

Nothing here is vectorised, and nothing of the engine is used but the names in
a scheme: scales are rounded up by looking through all values of their dtype,
small floats are found by comparing with all of them, words are Python integers.
"""

from functools import cache
from itertools import product
from typing import NamedTuple

import ml_dtypes
import numpy as np

from engine import Calibration, QuantScheme, QuantValue, ScaleDtype

F32 = np.float32
TINY = F32(1.17549435e-38)

SMALL_FLOATS = {
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E5M2": ml_dtypes.float8_e5m2,
    "E2M1": ml_dtypes.float4_e2m1fn,
}


class Expected(NamedTuple):
    values: np.ndarray
    scales: np.ndarray
    factor: np.float32 | None


@cache
def values_of(dtype: ScaleDtype) -> np.ndarray:
    """All positive finite values of a scale dtype, ascending, as float64; not those of float32."""
    patterns = {
        ScaleDtype.F16: lambda: np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16),
        ScaleDtype.BF16: lambda: np.arange(1, 0x7F80, dtype=np.uint16).view(ml_dtypes.bfloat16),
        ScaleDtype.UE4M3: lambda: np.arange(1, 0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn),
        ScaleDtype.UE8M0: lambda: np.array([2.0**exponent for exponent in range(-127, 128)]),
    }
    return patterns[dtype]().astype(np.float64)


def stored(scale: np.float32, dtype: ScaleDtype) -> np.float32:
    """The least value of the dtype that is not below the scale (Q21), or what stands in for one that is none (Q22)."""
    if dtype is ScaleDtype.F32:
        return scale if 0 < scale < np.inf else TINY
    table = values_of(dtype)
    if np.isnan(scale) or (not scale and dtype is not ScaleDtype.UE8M0):
        return stored(TINY, dtype)
    place = int(np.searchsorted(table, float(scale)))
    return F32(table[min(place, len(table) - 1)])


def code_of(x: np.float32, kind: str) -> int:
    """The code of the small float nearest to x, of two alike the even one."""
    bits = 4 if kind == "E2M1" else 8
    sign = (1 << (bits - 1)) if np.signbit(x) else 0
    codes = np.arange(1 << (bits - 1), dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        found = codes.view(SMALL_FLOATS[kind]).astype(np.float64)
    distances = [
        (abs(float(value) - abs(float(x))), int(code) & 1, int(code)) for code, value in zip(codes, found, strict=True)
    ]
    return sign | min(entry for entry in distances if np.isfinite(entry[0]))[2]


def number_of(value: int, scheme: QuantScheme) -> np.float32:
    """What a value stands for before it is scaled."""
    if scheme.value.name in SMALL_FLOATS:
        return np.array([value], np.uint8).view(SMALL_FLOATS[scheme.value.name]).astype(F32)[0]
    return F32(value)


def value_of(x: np.float32, scale: np.float32, value: QuantValue) -> int:
    """Divide, clamp, round to nearest with halves to even (Q24, Q25, Q27, Q30)."""
    with np.errstate(all="ignore"):
        quotient = F32(x) / F32(scale)
    if np.isnan(quotient):
        return 0
    clamped = min(max(quotient, F32(value.low)), F32(value.high))
    return code_of(clamped, value.name) if value.name in SMALL_FLOATS else round(float(clamped))


def block_extents(scheme: QuantScheme, shape: tuple[int, ...]) -> tuple[int, ...]:
    if scheme.block is None:
        return tuple(max(1, length) for length in shape)
    size = scheme.block.size
    return (1,) * (len(shape) - len(size)) + tuple(size)


def quantized(x: np.ndarray, scheme: QuantScheme, calibration: Calibration = Calibration.MIN_MAX) -> Expected:
    """All of it, block by block."""
    extents = block_extents(scheme, x.shape)
    grid = tuple(length // extent for length, extent in zip(x.shape, extents, strict=True))
    width = F32(scheme.value.high - scheme.value.low)
    places = list(product(*map(range, grid)))
    raw = {}
    with np.errstate(all="ignore"):
        for place in places:
            block = x[part(place, extents)].ravel()
            if calibration is Calibration.MIN_MAX:
                alpha = max(abs(block.min()), abs(block.max()))
            else:
                alpha = F32(np.abs(block.astype(np.float64)).sum() / block.size)
            raw[place] = F32(F32(2) * F32(alpha)) / width
        factor = None
        if scheme.tensor is not None and scheme.block is not None:
            given = max(max(raw.values()) / F32(scheme.block.dtype.largest), TINY)
            raw = {place: scale / given for place, scale in raw.items()}
            factor = stored(given, ScaleDtype.F32)
        scales = {place: stored(scale, scheme.scale_dtype) for place, scale in raw.items()}
        values = np.zeros(x.shape, int)
        for place in places:
            effective = scales[place] if factor is None else F32(factor * scales[place])
            at = part(place, extents)
            found = [value_of(number, effective, scheme.value) for number in x[at].ravel()]
            values[at] = np.array(found).reshape(x[at].shape)
    shape = (1,) if scheme.block is None else grid
    return Expected(values, np.array([scales[place] for place in places], F32).reshape(shape), factor)


def part(place: tuple[int, ...], extents: tuple[int, ...]) -> tuple[slice, ...]:
    """Where in the tensor a block is."""
    return tuple(slice(index * extent, (index + 1) * extent) for index, extent in zip(place, extents, strict=True))


def effective_scales(scales: np.ndarray, factor: np.float32 | None, scheme: QuantScheme, shape: tuple[int, ...]):
    """The effective scale of each element, float32."""
    extents = block_extents(scheme, shape)
    spread = np.zeros(shape, F32)
    grid = scales.reshape(tuple(length // extent for length, extent in zip(shape, extents, strict=True)))
    for place in np.ndindex(*grid.shape):
        spread[part(place, extents)] = grid[place] if factor is None else F32(grid[place] * factor)
    return spread


def packed(values: np.ndarray, scheme: QuantScheme) -> bytes:
    """The bytes of the store: lines of words, written as Python integers (Q39, Q40)."""
    bits, kind = scheme.value.bits, scheme.store.kind
    rank = max(1, values.ndim)
    lines = values.reshape(values.shape or (1,)).swapaxes(rank - 1 - scheme.store.axis, rank - 1)
    if kind == "Native":
        return bytes(int(value) & 0xFF for value in lines.ravel())
    nbytes = 4 if kind == "PackedU32" else 1
    each = 32 // bits if kind == "PackedU32" else 2 if scheme.value.name == "E2M1" else 1
    made = b""
    for line in np.ndindex(*lines.shape[:-1]):
        numbers = [int(value) & ((1 << bits) - 1) for value in lines[line]]
        for start in range(0, len(numbers), each):
            word = sum(number << (bits * place) for place, number in enumerate(numbers[start : start + each]))
            made += word.to_bytes(nbytes, "little")
    return made
