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
    lines = np.swapaxes(np.atleast_1d(values), scheme.packed_axis(values.shape), -1)
    lines = np.ascontiguousarray(lines).view(np.uint8)
    if scheme.store.kind == "Native":
        return lines.reshape(-1)
    per_element, bits = scheme.values_per_element, scheme.value.bits
    short = -lines.shape[-1] % per_element
    if short:
        lines = np.pad(lines, [(0, 0)] * (lines.ndim - 1) + [(0, short)])
    lines = lines.reshape(-1)
    if bits == 8:
        return lines
    lines = lines & np.uint8((1 << bits) - 1)
    if per_element == 1:
        return lines
    per_byte = 8 // bits
    packed = lines[0::per_byte].copy()
    for place in range(1, per_byte):
        packed |= lines[place::per_byte] << np.uint8(place * bits)
    return packed


def unpack(data: NDArray[np.uint8], shape: Sequence[int], scheme: QuantScheme) -> NDArray[Any]:
    """The values of what `pack` made, in the shape given; filling is dropped, whatever it is (Q39)."""
    storage, bits = scheme.storage(shape), scheme.value.bits
    per_element, dtype = scheme.values_per_element, value_dtype(scheme.value)
    lines = data
    if scheme.store.kind != "Native" and bits < 8:
        if per_element > 1:
            per_byte = 8 // bits
            lines = np.empty((data.size, per_byte), np.uint8)
            for place in range(per_byte):
                np.right_shift(data, place * bits, out=lines[:, place])
        left = np.left_shift(lines, np.uint8(8 - bits))  # the low bits alone, at the top
        lines = left.view(dtype) >> (8 - bits)  # of int8 with its sign
    extents = list(shape) or [1]
    packed = scheme.packed_axis(shape)
    lines = lines.reshape(*storage[:-1], storage[-1] * per_element)[..., : extents[packed]]
    return np.array(np.swapaxes(lines, packed, -1).view(dtype).reshape(shape), order="C", copy=True)


def to_bytes(array: Quantized) -> bytes:
    """All bytes of a quantized array: the store, the scales of the innermost level, the global scale (Q41).

    Args:
        array: on the host.
    """
    scheme, scales = array.scheme, array.scales
    if scheme.block is not None:  # the grid is stored as the values are
        scales = np.swapaxes(scales, scheme.packed_axis(array.shape), -1)
    parts = [pack(array.values, scheme).tobytes(), encode(np.ascontiguousarray(scales), scheme.scale_dtype)]
    if array.factor is not None:
        parts.append(array.factor.astype("<f4").tobytes())
    return b"".join(parts)


def from_bytes(data: NDArray[np.uint8], shape: Sequence[int], scheme: QuantScheme) -> Quantized:
    """The array of what `to_bytes` made.

    Raises:
        DTypeError: the scheme cannot be computed (Q6, Q7).
        ShapeError: another number of bytes, or a shape that the scheme is not for (Q44).
        QuantizationError: a scale that is not positive and finite (Q47).
    """
    scheme.check()
    expected, grid = scheme.nbytes(shape), list(scheme.grid(shape))
    if data.size != expected:
        raise ShapeError(f"scheme {scheme} of shape {tuple(shape)} takes {expected} bytes, not {data.size}")
    end = expected - (4 if scheme.is_two_level else 0)
    start = end - prod(grid) * scheme.scale_dtype.nbytes
    scales = decode(data[start:end].copy(), scheme.scale_dtype)
    factor = decode(data[end:].copy(), ScaleDtype.F32) if scheme.is_two_level else None
    for what, found in (("scale", scales), ("global scale", factor)):
        if found is not None:
            _check_scales(f"scheme {scheme}: {what}", found)
    if scheme.block is not None:
        packed = scheme.packed_axis(shape)
        grid[packed], grid[-1] = grid[-1], grid[packed]
        scales = np.ascontiguousarray(np.swapaxes(scales.reshape(grid), packed, -1))
    return Quantized(scheme, unpack(data[:start], shape, scheme), scales, factor)


def _check_scales(what: str, scales: NDArray[np.float32]) -> None:
    bad = scales[~((scales > 0) & np.isfinite(scales))]
    if bad.size:
        raise QuantizationError(f"{what} {bad[0]} is not positive and finite ({bad.size} of {scales.size} are not)")
