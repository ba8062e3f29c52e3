"""A split model taken apart: its hidden layers cut into the stages of its placement."""

from dataclasses import dataclass

from engine import Device
from modules.module import Module

from .check import first_elsewhere
from .errors import Layer, PlacementError
from .layers import LayerSequence
from .placement import LayerPlacement


@dataclass(frozen=True, eq=False)
class HeldStage:
    """The hidden layers of one stage (P49).

    Attributes:
        device: where they are.
        layers: in forward order.
    """

    device: Device
    layers: list[Module]


@dataclass(frozen=True, eq=False)
class StagedLayers:
    """A split model's layers, every one once (P49).

    Running the input layer, the stages in order and the output layer by hand,
    moving the signal at each border, is the model's forward.

    Attributes:
        input: the input layer, on ``placement.input``.
        stages: one for each of ``placement.stages()``.
        output: the output layer, on ``placement.output``.
        placement: where all of them are.
    """

    input: Module
    stages: list[HeldStage]
    output: Module
    placement: LayerPlacement


def staged(sequence: LayerSequence, placement: LayerPlacement) -> StagedLayers:
    """The layers cut by the stages of a placement.

    Raises:
        PlacementError: there are more or fewer layers than the placement has, or one is on another device (P48).
    """
    hidden = list(sequence.hidden)
    if len(hidden) != len(placement.hidden):
        raise PlacementError(
            f"into_layers gave {len(hidden)} hidden layers, and the placement has {len(placement.hidden)}",
            expected=len(placement.hidden),
            found=len(hidden),
        )
    _check(sequence.input, placement.input, "input", "the input layer")
    stages: list[HeldStage] = []
    start = 0
    for number, stage in enumerate(placement.stages()):
        layers = hidden[start : start + stage.num_hidden_layers]
        for index, layer in enumerate(layers, start):
            _check(layer, stage.device, index, f"stage {number}: hidden layer {index}")
        stages.append(HeldStage(stage.device, layers))
        start += stage.num_hidden_layers
    _check(sequence.output, placement.output, "output", "the output layer")
    return StagedLayers(sequence.input, stages, sequence.output, placement)


def _check(module: Module, device: Device, layer: Layer, what: str) -> None:
    stray = first_elsewhere(module, device)
    if stray is not None:
        path, _, found = stray
        raise PlacementError(
            f"{what} belongs on {device.inner()}, but its {path!r} is on {found.inner()}; "
            "into_layers gives the layers in the order of layers_hidden",
            layer=layer,
            path=path,
            expected=device.inner(),
            found=found.inner(),
        )
