"""A model split over GPUs gives what the whole one gives. This ran over a fake CuPy and not on a GPU."""

from typing import Any

import pytest

from engine import Device, DeviceError, Seed, Tensor, ops, tensor, transfer, zeros
from modules import Adam, Module
from modules.nn import Linear
from modules.parallel import DistributedLayeredModel, LayerParallelism, LayerPlacement
from tests.fake_cupy import Machine, installed


class Block(Module):
    """A residual layer."""

    def __init__(self, width: int, device: Device, seed: Seed) -> None:
        self.linear = Linear(width, width, device=device, seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        return x + ops.gelu(self.linear(x))


class Mlp(LayerParallelism):
    """Six of them between two products."""

    def __init__(self, placement: LayerPlacement, seed: Seed) -> None:
        self.stem = Linear(4, 16, device=placement.input, seed=seed)
        self.blocks = [Block(16, device, seed) for device in placement.hidden]
        self.head = Linear(16, 3, device=placement.output, seed=seed)

    def layer_input(self) -> Any:
        return self.stem

    def layers_hidden(self) -> Any:
        return self.blocks

    def layer_output(self) -> Any:
        return self.head


def output(*devices: str) -> tuple[bytes, transfer.TransferLog]:
    """What the model gives with its layers shared out, and what it copied."""
    placement = LayerPlacement.even([Device(device) for device in devices], 6)
    model = DistributedLayeredModel(Mlp(placement, Seed(0)), placement)
    x = tensor([[1.0, 2.0, 3.0, 4.0], [-1.0, 0.5, 0.0, 2.0]], device=devices[0])
    with transfer.log() as log:
        result = model(x)
    assert str(result.device) == devices[-1]
    return result.tobytes(), log


@pytest.mark.parametrize(("peers", "route"), [(None, "peer"), ((), "staged")])
def test_a_model_split_over_gpus_gives_the_bits_of_the_whole_one(peers: Any, route: str) -> None:
    """P40: splitting changes no bit; one copy at each change of device, of the activations alone."""
    with installed(Machine(peers=peers)):
        whole, nothing = output("cuda:2")
        parts, log = output("cuda:0", "cuda:1", "cuda:3")
        assert parts == whole
        assert not nothing
        assert {way: tuple(count) for way, count in log.items()} == {
            (Device("cuda:0"), Device("cuda:1"), route): (1, 2 * 16 * 4),
            (Device("cuda:1"), Device("cuda:3"), route): (1, 2 * 16 * 4),
        }


def test_a_layer_that_is_built_where_there_is_no_memory_is_named_with_the_bytes_asked_for() -> None:
    """P42: parameters are made when a layer is first used, where it is; the error is the device's."""
    placement = LayerPlacement.even(["cuda:0", "cuda:1"], 6)
    with installed(Machine(memory=24 << 10, peers=())):
        model = DistributedLayeredModel(Mlp(placement, Seed(0)), placement)
        held = zeros((21 << 10,), dtype="uint8", device="cuda:1")
        with pytest.raises(DeviceError, match=r"cuda:1 is out of memory .* allocating [\d,]+ bytes") as caught:
            model(tensor([[1.0, 2.0, 3.0, 4.0]], device="cuda:0"))
        assert any("hidden layer" in note and "on cuda:1" in note for note in caught.value.__notes__)
        assert held.nbytes == 21 << 10


@pytest.mark.parametrize(
    ("use", "place"),
    [
        (lambda model, cpu: model.load_record(cpu.into_record()), "at blocks."),
        (lambda model, cpu: [entry.host() for entry in model.into_record().values()], "at blocks."),
        (lambda model, cpu: cpu.load_record(cpu.into_record()).fork("cuda:1"), "at stem.weight"),
        (lambda model, cpu: cpu.load_record(cpu.into_record()).to_device("cuda:1"), "at stem.weight"),
    ],
    ids=["load", "into_record", "fork", "to_device"],
)
def test_a_parameter_for_which_there_is_no_memory_is_named_with_the_bytes_asked_for(use: Any, place: str) -> None:
    """Wherever its value is made or put: in which layer it is, the device, and how much it takes."""
    placement = LayerPlacement.even(["cuda:0", "cuda:1"], 6)
    with installed(Machine(memory=24 << 10, peers=())):
        model = DistributedLayeredModel(Mlp(placement, Seed(0)), placement)
        on_cpu = Mlp(LayerPlacement.even(["cpu:0"], 6), Seed(0))
        held = zeros((24 << 10,), dtype="uint8", device="cuda:1")
        with pytest.raises(DeviceError, match=r"cuda:1 is out of memory .* allocating [\d,]+ bytes") as caught:
            use(model, on_cpu)
        assert any(note.startswith(place) for note in caught.value.__notes__)
        assert held.nbytes == 24 << 10


@pytest.mark.parametrize("peers", [None, ()], ids=["peers", "no peers"])
def test_no_host_waits_in_a_forward_over_gpus(peers: Any) -> None:
    """Between its input and its output all is queued: what the host knows to be done is what it knew before."""
    placement = LayerPlacement.even(["cuda:0", "cuda:1", "cuda:2", "cuda:3"], 6)
    with installed(Machine(peers=peers)) as machine:
        model = DistributedLayeredModel(Mlp(placement, Seed(0)), placement)
        x = tensor([[1.0, 2.0, 3.0, 4.0]], device="cuda:0")
        first = model(x).tobytes()  # makes the parameters, and sees whether the GPUs reach each other
        known = dict(machine.host)
        result = model(x)
        assert machine.host == known
        assert result.tobytes() == first
        assert machine.host != known


@pytest.mark.parametrize("peers", [None, ()], ids=["peers", "no peers"])
def test_no_host_waits_in_a_step_of_training_over_gpus(peers: Any) -> None:
    """Nor between the loss and the gradients, nor in the optimizer."""
    placement = LayerPlacement.even(["cuda:0+autodiff", "cuda:1+autodiff"], 6)
    with installed(Machine(peers=peers)) as machine:
        model, optimizer = DistributedLayeredModel(Mlp(placement, Seed(0)), placement), Adam(0.1)
        x = tensor([[1.0, 2.0, 3.0, 4.0]], device="cuda:0")
        target = tensor([[1.0, 0.0, 0.0]], device="cuda:1")
        for number in range(2):
            known = dict(machine.host)
            gradients = ops.mse(model(x), target).backward()
            model = optimizer.step(model, gradients)
            assert number == 0 or machine.host == known
        assert model(x).tobytes() != bytes(12)
