"""Where the bytes of a record lie: a file, mapped into memory, or bytes that are in memory already.

Opening reads nothing but what it is asked for; arrays of a file are read-only
views of the mapping, which stays valid for them after the file is closed (D11).
Formats are little-endian, and so is every machine that this runs on.
"""

import math
import mmap
import stat
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from engine.dtype import DType

from .errors import RecordError, RecordFormatError, RecordIoError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a reader takes at most; the defaults are Burn's (R76 to R80)."""

    max_metadata_bytes: int = 100 * 2**20
    max_tensors: int = 100_000
    max_tensor_bytes: int = 10 * 2**30
    max_depth: int = 128
    max_file_bytes: int = 500 * 2**30
    max_unpacked_bytes: int = 16 * 2**30  # of a gzip file, which Burn does not bound

    def __post_init__(self) -> None:
        for field in fields(self):
            limit = getattr(self, field.name)
            if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
                raise RecordError(f"{field.name} is {limit!r}; limits are whole numbers, 0 or more")


LIMITS: Final = Limits()


class Extent(NamedTuple):
    """Bytes of a file, from `start` to `end`."""

    start: int
    end: int


@final
class Storage:
    """The bytes of one record, and the name that errors call them by. Arrays that were taken outlive its closing."""

    __slots__ = ("_buffer", "_is_mapped", "name", "nbytes")

    name: str
    nbytes: int
    _buffer: Any
    _is_mapped: bool

    def __init__(self, name: str, buffer: bytes | mmap.mmap) -> None:
        self.name = name
        self.nbytes = len(buffer)
        self._buffer = buffer
        self._is_mapped = isinstance(buffer, mmap.mmap)

    @classmethod
    def map(cls, file: Path, limits: Limits) -> "Storage":
        """A file, mapped; nothing of it is read yet.

        Raises:
            RecordIoError: it is missing, no regular file, or cannot be opened.
            RecordFormatError: it is empty, or larger than the limit.
        """
        try:
            status = file.stat()
            if not stat.S_ISREG(status.st_mode):
                raise RecordIoError(f"{file}: {'a directory' if file.is_dir() else 'not a regular file'}, so no record")
            with file.open("rb", buffering=0) as opened:
                nbytes = opened.seek(0, 2)
                if nbytes == 0:
                    raise RecordFormatError(f"{file}: the file is empty")
                if nbytes > limits.max_file_bytes:
                    raise RecordFormatError(
                        f"{file}: {nbytes} bytes, the limit is {limits.max_file_bytes}; give max_file_bytes to raise it"
                    )
                buffer = mmap.mmap(opened.fileno(), nbytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            if isinstance(error, (RecordIoError, RecordFormatError)):
                raise
            raise RecordIoError.of(f"{file}: cannot be opened", error) from error
        return cls(str(file), buffer)

    def close(self) -> None:
        """Let go of the bytes. The mapping itself goes when the last array over it does."""
        self._buffer = None

    def view(self, what: str) -> memoryview:
        """All bytes, read-only.

        Args:
            what: what they are wanted for, for the message.

        Raises:
            RecordIoError: it is closed.
        """
        if self._buffer is None:
            raise RecordIoError(f"{self.name}: {what} was not read before the file was closed; open it again")
        return memoryview(self._buffer)

    def read(self, offset: int, nbytes: int) -> bytes:
        """The bytes from `offset` on, fewer at the end.

        Raises:
            RecordIoError: the storage is closed.
        """
        return bytes(self.view(f"offset {offset}")[offset : offset + nbytes])

    def reaches(self, end: int) -> bool:
        """Whether there are so many bytes."""
        return end <= self.nbytes

    def array(self, what: str, offset: int, dtype: DType, shape: tuple[int, ...]) -> NDArray[Any]:
        """A read-only array of the bytes from `offset` on; the caller has checked that they are there.

        A mapped file's array is a view, unless it starts where its elements
        cannot lie (R99). Bytes in memory are copied, so that no two tensors share them (L32).

        Raises:
            RecordIoError: the storage is closed.
        """
        count = math.prod(shape)
        view = self.view(what)
        if count == 0:
            return np.empty(shape, dtype)
        array = np.frombuffer(view, dtype, count, offset)
        if not self._is_mapped or not array.flags.aligned:
            array = array.copy()
        return array.reshape(shape)
