"""The fake CuPy's streams object to what is wrong on purpose, and to nothing else. Nothing here ran on a GPU.

Section 6.3 of the CUDA notes, in CuPy's own calls; what of it the engine's
backend could have is planted there, in `test_planted_faults.py`.
"""

import threading
from typing import Any

import numpy as np
import pytest

from tests.fake_cupy import CUDARuntimeError, Fault, Machine, installed

from .calls import event, on

pytestmark = pytest.mark.usefixtures("machine")


def overlapping_copy(cp: Any, streams: tuple[Any, Any, Any], without: str) -> None:
    """The overlap form of the recipe of 2.4, with a step left out."""
    p, c, k = streams
    with on(cp, 1, c):
        recycled = cp.zeros(1000, "float32")
        total = recycled + 1.0
        del recycled
    with on(cp, 0, p):
        whole = cp.arange(2000).astype("float32").reshape(1000, 2)
        source = cp.ascontiguousarray(whole[:, 0])
        ready = event(cp, p)
    with on(cp, 1, c):
        destination = cp.empty(1000, "float32")
        vacant = event(cp, c)
    with on(cp, 0, k):
        if without != "E_ready":
            k.wait_event(ready)
        if without != "E_dst":
            k.wait_event(vacant)
        address = destination.data.ptr, 1, source.data.ptr, 0
        cp.cuda.runtime.memcpyPeerAsync(*address, source.nbytes, k.ptr)
        done = event(cp, k)
    with on(cp, 0, p):
        held = [source]
        del source, whole
        if without == "the in-flight list":
            held.clear()
        other = [cp.zeros(1000, "float32") for _ in range(3)]
    with on(cp, 1, c):
        if without != "E_done":
            c.wait_event(done)
        result = (destination + total).get(stream=c)
    assert np.array_equal(result, np.arange(0, 2000, 2) + 1)
    assert len(other) == 3


def test_the_overlapping_recipe_is_right(cp: Any, streams: Any) -> None:
    """A source and a temporary on a third stream, a recycled destination: no fault where there is none."""
    overlapping_copy(cp, streams, without="nothing")


@pytest.mark.parametrize("step", ["E_ready", "E_dst", "E_done", "the in-flight list"])
def test_the_overlapping_recipe_without_a_step_is_a_race(cp: Any, streams: Any, step: str) -> None:
    """The producer, the destination's former owner, the consumer, and what gets the source's memory next."""
    with pytest.raises(Fault, match="race"):
        overlapping_copy(cp, streams, without=step)


def test_a_fresh_destination_needs_no_event(cp: Any, streams: Any) -> None:
    """Memory without a history is nobody's; so a test of E_dst must free something first."""
    p, c, _ = streams
    with on(cp, 0, p):
        source = cp.arange(10)
    with on(cp, 1, c):
        destination = cp.empty(10, "int64")
    with on(cp, 0, p):
        cp.cuda.runtime.memcpyPeerAsync(destination.data.ptr, 1, source.data.ptr, 0, 80, p.ptr)


def test_events_belong_to_the_device_that_was_current(cp: Any, streams: Any) -> None:
    """1.3.3: recording one on another device's stream is error 400; so is `record` without an event."""
    p, c, _ = streams
    with cp.cuda.Device(0):
        wrong = cp.cuda.Event()
        with pytest.raises(CUDARuntimeError) as found:
            wrong.record(c)
        assert found.value.status == 400
        with pytest.raises(CUDARuntimeError):
            c.record()
        p.record()


def test_waiting_for_an_event_that_was_never_recorded_is_a_fault(cp: Any, streams: Any) -> None:
    """1.3.5: CUDA waits for nothing and says nothing."""
    unrecorded = cp.cuda.Event()
    for use in (lambda: streams[0].wait_event(unrecorded), unrecorded.synchronize, lambda: unrecorded.done):
        with pytest.raises(Fault, match="never recorded"):
            use()


def test_a_wait_takes_the_recording_of_its_moment(cp: Any, streams: Any) -> None:
    """1.3.5: later recordings do not move it."""
    p, _, k = streams
    with on(cp, 0, p):
        early = cp.arange(10)
        moment = event(cp, p)
        k.wait_event(moment)
        late = cp.arange(10)
        moment.record(p)
    with on(cp, 0, k):
        early + early
        with pytest.raises(Fault, match="race"):
            late + late


def test_a_stream_is_entered_under_its_own_device_only(cp: Any, streams: Any) -> None:
    """1.3.1."""
    with cp.cuda.Device(1), pytest.raises(RuntimeError, match="does not match"), streams[0]:
        pass


def test_the_null_stream_joins_the_blocking_streams_of_its_device(cp: Any) -> None:
    """1.3.7: those that are non-blocking take no part."""
    made = cp.arange(10)
    with cp.cuda.Stream(non_blocking=False):
        assert (made + 1).get().tolist() == list(range(1, 11))
        inner = made * 2
    assert (inner + made).get().sum() == 135
    late = made + 1
    with cp.cuda.Stream(non_blocking=True), pytest.raises(Fault, match="race"):
        late + 1


def test_a_copy_on_the_null_stream_joins_both_devices(cp: Any) -> None:
    """1.3.7: correct, and no overlap at all."""
    with cp.cuda.Device(1):
        destination = cp.zeros(10, "int64")
        destination += 1
    source = cp.arange(10)
    cp.cuda.runtime.memcpyPeerAsync(destination.data.ptr, 1, source.data.ptr, 0, 80, 0)
    with cp.cuda.Device(1):
        assert (destination + 1).get().tolist() == list(range(1, 11))


def test_with_the_threads_own_default_stream_the_joins_are_gone() -> None:
    """1.3.8."""
    with installed(Machine(per_thread=True)):
        import cupy as cp

        assert cp.cuda.get_current_stream() is cp.cuda.Stream.ptds
        made = cp.arange(10)
        with cp.cuda.Stream.null:
            made + 1
        seen = []

        def look() -> None:
            try:
                made + 1
            except Fault as fault:
                seen.append(fault)

        late = threading.Thread(target=look)
        made += 1
        late.start()
        late.join()
        assert len(seen) == 1


def test_time_passes_between_two_events_of_one_device_that_are_done(cp: Any, streams: Any) -> None:
    """1.3.3 and 4.1.2: 400 across devices, without timing or before recording; 600 before both are done."""
    p, c, _ = streams
    elapsed = cp.cuda.get_elapsed_time

    def timing(stream: Any) -> Any:
        made = cp.cuda.Event()
        made.record(stream)
        return made

    with on(cp, 0, p):
        start, untimed = timing(p), event(cp, p)
        cp.arange(10)
        end = timing(p)
    with on(cp, 1, c):
        away = timing(c)
    for other, status in ((end, 600), (away, 400), (untimed, 400), (cp.cuda.Event(), 400)):
        with pytest.raises(CUDARuntimeError) as caught:
            elapsed(start, other)
        assert caught.value.status == status
    end.synchronize()
    assert elapsed(start, end) > 0
