"""What quantization must give, one element and one block at a time: scalar float32 steps and tables of all values.

Nothing here is vectorised, and nothing of the engine is used: a scheme is one
of the engine's or of `tests.laws.schemes`, whose parts have the same names.
Scales are rounded up by looking through all values of their dtype, small floats
are found by comparing with all of them, words are Python integers.
"""

from functools import cache
from itertools import product
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

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
def values_of(dtype: Any) -> np.ndarray:
    """All positive finite values of a scale dtype, ascending, as float64; not those of float32."""
    patterns = {
        "F16": lambda: np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16),
        "BF16": lambda: np.arange(1, 0x7F80, dtype=np.uint16).view(ml_dtypes.bfloat16),
        "UE4M3": lambda: np.arange(1, 0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn),
        "UE8M0": lambda: np.array([2.0**exponent for exponent in range(-127, 128)]),
    }
    return patterns[dtype.name]().astype(np.float64)


def stored(scale: np.float32, dtype: Any) -> np.float32:
    """The least value of the dtype that is not below the scale (Q21), or what stands in for one that is none (Q22)."""
    if dtype.name == "F32":
        return scale if 0 < scale < np.inf else TINY
    table = values_of(dtype)
    if np.isnan(scale) or (not scale and dtype.name != "UE8M0"):
        return stored(TINY, dtype)
    place = int(np.searchsorted(table, float(scale)))
    return F32(table[min(place, len(table) - 1)])


def code_of(x: np.float32, kind: str) -> int:
    """The code of the small float nearest to x, of two alike the even one."""
    sign = (1 << (3 if kind == "E2M1" else 7)) if np.signbit(x) else 0
    magnitude = abs(float(x))
    return sign | min((abs(value - magnitude), code & 1, code) for code, value in _finite(kind))[2]


@cache
def _finite(kind: str) -> list[tuple[int, float]]:
    """Each code without sign of a small float, and its value, where that is finite."""
    codes = np.arange(8 if kind == "E2M1" else 128, dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        values = codes.view(SMALL_FLOATS[kind]).astype(np.float64)
    return [(int(code), float(value)) for code, value in zip(codes, values, strict=True) if np.isfinite(value)]


def number_of(value: int, scheme: Any) -> np.float32:
    """What a value stands for before it is scaled."""
    if scheme.value.name in SMALL_FLOATS:
        return np.array([value], np.uint8).view(SMALL_FLOATS[scheme.value.name]).astype(F32)[0]
    return F32(value)


NAN = {"E4M3": 0x7F, "E5M2": 0x7E, "E2M1": 7}
"""What NaN becomes (Q30); of integers 0."""


def value_of(x: np.float32, scale: np.float32, value: Any) -> int:
    """Divide, clamp, round to nearest with halves to even (Q24, Q25, Q27, Q30)."""
    if np.isnan(x):
        return NAN.get(value.name, 0)
    with np.errstate(all="ignore"):
        quotient = F32(x) / F32(scale)
    if np.isnan(quotient):
        return 0
    clamped = min(max(quotient, F32(value.low)), F32(value.high))
    return code_of(clamped, value.name) if value.name in SMALL_FLOATS else round(float(clamped))


def block_extents(scheme: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    if scheme.block is None:
        return tuple(max(1, length) for length in shape)
    size = scheme.block.size
    return (1,) * (len(shape) - len(size)) + tuple(size)


def quantized(x: np.ndarray, scheme: Any, mean: bool = False) -> Expected:
    """All of it, block by block; under MinMax, or by the mean of absolute values."""
    extents = block_extents(scheme, x.shape)
    grid = tuple(length // extent for length, extent in zip(x.shape, extents, strict=True))
    width = F32(scheme.value.high - scheme.value.low)
    places = list(product(*map(range, grid)))
    if not x.size and scheme.block is None:  # the scale of zeros (Q32)
        return Expected(np.zeros(x.shape, int), np.array([stored(F32(0), scheme.scale_dtype)], F32), None)
    raw = {}
    with np.errstate(all="ignore"):
        for place in places:
            block = x[part(place, extents)].ravel()
            if mean:
                alpha = F32(np.abs(block.astype(np.float64)).sum() / block.size)
            else:
                alpha = max(abs(block.min()), abs(block.max()))
            raw[place] = F32(F32(2) * F32(alpha)) / width
        factor = None
        if scheme.tensor is not None and scheme.block is not None:
            given = max(max(raw.values(), default=F32(0)) / F32(scheme.block.dtype.largest), TINY)
            raw = {place: scale / given for place, scale in raw.items()}
            factor = given if 0 < given < np.inf else TINY
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


def effective_scales(scales: np.ndarray, factor: np.float32 | None, scheme: Any, shape: tuple[int, ...]):
    """The effective scale of each element, float32."""
    extents = block_extents(scheme, shape)
    spread = np.zeros(shape, F32)
    if not spread.size:
        return spread
    grid = scales.reshape(tuple(length // extent for length, extent in zip(shape, extents, strict=True)))
    for place in np.ndindex(*grid.shape):
        spread[part(place, extents)] = grid[place] if factor is None else F32(grid[place] * factor)
    return spread


def packed(values: np.ndarray, scheme: Any) -> bytes:
    """The bytes of the store: lines of words, written as Python integers (Q39, Q40)."""
    bits, kind = scheme.value.bits, scheme.store.kind
    rank = max(1, values.ndim)
    lines = values.reshape(values.shape or (1,)).swapaxes(rank - 1 - scheme.store.axis, rank - 1)
    if kind == "Native":
        return bytes(int(value) & 0xFF for value in lines.ravel())
    nbytes = 4 if kind == "PackedU32" else 1
    each = 32 // bits if kind == "PackedU32" else 2 if packs_pairs(scheme) else 1
    made = b""
    for line in np.ndindex(*lines.shape[:-1]):
        numbers = [int(value) & ((1 << bits) - 1) for value in lines[line]]
        for start in range(0, len(numbers), each):
            word = sum(number << (bits * place) for place, number in enumerate(numbers[start : start + each]))
            made += word.to_bytes(nbytes, "little")
    return made


def unpacked(data: bytes, shape: tuple[int, ...], scheme: Any) -> np.ndarray:
    """The values in the bytes of the store."""
    bits, kind = scheme.value.bits, scheme.store.kind
    extents, packed_axis = list(shape or (1,)), max(1, len(shape)) - 1 - scheme.store.axis
    extents[packed_axis], extents[-1] = extents[-1], extents[packed_axis]
    nbytes, each = (4, 32 // bits) if kind == "PackedU32" else (1, 2 if packs_pairs(scheme) else 1)
    width = 8 if kind == "Native" else bits
    lines, words = np.zeros(extents, int), -(-extents[-1] // each)
    for number, line in enumerate(np.ndindex(*extents[:-1])):
        start = number * words * nbytes
        row = [int.from_bytes(data[start + w * nbytes : start + (w + 1) * nbytes], "little") for w in range(words)]
        fields = [(word >> (width * place)) & ((1 << width) - 1) for word in row for place in range(each)]
        signed = [f - (1 << width) if scheme.value.low < 0 and f >> (width - 1) else f for f in fields]
        lines[line] = (fields if scheme.value.name in SMALL_FLOATS else signed)[: extents[-1]]
    return lines.swapaxes(packed_axis, -1).reshape(shape)


def packs_pairs(scheme: Any) -> bool:
    """Whether a byte of the store holds two values."""
    return scheme.store.kind == "PackedNative" and scheme.value.name == "E2M1"


_SCALES = {"F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16, "UE4M3": ml_dtypes.float8_e4m3fn}


def to_bytes(made: Expected, scheme: Any) -> bytes:
    """Values, scales, the global scale (Q41, Q42)."""
    scales, name = made.scales, scheme.scale_dtype.name
    if scheme.block is not None:
        scales = scales.swapaxes(scales.ndim - 1 - scheme.store.axis, -1)
    codes = np.frexp(scales)[1].astype(int) + 126 if name == "UE8M0" else scales.astype(_SCALES[name])
    tail = codes.astype("u1").tobytes() if name == "UE8M0" else codes.tobytes()
    return packed(made.values, scheme) + tail + (b"" if made.factor is None else made.factor.astype("<f4").tobytes())


def from_bytes(data: bytes, shape: tuple[int, ...], scheme: Any) -> Expected:
    """What `to_bytes` was made of; blocks divide the shape."""
    end, factor = len(data), None
    if scheme.is_two_level:
        end, factor = end - 4, np.frombuffer(data[-4:], "<f4")[0]
    grid = [1]
    if scheme.block is not None:
        grid = [length // extent for length, extent in zip(shape, block_extents(scheme, shape), strict=True)]
    count, name, axis = int(np.prod(grid)), scheme.scale_dtype.name, len(grid) - 1 - scheme.store.axis
    start = end - count * scheme.scale_dtype.nbytes
    if name == "UE8M0":
        scales = np.exp2(np.frombuffer(data[start:end], "u1").astype(np.float64) - 127).astype(F32)
    else:
        scales = np.frombuffer(data[start:end], _SCALES[name]).astype(F32)
    if scheme.block is not None:
        grid[axis], grid[-1] = grid[-1], grid[axis]
        scales = scales.reshape(grid).swapaxes(axis, -1)
    return Expected(unpacked(data[:start], shape, scheme), scales, factor)


def dequantized(made: Expected, scheme: Any) -> np.ndarray:
    """What the values stand for, float32 (Q20, Q29)."""
    spread = effective_scales(made.scales, made.factor, scheme, made.values.shape)
    numbers = made.values.astype(F32)
    if scheme.value.name in SMALL_FLOATS:
        numbers = made.values.astype(np.uint8).view(SMALL_FLOATS[scheme.value.name]).astype(F32)
    with np.errstate(over="ignore", under="ignore"):
        return numbers * spread
