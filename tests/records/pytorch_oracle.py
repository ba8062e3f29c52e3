"""Files as ``torch.save`` writes them, byte by byte: a pickler of a few opcodes, and a zip archive around it."""

import io
import pickle
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

STORAGES = {
    "float64": "DoubleStorage", "float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage",
    "int64": "LongStorage", "int32": "IntStorage", "int16": "ShortStorage", "int8": "CharStorage",
    "uint8": "ByteStorage", "bool": "BoolStorage",
}  # fmt: skip
LEGACY_NUMBER = 0x1950A86A20F9469CFC6C


class Global(NamedTuple):
    """A name, ``module name``."""

    text: str


class Call(NamedTuple):
    """A call of a name."""

    name: str
    arguments: tuple[Any, ...]


class Persistent(NamedTuple):
    """A reference to a storage."""

    id: tuple[Any, ...]


class Raw(NamedTuple):
    """Opcodes as they are."""

    data: bytes


def opcodes(value: Any) -> bytes:
    """The opcodes that make a value."""
    match value:
        case Raw(data):
            return data
        case Global(text):
            return b"c" + text.replace(" ", "\n").encode() + b"\n"
        case Call(name, arguments):
            return opcodes(Global(name)) + opcodes(arguments) + b"R"
        case Persistent(id):
            return opcodes(id) + b"Q"
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return b"\x8b" + struct.pack("<i", len(data)) + data
        case float():
            return b"G" + struct.pack(">d", value)
        case str():
            data = value.encode()
            return b"X" + struct.pack("<I", len(data)) + data
        case tuple():
            return b"(" + b"".join(map(opcodes, value)) + b"t"
        case list():
            return b"](" + b"".join(map(opcodes, value)) + b"e"
        case _:
            return b"}(" + b"".join(opcodes(key) + opcodes(inner) for key, inner in value.items()) + b"u"


def pickled(value: Any) -> bytes:
    """The pickle of a value."""
    return b"\x80\x02" + opcodes(value) + b"."


def typed_storage(key: str, dtype: str, count: int) -> Persistent:
    """A storage of a type that has a class of its own."""
    return Persistent(("storage", Global(f"torch {STORAGES[dtype]}"), key, "cpu", count))


def tensor(key: str, array: NDArray[Any]) -> Call:
    """A tensor that fills a storage, in the memory order of the array."""
    strides = tuple(stride // array.itemsize for stride in array.strides)
    place = (0, array.shape, strides, False, Call("collections OrderedDict", ()))
    if array.dtype.name in STORAGES:
        return Call("torch._utils _rebuild_tensor_v2", (typed_storage(key, array.dtype.name, array.size), *place))
    untyped = Persistent(("storage", Global("torch.storage UntypedStorage"), key, "cpu", array.nbytes))
    return Call("torch._utils _rebuild_tensor_v3", (untyped, *place, Global(f"torch {array.dtype.name}")))


def archive(value: Any, storages: Sequence[bytes], others: Mapping[str, bytes] | None = None) -> bytes:
    """The file of a value whose storages have the keys 0, 1, …"""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as target:
        target.writestr("run/data.pkl", value if isinstance(value, bytes) else pickled(value))
        target.writestr("run/byteorder", b"little")
        for key, data in enumerate(storages):
            target.writestr(f"run/data/{key}", data)
        for name, data in (others or {}).items():
            target.writestr(name, data)
    return made.getvalue()


def legacy(value: Any, storages: Sequence[NDArray[Any]], protocol: int = 2) -> bytes:
    """The file of before 1.6, of a value whose storages have the keys 0, 1, …; its number by another protocol."""
    keys = [str(key) for key in range(len(storages))]
    system = {"protocol_version": 1001, "little_endian": True}
    head = pickle.dumps(LEGACY_NUMBER, protocol) + b"".join(map(pickled, (1001, system, value, keys)))
    return head + b"".join(struct.pack("<q", one.size) + memory(one) for one in storages)


def memory(array: NDArray[Any]) -> bytes:
    """The bytes of an array as they lie."""
    return np.asarray(array).tobytes("A")
