"""Strategies for what is done with modules: edits, mappers, operations, programs.

All are data, drawn for the spec tree that they are applied to, so that they
name paths that exist.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from .generators import pick, trees
from .group_generators import Matchable, chosen, group
from .operations import (
    AddConstant,
    ApplyLora,
    Clone,
    CollectDevices,
    CountParams,
    Display,
    Edit,
    Force,
    Fork,
    Freeze,
    Map,
    Mapper,
    Materialize,
    NoGrad,
    Number,
    Op,
    Quantize,
    ReplaceId,
    SetFlag,
    SetRequireGrad,
    SetTrainable,
    ToDevice,
    ToRecord,
    Train,
    Unfreeze,
    Update,
    Valid,
    Visit,
)
from .protocol import Adapter, Grammar
from .schemes import Scheme
from .spec_tree import FlagSpec, Printed, RunningSpec, TreeSpec, lazy_paths, leaves, without_attached

IDS: Final = st.integers(0, 2**64 - 1)
_STARTS: Final = st.integers(0, 2**63)
_FEW: Final = st.integers(0, 3)


class Places:
    """The paths of a tree by what can be done there."""

    def __init__(self, spec: TreeSpec) -> None:
        seen = leaves(spec)
        self.matchable = Matchable(spec)
        self.flags = [path for path, node in seen.items() if isinstance(node, FlagSpec)]
        self.running = [path for path, node in seen.items() if isinstance(node, RunningSpec)]
        self.owned = [path for path in seen if path not in self.running]
        self.floats = [path for path, n in seen.items() if not isinstance(n, FlagSpec) and n.value.kind == "float"]
        self.lazy = lazy_paths(spec)


@st.composite
def some_paths(draw: DrawFn, paths: Sequence[str]) -> tuple[str, ...]:
    """See `group_generators.chosen`."""
    return chosen(draw, paths)


# Mappers


def _edit(draw: DrawFn, at: Places, adds: bool) -> Edit:
    kinds = [SetTrainable, *([AddConstant] if adds else []), ReplaceId, Number, *([SetFlag] if at.flags else [])]
    kind = pick(draw, kinds)
    if kind is SetTrainable:
        return SetTrainable(pick(draw, at.floats), draw(st.booleans()))
    if kind is AddConstant:
        return AddConstant(pick(draw, at.floats), pick(draw, (1, -2, 3)))
    if kind is ReplaceId:
        return ReplaceId(pick(draw, at.owned), draw(IDS))
    if kind is SetFlag:
        return SetFlag(pick(draw, at.flags), draw(st.booleans()))
    return Number(draw(_STARTS))


def _mapper(draw: DrawFn, at: Places, adds: bool, least: int = 0) -> Mapper:
    return tuple(_edit(draw, at, adds) for _ in range(max(least, draw(_FEW))))


@st.composite
def edits(draw: DrawFn, spec: TreeSpec) -> Edit:
    """An edit of a leaf of the tree, or one with state."""
    return _edit(draw, Places(spec), adds=True)


@st.composite
def mappers(draw: DrawFn, spec: TreeSpec, min_size: int = 0) -> Mapper:
    """A mapper of up to three edits."""
    return _mapper(draw, Places(spec), True, min_size)


# Operations

_SINGLE: Final = (Clone, Visit, CountParams, CollectDevices, Display, Train, Valid, NoGrad, Materialize)
READS: Final = (Visit, CountParams, CollectDevices, Display)
SWITCHES: Final = (Train, Valid, NoGrad, SetRequireGrad, Freeze, Unfreeze)
MOVES: Final = (Fork, ToDevice)
REMAKING: Final = (Quantize, ApplyLora, Materialize)
"""What changes how values are stored, or what is attached to them; it makes what is lazy."""
EVERY: Final = (Clone, Map, *MOVES, *SWITCHES, Force, Update, *READS, ToRecord)
"""All else; what is found by a few of these is not found among too many others."""
SCHEMES: Final = (
    *(Scheme("Q8S"), Scheme("Q4F", "PackedU32"), Scheme("Q8S", whole="F16"), Scheme("E4M3")),
    *(Scheme("Q8S", blocks=(1,), each="BF16"), Scheme("Q4S", blocks=(2,)), Scheme("Q2S", blocks=(2, 1))),
)


def _operation(draw: DrawFn, kind: type[Op], at: Places, grammar: Grammar, adds: bool) -> Op:
    if kind in _SINGLE:
        return kind()
    if kind is Map:
        return Map(tuple(_mapper(draw, at, adds) for _ in range(draw(_FEW) % 3)))
    if kind is Force:
        return Force(pick(draw, at.lazy))
    if kind is Update:
        return Update(pick(draw, at.running), 1)
    if kind in (Fork, ToDevice):
        flag = "+autodiff" if grammar.autodiff and draw(st.booleans()) else ""
        return kind(pick(draw, grammar.devices) + flag)  # pyright: ignore[reportCallIssue]
    meant = group(draw, at.matchable) if draw(st.booleans()) else None
    if kind is SetRequireGrad:
        return SetRequireGrad(draw(st.booleans()), meant)
    if kind in (Freeze, Unfreeze, ToRecord):
        return kind(meant)  # pyright: ignore[reportCallIssue]
    if kind is Quantize:
        return Quantize(pick(draw, SCHEMES), pick(draw, ("MinMax", "AbsMean")), meant, pick(draw, (True, True, False)))
    if kind is ApplyLora:
        return ApplyLora(draw(_FEW) + 1, 2.0, group=meant)
    raise TypeError(f"{kind.__name__} has no strategy")


@st.composite
def operation(draw: DrawFn, kind: type[Op], spec: TreeSpec, grammar: Grammar, adds: bool = True) -> Op:
    """An operation of a class, on a tree. Without `adds`, a map makes no value that is lazy."""
    return _operation(draw, kind, Places(spec), grammar, adds)


def offered(adapter: Adapter, kinds: Sequence[type[Op]]) -> list[type[Op]]:
    """The classes of operation that an implementation offers."""
    return [kind for kind in kinds if all(name in adapter.capabilities for name in kind.needs)]


@dataclass(frozen=True, repr=False)
class Program(Printed):
    """A module, and operations on its versions: each on the version that many before the newest."""

    spec: TreeSpec
    steps: tuple[tuple[int, Op], ...]


@st.composite
def programs(
    draw: DrawFn, adapter: Adapter, kinds: Sequence[type[Op]], *, max_steps: int = 6, adds: bool = True, **of_trees: Any
) -> Program:
    """Programs of the operations that an implementation offers; most steps are on the newest version.

    Where what is attached may come and go, steps name paths that are always there.
    """
    spec = draw(trees(adapter.grammar, **of_trees))
    at = Places(without_attached(spec) if set(kinds) & set(REMAKING) else spec)
    impossible = {kind for kind, paths in ((Force, at.lazy), (Update, at.running)) if not paths}
    possible = [kind for kind in offered(adapter, kinds) if kind not in impossible]
    steps: list[tuple[int, Op]] = []
    for _ in range(1 + draw(st.integers(0, max_steps - 1))):
        back = pick(draw, (0, 0, 0, 0, 1, 2))
        steps.append((back, _operation(draw, pick(draw, possible), at, adapter.grammar, adds)))
    return Program(spec, tuple(steps))
