"""Modules of the engine from spec trees, by its public API."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine import Device, Tensor
from modules import Array, EnumModule, Flag, LoraAdapter, Module, Param, ParamGroup, RunningState, skip

from .engine_quantization import Attaching
from .spec_tree import (
    ConfigSpec,
    ConstantSpec,
    DictSpec,
    EnumSpec,
    FlagSpec,
    Node,
    OptionalSpec,
    ParamSpec,
    RunningSpec,
    SequenceSpec,
    SkipSpec,
    StructSpec,
    TreeSpec,
    Value,
    attached_to,
    numpy_dtype,
    tied_with,
)


class InitialiserFailed(Exception):
    """What an initialiser raises on purpose."""


class NameRefused(Exception):
    """Python itself keeps a module from having an attribute of that name, as ``__dict__``."""


def tensor_of(value: Value, data: bytes | None = None, device: Device | str | None = None) -> Tensor:
    """A tensor of a value, lying in memory as its layout says."""
    raw = np.frombuffer(value.data if data is None else data, numpy_dtype(value.dtype))
    array, place = raw.reshape(value.shape), device or value.device
    match value.layout if array.ndim else "dense":
        case "transposed":
            return Tensor.from_numpy(np.ascontiguousarray(array.T), place).transpose()
        case "strided":
            return Tensor.from_numpy(np.repeat(array, 2, axis=-1), place)[..., ::2]
        case "reversed":
            return Tensor.from_numpy(np.ascontiguousarray(array[::-1]), place)[::-1]
        case "offset":
            return Tensor.from_numpy(np.concatenate([np.zeros_like(array[:1]), array]), place)[len(array[:1]) :]
    return Tensor.from_numpy(array, place)


class Built:
    """The state that all versions of one module share outside of it: runs of initialisers, groups that were kept."""

    def __init__(self, spec: TreeSpec) -> None:
        self.spec = spec
        self.runs: dict[str, int] = {}
        self.groups: dict[str, ParamGroup] = {}
        self._made: dict[str, Any] = {}

    def module(self) -> Module:
        """The module of the spec, with what is attached to its parameters."""
        made = self.node(self.spec.root, "")
        held = attached_to(self.spec)
        if not held:
            return made
        adapters: dict[str, LoraAdapter] = {}
        for path, (name, inside) in held.items():
            first = tied_with(self.spec, path)[0]
            if first not in adapters:
                fields = {field: self.node(child, f"{path}.{name}.{field}") for field, child in inside.fields}
                adapters[first] = LoraAdapter(**fields)
            adapters[path] = adapters[first]
        return made.apply_reparameterization(Attaching(adapters))

    def node(self, node: Node, path: str) -> Any:
        """What a node of the spec is in Python; places that the sharing table ties get one object."""
        match node:
            case ParamSpec() | FlagSpec() | RunningSpec() | ConstantSpec():
                first = tied_with(self.spec, path)[0]
                if first not in self._made:
                    self._made[first] = self.leaf(node, first)
                return self._made[first]
            case ConfigSpec(value):
                return value
            case SkipSpec(held):
                return skip(self.node(held, path))
            case OptionalSpec(held):
                return None if held is None else self.node(held, path)
            case StructSpec(fields, name):
                return _struct(name)([(field, self.node(child, joined(path, field))) for field, child in fields])
            case EnumSpec(variant, held, name):
                return _enum(name)(variant, self.node(held, joined(path, variant)))
            case DictSpec(items):
                return {key: self.node(child, joined(path, key)) for key, child in items}
            case SequenceSpec(kind, items):
                made = [self.node(child, joined(path, str(index))) for index, child in enumerate(items)]
                return {"list": list, "tuple": tuple, "array": Array}[kind](made)

    def leaf(self, node: ParamSpec | FlagSpec | RunningSpec | ConstantSpec, path: str) -> Any:
        match node:
            case FlagSpec(enabled):
                return Flag(enabled)
            case RunningSpec(value):
                return RunningState(tensor_of(value))
            case ConstantSpec(value):
                return tensor_of(value)
            case ParamSpec(value, wish, lazy):
                if lazy:
                    return Param.lazy(self.initialiser(node, path), value.shape, value.dtype, value.device, wish)
                return Param(tensor_of(value)).set_require_grad(wish)

    def initialiser(self, node: ParamSpec, path: str) -> Callable[[Device, bool], Tensor]:
        """Counts its runs; each gives another value, and the first few raise."""
        self.runs[path] = 0

        def init(device: Device, require_grad: bool) -> Tensor:
            run = self.runs[path]
            self.runs[path] += 1
            if run < node.fails:
                raise InitialiserFailed(f"run {run} of the initialiser of {path}")
            return tensor_of(node.value, node.value.run(run), device)

        return init


def joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


_classes: dict[tuple[str, type], Any] = {}


def _struct(name: str) -> Any:
    def init(self: Any, fields: Sequence[tuple[str, Any]]) -> None:
        for field, value in fields:
            try:
                setattr(self, field, value)
            except (TypeError, AttributeError) as error:
                raise NameRefused(f"{field!r}: {error}") from error

    return _classes.setdefault((name, Module), type(Module)(name, (Module,), {"__init__": init}))


def _enum(name: str) -> Any:
    return _classes.setdefault((name, EnumModule), type(EnumModule)(name, (EnumModule,), {}))
