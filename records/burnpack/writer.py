"""Writing a burnpack file: all is laid out and checked first, then one tensor at a time is written (R81 to R83)."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine import QuantScheme
from records.atomic import replacing
from records.entry import RecordEntry
from records.errors import RecordError
from records.quantized_source import BYTE
from records.scalar import Scalar
from records.shown import shown
from records.storage import LIMITS, Limits

from . import digest, metadata
from .layout import MAGIC, VERSION, aligned, data_start
from .metadata import Descriptor
from .wire import Flaw, Wire, WireType, stored_nbytes, wire_of

_PIECE: Final = 8 * 2**20  # bytes written at once
_SMALL: Final = 64 * 2**10  # bytes below which pieces are joined
_JOINED: Final = 2**20
_FLUSHED: Final = 32 * 2**20  # bytes after which the disk gets to work, while the digest goes on in its thread
_MAX_METADATA_NBYTES: Final = 2**32 - 1


class _Plan(NamedTuple):
    """A file before it is written: its header, blank digests included, and what follows it in order."""

    header: bytes
    tensors: list[tuple[Descriptor, RecordEntry]]


def write_burnpack(
    file: Path,
    entries: Iterable[tuple[str, RecordEntry]],
    scalars: Mapping[str, Scalar],
    texts: Mapping[str, str],
    *,
    with_digest: bool,
) -> None:
    """Write a file, or leave what is there untouched.

    Args:
        file: the destination, its name complete.
        entries: in the order in which their data is laid out (R55); no path twice.
        scalars: by name.
        texts: the free metadata.
        with_digest: whether to carry D1's digests; without them the bytes are those of Burn.

    Raises:
        RecordError: something in it cannot be written, or makes other data than it announced (R81, R82).
        RecordIoError: the system refused to write, or a source's file was closed.
    """
    plan = _planned(entries, scalars, texts, LIMITS, with_digest)
    with replacing(file) as scratch:
        scratch.write(plan.header)
        if not with_digest:
            for piece in _joined(_data(plan)):
                scratch.write(piece)
                del piece  # which keeps its tensor in memory while the next one is made
            return
        with digest.DataDigest() as data:
            unflushed = 0
            for piece in _joined(_data(plan, data.settle)):
                data.feed(piece)
                scratch.write(piece)
                unflushed += len(piece)
                del piece
                if unflushed >= _FLUSHED:
                    scratch.flush()
                    unflushed = 0
            digits = data.hexdigest()
        scratch.overwrite_start(_signed(plan.header, digits))


def burnpack_bytes(
    entries: Iterable[tuple[str, RecordEntry]],
    scalars: Mapping[str, Scalar],
    texts: Mapping[str, str],
    *,
    with_digest: bool,
) -> bytes:
    """What `write_burnpack` would write, as bytes; raises the same, but for errors of the system."""
    plan = _planned(entries, scalars, texts, LIMITS, with_digest)
    pieces = list(_joined(_data(plan)))
    header = plan.header
    if with_digest:
        sha = hashlib.sha256()
        for piece in pieces:
            sha.update(piece)
        header = _signed(header, sha.hexdigest())
    return b"".join([header, *pieces])


def _planned(
    entries: Iterable[tuple[str, RecordEntry]],
    scalars: Mapping[str, Scalar],
    texts: Mapping[str, str],
    limits: Limits,
    with_digest: bool,
) -> _Plan:
    for key in (digest.HEADER_KEY, digest.DATA_KEY):
        if key in texts:
            raise RecordError(f"metadata {key!r} cannot be given; the writer puts the digests there")
    tensors: list[tuple[Descriptor, RecordEntry]] = []
    end = 0
    try:
        for name, entry in entries:
            tensor = _placed(name, entry, aligned(end), limits)
            tensors.append((tensor, entry))
            end = tensor.end
        if len(tensors) > limits.max_tensors:
            raise Flaw(f"{len(tensors)} tensors are more than the {limits.max_tensors} that readers take")
        if with_digest:
            texts = {**texts, digest.HEADER_KEY: digest.BLANK, digest.DATA_KEY: digest.BLANK}
        raw = metadata.encode((tensor for tensor, _ in tensors), texts, scalars)
        if len(raw) > min(limits.max_metadata_bytes, _MAX_METADATA_NBYTES):
            raise Flaw(f"{len(raw)} bytes of metadata are more than the {limits.max_metadata_bytes} that readers take")
        start = data_start(len(raw))
        if start + end > limits.max_file_bytes:
            raise Flaw(f"{start + end} bytes are more than the {limits.max_file_bytes} that readers take")
        header = b"".join([MAGIC, VERSION.to_bytes(2, "little"), len(raw).to_bytes(4, "little"), raw])
        header = header.ljust(start, b"\0")
        if with_digest:
            digest.header_digest(header, (digest.BLANK, digest.BLANK))
    except Flaw as flaw:
        raise RecordError(f"the record cannot be written: {flaw}") from None
    return _Plan(header, tensors)


def _placed(name: str, entry: RecordEntry, start: int, limits: Limits) -> Descriptor:
    try:
        wire = wire_of(entry.dtype, entry.form)
        nbytes = stored_nbytes(wire, entry.shape)
        if nbytes > limits.max_tensor_bytes:
            raise Flaw(f"{nbytes} bytes are more than the {limits.max_tensor_bytes} that readers take")
    except Flaw as flaw:
        raise Flaw(f"tensor {shown(name)}: {flaw}") from None
    return Descriptor(name, wire, entry.shape, start, start + nbytes, entry.id)


def _signed(header: bytes, data_digits: str) -> bytes:
    """The header with both digests filled in."""
    header_digits, places = digest.header_digest(header, (digest.BLANK, digest.BLANK))
    signed = bytearray(header)
    for place, digits in zip(places, (header_digits, data_digits), strict=True):
        signed[place : place + len(digits)] = digits.encode()
    return bytes(signed)


def _data(plan: _Plan, settle: Callable[[], None] | None = None) -> Iterator[Any]:
    """The bytes behind the header in pieces: tensors, and the zeros between them.

    `settle` waits until pieces are not held any more, so that one tensor at a time is in memory.
    """
    position = nbytes = 0
    for tensor, entry in plan.tensors:
        if settle is not None and nbytes > _PIECE:
            settle()
        nbytes = tensor.end - tensor.start
        if tensor.start > position:
            yield bytes(tensor.start - position)
        try:
            yield from stored_pieces(tensor.wire, host_of(entry))
        except Flaw as flaw:
            raise RecordError(f"tensor {shown(tensor.name)}: {flaw}") from None
        position = tensor.end


def host_of(entry: RecordEntry) -> NDArray[Any]:
    """The data of an entry in host memory, as its source announced it.

    Raises:
        Flaw: it is not that (R82).
    """
    array, dtype, shape = entry.host(), entry.dtype, entry.shape
    expected = (BYTE, (entry.nbytes,)) if isinstance(dtype, QuantScheme) else (dtype, shape)
    if (array.dtype, array.shape) != expected:
        raise Flaw(f"it announced shape {shape} of {dtype} and made shape {array.shape} of {array.dtype}")
    return array


def stored_pieces(wire: WireType, array: NDArray[Any]) -> Iterator[Any]:
    """The bytes of a tensor as the file holds them."""
    if not isinstance(wire, Wire) or wire.stored.itemsize == array.dtype.itemsize:
        return pieces(array)
    return (np.frombuffer(piece, BYTE).astype(wire.stored).view(BYTE).data for piece in pieces(array))  # booleans


def _joined(parts: Iterable[Any]) -> Iterator[Any]:
    """The same bytes with small parts joined, since each piece costs a call and a change of threads."""
    small = bytearray()
    for part in parts:
        if len(part) < _SMALL:
            small += part
        if small and (len(part) >= _SMALL or len(small) >= _JOINED):
            yield small
            small = bytearray()
        if len(part) >= _SMALL:
            yield part
        del part
    if small:
        yield small


def pieces(array: NDArray[Any]) -> Iterator[memoryview]:
    """The bytes of an array in row-major order, at most 8 MiB at a time; without a copy where they lie so."""
    if array.flags.c_contiguous:
        data = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
        for offset in range(0, len(data), _PIECE):
            yield data[offset : offset + _PIECE]
    elif array.nbytes <= _PIECE:
        yield from pieces(np.ascontiguousarray(array))
    else:
        rows = max(1, _PIECE * len(array) // array.nbytes)
        for first in range(0, len(array), rows):
            block = array[first : first + rows]
            yield from pieces(block if rows > 1 else block[0])
