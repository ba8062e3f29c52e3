"""Conv2d and MaxPool2d against loops in float64, and against recorded values."""

import itertools
import json
import math
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import DeviceMismatchError, DTypeError, Seed, ShapeError, Tensor, ops, zeros
from modules import ModuleError, Param
from modules.nn import Conv2d, MaxPool2d
from tests.golden_files import golden_file
from tests.nn.golden_layers import alike, shown
from tests.nn.oracles import Array, wide
from tests.nn.strategies import CPU, values

AUTODIFF: Final = "cpu:0+autodiff"
SIZES: Final = st.tuples(st.integers(1, 3), st.integers(1, 3))
SMALL: Final = st.tuples(st.integers(1, 2), st.integers(1, 2))
MARGINS: Final = st.tuples(st.integers(0, 2), st.integers(0, 2))
IMAGES: Final = st.tuples(st.integers(5, 7), st.integers(5, 7))


def windows(x: Array, layer: Conv2d | MaxPool2d, fill: float) -> dict[tuple[int, int], Array]:
    """What each output position sees of all images and channels, [batch, channels, kernel height, kernel width]."""
    (above, left), (down, right), (tall, broad) = layer.padding, layer.stride, layer.kernel_size
    batch, channels, height, width = x.shape
    padded = np.full((batch, channels, height + 2 * above, width + 2 * left), fill)
    padded[:, :, above : above + height, left : left + width] = x
    height, width = height + 2 * above, width + 2 * left
    rows = [[top + layer.dilation[0] * n for n in range(tall)] for top in range(0, height, down)]
    columns = [[edge + layer.dilation[1] * n for n in range(broad)] for edge in range(0, width, right)]
    rows = [seen for seen in rows if seen[-1] < height]
    columns = [seen for seen in columns if seen[-1] < width]
    return {
        (i, j): padded[:, :, row][:, :, :, column]
        for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns))
    }


def convolved(layer: Conv2d, x: Array) -> Array:
    """One output channel and one position at a time."""
    weight, seen = wide(layer.weight.val()), windows(x, layer, 0.0)
    inputs, outputs = weight.shape[1], weight.shape[0]
    extents = tuple(max(place[axis] for place in seen) + 1 for axis in (0, 1))
    y = np.zeros((x.shape[0], outputs, *extents))
    for (i, j), patch in seen.items():
        for channel in range(outputs):
            first = channel // (outputs // layer.groups) * inputs
            y[:, channel, i, j] = (patch[:, first : first + inputs] * weight[channel]).sum(axis=(1, 2, 3))
    return y if layer.bias is None else y + wide(layer.bias.val()).reshape(-1, 1, 1)


@given(
    groups=st.integers(1, 2),
    per_group=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    kernel=SIZES,
    stride=SIZES,
    padding=MARGINS,
    dilation=SMALL,
    bias=st.booleans(),
    image=IMAGES,
    batch=st.integers(0, 2),
)
def test_a_convolution_is_a_sum_over_each_window(
    groups, per_group, kernel, stride, padding, dilation, bias, image, batch
):
    """Every setting, rows and columns apart; weights [out, in / groups, height, width]."""
    ch_in, ch_out = groups * per_group[0], groups * per_group[1]
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": bias}
    layer = Conv2d(ch_in, ch_out, kernel, **settings, device=CPU, dtype="float64", seed=1)
    x = values((batch, ch_in, *image), dtype="float64")

    y = layer(x)

    assert layer.weight.shape == (ch_out, ch_in // groups, *kernel)
    assert (layer.ch_in, layer.ch_out) == (ch_in, ch_out)
    np.testing.assert_allclose(y.numpy(), convolved(layer, wide(x)), atol=1e-12)


@given(kernel=SIZES, stride=st.none() | SIZES, dilation=SMALL, halves=st.tuples(*[st.booleans()] * 2), image=IMAGES)
def test_a_pooling_gives_the_largest_of_each_window(kernel, stride, dilation, halves, image):
    """Without a stride, windows lie side by side; what is padded is never the largest."""
    padding = tuple(extent // 2 if half else 0 for extent, half in zip(kernel, halves, strict=True))
    layer = MaxPool2d(kernel, stride=stride, padding=padding, dilation=dilation)
    x = values((2, 3, *image), dtype="float64") - 5.0

    y = layer(x)

    assert layer.stride == (stride or kernel)
    for (i, j), patch in windows(wide(x), layer, -math.inf).items():
        assert np.array_equal(y.numpy()[:, :, i, j], patch.max(axis=(2, 3)))


def test_one_number_stands_for_both():
    """Settings are kept as pairs."""
    layer = Conv2d(2, 4, 3, stride=2, padding=1, dilation=2, groups=2, device=CPU)

    assert (layer.kernel_size, layer.stride, layer.padding, layer.dilation) == ((3, 3), (2, 2), (1, 1), (2, 2))
    pool = MaxPool2d(3, padding=1)
    assert (pool.kernel_size, pool.stride, pool.padding, pool.dilation) == ((3, 3), (3, 3), (1, 1), (1, 1))


def test_initial_values_are_uniform_within_the_bound_of_the_inputs_a_window_sees():
    """±1/√(ch_in / groups · height · width), for weight and bias; the same for one seed; lazy until they are read."""
    layer = Conv2d(8, 64, (3, 5), groups=2, device="cpu:1", seed=3)
    assert not layer.weight.is_initialized
    assert layer.num_params() == 64 * 4 * 15 + 64

    bound = 1 / math.sqrt(4 * 15)
    assert layer.bias is not None
    for parameter in (layer.weight, layer.bias):
        found = parameter.val().numpy()
        assert 0.9 * bound < np.abs(found).max() <= bound
        assert abs(found.mean()) < 0.2 * bound
    assert str(layer.weight.val().device) == "cpu:1"
    again = Conv2d(8, 64, (3, 5), groups=2, device=CPU, seed=3)
    assert again.weight.val().tobytes() == layer.weight.val().tobytes()
    stream = Seed(3)
    first, second = (Conv2d(1, 1, 3, device=CPU, seed=stream) for _ in range(2))
    assert first.weight.val().tobytes() != second.weight.val().tobytes()


def test_what_they_hold_and_record():
    """DESIGN, Layers: parameters under Burn's names; a pooling has neither parameters nor a device."""
    layer = Conv2d(2, 3, 3, device=CPU)
    pool = MaxPool2d(2)

    assert list(layer.into_record()) == ["weight", "bias"]
    assert Conv2d(2, 3, 3, bias=False, device=CPU).bias is None
    assert (pool.devices(), pool.num_params(), list(pool.into_record())) == ([], 0, [])
    loaded = Conv2d(2, 3, 3, device="cpu:1").load_record(layer.into_record())
    x = values((1, 2, 4, 4))
    assert loaded(x.to_device("cpu:1")).tobytes() == layer(x).tobytes()


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((0, 3, 3), {}, "ch_in is 0"),
        ((2, 0, 3), {}, "ch_out is 0"),
        ((2, 3, 0), {}, "kernel_size is 0"),
        ((2, 3, (3, 3, 3)), {}, r"kernel_size is \(3, 3, 3\)"),
        ((2, 3, "33"), {}, "kernel_size is '33'"),
        ((2, 3, 1.5), {}, "kernel_size is 1.5"),
        ((2, 3, 3), {"stride": (1, 0)}, r"stride is \(1, 0\)"),
        ((2, 3, 3), {"padding": -1}, "padding is -1"),
        ((2, 3, 3), {"dilation": None}, "dilation is None"),
        ((2, 3, 3), {"groups": 0}, "groups is 0"),
        ((3, 4, 3), {"groups": 2}, "ch_in is 3, which groups, 2, does not divide"),
        ((4, 3, 3), {"groups": 2}, "ch_out is 3, which groups, 2, does not divide"),
        ((2, 3, 3), {"dtype": "bool"}, "dtype is bool"),
    ],
)
def test_settings_of_a_convolution_are_refused_by_name(arguments: Any, settings: dict[str, Any], message: str):
    """ModuleError, naming layer, setting and value."""
    with pytest.raises(ModuleError, match=f"Conv2d: {message}"):
        Conv2d(*arguments, device=CPU, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel_size": 0}, "kernel_size is 0"),
        ({"kernel_size": 2, "stride": 0}, "stride is 0"),
        ({"kernel_size": 2, "dilation": (1, 0)}, r"dilation is \(1, 0\)"),
        (
            {"kernel_size": (2, 4), "padding": 2},
            r"padding is \(2, 2\); it must be at most half of the window, \(2, 4\)",
        ),
    ],
)
def test_settings_of_a_pooling_are_refused_by_name(settings: dict[str, Any], message: str):
    """ModuleError, naming layer, setting and value."""
    with pytest.raises(ModuleError, match=f"MaxPool2d: {message}"):
        MaxPool2d(**settings)


def test_inputs_that_do_not_fit_are_refused():
    """Another rank, number of channels, dtype or device."""
    layer = Conv2d(2, 3, 3, device=CPU)
    for shape in ((2, 5, 5), (1, 3, 5, 5), (1, 2, 2, 5)):
        with pytest.raises(ShapeError, match="conv2d"):
            layer(zeros(shape, device=CPU))
    with pytest.raises(DTypeError, match="conv2d"):
        layer(zeros((1, 2, 5, 5), device=CPU, dtype="float64"))
    with pytest.raises(DeviceMismatchError, match="conv2d"):
        layer(zeros((1, 2, 5, 5), device="cpu:1"))
    with pytest.raises(ShapeError, match="max_pool2d"):
        MaxPool2d(2)(zeros((2, 5, 5), device=CPU))


def test_gradients_reach_the_parameters():
    """M73: of their shape, dtype and device; a bias takes the sum over images and positions."""
    layer = Conv2d(2, 3, 2, device=AUTODIFF, dtype="float64", seed=1)
    x = values((2, 2, 4, 4), dtype="float64")
    cotangent = values((2, 3, 1, 1), 2, "float64")

    y = MaxPool2d(3)(layer(x))
    gradients = ops.sum(y * cotangent).backward()

    assert layer.bias is not None
    to_weight, to_bias = layer.weight.grad(gradients), layer.bias.grad(gradients)
    assert to_weight is not None
    assert to_bias is not None
    assert (to_weight.shape, to_weight.dtype) == (layer.weight.shape, "float64")
    np.testing.assert_allclose(to_bias.numpy(), cotangent.numpy().sum(axis=(0, 2, 3)), rtol=1e-13)


# Recorded values


def _cases(name: str, precision: str, dtype: str) -> dict[str, tuple[dict[str, Tensor], Array, Any]]:
    """Inputs, output and settings of each case of a file."""
    with np.load(golden_file(f"ops/{name}.npz")) as file:
        cases = {key.split("/")[0] for key in file.files}
        made = {}
        for case in cases:
            start = f"{case}/in/"
            inputs = {
                key.removeprefix(start): Tensor.from_numpy(file[key].astype(dtype), CPU)
                for key in file.files
                if key.startswith(start)
            }
            made[case] = inputs, file[f"{case}/{precision}/out"], json.loads(str(file[f"{case}/meta"]))
        return made


def _settings(meta: dict[str, Any]) -> dict[str, Any]:
    known = {"stride", "padding", "dilation", "groups", "kernel_size"}
    assert not meta.keys() - known - {"op", "views", "note"}, f"settings that are not known here: {sorted(meta)}"
    assert not meta["views"]
    return {key: tuple(value) if isinstance(value, list) else value for key, value in meta.items() if key in known}


@pytest.mark.golden
@pytest.mark.parametrize(("precision", "dtype", "allowed"), [("f64", "float64", 1e-14), ("f32", "float32", 4e-6)])
def test_convolutions_are_those_of_the_reference(precision: str, dtype: str, allowed: float):
    """Forward values of ``golden/ops/conv2d``."""
    cases = _cases("conv2d", precision, dtype)
    assert cases.keys() >= {"plain", "stride_pad", "groups"}
    for case, (tensors, expected, meta) in cases.items():
        outputs, inputs, *kernel = tensors["w"].shape
        settings = _settings(meta)
        channels = inputs * settings.get("groups", 1)
        layer = Conv2d(channels, outputs, (kernel[0], kernel[1]), **settings, device=CPU, dtype=dtype)
        layer = layer.replace(weight=Param(tensors["w"]), bias=Param(tensors["b"]))

        found = layer(tensors["x"]).numpy()
        np.testing.assert_allclose(found, expected, atol=allowed * np.abs(expected).max(), err_msg=case)


@pytest.mark.golden
@pytest.mark.parametrize(("precision", "dtype"), [("f64", "float64"), ("f32", "float32")])
def test_poolings_are_those_of_the_reference(precision: str, dtype: str):
    """Forward values of ``golden/ops/max_pool2d``, which are elements of the input."""
    cases = _cases("max_pool2d", precision, dtype)
    assert cases.keys() >= {"plain", "pad"}
    for case, (tensors, expected, meta) in cases.items():
        found = MaxPool2d(**_settings(meta))(tensors["x"]).numpy()
        np.testing.assert_array_equal(found, expected, err_msg=case)


@pytest.mark.golden
def test_they_display_as_burns():
    """M101, M102; padding is a number here, and a pooling never rounds its extents up."""
    made = {"Conv2d([2, 3], [3, 3])": Conv2d(2, 3, (3, 3), device=CPU), "MaxPool2d([2, 2])": MaxPool2d((2, 2))}
    for name, layer in made.items():
        for settings, text in shown(name):
            assert alike(layer.display(settings)) == alike(text)
