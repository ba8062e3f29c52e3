"""Steps of optimizers on a GPU's arrays are those on a CPU's. This ran over a fake CuPy and not on a GPU."""

import numpy as np
import pytest

from engine.updates import adam_update, sgd_update, state_dtype, sums_of_squares
from tests.engine.comparison import same_bits
from tests.engine.strategies import FLOATS, in_order, values
from tests.fake_cupy import Machine


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_step_gives_on_a_gpu_what_it_gives_on_a_cpu(machine: Machine, dtype: np.dtype) -> None:
    """In any order of memory, bit for bit; it stays on the device."""
    of = state_dtype(dtype)
    p, g = in_order(values((3, 4), dtype, 1), (1, 0)), in_order(values((3, 4), dtype, 2), (0, 1))
    m, v = in_order(values((3, 4), of, 3), (0, 1)), in_order(abs(values((3, 4), of, 4)), (1, 0))
    sgd = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}
    adam = {"time": 2, "lr": 0.1, "betas": (0.9, 0.99), "epsilon": 1e-8, "weight_decay": 0.1}
    here = [*sgd_update(p, g, m, **sgd), *adam_update(p, g, m, v, **adam)]
    p, g, m, v = (x.to_device("cuda:1") for x in (p, g, m, v))
    there = [*sgd_update(p, g, m, **sgd), *adam_update(p, g, m, v, **adam)]
    for found, expected in zip(there, here, strict=True):
        assert found is not None
        assert expected is not None
        assert str(found.device) == "cuda:1"
        assert same_bits(found, expected)


def test_squares_of_several_gpus_are_summed_on_each(machine: Machine) -> None:
    """In the order given; each device is waited for once."""
    tensors = [in_order(values((3, 4), FLOATS[0], seed), (0, 1)) for seed in range(5)]
    places = ["cuda:1", "cpu:0", "cuda:2", "cuda:1", "cuda:1"]
    moved = [x.to_device(place) for x, place in zip(tensors, places, strict=True)]
    assert sums_of_squares(moved) == sums_of_squares(tensors)
