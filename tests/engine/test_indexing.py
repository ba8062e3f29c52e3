"""Elements by position against loops."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import DTypeError, ShapeError, ops, tensor, zeros
from engine.ops.indexing import segment_sums
from tests.engine.comparison import assert_within, exact, same_bits
from tests.engine.strategies import BOOL, FLOATS, INTS, dtypes, in_order, shapes, tensors

CPU = "cpu:0"


@st.composite
def positions(draw: st.DrawFn, shape: Any, extent: int) -> Any:
    """A tensor of integers below `extent`, of any integer dtype and memory order; few values, so that some repeat."""
    shape = draw(shape) if isinstance(shape, st.SearchStrategy) else shape
    if extent == 0:
        shape = (*shape[:-1], 0) if shape else (0,)
    seed, dtype = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from(INTS))
    array = np.random.default_rng(seed).integers(0, max(extent, 1), shape).astype(dtype)
    return in_order(array, tuple(draw(st.permutations(range(array.ndim)))))


@given(x=tensors(shape=shapes(min_rank=1, max_rank=3), special=True), data=st.data())
def test_take_gives_slices_by_position(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    indices = data.draw(positions(shapes(max_rank=2), x.shape[axis]))
    result = ops.take(x, indices, axis)
    place = axis % x.ndim
    assert result.shape == (*x.shape[:place], *indices.shape, *x.shape[place + 1 :])
    assert result.dtype == x.dtype
    for at in np.ndindex(indices.shape):
        here = (slice(None),) * place + tuple(at)
        there = (slice(None),) * place + (int(indices.numpy()[at]),)
        assert same_bits(result[here], x[there])


@given(weight=tensors(shape=shapes(min_rank=2, max_rank=2)), data=st.data())
def test_an_embedding_gives_the_rows_that_the_ids_name(weight, data):
    ids = data.draw(positions(shapes(max_rank=2), weight.shape[0]))
    result = ops.embedding(weight, ids)
    assert result.shape == (*ids.shape, weight.shape[1])
    for at in np.ndindex(ids.shape):
        assert same_bits(result[at] if at else result, weight[int(ids.numpy()[at])])


@given(x=tensors(shape=shapes(min_rank=1, max_rank=3), special=True), data=st.data())
def test_gather_gives_single_elements(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    indices = data.draw(_beside(x, axis))
    result = ops.gather(x, indices, axis)
    assert (result.dtype, result.shape) == (x.dtype, indices.shape)
    for at in np.ndindex(indices.shape):
        there = list(at)
        there[axis] = int(indices.numpy()[at])
        assert same_bits(result[at], x[tuple(there)])


def _beside(x: Any, axis: int) -> Any:
    """Positions along an axis of x, of x's shape but for that axis."""

    def along(extent: int) -> Any:
        shape = list(x.shape)
        shape[axis] = extent if x.shape[axis] else 0
        array_of = lambda seed: np.random.default_rng(seed).integers(0, max(x.shape[axis], 1), shape)  # noqa: E731
        return st.integers(0, 2**32 - 1).map(lambda seed: tensor(array_of(seed), device=CPU))

    return st.integers(0, 7).flatmap(along)


@given(x=tensors(dtype=dtypes(*FLOATS, *INTS), shape=shapes(min_rank=1, max_rank=3)), data=st.data())
def test_scatter_add_adds_each_value_at_its_place(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    indices = data.draw(_beside(x, axis))
    values = data.draw(tensors(dtype=x.dtype, shape=st.just(indices.shape)))
    expected, scale = exact(x).copy(), np.abs(exact(x))
    for at in np.ndindex(indices.shape):
        there = list(at)
        there[axis] = int(indices.numpy()[at])
        expected[tuple(there)] += exact(values)[at]
        scale[tuple(there)] += abs(exact(values)[at])
    result = ops.scatter_add(x, indices, values, axis)
    if x.dtype in FLOATS:
        assert_within(result, expected, x.dtype, ulps=3, scale=scale)
    else:
        assert result.dtype == x.dtype
        np.testing.assert_array_equal(result.numpy(), expected.astype("int64").astype(x.dtype))
    assert same_bits(result, ops.scatter_add(x, indices.cast("uint8"), values, axis))


@given(keys=st.lists(st.integers(0, 5), max_size=40), width=st.integers(0, 3), seed=st.integers(0, 1000))
def test_segment_sums_are_sums_by_key(keys, width, seed):
    values = np.random.default_rng(seed).integers(-99, 99, (len(keys), width)).astype("float64")
    found, sums = segment_sums(np, np.array(keys, dtype="int64"), values)
    assert found.tolist() == sorted(set(keys))
    for key, total in zip(found, sums, strict=True):
        assert (
            total.tolist() == sum((v for k, v in zip(keys, values, strict=True) if k == key), np.zeros(width)).tolist()
        )


def test_a_long_run_is_added_up_by_doubling_and_loses_little():
    """Ten thousand float32 tenths, added one after another, would be off by more than 0.1."""
    count = 10_000
    total = ops.scatter_add(
        zeros((1,), device=CPU),
        zeros((count,), device=CPU, dtype="int64"),
        tensor(np.full(count, 0.1, "float32"), device=CPU),
        0,
    )
    assert abs(float(total) - count * float(np.float32(0.1))) < 1e-3


@pytest.mark.parametrize("position", [-1, 3, 2**40])
def test_a_position_out_of_range_is_an_index_error_that_names_it(position):
    x, at = zeros((3, 3), device=CPU), tensor([[position, 0, 0]], device=CPU)
    for call in (
        lambda: ops.take(x, at),
        lambda: ops.gather(x, at, 0),
        lambda: ops.scatter_add(x, at, zeros((1, 3), device=CPU), 0),
        lambda: x[at],
    ):
        with pytest.raises(IndexError, match=f"index {position} is out of range for an axis of extent 3"):
            call()
    with pytest.raises(IndexError, match=f"embedding: id {position} is out of range for a vocabulary of 3"):
        ops.embedding(x, at)


@pytest.mark.parametrize("dtype", [*FLOATS, BOOL], ids=str)
def test_positions_are_integers(dtype):
    x, at = zeros((3, 3), device=CPU), zeros((1, 3), device=CPU, dtype=dtype)
    for call in (
        lambda: ops.take(x, at),
        lambda: ops.embedding(x, at),
        lambda: ops.gather(x, at, 0),
        lambda: ops.scatter_add(x, at, zeros((1, 3), device=CPU), 0),
    ):
        with pytest.raises(DTypeError, match="must be of integers"):
            call()


def test_shapes_that_do_not_go_together_are_named():
    x, row = zeros((2, 3), device=CPU), zeros((1, 2), device=CPU, dtype="int64")
    for call, name in (
        (lambda: ops.gather(x, row, 0), "gather: indices"),
        (lambda: ops.gather(x, row.reshape(2), 1), "gather: indices"),
        (lambda: ops.scatter_add(x, row, zeros((1, 2), device=CPU), 0), "scatter_add: indices"),
        (lambda: ops.scatter_add(x, row.T, zeros((1, 2), device=CPU), 1), "scatter_add: values"),
        (lambda: ops.embedding(x.reshape(6), row), "embedding: weight"),
        (lambda: ops.take(x, row, 2), "take: .* no axis 2"),
        (lambda: ops.take(zeros((), device=CPU), row), "take: .* no axis 0"),
    ):
        with pytest.raises(ShapeError, match=name):
            call()
