"""Generators of record contents: arrays by bit pattern, paths, ids, scalars."""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from engine import Tensor
from records import ModuleRecord, ParamId, RecordEntry, Scalar

DTYPES = [np.dtype(name) for name in (
    "float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
)] + [np.dtype(ml_dtypes.bfloat16)]  # fmt: skip

_SPECIAL = {  # ±0, ±infinity, quiet and signalling NaN with payloads and both signs, subnormals, largest, one
    "float64": [0, 1 << 63, 0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48, 0xFFF800000000BEEF, 0x7FF0000000000001,
                0xFFF4 << 48, 1, 0x800FFFFFFFFFFFFF, 0x7FEFFFFFFFFFFFFF, 0x3FF << 52],
    "float32": [0, 1 << 31, 0xFF << 23, 0x1FF << 23, 0x7FC0BEEF, 0xFFC00001, 0x7F800001, 0xFFA00000, 1, 0x807FFFFF,
                0x7F7FFFFF, 0x7F << 23],
    "float16": [0, 1 << 15, 0x7C00, 0xFC00, 0x7E01, 0xFE2A, 0x7C01, 0xFD00, 1, 0x83FF, 0x7BFF, 0x3C00],
    "bfloat16": [0, 1 << 15, 0x7F80, 0xFF80, 0x7FC1, 0xFFE5, 0x7F81, 0xFFA0, 1, 0x807F, 0x7F7F, 0x3F80],
}  # fmt: skip


class Item(NamedTuple):
    """One entry as plain data."""

    path: str
    array: NDArray[Any]
    id: int | None


@st.composite
def arrays(draw: st.DrawFn, *, max_dims: int = 4) -> NDArray[Any]:
    """An array of any dtype and shape, rank 0 and zero extents included, by bit patterns; perhaps transposed."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=max_dims, min_side=0, max_side=4))
    if dtype == np.bool_:
        return draw(hnp.arrays(dtype, shape))
    bits = np.dtype(f"uint{8 * dtype.itemsize}")
    patterns = st.integers(0, int(np.iinfo(bits).max))
    if dtype.name in _SPECIAL:
        patterns = st.sampled_from(_SPECIAL[dtype.name]) | patterns
    array = draw(hnp.arrays(bits, shape, elements=patterns)).view(dtype)
    return array.T if draw(st.booleans()) else array


components = st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1, max_size=5) | (
    st.sampled_from(["a", "b", "weight", "bias", "0", "1", "10"])
)
paths = st.lists(components, min_size=1, max_size=4).map(".".join)
ids = st.none() | st.sampled_from([0, 23, 24, 2**32, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def items(draw: st.DrawFn, *, max_size: int = 5) -> list[Item]:
    """The entries of a record, in any order."""
    names = draw(st.lists(paths, max_size=max_size, unique=True))
    return [Item(name, draw(arrays()), draw(ids)) for name in names]


scalars = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(lambda number: Scalar("Int", number)),
    st.integers(0, 2**64 - 1).map(lambda number: Scalar("UInt", number)),
    st.integers(0, 2**64 - 1).map(lambda bits: Scalar("Float", float(np.uint64(bits).view(np.float64)))),
    st.sampled_from([0.0, -0.0, 0.5, 65504.0, 65505.0, 2.0**-24, 1e-8, 0.1, float(np.float32(0.1)), 1e300, 5e-324])
    .map(lambda number: Scalar("Float", number)),
    st.booleans().map(lambda truth: Scalar("Bool", truth)),
)  # fmt: skip


def record_of(entries: list[Item], **given: Any) -> ModuleRecord:
    """The record in memory of these entries, on cpu:0."""
    return ModuleRecord(
        [
            (
                item.path,
                RecordEntry(Tensor.from_numpy(item.array, "cpu:0"), None if item.id is None else ParamId(item.id)),
            )
            for item in entries
        ],
        **given,
    )


def observed(record: ModuleRecord) -> dict[str, tuple[int | None, str, tuple[int, ...], bytes]]:
    """Path to id, dtype, shape and row-major bytes."""
    return {
        path: (
            None if entry.id is None else int(entry.id), str(entry.dtype), entry.shape, entry.read("cpu:0").tobytes()
        )
        for path, entry in record.items()
    }  # fmt: skip


def expected(entries: list[Item]) -> dict[str, tuple[int | None, str, tuple[int, ...], bytes]]:
    """What `observed` must give for these entries."""
    return {item.path: (item.id, str(item.array.dtype), item.array.shape, item.array.tobytes()) for item in entries}
