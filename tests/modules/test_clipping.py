"""Clipping gradients: by the norm of all of them, on whichever devices they lie, and element by element."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Gradients, ops, randn
from modules import ModuleError, clip_norm, clip_value
from tests.engine.strategies import FLOATS

from .optimizing import Three, gradients_of
from .small_modules import Holder
from .test_optimizers import split

PATHS = ("a.weight", "a.bias", "b.weight", "b.bias")
EXACT = ("float32", "float64")


def pair(first: str, second: str, dtype: str = "float32") -> Holder:
    return Holder(a=Three(f"{first}+autodiff", dtype), b=Three(f"{second}+autodiff", dtype))


def arrays(gradients: Gradients) -> list[np.ndarray]:
    return [gradient.numpy().astype("float64") for gradient in gradients]


def norm(gradients: Gradients) -> float:
    return math.sqrt(sum((array**2).sum() for array in arrays(gradients)))


@given(limit=st.floats(0.1, 40), scale=st.sampled_from([1e-30, 1.0, 1e15]), dtype=st.sampled_from(EXACT))
def test_a_norm_above_the_limit_becomes_the_limit_and_the_direction_stays(limit, scale, dtype):
    """All gradients are scaled by one factor; below the limit they are the same ones. Squares do not overflow."""
    module = pair("cpu:0", "cpu:1", dtype)
    gradients = gradients_of(module, *PATHS, scale=scale)
    before = norm(gradients)
    clipped = clip_norm(gradients, limit * scale)
    if before <= limit * scale:
        assert clipped is gradients
        return
    for found, given_array in zip(arrays(clipped), arrays(gradients), strict=True):
        np.testing.assert_allclose(found, given_array * (limit * scale / before), rtol=1e-6)
    assert norm(clipped) == pytest.approx(limit * scale, rel=1e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_clipping_keeps_dtypes_devices_and_whose_the_gradients_are(dtype):
    module = pair("cpu:0", "cpu:1", str(dtype))
    gradients = gradients_of(module, *PATHS)
    for clipped in (clip_norm(gradients, 0.5), clip_value(gradients, 0.5)):
        for path in PATHS:
            param = module.at(path)
            found = param.grad(clipped)
            assert found is not None
            assert (found.dtype, found.device, found.shape) == (param.dtype, param.device, param.shape)
            assert not found.is_tracked
            assert found.tobytes() != param.grad(gradients).tobytes()


@given(limit=st.floats(0.01, 3))
def test_values_are_brought_into_the_range(limit):
    """From −limit to limit; those in it stay."""
    gradients = gradients_of(pair("cpu:0", "cpu:1"), *PATHS)
    for found, given_array in zip(arrays(clip_value(gradients, limit)), arrays(gradients), strict=True):
        np.testing.assert_array_equal(found, np.clip(given_array, np.float32(-limit), np.float32(limit)))


def test_a_norm_that_is_no_number_makes_the_gradients_so():
    """Nothing hides it; an infinite gradient too."""
    module = pair("cpu:0", "cpu:1")
    for scale in (math.nan, math.inf):
        clipped = clip_norm(gradients_of(module, *PATHS, scale=scale), 1.0)
        assert all(np.isnan(array).any() for array in arrays(clipped))


def test_of_no_gradients_there_is_nothing_to_clip():
    assert len(clip_norm(Gradients({}), 1.0)) == len(clip_value(Gradients({}), 1.0)) == 0


def test_the_norm_of_a_split_model_is_that_of_the_whole_bit_for_bit():
    """L120: devices and the order of layers on them do not matter."""
    found = set()
    for devices in (["cpu:0"], ["cpu:0", "cpu:1"], ["cpu:2", "cpu:0", "cpu:1", "cpu:2"]):
        model = split(devices)
        y = model(randn((5, 4), seed=1, device="cpu:0"))
        gradients = ops.mse(y, randn((5, 3), seed=2, device=y.device)).backward()
        found.add(tuple(gradient.tobytes() for gradient in clip_norm(gradients, 0.1)))
    assert len(found) == 1


@pytest.mark.parametrize("clip", [clip_norm, clip_value])
@pytest.mark.parametrize("given_", [None, [1.0], 3, Three()], ids=lambda given_: type(given_).__name__)
def test_what_is_clipped_are_gradients(clip, given_):
    """Everything else is named by its type."""
    expected = rf"{clip.__name__} takes the Gradients that backward\(\) gives, not a {type(given_).__name__}$"
    with pytest.raises(TypeError, match=expected):
        clip(given_, 1.0)


@pytest.mark.parametrize("clip", [clip_norm, clip_value])
@pytest.mark.parametrize("limit", [0, -1.0, math.nan, math.inf, True, "1", None])
def test_a_limit_is_a_finite_number_above_0(clip, limit):
    with pytest.raises(ModuleError, match=rf"{clip.__name__}: limit is .*must be a finite number above 0"):
        clip(gradients_of(Three(), "weight"), limit)
