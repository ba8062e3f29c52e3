"""``python -m examples.mlp``: the example that is read first runs, and shows what it says."""

import pytest

from engine import Device, Seed, tensor
from examples import mlp
from modules.parallel import DistributedLayeredModel, LayerPlacement


def test_it_prints_the_model_both_results_and_what_crossed(command):
    """The same bits on one device and over two."""
    outcome = command(mlp.main)
    assert (outcome.status, outcome.err) == (0, "")
    for line in ("DistributedLayeredModel of Mlp", "the same bits: True", "cpu:0 -> cpu:1 (host): 1 copy, 64 bytes"):
        assert line in outcome.out


@pytest.mark.parametrize("devices", [["cpu:0"], ["cpu:1", "cpu:0", "cpu:1"], ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]])
def test_its_output_does_not_depend_on_the_placement(devices):
    """P40; draws depend on the order of construction alone."""

    def output(placement):
        model = DistributedLayeredModel(mlp.Mlp(placement, Seed(3)), placement)
        return model(tensor([[1.0, 2.0, 3.0, 4.0]], device="cpu:0"))

    split = output(LayerPlacement.even(devices, 6))
    assert split.device == Device(devices[-1])
    assert split.tobytes() == output(LayerPlacement.even(["cpu:0"], 6)).tobytes()
