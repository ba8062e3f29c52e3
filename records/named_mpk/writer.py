"""Writing a named-MessagePack file for a release of Burn: planned and checked whole, then one tensor at a time."""

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgpack

from engine.dtype import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS
from records.atomic import replacing
from records.burnpack.wire import Flaw
from records.entry import RecordEntry
from records.errors import RecordError
from records.param_id import ParamId
from records.scalar import Scalar
from records.shown import shown

from .assembly import Assembled, Leaf, assembled
from .encoding import Target
from .item import NUMBER, OUTLINE_KEY, PARAMETER
from .settings import DOUBLE, FULL, HALF, Precision, metadata_of, recorded_precision, release_of, version_of

_SMALL: Final = 2**16  # bytes below which pieces are joined
_JOINED: Final = 2**20
_WITH_MARKER: Final = (0, 12)  # the version from which on files have `_b`
_WITH_DTYPES: Final = (0, 14)
_EXACT: Final = {
    FULL: frozenset({FLOAT32, FLOAT16, BFLOAT16}), HALF: frozenset({FLOAT16}), DOUBLE: FLOATS,
}  # fmt: skip


def write_named_mpk(
    file: Path,
    entries: Mapping[str, RecordEntry],
    scalars: Mapping[str, Scalar],
    metadata: Mapping[str, Any],
    *,
    for_burn: str,
    stateless: Mapping[str, Any],
    is_gzip: bool,
) -> None:
    """Write a file, or leave what is there untouched.

    Args:
        file: the destination, its name complete.
        entries: by path. One without an id gets one that is made of its path.
        scalars: must be empty, unless the record came from such a file and they have their places there.
        metadata: of a record that came from such a file; of others, and other texts, nothing is written.
        for_burn: the version that is to read it, ``"0.9"`` to ``"0.21"``.
        stateless: what stands at paths without an entry: None, and lists and dicts of it.
        is_gzip: whether to compress it.

    Raises:
        RecordError: something in it cannot be written.
        RecordIoError: the system refused to write, or a source's file was closed.
    """
    release = release_of(for_burn)
    version = version_of(release)
    target = Target(version, _precision(entries, metadata, version))
    for path, entry in entries.items():
        _checked(path, lambda entry=entry: target.check(entry))
    item = assembled(entries, scalars, metadata.get(OUTLINE_KEY), stateless)
    header = metadata_of(release, target.precision, is_gzip=is_gzip)
    body = _Body(entries, scalars, target)
    with replacing(file) as scratch:
        data = _joined(body.file(header, item))
        for piece in _compressed(data) if is_gzip else data:
            scratch.write(piece)
            del piece  # which keeps its tensor in memory while the next one is made


def _precision(entries: Mapping[str, RecordEntry], metadata: Mapping[str, Any], version: tuple[int, int]) -> Precision:
    """The record's own precision setting if its floats fit it, else the one that they fit (N19)."""
    floats = {entry.dtype for entry in entries.values()} & FLOATS
    recorded = recorded_precision(metadata)
    if recorded is not None and (version >= _WITH_DTYPES or floats <= _EXACT[recorded]):
        return recorded
    if FLOAT64 in floats:
        return DOUBLE
    return HALF if floats == {FLOAT16} else FULL


def _checked(path: str, call: Any) -> Any:
    try:
        return call()
    except Flaw as flaw:
        raise RecordError(f"tensor {shown(path)}: {flaw}") from None


class _Body:
    """The bytes of a file, in pieces."""

    def __init__(self, entries: Mapping[str, RecordEntry], scalars: Mapping[str, Scalar], target: Target) -> None:
        self._entries = entries
        self._scalars = scalars
        self._target = target
        self._packer: Any = msgpack.Packer()

    def file(self, metadata: Mapping[str, str], item: Assembled) -> Iterator[Any]:
        has_marker = self._target.version >= _WITH_MARKER
        yield self._packer.pack_map_header(3 if has_marker else 2)
        yield self._text("metadata") + self._packer.pack(dict(metadata)) + self._text("item")
        yield from self._value(item)
        if has_marker:
            yield self._text("_b") + self._packer.pack([])

    def _text(self, text: str) -> bytes:
        try:
            return self._packer.pack(text)
        except UnicodeEncodeError:
            raise RecordError(f"{shown(text)} is not Unicode text") from None

    def _value(self, tree: Assembled) -> Iterator[Any]:
        if isinstance(tree, Leaf):
            yield from self._leaf(tree)
        elif isinstance(tree, dict):
            yield self._packer.pack_map_header(len(tree))
            for key, value in tree.items():
                yield self._text(key)
                yield from self._value(value)
        elif isinstance(tree, list):
            yield self._packer.pack_array_header(len(tree))
            for value in tree:
                yield from self._value(value)
        else:
            yield self._packer.pack(None)

    def _leaf(self, leaf: Leaf) -> Iterator[Any]:
        if leaf.form == NUMBER:
            yield self._packer.pack(self._scalars[leaf.path].value)
            return
        entry = self._entries[leaf.path]
        if leaf.form == PARAMETER:
            yield self._packer.pack_map_header(2) + self._text("id")
            yield self._text(str(_id_of(leaf.path, entry))) + self._text("param")
        tensor = self._target.tensor(entry)
        while (piece := _checked(leaf.path, lambda: next(tensor, None))) is not None:
            yield piece


def _id_of(path: str, entry: RecordEntry) -> ParamId:
    """The entry's id, or one that is always the same for a path."""
    if entry.id is not None:
        return entry.id
    return ParamId(int.from_bytes(hashlib.sha256(path.encode("utf-8", "surrogatepass")).digest()[:8], "little"))


def _joined(pieces: Iterator[Any]) -> Iterator[Any]:
    """The same bytes with small pieces joined, since each is a call of the system."""
    small = bytearray()
    for piece in pieces:
        if len(piece) < _SMALL:
            small += piece
        if small and (len(piece) >= _SMALL or len(small) >= _JOINED):
            yield small
            small = bytearray()
        if len(piece) >= _SMALL:
            yield piece
        del piece
    if small:
        yield small


def _compressed(pieces: Iterator[Any]) -> Iterator[bytes]:
    """As gzip, with no name and time 0, so that the same record has the same bytes."""
    compressor = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    for piece in pieces:
        made = compressor.compress(piece)
        del piece
        if made:
            yield made
    yield compressor.flush()
