"""From the map that a tensor is in a file to what makes its data (N5, N6, N10, N11)."""

import math
from collections.abc import Callable
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from engine import Device, Tensor
from engine.dtype import BOOL, FLOAT16, FLOAT32, DType, Kind
from records.burnpack.wire import Flaw, Wire
from records.entry import Source, StoredForm, UndecidedSource, checked_bools, nbytes_of, shape_overflows
from records.errors import RecordFormatError
from records.quantized_source import BYTE, QuantizedSource
from records.shown import shown
from records.storage import Limits, Storage

from .dtypes import Affine, element_type
from .settings import Header
from .tree import Blob, Numbers, Store, Tree

_MAX_AXES: Final = 64
_PATTERNS: Final = 2**16  # of half precision


def tensor_source(
    store: Store, path: str, tensor: dict[str, Tree], header: Header, limits: Limits
) -> tuple[Source, StoredForm | None]:
    """What makes the data of a tensor, and the form of its elements; nothing of it is read.

    Args:
        store: the file.
        path: of the tensor, for messages.
        tensor: the map that it is.

    Raises:
        Flaw: dtype, shape and data do not go together.
    """
    shape = _shape(tensor["shape"])
    if "value" in tensor:
        source, form = _of_values(store, path, tensor["value"], shape, header), None
    else:
        source, form = _of_bytes(store, path, tensor, shape)
    if source.nbytes > limits.max_tensor_bytes:
        raise Flaw(f"{source.nbytes} bytes, the limit is {limits.max_tensor_bytes}; give max_tensor_bytes to raise it")
    return source, form


def _shape(extents: Tree) -> tuple[int, ...]:
    if extents == []:
        return ()
    if not isinstance(extents, Numbers) or extents.form != "int" or extents.low < 0 or extents.count > _MAX_AXES:
        raise Flaw("its shape is no array of at most 64 unsigned integers")
    shape = tuple(extents.read().tolist())
    if shape_overflows(shape):
        raise Flaw(f"the product of shape {shown(list(shape))} overflows")
    return shape


# Bytes with a dtype, from 0.14 on


def _of_bytes(
    store: Store, path: str, tensor: dict[str, Tree], shape: tuple[int, ...]
) -> tuple[Source, StoredForm | None]:
    what = f"tensor {shown(path)}"
    blob = _blob(store.name, tensor["bytes"])
    found = element_type(tensor["dtype"], shape, blob.nbytes)
    if isinstance(found, Wire):
        return _PlainSource(what, blob, found, shape), found.form

    def stored() -> NDArray[Any]:
        return blob.store.array(what, blob.offset, BYTE, (blob.nbytes,))

    if isinstance(found, Affine):
        return _MadeSource(store, path, FLOAT32, shape, lambda: found.numbers(stored(), shape)), None
    described_as = described(store, path)
    return QuantizedSource(described_as, found.scheme, shape, lambda: found.arranged(stored(), shape)), None


def _blob(file: str, data: Tree) -> Blob:
    """The bytes of a tensor, which JSON has as numbers."""
    if isinstance(data, Blob):
        return data
    numbers = b""
    if isinstance(data, Numbers):
        if data.form != "int" or data.low < 0 or data.high > 255:
            raise Flaw("its bytes are no binary and no array of numbers from 0 to 255")
        numbers = data.read().astype(BYTE).tobytes()
    return Blob(Storage(file, numbers), 0, len(numbers))


@final
class _PlainSource:
    """A tensor of a plain dtype, whose bytes lie in the file."""

    __slots__ = ("_blob", "_what", "_wire", "shape")

    shape: tuple[int, ...]

    def __init__(self, what: str, blob: Blob, wire: Wire, shape: tuple[int, ...]) -> None:
        self._what = what
        self._blob = blob
        self._wire = wire
        self.shape = shape

    @property
    def dtype(self) -> DType:
        return self._wire.loaded

    @property
    def nbytes(self) -> int:
        return nbytes_of(self._wire.loaded, self.shape)

    def host(self) -> NDArray[Any]:
        stored = self._blob.store.array(self._what, self._blob.offset, self._wire.stored, self.shape)
        return checked_bools(f"{self._blob.store.name}: {self._what}", stored) if self._wire.loaded == BOOL else stored

    def read(self, device: Device) -> Tensor:
        return Tensor.adopt(self.host(), device)


# Numbers without a dtype, up to 0.13


def _of_values(store: Store, path: str, value: Tree, shape: tuple[int, ...], header: Header) -> Source:
    count = value.count if isinstance(value, Numbers) else 0
    if count != math.prod(shape):
        raise Flaw(f"{count} numbers; shape {list(shape)} takes {math.prod(shape)}")
    readings = _readings(value, header)
    sources: dict[Kind, Source] = {
        kind: _MadeSource(store, path, dtype, shape, make) for kind, (dtype, make) in readings.items()
    }
    return next(iter(sources.values())) if len(sources) == 1 else UndecidedSource(sources)


_Made = tuple[DType, Callable[[], NDArray[Any]]]


def _readings(value: Tree, header: Header) -> dict[Kind, _Made]:
    """What the numbers can be, the likeliest first (N11)."""
    if not isinstance(value, Numbers):
        dtypes: dict[Kind, DType] = {"float": header.float_dtype, "int": header.int_dtype, "bool": BOOL}
        return {kind: (dtype, lambda dtype=dtype: np.empty(0, dtype)) for kind, dtype in dtypes.items()}
    if value.form == "bool":
        return {"bool": (BOOL, value.read)}
    if value.form != "int":
        dtype = {"float32": FLOAT32, "float64": np.dtype(np.float64)}.get(value.form, header.float_dtype)
        floats: dict[Kind, _Made] = {"float": (dtype, lambda: value.read().astype(dtype, copy=False))}
        if header.ints_are_floats:
            floats["int"] = header.int_dtype, lambda: _whole(value.read(), header.int_dtype)
        return floats
    made: dict[Kind, _Made] = {}
    if header.float_dtype == FLOAT16 and value.low >= 0 and value.high < _PATTERNS:
        made["float"] = FLOAT16, lambda: value.read().astype(np.uint16).view(FLOAT16)
    range_ = np.iinfo(header.int_dtype)
    if range_.min <= value.low and value.high <= range_.max:
        made["int"] = header.int_dtype, lambda: value.read().astype(header.int_dtype)
    if not made:
        raise Flaw(f"integers from {value.low} to {value.high}, which {header.int_dtype} does not hold")
    return made


def _whole(floats: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Integers that stand as floats.

    Raises:
        Flaw: there is one that is no integer, or too large.
    """
    range_ = np.iinfo(dtype)
    wide = floats.astype(np.float64)
    wrong = ~((wide >= range_.min) & (wide <= range_.max) & (wide == np.trunc(wide)))
    if wrong.any():
        raise Flaw(f"element {int(np.flatnonzero(wrong)[0])} is {wide[wrong][0]}, no integer of {dtype}")
    return wide.astype(dtype)


@final
class _MadeSource:
    """A tensor that is made of what the file holds."""

    __slots__ = ("_make", "_path", "_store", "dtype", "shape")

    def __init__(
        self, store: Store, path: str, dtype: DType, shape: tuple[int, ...], make: Callable[[], NDArray[Any]]
    ) -> None:
        self._store = store
        self._path = path
        self._make = make
        self.dtype = dtype
        self.shape = shape

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.dtype, self.shape)

    def host(self) -> NDArray[Any]:
        self._store.array(f"tensor {shown(self._path)}", 0, BYTE, (0,))  # which refuses where the file is closed
        try:
            made = self._make().reshape(self.shape)
        except Flaw as flaw:
            raise RecordFormatError(f"{described(self._store, self._path)}: {flaw}") from None
        made.setflags(write=False)
        return made

    def read(self, device: Device) -> Tensor:
        return Tensor.adopt(self.host(), device)


def described(store: Store, path: str) -> str:
    """What errors call a tensor of a file."""
    return f"{store.name}: tensor {shown(path)}"
