"""What can be seen of an engine's module, by its public API."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine import Tensor
from modules import Array, Draws, EnumModule, Flag, Module, ModuleVisitor, Param, PathError, RunningState

from .engine_build import joined
from .engine_quantization import dtype_name
from .observations import FlagMeta, Skeleton, ValueMeta
from .spec_tree import Enter, Event, Exit, Seen


class Recorder(ModuleVisitor):
    """What a traversal shows, with all six hooks."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.shown: list[tuple[str, Param | Flag]] = []

    def _show(self, kind: Any, path: str, leaf: Any) -> None:
        self.events.append(Seen(kind, path))
        self.shown.append((path, leaf))

    def visit_float(self, path: str, param: Param, /) -> None:
        self._show("float", path, param)

    def visit_int(self, path: str, param: Param, /) -> None:
        self._show("int", path, param)

    def visit_bool(self, path: str, param: Param, /) -> None:
        self._show("bool", path, param)

    def visit_flag(self, path: str, flag: Flag, /) -> None:
        self._show("flag", path, flag)

    def enter_module(self, name: str, container_type: str, /) -> None:
        self.events.append(Enter(name, container_type))

    def exit_module(self, name: str, container_type: str, /) -> None:
        self.events.append(Exit(name, container_type))


def observed(path: str, leaf: Param | Flag) -> ValueMeta | FlagMeta:
    if isinstance(leaf, Flag):
        return FlagMeta(path, int(leaf.id), leaf.is_enabled, leaf.configured)
    device, lazy = leaf.device, not leaf.is_initialized
    return ValueMeta(
        path=path,
        kind=leaf.kind,
        id=int(leaf.id),
        shape=leaf.shape,
        dtype=dtype_name(leaf.dtype),
        device=str(device.inner()),
        lazy=lazy,
        autodiff=device.is_autodiff,
        trainable=leaf.trainable,
        requires_grad=None if lazy else leaf.val().is_require_grad,
    )


class Places:
    """The skeleton of a module, and the objects at its places; of a parameter the one that a visit shows."""

    def __init__(self, module: Module, shown: Mapping[str, Param | Flag]) -> None:
        self.module = module
        self.shown = shown
        self.holders: dict[int, list[str]] = {}
        self.skeleton = self.of(module, "")
        self.ties = tuple(tuple(paths) for paths in self.holders.values() if len(paths) > 1)

    def is_configuration(self, path: str) -> bool:
        try:
            self.module.at(path)
        except PathError:
            return True
        return False

    def of(self, value: Any, path: str) -> Skeleton:
        if value is None:
            return ("none",)
        if path and self.is_configuration(path):
            return ("config", _plain(value))
        if isinstance(value, (Param, Flag, RunningState, Tensor)):
            seen = self.shown[path] if isinstance(value, Param) else value
            self.holders.setdefault(id(seen), []).append(path)
        match value:
            case Param():
                held = value.reparameterization
                below = () if held is None else ((held.NAME, self.of(held, joined(path, held.NAME))),)
                return (value.kind, *below)
            case Flag():
                return ("flag",)
            case RunningState():
                return ("running",)
            case Tensor():
                device = value.device
                return ("constant", str(value.dtype), value.shape, str(device.inner()), device.is_autodiff)
            case EnumModule():
                return ("enum", type(value).__name__, value.variant, self.of(value.value, joined(path, value.variant)))
            case Module():
                return ("struct", type(value).__name__, tuple(self.named(value.fields(), path)))
            case Mapping():
                return ("dict", tuple(self.named(value, path)))
        items = tuple(self.of(item, joined(path, str(index))) for index, item in enumerate(value))
        return (_sequence(value), items)

    def named(self, items: Mapping[str, Any], path: str) -> Iterator[tuple[str, Skeleton]]:
        shown = ((name, value) for name, value in items.items() if not isinstance(value, Draws))
        return ((name, self.of(value, joined(path, name))) for name, value in shown)


def _sequence(value: Any) -> str:
    return "tuple" if isinstance(value, tuple) else "array" if isinstance(value, Array) else "list"


def _plain(value: Any) -> Any:
    match value:
        case Tensor():
            return ("tensor",)
        case Mapping():
            return ("dict", *((key, _plain(item)) for key, item in value.items()))
        case str():
            return repr(value)
        case Sequence():
            return (_sequence(value), *map(_plain, value))
    return repr(value)
