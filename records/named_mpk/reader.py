"""Opening a named-MessagePack file: its structure is read and checked whole, its tensors are only located."""

import json
import re
from typing import Any, Final

from records.burnpack.wire import Flaw
from records.entry import Contents, RecordEntry
from records.errors import RecordFormatError
from records.param_id import ParamId
from records.storage import Limits

from .item import KIND_KEY, OUTLINE_KEY, Item, Place
from .json_text import read_json
from .message_pack import read_message_pack
from .settings import SHORT_IDS, TEXT_IDS, Header, header_of, refuse_id
from .tensors import described, tensor_source
from .tree import Store, Tree

START_NBYTES: Final = 256  # what `begins_named_mpk` asks for

_MESSAGE_PACK: Final = re.compile(rb"(?:[\x81-\x8f]|\xde..|\xdf....)[\xa0-\xbf\xd9-\xdb]", re.DOTALL)
_JSON: Final = re.compile(rb'\s*\{\s*"(?:metadata|item|_b)"')
_BINCODE: Final = re.compile(rb"(?:\x03f32|\x03f64|\x13half).{0,92}BinFileRecorder", re.DOTALL)
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_SHORT_ID_LENGTH: Final = 10
_ID_LENGTH: Final = 13


def begins_named_mpk(start: bytes) -> bool:
    """Whether a file that starts so is one of Burn's recorders: MessagePack, JSON, or bincode, which is refused."""
    return any(form.match(start) for form in (_MESSAGE_PACK, _JSON, _BINCODE))


def read_named_mpk(store: Store, limits: Limits) -> Contents:
    """The entries of a file, in its order, which is the modules' (N9); no tensor is read.

    An entry has the dtype of the file. Up to Burn 0.13 that is not always
    known; then the parameter that takes it decides, and without one it is a
    float (N11). Ids that are UUIDs are no ids (N7). Quantized tensors with a
    zero point, which Burn had up to 0.16, become float32 when they are read.

    The metadata has Burn's five texts, what kind of record it is, and JSON of
    what stands where, by which a file that is written again has its containers
    and its fields without state.

    Raises:
        RecordFormatError: anything is wrong with it. It names the file, and the offset or the path.
        RecordIoError: the file is closed.
    """
    try:
        start = store.read(0, START_NBYTES)
        if _BINCODE.match(start):
            raise Flaw(
                "a record of Burn's BinFileRecorder, which stores no names; "
                "load it in the Burn that wrote it, and save it with a NamedMpkFileRecorder"
            )
        top = read_json(store, limits) if _JSON.match(start) else read_message_pack(store, limits)
        header, item = _parts(top)
        if len(item.places) > limits.max_tensors:
            raise Flaw(f"{len(item.places)} tensors, the limit is {limits.max_tensors}; give max_tensors to raise it")
        entries = [(place.path, _entry(store, place, header, limits)) for place in item.places]
    except Flaw as flaw:
        raise RecordFormatError(f"{store.name}: {flaw}") from None
    metadata: dict[str, Any] = {**header.texts, KIND_KEY: item.kind, OUTLINE_KEY: json.dumps(item.outline)}
    return Contents(entries, item.scalars, metadata)


def _parts(top: Tree) -> tuple[Header, Item]:
    """N1."""
    if not isinstance(top, dict):
        raise Flaw("no record of Burn: the value is no map")
    for key in ("metadata", "item"):
        if key not in top:
            raise Flaw(f"no record of Burn: the map has no key {key!r}")
    return header_of(top["metadata"]), Item(top["item"])


def _entry(store: Store, place: Place, header: Header, limits: Limits) -> RecordEntry:
    what = described(store, place.path)
    try:
        id = None if place.id is None else _id(place.id, header)
        source, form = tensor_source(store, place.path, place.tensor, header, limits)
        return RecordEntry(source, id, form=form)
    except Flaw as flaw:
        raise RecordFormatError(f"{what}: {flaw}") from None


def _id(text: str, header: Header) -> ParamId | None:
    """The id that a text means; None where it means none (N7)."""
    if _UUID.fullmatch(text):
        return None
    is_any_text = header.version <= SHORT_IDS
    if header.version <= TEXT_IDS:
        is_id = len(text) == _ID_LENGTH
    elif is_any_text:
        is_id = len(text) in (_SHORT_ID_LENGTH, _ID_LENGTH)
    else:
        is_id = True
    try:
        return ParamId.parse(text) if is_id else None
    except RecordFormatError:
        if is_any_text:
            return None
        raise refuse_id(text) from None
