"""The bytes inside a gzip file, read at any place without holding them all.

The stream is undone in blocks. The last few blocks are kept, and now and then
the state of the decompressor, from which it goes on when an earlier place is
asked for again. So memory stays small whatever the stream unfolds to.
"""

import threading
import zlib
from collections import OrderedDict
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from engine.dtype import DType

from .errors import RecordFormatError
from .storage import Limits, Storage

GZIP_MAGIC: Final = b"\x1f\x8b"

_BLOCK: Final = 2**18  # bytes undone at once
_KEPT_BLOCKS: Final = 8
_PIECE: Final = 2**16  # bytes of the file handed over at once
_SPACING: Final = 64  # blocks between kept states, until there are too many of those
_MAX_STATES: Final = 256  # of about 40 KB each


@final
class Inflated:
    """What a gzip file of one member unfolds to. Several threads may read it.

    Args:
        storage: the file; whoever opened it closes it.
        limits: `max_unpacked_bytes` bounds what it may unfold to.
    """

    def __init__(self, storage: Storage, limits: Limits) -> None:
        self._storage = storage
        self._max_nbytes = limits.max_unpacked_bytes
        self._lock = threading.Lock()
        self._next = 0  # number of the block that comes next
        self._position = 0  # in the file, behind what the decompressor was given
        self._decompressor: Any = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._states = {0: (0, self._decompressor.copy())}
        self._spacing = _SPACING
        self._recent: OrderedDict[int, bytes] = OrderedDict()
        self._nbytes: int | None = None

    @property
    def name(self) -> str:
        """What errors call the file."""
        return self._storage.name

    def read(self, offset: int, nbytes: int) -> bytes:
        """The bytes from `offset` on, fewer at the end.

        Raises:
            RecordFormatError: the stream is damaged or cut short, or unfolds to more than the limit.
            RecordIoError: the file is closed.
        """
        parts: list[bytes] = []
        with self._lock:
            while nbytes:
                number, start = divmod(offset, _BLOCK)
                part = self._block(number)[start : start + nbytes]
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                nbytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def reaches(self, end: int) -> bool:
        """Whether there are so many bytes; undoes that many. Raises what `read` raises."""
        return end == 0 or len(self.read(end - 1, 1)) == 1

    def array(self, what: str, offset: int, dtype: DType, shape: tuple[int, ...]) -> NDArray[Any]:
        """A read-only array of the bytes from `offset` on; the caller has checked that they are there.

        Raises:
            RecordIoError: the file is closed.
        """
        self._storage.view(what)
        array = np.empty(shape, dtype)
        for filled in range(0, array.nbytes, _BLOCK):
            part = self.read(offset + filled, min(_BLOCK, array.nbytes - filled))
            array.reshape(-1).view(np.uint8)[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
        array.setflags(write=False)
        return array

    def _block(self, number: int) -> bytes:
        """One block; empty behind the end."""
        if number in self._recent:
            self._recent.move_to_end(number)
            return self._recent[number]
        if self._nbytes is not None and number * _BLOCK >= self._nbytes:
            return b""
        if number < self._next:
            start = max(kept for kept in self._states if kept <= number)
            self._position, state = self._states[start]
            self._decompressor, self._next = state.copy(), start
        block = b""
        while self._next <= number:
            block = self._undone()
            self._recent[self._next] = block
            if len(self._recent) > _KEPT_BLOCKS:
                self._recent.popitem(last=False)
            self._next += 1
            if len(block) < _BLOCK:
                self._nbytes = (self._next - 1) * _BLOCK + len(block)
                return block if self._next == number + 1 else b""
            self._keep_state()
        return block

    def _undone(self) -> bytes:
        """The next block, as long as a block is, or what is left."""
        parts: list[bytes] = []
        missing = _BLOCK
        view = self._storage.view("what is in it")
        try:
            while missing and not self._decompressor.eof:
                given = self._decompressor.unconsumed_tail
                if not given:
                    given = bytes(view[self._position : self._position + _PIECE])
                    self._position += len(given)
                part = self._decompressor.decompress(given, missing)
                if not part and not given:
                    raise RecordFormatError(f"{self.name}: offset {self._position}: the gzip stream is cut short")
                parts.append(part)
                missing -= len(part)
        except zlib.error as error:
            raise RecordFormatError(f"{self.name}: offset {self._position}: damaged gzip stream: {error}") from None
        if (self._next + 1) * _BLOCK - missing > self._max_nbytes:
            raise RecordFormatError(
                f"{self.name}: it unfolds to more than the limit of {self._max_nbytes} bytes; "
                "give max_unpacked_bytes to raise it"
            )
        if self._decompressor.eof and self._position - len(self._decompressor.unused_data) < len(view):
            raise RecordFormatError(
                f"{self.name}: offset {self._position - len(self._decompressor.unused_data)}: "
                "bytes are left after the gzip stream"
            )
        return b"".join(parts)

    def _keep_state(self) -> None:
        if self._next % self._spacing or self._next in self._states:
            return
        self._states[self._next] = (self._position, self._decompressor.copy())
        if len(self._states) > _MAX_STATES:
            self._spacing *= 2
            self._states = {number: state for number, state in self._states.items() if number % self._spacing == 0}
