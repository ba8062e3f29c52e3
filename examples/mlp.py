"""The smallest split model: a residual multilayer perceptron over two devices. ``python -m examples.mlp``"""

from collections.abc import Sequence

from engine import Device, Seed, Tensor, ops, tensor, transfer
from examples.command_line import OneLineParser, run
from modules import Module
from modules.nn import Linear
from modules.parallel import DistributedLayeredModel, LayerParallelism, LayerPlacement


class Block(Module):
    """A hidden layer: any Module whose forward takes and gives the signal, which is here one tensor."""

    def __init__(self, width: int, device: Device, seed: Seed) -> None:
        self.linear = Linear(width, width, device=device, seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        return x + ops.relu(self.linear(x))


class Mlp(LayerParallelism):
    """A model that says which layers come first, in between and last can be split; each is built in its place."""

    def __init__(self, placement: LayerPlacement, seed: Seed) -> None:
        self.stem = Linear(4, 16, device=placement.input, seed=seed)
        self.blocks = [Block(16, device, seed) for device in placement.hidden]
        self.head = Linear(16, 3, device=placement.output, seed=seed)

    def layer_input(self) -> Linear:
        return self.stem

    def layers_hidden(self) -> Sequence[Block]:
        return self.blocks

    def layer_output(self) -> Linear:
        return self.head


def main() -> None:
    """Run the model on one device, then over two: the same bits come out, and two tensors have crossed."""
    x = tensor([[1.0, 2.0, 3.0, 4.0]], device="cpu:0")

    alone = LayerPlacement.even([Device("cpu:0")], 6)
    expected = DistributedLayeredModel(Mlp(alone, Seed(0)), alone)(x)

    split = LayerPlacement.even([Device("cpu:0"), Device("cpu:1")], 6)
    model = DistributedLayeredModel(Mlp(split, Seed(0)), split)
    with transfer.log() as log:
        y = model(x)

    print(model)
    print(f"\non one device: {expected}\nover two:      {y}")
    print(f"the same bits: {y.tobytes() == expected.tobytes()}\n{log}")


if __name__ == "__main__":
    OneLineParser("mlp", description=__doc__).parse_args()  # it has no options
    run("mlp", main)
