"""Copies between devices: real, exact, counted, and only where they are needed."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Device, DeviceError, tensor, transfer, zeros
from engine.transfer import Count
from tests.engine.comparison import same_bits
from tests.engine.strategies import tensors

CPUS = st.integers(0, 3).map("cpu:{}".format)


@given(x=tensors(special=True), flag=st.booleans())
def test_a_copy_has_the_bits_the_memory_order_and_memory_of_its_own(x, flag):
    """L28, L32, D5: every dtype, NaN payloads, zero-size, rank 0, any order of the axes."""
    source = x.autodiff() if flag else x
    copy = source.to_device("cpu:1+autodiff")
    assert same_bits(copy, x)
    assert [s for s, n in zip(copy._data.strides, x.shape, strict=True) if n > 1] == [
        s for s, n in zip(x._data.strides, x.shape, strict=True) if n > 1
    ] or x.size == 0
    assert not np.shares_memory(copy._data, x._data)
    assert not copy._data.flags.writeable
    assert copy.device == Device("cpu:1")
    assert copy.device.is_autodiff == flag  # M44: its own association, not that of the destination


@given(x=tensors(), flag=st.booleans())
def test_where_a_tensor_already_is_it_is_not_copied(x, flag):
    """D4: the tensor itself, no entry in the log, whatever the flag of the destination; still a leaf."""
    with transfer.log() as log:
        assert x.to_device(Device("cpu:0").autodiff() if flag else "cpu:0") is x
    assert len(log) == log.copies == log.nbytes == 0
    leaf = tensor([1.0], device="cpu:0+autodiff").require_grad()
    assert leaf.to_device("cpu:0") is leaf


@given(places=st.lists(st.tuples(CPUS, st.integers(0, 3)), max_size=8), destination=CPUS)
def test_the_log_counts_each_distinct_tensor_that_moved_and_its_bytes(places, destination):
    """L31, D7: a batch keeps its order; what stands twice is copied once and is still one tensor."""
    distinct = {(device, extent): zeros((extent, 2), device=device) for device, extent in places}
    batch = [distinct[place] for place in places]
    with transfer.log() as log:
        arrived = transfer.copy(batch, destination)
    assert [x.shape for x in arrived] == [x.shape for x in batch]
    assert all(x.device == Device(destination) for x in arrived)
    for i, x in enumerate(batch):
        for j, y in enumerate(batch):
            assert (x is y) == (arrived[i] is arrived[j])
    expected: dict[str, list[int]] = {}
    for device, extent in distinct:
        if device != destination:
            expected.setdefault(device, []).append(extent * 2 * 4)
    assert dict(log) == {
        (Device(source), Device(destination), "host"): Count(len(sizes), sum(sizes))
        for source, sizes in expected.items()
    }
    assert log.copies == sum(map(len, expected.values()))
    assert log.nbytes == sum(map(sum, expected.values()))


def test_nested_logs_each_see_their_own_and_a_closed_one_sees_no_more():
    x = zeros((4,), device="cpu:0")
    with transfer.log() as outer:
        x.to_device("cpu:1")
        with transfer.log() as inner:
            x.to_device("cpu:2")
        x.to_device("cpu:1")
    x.to_device("cpu:1")
    assert (outer.copies, inner.copies) == (3, 1)
    assert outer[Device("cpu:0"), Device("cpu:1"), "host"] == Count(2, 32)
    assert list(inner) == [(Device("cpu:0"), Device("cpu:2"), "host")]
    with pytest.raises(KeyError):
        inner[Device("cpu:0"), Device("cpu:1"), "host"]


def test_a_log_is_closed_by_an_error_too():
    with pytest.raises(RuntimeError, match="on purpose"), transfer.log() as log:
        raise RuntimeError("on purpose")
    zeros((4,), device="cpu:0").to_device("cpu:1")
    assert log.copies == 0


def test_a_log_counts_the_copies_of_its_own_thread():
    x, counted = zeros((4,), device="cpu:0"), {}
    barrier = threading.Barrier(4)

    def move(times: int) -> None:
        with transfer.log() as log:
            barrier.wait()
            for _ in range(times):
                x.to_device("cpu:1")
        counted[times] = log.copies

    with transfer.log() as outside:
        threads = [threading.Thread(target=move, args=(times,)) for times in (1, 2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counted == {1: 1, 2: 2, 3: 3, 4: 4}
    assert outside.copies == 0


def test_making_reading_and_computing_are_no_copies_between_devices():
    with transfer.log() as log:
        x = tensor([1.0, 2.0], device="cpu:0")
        _ = (x + x, x.numpy(), float(x[0]), repr(x), x.tobytes(), x.cast("float64"), np.asarray(x))
    assert log.copies == 0


def test_a_log_prints_as_lines():
    with transfer.log() as log:
        assert repr(log) == str(log) == "no copies between devices"
        zeros((500,), device="cpu:0").to_device("cpu:1")
        transfer.copy([zeros((500,), device="cpu:1"), zeros((1,), device="cpu:1")], "cpu:0")
    assert str(log).splitlines() == [
        "cpu:0 -> cpu:1 (host): 1 copy, 2,000 bytes",
        "cpu:1 -> cpu:0 (host): 2 copies, 2,004 bytes",
    ]


def test_autodiff_devices_are_the_same_way_in_the_log():
    with transfer.log() as log:
        zeros((1,), device="cpu:0+autodiff").to_device("cpu:1")
        zeros((1,), device="cpu:0").to_device("cpu:1+autodiff")
    assert dict(log) == {(Device("cpu:0"), Device("cpu:1"), "host"): Count(2, 8)}
    assert not any(source.is_autodiff or destination.is_autodiff for source, destination, _ in log)


def test_a_destination_that_is_no_device_is_refused():
    with pytest.raises(DeviceError, match="no device"):
        zeros((1,), device="cpu:0").to_device("nowhere")
    assert transfer.copy([], "cpu:0") == []


def test_any_iterable_of_tensors_is_taken_once():
    x, y = tensor([1.0], device="cpu:0"), tensor([2.0, 3.0], device="cpu:1")
    for batch in ((x, y, x), iter([x, y, x]), (z for z in [x, y, x])):
        with transfer.log() as log:
            arrived = transfer.copy(batch, "cpu:1")
        assert [z.numpy().tolist() for z in arrived] == [[1.0], [2.0, 3.0], [1.0]]
        assert {z.device for z in arrived} == {Device("cpu:1")}
        assert (arrived[0] is arrived[2], arrived[1] is y, log.copies) == (True, True, 1)


def test_a_tensor_alone_and_what_is_no_tensor_are_refused_and_nothing_is_copied():
    x = tensor([[1.0], [2.0]], device="cpu:0")
    with transfer.log() as log:
        for wrong, message in (
            (x, "one Tensor; to_device"),
            (3, "one int"),
            ([x, [x]], "item 1 is a list"),
            ("a", "str"),
        ):
            with pytest.raises(TypeError, match=f"copy: .*{message}"):
                transfer.copy(wrong, "cpu:1")  # pyright: ignore[reportArgumentType]
    assert log.copies == 0
