"""Hidden children: what looks like configuration and holds parameters or tensors that no walk would find.

Only memory is looked at: no code of the value's class runs, and nothing is
consumed.
"""

import itertools
from collections import deque
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from dataclasses import fields, is_dataclass
from types import (
    BuiltinFunctionType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Final

import numpy as np

from .errors import ModuleError
from .tree import CHILDREN, Node

_ATOMS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_PLAIN: Final = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
_SEQUENCES: Final = (list, tuple, set, frozenset, deque)
_VIEWS: Final = tuple(type(view) for view in ({}.keys(), {}.values(), {}.items()))
_MAPPINGS: Final = (dict, MappingProxyType)


def is_array(value: Any) -> bool:
    """Whether it is an array of NumPy or CuPy, which has no device of ours."""
    return isinstance(value, np.ndarray) or type(value).__module__.partition(".")[0] == "cupy"


def is_closed_iterator(value: Any) -> bool:
    """Whether it gives values that cannot be seen without consuming it, as a generator or ``map`` does."""
    if not isinstance(value, Iterator) or isinstance(value, itertools.count):
        return False
    return _attributes(value) is None


def hidden_child(value: Any) -> Any:
    """The first Param, Flag, RunningState, Tensor, Draws or Module that `value` is or holds; None if there is none.

    Lists, tuples, sets, dicts with their keys, views, and the fields of
    dataclasses and namespaces are searched to any depth, the attributes of
    other objects only one level deep: beyond, half a program may follow.
    """
    return _found(value, True, set())


def refuse_hidden_children(value: Any, path: str) -> None:
    """Refuse a module's field or item that would hide parameters from every walk.

    Raises:
        ModuleError: `value` is an array, an iterator, or an object that holds a Param, Flag, RunningState, Tensor,
            Draws or Module and is no list, tuple or dict.
    """
    if type(value) in _ATOMS:
        return
    if is_array(value):
        raise ModuleError(
            f"{path}: an array has no device and would not move; keep tensor(…, device=…) as a constant, "
            "Param(tensor(…)) to train it, or skip(array) as configuration"
        )
    if is_closed_iterator(value):
        raise ModuleError(
            f"{path}: a {type(value).__qualname__} is used up by the first who reads it, so nobody can see whether "
            "it holds children; keep list(…) of it"
        )
    hidden = hidden_child(value)
    if hidden is not None:
        raise ModuleError(
            f"{path}: a {type(value).__qualname__} that holds a {type(hidden).__qualname__} would hide it; "
            f"keep it in a field, list, tuple or dict, or make the {type(value).__qualname__} a Module"
        )


def _found(value: Any, attributes: bool, seen: set[int]) -> Any:
    if type(value) in _ATOMS:
        return None
    if isinstance(value, (*CHILDREN, Node)):
        return value
    if id(value) in seen:
        return None
    held = _items(value)
    if held is None and attributes:
        held = _attributes(value)
        attributes = isinstance(value, SimpleNamespace)
    if held is None:
        return None
    seen.add(id(value))
    return next((found for item in held if (found := _found(item, attributes, seen)) is not None), None)


def _items(value: Any) -> list[Any] | None:
    """What a container or dataclass holds; None for anything else."""
    if isinstance(value, _MAPPINGS):
        return [*value.keys(), *value.values()]
    if isinstance(value, _SEQUENCES) or type(value) in _VIEWS or isinstance(value, (KeysView, ValuesView, ItemsView)):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in fields(value)]
    return None


def _attributes(value: Any) -> list[Any] | None:
    """The values of an object's own attributes; None if it can have none, as most types written in C."""
    if isinstance(value, _PLAIN):
        return None
    found: list[Any] | None = None
    for cls in type(value).__mro__:
        if "__slots__" in cls.__dict__:
            slots = [member for member in cls.__dict__.values() if isinstance(member, MemberDescriptorType)]
            found = (found or []) + [_slot(member, value) for member in slots]
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return found
    return (found or []) + list(own.values()) if isinstance(own, dict) else found


def _slot(member: MemberDescriptorType, value: Any) -> Any:
    """What a slot holds; None if nothing."""
    try:
        return member.__get__(value)
    except AttributeError:
        return None
