"""The machine that the fake pretends: its GPUs, what is queued on them, and what the host knows to be done.

A *queue* is what a stream object stands for on one device. The host is one
clock, whichever thread runs: races between threads of Python are not shown.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple

from .clocks import Access, Clock, Stamp, join, knows, reaches
from .faults import CUDARuntimeError, Fault
from .memory import Block, DeviceMemory
from .pinned import PinnedBlock, PinnedPool

NULL: Final = 0  # pointers of the streams that every device has
PER_THREAD: Final = 2


class Queue:
    """Work put on one device, done in the order in which it was put.

    Args:
        timeline: its number among all queues of the machine.
        device: where it runs.
        ptr: the stream's pointer.
        blocking: whether it and the null stream wait for each other.
    """

    def __init__(self, timeline: int, device: int, ptr: int, blocking: bool) -> None:
        self.timeline, self.device, self.ptr, self.blocking = timeline, device, ptr, blocking
        self.clock: Clock = {}

    def __repr__(self) -> str:
        return f"stream {self.ptr} of cuda:{self.device}"


class Touch(NamedTuple):
    """Bytes of a block that an operation reads or writes."""

    block: Block | PinnedBlock
    low: int
    high: int
    writes: bool


class _Thread(threading.local):
    """What is current in one thread; a new one starts on device 0 with the default streams."""

    def __init__(self) -> None:
        self.device = 0
        self.devices: list[int] = []
        self.streams: dict[int, list[Any]] = {}
        self.entered: list[int] = []
        self.queues: dict[int, Queue] = {}


class Machine:
    """Some GPUs.

    Args:
        devices: how many.
        peers: ordered pairs that can have peer access; all by default.
        dropping: ordered pairs between which peer copies report success and move nothing.
        memory: bytes of each device.
        driver: a status that every call of the driver fails with; 35 without a driver, 100 without a device.
        per_thread: whether the default stream is the thread's own.
        remote: what a kernel does with an operand of another device: ``"fault"``, or what CuPy does
            (a warning, a ``ValueError``, or for products status 700).
        inexact: whether what kernels round differs in the last bit from what NumPy gives.
    """

    def __init__(
        self,
        devices: int = 4,
        *,
        peers: Iterable[tuple[int, int]] | None = None,
        dropping: Iterable[tuple[int, int]] = (),
        memory: int = 1 << 30,
        driver: int = 0,
        per_thread: bool = False,
        remote: Literal["fault", "cupy"] = "fault",
        inexact: bool = False,
    ) -> None:
        pairs = [(a, b) for a in range(devices) for b in range(devices) if a != b]
        self.devices: Final = devices
        self.peers: Final = frozenset(pairs if peers is None else peers)
        self.dropping: Final = frozenset(dropping)
        self.driver, self.per_thread, self.remote, self.inexact = driver, per_thread, remote, inexact
        self.sticky = 0
        self.capability = "90"
        self.refuses: dict[str, int] = {}  # name of a runtime call -> the status it fails with
        self.enabled: set[tuple[int, int]] = set()
        self.lock = threading.RLock()
        self.host: Clock = {}
        self.thread = _Thread()
        self.memories = [DeviceMemory(self, index, memory) for index in range(devices)]
        self.pinned = PinnedPool()
        self._finished: Clock = {}
        self._peer_copies: list[Stamp] = []
        self._queues: list[Queue] = []
        self._next_ptr = 0x1000
        self._null = [self._queue(index, NULL, blocking=True) for index in range(devices)]

    # The driver

    def check(self, call: str = "") -> None:
        """Fail as the driver would: it is absent, a kernel has failed before, or `call` is told to."""
        status = self.driver or self.sticky or self.refuses.get(call, 0)
        if status:
            raise CUDARuntimeError(status)

    def set_device(self, device: int) -> None:
        self.check("setDevice")
        if not 0 <= device < self.devices:
            raise CUDARuntimeError(101)
        self.thread.device = device

    @property
    def device(self) -> int:
        """The device that is current in this thread."""
        self.check("getDevice")
        return self.thread.device

    # Queues

    def _queue(self, device: int, ptr: int, *, blocking: bool) -> Queue:
        queue = Queue(len(self._queues), device, ptr, blocking)
        self._queues.append(queue)
        return queue

    def new_queue(self, *, blocking: bool) -> Queue:
        """A queue of the current device."""
        with self.lock:
            self._next_ptr += 0x10
            queue = self._queue(self.device, self._next_ptr, blocking=blocking)
            if blocking:
                join(queue.clock, self._null[queue.device].clock)
            return queue

    def queue(self, ptr: int) -> Queue:
        """The queue of a stream's pointer; the pointers that every device has mean the current device's."""
        if ptr == NULL:
            return self._null[self.device]
        if ptr == PER_THREAD:
            own = self.thread.queues.get(self.device)
            if own is None:
                own = self.thread.queues[self.device] = self._queue(self.device, PER_THREAD, blocking=True)
            return own
        found = [queue for queue in self._queues if queue.ptr == ptr]
        if not found:
            raise CUDARuntimeError(400)
        return found[0]

    def current_queue(self) -> Queue:
        """The queue on which this thread works on its current device."""
        stack = self.thread.streams.get(self.device)
        return self.queue(stack[-1].ptr if stack else PER_THREAD if self.per_thread else NULL)

    def _joined(self, queue: Queue, devices: Sequence[int]) -> list[Queue]:
        """The queues that wait for a null stream's operation and that it waits for."""
        if queue.ptr != NULL:
            return []
        places = {queue.device, *devices}
        return [other for other in self._queues if other.device in places and other.blocking and other is not queue]

    # Operations

    @contextmanager
    def on(self, queue: Queue, devices: Sequence[int] = ()) -> Iterator[Clock]:
        """The clock of a queue for one operation: it knows what the host knows, and what the null stream joins."""
        with self.lock:
            self.check()
            join(queue.clock, self.host)
            joined = self._joined(queue, devices)
            for other in joined:
                join(queue.clock, other.clock)
            yield queue.clock
            for other in joined:
                join(other.clock, queue.clock)

    def issue(self, queue: Queue, what: str, touches: Iterable[Touch], devices: Sequence[int] = ()) -> Stamp:
        """Put an operation on a queue.

        Raises:
            Fault: nothing orders it after an earlier use of the memory that it touches.
        """
        with self.on(queue, devices) as clock:
            tick = clock[queue.timeline] = clock.get(queue.timeline, 0) + 1
            stamp = Stamp(queue.timeline, tick, f"{what} on {queue}")
            for block, low, high, writes in touches:
                block.history.touch(Access(stamp, low, high, writes), clock, self.host)
            return stamp

    def device_of(self, stamp: Stamp) -> int:
        """Where an operation runs."""
        return self._queues[stamp.timeline].device

    def advance(self, clock: Clock) -> None:
        """Let the host wait for all that a clock knows; what was to land in its memory lands."""
        with self.lock:
            self.check()
            join(self.host, clock)
            self.pinned.land(self.host)

    def wait_device(self, device: int) -> None:
        """Let the host wait for a device."""
        for queue in list(self._queues):
            if queue.device == device:
                self.advance(queue.clock)

    def wait_all(self) -> None:
        """Let the host wait for everything."""
        for device in range(self.devices):
            self.wait_device(device)

    def finish(self) -> None:
        """Let the GPUs be done with everything queued, without the host knowing until it asks."""
        for queue in self._queues:
            join(self._finished, queue.clock)

    def is_done(self, clock: Clock) -> bool:
        """Whether a query finds all of it done; if so, the host knows."""
        if self.driver or self.sticky:
            return False
        if not reaches(self.host, clock) and not reaches(self._finished, clock):
            return False
        self.advance(clock)
        return True

    # Peers

    def note_peer_copy(self, stamp: Stamp) -> None:
        self._peer_copies.append(stamp)

    def change_peer(self, device: int, peer: int, *, enable: bool) -> None:
        """Switch peer access of one device to another on or off.

        Raises:
            Fault: copies between devices are queued.
            CUDARuntimeError: 704 enabled already, 705 not enabled, 217 not possible, 101 no such peer.
        """
        self._peer_copies = [stamp for stamp in self._peer_copies if not knows(self.host, stamp)]
        if self._peer_copies:
            raise Fault(f"peer access is switched while '{self._peer_copies[0].what}' is queued")
        if device == peer or not 0 <= peer < self.devices:
            raise CUDARuntimeError(101)
        if (device, peer) not in self.peers:
            raise CUDARuntimeError(217)
        if ((device, peer) in self.enabled) == enable:
            raise CUDARuntimeError(704 if enable else 705)
        (self.enabled.add if enable else self.enabled.discard)((device, peer))


_installed: list[Machine] = []


def current() -> Machine:
    """The machine that stands in the place of CuPy."""
    return _installed[-1]


@contextmanager
def made_current(machine: Machine) -> Iterator[None]:
    """Let `current` be a machine inside the ``with``."""
    _installed.append(machine)
    try:
        yield
    finally:
        _installed.remove(machine)
