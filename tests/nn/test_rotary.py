"""Rotary positions: pairs as complex numbers, what attention gets of them, and whose the tables are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import tensor
from modules import Module, ModuleError
from modules.nn import RotaryPositions
from tests.nn.oracles import turned, wide
from tests.nn.strategies import CPU, values


@given(
    pairs=st.integers(1, 4),
    positions=st.integers(0, 4),
    start=st.integers(0, 3),
    interleaved=st.booleans(),
    theta=st.sampled_from([10.0, 1e4, 1e5]),
)
def test_each_pair_is_turned_by_the_angle_of_its_position(pairs, positions, start, interleaved, theta):
    """As a complex number times e^(i · position · theta^(−2 pair / d)), whichever two features are a pair."""
    layer = RotaryPositions(8, 2 * pairs, theta=theta, interleaved=interleaved, device=CPU, dtype="float64")
    x = values((2, positions, 2 * pairs), dtype="float64")

    y = layer(x, start)

    assert y.shape == x.shape
    for b in range(2):
        for p in range(positions):
            np.testing.assert_allclose(y.numpy()[b, p], turned(layer, wide(x)[b, p], start + p), atol=1e-12)


@given(first=st.integers(0, 5), second=st.integers(0, 5), shift=st.integers(0, 5))
def test_products_of_turned_vectors_depend_on_their_distance_alone(first, second, shift):
    """What rotary positions are for: RoFormer, equation 16."""
    layer = RotaryPositions(16, 8, device=CPU, dtype="float64")
    q, k = values((1, 8), 1, dtype="float64"), values((1, 8), 2, dtype="float64")

    def product(p, r):
        return float((layer(q, p).numpy() * layer(k, r).numpy()).sum())

    assert product(first, second) == pytest.approx(product(first + shift, second + shift), abs=1e-12)


def test_the_halves_of_one_convention_are_the_neighbours_of_the_other():
    """Reordering the features from (2i, 2i + 1) to (i, i + d/2) turns one into the other, but for a rounding step."""
    x, order = values((3, 6)).numpy(), [0, 2, 4, 1, 3, 5]
    neighbours, halves = (RotaryPositions(4, 6, interleaved=side_by_side, device=CPU) for side_by_side in (True, False))

    ours = neighbours(tensor(x, device=CPU)).numpy()[:, order]
    theirs = halves(tensor(x[:, order], device=CPU)).numpy()

    np.testing.assert_allclose(ours, theirs, rtol=0, atol=np.finfo(x.dtype).eps * np.abs(x).max())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_halves_use_tables_of_float32(dtype):
    """At position 1000 a float16 angle would be off by a quarter turn; the input keeps its dtype."""
    layer = RotaryPositions(1024, 2, device=CPU, dtype=dtype)
    x = values((1, 2), dtype=dtype)
    y = layer(x, 1000)
    assert y.dtype == x.dtype
    assert layer.cos.dtype == ("float64" if dtype == "float64" else "float32")
    tolerance = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 1e-4)
    np.testing.assert_allclose(wide(y)[0], turned(layer, wide(x)[0], 1000), atol=tolerance)


class Two(Module):
    """Two places with one object."""

    def __init__(self, rotary):
        self.first = rotary
        self.second = rotary


def test_tables_are_constants_that_move_with_the_module_and_are_not_recorded():
    """M9; D8: what is shared stays shared, moved or not."""
    both = Two(RotaryPositions(4, 2, device=CPU))
    assert both.num_params() == 0
    assert len(both.into_record()) == 0
    moved = both.fork("cpu:1")
    assert [str(device) for device in moved.devices()] == ["cpu:1"]
    assert moved.first.cos is moved.second.cos
    assert moved.first.cos.numpy().tobytes() == both.first.cos.numpy().tobytes()


def test_settings_and_positions_out_of_range_are_refused_by_name():
    """ModuleError, naming the setting and its value."""
    for arguments, settings, message in (
        ((0, 2), {}, "max_sequence_length is 0"),
        ((4, 0), {}, "d_model is 0"),
        ((4, 3), {}, "d_model is 3"),
        ((4, 2), {"theta": 0}, "theta is 0"),
        ((4, 2), {"dtype": "int8"}, "dtype is int8"),
    ):
        with pytest.raises(ModuleError, match=f"RotaryPositions: {message}"):
            RotaryPositions(*arguments, device=CPU, **settings)
    layer = RotaryPositions(4, 2, device=CPU)
    assert layer(values((2, 2)), 2).shape == (2, 2)
    with pytest.raises(ModuleError, match="position 4 is beyond max_sequence_length, 4"):
        layer(values((2, 2)), 3)
