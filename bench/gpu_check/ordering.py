"""The order of work on streams: copies between busy ones are right, and without the waits they are wrong."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from engine import Device, Tensor

from .check import Bench, NotRunError, need


def streams_in_order(bench: Bench) -> str:
    """Two streams, one of them busy: with the recipe's waits, copies and what their memory held before are right."""
    for busy in (0, 1):
        need(_two_streams(bench, busy), "the copy is wrong" if busy == 0 else "what the memory held before is wrong")
    return ""


def streams_out_of_order(bench: Bench) -> str:
    """The same with each wait left out in turn is wrong, so the check before can fail."""
    if bench.quick:
        raise NotRunError("a quick run keeps no stream busy")
    need(not _two_streams(bench, 0, waits_for_copy=False), "without the wait for the copy it was right all the same")
    need(
        not _two_streams(bench, 1, waits_for_memory=False), "without the wait for its memory it was right all the same"
    )
    return ""


def _two_streams(
    bench: Bench, busy: Literal[0, 1], *, waits_for_copy: bool = True, waits_for_memory: bool = True
) -> bool:
    """Whether a copy from a stream to another, and a kernel that read its memory before, give what they must.

    Args:
        busy: the stream that has work for a while before: the one that produces, 0, or that consumes, 1.
    """
    gpu, count = bench.gpu, 10_000
    with gpu as device:
        xp = device.xp
        producing, consuming = (xp.cuda.Stream(non_blocking=True) for _ in range(2))
        with producing:
            numbers, sent = xp.arange(count, dtype="float32"), xp.zeros(count, "float32")
        with consuming:
            former, before, after = (xp.ones(count, "float32") for _ in range(3))
        work = [work_for(bench, gpu, stream) for stream in (producing, consuming)]
        device.synchronize()  # from here on nothing is allocated that was not there, which could wait for the GPU

        work[busy]()
        with consuming:
            xp.add(former, xp.float32(1), out=before)
            del former
            made = xp.empty(count, "float32")
            vacant = xp.cuda.Event(disable_timing=True)
            vacant.record(consuming)
        with producing:
            xp.add(numbers, xp.float32(1), out=sent)
            if waits_for_memory:
                producing.wait_event(vacant)
            address = made.data.ptr, gpu.index, sent.data.ptr, gpu.index
            xp.cuda.runtime.memcpyPeerAsync(*address, sent.nbytes, producing.ptr)
            done = xp.cuda.Event(disable_timing=True)
            done.record(producing)
        with consuming:
            if waits_for_copy:
                consuming.wait_event(done)
            xp.multiply(made, xp.float32(2), out=after)
            found = [array.get(stream=consuming) for array in (before, after)]
        device.synchronize()  # memory goes back to the pool, whatever still uses it
    expected = [np.full(count, 2, np.float32), 2 * (np.arange(count, dtype=np.float32) + 1)]
    return all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


def dropped_sources(bench: Bench) -> str:
    """A source that is dropped while its copy waits is not overwritten, by the recipe and by holding it."""
    gpu, numbers = bench.gpu, np.arange(10_000, dtype=np.float32)
    keep_busy(bench, gpu)()
    produced = Tensor.from_numpy(numbers, gpu) + 1.0
    made, _ = gpu.backend.copy_between([produced._data], gpu.index, gpu.index, "peer")
    del produced
    other = Tensor.from_numpy(np.zeros_like(numbers), gpu) + 7.0  # in the memory that was given back
    found = gpu.backend.download(made, gpu.index)[0]
    need(np.array_equal(found, numbers + 1), "the copy is wrong")
    need(bool((other.to_device("cpu:0").numpy() == 7).all()), "what got its memory is wrong")
    need(_dropped(bench, holds=True), "the copy on a stream of its own is wrong, though its source was held")
    return ""


def dropped_too_early(bench: Bench) -> str:
    """The same on a stream for copies, and nothing held: it is wrong, so the check before can fail."""
    if bench.quick:
        raise NotRunError("a quick run keeps no stream busy")
    need(not _dropped(bench, holds=False), "without holding the source it was right all the same")
    return ""


def _dropped(bench: Bench, *, holds: bool) -> bool:
    """Whether a copy on a stream for copies that is busy is right when its source is dropped behind it."""
    gpu, count = bench.gpu, 10_000
    with gpu as device:
        xp = device.xp
        producing, copying = (xp.cuda.Stream(non_blocking=True) for _ in range(2))
        with copying:
            made = xp.zeros(count, "float32")
        with producing:
            numbers, seven = xp.arange(count, dtype="float32"), xp.full(count, 7, "float32")
        work = work_for(bench, gpu, copying)
        device.synchronize()

        work()
        with producing:
            sent = numbers + xp.float32(1)
            ready = xp.cuda.Event(disable_timing=True)
            ready.record(producing)
        with copying:
            copying.wait_event(ready)
            address = made.data.ptr, gpu.index, sent.data.ptr, gpu.index
            xp.cuda.runtime.memcpyPeerAsync(*address, sent.nbytes, copying.ptr)
            done = xp.cuda.Event(disable_timing=True)
            done.record(copying)
        with producing:
            held = sent if holds else None
            del sent
            other = seven * xp.float32(1)  # gets the memory of what was dropped
            producing.synchronize()
        with copying:
            found = made.get(stream=copying)
        device.synchronize()
        del held, other
    return np.array_equal(found, np.arange(count, dtype=np.float32) + 1)


def pinned_memory(bench: Bench) -> str:
    """An array may be changed once it was sent, and what comes back is there when it is given, after much work."""
    gpu, count = bench.gpu, 10_000 if bench.quick else 20_000_000  # more than the pinned buffers hold
    sent = np.arange(count, dtype=np.float32)
    keep_busy(bench, gpu)()
    there = Tensor.from_numpy(sent, gpu)
    sent[:] = -1
    back = (there + 1.0).to_device("cpu:0").numpy()
    need(np.array_equal(back, np.arange(count, dtype=np.float32) + 1), "what came back is wrong")
    return f"{4 * count / 1e6:.1f} MB"


def busy_gpus(bench: Bench) -> str:
    """Between two GPUs, one of them busy: what the other one computes from the copy is right, by either route."""
    numbers = np.arange(10_000, dtype=np.float32)
    for busy in bench.two:
        for source, destination in (bench.two, bench.two[::-1]):
            for route in (None, "staged"):
                work = keep_busy(bench, busy)
                former = Tensor.from_numpy(numbers, destination)
                work()
                before = former * 3.0
                del former
                produced = Tensor.from_numpy(numbers, source) + 1.0
                backend = source.backend
                (made,), taken = backend.copy_between([produced._data], source.index, destination.index, route)
                del produced
                with destination as device:
                    after = made * device.xp.float32(2)
                way = f"from {source} to {destination} ({taken}), {busy} busy"
                (found,) = backend.download([after], destination.index)
                need(np.array_equal(found, 2 * (numbers + 1)), f"{way}: the copy is wrong")
                what = "what its memory held before"
                need(np.array_equal(before.to_device("cpu:0").numpy(), 3 * numbers), f"{way}: {what} is wrong")
    return ""


def dropped_destinations(bench: Bench) -> str:
    """Copies that are dropped while they are queued, their memory given back to the driver: both GPUs work on.

    Wrong code may end CUDA's use in this process, so this comes last.
    """
    first, second = bench.two
    work = keep_busy(bench, first)
    x = Tensor.from_numpy(np.arange(100_000, dtype=np.float32), first)
    x.to_device(second)
    work()
    for _ in range(10):
        (x + 1.0).to_device(second)
    with second as device:
        device.xp.get_default_memory_pool().free_all_blocks()
    for gpu in bench.two:
        there = Tensor.from_numpy(np.ones(1000, np.float32), gpu)
        need(bool(((there + there).to_device("cpu:0").numpy() == 2).all()), f"a sum on {gpu} is wrong")
        gpu.synchronize()
    return ""


def keep_busy(bench: Bench, gpu: Device) -> Callable[[], None]:
    """Some 100 ms of work for the engine's stream of a GPU, in memory that is there already; done once."""
    with gpu as device:
        return work_for(bench, gpu, device.xp.cuda.get_current_stream())


def work_for(bench: Bench, gpu: Device, stream: Any) -> Callable[[], None]:
    """The same for any stream of it."""
    xp, extent, rounds = gpu.xp, *((16, 1) if bench.quick else (4096, 40))
    with gpu, stream:
        x, product = (xp.ones((extent, extent), "float32") for _ in range(2))

    def work(times: int = rounds) -> None:
        with gpu, stream:
            for _ in range(times):
                xp.matmul(x, x, out=product)

    work(1)
    return work


CHECKS = (
    *(streams_in_order, streams_out_of_order, dropped_sources, dropped_too_early),
    *(pinned_memory, busy_gpus),
)
LAST = (dropped_destinations,)
