"""Dropout: when it drops, what it drops, and what becomes of its draws (M69, L41, L105)."""

import math
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Seed, Tensor, ops
from modules import Flag, Module, ModuleError
from modules.nn import Dropout, Linear
from tests.nn.golden_layers import alike, shown
from tests.nn.strategies import CPU, values

AUTODIFF: Final = "cpu:0+autodiff"
SWITCHES: Final = ("freeze", "unfreeze", "no_grad", "valid", "train", "clone")


def kept(prob: float, shape: tuple[int, ...], seed: int, count: int) -> Any:
    """Which elements stay: those whose number, of Philox keyed by the seed, is not below the probability."""
    key, counter = np.array([seed, 0], "u8"), np.array([0, 0, 0, count], "u8")
    generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
    return generator.random(shape, "f4") >= np.float32(prob)


@given(
    prob=st.sampled_from([0.0, 0.25, 0.5, 0.9]),
    enabled=st.booleans(),
    place=st.sampled_from([CPU, AUTODIFF, "cpu:1", "cpu:1+autodiff"]),
    shape=st.sampled_from([(), (0, 3), (7,), (3, 4)]),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
)
def test_it_drops_exactly_where_flag_input_and_probability_say_so(prob, enabled, place, shape, dtype):
    """L41, M69: else the input comes back as it is, and nothing is drawn. Three calls, a draw each."""
    layer = Dropout(prob, seed=5).replace(training=Flag(enabled))
    x = values(shape, 1, dtype).to_device(place.removesuffix("+autodiff"))
    x = x.autodiff() if place.endswith("+autodiff") else x
    drops = enabled and place.endswith("+autodiff") and prob > 0

    for count in range(3):
        y = layer(x)

        if not drops:
            assert y is x
            continue
        scale = x.numpy().dtype.type(1 / (1 - prob))
        expected = x.numpy() * kept(prob, shape, 5, count).astype(x.numpy().dtype) * scale
        assert y.numpy().tobytes() == np.asarray(expected, x.numpy().dtype).tobytes()
        assert (y.device, y.dtype, y.device.is_autodiff) == (x.device, x.dtype, True)
    assert layer.draws.count == (3 if drops else 0)


@given(
    calls=st.lists(st.sampled_from(SWITCHES), max_size=5),
    associated=st.booleans(),
)
def test_after_any_switches_it_drops_as_its_flag_and_the_input_say(calls, associated):
    """L41 over states: `freeze` and `valid` stop it, `no_grad` does not (M53, M69, section 6)."""
    layer, enabled, configured = Dropout(0.5, seed=1), True, True
    for call in calls:
        layer = getattr(layer, call)()
        if call in ("freeze", "unfreeze"):
            enabled = configured = call == "unfreeze"
        elif call == "valid":
            enabled = False
        elif call == "train":
            enabled = configured
    x = values((32,))
    x = x.autodiff() if associated else x

    outputs = [layer(x).tobytes() for _ in range(3)]

    assert layer.training.is_enabled == enabled
    assert len(set(outputs)) == (3 if enabled and associated else 1)
    assert (x.tobytes() in outputs) != (enabled and associated)


def test_as_a_first_layer_it_drops_from_an_input_with_autodiff_only():
    """M69: a plain input is let through by a model in training; behind parameters, frozen too, it needs no help."""
    layer, x = Dropout(0.5, seed=1).train(), values((4, 8))
    assert layer(x) is x
    assert layer(x.autodiff()).tobytes() != x.tobytes()
    behind = Linear(8, 8, device=AUTODIFF, seed=0).freeze()(x)
    assert layer(behind).tobytes() != behind.tobytes()


@pytest.mark.parametrize("prob", [0.1, 0.5, 0.8])
def test_it_drops_as_many_as_it_should_and_keeps_the_mean(prob: float):
    """M69: within five standard deviations of 100,000 elements."""
    count = 100_000
    x = Tensor.from_numpy(np.ones(count), AUTODIFF)

    y = Dropout(prob, seed=3)(x).numpy()

    off = 5 * math.sqrt(prob * (1 - prob) / count)
    assert abs((y == 0).mean() - prob) < off
    assert np.allclose(y[y != 0], 1 / (1 - prob))
    assert abs(y.mean() - 1) < off / (1 - prob)


def test_its_gradient_is_that_of_the_elements_that_stay():
    """M69: the cotangent, where nothing was dropped times the scale, else 0."""
    x = values((4, 5), dtype="float64").autodiff().require_grad()
    cotangent = values((4, 5), 2, "float64")

    gradients = ops.sum(Dropout(0.25, seed=5)(x) * cotangent).backward()

    gradient = x.grad(gradients)
    assert gradient is not None
    expected = cotangent.numpy() * kept(0.25, (4, 5), 5, 0) / 0.75
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-15)


def test_each_layer_of_one_seed_drops_other_elements():
    """DESIGN, Seed: a stream gives each its own; two layers of one integer drop alike."""
    x, stream = values((64,)).autodiff(), Seed(1)

    outputs = [layer(x).tobytes() for layer in (Dropout(0.5, seed=stream), Dropout(0.5, seed=stream))]

    assert outputs[0] != outputs[1]
    assert Dropout(0.5, seed=1)(x).tobytes() == outputs[0]
    assert Dropout(0.5)(x).tobytes() != Dropout(0.5)(x).tobytes()


class Model(Module):
    """A dropout between two linear layers."""

    def __init__(self, seed: int, device: str) -> None:
        stream = Seed(seed)
        self.first = Linear(3, 8, device=device, seed=stream)
        self.dropout = Dropout(0.5, seed=stream)
        self.second = Linear(8, 2, device=device, seed=stream)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.dropout(self.first(x)))


@given(before=st.integers(0, 3), place=st.sampled_from([AUTODIFF, "cpu:1+autodiff"]))
def test_a_model_that_is_resumed_drops_what_one_that_ran_on_does(before, place):
    """DESIGN, Draws: its record restores the count, by path ``draws/dropout.draws``."""
    x, model = values((4, 3)), Model(1, AUTODIFF)
    for _ in range(before):
        model(x)
    record = model.into_record()

    resumed = Model(1, place).load_record(record)

    assert list(record.scalars) == (["draws/dropout.draws"] if before else [])
    for _ in range(2):
        assert resumed(x.to_device(place)).tobytes() == model(x).tobytes()


@given(calls=st.integers(0, 2), device=st.sampled_from(["cpu:0", "cpu:1"]))
def test_a_clone_or_fork_drops_on_from_where_it_was_made_and_leaves_the_original_alone(calls, device):
    """L10, L105: both go through the same draws, each by itself."""
    x, model = values((4, 3)), Model(1, AUTODIFF)
    for _ in range(calls):
        model(x)

    for made in (model.clone(), model.fork(device)):
        assert made.at("dropout.draws").count == calls
    first, second = model.clone(), model.fork(device)
    outputs = [[version(x.to_device(version.devices()[0])).tobytes() for _ in range(3)] for version in (first, second)]
    assert model.dropout.draws.count == calls
    assert outputs[0] == outputs[1] == [model(x).tobytes() for _ in range(3)]


@pytest.mark.parametrize("prob", [-0.1, 1, 1.0, 2, math.nan, math.inf, "0.5", None, True])
def test_a_probability_out_of_range_is_refused(prob: Any):
    """M69: from 0 to below 1, and finite."""
    with pytest.raises(ModuleError, match=r"Dropout: prob is .*; it must be a number from 0 to below 1"):
        Dropout(prob)


def test_what_it_holds():
    """M69: the path of its flag is `training`; it has no parameters, and no device."""
    layer = Dropout(0.5)

    assert list(layer.fields()) == ["prob", "training", "draws"]
    assert layer.training.is_enabled
    assert layer.devices() == []
    assert layer.num_params() == 0
    assert not layer.into_record()


@pytest.mark.golden
def test_it_displays_as_burns():
    """M101, M102: `training` shows only where it is off, or where all attributes are asked for."""
    for settings, text in shown("Dropout(0.5)"):
        assert alike(Dropout(0.5).display(settings)) == alike(text)
    assert Dropout(0.5).valid().display() == "Dropout {prob: 0.5, training: disabled}"
