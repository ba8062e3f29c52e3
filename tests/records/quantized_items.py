"""Quantized tensors put together by hand from rules Q36 to Q43: schemes as Burn serialises them, and bytes for them."""

import math
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from engine import Tensor
from records import ParamId, RecordEntry
from tests.modules.burn_values import scheme_of
from tests.records import burnpack_oracle as oracle
from tests.records.strategies import ids

BITS = {"Q8F": 8, "Q8S": 8, "Q4F": 4, "Q4S": 4, "Q2F": 2, "Q2S": 2, "E4M3": 8, "E5M2": 8, "E2M1": 4}
SCALES = {  # bytes of scales that are positive and finite: least, one, some, largest
    "F32": ["00000100", "0000803f", "d436683c", "ffff7f7f"],
    "F16": ["0100", "003c", "4123", "ff7b"],
    "BF16": ["0100", "803f", "683c", "7f7f"],
    "UE4M3": ["01", "38", "4a", "7e"],
    "UE8M0": ["00", "7f", "80", "fe"],
}


class QuantizedItem(NamedTuple):
    """A quantized tensor as plain data."""

    path: str
    scheme: dict[str, Any]
    shape: tuple[int, ...]
    data: bytes
    id: int | None

    @property
    def stored(self) -> oracle.Stored:
        return oracle.Stored(self.path, oracle.quantized(self.scheme), self.shape, self.data, self.id)

    @property
    def tensor(self) -> Tensor:
        return Tensor.from_quantized(np.frombuffer(self.data, np.uint8), self.shape, scheme_of(self.scheme), "cpu:0")

    @property
    def entry(self) -> RecordEntry:
        return RecordEntry(self.tensor, None if self.id is None else ParamId(self.id))


def block(extents: list[int], dtype: str) -> dict[str, Any]:
    """A block level as it is serialised."""
    return {"size": {"storage": [*extents, *[1] * (5 - len(extents))], "len": len(extents)}, "dtype": dtype}


def per_element(scheme: dict[str, Any]) -> int:
    """Values in an element of the store (Q37)."""
    if scheme["store"] == "Native":
        return 1
    ((kind, _),) = scheme["store"].items()
    if kind == "PackedU32":
        return 32 // BITS[scheme["value"]]
    return 2 if scheme["value"] == "E2M1" else 1


def lines(scheme: dict[str, Any], shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Number of lines, values in each, and elements in each (Q40)."""
    extents = list(shape) or [1]
    axis = 0 if scheme["store"] == "Native" else next(iter(scheme["store"].values()))
    length = extents.pop(len(extents) - 1 - axis)
    return math.prod(extents), length, -(-length // per_element(scheme))


def num_scales(scheme: dict[str, Any], shape: tuple[int, ...]) -> int:
    """Q10."""
    if scheme["block"] is None:
        return 1
    size = scheme["block"]["size"]
    extents = size["storage"][: size["len"]]
    padded = [1] * (len(shape) - len(extents)) + extents
    return math.prod(-(-length // extent) for length, extent in zip(shape, padded, strict=True))


@st.composite
def values(draw: st.DrawFn, scheme: dict[str, Any], shape: tuple[int, ...]) -> bytes:
    """The store of any values, filled up with zeros (Q39)."""
    count, length, elements = lines(scheme, shape)
    bits = BITS[scheme["value"]]
    is_word = "PackedU32" in scheme["store"]
    width = 32 if is_word else 8
    used = bits if scheme["store"] != "Native" else 8
    stored = b""
    for _ in range(count):
        line = draw(st.lists(st.integers(0, 2**used - 1), min_size=length, max_size=length))
        for first in range(elements):
            part = line[first * per_element(scheme) : (first + 1) * per_element(scheme)]
            word = sum(value << (place * bits) for place, value in enumerate(part))
            stored += word.to_bytes(width // 8, "little")
    return stored


@st.composite
def quantized_items(
    draw: st.DrawFn, path: str = "q", *, ranks: tuple[int, int] = (0, 3), least: int = 0
) -> QuantizedItem:
    """Any kind, store, axis, level and scale dtype; rank 0, zero extents and blocks that do not divide included.

    `ranks` are the fewest and most axes, `least` the least extent.
    """
    shape = tuple(draw(st.lists(st.integers(least, 5), min_size=ranks[0], max_size=ranks[1])))
    axes = st.integers(0, max(0, len(shape) - 1))
    value = draw(st.sampled_from(list(BITS)))
    packed = st.builds(lambda kind, axis: {kind: axis}, st.sampled_from(["PackedU32", "PackedNative"]), axes)
    store = draw(st.just("Native") | packed)
    tensor, size = draw(st.none() | st.sampled_from(list(SCALES))), None
    if shape and draw(st.booleans()):
        extents = draw(st.lists(st.integers(1, 4), min_size=1, max_size=len(shape)))
        while len(extents) > 1 and extents[0] == 1:
            del extents[0]
        tensor = draw(st.sampled_from([None, "F32"]))
        size = block(extents, draw(st.sampled_from(list(SCALES) if tensor is None else ["F16", "UE4M3"])))
    scheme = {"value": value, "store": store, "mode": "Symmetric", "tensor": tensor, "block": size}
    innermost = (tensor or "F32") if size is None else size["dtype"]
    data = draw(values(scheme, shape))
    for _ in range(num_scales(scheme, shape)):
        data += bytes.fromhex(draw(st.sampled_from(SCALES[innermost])))
    if tensor is not None and size is not None:
        data += bytes.fromhex(draw(st.sampled_from(SCALES["F32"])))
    return QuantizedItem(path, scheme, shape, data, draw(ids))
