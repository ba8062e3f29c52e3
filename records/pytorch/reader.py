"""From a file of PyTorch to the entries of a record: its pickle is followed, its tensors are only located."""

import itertools
import math
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from engine import Device, Tensor
from engine.dtype import BOOL, DType
from records.burnpack.wire import Flaw
from records.entry import (
    Contents,
    ForeignDType,
    ForeignSource,
    RecordEntry,
    Source,
    checked_bools,
    nbytes_of,
    shape_overflows,
)
from records.errors import RecordFormatError
from records.scalar import Scalar
from records.shown import shown
from records.storage import Extent, Limits, Storage

from .archive import Archive, Window
from .dtypes import DTYPES, STORAGES, ElementType
from .pickled import Name, StorageId, TensorView, Value, read_pickle

ZIP_MAGIC: Final = b"PK\x03\x04"
_LEGACY_NUMBER: Final = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # the first pickle of a file of before 1.6, an integer
_FRAMED: Final = b"\x95" + len(_LEGACY_NUMBER).to_bytes(8, "little")  # stands before it from protocol 4 on
LEGACY_MAGICS: Final = (
    *(bytes([0x80, protocol]) + _LEGACY_NUMBER for protocol in (2, 3)),
    *(bytes([0x80, protocol]) + _FRAMED + _LEGACY_NUMBER for protocol in (4, 5)),
)
"""How a file of before 1.6 begins, by the protocol of its pickles."""
WHOLE: Final = "tensor"  # the path where a file is one tensor and nothing else

_LEGACY_PROTOCOL: Final = 1001
_COUNT: Final = np.dtype("<i8")  # stands before each storage of such a file
_NODES_PER_TENSOR: Final = 10  # values in dicts and lists, gone through for each tensor that the limit allows


def read_pytorch(storage: Storage, limits: Limits) -> Contents:
    """The entries of a file that ``torch.save`` wrote, in its order; no tensor is read. Entries have no ids.

    A state dict's keys are the paths. Dicts and lists in it are gone through,
    as those of a training run's checkpoint: the names of what lies in them are
    joined by dots. Numbers become scalars, texts metadata, both by their path;
    None and bytes are left out. Tensors that share memory become entries of
    their own over it.

    Raises:
        RecordFormatError: anything is wrong with it, or it holds what no state dict needs; that is named, and
            nothing of it is run.
        RecordIoError: the storage is closed.
    """
    try:
        value, place = _opened(storage, limits)
        tensors, scalars, texts = _Walk(limits).through(value)
        places = place(list(dict.fromkeys(view.storage for _, view in tensors)))
        _check_places(places)
        return Contents(
            [(path, RecordEntry(_source(storage, path, view, places, limits))) for path, view in tensors],
            scalars,
            texts,
        )
    except Flaw as flaw:
        raise RecordFormatError(f"{storage.name}: {flaw}") from None


_Place = Callable[[list[StorageId]], dict[StorageId, Extent]]


def _opened(storage: Storage, limits: Limits) -> tuple[Value, _Place]:
    """The value of the pickle, and what tells where the storages lie."""
    if storage.read(0, len(ZIP_MAGIC)) != ZIP_MAGIC:
        return _legacy(storage, limits)
    archive = Archive(storage, limits)
    start, end = archive.pickle
    if end - start > limits.max_metadata_bytes:
        raise Flaw(
            f"a pickle of {end - start} bytes, the limit is {limits.max_metadata_bytes}; give max_metadata_bytes"
        )
    value = read_pickle(BytesIO(storage.read(start, end - start)), limits, start)
    return value, lambda ids: {id: archive.storage_of(id.key) for id in ids}


def _legacy(storage: Storage, limits: Limits) -> tuple[Value, _Place]:
    """The same of a file before PyTorch 1.6, whose storages follow the pickles in the order of a list of keys."""
    stream = Window(storage, limits.max_metadata_bytes, limits.max_metadata_bytes)
    read_pickle(stream, limits)  # the magic number, by which the file was told
    protocol = read_pickle(stream, limits)
    if protocol != _LEGACY_PROTOCOL:
        raise Flaw(f"protocol {shown(protocol)} of PyTorch's files before 1.6; only {_LEGACY_PROTOCOL} can be read")
    system = read_pickle(stream, limits)
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise Flaw("only files of little-endian machines can be read")
    value = read_pickle(stream, limits)
    keys = read_pickle(stream, limits)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise Flaw("the keys of its storages are no list of texts")
    start = stream.tell()
    return value, lambda ids: _legacy_extents(storage, keys, start, ids)


def _legacy_extents(storage: Storage, keys: list[str], start: int, ids: list[StorageId]) -> dict[StorageId, Extent]:
    """Where storages lie, each behind its number of elements; how long an element is tell the tensors in them."""
    known = {id.key: id for id in ids}
    extents: dict[StorageId, Extent] = {}
    for key in keys:
        head = storage.read(start, _COUNT.itemsize)
        if len(head) < _COUNT.itemsize:
            raise Flaw(f"offset {start}: the file ends before storage {shown(key)}")
        if key not in known:
            raise Flaw(f"offset {start}: no tensor lies in storage {shown(key)}, so its length is unknown")
        begin = start + _COUNT.itemsize
        start = begin + int.from_bytes(head, "little") * _itemsize(known[key])
        if start > storage.nbytes:
            raise Flaw(f"storage {shown(key)} ends at offset {start}, the file at {storage.nbytes}")
        extents[known[key]] = Extent(begin, start)
    for id in ids:
        if id not in extents:
            raise Flaw(f"storage {shown(id.key)} is missing, or there twice")
    return extents


def _itemsize(id: StorageId) -> int:
    """Bytes of an element of a storage; 1 where it has no type."""
    element = STORAGES[id.type]
    return 1 if element is None else element.itemsize


def _element_type(path: str, view: TensorView) -> ElementType:
    element = STORAGES[view.storage.type] if view.dtype is None else DTYPES[view.dtype]
    if element is None:
        raise Flaw(f"tensor {shown(path)} has no dtype")
    return element


def _check_places(places: dict[StorageId, Extent]) -> None:
    """Every storage is as long as it says, and shares no byte with another (R98, R100)."""
    for id, extent in places.items():
        expected = id.length * _itemsize(id)
        if extent.end - extent.start != expected:
            raise Flaw(
                f"storage {shown(id.key)} has {extent.end - extent.start} bytes; {id.length} elements take {expected}"
            )
    filled = sorted((extent, id) for id, extent in places.items() if extent.end > extent.start)
    for (before, one), (after, other) in itertools.pairwise(filled):
        if after.start < before.end:
            raise Flaw(f"storages {shown(one.key)} and {shown(other.key)} overlap at offset {after.start}")


@final
class _Walk:
    """What lies in the dicts and lists of a pickle, by path."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._nodes = 0
        self._tensors: list[tuple[str, TensorView]] = []
        self._scalars: dict[str, Scalar] = {}
        self._texts: dict[str, str] = {}

    def through(self, value: Value) -> tuple[list[tuple[str, TensorView]], dict[str, Scalar], dict[str, str]]:
        """Tensors, scalars and texts."""
        self._visit(value, "", 0)
        return self._tensors, self._scalars, self._texts

    def _visit(self, value: Value, path: str, depth: int) -> None:
        self._nodes += 1
        if self._nodes > self._limits.max_tensors * _NODES_PER_TENSOR:
            raise Flaw(
                f"more values than {self._limits.max_tensors} tensors have beside them; give max_tensors to raise it"
            )
        if depth > self._limits.max_depth:
            raise Flaw(f"{shown(path)}: dicts and lists nest deeper than the limit of {self._limits.max_depth}")
        if isinstance(value, TensorView):
            if len(self._tensors) == self._limits.max_tensors:
                raise Flaw(f"more tensors than the limit of {self._limits.max_tensors}; give max_tensors to raise it")
            self._tensors.append((path or WHOLE, value))
        elif isinstance(value, dict):
            for key, inner in value.items():
                self._visit(inner, f"{path}.{key}" if path else str(key), depth + 1)
        elif isinstance(value, (bool, int, float)):
            self._take(self._scalars, path, _scalar(path, value))
        elif isinstance(value, (str, Name)):
            self._take(self._texts, path, value.text if isinstance(value, Name) else value)
        elif isinstance(value, StorageId):
            raise Flaw(f"{shown(path)} is a storage, not a tensor")
        elif isinstance(value, (list, tuple)):
            for index, inner in enumerate(value):
                self._visit(inner, f"{path}.{index}" if path else str(index), depth + 1)

    def _take(self, taken: dict[str, Any], path: str, value: Any) -> None:
        if (path or WHOLE) in taken:
            raise Flaw(f"two values have the path {shown(path)}")
        taken[path or WHOLE] = value


def _scalar(path: str, number: int | float) -> Scalar:
    if type(number) is int and not -(2**63) <= number < 2**64:
        raise Flaw(f"{shown(path)} is an integer of {number.bit_length()} bits; a record holds 64")
    return Scalar.of(number)


def _source(storage: Storage, path: str, view: TensorView, places: dict[StorageId, Extent], limits: Limits) -> Source:
    """What makes a tensor; checked against its storage and the limits."""
    what = f"{storage.name}: tensor {shown(path)}"
    shape, strides = view.shape, view.strides
    if shape_overflows(shape):
        raise Flaw(f"tensor {shown(path)}: the product of shape {shown(list(shape))} overflows")
    element = _element_type(path, view)
    nbytes = math.prod(shape) * element.itemsize
    if nbytes > limits.max_tensor_bytes:
        raise Flaw(
            f"tensor {shown(path)}: {nbytes} bytes, the limit is {limits.max_tensor_bytes}; "
            "give max_tensor_bytes to raise it"
        )
    extent = places[view.storage]
    span = _span(shape, strides)
    if span and (view.offset + span) * element.itemsize > extent.end - extent.start:
        raise Flaw(
            f"tensor {shown(path)}: shape {list(shape)} with strides {list(strides)} from element {view.offset} on "
            f"ends behind its storage, which has {extent.end - extent.start} bytes"
        )
    if element.dtype is None:
        return ForeignSource(what, ForeignDType(element.name), shape, nbytes, extent)
    return _ViewSource(storage, what, extent, extent.start + view.offset * element.itemsize, element.dtype, view)


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements of its storage a tensor reaches over."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


@final
class _ViewSource:
    """A tensor in a file of PyTorch; a view of its storage, in any memory order."""

    __slots__ = ("_offset", "_storage", "_strides", "_what", "dtype", "extent", "shape")

    def __init__(
        self, storage: Storage, what: str, extent: Extent, offset: int, dtype: DType, view: TensorView
    ) -> None:
        self._storage = storage
        self._what = what
        self._offset = offset
        self._strides = view.strides
        self.extent = extent  # of the storage, which other tensors may lie in too
        self.dtype = dtype
        self.shape = view.shape

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.dtype, self.shape)

    def host(self) -> NDArray[Any]:
        stored = self._storage.array(self._what, self._offset, self.dtype, (_span(self.shape, self._strides),))
        if self.dtype == BOOL:
            stored = checked_bools(self._what, stored)
        if 0 in self.shape:
            return stored.reshape(self.shape)
        strides = tuple(stride * self.dtype.itemsize for stride in self._strides)
        return as_strided(stored, self.shape, strides, writeable=False)

    def read(self, device: Device) -> Tensor:
        return Tensor.adopt(self.host(), device)
