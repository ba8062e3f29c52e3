"""Opening a burnpack file: its header is read and checked whole (R84 to R103a), its tensors are only located."""

import hashlib
import itertools
from typing import Any, Final, final

from numpy.typing import NDArray

from engine import Device, Tensor
from engine.dtype import BOOL, DType
from records.entry import Contents, RecordEntry, checked_bools, nbytes_of
from records.errors import RecordFormatError
from records.quantized_source import BYTE, QuantizedSource
from records.shown import shown
from records.storage import Extent, Limits, Storage

from . import digest, metadata
from .layout import HEADER_NBYTES, MAGIC, VERSION, data_start
from .metadata import Descriptor, Metadata
from .wire import Flaw, Wire

_PIECE: Final = 8 * 2**20


def read_burnpack(storage: Storage, limits: Limits, *, check_data: bool = False) -> Contents:
    """The entries, scalars and metadata of a burnpack file; no tensor is read.

    Args:
        storage: the file.
        limits: what is taken at most.
        check_data: whether to read the whole file and compare it with its digest, if it has one (D1).

    Raises:
        RecordFormatError: anything is wrong with it. It names the file, and the offset or the tensor.
        RecordIoError: the storage is closed.
    """
    try:
        raw = raw_metadata(storage, limits)
        header = metadata.decode(raw, limits)
        start = data_start(len(raw))
        _check_ranges(header.tensors, start, storage.nbytes, limits)
        _check_digests(storage, header, raw, start, check_data)
    except Flaw as flaw:
        raise RecordFormatError(f"{storage.name}: {flaw}") from None
    entries = [(tensor.name, _entry(storage, tensor, start)) for tensor in header.tensors]
    texts = {key: text for key, text in header.texts.items() if key not in (digest.HEADER_KEY, digest.DATA_KEY)}
    return Contents(entries, header.scalars, texts)


def raw_metadata(storage: Storage, limits: Limits) -> bytes:
    """The bytes of the CBOR value, behind the checks of what stands before it (R85 to R88).

    Raises:
        Flaw: one of those fails.
    """
    view = storage.view("the header")
    if storage.nbytes < HEADER_NBYTES:
        raise Flaw(f"{storage.nbytes} bytes; a burnpack file has {HEADER_NBYTES} at least")
    if view[:4] != MAGIC:
        raise Flaw(f"offset 0: the magic is {bytes(view[:4])!r} instead of {MAGIC!r}")
    version = int.from_bytes(view[4:6], "little")
    if version != VERSION:
        raise Flaw(f"offset 4: version {version}; only {VERSION} can be read")
    nbytes = int.from_bytes(view[6:HEADER_NBYTES], "little")
    if nbytes > limits.max_metadata_bytes:
        raise Flaw(
            f"offset 6: {nbytes} bytes of metadata, the limit is {limits.max_metadata_bytes}; "
            "give max_metadata_bytes to raise it"
        )
    if HEADER_NBYTES + nbytes > storage.nbytes:
        raise Flaw(f"offset 6: {nbytes} bytes of metadata, but the file ends after {storage.nbytes - HEADER_NBYTES}")
    return bytes(view[HEADER_NBYTES : HEADER_NBYTES + nbytes])


def _check_ranges(tensors: list[Descriptor], start: int, nbytes: int, limits: Limits) -> None:
    """R78, R96, R97, R100: every tensor is in the file, within its limit, and shares no byte with another."""
    for tensor in tensors:
        if tensor.end - tensor.start > limits.max_tensor_bytes:
            raise Flaw(
                f"tensor {shown(tensor.name)}: {tensor.end - tensor.start} bytes, the limit is "
                f"{limits.max_tensor_bytes}; give max_tensor_bytes to raise it"
            )
        if start + tensor.end > nbytes:
            raise Flaw(f"tensor {shown(tensor.name)}: it ends at offset {start + tensor.end}, the file at {nbytes}")
    filled = sorted((tensor for tensor in tensors if tensor.end > tensor.start), key=lambda tensor: tensor.start)
    for before, after in itertools.pairwise(filled):
        if after.start < before.end:
            raise Flaw(f"tensors {shown(before.name)} and {shown(after.name)} overlap at offset {start + after.start}")


def _check_digests(storage: Storage, header: Metadata, raw: bytes, start: int, check_data: bool) -> None:
    claimed = digest.claimed(header.texts, raw)
    if claimed is None:
        return
    view = storage.view("the header")
    found, _ = digest.header_digest(bytes(view[:start]), claimed)
    if found != claimed[0]:
        raise Flaw(f"the header (offsets 0 to {start}) does not have the digest that {digest.HEADER_KEY} says")
    if check_data:
        sha = hashlib.sha256()
        for offset in range(start, storage.nbytes, _PIECE):
            sha.update(view[offset : offset + _PIECE])
        if sha.hexdigest() != claimed[1]:
            raise Flaw(f"the data (from offset {start} on) does not have the digest that {digest.DATA_KEY} says")


def _entry(storage: Storage, tensor: Descriptor, start: int) -> RecordEntry:
    wire, shape = tensor.wire, tensor.shape
    place = Extent(start + tensor.start, start + tensor.end)
    if isinstance(wire, Wire):
        return RecordEntry(_PlainSource(storage, tensor.name, wire, shape, place.start), tensor.id, form=wire.form)
    what = f"tensor {shown(tensor.name)}"
    nbytes = place.end - place.start

    def stored() -> NDArray[Any]:
        return storage.array(what, place.start, BYTE, (nbytes,))

    return RecordEntry(QuantizedSource(f"{storage.name}: {what}", wire, shape, stored, place), tensor.id)


@final
class _PlainSource:
    """A tensor of a plain dtype in a burnpack file."""

    __slots__ = ("_name", "_offset", "_storage", "_wire", "shape")

    shape: tuple[int, ...]

    def __init__(self, storage: Storage, name: str, wire: Wire, shape: tuple[int, ...], offset: int) -> None:
        self._storage = storage
        self._name = name
        self._wire = wire
        self._offset = offset
        self.shape = shape

    @property
    def dtype(self) -> DType:
        return self._wire.loaded

    @property
    def nbytes(self) -> int:
        return nbytes_of(self._wire.loaded, self.shape)

    @property
    def extent(self) -> Extent:
        return Extent(self._offset, self._offset + nbytes_of(self._wire.stored, self.shape))

    def host(self) -> NDArray[Any]:
        what = f"tensor {shown(self._name)}"
        stored = self._storage.array(what, self._offset, self._wire.stored, self.shape)
        if self._wire.loaded == BOOL:
            return checked_bools(f"{self._storage.name}: {what}", stored)
        return stored

    def read(self, device: Device) -> Tensor:
        return Tensor.adopt(self.host(), device)
