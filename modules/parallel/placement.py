"""Placements: on which device each layer of a model runs.

A `LayerPlacement` names the device of the input layer, of every hidden layer
and of the output layer. A *stage* is a run of consecutive hidden layers on one
device. Both are plain values, made before the model is: layers are built where
the placement says. Whether a model is there is checked where it is wrapped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import final

from engine import Device

from .errors import PlacementError
from .fill import level_places
from .memory import DeviceMemory, LayerMemory
from .values import count_of, device_of, devices_of, instances_of, tuple_text


@final
@dataclass(frozen=True, init=False)
class LayerStage:
    """A run of consecutive hidden layers on one device.

    Args:
        device: the device, or its text.
        num_hidden_layers: how many; 0 or more.

    Raises:
        PlacementError: there is no such device, or the count is negative or no integer.

    Source: Burn 0.23, ``LayerStage``; P11.
    """

    device: Device
    num_hidden_layers: int

    def __init__(self, device: Device | str, num_hidden_layers: int) -> None:
        object.__setattr__(self, "device", device_of("LayerStage: device", device))
        object.__setattr__(self, "num_hidden_layers", count_of("LayerStage: num_hidden_layers", num_hidden_layers))

    def __repr__(self) -> str:
        return f"LayerStage({str(self.device)!r}, {self.num_hidden_layers})"


@final
@dataclass(frozen=True, init=False)
class LayerPlacement:
    """Where each layer of a model runs.

    Placements are equal if their devices are, layer by layer; whether a device
    is an autodiff one plays no part (P13). Nothing ties `input` to
    ``hidden[0]``, nor `output` to the last hidden device.

    Args:
        input: device of the input layer, or its text.
        hidden: a device for each hidden layer, in forward order; kept as a tuple.
        output: device of the output layer.

    Raises:
        PlacementError: one of them is no device; its `layer` says which.

    Source: Burn 0.23, ``LayerPlacement``; P12.
    """

    input: Device
    hidden: tuple[Device, ...]
    output: Device

    def __init__(self, input: Device | str, hidden: Sequence[Device | str], output: Device | str) -> None:
        object.__setattr__(self, "input", device_of("LayerPlacement: input", input, layer="input"))
        object.__setattr__(self, "hidden", devices_of("LayerPlacement: hidden", hidden, are_hidden=True))
        object.__setattr__(self, "output", device_of("LayerPlacement: output", output, layer="output"))

    @classmethod
    def from_stages(cls, stages: Sequence[LayerStage]) -> "LayerPlacement":
        """The placement whose hidden layers run stage after stage.

        The input layer runs on the first stage's device, the output layer on
        the last one's. So a stage of no layers at either end gives that layer a
        device of its own; anywhere else it leaves no trace (P16).

        Args:
            stages: at least one, in forward order. A device may come back.

        Raises:
            PlacementError: there is no stage, or one of them is no LayerStage.

        Source: Burn 0.23, ``LayerPlacement::new``; P14, P15.
        """
        listed = instances_of("from_stages: stages", stages, LayerStage)
        if not listed:
            raise PlacementError("from_stages: there is no stage; give at least one, which may have no layers")
        hidden = [stage.device for stage in listed for _ in range(stage.num_hidden_layers)]
        return cls(listed[0].device, hidden, listed[-1].device)

    @classmethod
    def even(cls, devices: Sequence[Device | str], num_hidden_layers: int) -> "LayerPlacement":
        """The placement in which no device has two hidden layers more than another.

        Layers keep their order. If the count does not divide, the first devices
        get one more each; a device for which no layer is left is not in the
        placement.

        Args:
            devices: where the runs go, in forward order; at least one.
            num_hidden_layers: layers between the input and the output layer; 0 or more.

        Raises:
            PlacementError: `devices` is empty or holds something else, or the count is negative.

        Source: Burn 0.23, ``LayerPlacement::even``; P17, P18.
        """
        number = count_of("even: num_hidden_layers", num_hidden_layers)
        used = devices_of("even: devices", devices)[: max(1, number)]
        if not used:
            raise PlacementError(f"even: there is no device for {number} hidden layers; give at least one")
        share, extra = divmod(number, len(used))
        return cls.from_stages([LayerStage(device, share + (index < extra)) for index, device in enumerate(used)])

    @classmethod
    def by_memory(cls, devices: Sequence[DeviceMemory], memory: LayerMemory) -> "LayerPlacement | None":
        """The placement whose runs are sized to what the devices have room for.

        The order is kept: each layer lies on the device of the layer before it
        or on a later one; a device may be passed over. Among the placements that
        respect every capacity, the fullest device is as empty as it can be (to
        2**-47 of its capacity), and no run takes more than its device's
        proportion of the bytes that remain unless the devices behind need that.

        Args:
            devices: devices with capacities, in forward order. One listed twice is given its two runs in turn.
            memory: the bytes of the layers.

        Returns:
            The placement, or None: there is no device, or the layers do not fit on them in order.

        Raises:
            PlacementError: the arguments are of other types.

        Source: Burn 0.23, ``LayerPlacement::by_memory``; P23a to P23n.
        """
        listed = instances_of("by_memory: devices", devices, DeviceMemory)
        if not isinstance(memory, LayerMemory):
            raise PlacementError(f"by_memory: memory is {memory!r}; it must be a LayerMemory")
        output = memory.output
        if output.shares_input:
            sizes = [memory.input + output.nbytes, *memory.hidden]
        else:
            sizes = [memory.input, *memory.hidden, output.nbytes]
        places = level_places([device.capacity for device in listed], sizes)
        if places is None:
            return None
        first, *others = (listed[place].device for place in places)
        return cls(first, others, first) if output.shares_input else cls(first, others[:-1], others[-1])

    def devices(self) -> list[Device]:
        """Each device of the placement once, in the order in which the layers come to it (P20)."""
        return list(dict.fromkeys((self.input, *self.hidden, self.output)))

    def stages(self) -> list[LayerStage]:
        """The longest runs of hidden layers on one device, in forward order (P21).

        A device that comes back later has a second stage. Without hidden layers there is none.
        """
        return [LayerStage(device, len(list(run))) for device, run in groupby(self.hidden)]

    def __repr__(self) -> str:
        hidden = tuple_text(repr(str(device)) for device in self.hidden)
        return f"LayerPlacement(input={str(self.input)!r}, hidden={hidden}, output={str(self.output)!r})"
