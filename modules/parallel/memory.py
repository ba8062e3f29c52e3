"""Memory: how many bytes the layers of a model take, and how many a device has for them.

`LayerPlacement.by_memory` works a placement out of the two. The sizes are
given, not found: an activation, a cache or a gradient that must fit too is
part of a layer's bytes, or of what a device is said to lack.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from engine import Device, Tensor
from modules.flag import Flag
from modules.param import Param
from modules.running_state import RunningState
from modules.tree import Node, leaves

from .errors import PlacementError
from .layers import LayerParallelism
from .values import MOST_BYTES, count_of, device_of, devices_of, tuple_of, tuple_text


@final
@dataclass(frozen=True, init=False)
class OutputMemory:
    """The bytes of an output layer, and where it runs: `after_hidden`, or `with_input`.

    Args:
        nbytes: of the output layer; 0 to 2**64 - 1.
        shares_input: it runs on the input layer's device, not after the last hidden layer.

    Raises:
        PlacementError: `nbytes` is no such number (P23l).

    Source: Burn 0.23, ``OutputMemory``; P23.
    """

    nbytes: int
    shares_input: bool

    def __init__(self, nbytes: int, shares_input: bool) -> None:
        object.__setattr__(self, "nbytes", count_of("OutputMemory: nbytes", nbytes, most=MOST_BYTES, layer="output"))
        object.__setattr__(self, "shares_input", bool(shares_input))

    @classmethod
    def after_hidden(cls, nbytes: int) -> "OutputMemory":
        """An output layer that runs where the last hidden layer ran, or on a later device."""
        return cls(nbytes, False)

    @classmethod
    def with_input(cls, nbytes: int) -> "OutputMemory":
        """An output layer that runs on the input layer's device, as one that shares its parameters must.

        `nbytes` is what it takes there besides the input layer's bytes: 0 if all its parameters are shared.
        """
        return cls(nbytes, True)

    def __repr__(self) -> str:
        return f"OutputMemory.{'with_input' if self.shares_input else 'after_hidden'}({self.nbytes})"


@final
@dataclass(frozen=True, init=False)
class LayerMemory:
    """The bytes that each layer of a model takes on its device.

    Args:
        input: bytes of the input layer; like the others 0 to 2**64 - 1.
        hidden: bytes of each hidden layer, in forward order.
        output: bytes of the output layer, and where it runs.

    Raises:
        PlacementError: a size is no such number (P23l), or `output` no OutputMemory.

    Source: Burn 0.23, ``LayerMemory``; P23.
    """

    input: int
    hidden: tuple[int, ...]
    output: OutputMemory

    def __init__(self, input: int, hidden: Sequence[int], output: OutputMemory) -> None:
        if not isinstance(output, OutputMemory):
            raise PlacementError(
                f"LayerMemory: output is {output!r}; give OutputMemory.after_hidden(nbytes) or .with_input(nbytes)",
                layer="output",
            )
        sizes = (
            count_of(f"LayerMemory: hidden[{index}]", nbytes, most=MOST_BYTES, layer=index)
            for index, nbytes in enumerate(tuple_of("LayerMemory: hidden", hidden))
        )
        object.__setattr__(self, "input", count_of("LayerMemory: input", input, most=MOST_BYTES, layer="input"))
        object.__setattr__(self, "hidden", tuple(sizes))
        object.__setattr__(self, "output", output)

    @classmethod
    def of(cls, model: LayerParallelism) -> "LayerMemory":
        """The bytes of a model's layers by their shapes and dtypes; it makes nothing, so the model may be lazy.

        A parameter that stands in several layers counts once, in the first. An
        output layer that shares one with the input layer runs with it:
        `OutputMemory.with_input` of what it has besides. A constant counts in
        each layer that has it: built by a placement, it is there on each device.

        Raises:
            PlacementError: `model` is no LayerParallelism.
        """
        if not isinstance(model, LayerParallelism):
            raise PlacementError(f"LayerMemory.of: a {type(model).__qualname__} is no LayerParallelism; give the model")
        output_layer = model.layer_output()
        counted: set[Param] = set()
        input_nbytes = _nbytes(model.layer_input(), counted)
        shares_input = any(leaf in counted for _, leaf in leaves(output_layer) if isinstance(leaf, Param))
        hidden = [_nbytes(layer, counted) for layer in model.layers_hidden()]
        return cls(input_nbytes, hidden, OutputMemory(_nbytes(output_layer, counted), shares_input))

    def __repr__(self) -> str:
        return f"LayerMemory(input={self.input}, hidden={tuple_text(map(str, self.hidden))}, output={self.output!r})"


@final
@dataclass(frozen=True, init=False)
class DeviceMemory:
    """A device and the bytes that layers may take on it.

    Args:
        device: the device, or its text.
        capacity: bytes; 0 to 2**64 - 1.

    Raises:
        PlacementError: there is no such device, or the capacity is no such number (P23l).

    Source: Burn 0.23, ``DeviceMemory``; P23.
    """

    device: Device
    capacity: int

    def __init__(self, device: Device | str, capacity: int) -> None:
        object.__setattr__(self, "device", device_of("DeviceMemory: device", device))
        object.__setattr__(self, "capacity", count_of("DeviceMemory: capacity", capacity, most=MOST_BYTES))

    @classmethod
    def of(cls, devices: Sequence[Device | str], reserve: int = 0) -> list["DeviceMemory"]:
        """What the devices have free now, less a reserve: one capacity for each device listed, in that order.

        CPU devices share the machine's free memory: each different one gets an
        equal part. A device listed several times gets its memory in as many
        equal parts, so that no byte is promised twice. Fractions are dropped.

        Args:
            devices: devices or their texts.
            reserve: bytes to keep free on each piece of hardware (the machine, each GPU), for what is no
                layer: activations, caches, other programs.

        Raises:
            PlacementError: `devices` or `reserve` are not of these types.
            DeviceError: a GPU is not there, or the package for it is not installed.
        """
        kept = count_of("DeviceMemory.of: reserve", reserve)
        listed = devices_of("DeviceMemory.of: devices", devices)
        times = Counter(listed)
        sharing = Counter(_hardware(device) for device in times)
        free = {hardware: max(0, hardware.memory().free - kept) for hardware in sharing}
        parts = ((device, sharing[_hardware(device)] * times[device]) for device in listed)
        return [cls(device, free[_hardware(device)] // number) for device, number in parts]

    def __repr__(self) -> str:
        return f"DeviceMemory({str(self.device)!r}, {self.capacity})"


def _nbytes(layer: Node, counted: set[Param]) -> int:
    """Bytes of a layer's tensors, each once, without parameters that are `counted` already; they are from now on."""
    distinct = {
        id(leaf): leaf
        for _, leaf in leaves(layer)
        if not isinstance(leaf, Flag) and not (isinstance(leaf, Param) and leaf in counted)
    }
    counted.update(leaf for leaf in distinct.values() if isinstance(leaf, Param))
    return sum(_leaf_nbytes(leaf) for leaf in distinct.values())


def _leaf_nbytes(leaf: Param | RunningState | Tensor) -> int:
    return (leaf.value() if isinstance(leaf, RunningState) else leaf).nbytes


def _hardware(device: Device) -> Device:
    """The device to ask for memory: one for all CPU devices, as they share it."""
    return Device.cpu(0) if device.kind == "cpu" else device
