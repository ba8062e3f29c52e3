"""Matrix products against sums in float64, for every rank, dtype and memory order."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import DTypeError, ShapeError, ops, tensor, zeros
from tests.engine.comparison import assert_within, exact, same_bits
from tests.engine.strategies import BFLOAT16, BOOL, FLOATS, HALVES, INTS, dtypes, in_order, tensors, values

CPU = "cpu:0"


@st.composite
def factors(draw: st.DrawFn, dtype: Any) -> Any:
    """Two tensors that `matmul` takes: vectors, matrices, and batches that broadcast; extents of 0 and 1 included."""
    n, k, m = (draw(st.integers(0, 5)) for _ in range(3))
    batch = draw(st.lists(st.integers(0, 3), max_size=2))
    sides = []
    for matrix in ((n, k), (k, m)):
        if draw(st.integers(0, 4)) == 0:
            shape = (k,)
        else:
            mine = [1 if draw(st.booleans()) else extent for extent in batch[draw(st.integers(0, len(batch))) :]]
            shape = (*mine, *matrix)
        array = values(shape, dtype, draw(st.integers(0, 2**32 - 1)))
        sides.append(in_order(array, tuple(draw(st.permutations(range(array.ndim))))))
    return sides


def summed(a: Any, b: Any) -> tuple[Any, Any]:
    """The product in float64 by element-wise multiplication and a sum, and the sum of the sizes of its terms."""
    left = a[None] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    terms = left[..., :, :, None] * right[..., None, :, :]
    both = terms.sum(axis=-2), np.abs(terms).sum(axis=-2)
    if a.ndim == 1:
        both = tuple(part.squeeze(-2) for part in both)
    if b.ndim == 1:
        both = tuple(part.squeeze(-1) for part in both)
    return both


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(data=st.data())
def test_a_product_is_the_sum_of_products(dtype, data):
    a, b = data.draw(factors(dtype))
    expected, scale = summed(exact(a), exact(b))
    assert_within(ops.matmul(a, b), expected, dtype, ulps=4 if dtype not in HALVES else 1, scale=scale)
    assert same_bits(a @ b, ops.matmul(a, b))


@pytest.mark.parametrize("dtype", INTS, ids=str)
@given(data=st.data())
def test_products_of_integers_wrap_around(dtype, data):
    a, b = data.draw(factors(dtype))
    expected, _ = summed(a.numpy().astype("int64"), b.numpy().astype("int64"))
    result = a @ b
    assert result.dtype == dtype
    np.testing.assert_array_equal(result.numpy(), expected.astype(dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_products_of_halves_sum_in_float32(dtype):
    """In the dtype itself 4096 ones would stop at 2048, or at 256."""
    ones = tensor(np.ones((2, 4096)), device=CPU, dtype=dtype)
    assert exact(ones @ ones.T).tolist() == [[4096, 4096], [4096, 4096]]
    assert exact(ops.linear(ones, ones.T)).tolist() == [[4096, 4096], [4096, 4096]]


@given(
    x=tensors(dtype=dtypes(*FLOATS), shape=st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)),
    width=st.integers(0, 5),
    data=st.data(),
)
def test_linear_is_a_product_of_all_rows_and_a_sum(x, width, data):
    weight = data.draw(tensors(dtype=x.dtype, shape=st.just((x.shape[-1], width))))
    bias = data.draw(tensors(dtype=x.dtype, shape=st.just((width,))))
    expected, scale = summed(np.atleast_2d(exact(x)), exact(weight))
    expected, scale = expected.reshape(*x.shape[:-1], width), scale.reshape(*x.shape[:-1], width)
    ulps = 1 if x.dtype in HALVES else 4
    assert_within(ops.linear(x, weight), expected, x.dtype, ulps=ulps, scale=scale)
    assert_within(
        ops.linear(x, weight, bias), expected + exact(bias), x.dtype, ulps=ulps, scale=scale + np.abs(exact(bias))
    )
    if x.ndim > 1:
        assert same_bits(ops.linear(x, weight), x @ weight)


def test_shapes_that_do_not_go_together_are_named():
    x = zeros((2, 3), device=CPU)
    with pytest.raises(ShapeError, match=r"matmul: shapes \(2, 3\), \(2, 3\)"):
        x @ x
    for wrong in (zeros((), device=CPU), zeros((4, 5), device=CPU), zeros((2, 4, 5), device=CPU)):
        with pytest.raises(ShapeError, match=r"^matmul: shapes \(2, 3\), "):
            x @ wrong
    with pytest.raises(ShapeError, match="matmul"):
        zeros((), device=CPU) @ x
    for weight in (zeros((4, 5), device=CPU), zeros((3,), device=CPU), zeros((1, 3, 5), device=CPU)):
        with pytest.raises(ShapeError, match="^linear: "):
            ops.linear(x, weight)
    with pytest.raises(ShapeError, match="^linear: "):
        ops.linear(zeros((), device=CPU), zeros((1, 5), device=CPU))
    for bias in (zeros((1,), device=CPU), zeros((), device=CPU), zeros((2, 5), device=CPU), zeros((1, 5), device=CPU)):
        with pytest.raises(ShapeError, match="linear: bias has shape"):
            ops.linear(x, zeros((3, 5), device=CPU), bias)


def test_booleans_and_scalars_have_no_products():
    truth = zeros((2, 2), device=CPU, dtype=BOOL)
    with pytest.raises(DTypeError, match="matmul"):
        truth @ truth
    for scalar in (2.0, np.float32(2), BFLOAT16.type(2)):
        with pytest.raises(TypeError, match="matmul: operand is a"):
            zeros((2, 2), device=CPU) @ scalar
