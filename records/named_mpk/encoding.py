"""From a tensor to MessagePack for one version of Burn: what its dtype is called, how its data lie (N15 to N20)."""

import math
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from engine import QuantScheme
from engine.dtype import BOOL, FLOAT32, FLOAT64, FLOATS
from records.burnpack.wire import Flaw, Wire, stored_nbytes, wire_of
from records.burnpack.writer import host_of, pieces, stored_pieces
from records.entry import ForeignDType, RecordEntry

from .quantized import quantized_form, written_scheme
from .settings import FULL, HALF, Precision, Version

_UINT16: Final = np.dtype(np.uint16)
_WITH_DTYPES: Final = (0, 14)  # the versions from which on
_WITH_UINT16: Final = (0, 16)
_WITH_FLEX32: Final = (0, 17)
_WITH_KINDS_OF_BOOL: Final = (0, 21)
_WITH_INTEGERS: Final = (0, 11)
_CHUNK: Final = 2**16
_MAX_LENGTH: Final = 2**32 - 1  # of a MessagePack binary or array
_FLOAT_ITEMS: Final = {
    FLOAT32: (0xCA, np.dtype([("head", "u1"), ("number", ">f4")])),
    FLOAT64: (0xCB, np.dtype([("head", "u1"), ("number", ">f8")])),
}


class Target(NamedTuple):
    """For which version of Burn, and with which precision setting."""

    version: Version
    precision: Precision

    def check(self, entry: RecordEntry) -> None:
        """Refuse an entry that such a file cannot hold, as far as can be told without its data.

        Raises:
            Flaw: it says what is wrong, and what to do about it.
        """
        dtype, name = entry.dtype, f"Burn {self.version[0]}.{self.version[1]}"
        if isinstance(dtype, ForeignDType):
            raise Flaw(f"a named-MessagePack file has no dtype {dtype}")
        if isinstance(dtype, QuantScheme):
            self._check_length(stored_nbytes(written_scheme(dtype, self.version), entry.shape))
            return
        if self.version < _WITH_INTEGERS and dtype not in FLOATS:
            raise Flaw(f"{name} has no parameters of {dtype}; they came with 0.11")
        if _WITH_DTYPES <= self.version < _WITH_UINT16 and dtype == _UINT16:
            raise Flaw(f"{name} has no dtype uint16; it came with 0.16")
        has_dtypes = self.version >= _WITH_DTYPES
        self._check_length(stored_nbytes(self._wire(entry), entry.shape) if has_dtypes else math.prod(entry.shape))

    def _check_length(self, length: int) -> None:
        if length > _MAX_LENGTH:
            raise Flaw(f"{length} bytes or numbers; MessagePack takes {_MAX_LENGTH} at most")

    def tensor(self, entry: RecordEntry) -> Iterator[Any]:
        """The bytes of the map that a tensor is, in pieces.

        Raises:
            Flaw: its data is not what it announced, or not to be had in this version.
        """
        array, shape = host_of(entry), _packed(list(entry.shape))
        if isinstance(entry.dtype, QuantScheme):
            arrays, name = quantized_form(array, entry.shape, entry.dtype, self.version)
            yield b"\x83" + _packed("bytes") + _binary_head(sum(part.nbytes for part in arrays))
            for part in arrays:
                yield from pieces(part)
            yield _packed("shape") + shape + _packed("dtype") + _packed(name)
        elif self.version >= _WITH_DTYPES:
            wire = self._wire(entry)
            yield b"\x83" + _packed("bytes") + _binary_head(stored_nbytes(wire, entry.shape))
            yield from stored_pieces(wire, array)
            name = "Bool" if wire.loaded == BOOL and self.version < _WITH_KINDS_OF_BOOL else wire.cbor
            yield _packed("shape") + shape + _packed("dtype") + _packed(name)
        else:
            yield b"\x82" + _packed("value") + _array_head(array.size)
            yield from self._values(np.ascontiguousarray(array).reshape(-1))
            yield _packed("shape") + shape

    def _wire(self, entry: RecordEntry) -> Wire:
        """How a plain dtype is named; in the entry's form where the version has it (N5)."""
        first = _WITH_FLEX32 if entry.form == "Flex32" else _WITH_KINDS_OF_BOOL
        wire = wire_of(entry.dtype, entry.form if self.version >= first else None)
        assert isinstance(wire, Wire), "schemes are written in another way"
        return wire

    def _values(self, numbers: NDArray[Any]) -> Iterator[bytes]:
        """Numbers as they stand before 0.14 (N6)."""
        if numbers.dtype == BOOL:
            yield np.where(numbers, np.uint8(0xC3), np.uint8(0xC2)).tobytes()
            return
        if numbers.dtype not in FLOATS:
            numbers = self._integers(numbers)
        elif self.precision is HALF:
            numbers = numbers.view(_UINT16)
        else:
            numbers = numbers.astype(self.precision.float_dtype, copy=False)
        for first in range(0, numbers.size, _CHUNK):
            chunk = numbers[first : first + _CHUNK]
            if numbers.dtype in _FLOAT_ITEMS:
                head, dtype = _FLOAT_ITEMS[numbers.dtype]
                items = np.empty(chunk.size, dtype)
                items["head"], items["number"] = head, chunk
                yield items.tobytes()
            else:
                yield _packed(chunk.tolist())[len(_array_head(chunk.size)) :]

    def _integers(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Integers as they stand before 0.14; in 0.11 in full precision these are float32."""
        range_ = np.iinfo(self.precision.int_dtype)
        if numbers.size and (int(numbers.min()) < range_.min or int(numbers.max()) > range_.max):
            raise Flaw(
                f"integers from {numbers.min()} to {numbers.max()}; with {self.precision.settings} they are "
                f"{self.precision.int_dtype}"
            )
        if self.precision is not FULL or self.version != _WITH_INTEGERS:
            return numbers
        floats = numbers.astype(FLOAT32)
        if (floats.astype(np.float64) != numbers.astype(np.float64)).any():
            raise Flaw("Burn 0.11 stores integers as float32 in full precision, which does not hold all of these")
        return floats


def _binary_head(nbytes: int) -> bytes:
    """What stands before the bytes of a binary; the library writes it only along with them."""
    if nbytes < 2**8:
        return struct.pack(">BB", 0xC4, nbytes)
    return struct.pack(">BH", 0xC5, nbytes) if nbytes < 2**16 else struct.pack(">BI", 0xC6, nbytes)


def _array_head(count: int) -> bytes:
    """What stands before the items of an array."""
    packer: Any = msgpack.Packer()
    return packer.pack_array_header(count)


def _packed(value: Any) -> bytes:
    packer: Any = msgpack.Packer(use_single_float=True)  # which the scale of 0.14 and 0.15 is
    return packer.pack(value)
