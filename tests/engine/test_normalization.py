"""Normalisations against their formulas in float64."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ShapeError, ops, tensor, zeros
from tests.engine.comparison import assert_within, exact, same_bits
from tests.engine.strategies import FLOATS, dtypes, shapes, tensors

CPU = "cpu:0"
EPSILONS = st.sampled_from([1e-12, 1e-5, 1e-3, 0.5])


@st.composite
def rows_and_parameters(draw: st.DrawFn, count: int) -> Any:
    x = draw(tensors(dtype=dtypes(*FLOATS), shape=shapes(min_rank=1, max_rank=3)))
    return x, [draw(tensors(dtype=x.dtype, shape=st.just(x.shape[-1:]))) for _ in range(count)], draw(EPSILONS)


@given(drawn=rows_and_parameters(2))
def test_layer_norm_is_its_formula(drawn):
    x, (gamma, beta), epsilon = drawn
    wide = exact(x)
    mean = wide.mean(axis=-1, keepdims=True) if wide.shape[-1] else 0
    deviation = np.sqrt(((wide - mean) ** 2).mean(axis=-1, keepdims=True) + epsilon) if wide.shape[-1] else 1
    # What rounding x − mean loses is as large as the numbers were, and is divided by a deviation that may be small.
    scale = (np.abs(wide).max(axis=-1, keepdims=True, initial=1) / deviation) ** 2 * (np.abs(exact(gamma)) + 1)
    plain = (wide - mean) / deviation * exact(gamma)
    assert_within(ops.layer_norm(x, gamma, epsilon=epsilon), plain, x.dtype, ulps=8, scale=scale)
    both = plain + exact(beta)
    assert_within(ops.layer_norm(x, gamma, beta, epsilon), both, x.dtype, ulps=8, scale=scale + np.abs(exact(beta)))


@given(drawn=rows_and_parameters(1))
def test_rms_norm_is_its_formula(drawn):
    x, (gamma,), epsilon = drawn
    wide = exact(x)
    root = np.sqrt((wide**2).mean(axis=-1, keepdims=True) + epsilon) if wide.shape[-1] else 1
    assert_within(ops.rms_norm(x, gamma, epsilon), wide / root * exact(gamma), x.dtype, ulps=4)


@given(x=tensors(dtype=dtypes(*FLOATS), shape=shapes(min_rank=2, max_rank=4)), epsilon=EPSILONS, data=st.data())
def test_batch_norm_is_its_formula_for_each_channel(x, epsilon, data):
    channels = st.just(x.shape[1:2])
    mean, spread, gamma, beta = (data.draw(tensors(dtype=x.dtype, shape=channels)) for _ in range(4))
    var = ops.absolute(spread)
    result = ops.batch_norm(x, mean, var, gamma, beta, epsilon)
    assert (result.dtype, result.shape) == (x.dtype, x.shape)
    for channel in range(x.shape[1]):
        m, v, g, b = (float(each[channel]) for each in (mean, var, gamma, beta))
        factor = g / np.sqrt(v + epsilon)
        scale = (np.abs(exact(x)[:, channel]) + abs(m)) * abs(factor) + abs(b)
        expected = (exact(x)[:, channel] - m) * factor + b
        assert_within(result[:, channel], expected, x.dtype, ulps=4, scale=scale)


@given(x=tensors(dtype=dtypes(*FLOATS), shape=shapes(min_rank=2, max_rank=4, min_extent=1)))
def test_batch_statistics_are_mean_and_biased_variance_of_each_channel(x):
    mean, var = ops.batch_statistics(x)
    assert mean.shape == var.shape == x.shape[1:2]
    for channel in range(x.shape[1]):
        numbers = exact(x)[:, channel]
        assert_within(mean[channel], numbers.mean(), x.dtype, ulps=2, scale=np.abs(numbers).sum())
        assert_within(var[channel], numbers.var(), x.dtype, ulps=4, scale=(numbers**2).sum())
    normal = ops.batch_norm(x, mean, var, ops.exp(mean * 0), mean * 0, 1e-3)
    assert_within(
        normal[0, 0],
        exact(ops.batch_norm(x[:, :1], mean[:1], var[:1], ops.exp(mean[:1] * 0), mean[:1] * 0, 1e-3))[0, 0],
        x.dtype,
        ulps=0,
    )


def test_large_numbers_do_not_overflow_a_half():
    """Activations of real models reach 22,000 in places; their squares are beyond float16."""
    x = tensor([[20000.0, -20000.0, 20000.0, -20000.0]], device=CPU, dtype="float16")
    ones = tensor([1.0] * 4, device=CPU, dtype="float16")
    for result in (ops.rms_norm(x, ones), ops.layer_norm(x, ones), ops.layer_norm(x, ones, ones * 0)):
        assert result.numpy().tolist() == [[1, -1, 1, -1]]
    with np.errstate(over="ignore"):
        assert float(ops.var(x)) == np.inf


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "batch_norm", "batch_statistics"])
def test_parameters_of_another_shape_are_named(name):
    x, good, op = zeros((2, 3), device=CPU), zeros((3,), device=CPU), getattr(ops, name)
    if name == "batch_statistics":
        for wrong in (good, zeros((), device=CPU)):
            with pytest.raises(ShapeError, match=r"batch_statistics: .* \[batch, channels"):
                op(wrong)
        with pytest.raises(ShapeError, match="of no elements"):
            op(zeros((0, 3), device=CPU))
        return
    for wrong in (zeros((2,), device=CPU), zeros((1,), device=CPU), zeros((), device=CPU), zeros((1, 3), device=CPU)):
        with pytest.raises(ShapeError, match=f"^{name}: "):
            op(x, *[good] * 3, wrong) if name == "batch_norm" else op(x, wrong)
        if name == "layer_norm":
            with pytest.raises(ShapeError, match="^layer_norm: "):
                op(x, good, wrong)
    with pytest.raises(ShapeError, match=f"^{name}: "):
        op(zeros((), device=CPU), *[zeros((), device=CPU)] * (4 if name == "batch_norm" else 1))
    assert same_bits(ops.rms_norm(x, good), x * 0)
