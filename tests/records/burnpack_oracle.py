"""Burnpack files put together by hand from rules R49 to R73, to compare with what `records` writes and to be damaged.

Nothing here calls the package under test.
"""

import math
import struct
from typing import Any, NamedTuple

import cbor2

PLAIN = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bool": {"Bool": "Native"},
}  # fmt: skip


class Raw(bytes):
    """CBOR that is written as it is."""


class Pairs(list[tuple[Any, Any]]):
    """A map that may have a key twice."""


class Stored(NamedTuple):
    """One tensor: its name, dtype as in the file, shape, bytes and id."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    data: bytes
    id: int | None


def quantized(scheme: dict[str, Any]) -> dict[str, Any]:
    """The dtype of quantized tensors, its keys in the order of R71 and R72 whatever theirs."""
    ordered = {key: scheme[key] for key in ("value", "store", "mode", "tensor", "block")}
    if ordered["block"] is not None:
        size, dtype = scheme["block"]["size"], scheme["block"]["dtype"]
        ordered["block"] = {"size": {"storage": size["storage"], "len": size["len"]}, "dtype": dtype}
    return {"QFloat": ordered}


def cbor(value: Any) -> bytes:
    """Definite lengths, shortest integers, keys in the order given (R65)."""
    if isinstance(value, Raw):
        return value
    if value is None or isinstance(value, bool):
        return {None: b"\xf6", True: b"\xf5", False: b"\xf4"}[value]
    if isinstance(value, int):
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    if isinstance(value, Pairs):
        return head(5, len(value)) + b"".join(cbor(key) + cbor(item) for key, item in value)
    if isinstance(value, dict):
        return cbor(Pairs(value.items()))
    if isinstance(value, (list, tuple)):
        return head(4, len(value)) + b"".join(map(cbor, value))
    raise AssertionError(f"no CBOR for {value!r}")


def shortest_float(value: float) -> Raw:
    """The shortest CBOR float that cbor2 decodes to the same 64 bits."""
    bits = struct.pack(">d", value)
    if not math.isnan(value):
        return Raw(cbor2.dumps(value, canonical=True))
    (number,) = struct.unpack(">Q", bits)
    sign, payload = number >> 63, number & (2**52 - 1)
    half = b"\xf9" + struct.pack(">H", sign << 15 | 0x7C00 | payload >> 42)
    single = b"\xfa" + struct.pack(">I", sign << 31 | 0x7F800000 | payload >> 29)
    for encoded in (half, single):
        if struct.pack(">d", cbor2.loads(encoded)) == bits:
            return Raw(encoded)
    return Raw(b"\xfb" + bits)


def head(major: int, number: int) -> bytes:
    """The first bytes of an item."""
    if number < 24:
        return bytes([major << 5 | number])
    for code, form in ((24, ">B"), (25, ">H"), (26, ">I"), (27, ">Q")):
        if number < 256 ** struct.calcsize(form):
            return bytes([major << 5 | code]) + struct.pack(form, number)
    raise AssertionError(f"{number} has more than 64 bits")


def descriptor(stored: Stored, start: int) -> dict[str, Any]:
    """R62."""
    fields: dict[str, Any] = {
        "dtype": stored.dtype,
        "shape": list(stored.shape),
        "data_offsets": [start, start + len(stored.data)],
    }
    return fields if stored.id is None else {**fields, "param_id": stored.id}


def starts(tensors: list[Stored]) -> list[int]:
    """R55: the first at 0, each next at the next multiple of 256."""
    result, end = [], 0
    for stored in tensors:
        result.append((end + 255) // 256 * 256)
        end = result[-1] + len(stored.data)
    return result


def data_section(tensors: list[Stored]) -> bytes:
    """R55, R56: the tensors' bytes, gaps of zeros, nothing behind the last."""
    section = b""
    for stored, start in zip(tensors, starts(tensors), strict=True):
        section = section.ljust(start, b"\0") + stored.data
    return section


def with_header(
    metadata: bytes, data: bytes, *, magic: bytes = b"NRUB", version: int = 1, n: int | None = None
) -> bytes:
    """R49 to R54 around an encoded CBOR value."""
    count = len(metadata) if n is None else n
    front = magic + struct.pack("<HI", version, count) + metadata
    return front.ljust((len(front) + 255) // 256 * 256, b"\0") + data


def burnpack(
    tensors: list[Stored], metadata: dict[str, str] | None = None, scalars: dict[str, tuple[str, Any]] | None = None
) -> bytes:
    """The whole file, without digests; `scalars` maps a name to kind and value (floats as `Raw`)."""
    places = dict(zip([stored.name for stored in tensors], starts(tensors), strict=True))
    ordered = sorted(tensors, key=lambda stored: stored.name.encode())
    top: dict[str, Any] = {"tensors": {stored.name: descriptor(stored, places[stored.name]) for stored in ordered}}
    if metadata:
        top["metadata"] = {key: metadata[key] for key in sorted(metadata, key=str.encode)}
    if scalars:
        top["scalars"] = {key: {scalars[key][0]: scalars[key][1]} for key in sorted(scalars, key=str.encode)}
    return with_header(cbor(top), data_section(tensors))
