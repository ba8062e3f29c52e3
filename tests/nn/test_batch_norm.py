"""BatchNorm: whose statistics it uses, how the running ones move, and what keeps them still (M98, L41)."""

import json
import sys
import threading
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import DeviceMismatchError, ShapeError, Tensor, full, ops, zeros
from modules import Flag, ModuleError, Param, RunningState
from modules.nn import BatchNorm, Linear
from tests.golden_files import golden_file
from tests.nn.golden_layers import alike, shown
from tests.nn.oracles import Array, wide
from tests.nn.strategies import CPU, values

AUTODIFF: Final = "cpu:0+autodiff"
SWITCHES: Final = ("freeze", "unfreeze", "no_grad", "valid", "train", "clone")
SHAPES: Final = st.sampled_from([(1, 1), (2, 3), (5, 2), (2, 3, 4), (3, 1, 2, 2), (2, 3, 1, 2, 2)])
EPSILONS: Final = st.sampled_from([1e-12, 1e-5, 0.5])


def statistics(x: Array) -> tuple[Array, Array]:
    """Mean and mean squared distance from it, of all numbers of each feature, one feature after the other."""
    features = [x[:, feature].ravel() for feature in range(x.shape[1])]
    means = [numbers.sum() / numbers.size for numbers in features]
    spreads = [((numbers - mean) ** 2).sum() / numbers.size for numbers, mean in zip(features, means, strict=True)]
    return np.array(means), np.array(spreads)


def normalised(layer: BatchNorm, x: Array, mean: Array, var: Array) -> Array:
    """The formula, one feature after the other."""
    gamma, beta = wide(layer.gamma.val()), wide(layer.beta.val())
    y = np.empty_like(x)
    for feature in range(x.shape[1]):
        away = (x[:, feature] - mean[feature]) / np.sqrt(var[feature] + layer.epsilon)
        y[:, feature] = away * gamma[feature] + beta[feature]
    return y


def running(layer: BatchNorm) -> tuple[Array, Array]:
    """The running statistics in float64."""
    return wide(layer.running_mean.value()), wide(layer.running_var.value())


def bits(layer: BatchNorm) -> tuple[bytes, bytes]:
    """The running statistics as bytes."""
    return layer.running_mean.value().tobytes(), layer.running_var.value().tobytes()


def some(features: int, dtype: str = "float64", device: str = CPU, **settings: Any) -> BatchNorm:
    """A layer with other values than ones and zeros."""
    layer = BatchNorm(features, device=device, dtype=dtype, **settings)

    def numbers(seed: int) -> Tensor:
        return values((features,), seed, dtype).to_device(device)

    return layer.replace(
        gamma=Param(numbers(1)),
        beta=Param(numbers(2)),
        running_mean=RunningState(numbers(3)),
        running_var=RunningState(ops.square(numbers(4)) + 0.1),
    )


@given(shape=SHAPES, momentum=st.sampled_from([0.0, 0.1, 0.75, 1.0]), epsilon=EPSILONS, calls=st.integers(1, 3))
def test_in_training_it_uses_the_batchs_statistics_and_moves_the_running_ones_towards_them(
    shape, momentum, epsilon, calls
):
    """M98: running · (1 − momentum) + batch · momentum, with the biased variance, once a call."""
    layer = some(shape[1], momentum=momentum, epsilon=epsilon)
    mean, var = running(layer)

    for call in range(calls):
        x = values(shape, 10 + call, "float64").autodiff()
        y = layer(x)

        batch_mean, batch_var = statistics(wide(x))
        mean = mean * (1 - momentum) + batch_mean * momentum
        var = var * (1 - momentum) + batch_var * momentum
        assert (y.shape, y.dtype, y.device.is_autodiff) == (shape, x.dtype, True)
        np.testing.assert_allclose(y.numpy(), normalised(layer, wide(x), batch_mean, batch_var), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(running(layer), (mean, var), rtol=1e-13, atol=1e-15)


@given(shape=SHAPES, epsilon=EPSILONS, enabled=st.booleans(), associated=st.booleans())
def test_otherwise_it_uses_the_running_statistics_and_leaves_them(shape, epsilon, enabled, associated):
    """L41, M98: they move exactly when the flag is on and the input autodiff; three forwards."""
    layer = some(shape[1], epsilon=epsilon).replace(training=Flag(enabled))
    before = bits(layer)
    x = values(shape, 10, "float64")
    x = x.autodiff() if associated else x

    outputs = [layer(x) for _ in range(3)]

    assert (bits(layer) != before) == (enabled and associated)
    if not (enabled and associated):
        expected = normalised(layer, wide(x), *running(layer))
        for y in outputs:
            np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12, atol=1e-12)


@given(calls=st.lists(st.sampled_from(SWITCHES), max_size=5), place=st.sampled_from([CPU, AUTODIFF]))
def test_freezing_stops_the_running_statistics_and_no_grad_does_not(calls, place):
    """L41, L43 over states: whatever the module's own association is, which no update changes (M53, M95, M98)."""
    layer, enabled, configured = some(3, device=place), True, True
    for call in calls:
        layer = getattr(layer, call)()
        if call in ("freeze", "unfreeze"):
            enabled = configured = call == "unfreeze"
        elif call == "valid":
            enabled = False
        elif call == "train":
            enabled = configured
    before, was = bits(layer), layer.running_var.value().device

    layer(values((4, 3), dtype="float64"))
    assert bits(layer) == before
    layer(values((4, 3), dtype="float64").autodiff())

    assert (bits(layer) != before) == enabled
    for state in (layer.running_mean, layer.running_var):
        assert state.value().device.is_autodiff == was.is_autodiff
        assert not state.value().is_tracked


def test_versions_keep_statistics_of_their_own():
    """M97: only the version that runs changes, whichever was made from which."""
    layer = some(2, device=AUTODIFF)
    x = values((5, 2), dtype="float64").autodiff()
    versions = [layer, layer.clone(), layer.fork("cpu:0"), layer.valid(), layer.no_grad(), layer.freeze()]
    before = bits(layer)

    versions[1](x)

    assert [bits(version) == before for version in versions] == [True, False, True, True, True, True]


# Threads


def in_threads(calls: list[Any]) -> None:
    """All of them at once."""
    start, errors = threading.Barrier(len(calls)), []

    def run(call: Any) -> None:
        start.wait()
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.fixture
def _switching():
    """Threads that take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_switching")
def test_no_update_of_eight_threads_is_lost():
    """M94, M98: of equal batches any order gives the same numbers, those of as many calls in a row."""
    x = values((6, 4), dtype="float64").autodiff()
    layer, alone = some(4), some(4)

    in_threads([lambda: [layer(x) for _ in range(10)]] * 8)
    for _ in range(80):
        alone(x)

    assert bits(layer) == bits(alone)


@pytest.mark.usefixtures("_switching")
def test_mean_and_variance_are_of_one_order_of_updates():
    """M98: with momentum 1 both are those of the batch that came last, whichever that was."""
    batches = [values((6, 4), seed, "float64").autodiff() for seed in range(8)]
    pairs = set()
    for x in batches:
        alone = some(4, momentum=1.0)
        alone(x)
        pairs.add(bits(alone))

    for _ in range(30):
        layer = some(4, momentum=1.0)
        in_threads([lambda x=x, layer=layer: layer(x) for x in batches])
        assert bits(layer) in pairs


# What is refused


def test_an_input_on_another_device_is_refused_and_changes_nothing():
    """M98: as everywhere, nothing is moved in silence."""
    layer = some(3)
    before = bits(layer)
    for x in (values((4, 3), dtype="float64"), values((4, 3), dtype="float64").autodiff()):
        with pytest.raises(DeviceMismatchError, match=r"batch_norm: .*cpu:1.*cpu:0"):
            layer(x.to_device("cpu:1"))

    assert bits(layer) == before


@pytest.mark.parametrize("name", ["running_mean", "running_var"])
def test_a_running_state_on_another_device_is_refused_and_neither_moves(name: str):
    """M98; both move or none."""
    layer = some(3)
    layer = layer.replace(**{name: RunningState(full((3,), 2.0, device="cpu:1", dtype="float64"))})
    before = bits(layer)

    with pytest.raises(DeviceMismatchError, match="cpu:1"):
        layer(values((4, 3), dtype="float64").autodiff())

    assert bits(layer) == before


def test_as_a_first_layer_it_trains_on_an_input_with_autodiff_only():
    """M98: a plain input is treated as in evaluation; behind parameters, frozen too, it needs no help (M72)."""
    layer, x = some(3, "float32").train(), values((4, 3))
    before = bits(layer)
    assert layer(x).tobytes() == layer.valid()(x).tobytes()
    assert bits(layer) == before
    assert layer(x.autodiff()).tobytes() != layer.valid()(x).tobytes()
    assert bits(layer) != before
    before = bits(layer)
    layer(Linear(3, 3, device=AUTODIFF, seed=0).freeze()(x))
    assert bits(layer) != before


@pytest.mark.parametrize("shape", [(), (3,), (4, 2), (2, 4, 3)])
def test_an_input_without_its_features_on_axis_1_is_refused(shape: tuple[int, ...]):
    """DESIGN, Layers: [batch, num_features, …]; the message names the layer and both, not gamma."""
    layer = some(3)
    before = bits(layer)
    for x in (zeros(shape, device=CPU, dtype="float64"), zeros(shape, device=AUTODIFF, dtype="float64")):
        with pytest.raises(ShapeError) as raised:
            layer(x)
        assert str(raised.value) == (
            f"BatchNorm: x has shape {list(shape)}, the layer 3 features; x must be [batch, 3, …]"
        )

    assert bits(layer) == before


def test_no_rows_have_no_statistics():
    """ShapeError in training; otherwise nothing comes of nothing."""
    layer = some(3)
    with pytest.raises(ShapeError):
        layer(zeros((0, 3), device=AUTODIFF, dtype="float64"))

    assert layer(zeros((0, 3), device=CPU, dtype="float64")).shape == (0, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(({"epsilon": value}, f"epsilon is {value!r}") for value in (0, -1e-5, float("nan"), float("inf"), "1")),
        *(({"momentum": value}, f"momentum is {value!r}") for value in (-0.1, 1.5, float("nan"), None, True)),
        ({"dtype": "int64"}, "dtype is int64"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings: dict[str, Any], message: str):
    """M98: features > 0, finite epsilon > 0, momentum in [0, 1]."""
    with pytest.raises(ModuleError, match=f"BatchNorm: {message}"):
        BatchNorm(3, **{"device": CPU, **settings})
    with pytest.raises(ModuleError, match="BatchNorm: num_features is 0"):
        BatchNorm(0, device=CPU)


# What it holds


def test_what_it_holds_and_records():
    """DESIGN, Layers: parameters and states under Burn's names, in Burn's order; lazy ones stay lazy."""
    layer = BatchNorm(3, device="cpu:1", dtype="float16")

    assert (layer.num_features, layer.momentum, layer.epsilon) == (3, 0.1, 1e-5)
    assert not layer.gamma.is_initialized
    assert not layer.beta.is_initialized
    assert layer.training.is_enabled
    assert layer.num_params() == 12
    record = layer.into_record()
    assert list(record) == ["gamma", "beta", "running_mean", "running_var"]
    assert {str(entry.dtype) for entry in record.values()} == {"float16"}
    found = {name: entry.read("cpu:0").numpy().tolist() for name, entry in record.items()}
    assert found == {"gamma": [1] * 3, "beta": [0] * 3, "running_mean": [0] * 3, "running_var": [1] * 3}


@given(calls=st.integers(0, 3), device=st.sampled_from(["cpu:0", "cpu:1"]))
def test_a_record_restores_the_running_statistics(calls, device):
    """R2, R19, L118: into another build, elsewhere, with ids of its own; bit for bit, and so the outputs."""
    layer, other = some(3, "float32"), BatchNorm(3, device=device)
    for call in range(calls):
        layer(values((4, 3), call).autodiff())

    loaded = other.load_record(layer.into_record())

    assert bits(loaded) == bits(layer)
    assert loaded.running_mean.id == other.running_mean.id
    x = values((2, 3), 9)
    assert loaded(x.to_device(device)).tobytes() == layer(x).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrower_floats_are_close_to_the_formula(dtype: str):
    """Sums in float32 at least; what is stored is rounded."""
    layer, x = some(3, dtype), values((8, 3), 7, dtype).autodiff()
    mean, var = running(layer)
    batch_mean, batch_var = statistics(wide(x))
    step = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}[dtype]

    y = layer(x)

    np.testing.assert_allclose(wide(y), normalised(layer, wide(x), batch_mean, batch_var), atol=16 * step)
    expected = mean * 0.9 + batch_mean * 0.1, var * 0.9 + batch_var * 0.1
    np.testing.assert_allclose(running(layer), expected, atol=8 * step)


# Gradients


@given(shape=st.sampled_from([(3, 1), (4, 2), (2, 3, 2), (2, 1, 2, 2)]), enabled=st.booleans(), seed=st.integers(0, 9))
def test_its_gradients_are_central_differences(shape, enabled, seed):
    """L106: of the input, gamma and beta, along one direction each; in training through the batch's statistics too."""
    layer = some(shape[1], epsilon=0.1).replace(training=Flag(enabled))
    features = shape[1]
    extents = {"x": shape, "gamma": (features,), "beta": (features,)}
    points = {name: values(extent, 20 + seed, "float64").numpy() for name, extent in extents.items()}
    directions = {name: values(extent, 30 + seed, "float64").numpy() for name, extent in extents.items()}
    cotangent = values(shape, 40 + seed, "float64").numpy()

    def loss(step: float) -> tuple[Tensor, dict[str, Tensor]]:
        made = {
            name: Tensor.from_numpy(point + step * directions[name], AUTODIFF).require_grad()
            for name, point in points.items()
        }
        moved = layer.replace(gamma=Param(made["gamma"]), beta=Param(made["beta"]))
        return ops.sum(moved(made["x"]) * Tensor.from_numpy(cotangent, CPU)), made

    value, leaves = loss(0)
    gradients = value.backward()
    slope = 0.0
    for name, leaf in leaves.items():
        gradient = leaf.grad(gradients)
        assert gradient is not None
        slope += float((gradient.numpy() * directions[name]).sum())
    step = 1e-5
    difference = (float(loss(step)[0]) - float(loss(-step)[0])) / (2 * step)

    assert abs(slope - difference) <= 1e-6 * max(1.0, abs(difference))


# Golden values


def _case(precision: str) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]], dict[str, Any]]:
    with np.load(golden_file("ops/batch_norm.npz")) as cases:
        assert {key.split("/")[0] for key in cases.files} == {"2d"}, "a case that is not known here"
        inputs = {key.removeprefix("2d/in/"): cases[key] for key in cases.files if key.startswith("2d/in/")}
        start = f"2d/{precision}/out/"
        outputs = {key.removeprefix(start): cases[key] for key in cases.files if key.startswith(start)}
        return inputs, outputs, json.loads(str(cases["2d/meta"]))


@pytest.mark.golden
@pytest.mark.parametrize(("precision", "dtype", "allowed"), [("f64", "float64", 1e-13), ("f32", "float32", 2e-6)])
def test_two_steps_and_an_evaluation_are_those_of_the_reference(precision: str, dtype: str, allowed: float):
    """The reference evaluates with the unbiased variance, so that is put in its place; M98 keeps the biased one."""
    inputs, expected, meta = _case(precision)
    tensors = {name: Tensor.from_numpy(array.astype(dtype), CPU) for name, array in inputs.items()}
    layer = BatchNorm(3, momentum=meta["momentum"], epsilon=meta["eps"], device=CPU, dtype=dtype).replace(
        gamma=Param(tensors["weight"]),
        beta=Param(tensors["bias"]),
        running_mean=RunningState(tensors["running_mean"]),
        running_var=RunningState(tensors["running_var"]),
    )

    found = {"train0": layer(tensors["x"].autodiff()), "train1": layer(tensors["x2"].autodiff())}
    found |= {"running_mean": layer.running_mean.value(), "running_var_biased": layer.running_var.value()}
    unbiased = Tensor.from_numpy(expected["running_var_unbiased"].astype(dtype), CPU)
    evaluating = layer.valid().replace(running_var=RunningState(unbiased))
    found |= {"eval": evaluating(tensors["x"]), "running_var_unbiased": unbiased}

    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name].numpy(), array, atol=allowed * np.abs(array).max(), err_msg=name)


@pytest.mark.golden
def test_it_displays_as_burns():
    """M101, M102: `training` shows only where it is off, or where all attributes are asked for."""
    for settings, text in shown("BatchNorm(3)"):
        assert alike(BatchNorm(3, device=CPU).display(settings)) == alike(text)
    disabled = BatchNorm(3, device=CPU).freeze().display()
    assert disabled == "BatchNorm {num_features: 3, momentum: 0.1, epsilon: 1e-05, training: disabled, params: 12}"
