"""Copies among CPU devices and GPUs, and how they are logged. This ran over a fake CuPy and not on a GPU."""

import warnings
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Device, DeviceError, Tensor, transfer
from engine.dtype import DTYPES
from tests.fake_cupy import Machine, installed

from .exercises import with_small_buffers

PLACES = ["cpu:0", "cpu:1", "cuda:0", "cuda:1", "cuda:2", "cuda:3"]
PAIRS = [(a, b) for a in range(4) for b in range(a)]


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Arrays of every dtype a tensor has, rank 0 and no elements included, their axes in any order in memory."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(sorted(DTYPES, key=str)))
    lying = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    return lying.transpose(draw(st.permutations(range(len(shape)))))


def strides(tensor: Tensor) -> list[int]:
    """Those that say something: of axes of more than one element, where there are elements."""
    return [s for s, extent in zip(tensor._data.strides, tensor.shape, strict=True) if extent > 1 and tensor.size]


def route(source: Device, destination: Device, connected: set[frozenset[int]]) -> str:
    if source.kind == destination.kind == "cpu":
        return "host"
    if source.kind != destination.kind:
        return "upload" if source.kind == "cpu" else "download"
    return "peer" if {source.index, destination.index} in connected else "staged"


@given(
    batch=st.lists(arrays(), min_size=1, max_size=4),
    path=st.lists(st.sampled_from(PLACES), min_size=1, max_size=5),
    peers=st.sets(st.sampled_from(PAIRS)),
)
def test_copies_keep_every_bit_and_stride_and_are_logged_by_route(
    batch: list[np.ndarray], path: list[str], peers: set[tuple[int, int]]
) -> None:
    """D4, D5, D7: one copy for each distinct tensor at each change of device, of its bytes, by the one right route."""
    with installed(Machine(peers={pair for a, b in peers for pair in ((a, b), (b, a))})):
        with_small_buffers()
        tensors = [Tensor.from_numpy(array, path[0]) for array in batch]
        expected: Counter[tuple[Device, Device, str]] = Counter()
        with transfer.log() as log:
            for source, destination in pairwise(map(Device, path)):
                copies = transfer.copy([*tensors, tensors[0]], destination)
                assert copies[-1] is copies[0]
                tensors = copies[:-1]
                if source != destination:
                    expected[source, destination, route(source, destination, set(map(frozenset, peers)))] += len(batch)
        assert {way: count.copies for way, count in log.items()} == expected
        nbytes = sum(array.nbytes for array in batch)
        assert log.nbytes == nbytes * sum(expected.values()) // len(batch)
        for tensor, array in zip(tensors, batch, strict=True):
            on_cpu = Tensor.from_numpy(array, "cpu:0")
            assert (tensor.shape, tensor.dtype, str(tensor.device)) == (array.shape, array.dtype, path[-1])
            assert tensor.tobytes() == on_cpu.tobytes()
            assert strides(tensor) == strides(on_cpu)


def test_a_copy_keeps_its_own_autodiff_association(machine: Machine) -> None:
    """M44."""
    plain = Tensor.from_numpy(np.ones(3), "cuda:0")
    flagged = plain.autodiff()
    copies = transfer.copy([plain, flagged], "cuda:1+autodiff")
    assert [str(copy.device) for copy in copies] == ["cuda:1", "cuda:1+autodiff"]
    assert plain.to_device("cuda:0") is plain


def test_making_and_reading_a_tensor_are_no_copies_between_devices(machine: Machine) -> None:
    """Only `transfer` counts."""
    with transfer.log() as log:
        tensor = Tensor.from_numpy(np.arange(4.0), "cuda:2")
        assert tensor.tobytes() == np.arange(4.0).tobytes()
        assert float(tensor[1]) == 1
        assert "cuda:2" in repr(tensor)
    assert not log


@pytest.mark.parametrize(("value", "expected"), [("1", "staged"), ("0", "peer"), ("", "peer")])
def test_the_environment_switches_peer_access_off(monkeypatch: pytest.MonkeyPatch, value: str, expected: str) -> None:
    """C6: LAYERLOOM_NO_PEER changes the route and nothing else."""
    monkeypatch.setenv("LAYERLOOM_NO_PEER", value)
    with installed(Machine()) as machine:
        tensor = Tensor.from_numpy(np.arange(1000), "cuda:0")
        with transfer.log() as log:
            assert tensor.to_device("cuda:3").tobytes() == tensor.tobytes()
        assert list(log) == [(Device("cuda:0"), Device("cuda:3"), expected)]
        assert machine.enabled == ({(0, 3), (3, 0)} if expected == "peer" else set())


@pytest.mark.parametrize("status", [101, 205, 217, 711])
def test_a_pair_that_the_driver_refuses_goes_through_the_host_and_warns_once(machine: Machine, status: int) -> None:
    """C6: its absence changes only the route's name and speed."""
    machine.refuses["deviceEnablePeerAccess"] = status
    tensor = Tensor.from_numpy(np.arange(1000), "cuda:0")
    with transfer.log() as log:
        with pytest.warns(RuntimeWarning, match=r"cuda:0 and cuda:1: .* go through host memory"):
            tensor.to_device("cuda:1")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            back = tensor.to_device("cuda:1").to_device("cuda:0")
    assert {way[2] for way in log} == {"staged"}
    assert back.tobytes() == tensor.tobytes()


def test_a_pair_that_loses_data_warns_and_is_switched_off() -> None:
    """C6: the pattern of the first copy comes back changed."""
    with installed(Machine(dropping=[(2, 1)])) as machine:
        tensor = Tensor.from_numpy(np.arange(1000), "cuda:1")
        with pytest.warns(RuntimeWarning, match="came back changed"), transfer.log() as log:
            assert tensor.to_device("cuda:2").tobytes() == tensor.tobytes()
        assert log[Device("cuda:1"), Device("cuda:2"), "staged"] == (1, tensor.nbytes)
        assert not machine.enabled


def test_only_the_pairs_in_use_are_connected_and_both_ways(machine: Machine) -> None:
    """Each enabled peer makes allocations slower; gradients come back."""
    tensor = Tensor.from_numpy(np.ones(4), "cuda:0").to_device("cuda:1").to_device("cuda:3")
    assert machine.enabled == {(0, 1), (1, 0), (1, 3), (3, 1)}
    assert tensor.tobytes() == np.ones(4).tobytes()


def test_a_failure_of_peer_access_that_is_no_refusal_is_an_error(machine: Machine) -> None:
    """C10."""
    machine.refuses["deviceEnablePeerAccess"] = 719
    tensor = Tensor.from_numpy(np.ones(4), "cuda:0")
    with pytest.raises(DeviceError, match="719"):
        tensor.to_device("cuda:1")


def test_copies_that_die_leave_no_memory_in_use(machine: Machine) -> None:
    """After a wait the held copies are gone."""
    tensor = Tensor.from_numpy(np.ones(1000), "cuda:0")
    tensor.to_device("cuda:1")
    Device("cuda:0").synchronize()
    before = [memory.in_use for memory in machine.memories]
    for _ in range(200):
        tensor.to_device("cuda:1").to_device("cuda:2").to_device("cuda:0").to_device("cpu:0")
    for index in range(3):
        Device(f"cuda:{index}").synchronize()
    assert [memory.in_use for memory in machine.memories] == before


@pytest.mark.parametrize(("peers", "routes"), [(PAIRS, {"peer", "staged"}), ((), {"staged"})])
def test_a_route_can_be_asked_for_and_is_taken_or_refused(peers: list[tuple[int, int]], routes: set[str]) -> None:
    """For measuring: the copy is the same by either; what there is not between two devices is an error."""
    with installed(Machine(peers={pair for a, b in peers for pair in ((a, b), (b, a))})):
        tensor = Tensor.from_numpy(np.arange(1000), "cuda:0")
        cuda, cpu = tensor.device.backend, Device("cpu:0").backend
        for route in ("peer", "staged"):
            if route in routes:
                (made,), taken = cuda.copy_between([tensor._data], 0, 1, route)
                assert taken == route
                assert np.array_equal(cuda.download([made], 1)[0], np.arange(1000))
            else:
                with pytest.raises(DeviceError, match="cuda:0 and cuda:1: there is no peer access"):
                    cuda.copy_between([tensor._data], 0, 1, route)
        with pytest.raises(DeviceError, match="'host'"):
            cuda.copy_between([tensor._data], 0, 1, "host")
        with pytest.raises(DeviceError, match="not 'peer'"):
            cpu.copy_between([np.arange(3)], 0, 1, "peer")
        assert cpu.copy_between([np.arange(3)], 0, 1, "host")[1] == "host"


def test_a_device_is_described_by_what_the_driver_says() -> None:
    """Name, compute capability, and whom it can reach; that asks nothing of another device and switches nothing on."""
    with installed(Machine(peers=[(0, 1), (1, 0), (2, 0)])) as machine:
        machine.capability = "120"
        cuda = Device("cuda:0").backend
        assert cuda.describe(0) == ("Fake GPU 0", "12.0", (1,))
        assert cuda.describe(2) == ("Fake GPU 2", "12.0", (0,))
        assert not machine.enabled
    described = Device("cpu:3").backend.describe(3)
    assert described.name
    assert (described.capability, described.peers) == ("", ())
