"""Whether a model's layers are where a placement says (P24 to P32)."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from engine import Device
from modules.errors import ModuleError
from modules.flag import Flag
from modules.module import Module
from modules.running_state import RunningState
from modules.tree import Node, leaves

from .errors import Layer, PlacementError
from .layers import LayerParallelism
from .placement import LayerPlacement


class Layers(NamedTuple):
    """The layers of a model, as its accessors gave them when it was wrapped."""

    input: Module
    hidden: tuple[Module, ...]
    output: Module

    def named(self) -> Iterator[tuple[Layer, Module]]:
        """Each layer under its name, in the order in which they run."""
        yield "input", self.input
        yield from enumerate(self.hidden)
        yield "output", self.output


def layer_name(layer: Layer) -> str:
    """What messages call a layer."""
    return f"hidden layer {layer}" if isinstance(layer, int) else f"the {layer} layer"


def layers_of(model: LayerParallelism) -> Layers:
    """The layers of a model.

    Raises:
        ModuleError: an accessor gives something that is no Module with a `forward` (P1).
    """
    layers = Layers(model.layer_input(), tuple(model.layers_hidden()), model.layer_output())
    for name, layer in layers.named():
        if not isinstance(layer, Module) or not callable(getattr(layer, "forward", None)):
            raise ModuleError(
                f"{layer_name(name)} of {type(model).__name__} is a {type(layer).__qualname__}; "
                "a layer is a Module with a forward"
            )
    return layers


def check_placement(layers: Layers, placement: LayerPlacement) -> None:
    """Refuse a placement that the layers do not keep to: first their number, then input, hidden and output layers.

    Raises:
        PlacementError: with the first layer that is elsewhere, what of it, and both devices (P25 to P29).
    """
    number, wanted = len(layers.hidden), len(placement.hidden)
    if number != wanted:
        raise PlacementError(
            f"the model has {number} hidden layers and the placement devices for {wanted}; "
            "each hidden layer needs a device",
            expected=wanted,
            found=number,
        )
    devices = (placement.input, *placement.hidden, placement.output)
    for (name, layer), device in zip(layers.named(), devices, strict=True):
        stray = first_elsewhere(layer, device)
        if stray is not None:
            path, leaf, found = stray
            raise PlacementError(
                f"{layer_name(name)} belongs on {device.inner()}, but its {path!r} is on {found.inner()}; "
                f"{_way_out(layers, placement, name, leaf)}",
                layer=name,
                path=path,
                expected=device.inner(),
                found=found.inner(),
            )


def first_elsewhere(layer: Node, device: Device) -> tuple[str, Any, Device] | None:
    """Path, leaf and device of the first tensor of a layer that is not on `device`; makes nothing (P30)."""
    for path, leaf in leaves(layer):
        if not isinstance(leaf, Flag):
            found = leaf.value().device if isinstance(leaf, RunningState) else leaf.device
            if found != device:
                return path, leaf, found
    return None


def _way_out(layers: Layers, placement: LayerPlacement, name: Layer, leaf: Any) -> str:
    """What to do about a layer that is elsewhere; a tied parameter cannot be in two places (P32)."""
    devices = dict(zip((other for other, _ in layers.named()), _devices(placement), strict=True))
    id_ = getattr(leaf, "id", None)
    for other, layer in layers.named():
        if other == name or devices[other] == devices[name]:
            continue
        for path, held in leaves(layer):
            if held is leaf or (id_ is not None and getattr(held, "id", None) == id_):
                ways = {("output", "input"): "dataclasses.replace(placement, output=placement.input)"}
                way = ways.get((str(name), str(other)), f"a placement with both on {devices[other].inner()}")
                return f"it is tied to {path!r} of {layer_name(other)}, so both need one device: use {way}"
    return "build the layer on that device, or fork it there"


def _devices(placement: LayerPlacement) -> tuple[Device, ...]:
    return (placement.input, *placement.hidden, placement.output)
