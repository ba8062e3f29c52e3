"""What the CUDA backend must be able to do, on machines of every shape. Runs over a fake CuPy, not on a GPU.

Each exercise takes a machine, uses the backend as hard as the rule that it is
about needs, and fails by an assertion or by a fault that the fake finds.
`test_exercises.py` puts the backend to them, `test_planted_faults.py` copies
of it that are wrong on purpose.
"""

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from engine import Device, DeviceError, Tensor, transfer
from engine.backend import Backend
from tests.fake_cupy import Machine
from tests.fake_cupy.clocks import reaches


class Exercise(NamedTuple):
    """Something to do, and the settings of the machine to do it on."""

    run: Callable[[Machine], None]
    settings: dict[str, Any]


def backend() -> Backend:
    """The CUDA backend that the engine has loaded."""
    return Device("cuda:0").backend


def down(array: Any, index: int) -> np.ndarray:
    """A copy of one array of a GPU."""
    return backend().download([array], index)[0]


def with_small_buffers() -> None:
    """Let the pinned buffers be of 64 KiB, so that a small array fills them several times."""
    vars(importlib.import_module("engine.cuda"))["_STAGE_NBYTES"] = 1 << 16


def numbers(*shape: int, start: int = 0) -> np.ndarray:
    """float32 numbers that all differ."""
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def on(device: str, array: np.ndarray) -> Tensor:
    return Tensor.from_numpy(array, device)


def host(tensor: Tensor) -> np.ndarray:
    return tensor.to_device("cpu:0").numpy()


def a_produced_value_arrives_and_is_consumed(machine: Machine) -> None:
    """The copy waits for the source's kernels, the destination's kernels for the copy."""
    x = numbers(5, 7)
    produced = on("cuda:0", x) * 2.0 + 1.0
    arrived = produced.to_device("cuda:1")
    assert np.array_equal(host(arrived - 1.0), x * 2)
    assert np.array_equal(host(arrived.to_device("cuda:0") + produced), 2 * (x * 2 + 1))


def a_recycled_destination_is_not_overwritten_under_its_former_user(machine: Machine) -> None:
    """E_dst: the block that the copy gets may still be read by what the destination was asked before."""
    x = numbers(300)
    on("cuda:0", x).to_device("cuda:1")
    former = on("cuda:1", x)
    sums = former + 1.0
    del former
    arrived = on("cuda:0", x * 3).to_device("cuda:1")
    assert np.array_equal(host(sums), x + 1)
    assert np.array_equal(host(arrived), x * 3)


def a_source_may_be_dropped_at_once(machine: Machine) -> None:
    """What gets the source's memory next runs after the copy."""
    x = numbers(300)
    arrived = (on("cuda:0", x) + 1.0).to_device("cuda:1")
    others = [on("cuda:0", x) * 5.0 for _ in range(3)]
    assert np.array_equal(host(arrived), x + 1)
    assert all(np.array_equal(host(other), x * 5) for other in others)


def a_dropped_destination_stays_until_the_copy_is_done(machine: Machine) -> None:
    """Memory that goes back to the driver waits for no stream of another device."""
    x = on("cuda:0", numbers(300))
    x.to_device("cuda:1")
    Device("cuda:0").synchronize()
    for _ in range(3):
        x.to_device("cuda:1")
    with Device("cuda:1") as device:
        device.xp.get_default_memory_pool().free_all_blocks()
    assert np.array_equal(host(x.to_device("cuda:1")), numbers(300))


def many_dropped_destinations_stay_until_their_copies_are_done(machine: Machine) -> None:
    """Also those that leave the list because it is full."""
    x = on("cuda:0", numbers(300))
    for _ in range(100):
        x.to_device("cuda:1")
    with Device("cuda:1") as device:
        device.xp.get_default_memory_pool().free_all_blocks()


def an_interrupted_batch_leaves_no_copy_behind(machine: Machine) -> None:
    """What was queued before the interrupt is done before its memory is given to somebody else."""
    batch = [on("cuda:0", numbers(300, start=index)) for index in range(3)]
    batch[0].to_device("cuda:1")
    runtime = sys.modules["cupy"].cuda.runtime
    copy, left = runtime.memcpyPeerAsync, [None, None]

    def interrupted(*arguments: int) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        copy(*arguments)

    runtime.memcpyPeerAsync = interrupted
    try:
        transfer.copy(batch, "cuda:1")
    except KeyboardInterrupt:
        runtime.memcpyPeerAsync = copy
    assert np.array_equal(host(on("cuda:1", numbers(300)) + 1.0), numbers(300) + 1)


def copies_in_flight_are_few_and_let_go(machine: Machine) -> None:
    """The held copies are bounded while nothing is done, and gone after the next copy when all is."""
    x = on("cuda:0", numbers(128))
    x.to_device("cuda:1")
    Device("cuda:0").synchronize()
    before = machine.memories[1].in_use
    for _ in range(100):
        x.to_device("cuda:1")
    assert machine.memories[1].in_use - before <= 40 * 512
    machine.finish()
    x.to_device("cuda:1")
    assert machine.memories[1].in_use - before <= 512
    Device("cuda:0").synchronize()
    assert machine.memories[1].in_use == before


def no_host_waits_for_a_copy_between_gpus(machine: Machine) -> None:
    """A batch of copies is queued whole, and the host goes on."""
    batch = [on("cuda:0", numbers(50, start=index)) for index in range(5)]
    transfer.copy(batch, "cuda:1")
    known = dict(machine.host)
    arrived = transfer.copy([*batch, batch[0]], "cuda:1")
    assert machine.host == known
    assert arrived[5] is arrived[0]
    assert all(np.array_equal(host(tensor), numbers(50, start=index)) for index, tensor in enumerate(arrived[:5]))


def every_layout_arrives_as_it_was(machine: Machine) -> None:
    """Bits, shape, dtype and strides survive every kind of copy: rank 0, no elements, any order of axes (D5)."""
    cube = numbers(2, 3, 4)
    layouts = [np.float32(5)[...], cube[:0], cube, cube.T, cube.transpose(1, 0, 2), cube.transpose(2, 0, 1), cube[:1].T]
    for array in map(np.asarray, layouts):
        for dtype in ("float32", "bfloat16", "bool", "int8", "float64"):
            there = Tensor.from_numpy(array, "cpu:0").cast(dtype)
            for place in ("cuda:0", "cuda:1", "cuda:0", "cpu:1"):
                moved = there.to_device(place)
                assert (moved.shape, moved.dtype, moved._data.strides) == (
                    there.shape,
                    there.dtype,
                    there._data.strides,
                )
                assert moved.tobytes() == there.tobytes()
                there = moved


def an_array_with_gaps_is_copied_dense(machine: Machine) -> None:
    """Of a slice the elements are copied, not what lies between them."""
    cuda, wide = backend(), numbers(6, 8)
    made = cuda.upload(wide[:, ::2], 0)
    assert np.array_equal(down(made, 0), wide[:, ::2])
    whole = cuda.upload(wide, 0)
    for taken in (whole[:, 1::3], whole[::2].T, whole[1:5, 2:3]):
        expected = down(taken, 0)
        assert np.array_equal(down(cuda.copy_between([taken], 0, 1)[0][0], 1), expected)
    assert np.array_equal(down(whole[:, 1::3], 0), wide[:, 1::3])


def an_uploaded_array_may_be_changed_at_once(machine: Machine) -> None:
    """What was there at the call arrives, in parts when it is larger than a pinned buffer; those stay as large."""
    cuda = backend()
    with_small_buffers()
    for count in (3, 1000, 7, 60_000, 5):
        given = numbers(count)
        made = cuda.upload(given, 0)
        given.fill(-1)
        assert np.array_equal(down(made, 0), numbers(count))
    locked = machine.pinned.nbytes
    made = cuda.upload(numbers(90_000), 0)
    assert machine.pinned.nbytes == locked < made.nbytes


def large_downloads_arrive_through_small_buffers(machine: Machine) -> None:
    """In parts that share the buffers, of arrays of all sizes; the pinned memory stays as it is."""
    cuda = backend()
    with_small_buffers()
    batch = [numbers(count, start=count) for count in (3, 90_000, 1000, 1, 60_000, 5)]
    there = [cuda.upload(array, 0) for array in batch]
    for _ in range(2):
        for found, expected in zip(cuda.download(there, 0), batch, strict=True):
            assert np.array_equal(found, expected)
    assert machine.pinned.nbytes == 4 << 16


def downloads_are_sent_as_one_batch(machine: Machine) -> None:
    """The host waits for none before all are on their way."""
    batch = [on("cuda:0", numbers(50, start=index)) * 1.0 for index in range(5)]
    with recorded_copies(lambda stream: dict(machine.host)) as known:
        arrived = transfer.copy(batch, "cpu:0")
    assert len(known) == 5
    assert all(host == known[0] for host in known)
    assert all(np.array_equal(tensor.numpy(), numbers(50, start=index)) for index, tensor in enumerate(arrived))


def an_interrupted_download_is_forgotten(machine: Machine) -> None:
    """What was on its way is put nowhere, and the next download is right."""
    batch = [on("cuda:0", numbers(50, start=index)) for index in range(3)]

    def interrupt(stream: int) -> None:
        if len(seen) == 2:
            raise KeyboardInterrupt

    with recorded_copies(interrupt) as seen, suppress(KeyboardInterrupt):
        transfer.copy(batch, "cpu:0")
    assert len(seen) == 2
    with landed_arrays() as landed:
        assert np.array_equal(host(batch[2]), numbers(50, start=2))
    assert len(landed) == 1


def parts_of_a_staged_copy_overlap(machine: Machine) -> None:
    """The source sends the next part while the destination gets this one; an array smaller than a buffer has parts."""
    with_small_buffers()
    x = on("cuda:0", numbers(60_000))
    small = on("cuda:0", numbers(8_000))

    def waits(stream: int) -> bool:
        """Whether the source's stream knows all that the destination was asked to do."""
        return reaches(machine.queue(stream).clock, machine.queue(of_target).clock)

    with Device("cuda:1") as device:
        of_target = device.xp.cuda.get_current_stream().ptr
    with recorded_copies(waits) as known:
        arrived = x.to_device("cuda:1")
    assert len(known) >= 8
    assert not any(known[1:])
    with recorded_copies(waits) as known:
        other = small.to_device("cuda:1")
    assert len(known) >= 4
    assert np.array_equal(host(arrived), numbers(60_000))
    assert np.array_equal(host(other), numbers(8_000))


def copies_that_fill_the_memory_are_waited_for(machine: Machine) -> None:
    """Memory that only copies on their way hold is memory that there is."""
    x, large = on("cuda:0", numbers(1 << 18)), on("cuda:0", numbers(3 << 18))
    for _ in range(20):
        x.to_device("cuda:1")
    arrived = large.to_device("cuda:1")
    x.to_device("cuda:1")
    assert np.array_equal(host(arrived), numbers(3 << 18))
    del arrived
    held = on("cuda:1", numbers(5 << 18))
    with suppress(DeviceError):
        transfer.copy([x, x + 1.0], "cuda:1")
    assert machine.memories[1].in_use == held.nbytes


@contextmanager
def recorded_copies(look: Callable[[int], Any]) -> Iterator[list[Any]]:
    """What `look` gives for the stream of each copy from a GPU to the host, before it is issued."""
    runtime = sys.modules["cupy"].cuda.runtime
    copy, found = runtime.memcpyAsync, []

    def recording(destination: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        if kind == runtime.memcpyDeviceToHost:
            found.append(look(stream))
        copy(destination, source, nbytes, kind, stream)

    runtime.memcpyAsync = recording
    try:
        yield found
    finally:
        runtime.memcpyAsync = copy


@contextmanager
def landed_arrays() -> Iterator[list[Any]]:
    """What is put into memory of the host by a download."""
    stage = importlib.import_module("engine.cuda_staging").DownStage
    land, found = stage._land, []

    def landing(self: Any) -> None:
        found.append(self._arriving[0])
        land(self)

    stage._land = landing
    try:
        yield found
    finally:
        stage._land = land


def a_download_sees_the_last_kernel(machine: Machine) -> None:
    """It waits for the array's own stream, whatever device is current."""
    x = on("cuda:1", numbers(40)) + 1.0
    with Device("cuda:0"):
        assert np.array_equal(host(x), numbers(40) + 1)
        assert np.array_equal(down(x._data, 1), numbers(40) + 1)


def copies_through_the_host_keep_their_order(machine: Machine) -> None:
    """The staged route: many parts in a few pinned buffers, with work before and after, both ways, without a wait."""
    x = numbers(50_001)
    on("cuda:0", x)
    with_small_buffers()
    there = (on("cuda:0", x) + 1.0).to_device("cuda:1")
    known = dict(machine.host)
    back = (there * 2.0).to_device("cuda:0")
    small = [on_gpu.to_device("cuda:1") for on_gpu in [back + 1.0] * 2]
    assert machine.host == known
    assert np.array_equal(host(back), (x + 1) * 2)
    assert all(np.array_equal(host(copy), (x + 1) * 2 + 1) for copy in small)
    assert not machine.enabled


def peer_access_that_is_on_already_is_fine(machine: Machine) -> None:
    """CuPy may have switched it on before (704)."""
    machine.enabled.add((0, 1))
    assert np.array_equal(host(on("cuda:0", numbers(9)).to_device("cuda:1")), numbers(9))
    assert machine.enabled == {(0, 1), (1, 0)}


def peer_access_is_not_switched_under_queued_copies(machine: Machine) -> None:
    """A new pair is connected while copies of other pairs are queued."""
    x = on("cuda:0", numbers(9))
    for place in ("cuda:1", "cuda:2", "cuda:3", "cuda:1", "cuda:0"):
        x = (x + 1.0).to_device(place)
    assert np.array_equal(host(x), numbers(9) + 5)


def a_peer_that_loses_data_is_not_used(machine: Machine) -> None:
    """The first copy of a pair finds out; the pair goes through the host from then on."""
    x = on("cuda:0", numbers(2000))
    former = on("cuda:1", numbers(2000, start=7)) + 1.0  # what a lost copy would leave behind
    del former
    arrived = x.to_device("cuda:1")
    assert np.array_equal(host(arrived), numbers(2000))
    assert not machine.enabled
    assert np.array_equal(host(arrived.to_device("cuda:0")), numbers(2000))


def a_device_copies_to_itself(machine: Machine) -> None:
    """The same recipe with one device twice, so that one GPU can run it."""
    cuda = backend()
    array = cuda.upload(numbers(100), 2)
    copies, route = cuda.copy_between([array], 2, 2)
    with Device("cuda:2"):
        sums = copies[0] + array
    assert route == "peer"
    assert np.array_equal(down(sums, 2), numbers(100) * 2)


def threads_work_on_devices_of_their_own(machine: Machine) -> None:
    """A new thread starts on device 0; every use enters the tensor's own. Tensors go from thread to thread freely."""
    start = threading.Barrier(8)

    def work(index: int) -> np.ndarray:
        start.wait()
        x = on(f"cuda:{index % 4}", numbers(20, start=index))
        for step in range(4):
            x = (x + 1.0).to_device(f"cuda:{(index + step) % 4}")
        return host(x * shared.to_device(x.device))

    shared = on("cuda:3", numbers(20)) + 1.0
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    for index, result in enumerate(results):
        assert np.array_equal(result, (numbers(20, start=index) + 4) * (numbers(20) + 1))


PEERS: dict[str, Any] = {}
NO_PEERS: dict[str, Any] = {"peers": ()}
PER_THREAD: dict[str, Any] = {"per_thread": True}
ONE_WAY_LOST: dict[str, Any] = {"dropping": [(1, 0)]}
LOST: dict[str, Any] = {"dropping": [(0, 1)]}

EXERCISES = [
    *(Exercise(run, settings) for settings in (PEERS, PER_THREAD, NO_PEERS) for run in (
        a_produced_value_arrives_and_is_consumed,
        a_recycled_destination_is_not_overwritten_under_its_former_user,
        a_source_may_be_dropped_at_once,
        a_dropped_destination_stays_until_the_copy_is_done,
        many_dropped_destinations_stay_until_their_copies_are_done,
        copies_in_flight_are_few_and_let_go,
        no_host_waits_for_a_copy_between_gpus,
        every_layout_arrives_as_it_was,
        an_array_with_gaps_is_copied_dense,
        a_download_sees_the_last_kernel,
        threads_work_on_devices_of_their_own,
    )),
    Exercise(an_interrupted_batch_leaves_no_copy_behind, PEERS),
    Exercise(an_uploaded_array_may_be_changed_at_once, PEERS),
    Exercise(large_downloads_arrive_through_small_buffers, PEERS),
    Exercise(downloads_are_sent_as_one_batch, PEERS),
    Exercise(an_interrupted_download_is_forgotten, PEERS),
    Exercise(parts_of_a_staged_copy_overlap, NO_PEERS),
    Exercise(copies_that_fill_the_memory_are_waited_for, {"memory": 6 << 20}),
    Exercise(copies_through_the_host_keep_their_order, NO_PEERS),
    Exercise(copies_through_the_host_keep_their_order, {"peers": [(0, 1)]}),
    Exercise(peer_access_that_is_on_already_is_fine, PEERS),
    Exercise(peer_access_is_not_switched_under_queued_copies, PEERS),
    Exercise(a_peer_that_loses_data_is_not_used, LOST),
    Exercise(a_peer_that_loses_data_is_not_used, ONE_WAY_LOST),
    Exercise(a_device_copies_to_itself, PEERS),
    Exercise(a_device_copies_to_itself, NO_PEERS),
]  # fmt: skip
