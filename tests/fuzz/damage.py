"""Ways to damage a file of each format that reach what checksums, lengths and compression would hide.

Each takes a file apart, changes something inside, and puts it together again
with lengths, digests and checksums that are right. What cannot be taken apart
is damaged as it is.
"""

import copy
import gzip
import hashlib
import io
import json
import pickletools
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import cbor2
import msgpack

from records.burnpack import digest
from records.burnpack.layout import HEADER_NBYTES, data_start

Raw = Callable[[bytes], bytes]  # damages bytes anyhow

_INTEGERS: Final = (
    -(2**63), -1, 0, 1, 2, 3, 4, 5, 7, 8, 16, 64, 65, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1,
    2**32, 2**53, 2**60, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
_OTHERS: Final = (
    None, True, False, 0.5, -0.0, float("inf"), float("nan"), 1e308, "", "0", "a.b", ".", "\0", "é", [], {},
)  # fmt: skip
_WORDS: Final = (
    "F32", "F64", "F16", "BF16", "I64", "U8", "U32", "Flex32", "Bool", "BOOL", "Native", "U8", "QFloat", "PackedU32",
    "PackedNative", "Q8S", "Q4F", "Q2S", "E4M3", "E5M2", "E2M1", "UE8M0", "UE4M3", "Symmetric", "Lookup", "Tensor",
    "Block", "level", "param", "value", "store", "mode", "tensor", "block", "size", "storage", "len", "dtype", "shape",
    "data_offsets", "param_id", "tensors", "metadata", "scalars", "Int", "UInt", "Float", "item", "id", "bytes", "_b",
    "version", "settings", "0.13.2", "0.14.1", "0.11.1", "FullPrecisionSettings", "HalfPrecisionSettings",
    "PerTensorAffine", "PerTensorSymmetric", "QInt8", "PerTensorAffineInt8", "PerTensorSymmetricInt8", "scale",
    "offset", "weight_map", "__metadata__", "layerloom.ids", "layerloom.scalars", "layerloom.header", "layerloom.data",
    "1.safetensors", "2.safetensors", "V1", "Rank1",
)  # fmt: skip
_OPCODES: Final = (
    b"(", b"t", b")", b"]", b"}", b"e", b"a", b"u", b"s", b"d", b"l", b"R", b"b", b"Q", b"N", b"0", b"1", b"2", b".",
    b"\x85", b"\x86", b"\x87", b"\x88", b"\x89", b"\x93", b"\x94", b"h\0", b"h\1", b"q\0", b"q\1", b"K\0", b"K\xff",
    b"M\0\1", b"J\xff\xff\xff\xff", b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x8a\0", b"X\0\0\0\0", b"\x8c\1a",
    b"G\x7f\xf8\0\0\0\0\0\0", b"j\xff\xff\xff\xff", b"r\xff\xff\xff\xff", b"\x95\xff\xff\xff\xff\xff\xff\xff\xff",
    b"ccollections\nOrderedDict\n", b"ctorch\nSize\n", b"ctorch\ndevice\n", b"ctorch\nFloatStorage\n",
    b"ctorch.storage\nUntypedStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_tensor_v3\n",
    b"ctorch._utils\n_rebuild_parameter\n", b"ctorch\nfloat32\n", b"cos\nsystem\n",
)  # fmt: skip


def damaged(reader: str, data: bytes, seed: int, raw: Raw) -> bytes:
    """The file with something changed.

    Args:
        reader: whose file it is.
        data: the file.
        seed: of what is drawn.
        raw: what damages bytes without knowing the format.
    """
    drawn = random.Random(seed)
    apart = _APART.get(reader)
    if apart is not None and drawn.random() < 0.7:
        with suppress(Exception):  # of libraries, about files that are damaged already
            return apart(data, drawn, raw)
    return raw(data)


# Trees of maps, arrays, texts and numbers


def changed_tree(tree: Any, drawn: random.Random) -> Any:
    """The tree with one to three of its places changed."""
    root = [copy.deepcopy(tree)]
    for _ in range(drawn.choice((1, 1, 2, 3))):
        _change_place(root, drawn)
    return root[0]


def _change_place(root: list[Any], drawn: random.Random) -> None:
    places = list(_places(root))
    container, key = drawn.choice(places)
    value = container[key]
    match drawn.randrange(8):
        case 0 | 1:
            container[key] = _other(value, drawn)
        case 2:
            container[key] = copy.deepcopy(_at(drawn.choice(places)))
        case 3 if container is not root:
            del container[key]
        case 4 if isinstance(container, dict):
            container[drawn.choice((*_WORDS, str(key) + "2", "", "a.b"))] = container.pop(key)
        case 5 if isinstance(container, dict):
            container[drawn.choice((*_WORDS, str(key) + "2"))] = copy.deepcopy(value)
        case 6 if isinstance(container, list):
            container.insert(key, copy.deepcopy(value))
        case _:
            container[key] = drawn.choice(([value], {"x": value}, [value] * 5, {str(drawn.choice(_WORDS)): value}))


def _places(tree: Any, depth: int = 0) -> Any:
    if isinstance(tree, (dict, list)) and depth < 60:
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key], depth + 1)


def _at(place: tuple[Any, Any]) -> Any:
    return place[0][place[1]]


def _other(value: Any, drawn: random.Random) -> Any:
    if type(value) is int and drawn.random() < 0.8:
        return drawn.choice((*_INTEGERS, value + 1, value - 1, value * 2, value // 2, -value, value + 256))
    if isinstance(value, str) and drawn.random() < 0.7:
        return drawn.choice((*_WORDS, value + "x", value[:-1], value * 3))
    if isinstance(value, bytes) and drawn.random() < 0.8:
        return drawn.choice((value[:-1], value + b"\2", b"", value[::-1], drawn.randbytes(len(value))))
    return drawn.choice((*_INTEGERS, *_OTHERS, *_WORDS))


# Formats


def _burnpack(data: bytes, drawn: random.Random, raw: Raw) -> bytes:
    nbytes = int.from_bytes(data[6:HEADER_NBYTES], "little")
    value, tail = data[HEADER_NBYTES : HEADER_NBYTES + nbytes], data[data_start(nbytes) :]
    if drawn.random() < 0.3:
        value = raw(value)
    else:
        tree = changed_tree(cbor2.loads(value), drawn)
        texts = tree.get("metadata") if isinstance(tree, dict) else None
        is_signed = isinstance(texts, dict) and {digest.HEADER_KEY, digest.DATA_KEY} <= texts.keys()
        if is_signed and drawn.random() < 0.9:
            texts |= {digest.HEADER_KEY: digest.BLANK, digest.DATA_KEY: hashlib.sha256(tail).hexdigest()}
            header = _header(data, cbor2.dumps(tree))
            digits, _ = digest.header_digest(header, (digest.BLANK, texts[digest.DATA_KEY]))
            texts[digest.HEADER_KEY] = digits
        value = cbor2.dumps(tree)
    return _header(data, value) + tail


def _header(data: bytes, value: bytes) -> bytes:
    return (data[:6] + struct.pack("<I", len(value)) + value).ljust(data_start(len(value)), b"\0")


def _mpk(data: bytes, drawn: random.Random, raw: Raw) -> bytes:
    if data.lstrip()[:1] == b"{":
        return json.dumps(changed_tree(json.loads(data), drawn)).encode()
    return msgpack.packb(changed_tree(msgpack.unpackb(data), drawn), use_single_float=drawn.random() < 0.9)


def _gz(data: bytes, drawn: random.Random, raw: Raw) -> bytes:
    inside = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, 2**16)
    return gzip.compress(raw(inside) if drawn.random() < 0.3 else _mpk(inside, drawn, raw), 1, mtime=0)


def _safetensors(data: bytes, drawn: random.Random, raw: Raw) -> bytes:
    nbytes = int.from_bytes(data[:8], "little")
    text, tail = data[8 : 8 + nbytes], data[8 + nbytes :]
    text = raw(text) if drawn.random() < 0.3 else _json(text, drawn, raw)
    return struct.pack("<Q", len(text)) + text + tail


def _json(data: bytes, drawn: random.Random, raw: Raw) -> bytes:
    tree = json.loads(data)
    for key in ("layerloom.ids", "layerloom.scalars"):  # JSON within JSON
        texts = tree.get("__metadata__")
        if isinstance(texts, dict) and key in texts and drawn.random() < 0.3:
            texts[key] = json.dumps(changed_tree(json.loads(texts[key]), drawn))
            return json.dumps(tree).encode()
    return json.dumps(changed_tree(tree, drawn)).encode()


def _pytorch(data: bytes, drawn: random.Random, raw: Raw) -> bytes:
    if not data.startswith(b"PK"):
        ends = _ends(data, 5)
        pickle = drawn.choice((2, 3, 3, 3, 4))
        start, end = ends[pickle - 1], ends[pickle]
        return data[:start] + _changed_pickle(data[start:end], drawn, raw) + data[end:]
    with zipfile.ZipFile(io.BytesIO(data)) as source:
        records = [(info.filename, source.read(info)) for info in source.infolist()[:50]]
    at = next(at for at, (name, _) in enumerate(records) if name.endswith("data.pkl"))
    name, value = records[at]
    match drawn.randrange(8):
        case 0:
            other = drawn.randrange(len(records))
            records[other] = (records[other][0], raw(records[other][1]))
        case 1:
            del records[drawn.randrange(len(records))]
        case 2:
            other = drawn.randrange(len(records))
            records[other] = (drawn.choice((records[0][0] + "x", "a/data.pkl", "x/data/0")), records[other][1])
        case _:
            records[at] = (name, _changed_pickle(value, drawn, raw))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED if drawn.random() < 0.02 else zipfile.ZIP_STORED) as target:
        for name, value in dict(records).items():
            target.writestr(name, value)
    return made.getvalue()


def _ends(data: bytes, count: int) -> list[int]:
    """Where the first pickles end."""
    stream, ends = io.BytesIO(data), []
    for _ in range(count):
        for _ in pickletools.genops(stream):
            pass
        ends.append(stream.tell())
    return ends


def _changed_pickle(data: bytes, drawn: random.Random, raw: Raw) -> bytes:
    """The opcodes with some of them taken out, repeated, exchanged, put in, or with another argument."""
    starts = [at or 0 for _, _, at in pickletools.genops(data)]
    codes = [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]
    for _ in range(drawn.choice((1, 1, 2, 3))):
        at, other = drawn.randrange(len(codes)), drawn.randrange(len(codes))
        match drawn.randrange(6):
            case 0 if len(codes) > 1:
                del codes[at]
            case 1:
                codes.insert(at, codes[other])
            case 2:
                codes[at], codes[other] = codes[other], codes[at]
            case 3:
                codes.insert(at, drawn.choice(_OPCODES))
            case 4:
                codes[at] = drawn.choice(_OPCODES)
            case _:
                codes[at] = codes[at][:1] + raw(codes[at][1:]) if len(codes[at]) > 1 else drawn.choice(_OPCODES)
    return b"".join(codes)


def _gguf(data: bytes, drawn: random.Random, raw: Raw) -> bytes:
    """A number of the header replaced: counts, types, lengths, offsets."""
    form = drawn.choice(("<I", "<Q", "<Q"))
    at = drawn.randrange(4, max(5, min(len(data), 1024) - struct.calcsize(form)))
    (old,) = struct.unpack_from(form, data, at)
    bits = 8 * struct.calcsize(form)
    number = drawn.choice((*_INTEGERS, old + 1, old - 1, old * 2, old + 32, *range(42))) % 2**bits
    return data[:at] + struct.pack(form, number) + data[at + bits // 8 :]


_APART: Final[dict[str, Callable[[bytes, random.Random, Raw], bytes]]] = {
    "burnpack": _burnpack,
    "mpk": _mpk,
    "mpk.gz": _gz,
    "safetensors": _safetensors,
    "index": lambda data, drawn, raw: json.dumps(changed_tree(json.loads(data), drawn)).encode(),
    "pytorch": _pytorch,
    "gguf": _gguf,
}
