"""The fake CuPy's memory and arrays: what it objects to, and what it lets pass. Nothing here ran on a GPU.

Section 6.3 of the CUDA notes, in CuPy's own calls; `test_fake_streams.py` has
what of it is about order.
"""

import threading
from typing import Any

import numpy as np
import pytest

from tests.fake_cupy import CUDARuntimeError, Fault, Machine, OutOfMemoryError, PerformanceWarning, installed

from .calls import event, on

pytestmark = pytest.mark.usefixtures("machine")


@pytest.mark.parametrize("operation", ["add", "matmul"])
def test_a_remote_operand_is_a_fault(cp: Any, operation: str) -> None:
    """C2: CuPy would read it over the link, or die."""
    with cp.cuda.Device(1):
        remote = cp.ones((2, 2))
    with pytest.raises(Fault, match="cuda:0 and touches an array on cuda:1"):
        getattr(cp, operation)(cp.ones((2, 2)), remote)
    with pytest.raises(Fault):
        cp.asarray(remote)


def test_in_the_other_mode_a_remote_operand_is_what_cupy_makes_of_it() -> None:
    """1.2.2: a warning where peer access is possible, an error elsewhere, and for products the end (700)."""
    with installed(Machine(peers=[(0, 1)], remote="cupy")) as machine:
        import cupy as cp

        arrays = []
        for device in range(3):
            with cp.cuda.Device(device):
                arrays.append(cp.ones((2, 2)))
            machine.wait_all()
        with pytest.warns(PerformanceWarning):
            arrays[0] + arrays[1]
        with pytest.raises(ValueError, match="Array device must be same"):
            arrays[0] + arrays[2]
        with pytest.raises(CUDARuntimeError) as found:
            cp.matmul(arrays[0], arrays[2])
        assert found.value.status == 700
        with pytest.raises(CUDARuntimeError):
            cp.ones(3)
        assert not cp.cuda.Stream.null.done


def test_an_asynchronous_copy_to_pinned_memory_lands_late(cp: Any, streams: Any) -> None:
    """3.3.3: what the host reads before it waits is not the array."""
    import cupyx

    host = cupyx.empty_pinned(10, "int64")
    with on(cp, 0, streams[0]):
        cp.arange(10).get(out=host, blocking=False)
        assert host.tolist() != list(range(10))
        streams[0].synchronize()
    assert host.tolist() == list(range(10))
    ordinary = np.empty(10, "int64")
    assert cp.arange(10).get(out=ordinary, blocking=False).tolist() == list(range(10))


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("drops", [True, False])
def test_pinned_memory_must_stay_as_it_is_until_a_copy_from_it_is_done(cp: Any, waits: bool, drops: bool) -> None:
    """3.1.1: rewritten or dropped in flight, it corrupts what arrives, or its next owner."""
    import cupyx

    stream, array = cp.cuda.Stream(), cp.empty(100, "uint8")
    host = cupyx.zeros_pinned(100, "uint8")
    array.set(host, stream)
    if waits:
        stream.synchronize()
    if drops:
        del host
    else:
        host.fill(1)
    if waits:
        stream.synchronize()
        assert not array.get(stream=stream).any()
    else:
        with pytest.raises(Fault, match="rewritten or dropped"):
            stream.synchronize()


def test_a_later_copy_to_pinned_memory_may_have_come_already(cp: Any, streams: Any) -> None:
    """Who waits for the first of two copies to one place sees neither; who waits for both sees the second."""
    p, _, _ = streams
    host = np.frombuffer(cp.cuda.alloc_pinned_memory(80), np.int64, 10)
    runtime = cp.cuda.runtime
    with on(cp, 0, p):
        made = [cp.arange(10) * factor for factor in (3, 5)]
        done = []
        for array in made:
            runtime.memcpyAsync(host.ctypes.data, array.data.ptr, 80, runtime.memcpyDeviceToHost, p.ptr)
            done.append(event(cp, p))
    done[0].synchronize()
    assert host[1] not in (3, 5)
    done[1].synchronize()
    assert host.tolist() == list(range(0, 50, 5))


def test_pinned_memory_must_not_be_dropped_under_a_copy_to_it(cp: Any) -> None:
    """3.1.1."""
    import cupyx

    stream = cp.cuda.Stream()
    with stream:
        array = cp.arange(10)
        array.get(out=cupyx.empty_pinned(10, "int64"), blocking=False)
    with pytest.raises(Fault, match="dropped"):
        stream.synchronize()


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("full", [True, False])
def test_memory_must_not_go_to_the_driver_under_a_copy_of_a_peer(held: bool, full: bool) -> None:
    """1.4.6: by `free_all_blocks`, or by the allocator when memory is short."""
    with installed(Machine(devices=2, memory=1 << 16)):
        import cupy as cp

        source = cp.zeros(20_000, "uint8")
        with cp.cuda.Device(1):
            destination = cp.empty(20_000, "uint8")
            theirs = cp.cuda.get_current_stream()
        cp.cuda.runtime.memcpyPeerAsync(destination.data.ptr, 1, source.data.ptr, 0, 20_000, 0)
        done = event(cp, cp.cuda.Stream.null)
        kept = [destination] if held else []
        del destination
        with cp.cuda.Device(1):
            theirs.wait_event(done)
            release = cp.get_default_memory_pool().free_all_blocks
            if full:
                release = lambda: cp.zeros(40_000 if held else 50_000, "uint8")  # noqa: E731
            if held:
                release()
                assert not kept[0].get().any()
            else:
                with pytest.raises(Fault, match="goes to the driver"):
                    release()


def test_the_pool_frees_before_it_gives_up() -> None:
    """1.4.5, and the limit of 1.4.5."""
    with installed(Machine(devices=1, memory=1 << 16)):
        import cupy as cp

        small = [cp.zeros(1000, "uint8") for _ in range(40)]
        del small
        big = cp.zeros(60_000, "uint8")
        pool = cp.get_default_memory_pool()
        assert pool.used_bytes() == pool.total_bytes() == 60_416
        with pytest.raises(OutOfMemoryError, match="allocating 60,416 bytes"):
            cp.zeros(60_000, "uint8")
        pool.set_limit(size=60_416)
        assert cp.cuda.runtime.memGetInfo() == ((1 << 16) - 60_416, 1 << 16)
        with pytest.raises(OutOfMemoryError, match="limit set to"):
            cp.zeros(1, "uint8")
        assert big.get().sum() == 0


def test_peer_access_has_its_errors(machine: Machine, cp: Any) -> None:
    """2.1.2: 704 enabled already, 705 not enabled, 101 itself, 217 impossible."""
    runtime = cp.cuda.runtime
    runtime.deviceEnablePeerAccess(1)
    for call, peer, status in (
        (runtime.deviceEnablePeerAccess, 1, 704),
        (runtime.deviceDisablePeerAccess, 2, 705),
        (runtime.deviceEnablePeerAccess, 0, 101),
    ):
        with pytest.raises(CUDARuntimeError) as found:
            call(peer)
        assert found.value.status == status
    with installed(Machine(peers=())):
        import cupy

        with pytest.raises(CUDARuntimeError) as found:
            cupy.cuda.runtime.deviceEnablePeerAccess(1)
        assert found.value.status == 217


def test_a_thread_starts_on_device_0(cp: Any) -> None:
    """1.1.2: whatever its parent had."""
    found = []
    with cp.cuda.Device(2):
        thread = threading.Thread(target=lambda: found.append(cp.zeros(3).device.id))
        thread.start()
        thread.join()
    assert found == [0]


def test_get_takes_the_stream_of_the_current_device(cp: Any, streams: Any) -> None:
    """3.3.2: called under another device it reads too early."""
    with on(cp, 1, streams[1]):
        made = cp.arange(10)
    with on(cp, 0, streams[0]), pytest.raises(Fault, match="race"):
        made.get()
    with on(cp, 1, streams[1]):
        assert made.get().sum() == 45


def test_nothing_becomes_a_numpy_array_by_itself(cp: Any) -> None:
    """1.2.3; and a value of the device that decides something is a hidden wait."""
    array = cp.arange(3)
    for use in (lambda: np.asarray(array), lambda: array + np.ones(3), lambda: np.ones(3) + array):
        with pytest.raises(TypeError):
            use()
    for use in (
        lambda: np.exp(array),
        lambda: np.concatenate([array, array]),
        lambda: bool(array[0]),
        lambda: 1 if array.any() else 0,
        lambda: [1, 2, 3][array[0]],
        lambda: array[array > 1],
        lambda: array[np.array([0])],
    ):
        with pytest.raises(Fault):
            use()
    assert int(array.sum()) == 3
    assert (np.float32(2) * array).get().tolist() == [0, 2, 4]
    assert (2 * array - 1).get().tolist() == [-1, 1, 3]
    assert not isinstance(array, np.ndarray)
    assert not hasattr(array.flags, "writeable")
    with pytest.raises(TypeError, match="unhashable"):
        hash(array.device)


def test_raw_copies_have_no_bounds_but_the_fake_does(cp: Any) -> None:
    """2.2: too many bytes touch what is nobody's, too few leave bytes that nobody wrote; null pointers are refused."""
    source, target, empty = cp.arange(100), cp.empty(100, "int64"), cp.empty(0)
    copy = cp.cuda.runtime.memcpyPeerAsync
    with pytest.raises(Fault, match="belong to no array"):
        copy(target.data.ptr, 0, source.data.ptr, 0, 2000, 0)
    copy(target.data.ptr, 0, source.data.ptr, 0, 100, 0)
    with pytest.raises(Fault, match="nobody wrote"):
        target.get()
    assert empty.data.ptr == 0
    for arguments in ((0, 0, source.data.ptr, 0, 8, 0), (target.data.ptr, 1, source.data.ptr, 0, 8, 0)):
        with pytest.raises(CUDARuntimeError):
            copy(*arguments)


def test_memory_remembers_that_nobody_wrote_it(cp: Any) -> None:
    """6.1.6: also where half of it was, and after it was freed."""
    half = cp.empty((4, 4))
    half[:, :2] = 1.0
    assert half[:, :2].get().all()
    with pytest.raises(Fault, match="nobody wrote"):
        half + 1
    address = half.data.ptr
    del half
    again = cp.empty((4, 4))
    assert again.data.ptr == address
    with pytest.raises(Fault, match="nobody wrote"):
        again.get()


def test_views_share_their_memory_and_need_no_kernel(cp: Any) -> None:
    """6.1.8: reductions give arrays of rank 0; a scalar index gives one too."""
    array = cp.arange(12).reshape(3, 4)
    assert array.T[1].data.ptr == array.data.ptr + 8
    array[1, 2] = 100
    assert array.reshape(-1)[6].shape == array.max().shape == ()
    assert array.T.get()[2, 1] == array[1, 2].item() == 100
    array += array
    assert array[1, 2].item() == 200


def test_dtypes_are_those_that_cupy_has(cp: Any) -> None:
    """3.4: no kernels for float8, and none for products of bfloat16 in more than two dimensions."""
    for name in ("float8_e4m3fn", "int4"):
        with pytest.raises((ValueError, TypeError)):
            cp.zeros(3, name)
    halves = cp.ones((2, 2, 2), "bfloat16")
    assert cp.matmul(halves[0], halves[1]).dtype == "bfloat16"
    with pytest.raises(TypeError, match="more than two dimensions"):
        cp.matmul(halves, halves)


def test_a_query_is_done_only_when_the_device_is(machine: Machine, cp: Any) -> None:
    """1.3.6; nothing is done by itself, until the test says that the devices have caught up."""
    stream = cp.cuda.Stream()
    with stream:
        cp.arange(10)
        done = event(cp, stream)
    assert not done.done
    assert not stream.done
    machine.finish()
    assert done.done
    assert stream.done


def test_what_is_queued_at_the_end_is_waited_for() -> None:
    """A fault that nobody waited for is found when the machine is taken away."""

    def rewrite() -> None:
        with installed(Machine()):
            import cupy
            import cupyx

            host = cupyx.zeros_pinned(10, "uint8")
            array = cupy.asarray(host)
            host.fill(1)
            assert array.size == 10

    with pytest.raises(Fault, match="rewritten"):
        rewrite()
