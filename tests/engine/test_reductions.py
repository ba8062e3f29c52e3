"""Reductions against loops in float64 and exact integers, for every axis argument, empty axes included."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import DTypeError, ShapeError, ops, tensor, zeros
from tests.engine.comparison import assert_within, exact, same_bits
from tests.engine.strategies import BOOL, FLOATS, HALVES, INTS, dtypes, in_order, shapes, tensors

CPU = "cpu:0"
OF_NONE: dict[str, Any] = {"sum": 0, "prod": 1, "any": False, "all": True}


def axis_arguments(rank: int) -> Any:
    """None, one axis, or a tuple of distinct ones; counted from either end."""
    signed = st.integers(-rank, rank - 1) if rank else st.nothing()
    some = st.lists(signed, unique_by=lambda axis: axis % rank).map(tuple) if rank else st.just(())
    return st.one_of(st.none(), some, signed) if rank else st.sampled_from([None, ()])


def groups(array: Any, axis: Any, keepdims: bool) -> tuple[tuple[int, ...], list[list[Any]]]:
    """By brute force: the shape of a reduction, and for each of its elements those that go into it, row-major."""
    rank = array.ndim
    reduced = set(range(rank)) if axis is None else {a % rank for a in (axis if isinstance(axis, tuple) else (axis,))}
    shape = tuple(1 if a in reduced else extent for a, extent in enumerate(array.shape))
    found: dict[Any, list[Any]] = {place: [] for place in np.ndindex(shape)}
    for place in np.ndindex(array.shape):
        found[tuple(0 if a in reduced else at for a, at in enumerate(place))].append(array[place])
    return shape if keepdims else tuple(n for a, n in enumerate(shape) if a not in reduced), list(found.values())


def has_none(x: Any, axis: Any) -> bool:
    """Whether a reduction is over an axis without elements."""
    return 0 in (x.shape if axis is None else [x.shape[a] for a in (axis if isinstance(axis, tuple) else (axis,))])


@st.composite
def reductions(draw: st.DrawFn, dtype: Any, special: bool = False) -> Any:
    x = draw(tensors(dtype=dtype, shape=shapes(max_rank=3, max_extent=4), special=special))
    return x, draw(axis_arguments(x.ndim)), draw(st.booleans())


@given(drawn=reductions(dtypes(*FLOATS)))
def test_sums_and_means_and_variances_of_floats(drawn):
    """The error of a sum is a few roundings of the sum of sizes."""
    x, axis, keepdims = drawn
    shape, parts = groups(exact(x), axis, keepdims)
    scale = np.array([math.fsum(map(abs, part)) for part in parts]).reshape(shape)
    total = np.array([math.fsum(part) for part in parts]).reshape(shape)
    assert_within(ops.sum(x, axis, keepdims), total, x.dtype, ulps=2, scale=scale)
    if has_none(x, axis):
        for op in (ops.mean, ops.var):
            with pytest.raises(ShapeError, match=f"{op.__name__}: of no elements"):
                op(x, axis, keepdims)
        return
    mean = np.array([math.fsum(part) / len(part) for part in parts]).reshape(shape)
    assert_within(ops.mean(x, axis, keepdims), mean, x.dtype, ulps=2, scale=np.abs(scale))
    var = np.array(
        [math.fsum((v - m) ** 2 for v in part) / len(part) for part, m in zip(parts, mean.ravel(), strict=True)]
    )
    squares = np.array([math.fsum(v * v for v in part) for part in parts]).reshape(shape)
    assert_within(ops.var(x, axis, keepdims), var.reshape(shape), x.dtype, ulps=4, scale=squares)


@given(drawn=reductions(dtypes(*INTS, BOOL)))
def test_sums_and_products_of_integers_wrap_around_in_their_dtype(drawn):
    x, axis, keepdims = drawn
    shape, parts = groups(x.numpy(), axis, keepdims)
    dtype = np.dtype("int64") if x.dtype == BOOL else x.dtype
    bits, low = 8 * dtype.itemsize, int(np.iinfo(dtype).min)
    for op, combine in ((ops.sum, sum), (ops.prod, math.prod)):
        result = op(x, axis, keepdims)
        assert (result.dtype, result.shape) == (dtype, shape)
        wrapped = [(combine(int(v) for v in part) - low) % 2**bits + low for part in parts]
        assert [int(v) for v in result.numpy().flat] == wrapped


@given(drawn=reductions(dtypes(*FLOATS)))
def test_products_of_floats(drawn):
    x, axis, keepdims = drawn
    shape, parts = groups(exact(x), axis, keepdims)
    assert_within(ops.prod(x, axis, keepdims), np.array([math.prod(p) for p in parts]).reshape(shape), x.dtype, ulps=70)


@given(drawn=reductions(dtypes(*FLOATS, *INTS, BOOL), special=True))
def test_the_largest_and_the_smallest_are_elements_or_nan(drawn):
    x, axis, keepdims = drawn
    shape, parts = groups(exact(x), axis, keepdims)
    for op, choose in ((ops.max, max), (ops.min, min)):
        if has_none(x, axis):
            with pytest.raises(ShapeError, match=f"{op.__name__}: of no elements"):
                op(x, axis, keepdims)
            continue
        result = op(x, axis, keepdims)
        expected = [math.nan if any(map(math.isnan, part)) else choose(part) for part in parts]
        assert (result.dtype, result.shape) == (x.dtype, shape)
        np.testing.assert_array_equal(exact(result).ravel(), expected)


@given(x=tensors(shape=shapes(max_rank=3, max_extent=4), special=True), keepdims=st.booleans(), data=st.data())
def test_positions_are_of_the_first_largest_or_smallest_and_of_the_first_nan(x, keepdims, data):
    axis = data.draw(st.none() | st.integers(-x.ndim, x.ndim - 1)) if x.ndim else None
    shape, parts = groups(exact(x), axis, keepdims)
    for op, choose in ((ops.argmax, max), (ops.argmin, min)):
        if has_none(x, axis):
            with pytest.raises(ShapeError, match=f"{op.__name__}: of no elements"):
                op(x, axis, keepdims)
            continue
        result = op(x, axis, keepdims)
        assert (result.dtype, result.shape) == (np.dtype("int64"), shape)
        for part, position in zip(parts, result.numpy().flat, strict=True):
            nans = [at for at, v in enumerate(part) if math.isnan(v)]
            assert position == (nans[0] if nans else part.index(choose(part)))


@given(drawn=reductions(dtypes(BOOL)))
def test_any_and_all(drawn):
    x, axis, keepdims = drawn
    shape, parts = groups(x.numpy(), axis, keepdims)
    for op, combine in ((ops.any, any), (ops.all, all)):
        result = op(x, axis, keepdims)
        assert (result.dtype, result.shape) == (BOOL, shape)
        assert result.numpy().ravel().tolist() == [combine(part) for part in parts]


@given(x=tensors(dtype=dtypes(*FLOATS, *INTS, BOOL), shape=shapes(min_rank=1, max_rank=3)), data=st.data())
def test_a_running_sum_is_the_sum_of_each_beginning(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    result = ops.cumsum(x, axis)
    assert (result.dtype, result.shape) == (np.dtype("int64") if x.dtype == BOOL else x.dtype, x.shape)
    for upto in range(x.shape[axis]):
        start = tuple(slice(None) if a != axis % x.ndim else slice(0, upto + 1) for a in range(x.ndim))
        here = tuple(slice(None) if a != axis % x.ndim else upto for a in range(x.ndim))
        expected, sizes = exact(x)[start].sum(axis=axis), np.abs(exact(x)[start]).sum(axis=axis)
        if x.dtype in FLOATS:
            assert_within(result[here], expected, x.dtype, ulps=3, scale=sizes)
        else:
            np.testing.assert_array_equal(result[here].numpy(), expected.astype("int64").astype(result.dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_many_halves_are_summed_without_losing_the_small_ones(dtype):
    """In the dtype itself the running sum would stop at 256 or 2048, where adding 1 changes nothing any more."""
    x = tensor(np.ones((4, 5000)), device=CPU, dtype=dtype)
    assert ops.sum(x, 1).numpy().astype("float64").tolist() == [float(dtype.type(5000))] * 4
    assert ops.mean(x).numpy() == 1
    assert float(ops.cumsum(x, 1)[0, -1]) == float(dtype.type(5000))


@pytest.mark.parametrize("name", ["mean", "var"])
@pytest.mark.parametrize("dtype", [*INTS, BOOL], ids=str)
def test_integers_have_no_mean(name, dtype):
    with pytest.raises(DTypeError, match=f"{name}: takes floats"):
        getattr(ops, name)(zeros((2, 3), device=CPU, dtype=dtype))


@pytest.mark.parametrize("name", [*OF_NONE, "mean", "var", "max", "min", "argmax", "argmin", "cumsum"])
def test_axes_that_are_not_there_or_stand_twice_are_refused(name):
    x, op = zeros((2, 3), device=CPU, dtype="bool" if name in ("any", "all") else "float32"), getattr(ops, name)
    for axis in (2, -3):
        with pytest.raises(ShapeError, match=rf"{name}: a tensor of shape \(2, 3\) has no axis {axis}"):
            op(x, axis)
    if not name.startswith(("arg", "cum")):
        with pytest.raises(ShapeError, match=f"{name}: .* twice"):
            op(x, (1, -1))


@given(shape=shapes(max_rank=3, max_extent=3), dtype=dtypes(*FLOATS))
def test_over_no_elements_a_sum_is_zero_and_a_product_one(shape, dtype):
    """And what has no such value is refused, even if the result would have no elements either."""
    shape = (*shape, 0)
    for axes in (chosen for count in range(len(shape) + 1) for chosen in combinations(range(len(shape)), count)):
        x = zeros(shape, device=CPU, dtype=dtype)
        kept = tuple(extent for axis, extent in enumerate(shape) if axis not in axes)
        for name in ("sum", "prod"):
            result = getattr(ops, name)(x, axes)
            assert result.shape == kept
            assert (exact(result) == OF_NONE[name]).all()
        for op in (ops.mean, ops.var, ops.max, ops.min):
            if has_none(x, axes):
                with pytest.raises(ShapeError, match="of no elements"):
                    op(x, axes)
            else:
                assert op(x, axes).shape == kept


@given(x=tensors(dtype=dtypes(*FLOATS), shape=shapes(min_rank=2, max_rank=3, min_extent=1)))
def test_memory_order_changes_a_sum_by_rounding_only(x):
    other = in_order(x.numpy(), tuple(reversed(range(x.ndim))))
    scale = np.abs(exact(x)).sum()
    assert_within(ops.sum(other), exact(ops.sum(x)), x.dtype, ulps=3, scale=scale)
    assert same_bits(ops.max(other), ops.max(x))
