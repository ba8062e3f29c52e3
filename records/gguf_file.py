"""Reading GGUF, the format of llama.cpp: versions 2 and 3, little-endian.

The library `gguf` knows the element types and undoes their quantization. The
header is walked here: the library's reader takes two seconds for the
vocabulary of a small model, and trusts the counts that a file declares.
"""

import math
import struct
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from engine import Device, Tensor
from engine.dtype import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType

from .entry import Contents, RecordEntry, nbytes_of, shape_overflows
from .errors import RecordFormatError
from .optional import optional_package
from .shown import shown
from .storage import Extent, Limits, Storage

_PLAIN: Final[dict[str, DType]] = {
    "F64": FLOAT64,
    "F32": FLOAT32,
    "F16": FLOAT16,
    "BF16": BFLOAT16,
    **{f"I{bits}": np.dtype(f"int{bits}") for bits in (64, 32, 16, 8)},
}
_NUMBERS: Final = {  # type of a value in the header -> its NumPy dtype
    0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8", 12: "f8",
}  # fmt: skip
_TEXT, _ARRAY = 8, 9
_MAX_AXES: Final = 4
_CHUNK: Final = 2**17  # elements dequantized at once, so that they stay in the cache
_BYTE: Final = np.dtype(np.uint8)
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class _Info(NamedTuple):
    """One tensor of the header; extents in NumPy's order, the offset relative to the data section."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


@final
class _Header:
    """A cursor over the header. Every number in it is checked against the bytes that are there before it is used."""

    def __init__(self, storage: Storage, limits: Limits) -> None:
        self._name = storage.name
        self._view = storage.view("the header")
        self._end = min(storage.nbytes, limits.max_metadata_bytes)
        self._max_depth = limits.max_depth
        self.offset = 0

    def fail(self, what: str) -> RecordFormatError:
        return RecordFormatError(f"{self._name}: offset {self.offset}: {what}")

    def _take(self, nbytes: int, what: str) -> int:
        """The offset of the next `nbytes` bytes, and move behind them."""
        if nbytes > self._end - self.offset:
            raise self.fail(
                f"{what} of {nbytes} bytes, but the header ends at {self._end}, the file's end or the limit"
            )
        self.offset += nbytes
        return self.offset - nbytes

    def u32(self) -> int:
        return _U32.unpack_from(self._view, self._take(4, "a number"))[0]

    def u64(self) -> int:
        return _U64.unpack_from(self._view, self._take(8, "a number"))[0]

    def text(self) -> str:
        nbytes = self.u64()
        start = self._take(nbytes, "a text")
        try:
            return str(self._view[start : start + nbytes], "utf-8")
        except UnicodeDecodeError:
            raise self.fail("a text is not UTF-8") from None

    def value(self, type: int, depth: int = 0) -> Any:
        """A value of the metadata: a number, a truth value, a text, or a tuple of them."""
        if type == _TEXT:
            return self.text()
        if type == _ARRAY:
            return self._array(depth + 1)
        return self._numbers(type, 1)[0]

    def _numbers(self, type: int, count: int) -> tuple[Any, ...]:
        if type not in _NUMBERS:
            raise self.fail(f"{type} is no type of a value")
        dtype = np.dtype(_NUMBERS[type])
        start = self._take(count * dtype.itemsize, "numbers")
        return tuple(np.frombuffer(self._view, dtype, count, start).tolist())

    def _array(self, depth: int) -> tuple[Any, ...]:
        if depth > self._max_depth:
            raise self.fail(f"arrays nest deeper than the limit of {self._max_depth}")
        type = self.u32()
        if type == _TEXT:
            return tuple(self.text() for _ in range(self.u64()))
        if type == _ARRAY:
            return tuple(self._array(depth + 1) for _ in range(self.u64()))
        return self._numbers(type, self.u64())

    def tensor(self) -> _Info:
        name = self.text()
        rank = self.u32()
        if rank > _MAX_AXES:
            raise self.fail(f"tensor {shown(name)} has {rank} axes; there can be {_MAX_AXES}")
        extents = [self.u64() for _ in range(rank)]
        return _Info(name, tuple(reversed(extents)), self.u32(), self.u64())


def read_gguf(storage: Storage, limits: Limits) -> Contents:
    """The entries of a GGUF file and its metadata: texts, numbers, truth values, and tuples of them. No tensor is read.

    F32, F16, BF16, F64 and integer tensors are as they are, quantized ones
    become float32 when they are read. Shapes are in NumPy's order: a linear
    layer's weight is [out, in]. Entries have no ids.

    Raises:
        RecordFormatError: it is none, or beyond a limit; the message says where.
        RecordError: the package `gguf` is not installed.
    """
    library = optional_package("gguf", storage.name)
    header = _Header(storage, limits)
    header.u32()  # the magic, which the caller has seen
    version = header.u32()
    if version not in (2, 3):
        raise header.fail(f"version {version}; versions 2 and 3, little-endian, can be read")
    tensor_count = header.u64()
    if tensor_count > limits.max_tensors:
        raise header.fail(f"{tensor_count} tensors, the limit is {limits.max_tensors}; give max_tensors to raise it")
    metadata: dict[str, Any] = {}
    for _ in range(header.u64()):
        key = header.text()
        if key in metadata:
            raise header.fail(f"the key {shown(key)} is there twice")
        metadata[key] = header.value(header.u32())
    infos = [header.tensor() for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise header.fail(f"general.alignment is {shown(alignment)}, no power of two")
    start = -(-header.offset // alignment) * alignment
    entries = [(info.name, RecordEntry(_source(storage, library, info, start, limits))) for info in infos]
    return Contents(sorted(entries, key=lambda pair: pair[0]), {}, metadata)


def _source(
    storage: Storage, library: Any, info: _Info, start: int, limits: Limits
) -> "_PlainSource | _QuantizedSource":
    """Where a tensor lies, checked against type, limits and file."""
    what = f"{storage.name}: tensor {shown(info.name)}"
    try:
        kind = library.GGMLQuantizationType(info.type)
    except ValueError:
        raise RecordFormatError(f"{what}: element type {info.type} is unknown to the installed package gguf") from None
    block, block_nbytes = library.GGML_QUANT_SIZES[kind]
    if shape_overflows(info.shape):
        raise RecordFormatError(f"{what}: the product of shape {shown(list(info.shape))} overflows")
    row = info.shape[-1] if info.shape else 1
    if row % block:
        raise RecordFormatError(f"{what}: rows of {row} elements are no multiple of {kind.name}'s blocks of {block}")
    nbytes = math.prod(info.shape) // block * block_nbytes
    dtype = _PLAIN.get(kind.name, FLOAT32)
    for size in (nbytes, nbytes_of(dtype, info.shape)):
        if size > limits.max_tensor_bytes:
            raise RecordFormatError(
                f"{what}: {size} bytes, the limit is {limits.max_tensor_bytes}; give max_tensor_bytes to raise it"
            )
    if start + info.offset + nbytes > storage.nbytes:
        raise RecordFormatError(
            f"{what}: it ends at offset {start + info.offset + nbytes}, the file at {storage.nbytes}"
        )
    place = (storage, what, start + info.offset)
    if kind.name in _PLAIN:
        return _PlainSource(*place, dtype, info.shape)
    return _QuantizedSource(*place, info.shape, nbytes, library, kind)


@final
class _PlainSource:
    """A tensor of numbers in a GGUF file."""

    __slots__ = ("_offset", "_storage", "_what", "dtype", "shape")

    def __init__(self, storage: Storage, what: str, offset: int, dtype: DType, shape: tuple[int, ...]) -> None:
        self._storage = storage
        self._what = what
        self._offset = offset
        self.dtype = dtype
        self.shape = shape

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.dtype, self.shape)

    @property
    def extent(self) -> Extent:
        return Extent(self._offset, self._offset + self.nbytes)

    def host(self) -> NDArray[Any]:
        return self._storage.array(self._what, self._offset, self.dtype, self.shape)

    def read(self, device: Device) -> Tensor:
        return Tensor.adopt(self.host(), device)


@final
class _QuantizedSource:
    """A quantized tensor in a GGUF file, which becomes float32 when it is read."""

    __slots__ = ("_kind", "_library", "_offset", "_storage", "_stored_nbytes", "_what", "shape")

    def __init__(
        self,
        storage: Storage,
        what: str,
        offset: int,
        shape: tuple[int, ...],
        stored_nbytes: int,
        library: Any,
        kind: Any,
    ) -> None:
        self._storage = storage
        self._what = what
        self._offset = offset
        self._stored_nbytes = stored_nbytes
        self._library = library
        self._kind = kind
        self.shape = shape

    @property
    def dtype(self) -> DType:
        return FLOAT32

    @property
    def nbytes(self) -> int:
        return nbytes_of(FLOAT32, self.shape)

    @property
    def extent(self) -> Extent:
        return Extent(self._offset, self._offset + self._stored_nbytes)

    def host(self) -> NDArray[Any]:
        block, block_nbytes = self._library.GGML_QUANT_SIZES[self._kind]
        stored = self._storage.array(self._what, self._offset, _BYTE, (self._stored_nbytes,))
        elements = np.empty(math.prod(self.shape), FLOAT32)
        blocks = max(1, _CHUNK // block)
        for first in range(0, len(stored) // block_nbytes, blocks):
            chunk = stored[first * block_nbytes : (first + blocks) * block_nbytes]
            try:
                with np.errstate(all="ignore"):  # of scales that are infinite or NaN, as the numbers then are
                    numbers = self._library.quants.dequantize(chunk.reshape(1, -1), self._kind)
            except NotImplementedError as error:
                raise RecordFormatError(f"{self._what} is {self._kind.name}; gguf cannot dequantize it") from error
            elements[first * block : (first + blocks) * block] = numbers.reshape(-1)
        return elements.reshape(self.shape)

    def read(self, device: Device) -> Tensor:
        return Tensor.adopt(self.host(), device)
