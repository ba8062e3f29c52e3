"""Buffers against joining by NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Buffer, DeviceMismatchError, DTypeError, ShapeError, Tensor, ops, tensor, transfer, zeros
from tests.engine.comparison import exact, is_dense, same_bits
from tests.engine.strategies import dtypes, shapes, tensors

CPU = "cpu:0"


@st.composite
def pieces(draw: st.DrawFn) -> tuple[int, list[Tensor]]:
    """An axis, and tensors that may be joined along it, in any memory order."""
    shape = draw(shapes(min_rank=1, max_rank=4, max_extent=3))
    axis, dtype = draw(st.integers(-len(shape), len(shape) - 1)), draw(dtypes())
    found = []
    for _ in range(draw(st.integers(1, 8))):
        extents = list(shape)
        extents[axis] = draw(st.integers(0, 4))
        found.append(draw(tensors(dtype=dtype, shape=st.just(tuple(extents)), special=True)))
    return axis, found


@given(drawn=pieces())
def test_a_view_is_what_was_appended_joined_and_stays_so(drawn):
    """Views taken before each append keep their values, are dense, and cannot be written."""
    axis, found = drawn
    buffer, views = Buffer(axis), []
    assert (buffer.length, buffer.device, buffer.dtype) == (0, None, None)
    for count, piece in enumerate(found, 1):
        buffer.append(piece)
        views.append(buffer.view())
        assert buffer.length == sum(part.shape[axis] for part in found[:count])
        assert (buffer.device, buffer.dtype) == (piece.device, piece.dtype)
    for count, view in enumerate(views, 1):
        assert same_bits(view, ops.concatenate(found[:count], axis))
        assert is_dense(view._data)
        assert not view._data.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.numpy().setflags(write=True)
    assert same_bits(buffer.view(), views[-1])


@given(drawn=pieces())
def test_what_is_appended_is_copied(drawn):
    axis, found = drawn
    buffer = Buffer(axis)
    for piece in found:
        buffer.append(piece)
        assert not np.shares_memory(buffer.view()._data, piece._data)


def test_the_memory_doubles_so_that_few_values_are_copied_twice():
    """Appending 1000 rows one by one moves the memory about log2(1000) times."""
    buffer, places = Buffer(0), set()
    for at in range(1000):
        buffer.append(tensor([[float(at)]], device=CPU))
        places.add(buffer.view()._data.ctypes.data)
    assert len(places) <= 11
    assert exact(buffer.view()).ravel().tolist() == list(range(1000))


def test_the_growing_axis_comes_first_in_memory():
    buffer = Buffer(2)
    for _ in range(3):
        buffer.append(zeros((2, 3, 1, 5), device=CPU))
    view = buffer.view()
    assert view.shape == (2, 3, 3, 5)
    assert view.transpose(2, 0, 1, 3)._data.flags.c_contiguous


def test_values_are_stored_without_history_and_nothing_is_counted_as_a_copy():
    buffer = Buffer(0)
    with transfer.log() as log:
        buffer.append(tensor([1.0], device="cpu:1+autodiff").require_grad())
    view = buffer.view()
    assert (view.is_tracked, view.device.is_autodiff, str(buffer.device)) == (False, False, "cpu:1")
    assert log.copies == 0


def test_what_does_not_go_with_the_first_values_is_refused_and_changes_nothing():
    buffer = Buffer(-2)
    with pytest.raises(ShapeError, match="nothing was appended"):
        buffer.view()
    with pytest.raises(ShapeError, match="has no axis -2"):
        buffer.append(zeros((3,), device=CPU))
    assert buffer.device is None
    buffer.append(zeros((2, 1, 3), device=CPU))
    before = buffer.view()
    for wrong, error, message in (
        (zeros((2, 1, 4), device=CPU), ShapeError, r"shape \(2, 1, 4\); the buffer holds \[2, any, 3\]"),
        (zeros((1, 3), device=CPU), ShapeError, "the buffer holds"),
        (zeros((1, 2, 1, 3), device=CPU), ShapeError, "the buffer holds"),
        (zeros((2, 1, 3), device=CPU, dtype="float64"), DTypeError, "dtype float64; the buffer holds float32"),
        (zeros((2, 1, 3), device="cpu:1"), DeviceMismatchError, "on cpu:0, the values on cpu:1"),
        (np.zeros((2, 1, 3)), TypeError, r"tensor\(…, device=…\)"),
    ):
        with pytest.raises(error, match=message):
            buffer.append(wrong)
    assert buffer.length == 1
    assert same_bits(buffer.view(), before)
    buffer.append(zeros((2, 2, 3), device="cpu:0+autodiff"))
    assert buffer.length == 3
