"""The numbers of CUDA's errors, which the engine reads, and events that are done when they are."""

from collections.abc import Callable
from typing import Any

import numpy as np

from engine import Tensor

from .check import Bench, NotRunError, need
from .ordering import work_for


def statuses(bench: Bench) -> str:
    """CUDA's errors have the numbers that the engine reads: 101, 400, 600; an event is done when it is."""
    gpu = bench.gpu
    with gpu as device:
        cuda = device.xp.cuda
        stream = cuda.Stream(non_blocking=True)
        work = work_for(bench, gpu, stream)
        device.synchronize()
        timed, untimed = cuda.Event(), cuda.Event(disable_timing=True)
        timed.record(stream)
        untimed.record(stream)
        stream.synchronize()
        found = {
            101: _status(cuda.runtime.setDevice, 99),
            400: _status(cuda.get_elapsed_time, timed, untimed),
        }
        later = cuda.Event()
        if not bench.quick:
            work()
        later.record(stream)
        if not bench.quick:
            need(not later.done, "an event is done before the work that it comes after")
            found[600] = _status(cuda.get_elapsed_time, timed, later)
        stream.synchronize()
        need(later.done, "an event is not done after its stream was waited for")
        need(cuda.get_elapsed_time(timed, later) >= 0, "the time between two events is negative")
    for expected, status in found.items():
        need(status == expected, f"an error has the number {status}, not {expected}")
    return ", ".join(map(str, found))


def peer_statuses(bench: Bench) -> str:
    """Peer access that is on, or off, says so by 704 and 705; after both it works."""
    first, second = bench.two
    with first as device:
        runtime = device.xp.cuda.runtime
        if not runtime.deviceCanAccessPeer(first.index, second.index):
            raise NotRunError(f"{first} does not reach the memory of {second}")
    x = Tensor.from_numpy(np.arange(1000, dtype=np.float32), first)
    x.to_device(second)
    for gpu in bench.gpus:
        gpu.synchronize()
    was_on = True
    with first:
        for call, status in ((runtime.deviceEnablePeerAccess, 704), (runtime.deviceDisablePeerAccess, 705)):
            found = [_status(call, second.index) for _ in range(2)]
            if status == 704 and found[0] == 0:
                was_on = False  # by the engine: the driver refused, or data were lost
            need(found[1] == status, f"the second call gives {found[1]}, not {status}")
        if was_on:
            runtime.deviceEnablePeerAccess(second.index)
    need(x.to_device(second).tobytes() == x.tobytes(), "a copy afterwards is wrong")
    return "" if was_on else f"the engine had not switched it on between {first} and {second}"


def _status(call: Callable[..., object], *arguments: Any) -> int:
    """CUDA's number of what a call raises; 0 where it raises nothing."""
    try:
        call(*arguments)
    except Exception as error:
        status = getattr(error, "status", None)
        if not isinstance(status, int):
            raise
        return status
    return 0


CHECKS = (statuses, peer_statuses)
