"""Pinned host memory through which copies go: between the host and a GPU, and between GPUs without peer access.

Locking memory is slow, and CuPy keeps what is locked; so each way has two
buffers of a fixed size, made once. A copy goes in *parts* of a buffer, each in
two steps, into the buffer and out of it. Both steps of different parts run at
once: a buffer is filled again only when what it held has left it (C7), and
until then the other one is filled.
"""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol, Self, final

import numpy as np
from numpy.typing import NDArray

_PARTS: Final = 8  # of a buffer: small, so that the second step of a copy starts early
_ALIGNMENT: Final = 512  # of what shares a buffer, as of CuPy's own blocks


class Gpu(Protocol):
    """A GPU and the engine's stream on it; entering it makes both current."""

    index: int

    @property
    def stream(self) -> Any: ...

    def recorded(self) -> Any:
        """An event after all that the stream was asked to do; the GPU is current."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None: ...


@final
class _Buffers:
    """Two buffers of one size, handed out in parts: first all of one, then all of the other."""

    def __init__(self, buffers: Sequence[NDArray[np.uint8]]) -> None:
        self._buffers = buffers
        self._used = 0
        self.turn = 0  # which buffer is being handed out

    def part(self, nbytes: int) -> NDArray[np.uint8] | None:
        """The next part, of at most `nbytes`; None where the buffer is used up."""
        buffer = self._buffers[self.turn]
        if self._used >= buffer.size:
            return None
        part = buffer[self._used : self._used + min(nbytes, buffer.size // _PARTS)]
        self._used += -(-part.size // _ALIGNMENT) * _ALIGNMENT
        return part

    def change(self) -> None:
        """Go on with the other buffer; what it held has left it."""
        self.turn, self._used = 1 - self.turn, 0

    def of(self, nbytes: int) -> NDArray[np.uint8]:
        """The first part after a `change`."""
        part = self.part(nbytes)
        assert part is not None
        return part


@final
class UpStage:
    """Parts that the host, or a GPU's stream, writes and another GPU's stream reads.

    Args:
        buffers: two of pinned memory.
        target: the GPU that reads.
        writer: the stream that writes; None for the host.
    """

    def __init__(self, buffers: Sequence[NDArray[np.uint8]], target: Gpu, writer: Any) -> None:
        self.lock = threading.Lock()  # from taking parts to issuing the copies that read them
        self._buffers = _Buffers(buffers)
        self._target, self._writer = target, writer
        self._read: list[Any] = [None, None]  # an event after the last use of each buffer

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """At most `nbytes` that are free to be written, 1 or more."""
        part = self._buffers.part(nbytes)
        if part is not None:
            return part
        with self._target:
            self._read[self._buffers.turn] = self._target.recorded()
            self._buffers.change()
            before = self._read[self._buffers.turn]
            if before is not None and self._writer is None:
                before.synchronize()
            elif before is not None:
                self._writer.wait_event(before)
        return self._buffers.of(nbytes)


class _Arriving(NamedTuple):
    """A part on its way from a GPU, the event after which it is there, and where the host wants it."""

    turn: int
    part: NDArray[np.uint8]
    there: Any
    wanted: NDArray[np.uint8]


@final
class DownStage:
    """Parts that a GPU's stream writes and the host reads. The GPU is current in all calls.

    Args:
        buffers: two of pinned memory.
        origin: the GPU that writes.
    """

    def __init__(self, buffers: Sequence[NDArray[np.uint8]], origin: Gpu) -> None:
        self.lock = threading.Lock()  # from taking the first part to landing the last
        self._buffers = _Buffers(buffers)
        self._origin = origin
        self._arriving: deque[_Arriving] = deque()

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """At most `nbytes` that are free to be written, 1 or more."""
        part = self._buffers.part(nbytes)
        if part is not None:
            return part
        self._buffers.change()
        while self._arriving and self._arriving[0].turn == self._buffers.turn:
            self._land()
        return self._buffers.of(nbytes)

    def sent(self, part: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> None:
        """Say that a copy to a part was issued, and where its bytes are wanted."""
        self._arriving.append(_Arriving(self._buffers.turn, part, self._origin.recorded(), wanted))

    def land(self) -> None:
        """Wait for all parts, each only until it is there, and put them where they are wanted."""
        while self._arriving:
            self._land()

    def _land(self) -> None:
        arriving = self._arriving.popleft()
        arriving.there.synchronize()
        np.copyto(arriving.wanted, arriving.part)

    def forget(self) -> None:
        """Want none of the parts any more; what is on its way comes before whatever is taken next."""
        self._arriving.clear()
