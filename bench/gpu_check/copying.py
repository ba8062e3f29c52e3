"""Copies: every bit arrives, by every route, in the right order; and the order is needed."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np

from engine import Device, Tensor, transfer
from engine.dtype import DTYPES

from .check import Bench, NotRunError, need

_SIZES: Final = (1, 511, 4097, (1 << 20) + 3, (1 << 26) + 1)
_QUICK_SIZES: Final = (1, 511, 4097)


def host_copies(bench: Bench) -> str:
    """From the CPU to the GPU and back: every dtype, contiguous, transposed, stepped, rank 0, empty, large."""
    cube = np.arange(24).reshape(2, 3, 4)
    large = np.arange(10_000 if bench.quick else 30_000_000) % 100
    arrays = [cube, cube.T, cube[:, ::2], cube[1, 1, 1], cube[:0], large]
    for dtype in sorted(DTYPES, key=str):
        here = [Tensor.from_numpy(np.asarray(array).astype(dtype), "cpu:0") for array in arrays]
        back = transfer.copy(transfer.copy(here, bench.gpu), "cpu:0")
        for sent, arrived in zip(here, back, strict=True):
            same = (arrived.shape, arrived.dtype, arrived.tobytes()) == (sent.shape, sent.dtype, sent.tobytes())
            need(same, f"{sent.shape} {dtype} came back changed")
            need(arrived.numpy().strides == sent.numpy().strides, f"{sent.shape} {dtype} came back in another order")
    return f"{len(DTYPES)} dtypes, {len(arrays)} layouts"


def peer_call(bench: Bench) -> str:
    """The recipe of two GPUs with one GPU twice: the peer call and its arguments."""
    for nbytes in _QUICK_SIZES if bench.quick else _SIZES:
        _copied_right(bench.gpu, bench.gpu, nbytes, "peer")
    return f"{bench.gpu} to itself"


def two_gpus(bench: Bench) -> str:
    """Between two GPUs, both ways: the route that is taken, and the other one."""
    first, second = bench.two
    taken = set()
    for source, destination in ((first, second), (second, first)):
        for nbytes in _QUICK_SIZES if bench.quick else _SIZES:
            taken.add(_copied_right(source, destination, nbytes, None))
            _copied_right(source, destination, nbytes, "staged")
    return f"{first} and {second} go by {', '.join(sorted(taken))}"


def _copied_right(source: Device, destination: Device, nbytes: int, route: Any) -> str:
    """Whether a batch arrives; it is produced on the GPU just before, and used just after. The route."""
    numbers = (np.arange(nbytes) % 120).astype(np.uint8)
    produced = Tensor.from_numpy(numbers, source) + 1
    backend = source.backend
    made, taken = backend.copy_between([produced._data] * 3, source.index, destination.index, route)
    for copy in backend.download(made, destination.index):
        need(np.array_equal(copy, numbers + 1), f"{nbytes} bytes from {source} to {destination} ({taken}) are wrong")
    return taken


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
        work = [_work(bench, stream) for stream in (producing, consuming)]
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


def _work(bench: Bench, stream: Any) -> Callable[[], None]:
    """Some 100 ms of work for a stream, in memory that is there already; done once."""
    xp, extent, rounds = bench.gpu.xp, *((16, 1) if bench.quick else (4096, 40))
    with stream:
        x, product = (xp.ones((extent, extent), "float32") for _ in range(2))

    def work(times: int = rounds) -> None:
        with stream:
            for _ in range(times):
                xp.matmul(x, x, out=product)

    work(1)
    return work


def no_leaks(bench: Bench) -> str:
    """A thousand copies leave no memory in use."""
    x = Tensor.from_numpy(np.ones(1000, np.float32), bench.gpu)
    places: Sequence[Any] = ["cpu:0", *(gpu for gpu in bench.gpus[1:2])]

    def rounds(count: int) -> None:
        for _ in range(count):
            for place in places:
                x.to_device(place).to_device(bench.gpu)
        for gpu in bench.gpus:
            gpu.synchronize()

    rounds(2)
    before = _in_use(bench)
    rounds(10 if bench.quick else 1000)
    after = _in_use(bench)
    need(after == before, f"{before} bytes were in use before, {after} after")
    return ""


def _in_use(bench: Bench) -> list[int]:
    found = []
    for gpu in bench.gpus:
        with gpu:
            found.append(gpu.xp.get_default_memory_pool().used_bytes())
    return found


CHECKS = (host_copies, peer_call, streams_in_order, streams_out_of_order, no_leaks, two_gpus)
