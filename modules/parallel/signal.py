"""The signal: what passes from layer to layer, and from device to device.

It is any tree of tensors: a tensor, a tuple, list or dict of signals, a module
that holds tensors, None, and configuration, which passes unchanged (P6). It
moves as one batch: each distinct tensor is copied once, and one that is on the
device already stays as it is (D4, D7).
"""

from collections.abc import Callable
from typing import Any

from engine import Device, Tensor, transfer
from modules.containers import refuse_hidden_children
from modules.flag import Flag
from modules.param import Param
from modules.running_state import RunningState
from modules.tree import Each, Leaf, Node, leaves, rebuild


def moved(signal: Any, device: Device) -> Any:
    """The signal on a device; the object itself where nothing has to move.

    Raises:
        ModuleError: it holds an array, or a set or dataclass that holds tensors.
    """
    if isinstance(signal, Tensor):
        return signal.to_device(device)
    tensors: list[Tensor] = []
    _collect(signal, tensors.append)
    copies = transfer.copy(tensors, device)
    arrived = {id(tensor): copy for tensor, copy in zip(tensors, copies, strict=True) if copy is not tensor}
    return _placed(signal, device, arrived)


def _collect(signal: Any, add: Callable[[Tensor], None]) -> None:
    """Hand every tensor of a signal to `add`; the parameters of a module in it move by its own rules."""
    if isinstance(signal, Tensor):
        add(signal)
    elif isinstance(signal, (list, tuple)):
        for item in signal:
            _collect(item, add)
    elif isinstance(signal, dict):
        for item in signal.values():
            _collect(item, add)
    elif isinstance(signal, Node):
        for _, leaf in leaves(signal):
            if isinstance(leaf, Tensor):
                add(leaf)
    else:
        refuse_hidden_children(signal, "signal")


def _placed(signal: Any, device: Device, arrived: dict[int, Tensor]) -> Any:
    """The signal with the tensors that have arrived in place of those that were sent."""
    if isinstance(signal, Tensor):
        return arrived.get(id(signal), signal)
    if isinstance(signal, (list, tuple)):
        items = [_placed(item, device, arrived) for item in signal]
        if all(new is old for new, old in zip(items, signal, strict=True)):
            return signal
        if isinstance(signal, tuple) and hasattr(signal, "_make"):
            return signal._make(items)  # pyright: ignore[reportAttributeAccessIssue]
        return tuple(items) if isinstance(signal, tuple) else items
    if isinstance(signal, dict):
        values = {key: _placed(value, device, arrived) for key, value in signal.items()}
        return signal if all(values[key] is value for key, value in signal.items()) else values
    if isinstance(signal, Node):
        return _placed_module(signal, device, arrived)
    return signal


def _placed_module(module: Node, device: Device, arrived: dict[int, Tensor]) -> Node:
    def change(path: str, leaf: Leaf) -> Leaf:
        if isinstance(leaf, Tensor):
            return arrived.get(id(leaf), leaf)
        if isinstance(leaf, Param):
            return leaf._moved(device, cut=False)
        if isinstance(leaf, RunningState):
            value = leaf.value()
            return leaf if value.device == device else leaf._derived(value.to_device(device))
        return leaf

    elsewhere = any(not isinstance(leaf, Flag) and _device_of(leaf) != device for _, leaf in leaves(module))
    return rebuild(module, Each(change, device)) if elsewhere else module


def _device_of(leaf: Param | RunningState | Tensor) -> Device:
    return leaf.value().device if isinstance(leaf, RunningState) else leaf.device
