"""The feed-forward networks against their formulas in float64."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules import ModuleError
from modules.nn import FeedForward, GatedFeedForward
from tests.nn import oracles
from tests.nn.strategies import CPU, values

ACTIVATIONS = {
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


@given(
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    bias=st.booleans(),
    before=st.lists(st.integers(0, 3), max_size=2),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 5)),
)
def test_feed_forward_is_its_formula(activation, bias, before, sizes):
    """outer(activation(inner(x)))."""
    d_model, d_ff = sizes
    layer = FeedForward(d_model, d_ff, activation=activation, bias=bias, device=CPU, dtype="float64", seed=1)
    x = values((*before, d_model), dtype="float64")

    inner = oracles.linear(layer.linear_inner, oracles.wide(x))
    expected = oracles.linear(layer.linear_outer, np.vectorize(ACTIVATIONS[activation], otypes="d")(inner))

    assert layer(x).shape == x.shape
    np.testing.assert_allclose(layer(x).numpy(), expected, atol=1e-12)


@given(
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    bias=st.booleans(),
    before=st.lists(st.integers(0, 3), max_size=2),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 5)),
)
def test_gated_feed_forward_is_its_formula(activation, bias, before, sizes):
    """down(activation(gate) · up), the first half of the joined layer being the gate."""
    d_model, d_ff = sizes
    layer = GatedFeedForward(d_model, d_ff, activation=activation, bias=bias, device=CPU, dtype="float64", seed=1)
    x = values((*before, d_model), dtype="float64")

    joined = oracles.linear(layer.gate_up, oracles.wide(x))
    gate, up = joined[..., :d_ff], joined[..., d_ff:]
    expected = oracles.linear(layer.down, np.vectorize(ACTIVATIONS[activation], otypes="d")(gate) * up)

    assert layer(x).shape == x.shape
    np.testing.assert_allclose(layer(x).numpy(), expected, atol=1e-12)


def test_paths_and_settings_are_as_documented():
    """Records find the linear layers under these names."""
    assert list(FeedForward(2, 3, device=CPU).into_record()) == [
        "linear_inner.weight",
        "linear_inner.bias",
        "linear_outer.weight",
        "linear_outer.bias",
    ]
    gated = GatedFeedForward(2, 3, device=CPU)
    assert {path: entry.shape for path, entry in gated.into_record().items()} == {
        "gate_up.weight": (2, 6),
        "down.weight": (3, 2),
    }
    assert (gated.d_model, gated.d_ff, gated.activation) == (2, 3, "silu")


@pytest.mark.parametrize("layer", [FeedForward, GatedFeedForward])
def test_settings_out_of_range_are_refused_by_name(layer):
    """ModuleError, naming layer, setting, value and the choices."""
    name = layer.__name__
    with pytest.raises(ModuleError, match=f"{name}: activation is 'swish'; there are 'gelu'"):
        layer(2, 3, activation="swish", device=CPU)
    with pytest.raises(ModuleError, match=f"{name}: d_model is 0"):
        layer(0, 3, device=CPU)
    with pytest.raises(ModuleError, match=f"{name}: d_ff is -3"):
        layer(2, -3, device=CPU)
