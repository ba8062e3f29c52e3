"""Losses against their formulas in float64."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import DTypeError, ShapeError, ops, tensor, zeros
from tests.engine.comparison import assert_within, exact
from tests.engine.strategies import FLOATS, INTS, dtypes, shapes, tensors

CPU = "cpu:0"
REDUCTIONS = {"none": lambda x: x, "sum": np.sum, "mean": np.mean}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(
    x=tensors(dtype=dtypes(*FLOATS), shape=shapes(min_rank=1, max_rank=3)),
    far=st.sampled_from([0, 1000]),
    seed=st.integers(0, 100),
    dtype=dtypes(*INTS),
)
def test_cross_entropy_is_the_negative_logarithm_of_a_share(reduction, x, far, seed, dtype):
    logits = (x + far) * 4
    classes, examples = logits.shape[-1], logits.shape[:-1]
    if classes == 0:
        return
    targets = np.random.default_rng(seed).integers(0, classes, examples).astype(dtype)
    wide, losses = exact(logits), np.zeros(examples)
    for at in np.ndindex(examples):
        row = wide[at]
        losses[at] = math.log(math.fsum(math.exp(v - row.max()) for v in row)) + (row.max() - row[targets[at]])
    target = tensor(np.asarray(targets), device=CPU)
    if reduction == "mean" and losses.size == 0:
        with pytest.raises(ShapeError, match="no mean of no examples"):
            ops.cross_entropy(logits, target)
        return
    result = ops.cross_entropy(logits, target, reduction)
    assert_within(result, REDUCTIONS[reduction](losses), logits.dtype, ulps=4, scale=1 + np.abs(losses).sum())


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(x=tensors(dtype=dtypes(*FLOATS)), data=st.data())
def test_mse_is_the_squared_distance(reduction, x, data):
    y = data.draw(tensors(dtype=x.dtype, shape=st.just(x.shape)))
    if reduction == "mean" and x.size == 0:
        with pytest.raises(ShapeError, match="no mean of no examples"):
            ops.mse(x, y)
        return
    squares = (exact(x) - exact(y)) ** 2
    assert_within(ops.mse(x, y, reduction), REDUCTIONS[reduction](squares), x.dtype, ulps=4, scale=squares.sum())


def test_what_does_not_go_together_is_refused():
    x, y = zeros((2, 3), device=CPU), zeros((2,), device=CPU, dtype="int64")
    for call, error, message in (
        (lambda: ops.cross_entropy(x, y[:1]), ShapeError, "cross_entropy: targets has shape"),
        (lambda: ops.cross_entropy(zeros((), device=CPU), y), ShapeError, "cross_entropy: logits have rank 0"),
        (lambda: ops.cross_entropy(x, y + 3), IndexError, "cross_entropy: target 3 is out of range"),
        (lambda: ops.cross_entropy(x, y - 1), IndexError, "cross_entropy: target -1 is out of range"),
        (lambda: ops.cross_entropy(x, y.cast("float32")), DTypeError, "must be of integers"),
        (lambda: ops.cross_entropy(x, y, "max"), ValueError, "reduction is 'max'"),
        (lambda: ops.mse(x, x[:1]), ShapeError, "mse: target has shape"),
        (lambda: ops.mse(x, x, "max"), ValueError, "reduction is 'max'"),
    ):
        with pytest.raises(error, match=message):
            call()
