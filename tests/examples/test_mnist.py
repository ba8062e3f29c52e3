"""``python -m examples.mnist``: the network's names and shapes, and, where its record is, what it reads."""

import json

import numpy as np
import pytest

from engine import Device, randn
from examples import mnist
from examples.digits import Digits
from examples.models.mnist import Mnist
from modules.parallel import LayerPlacement
from records import KeyRemapper, open_record
from tests.golden_files import golden_file

SHAPES = {
    "conv1.conv.weight": (64, 1, 3, 3),
    "conv1.norm.running_var": (64,),
    "conv2.conv.weight": (64, 64, 3, 3),
    "conv2.norm.gamma": (64,),
    "fc1.weight": (1600, 128),
    "fc2.bias": (128,),
    "fc3.weight": (128, 10),
}


@pytest.fixture(scope="module")
def record_file(tmp_path_factory):
    """A record of random numbers under the names that Burn's network has."""
    model = Mnist(LayerPlacement.even(["cpu:0"], 1))
    names = KeyRemapper([(r"^head\.", ""), (r"^conv2\.0\.", "conv2.")])
    file = tmp_path_factory.mktemp("mnist") / "mnist.bpk"
    model.into_record().adapt(names).save(file)
    return file


def test_a_record_of_burn_s_names_loads_and_splits_bit_for_bit(record_file):
    """Input layer, the second convolution, and the linear layers, each on its device."""
    with open_record(record_file) as record:
        assert {path: record[path].shape for path in SHAPES} == SHAPES
        assert len(record) == 18
    images = np.random.default_rng(0).random((3, 8, 8), dtype="float32")
    outputs = set()
    for devices in (["cpu:0"], ["cpu:0", "cpu:1"], ["cpu:2", "cpu:1", "cpu:0"]):
        model = mnist.load_model(record_file, [Device(device) for device in devices])
        logits = model(mnist.batch_of(images, model.placement.input))
        assert logits.shape == (3, 10)
        assert logits.device == Device(devices[-1])
        outputs.add(logits.tobytes())
    assert len(outputs) == 1


def test_a_digit_is_enlarged_into_the_middle_of_a_black_image():
    """White stays white, and what was above is above."""
    images = np.zeros((1, 8, 8), dtype="float32")
    images[0, :4] = 1
    x = mnist.batch_of(images, Device("cpu:0")).numpy()[0, 0]
    pixels = x * 0.3081 + 0.1307
    assert x.shape == (28, 28)
    np.testing.assert_allclose(pixels[5:13, 7:21], 1, atol=1e-5)
    pixels[5:15, 7:21] = 0
    np.testing.assert_allclose(pixels, 0, atol=1e-5)


def test_json_has_the_digits_found_and_where_the_layers_are(command, monkeypatch, record_file):
    """One object; the table tells each digit and the share in all."""
    digits = Digits(randn((20, 8, 8), seed=1, device="cpu:0").numpy(), np.arange(20) % 10)
    monkeypatch.setattr(Digits, "load", classmethod(lambda cls: digits))
    outcome = command(mnist.main, str(record_file), "--devices", "cpu:0,cpu:1", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    assert found["placement"] == {"input": "cpu:0", "hidden": ["cpu:1"], "output": "cpu:1"}
    assert found["accuracy"] == pytest.approx(np.mean(np.array(found["found"]) == digits.labels))
    outcome = command(mnist.main, str(record_file))
    assert outcome.status == 0
    assert f"{found['accuracy']:.1%} of 20 digits are read as what they are" in outcome.out


def test_of_more_devices_than_layers_two_at_the_front_and_the_last_are_used(record_file):
    """As the command's help says."""
    model = mnist.load_model(record_file, [Device(f"cpu:{index}") for index in range(5)])
    assert [str(device) for device in model.placement.devices()] == ["cpu:0", "cpu:1", "cpu:4"]


def test_devices_without_a_layer_are_named(command, monkeypatch, record_file):
    """On the error stream; the object is as without them."""
    digits = Digits(randn((20, 8, 8), seed=1, device="cpu:0").numpy(), np.arange(20) % 10)
    monkeypatch.setattr(Digits, "load", classmethod(lambda cls: digits))
    outcome = command(mnist.main, str(record_file), "--devices", "cpu:0,cpu:1,cpu:2,cpu:3,cpu:4", "--json")
    assert (outcome.status, outcome.err) == (0, "mnist: no layer goes to cpu:2, cpu:3\n")
    assert json.loads(outcome.out)["placement"] == {"input": "cpu:0", "hidden": ["cpu:1"], "output": "cpu:4"}


def test_a_missing_record_is_one_clear_line(command, monkeypatch, tmp_path):
    """Without a path, the message says how to give one."""
    monkeypatch.delenv("LAYERLOOM_GOLDEN", raising=False)
    outcome = command(mnist.main)
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert "give the network's record, mnist.bpk" in outcome.err
    assert command(mnist.main, "") == (2, "", "mnist: FILE '': give the name of a file\n")
    monkeypatch.setenv("LAYERLOOM_GOLDEN", str(tmp_path))
    outcome = command(mnist.main)
    assert (outcome.status, outcome.err.count("\n")) == (1, 1)
    assert str(tmp_path) in outcome.err


@pytest.mark.golden
def test_the_trained_network_reads_most_digits_of_another_data_set(command):
    """Its own accuracy is of other images; by chance a tenth would be right."""
    outcome = command(mnist.main, str(golden_file("public/mnist.bpk")), "--json")
    assert outcome.status == 0
    assert json.loads(outcome.out)["accuracy"] > 0.75
