"""Pinned host memory: copies to it land late, copies from it are compared with it when they land.

Until the host has waited for it, a copy to pinned memory shows a *sentinel*.
A copy from it takes the bytes at once, and at landing the memory must still
hold them: otherwise it was rewritten or dropped under a running copy.
"""

import weakref
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .clocks import Clock, History, Stamp, knows
from .faults import Fault
from .memory import POISON, UNIT

SENTINEL: Final = 0xA5


class Landing(NamedTuple):
    """A copy that the host does not know to be done: `data` goes to the memory (`down`), or came from it."""

    stamp: Stamp
    block: "PinnedBlock"
    generation: int
    low: int
    data: NDArray[np.uint8]
    down: bool

    @property
    def high(self) -> int:
        return self.low + self.data.size


class PinnedBlock:
    """Page-locked memory; `generation` counts its owners."""

    def __init__(self, nbytes: int) -> None:
        self.data: NDArray[np.uint8] = np.empty(nbytes, np.uint8)
        self.address: int = self.data.ctypes.data
        self.history = History()
        self.generation = 0
        self.used = True


class _Owner:
    """What a NumPy array over pinned memory keeps alive."""

    def __init__(self, block: PinnedBlock) -> None:
        self.__array_interface__ = block.data.__array_interface__


class PinnedPool:
    """All pinned memory. A dropped buffer is handed out again at once, with no event."""

    def __init__(self) -> None:
        self._blocks: list[PinnedBlock] = []
        self._landings: list[Landing] = []

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are locked, in use or not: CuPy's pool keeps them."""
        return sum(block.data.size for block in self._blocks)

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of page-locked memory, as a NumPy array."""
        size = max(UNIT, 1 << max(0, nbytes - 1).bit_length())
        free = [block for block in self._blocks if not block.used and block.data.size == size]
        block = free[0] if free else PinnedBlock(size)
        if not free:
            self._blocks.append(block)
        block.used = True
        owner = _Owner(block)
        weakref.finalize(owner, self._dropped, block)
        return np.asarray(owner)[:nbytes]

    @staticmethod
    def _dropped(block: PinnedBlock) -> None:
        block.used = False
        block.generation += 1
        block.data.fill(POISON)

    def find(self, address: int, nbytes: int) -> tuple[PinnedBlock, int] | None:
        """The block that holds some bytes and their offset in it; None for ordinary memory."""
        for block in self._blocks:
            if block.address <= address and address + nbytes <= block.address + block.data.size:
                return block, address - block.address
        return None

    def down(self, block: PinnedBlock, low: int, data: NDArray[np.uint8], stamp: Stamp) -> None:
        """A copy to pinned memory, in order after all earlier ones that touch it."""
        landing = Landing(stamp, block, block.generation, low, data.copy(), True)
        for earlier in [other for other in self._landings if other.block is block and not other.down]:
            if earlier.low < landing.high and low < earlier.high:
                self._landings.remove(earlier)
                self._compare(earlier)
        block.data[low : landing.high] = SENTINEL
        self._landings.append(landing)

    def up(self, block: PinnedBlock, low: int, nbytes: int, stamp: Stamp) -> NDArray[np.uint8]:
        """The bytes that a copy from pinned memory reads, in order after the copies that wrote them."""
        data = self._effective(block, low, nbytes)
        self._landings.append(Landing(stamp, block, block.generation, low, data, False))
        return data

    def _effective(self, block: PinnedBlock, low: int, nbytes: int) -> NDArray[np.uint8]:
        """The bytes of the memory with all copies to it landed."""
        seen: Any = block.data[low : low + nbytes].copy()
        for landing in self._landings:
            if landing.block is block and landing.down:
                start, stop = max(low, landing.low), min(low + nbytes, landing.high)
                if start < stop:
                    seen[start - low : stop - low] = landing.data[start - landing.low : stop - landing.low]
        return seen

    def _compare(self, landing: Landing) -> None:
        now = self._effective(landing.block, landing.low, landing.data.size)
        if landing.generation != landing.block.generation or not np.array_equal(now, landing.data):
            raise Fault(f"pinned memory was rewritten or dropped before '{landing.stamp.what}' was done")

    def _cover(self, landed: Landing) -> None:
        """Show the sentinel again where a later copy, which may have come already, goes to the same memory."""
        for later in self._landings:
            if later.down and later.block is landed.block:
                low, high = max(later.low, landed.low), min(later.high, landed.high)
                landed.block.data[low : max(low, high)] = SENTINEL

    def land(self, host: Clock) -> None:
        """Let land what the host knows to be done.

        Raises:
            Fault: the memory was dropped before, or rewritten under a copy from it.
        """
        for landing in list(self._landings):
            if not knows(host, landing.stamp):
                continue
            self._landings.remove(landing)
            if landing.down:
                if landing.generation != landing.block.generation:
                    raise Fault(f"pinned memory was dropped before '{landing.stamp.what}' was done")
                landing.block.data[landing.low : landing.high] = landing.data
                self._cover(landing)
            else:
                self._compare(landing)
