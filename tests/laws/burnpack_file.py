"""Burnpack files without the package under test: written after the layout rules (R49 to R69), read with cbor2 alone."""

from dataclasses import dataclass
from math import prod
from typing import Any, Final

import cbor2

from tests.records import burnpack_oracle as oracle

from .observations import Bits
from .operations import Entry, Record
from .spec_tree import numpy_dtype

_NAMES: Final = {name: dtype for dtype, name in oracle.PLAIN.items() if isinstance(name, str)}


@dataclass(frozen=True)
class Stored:
    """A tensor of a file: where its bytes lie, from the beginning of the file on."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    id: int | None


def written(record: Record) -> bytes:
    """The file of a record, without digests."""
    tensors = [
        oracle.Stored(entry.path, oracle.PLAIN[entry.bits.dtype], entry.bits.shape, entry.bits.data, entry.id)
        for entry in record.entries
    ]
    return oracle.burnpack(tensors)


def stored(data: bytes) -> dict[str, Stored]:
    """What a file says of each tensor, by path, in byte-wise order of the paths (R40).

    Raises:
        ValueError: it is cut, or no burnpack file.
    """
    count = int.from_bytes(data[6:10], "little")
    if len(data) < 10 + count or data[:6] != b"NRUB\x01\x00":
        raise ValueError("the header is cut, or none")
    start = (10 + count + 255) // 256 * 256
    tensors: dict[str, Any] = cbor2.loads(data[10 : 10 + count])["tensors"]
    found: dict[str, Stored] = {}
    for path in sorted(tensors, key=str.encode):
        said = tensors[path]
        dtype = _NAMES[said["dtype"]] if isinstance(said["dtype"], str) else "bool"
        first, end = (start + offset for offset in said["data_offsets"])
        at = Stored(dtype, tuple(said["shape"]), first, end, said.get("param_id"))
        if end > len(data) or end - first != prod(at.shape) * numpy_dtype(dtype).itemsize:
            raise ValueError(f"{path}: ends at {at.end}, the file at {len(data)}")
        found[path] = at
    return found


def parsed(data: bytes) -> Record:
    """The record in a file; raises as `stored` does. Booleans may be other bytes than 0 and 1."""
    return Record(
        tuple(
            Entry(path, Bits(at.dtype, at.shape, data[at.start : at.end]), at.id) for path, at in stored(data).items()
        )
    )
