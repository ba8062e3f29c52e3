"""Softmax, its logarithm and the logarithm of a sum of exponentials, against float64 and at their edges."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ShapeError, ops, tensor, zeros
from tests.engine.comparison import assert_within, exact
from tests.engine.strategies import FLOATS, dtypes, shapes, tensors

CPU, INF = "cpu:0", math.inf


@given(
    x=tensors(dtype=dtypes(*FLOATS), shape=shapes(min_rank=1, max_rank=3)),
    far=st.sampled_from([0, 1000, -30000]),
    data=st.data(),
)
def test_they_are_those_of_float64_rounded_however_large_the_numbers(x, far, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    x = x + far
    wide = exact(x)
    if wide.shape[axis] == 0:
        assert ops.softmax(x, axis).shape == ops.log_softmax(x, axis).shape == x.shape
        assert (exact(ops.logsumexp(x, axis)) == -INF).all()
        return
    largest = wide.max(axis=axis, keepdims=True) if wide.size else 0
    exponentials = np.exp(wide - largest)
    total = exponentials.sum(axis=axis, keepdims=True)
    # The difference to the largest is rounded, which e^ makes a relative error of its size.
    scale = exponentials / total * (1 + np.abs(wide - largest))
    assert_within(ops.softmax(x, axis), exponentials / total, x.dtype, ulps=3, scale=scale)
    assert_within(ops.log_softmax(x, axis), wide - largest - np.log(total), x.dtype, ulps=4, scale=1)
    summed = np.log(total) + largest
    assert_within(ops.logsumexp(x, axis, keepdims=True), summed, x.dtype, ulps=3, scale=1)
    assert_within(ops.logsumexp(x, axis), summed.squeeze(axis), x.dtype, ulps=3, scale=1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_infinities(dtype):
    """−∞ takes no part; where nothing else is, or one is ∞, shares are NaN. None of this warns."""
    x = tensor([[0, -INF, 0], [-INF, -INF, -INF], [INF, 0, 0], [math.nan, 0, 0]], device=CPU, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shares, logs, sums = (exact(op(x)) for op in (ops.softmax, ops.log_softmax, ops.logsumexp))
    assert shares[0].tolist() == [0.5, 0, 0.5]
    assert logs[0, 1] == -INF
    assert np.isnan(shares[1:, 0]).all()
    assert np.isnan(logs[1:, 0]).all()
    assert abs(sums[0] - math.log(2)) < 1e-2
    assert sums[1] == -INF
    assert sums[2] == INF
    assert np.isnan(sums[3])


@pytest.mark.parametrize("op", [ops.softmax, ops.log_softmax, ops.logsumexp])
def test_a_number_has_no_axis(op):
    with pytest.raises(ShapeError, match="has no axis -1"):
        op(zeros((), device=CPU))
