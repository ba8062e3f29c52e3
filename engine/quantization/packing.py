"""The bytes of a quantized tensor in files and exchange: packed values, scales, global scale (Q39 to Q46).

Packed lines are little-endian, so words of 32 bits are the same as bytes that
follow each other, each filled from its low bits. All of it works on the host.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import QuantizationError, ShapeError

from .quantized import Quantized
from .rounding import value_dtype
from .scales import decode, encode
from .scheme import QuantScheme, ScaleDtype


def pack(values: NDArray[Any], scheme: QuantScheme) -> NDArray[np.uint8]:
    """The store's elements, row-major, as bytes: packed lines one after another, filled up with zeros (Q39, Q40).

    Args:
        values: int8, or codes as uint8; of any rank.
    """
    made = np.zeros(prod(_stored_lines(values.shape, scheme)), np.uint8)
    _pack_into(made, values, scheme)
    return made


def _pack_into(made: NDArray[np.uint8], values: NDArray[Any], scheme: QuantScheme) -> None:
    """Write what `pack` gives over zeros. At a time there is no more beside it than as much again."""
    lines = np.swapaxes(np.atleast_1d(values), scheme.packed_axis(values.shape), -1).view(np.uint8)
    bits, per_byte = scheme.value.bits, _values_per_byte(scheme)
    stored = made.reshape(_stored_lines(values.shape, scheme))
    mask = np.uint8(0xFF if scheme.store.kind == "Native" else (1 << bits) - 1)
    for place in range(per_byte):
        part = lines[..., place::per_byte]
        target = stored[..., : part.shape[-1]]
        if mask == 0xFF:
            target[...] = part
        else:
            target |= (part & mask) << np.uint8(place * bits)


def unpack(data: NDArray[np.uint8], shape: Sequence[int], scheme: QuantScheme) -> NDArray[Any]:
    """The values of what `pack` made, in the shape given; filling is dropped, whatever it is (Q39)."""
    values = np.empty(shape, value_dtype(scheme.value))
    lines = np.swapaxes(np.atleast_1d(values), scheme.packed_axis(shape), -1)
    bits, per_byte = scheme.value.bits, _values_per_byte(scheme)
    stored = data.reshape(_stored_lines(shape, scheme))
    is_whole = scheme.store.kind == "Native" or bits == 8
    for place in range(per_byte):
        part = lines[..., place::per_byte]
        source = stored[..., : part.shape[-1]]
        if is_whole:
            part[...] = source.view(values.dtype)
        else:
            alone = source << np.uint8(8 - bits - place * bits)  # the low bits at the top
            np.right_shift(alone.view(values.dtype), 8 - bits, out=part)  # of int8 with its sign
    return values


def _values_per_byte(scheme: QuantScheme) -> int:
    """How many values share a byte of the store."""
    return 8 // scheme.value.bits if scheme.values_per_element > 1 else 1


def _stored_lines(shape: Sequence[int], scheme: QuantScheme) -> tuple[int, ...]:
    """The shape of the store in bytes: each line is one of the last axis."""
    *others, elements = scheme.storage(shape)
    return (*others, elements * (4 if scheme.store.kind == "PackedU32" else 1))


def to_bytes(array: Quantized) -> NDArray[np.uint8]:
    """All bytes of a quantized array: the store, the scales of the innermost level, the global scale (Q41).

    Args:
        array: on the host.
    """
    scheme, scales = array.scheme, array.scales
    if scheme.block is not None:  # the grid is stored as the values are
        scales = np.swapaxes(scales, scheme.packed_axis(array.shape), -1)
    made = np.zeros(scheme.nbytes(array.shape), np.uint8)
    start = prod(_stored_lines(array.shape, scheme))
    _pack_into(made[:start], array.values, scheme)
    encoded = encode(np.ascontiguousarray(scales), scheme.scale_dtype)
    if array.factor is not None:
        encoded += encode(array.factor, ScaleDtype.F32)
    made[start:] = np.frombuffer(encoded, np.uint8)
    return made


def from_bytes(data: NDArray[np.uint8], shape: Sequence[int], scheme: QuantScheme) -> Quantized:
    """The array of what `to_bytes` made.

    Raises:
        DTypeError: the scheme cannot be computed (Q6, Q7).
        ShapeError: another number of bytes, or a shape that the scheme is not for (Q44).
        QuantizationError: a scale that is not positive and finite (Q47).
    """
    scales, factor = scales_in(data, shape, scheme)
    if scheme.block is not None:
        grid, packed = list(scheme.grid(shape)), scheme.packed_axis(shape)
        grid[packed], grid[-1] = grid[-1], grid[packed]
        scales = np.ascontiguousarray(np.swapaxes(scales.reshape(grid), packed, -1))
    values = unpack(data[: prod(_stored_lines(shape, scheme))], shape, scheme)
    return Quantized(scheme, values, scales, factor)


def scales_in(
    data: NDArray[np.uint8], shape: Sequence[int], scheme: QuantScheme
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """The scales among the bytes of a quantized tensor, in the order in which they lie, and the global scale.

    Raises:
        DTypeError: the scheme cannot be computed (Q6, Q7).
        ShapeError: another number of bytes, or a shape that the scheme is not for (Q44).
        QuantizationError: a scale that is not positive and finite (Q47).
    """
    scheme.check()
    expected = scheme.nbytes(shape)
    if data.size != expected:
        raise ShapeError(f"scheme {scheme} of shape {tuple(shape)} takes {expected} bytes, not {data.size}")
    end = expected - (4 if scheme.is_two_level else 0)
    start = prod(_stored_lines(shape, scheme))
    scales = decode(data[start:end].copy(), scheme.scale_dtype)
    factor = decode(data[end:].copy(), ScaleDtype.F32) if scheme.is_two_level else None
    for what, found in (("scale", scales), ("global scale", factor)):
        if found is not None:
            _check_scales(f"scheme {scheme}: {what}", found)
    return scales, factor


def _check_scales(what: str, scales: NDArray[np.float32]) -> None:
    bad = scales[~((scales > 0) & np.isfinite(scales))]
    if bad.size:
        raise QuantizationError(f"{what} {bad[0]} is not positive and finite ({bad.size} of {scales.size} are not)")
