"""The device and the stream that are current, per thread. This ran over a fake CuPy and not on a GPU."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Device, tensor
from tests.fake_cupy import Machine, installed


@given(path=st.lists(st.integers(0, 3), max_size=6), fails=st.booleans())
def test_contexts_nest_in_any_order_and_restore_what_was_current(path: list[int], fails: bool) -> None:
    """C1: leaving gives back the device and the stream of before, after an error too."""
    with installed(Machine()):
        import cupy
        from cupy.cuda import Stream, get_current_stream, runtime

        def descend(rest: list[int]) -> None:
            before = runtime.getDevice(), get_current_stream()
            if rest:
                with Device(f"cuda:{rest[0]}"):
                    assert runtime.getDevice() == rest[0]
                    assert get_current_stream().device_id == rest[0]
                    descend(rest[1:])
                    if fails:
                        raise KeyError(rest[0])
            assert (runtime.getDevice(), get_current_stream()) == before

        cupy.cuda.Device(2).use()
        try:
            descend(path)
        except KeyError:
            assert fails
        assert runtime.getDevice() == 2
        assert get_current_stream() is Stream.null


def test_all_threads_share_the_one_stream_of_a_device(machine: Machine) -> None:
    """C5: streams are made once, so what one thread made another may use."""
    found = []

    def look() -> None:
        from cupy.cuda import get_current_stream

        with Device("cuda:1"):
            found.append(get_current_stream().ptr)

    for thread in [threading.Thread(target=look) for _ in range(3)]:
        thread.start()
        thread.join()
    with Device("cuda:1"):
        look()
    assert len(set(found)) == 1


def test_operations_leave_the_users_device_and_stream_alone(machine: Machine) -> None:
    """A program may use CuPy beside the engine."""
    import cupy

    with cupy.cuda.Device(3):
        own = cupy.cuda.Stream()
        with own:
            x = tensor([1.0, 2.0], device="cuda:0")
            y = (x * 2.0).to_device("cuda:1").to_device("cuda:3")
            assert cupy.cuda.get_current_stream() is own
            assert cupy.cuda.runtime.getDevice() == 3
            assert float(y[1]) == 4


def test_a_cpu_device_enters_nothing() -> None:
    """Its context does nothing."""
    with Device("cpu:3") as device, pytest.raises(ValueError, match="kept"), Device("cpu:0"):
        raise ValueError("kept")
    assert device == Device("cpu:3")
