"""Faults to plant in the engine, as data: how each is planted, and the laws that must fail then.

Those called X are of the suite's specification; the others are ours, so that
every law has a fault that it kills. A fault is a patch of the engine, or an
adapter that lies about it. Here are those of trees and versions;
`faults_of_values` has those of ids, laziness and devices.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import pytest

from engine import Tensor
from modules import Array, Flag, Module, Param, RunningState, module
from modules.containers import ReadOnlyDict, ReadOnlyList, TupleNode
from modules.traversal import Mapped
from modules.tree import Each, leaves

from . import operations as op
from .engine_adapter import Version
from .layered_engine import EngineAdapter
from .protocol import Adapter, Done, Refused
from .spec_tree import Event, Seen

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Fault:
    """A fault.

    Args:
        name: its number and what is wrong.
        laws: numbers of the laws that must fail.
        plant: patches the engine and gives the adapter to put the laws to.
    """

    name: str
    laws: tuple[str, ...]
    plant: Callable[[Patch], Adapter]


FAULTS: Final[list[Fault]] = []

Plant = TypeVar("Plant", bound=Callable[[Patch], Any])


def fault(name: str, *laws: str) -> Callable[[Plant], Plant]:
    """Note a fault. What plants it gives the lying adapter, or None for the engine's own."""

    def noted(plant: Plant) -> Plant:
        def planted(patch: Patch) -> Adapter:
            return plant(patch) or EngineAdapter()

        FAULTS.append(Fault(name, laws, planted))
        return plant

    return noted


# The tree


def _without_none(value: Any) -> Any:
    """What a module's field holds, without None in containers of children."""
    if isinstance(value, Module):
        kept = {name: _without_none(item) for name, item in value.fields().items()}
        return value.replace(**{name: item for name, item in kept.items() if item is not value.fields()[name]})
    if isinstance(value, ReadOnlyList):
        return (Array if isinstance(value, Array) else list)(
            [_without_none(item) for item in value if item is not None]
        )
    if isinstance(value, ReadOnlyDict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


@fault("X1 map drops None from containers", "L1")
def _x1(patch: Patch) -> None:
    original = Module.map
    patch.setattr(Module, "map", lambda self, mapper: _without_none(original(self, mapper)))


@fault("X2 dict children are walked in sorted order of keys", "L5", "L8")
def _x2(patch: Patch) -> None:
    original = ReadOnlyDict.__init__

    def init(self: Any, items: Mapping[str, Any], *where: Any) -> None:
        original(self, dict(sorted(items.items())), *where)

    patch.setattr(ReadOnlyDict, "__init__", init)


@fault("X3 list items are numbered after skipping None", "L5", "L9")
def _x3(patch: Patch) -> None:
    original = ReadOnlyList.__init__

    def init(self: Any, *args: Any) -> None:
        original(self, *args)
        number, renamed = 0, []
        for _, child in self._children:
            renamed.append((str(number), child))
            number += child is not None
        self._children = tuple(renamed)

    patch.setattr(ReadOnlyList, "__init__", init)


@fault("X4 map stores the new children in the receiver", "L10")
def _x4(patch: Patch) -> None:
    original = Module.map

    def mapped(self: Any, mapper: Any) -> Any:
        made = original(self, mapper)
        object.__setattr__(self, "_children", made._children)
        return made

    patch.setattr(Module, "map", mapped)


@fault("X5 a running state is shared between clones", "L10", "L58")
def _x5(patch: Patch) -> None:
    def derived(self: RunningState, value: Tensor) -> RunningState:
        self._value = value
        return self

    patch.setattr(RunningState, "_derived", derived)


class _Showing(EngineAdapter):
    """Lies about what a visit shows."""

    def shown(self, target: Version, events: tuple[Event, ...]) -> tuple[Event, ...]:
        return events

    def apply(self, target: Version, operation: op.Op) -> Done | Refused:
        answer = super().apply(target, operation)
        if isinstance(operation, op.Visit) and isinstance(answer, Done):
            return Done(answer.handle, self.shown(target, answer.output))
        return answer


class _Once(_Showing):
    def shown(self, target: Version, events: tuple[Event, ...]) -> tuple[Event, ...]:
        again = {path for group in self.meta(target).ties for path in group[1:]}
        return tuple(one for one in events if not (isinstance(one, Seen) and one.path in again))


@fault("X6 a tied parameter is visited once", "L12")
def _x6(patch: Patch) -> Adapter:
    return _Once()


@fault("Y1 a tuple is entered as a list", "L3", "L5")
def _y1(patch: Patch) -> None:
    patch.setattr(TupleNode, "_container", property(lambda self: "Vec"))


@fault("Y2 map does not leave what it enters", "L3", "L4")
def _y2(patch: Patch) -> None:
    original = Mapped.__init__

    def init(self: Any, mapper: Any) -> None:
        original(self, mapper)
        self.exit = lambda name, container: None

    patch.setattr(Mapped, "__init__", init)


@fault("Y3 map asks about a parameter twice", "L2", "L3")
def _y3(patch: Patch) -> None:
    original = Mapped.leaf
    patch.setattr(Mapped, "leaf", lambda self, path, leaf: original(self, path, original(self, path, leaf)))


class _LastComponent(_Showing):
    def shown(self, target: Version, events: tuple[Event, ...]) -> tuple[Event, ...]:
        return tuple(replace(one, path=one.path.split(".")[-1]) if isinstance(one, Seen) else one for one in events)


@fault("Y4 a visit gives the last component as the path", "L4", "L5", "L6", "L9")
def _y4(patch: Patch) -> Adapter:
    return _LastComponent()


@fault("Y5 a name may contain a dot", "L7")
def _y5(patch: Patch) -> None:
    patch.setattr("modules.module.check_name", lambda name, path: None)
    patch.setattr("modules.containers.check_name", lambda name, path: None)


@fault("Y6 a field may hide a method", "L7")
def _y6(patch: Patch) -> None:
    original = module._check_field
    patch.setattr(module, "_check_field", lambda cls, name: None if name.isidentifier() else original(cls, name))


@fault("Y7 the identity map copies", "L1", "L11")
def _y7(patch: Patch) -> None:
    original = Mapped.leaf

    def leaf(self: Any, path: str, one: Any) -> Any:
        made: Any = original(self, path, one)
        return made.with_id(made.id) if made is one and isinstance(one, Param) else made

    patch.setattr(Mapped, "leaf", leaf)


class _Spreading(EngineAdapter):
    """An edit of one path changes the flag beside it."""

    def apply(self, target: Version, operation: op.Op) -> Done | Refused:
        answer = super().apply(target, operation)
        edited = isinstance(operation, op.Map) and any(operation.mappers)
        if not edited or isinstance(answer, Refused):
            return answer
        paths = [path for path, leaf in leaves(answer.handle.module) if isinstance(leaf, Flag)]
        edits = tuple(op.SetFlag(path, True) for path in paths)
        handle = super().apply(answer.handle, op.Map((edits,))).handle  # pyright: ignore[reportAttributeAccessIssue]
        return Done(handle, answer.output)


@fault("Y8 a map changes what it was not told to", "L11")
def _y8(patch: Patch) -> Adapter:
    return _Spreading()


@fault("Y9 each place of a tied parameter gets a result of its own", "L12", "L31")
def _y9(patch: Patch) -> None:
    def leaf(self: Any, path: str, one: Any) -> Any:
        return self._change(path, one)

    patch.setattr(Each, "leaf", leaf)


@fault("Y10 a raising hook leaves a lock held", "L13")
def _y10(patch: Patch) -> None:
    original = Module.map

    lock = threading.RLock()

    def mapped(self: Any, mapper: Any) -> Any:
        lock.acquire()
        made = original(self, mapper)
        lock.release()
        return made

    patch.setattr("modules.param.INITIALIZING", lock)
    patch.setattr(Module, "map", mapped)
