"""A classifier of small images that can be split: residual convolutions with batch norm and dropout."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from engine import Device, Seed, Tensor, ops
from modules import Module
from modules.nn import BatchNorm, Conv2d, Dropout, Linear, MaxPool2d
from modules.parallel import LayerParallelism, LayerPlacement

_POOL = 2


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig:
    """Sizes of the model.

    Attributes:
        height: of the images, in pixels; even.
        width: likewise.
        n_classes: what an image can show.
        channels: of the hidden layers.
        n_layers: hidden layers.
        dropout: the probability with which a feature of a hidden layer is left out in training.
    """

    height: int
    width: int
    n_classes: int
    channels: int
    n_layers: int
    dropout: float


@final
class Block(Module):
    """A hidden layer: x + dropout(relu(norm(conv(x))))."""

    def __init__(self, config: ClassifierConfig, device: Device, seed: Seed) -> None:
        self.conv = Conv2d(config.channels, config.channels, 3, padding=1, bias=False, device=device, seed=seed)
        self.norm = BatchNorm(config.channels, device=device)
        self.dropout = Dropout(config.dropout, seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] to the same."""
        return x + self.dropout(ops.relu(self.norm(self.conv(x))))


@final
class Head(Module):
    """The output layer: a linear one over the largest values of windows of 2 × 2."""

    def __init__(self, config: ClassifierConfig, device: Device, seed: Seed) -> None:
        self.pool = MaxPool2d(_POOL)
        places = (config.height // _POOL) * (config.width // _POOL)
        self.linear = Linear(config.channels * places, config.n_classes, device=device, seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] to logits [batch, n_classes]."""
        return self.linear(self.pool(x).reshape(x.shape[0], self.linear.d_input))


@final
class Classifier(LayerParallelism):
    """Images [batch, 1, height, width] to logits [batch, n_classes].

    Args:
        config: sizes.
        placement: where each layer is built.
        seed: of initial values and of what dropout leaves out.
    """

    def __init__(self, config: ClassifierConfig, placement: LayerPlacement, seed: Seed) -> None:
        self.stem = Conv2d(1, config.channels, 3, padding=1, device=placement.input, seed=seed)
        self.blocks = [Block(config, device, seed) for device in placement.hidden]
        self.head = Head(config, placement.output, seed)

    def layer_input(self) -> Conv2d:
        return self.stem

    def layers_hidden(self) -> Sequence[Block]:
        return self.blocks

    def layer_output(self) -> Head:
        return self.head
