"""Reshapes, transposes, slices and joins against NumPy's, views where they can be."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from engine import DTypeError, ShapeError, Tensor, ops, tensor, zeros
from tests.engine.comparison import is_dense, same_bits
from tests.engine.strategies import shapes, tensors

CPU = "cpu:0"


def assert_is(result: Tensor, expected: Any) -> None:
    """The same dtype, shape and elements as an array, and dense."""
    expected = np.asarray(expected)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert result.tobytes() == expected.tobytes()
    assert is_dense(result._data)


@given(x=tensors(special=True), data=st.data())
def test_reshape_keeps_the_elements_in_row_major_order(x, data):
    shape = data.draw(st.permutations(x.shape))
    assert_is(x.reshape(*shape), x.numpy().reshape(shape))
    assert_is(x.reshape(shape), x.numpy().reshape(shape))
    assert_is(x.reshape(tuple(shape)).reshape(x.shape), x.numpy())
    if x.size:
        assert_is(x.reshape(-1), x.numpy().ravel())
        assert_is(ops.reshape(x, 1, -1), x.numpy().reshape(1, -1))


@given(x=tensors(special=True), data=st.data())
def test_transposes_are_views(x, data):
    axes = tuple(data.draw(st.permutations(range(x.ndim))))
    for result, expected in (
        (x.transpose(*axes) if axes else x.transpose(), x.numpy().transpose(axes)),
        (x.transpose(axes), x.numpy().transpose(axes or None)),
        (x.transpose(), x.numpy().transpose()),
    ):
        assert_is(result, expected)
        assert x.size == 0 or np.shares_memory(result._data, x._data)
    if x.ndim >= 2:
        assert_is(x.T, x.numpy().swapaxes(-1, -2))
        assert_is(ops.swap_axes(x, 0, -1), x.numpy().swapaxes(0, -1))
    else:
        with pytest.raises(ShapeError, match="last two axes"):
            _ = x.T


@given(x=tensors(special=True), data=st.data())
def test_indexing_is_numpys_and_always_gives_a_tensor(x, data):
    at = data.draw(npst.basic_indices(x.shape, allow_newaxis=True, allow_ellipsis=True))
    result = x[at]
    assert isinstance(result, Tensor)
    assert_is(result, x.numpy()[at])


@given(x=tensors(shape=shapes(min_rank=1)), data=st.data())
def test_a_tensor_of_integers_picks_along_the_first_axis(x, data):
    positions = data.draw(st.lists(st.integers(0, max(x.shape[0] - 1, 0)), max_size=4 if x.shape[0] else 0))
    picked = x[tensor(np.array(positions, dtype="int64"), device=CPU)]
    assert_is(picked, x.numpy()[np.array(positions, dtype="int64")])


def test_a_tensor_of_one_integer_may_stand_among_other_indices():
    x = tensor([[1.0, 2.0], [3.0, 4.0]], device=CPU)
    assert float(x[tensor(1, device=CPU), 0]) == 3
    assert x[tensor(1, device=CPU) :].shape == (1, 2)
    assert float(x[np.int8(-1), np.uint8(1)]) == 4


@pytest.mark.parametrize("at", [2, -3, (0, 3), (0, 0, 0)])
def test_an_index_out_of_range_is_an_index_error(at):
    with pytest.raises(IndexError):
        zeros((2, 3), device=CPU)[at]


@pytest.mark.parametrize(
    "at", [True, [0, 1], np.array([0, 1]), np.array([True, False]), 1.0, "0", (0, [1]), (slice(None), True)], ids=repr
)
def test_what_is_no_index_is_a_type_error(at):
    with pytest.raises(TypeError, match="index: .* is no integer, slice"):
        zeros((2, 3), device=CPU)[at]


def test_a_mask_is_no_index():
    x = zeros((2,), device=CPU)
    with pytest.raises(DTypeError, match="index: index of dtype bool"):
        x[x == x]
    with pytest.raises(TypeError, match="is no integer, slice"):
        x[x, 0]


@given(data=st.data(), axis=st.integers(-3, 2), count=st.integers(1, 3))
def test_joining_and_cutting_are_inverse(data, axis, count):
    shape = data.draw(shapes(min_rank=3, max_rank=3, max_extent=3))
    first = data.draw(tensors(shape=st.just(shape)))
    parts = [first]
    for _ in range(count - 1):
        extents = list(shape)
        extents[axis] = data.draw(st.integers(0, 3))
        parts.append(data.draw(tensors(dtype=first.dtype, shape=st.just(tuple(extents)))))
    joined = ops.concatenate(parts, axis)
    assert_is(joined, np.concatenate([part.numpy() for part in parts], axis))
    pieces = ops.split(joined, [part.shape[axis] for part in parts], axis)
    assert all(same_bits(piece, part) for piece, part in zip(pieces, parts, strict=True))
    assert same_bits(ops.concatenate(iter(pieces), axis), joined)


@given(data=st.data(), axis=st.integers(-3, 2), count=st.integers(1, 3))
def test_stacking_makes_a_new_axis(data, axis, count):
    first = data.draw(tensors(shape=shapes(min_rank=2, max_rank=2)))
    parts = [first, *(data.draw(tensors(dtype=first.dtype, shape=st.just(first.shape))) for _ in range(count - 1))]
    assert_is(ops.stack(parts, axis), np.stack([part.numpy() for part in parts], axis))


@given(x=tensors(), data=st.data())
def test_broadcasting_copies(x, data):
    shape = tuple(data.draw(st.integers(0, 3)) if extent == 1 else extent for extent in x.shape)
    shape = (*data.draw(shapes(max_rank=2, max_extent=3)), *shape)
    assert_is(ops.broadcast_to(x, shape), np.ascontiguousarray(np.broadcast_to(x.numpy(), shape)).reshape(shape))


@given(x=tensors(shape=shapes(min_rank=2)), diagonal=st.integers(-6, 6))
def test_the_lower_triangle_is_kept(x, diagonal):
    expected = x.numpy().copy()
    for place in np.ndindex(*x.shape):
        if place[-1] > place[-2] + diagonal:
            expected[place] = 0
    assert_is(ops.tril(x, diagonal), expected)


def test_shapes_that_do_not_fit_are_shape_errors_by_name():
    x = zeros((2, 3), device=CPU)
    calls = {
        "reshape": lambda: x.reshape(4),
        "transpose": lambda: x.transpose(0, 0),
        "swap_axes": lambda: ops.swap_axes(x, 0, 2),
        "broadcast_to": lambda: ops.broadcast_to(x, (3, 2)),
        "concatenate": lambda: ops.concatenate([x, zeros((3, 2), device=CPU)], 0),
        "stack": lambda: ops.stack([x, zeros((3, 2), device=CPU)], 0),
        "split": lambda: ops.split(x, [1, 1], 1),
        "tril": lambda: ops.tril(zeros((2,), device=CPU)),
    }
    for name, call in calls.items():
        with pytest.raises(ShapeError, match=f"^{name}: "):
            call()
    for call in (
        lambda: ops.concatenate([], 0),
        lambda: ops.stack([], 0),
        lambda: ops.split(x, [2, -1, 2], 1),
        lambda: ops.split(x, [2], 3),
        lambda: ops.concatenate([x], 2),
        lambda: ops.stack([x], 3),
    ):
        with pytest.raises(ShapeError):
            call()


def test_joining_takes_a_list_of_tensors():
    x = zeros((2, 3), device=CPU)
    for op in (ops.concatenate, ops.stack):
        with pytest.raises(TypeError, match="takes a list of Tensors"):
            op(x, 0)
        with pytest.raises(TypeError, match=r"tensor\(…, device=…\)"):
            op([x, x.numpy()], 0)
