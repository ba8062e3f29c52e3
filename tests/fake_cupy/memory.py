"""Device memory: physical blocks with a history, and a pool that hands out what is still in use wherever it can."""

import bisect
import gc
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from .clocks import Clock, History, join, knows
from .faults import Fault, OutOfMemoryError

if TYPE_CHECKING:
    from .machine import Machine, Queue

UNIT: Final = 512  # the pool's blocks are multiples of it
POISON: Final = 0xFF  # NaN in floats


class Block:
    """Some memory of a device. Its history and its bytes outlive the arrays that lie in it."""

    def __init__(self, device: int, address: int, nbytes: int, arena: object) -> None:
        self.device, self.address, self.nbytes, self.arena = device, address, nbytes, arena
        self.data: NDArray[np.uint8] = np.full(nbytes, POISON, np.uint8)
        self.written: NDArray[np.bool_] = np.zeros(nbytes, np.bool_)
        self.history = History()
        self.taken = 0  # of its bytes; what is left of a block is not handed out, where CuPy splits it

    def poison(self) -> None:
        """Forget the bytes, as after a release."""
        self.data.fill(POISON)
        self.written.fill(False)


class Memory:
    """The ownership of a block; it goes back to the pool at once when the last array over it dies."""

    def __init__(self, pool: "DeviceMemory", block: Block | None) -> None:
        self.pool, self.block = pool, block

    def __del__(self) -> None:
        if self.block is not None:
            self.pool.take_back(self.block)


class MemoryPointer:
    """A place in memory: `ptr` is an address, 0 for arrays of no bytes."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem = mem
        self.offset = offset
        self.device_id = mem.pool.device
        self.ptr = 0 if mem.block is None else mem.block.address + offset

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, nbytes: int) -> "MemoryPointer":
        return MemoryPointer(self.mem, self.offset + nbytes)


class DeviceMemory:
    """A device's memory and the pool over it: one arena of free blocks for each stream."""

    def __init__(self, machine: "Machine", device: int, capacity: int) -> None:
        self.machine, self.device, self.capacity = machine, device, capacity
        self.limit = 0
        self._blocks: list[Block] = []  # by address
        self._next = (device + 1) << 56

    @property
    def total(self) -> int:
        """Bytes taken from the driver."""
        return sum(block.nbytes for block in self._blocks)

    @property
    def in_use(self) -> int:
        """Bytes that arrays lie in."""
        return sum(block.taken for block in self._blocks)

    @property
    def free_blocks(self) -> list[Block]:
        return [block for block in self._blocks if not block.taken]

    def allocate(self, nbytes: int, queue: "Queue", arena: object) -> Memory:
        """Memory for the current stream, perhaps a block that work queued elsewhere still uses.

        Raises:
            OutOfMemoryError: neither the pool nor the driver has as much.
        """
        with self.machine.lock:
            self.machine.check("malloc")
            if nbytes == 0:
                return Memory(self, None)
            size = -(-nbytes // UNIT) * UNIT
            block = self._recycled(size, queue, arena) or self._from_driver(size, arena)
            block.taken, block.arena = size, arena
            return Memory(self, block)

    def _recycled(self, size: int, queue: "Queue", arena: object) -> Block | None:
        """The worst free block that fits: one with accesses that the stream does not wait for, if there is one."""
        fitting = [block for block in self.free_blocks if block.arena == arena and block.nbytes >= size]
        known: Clock = dict(self.machine.host)
        join(known, queue.clock)
        return min(fitting, key=lambda block: (block.history.is_settled(known), block.nbytes), default=None)

    def _from_driver(self, size: int, arena: object) -> Block:
        """New memory. Where there is none, CuPy's pool frees what nobody uses, collects garbage, then gives up."""
        if self.limit and self.total + size > self.limit:
            raise OutOfMemoryError(size, self.total, self.limit)
        for attempt in range(3):
            if self.total + size <= self.capacity:
                break
            if attempt == 1:
                gc.collect()
            self.release_free_blocks()
        else:
            raise OutOfMemoryError(size, self.total, self.limit)
        block = Block(self.device, self._next, size, arena)
        self._next += size + UNIT
        self._blocks.append(block)
        return block

    def take_back(self, block: Block) -> None:
        """Put a block that no array needs into its arena, at once, whatever is queued."""
        with self.machine.lock:
            block.poison()
            block.taken = 0

    def release_free_blocks(self) -> None:
        """Give what nobody uses back to the driver, which waits for this device only.

        Raises:
            Fault: another device is still to use it.
        """
        machine = self.machine
        for block in self.free_blocks:
            for access in block.history.accesses:
                if machine.device_of(access.stamp) != self.device and not knows(machine.host, access.stamp):
                    raise Fault(f"memory of cuda:{self.device} goes to the driver before '{access.stamp.what}' is done")
        if self.free_blocks:
            machine.wait_device(self.device)
        self._blocks = [block for block in self._blocks if block.taken]

    def find(self, address: int, nbytes: int) -> tuple[Block, int]:
        """The block in use that holds some bytes, and their offset in it.

        Raises:
            Fault: there is none.
        """
        at = bisect.bisect_right(self._blocks, address, key=lambda block: block.address) - 1
        block = self._blocks[at] if at >= 0 else None
        if block is None or address + nbytes > block.address + block.taken:
            raise Fault(f"bytes {address:#x} to {address + nbytes:#x} of cuda:{self.device} belong to no array")
        return block, address - block.address

    def holds(self, address: int) -> bool:
        """Whether an address is one of this device's."""
        return address >> 56 == self.device + 1


class MemoryPool:
    """CuPy's default pool: it acts on the current device."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine

    @property
    def _here(self) -> DeviceMemory:
        return self._machine.memories[self._machine.device]

    def used_bytes(self) -> int:
        return self._here.in_use

    def free_bytes(self) -> int:
        return self._here.total - self._here.in_use

    def total_bytes(self) -> int:
        return self._here.total

    def n_free_blocks(self) -> int:
        return len(self._here.free_blocks)

    def get_limit(self) -> int:
        return self._here.limit

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        self._here.limit = int(fraction * self._here.capacity) if size is None and fraction else size or 0

    def free_all_blocks(self, stream: Any = None) -> None:
        self._here.release_free_blocks()
