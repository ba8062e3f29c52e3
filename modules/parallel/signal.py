"""The signal: what passes from layer to layer, and from device to device.

It is any tree of tensors: a tensor, a tuple, list or dict of signals, a module
that holds tensors, None, and configuration, which passes unchanged (P6). It
moves as one batch: each distinct tensor is copied once, and one that is on the
device already stays as it is (D4, D7).
"""

import copy
from collections.abc import Callable
from typing import Any

from engine import Device, Tensor, transfer
from modules.containers import tuple_like
from modules.errors import ModuleError
from modules.flag import Flag
from modules.hidden import hidden_child, is_array, is_closed_iterator
from modules.param import Param
from modules.running_state import RunningState
from modules.tree import Each, Leaf, Node, leaves, rebuild


def moved(signal: Any, device: Device) -> Any:
    """The signal on a device, its lists, tuples and dicts of their types; the object itself where nothing has to move.

    Raises:
        ModuleError: it holds an array, an iterator, a list or dict that holds itself, a tensor as a key, or a set,
            dataclass or other object that holds tensors; or it nests deeper than Python calls.
    """
    if isinstance(signal, Tensor):
        return signal.to_device(device)
    tensors: list[Tensor] = []
    try:
        _collect(signal, tensors.append, {})
        copies = transfer.copy(tensors, device)
        arrived = {id(one): other for one, other in zip(tensors, copies, strict=True) if other is not one}
        return _placed(signal, device, arrived, {})
    except RecursionError:
        raise ModuleError("signal: its lists, tuples and dicts nest too deep") from None


def _collect(signal: Any, add: Callable[[Tensor], None], entered: dict[int, bool]) -> None:
    """Hand every tensor of a signal to `add`; the parameters of a module in it move by their own rules.

    Args:
        signal: the signal.
        add: takes a tensor.
        entered: id of each list, tuple and dict that was entered, and whether its items are still being collected.
    """
    if isinstance(signal, Tensor):
        add(signal)
    elif isinstance(signal, (list, tuple, dict)):
        if entered.get(id(signal)):
            raise ModuleError(f"signal: the {type(signal).__qualname__} holds itself")
        if id(signal) in entered:
            return
        entered[id(signal)] = True
        if isinstance(signal, dict):
            for key in signal:
                if isinstance(key, Tensor):
                    raise ModuleError("signal: a Tensor is a key of a dict, and keys are not moved; make it a value")
                _refuse_hidden(key)
        for item in signal.values() if isinstance(signal, dict) else signal:
            _collect(item, add, entered)
        entered[id(signal)] = False
    elif isinstance(signal, Node):
        for _, leaf in leaves(signal):
            if isinstance(leaf, Tensor):
                add(leaf)
    else:
        _refuse_hidden(signal)


def _refuse_hidden(value: Any) -> None:
    """Refuse what looks like configuration and would leave tensors behind."""
    name = type(value).__qualname__
    if is_array(value):
        raise ModuleError("signal: an array has no device; pass tensor(array, device=…)")
    if is_closed_iterator(value):
        raise ModuleError(f"signal: a {name} is used up by the first who reads it; pass list(…) of it")
    hidden = hidden_child(value)
    if hidden is not None:
        raise ModuleError(
            f"signal: a {name} that holds a {type(hidden).__qualname__} would not take it to another device; "
            "pass it in a list, tuple, dict or Module"
        )


def _placed(signal: Any, device: Device, arrived: dict[int, Tensor], made: dict[int, Any]) -> Any:
    """The signal with the tensors that have arrived in place of those that were sent.

    Args:
        signal: the signal.
        device: where it goes.
        arrived: the copy of each tensor that was sent, by id.
        made: what has come of each list, tuple, dict and module, by id: one that stands twice stays one.
    """
    if isinstance(signal, Tensor):
        return arrived.get(id(signal), signal)
    if not isinstance(signal, (list, tuple, dict, Node)):
        return signal
    if id(signal) not in made:
        if isinstance(signal, Node):
            made[id(signal)] = _placed_module(signal, device, arrived)
        else:
            made[id(signal)] = _placed_items(signal, device, arrived, made)
    return made[id(signal)]


def _placed_items(signal: Any, device: Device, arrived: dict[int, Tensor], made: dict[int, Any]) -> Any:
    """A list, tuple or dict of the same type with its items placed; itself if none of them changed."""
    old = list(signal.values() if isinstance(signal, dict) else signal)
    items = [_placed(item, device, arrived, made) for item in old]
    if all(one is other for one, other in zip(items, old, strict=True)):
        return signal
    if isinstance(signal, tuple):
        return tuple_like(signal, items)
    placed = copy.copy(signal)
    if isinstance(signal, dict):
        for key, item in zip(signal, items, strict=True):
            placed[key] = item
    else:
        placed[:] = items
    return placed


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
