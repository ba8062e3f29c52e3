"""Devices, streams and events, as CuPy's behave: current per thread, streams per thread and device."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, ClassVar, Self

from .clocks import Clock, join
from .faults import CUDARuntimeError, Fault
from .machine import NULL, PER_THREAD, Machine, Queue, current


class Device:
    """A device; entering it makes it current in this thread."""

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, device: "int | Device | None" = None) -> None:
        self.id = current().device if device is None else int(device)

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __enter__(self) -> Self:
        machine = current()
        before = machine.device
        machine.set_device(self.id)
        machine.thread.devices.append(before)
        return self

    def __exit__(self, *exception: object) -> None:
        machine = current()
        machine.set_device(machine.thread.devices.pop())

    def use(self) -> None:
        current().set_device(self.id)

    @property
    def compute_capability(self) -> str:
        current().check("deviceGetAttribute")
        return current().capability

    def synchronize(self) -> None:
        with self:
            current().wait_device(self.id)


class Stream:
    """A stream of the device that is current when it is made; `null` and `ptds` are the current device's, always."""

    null: ClassVar["Stream"]
    ptds: ClassVar["Stream"]

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        if null or ptds:
            self.ptr, self.device_id = NULL if null else PER_THREAD, -1
            return
        machine = current()
        machine.check("streamCreate")
        queue = machine.new_queue(blocking=not non_blocking)
        self.ptr, self.device_id = queue.ptr, queue.device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.ptr == self.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __repr__(self) -> str:
        return f"<Stream {self.ptr} (device {self.device_id})>"

    def _here(self) -> int:
        device = current().device
        if self.device_id not in (-1, device):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id}) does not match with the current device "
                f"({device})"
            )
        return device

    def __enter__(self) -> Self:
        device, thread = self._here(), current().thread
        thread.streams.setdefault(device, []).append(self)
        thread.entered.append(device)
        return self

    def __exit__(self, *exception: object) -> None:
        thread = current().thread
        thread.streams[thread.entered.pop()].pop()

    def use(self) -> Self:
        stack = current().thread.streams.setdefault(self._here(), [])
        stack[-1:] = [self]
        return self

    def record(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        machine = current()
        if event.clock is None:
            raise Fault("a stream waits for an event that was never recorded, which waits for nothing")
        with machine.on(machine.queue(self.ptr)) as clock:
            join(clock, event.clock)

    def synchronize(self) -> None:
        machine = current()
        with machine.on(machine.queue(self.ptr)) as clock:
            machine.advance(clock)

    @property
    def done(self) -> bool:
        machine = current()
        return not machine.sticky and machine.is_done(machine.queue(self.ptr).clock)


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)


class Event:
    """A point in a stream's work. It belongs to the device that is current when it is made."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        machine = current()
        machine.check("eventCreate")
        self.device_id = machine.device
        self.clock: Clock | None = None
        self.timing, self.seconds = not disable_timing, 0.0

    def record(self, stream: Stream | None = None) -> None:
        machine = current()
        queue = machine.current_queue() if stream is None else machine.queue(stream.ptr)
        if queue.device != self.device_id:
            raise CUDARuntimeError(400)
        with machine.on(queue) as clock:
            self.clock = dict(clock)
        self.seconds = perf_counter()

    def synchronize(self) -> None:
        if self.clock is None:
            raise Fault("the host waits for an event that was never recorded, which waits for nothing")
        current().advance(self.clock)

    @property
    def done(self) -> bool:
        if self.clock is None:
            raise Fault("an event that was never recorded is asked whether it is done; it always is")
        return current().is_done(self.clock)


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Milliseconds between two events of one device that are done; of the host's clock, since all is done at once."""
    machine = current()
    events = (start_event, end_event)
    if start_event.device_id != end_event.device_id or not all(event.timing for event in events):
        raise CUDARuntimeError(400)
    for event in events:
        if event.clock is None:
            raise CUDARuntimeError(400)
        if not machine.is_done(event.clock):
            raise CUDARuntimeError(600)
    return (end_event.seconds - start_event.seconds) * 1e3


def get_current_stream(device_id: int = -1) -> Stream:
    """This thread's current stream of a device; of the current one by default."""
    machine = current()
    stack = machine.thread.streams.get(machine.device if device_id == -1 else device_id)
    return stack[-1] if stack else Stream.ptds if machine.per_thread else Stream.null


@contextmanager
def on_device(machine: Machine, device: int, stream: Any = None) -> Iterator[Queue]:
    """The queue of a stream while its device is current, as CuPy's own host copies choose it."""
    before = machine.device
    machine.set_device(device)
    try:
        yield machine.current_queue() if stream is None else machine.queue(stream.ptr)
    finally:
        machine.set_device(before)
