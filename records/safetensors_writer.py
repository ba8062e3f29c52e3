"""Writing safetensors: a header, then one tensor at a time, as bytes that the format's library would write.

The library itself writes only what lies in memory as a whole; here a tensor
is asked for when its turn comes. Its order is kept: elements of more bytes
first, so that every tensor is aligned, then by name. What the format has no
place for, ids and scalars, is JSON under two names of the metadata.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from engine import QuantScheme
from engine.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, DType

from .atomic import replacing
from .burnpack.writer import pieces
from .entry import ForeignDType, RecordEntry, nbytes_of
from .errors import RecordError, RecordFormatError
from .param_id import ParamId
from .scalar import Scalar
from .shown import shown
from .storage import LIMITS

DTYPES: Final[dict[str, DType]] = {  # in the order of the file
    "U64": np.dtype(np.uint64), "I64": np.dtype(np.int64), "F64": FLOAT64,
    "F32": FLOAT32, "U32": np.dtype(np.uint32), "I32": np.dtype(np.int32),
    "BF16": BFLOAT16, "F16": FLOAT16, "U16": np.dtype(np.uint16), "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8), "U8": np.dtype(np.uint8), "BOOL": BOOL,
}  # fmt: skip
IDS_KEY: Final = "layerloom.ids"
SCALARS_KEY: Final = "layerloom.scalars"

_METADATA: Final = "__metadata__"
_MAX_HEADER_NBYTES: Final = 100_000_000  # the library's limit
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
_RANKS: Final = {dtype: rank for rank, dtype in enumerate(DTYPES.values())}


def write_safetensors(
    file: Path, entries: Mapping[str, RecordEntry], scalars: Mapping[str, Scalar], texts: Mapping[str, str]
) -> None:
    """Write a file, or leave what is there untouched.

    Args:
        file: the destination, its name complete.
        entries: by path.
        scalars: by name.
        texts: the free metadata.

    Raises:
        RecordError: something in it cannot be written, or makes other data than it announced.
        RecordIoError: the system refused to write, or a source's file was closed.
    """
    for path, entry in entries.items():
        _check(path, entry)
    ordered = sorted(entries.items(), key=lambda pair: (_RANKS[_dtype(pair[1])], pair[0]))
    header = _header(ordered, _metadata(entries, scalars, texts))
    with replacing(file) as scratch:
        scratch.write(header)
        for path, entry in ordered:
            for piece in _data(path, entry):
                scratch.write(piece)
                del piece  # which keeps its tensor in memory while the next one is made


def _check(path: str, entry: RecordEntry) -> None:
    dtype = entry.dtype
    if isinstance(dtype, (ForeignDType, QuantScheme)) or dtype not in _NAMES:
        raise RecordError(f"tensor {shown(path)}: a safetensors file has no dtype {dtype}")
    if path == _METADATA:
        raise RecordError(f"tensor {shown(path)}: a safetensors file has its metadata under that name")
    nbytes = nbytes_of(dtype, entry.shape)
    if nbytes > LIMITS.max_tensor_bytes:
        raise RecordError(
            f"tensor {shown(path)}: {nbytes} bytes are more than the {LIMITS.max_tensor_bytes} that readers take"
        )


def _dtype(entry: RecordEntry) -> DType:
    assert not isinstance(entry.dtype, (ForeignDType, QuantScheme)), "such entries are refused before"
    return entry.dtype


def _header(ordered: Iterable[tuple[str, RecordEntry]], metadata: Mapping[str, str]) -> bytes:
    """The length of the JSON, and the JSON, filled up with spaces to a multiple of 8 bytes."""
    top: dict[str, Any] = {_METADATA: dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for path, entry in ordered:
        start, end = end, end + nbytes_of(_dtype(entry), entry.shape)
        top[path] = {"dtype": _NAMES[_dtype(entry)], "shape": list(entry.shape), "data_offsets": [start, end]}
    try:
        text = json.dumps(top, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"the record cannot be written: {shown(error.object)} is not Unicode text") from None
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEADER_NBYTES:
        raise RecordError(f"a header of {len(text)} bytes is more than the {_MAX_HEADER_NBYTES} that readers take")
    return struct.pack("<Q", len(text)) + text


def _data(path: str, entry: RecordEntry) -> Iterator[Any]:
    array = entry.host()
    if (array.dtype, array.shape) != (entry.dtype, entry.shape):
        raise RecordError(
            f"tensor {shown(path)}: it announced shape {entry.shape} of {entry.dtype} "
            f"and made shape {array.shape} of {array.dtype}"
        )
    return pieces(array)


# Ids and scalars


def _metadata(
    entries: Mapping[str, RecordEntry], scalars: Mapping[str, Scalar], texts: Mapping[str, str]
) -> dict[str, str]:
    """The texts, with what has no place elsewhere."""
    for key in (IDS_KEY, SCALARS_KEY):
        if key in texts:
            raise RecordError(f"metadata {key!r} cannot be given; the writer puts ids and scalars there")
    made = dict(texts)
    if ids := {path: str(entry.id) for path, entry in sorted(entries.items()) if entry.id is not None}:
        made[IDS_KEY] = json.dumps(ids, ensure_ascii=False)
    if numbers := {name: {one.kind: _plain(one)} for name, one in sorted(scalars.items())}:
        made[SCALARS_KEY] = json.dumps(numbers, ensure_ascii=False)
    return made


def _plain(scalar: Scalar) -> Any:
    """The number in JSON; of a float its 64 bits in hexadecimal, since JSON has no infinities, NaNs and payloads."""
    return struct.pack(">d", scalar.value).hex() if scalar.kind == "Float" else scalar.value


class Identity(NamedTuple):
    """What our own metadata holds: ids by path, scalars, and the metadata that is left."""

    ids: dict[str, ParamId]
    scalars: dict[str, Scalar]
    metadata: dict[str, Any]


def taken_apart(metadata: Mapping[str, Any]) -> Identity:
    """Ids and scalars out of the metadata of a file; those of a path that is not there any more do no harm.

    Raises:
        RecordFormatError: it has them in another form.
    """
    left = dict(metadata)
    ids = {path: ParamId.parse(_text(IDS_KEY, text)) for path, text in _mapping(left, IDS_KEY).items()}
    return Identity(ids, {name: _scalar(one) for name, one in _mapping(left, SCALARS_KEY).items()}, left)


def _mapping(left: dict[str, Any], key: str) -> dict[str, Any]:
    """The JSON map under a key, which is taken out."""
    try:
        found = json.loads(left.pop(key, "{}"))
    except (ValueError, TypeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RecordFormatError(f"metadata {shown(key)} is no map in JSON")
    return found


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RecordFormatError(f"metadata {key!r} holds {shown(value)}, no text")
    return value


def _scalar(value: Any) -> Scalar:
    if not isinstance(value, dict) or len(value) != 1:
        raise RecordFormatError(f"metadata {SCALARS_KEY!r} holds {shown(value)}, no scalar")
    ((kind, number),) = value.items()
    if kind == "Float":
        try:
            (number,) = struct.unpack(">d", bytes.fromhex(_text(SCALARS_KEY, number)))
        except (ValueError, struct.error):
            raise RecordFormatError(f"metadata {SCALARS_KEY!r} holds {shown(value)}, no scalar") from None
    return Scalar(kind, number)
