"""The copies that are measured: the engine's, and bare calls of NumPy and of CUDA on memory that is there already."""

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from bench.timing import Reading
from engine import Device, Tensor, transfer, zeros
from engine.backend import Route

from .point import Layout

_BLOCK: Final = 256  # bytes that lie together in what is strided
_threads: Final = ThreadPoolExecutor(thread_name_prefix="layerloom-bench-copies")  # started when first used


class Lane(NamedTuple):
    """A stream of a GPU that a copy runs on."""

    device: Device
    stream: Any

    def event(self, *, timing: bool = False) -> Any:
        """An event after all that the stream was asked to do."""
        with self.device as device:
            made = device.xp.cuda.Event(disable_timing=not timing)
            made.record(self.stream)
            return made

    def wait(self, event: Any) -> None:
        """Let the stream wait for an event."""
        with self.device:
            self.stream.wait_event(event)

    @classmethod
    def of(cls, device: Device) -> "Lane":
        """The engine's own stream."""
        with device:
            return cls(device, device.xp.cuda.get_current_stream())


class Copy(NamedTuple):
    """A copy that can be made again and again.

    Attributes:
        issue: makes it, or puts it on its lanes.
        lanes: the streams that it runs on, where GPUs take part.
        arrived: the bytes that are at the destination after `issue`, once the lanes are done.
    """

    issue: Callable[[], Any]
    lanes: Sequence[Lane]
    arrived: Callable[[], bytes]


def pattern(nbytes: int) -> NDArray[np.uint8]:
    """Bytes with no period that is a power of two, so that a shifted copy is another one."""
    return np.resize(np.arange(251, dtype=np.uint8), nbytes)


def own_route(source: Device, destination: Device) -> Route:
    """The route that the engine takes between two devices; this is the first copy between them."""
    with transfer.log() as log:
        zeros((1,), device=source).to_device(destination)
    ((_, _, route),) = log
    return route


def by_engine(source: Device, destination: Device, layout: Layout, nbytes: int, route: Route | None = None) -> Copy:
    """The engine's copy, to new memory each time.

    Args:
        route: the one to take between two GPUs; None for the engine's own.
    """
    sent = pattern(nbytes)
    if layout == "strided":
        wide = np.zeros((nbytes // _BLOCK, 2, _BLOCK), np.uint8)
        wide[:, 0] = sent.reshape(-1, _BLOCK)
        sent = wide
    held = Tensor.from_numpy(sent, source)

    def issue() -> Any:
        x = held if layout == "contiguous" else held[:, 0]
        if route is None:
            return x.to_device(destination)._data
        return source.backend.copy_between([x._data], source.index, destination.index, route)[0][0]

    lanes = [Lane.of(device) for device in (source, destination) if device.kind == "cuda"]
    return Copy(issue, lanes, lambda: _bytes_at(issue(), destination))


def _bytes_at(array: Any, device: Device) -> bytes:
    return device.backend.download([array], device.index)[0].tobytes()


def by_numpy(nbytes: int) -> Copy:
    """`numpy.copyto` from memory to memory."""
    sent, made = pattern(nbytes), np.zeros(nbytes, np.uint8)
    return Copy(lambda: np.copyto(made, sent), (), made.tobytes)


@final
class Bare:
    """CUDA's own copies between buffers that are there already, on streams of their own.

    Each device has one stream for copies from it and one for copies to it, so
    that the two directions can run at once.
    """

    def __init__(self) -> None:
        self._lanes: dict[tuple[Device, str], Lane] = {}

    def _lane(self, device: Device, use: str) -> Lane:
        if (device, use) not in self._lanes:
            with device:
                self._lanes[device, use] = Lane(device, device.xp.cuda.Stream(non_blocking=True))
        return self._lanes[device, use]

    def driver(self, source: Device, destination: Device, nbytes: int) -> Copy:
        """The driver's copy from GPU to GPU, on the source's stream."""
        sent, made, lane = _on(source, nbytes), _empty_on(destination, nbytes), self._lane(source, "from")
        copy = source.xp.cuda.runtime.memcpyPeerAsync
        places = (made.data.ptr, destination.index, sent.data.ptr, source.index)
        return Copy(
            lambda: copy(*places, nbytes, lane.stream.ptr), [lane], lambda: _done(made, sent, lane, destination)
        )

    def host(self, source: Device, destination: Device, nbytes: int, *, pinned: bool) -> Copy:
        """The driver's copy between a GPU and host memory, pinned or ordinary."""
        gpu = source if source.kind == "cuda" else destination
        host = _pinned(gpu, nbytes) if pinned else np.zeros(nbytes, np.uint8)
        runtime = gpu.xp.cuda.runtime
        if gpu is destination:
            host[:] = pattern(nbytes)
            made, lane = _empty_on(gpu, nbytes), self._lane(gpu, "to")
            up = (made.data.ptr, host.ctypes.data, nbytes, runtime.memcpyHostToDevice, lane.stream.ptr)
            return Copy(lambda: runtime.memcpyAsync(*up), [lane], lambda: _done(made, host, lane, gpu))
        sent, lane = _on(gpu, nbytes), self._lane(gpu, "from")
        down = (host.ctypes.data, sent.data.ptr, nbytes, runtime.memcpyDeviceToHost, lane.stream.ptr)
        return Copy(lambda: runtime.memcpyAsync(*down), [lane], lambda: _done(host, sent, lane, None))

    def pageable(self, source: Device, destination: Device, nbytes: int) -> Copy:
        """From GPU to GPU through ordinary host memory, as `asarray(x.get())` does."""
        host = np.zeros(nbytes, np.uint8)
        sent, made = _on(source, nbytes), _empty_on(destination, nbytes)
        origin, target = self._lane(source, "from"), self._lane(destination, "to")
        runtime = source.xp.cuda.runtime

        def issue() -> None:  # each call returns when it needs the host memory no more
            at = host.ctypes.data
            runtime.memcpyAsync(at, sent.data.ptr, nbytes, runtime.memcpyDeviceToHost, origin.stream.ptr)
            runtime.memcpyAsync(made.data.ptr, at, nbytes, runtime.memcpyHostToDevice, target.stream.ptr)

        return Copy(issue, [origin, target], lambda: _done(made, sent, target, destination))


def _on(device: Device, nbytes: int) -> Any:
    """A buffer of a GPU that holds the pattern, and is there."""
    made = Tensor.from_numpy(pattern(nbytes), device)._data
    device.synchronize()
    return made


def _empty_on(device: Device, nbytes: int) -> Any:
    """A buffer of a GPU, written and there."""
    made = zeros((nbytes,), dtype="uint8", device=device)._data
    device.synchronize()
    return made


def _pinned(gpu: Device, nbytes: int) -> NDArray[np.uint8]:
    with gpu:
        return np.frombuffer(gpu.xp.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)


def _done(made: Any, sent: Any, lane: Lane, device: Device | None) -> bytes:
    """The bytes of what was made, after the lane; `sent` lives until then. None for host memory."""
    with lane.device:
        lane.stream.synchronize()
    del sent
    return made.tobytes() if device is None else _bytes_at(made, device)


def reading(copies: Sequence[Copy], repeat: int) -> Reading:
    """A reading of the seconds that copies take, all at once: the first in this thread, others each in their own.

    Where GPUs take part, the time is that between two events on the first
    lane, before and after all that runs on any.

    Args:
        repeat: how often each is made in one reading; the result is for one time.
    """
    lanes = list({(lane.device, lane.stream.ptr): lane for copy in copies for lane in copy.lanes}.values())

    def make() -> None:
        others = [_threads.submit(_again, copy, repeat) for copy in copies[1:]]
        _again(copies[0], repeat)
        for other in others:
            other.result()

    return (lambda: _by_events(make, lanes) / repeat) if lanes else (lambda: _by_clock(make) / repeat)


def _again(copy: Copy, repeat: int) -> None:
    for _ in range(repeat):
        copy.issue()


def _by_clock(make: Callable[[], None]) -> float:
    start = perf_counter()
    make()
    return perf_counter() - start


def _by_events(make: Callable[[], None], lanes: Iterable[Lane]) -> float:
    first, *others = lanes
    for lane in (first, *others):
        lane.device.synchronize()
    start = first.event(timing=True)
    for lane in others:
        lane.wait(start)
    make()
    for lane in others:
        first.wait(lane.event())
    end = first.event(timing=True)
    end.synchronize()
    return first.device.xp.cuda.get_elapsed_time(start, end) / 1e3


def repeats_of(copies: Sequence[Copy], nbytes: int, least_seconds: float, most_nbytes: int) -> int:
    """How often copies are made in one reading, so that it lasts, and that the memory on its way has a bound."""
    once = reading(copies, 1)
    once()
    return max(1, min(math.ceil(least_seconds / max(once(), 1e-9)), most_nbytes // nbytes))
