"""The convolutional network of Burn's MNIST example, cut by layers: two convolutions, then three linear layers.

Its record names the linear layers ``fc1`` to ``fc3``; here they are one layer,
the output layer. `mnist_record` renames them.
"""

from collections.abc import Sequence
from typing import Final, final

from engine import Device, Tensor, ops
from modules import Module
from modules.nn import BatchNorm, Conv2d, Linear, MaxPool2d
from modules.parallel import LayerParallelism, LayerPlacement
from records import KeyRemapper, ModuleRecord

EXTENT: Final = 28  # pixels of an image, either way
_MEAN, _DEVIATION = 0.1307, 0.3081  # of the pixels of MNIST, by which images were normalised in training
_CHANNELS, _FEATURES, _CLASSES = 64, 128, 10
_PLACES = 5 * 5  # what two convolutions of 3 × 3 without padding and two poolings leave of 28 × 28


@final
class ConvBlock(Module):
    """pool(relu(norm(conv(x))))."""

    def __init__(self, ch_in: int, device: Device) -> None:
        self.conv = Conv2d(ch_in, _CHANNELS, 3, device=device)
        self.norm = BatchNorm(_CHANNELS, device=device)
        self.pool = MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, ch_in, height, width] to [batch, 64, (height − 2) / 2, (width − 2) / 2]."""
        return self.pool(ops.relu(self.norm(self.conv(x))))


@final
class Head(Module):
    """Three linear layers."""

    def __init__(self, device: Device) -> None:
        self.fc1 = Linear(_CHANNELS * _PLACES, _FEATURES, device=device)
        self.fc2 = Linear(_FEATURES, _FEATURES, device=device)
        self.fc3 = Linear(_FEATURES, _CLASSES, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 64, 5, 5] to logits [batch, 10]."""
        x = x.reshape(x.shape[0], _CHANNELS * _PLACES)
        return self.fc3(ops.gelu(self.fc2(ops.gelu(self.fc1(x)))))


@final
class Mnist(LayerParallelism):
    """Images [batch, 1, 28, 28], normalised as in training, to logits [batch, 10]; for inference, without dropout."""

    def __init__(self, placement: LayerPlacement) -> None:
        self.conv1 = ConvBlock(1, placement.input)
        self.conv2 = [ConvBlock(_CHANNELS, device) for device in placement.hidden]
        self.head = Head(placement.output)

    def layer_input(self) -> ConvBlock:
        return self.conv1

    def layers_hidden(self) -> Sequence[ConvBlock]:
        return self.conv2

    def layer_output(self) -> Head:
        return self.head


def mnist_record(record: ModuleRecord) -> ModuleRecord:
    """The record under the names that the model has here."""
    return record.adapt(KeyRemapper([(r"^fc", "head.fc"), (r"^conv2\.", "conv2.0.")]))


def normalised(images: Tensor) -> Tensor:
    """Pixels from 0 for black to 1 for white, as the model takes them."""
    return (images - _MEAN) * (1 / _DEVIATION)
