"""Calls of an adapter that must succeed, and observations of whole modules."""

from dataclasses import dataclass
from typing import Any

from .layered import LayeredSpec
from .observations import Bits, Meta, ValueMeta
from .operations import Map, Op, Visit
from .protocol import Adapter, Handle, Refused
from .spec_tree import ConstantSpec, Event, Printed, TreeSpec, lazy_paths, tensors


def built(adapter: Adapter, spec: TreeSpec | LayeredSpec) -> Handle:
    """A module of a spec."""
    handle = adapter.build(spec)
    assert not isinstance(handle, Refused), f"build refused a good tree: {handle.message}"
    return handle


def applied(adapter: Adapter, target: Handle, operation: Op) -> Handle:
    """What an operation gives."""
    answer = adapter.apply(target, operation)
    assert not isinstance(answer, Refused), f"{operation!r} was refused: {answer.message}"
    return answer.handle


def output(adapter: Adapter, target: Handle, operation: Op) -> Any:
    """What an operation reports."""
    answer = adapter.apply(target, operation)
    assert not isinstance(answer, Refused), f"{operation!r} was refused: {answer.message}"
    return answer.output


def events(adapter: Adapter, target: Handle) -> list[Event]:
    """What a visit shows."""
    return list(output(adapter, target, Visit()))


def mapped_events(adapter: Adapter, target: Handle) -> list[Event]:
    """What the identity map is shown."""
    return list(output(adapter, target, Map())[0])


def read(adapter: Adapter, target: Handle, path: str) -> Bits:
    """A value, made now if it is lazy."""
    bits = adapter.bits(target, path)
    assert isinstance(bits, Bits), f"reading {path} was refused: {bits.message}"
    return bits


def all_bits(adapter: Adapter, target: Handle, spec: TreeSpec) -> dict[str, Bits]:
    """Every value of a module, plain tensors included; makes what is lazy."""
    return {path: read(adapter, target, path) for path in tensors(spec)}


def runs(adapter: Adapter, target: Handle, spec: TreeSpec) -> dict[str, int]:
    """How often each initialiser of the module ran."""
    return {path: adapter.runs(target, path) for path in lazy_paths(spec)}


@dataclass(frozen=True, repr=False)
class Observation(Printed):
    """All that can be seen of a module without making a value: its meta, and the bits that exist."""

    meta: Meta
    bits: dict[str, Bits]


def observed(adapter: Adapter, target: Handle, spec: TreeSpec) -> Observation:
    """What can be seen of a module; makes nothing. The spec tree tells of its plain tensors."""
    meta = adapter.meta(target)
    made = [value.path for value in meta.values if isinstance(value, ValueMeta) and not value.lazy]
    made += [path for path, node in tensors(spec).items() if isinstance(node, ConstantSpec)]
    return Observation(meta, {path: read(adapter, target, path) for path in made})
