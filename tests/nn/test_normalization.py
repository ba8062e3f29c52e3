"""LayerNorm and RmsNorm against their formulas in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ShapeError, tensor
from modules import ModuleError
from modules.nn import LayerNorm, RmsNorm
from tests.nn.oracles import wide
from tests.nn.strategies import CPU, values


def trained(layer):
    """The layer with other parameters than ones and zeros."""
    parameters = {name: param for name, param in layer.fields().items() if name in ("gamma", "beta") and param}
    changed = {
        name: param.map(lambda t, seed=seed: values(t.shape, seed + 5).cast(t.dtype))
        for seed, (name, param) in enumerate(parameters.items())
    }
    return layer.replace(**changed)


@given(
    before=st.lists(st.integers(0, 3), max_size=2),
    d=st.integers(1, 6),
    bias=st.booleans(),
    epsilon=st.sampled_from([1e-12, 1e-5, 0.5]),
)
def test_layer_norm_is_its_formula(before, d, bias, epsilon):
    """(x − mean) / √(biased variance + ε) · γ + β, along the last axis."""
    layer = trained(LayerNorm(d, epsilon=epsilon, bias=bias, device=CPU, dtype="float64"))
    x = values((*before, d), dtype="float64")

    x64 = wide(x)
    expected = (x64 - x64.mean(-1, keepdims=True)) / np.sqrt(x64.var(-1, keepdims=True) + epsilon)
    expected = expected * wide(layer.gamma.val()) + (wide(layer.beta.val()) if bias else 0)
    y = layer(x)

    assert y.shape == x.shape
    np.testing.assert_allclose(y.numpy(), expected, atol=1e-12)


@given(before=st.lists(st.integers(0, 3), max_size=2), d=st.integers(1, 6), epsilon=st.sampled_from([1e-12, 1e-5, 0.5]))
def test_rms_norm_is_its_formula(before, d, epsilon):
    """x / √(mean of squares + ε) · γ, along the last axis."""
    layer = trained(RmsNorm(d, epsilon=epsilon, device=CPU, dtype="float64"))
    x = values((*before, d), dtype="float64")

    x64 = wide(x)
    expected = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + epsilon) * wide(layer.gamma.val())

    np.testing.assert_allclose(layer(x).numpy(), expected, atol=1e-12)


def test_norms_start_as_ones_and_zeros_and_are_lazy():
    """DESIGN, Layers: parameters under Burn's names."""
    layer = LayerNorm(3, device="cpu:1")
    assert not layer.gamma.is_initialized
    assert not layer.beta.is_initialized
    assert layer.gamma.val().numpy().tolist() == [1, 1, 1]
    assert layer.beta.val().numpy().tolist() == [0, 0, 0]
    assert LayerNorm(3, bias=False, device=CPU).beta is None
    assert list(LayerNorm(3, device=CPU).into_record()) == ["gamma", "beta"]
    assert list(RmsNorm(3, device=CPU).into_record()) == ["gamma"]
    assert (layer.d_model, layer.epsilon) == (3, 1e-5)


@pytest.mark.parametrize("layer", [LayerNorm, RmsNorm])
def test_settings_out_of_range_are_refused_by_name(layer):
    """ModuleError, naming layer, setting and value."""
    name = layer.__name__
    for epsilon in (0, -1e-5, float("nan"), float("inf"), "1e-5", True):
        with pytest.raises(ModuleError, match=f"{name}: epsilon is {epsilon!r}"):
            layer(3, epsilon=epsilon, device=CPU)
    with pytest.raises(ModuleError, match=f"{name}: d_model is 0"):
        layer(0, device=CPU)
    with pytest.raises(ModuleError, match=f"{name}: dtype is bool"):
        layer(3, device=CPU, dtype="bool")
    with pytest.raises(ShapeError):
        layer(3, device=CPU)(tensor([1.0, 2.0], device=CPU))
