"""The training state of a module as a table: what the laws L34 to L44 compare with (section 3 of the laws).

It is smaller than any implementation: one record per leaf, no tree, no tensor.
A value is ``P`` plain, ``U`` autodiff and untracked, ``L`` an autodiff leaf
that retains its gradient, or ``N`` autodiff, tracked, and no leaf. What each
call makes of these four is a row of `TABLE`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, Literal, TypeAlias

from . import expected
from . import operations as op
from .calls import Observation
from .group_expressions import Group, matched
from .observations import Bits, FlagMeta, Meta, ValueMeta
from .spec_tree import ConstantSpec, FlagSpec, Kind, ParamSpec, RunningSpec, TreeSpec, leaves, tensors, tied_with

Value: TypeAlias = Literal["P", "U", "L", "N"]
Row: TypeAlias = tuple[str, str, str, str]

# In a row, for P, U, L, N: the value afterwards; "a" is L if it is configured to train, else U; "!" is an error,
# "a!" one if it is configured to train, else U.
TABLE: Final[Mapping[str, Row]] = {
    "on": ("P", "L", "L", "!"),  # set_require_grad(True), unfreeze
    "off": ("P", "U", "U", "U"),  # set_require_grad(False), no_grad, freeze
    "valid": ("P", "P", "P", "P"),
    "train": ("a", "a", "a", "a!"),
    "fork": ("P", "U", "L", "U"),
    "to_device": ("P", "U", "N", "N"),
    "stays": ("P", "U", "L", "N"),  # to_device where it is already (D4), or still lazy (D3)
    "load": ("P", "a", "a", "a"),
}


class RefusalExpected(Exception):
    """The call must be refused: a value that must train was made by a recorded operation (M49)."""


@dataclass(frozen=True)
class ValueState:
    """A parameter, running state or plain tensor.

    Args:
        role: only parameters can train, plain tensors are not seen by visitors.
        number: of the object; places with equal ones are tied.
        bits: what the value is, or will be.
        cell: the number of the cell that makes the value, until it is loaded; None for one that was always there.
    """

    role: Literal["param", "running", "constant"]
    number: int
    id: int
    kind: Kind
    device: str
    trainable: bool
    value: Value
    bits: Bits
    cell: int | None = None

    def after(self, row: str, trainable: bool | None = None) -> "ValueState":
        """The state after a row of the table, and perhaps with another configuration first."""
        asked = self.trainable if trainable is None else trainable
        outcome = TABLE[row]["PULN".index(self.value)]
        if outcome == "!" or (outcome == "a!" and asked):
            raise RefusalExpected
        value: Value = ("L" if asked else "U") if outcome[0] == "a" else outcome  # pyright: ignore[reportAssignmentType]
        return replace(self, trainable=asked, value=value)


@dataclass(frozen=True)
class FlagState:
    """A flag: its value now, and as configured."""

    number: int
    id: int
    enabled: bool
    configured: bool


LeafState: TypeAlias = ValueState | FlagState


@dataclass
class Family:
    """What all versions of a module share: the spec, cells without a value yet, numbers for new objects."""

    spec: TreeSpec
    unmade: set[int]
    numbers: "count[int]" = field(default_factory=lambda: count(1000))


@dataclass(frozen=True)
class State:
    """What a version of a module must be, by path in the order of the tree; plain tensors included."""

    family: Family
    leaves: Mapping[str, LeafState]

    # Observing

    def lazy(self, leaf: LeafState) -> bool:
        """Whether nobody has made the value yet."""
        return isinstance(leaf, ValueState) and leaf.cell in self.family.unmade

    def ids(self) -> dict[str, int]:
        """The ids of what visitors see, by path."""
        return {path: leaf.id for path, leaf in self.leaves.items() if path in leaves(self.family.spec)}

    def meta(self) -> Meta:
        """All that must be seen without values."""
        seen = leaves(self.family.spec)
        constants: dict[str, tuple[str, bool]] = {}
        places: dict[int, list[str]] = {}
        for path, leaf in self.leaves.items():
            places.setdefault(leaf.number, []).append(path)
            if isinstance(leaf, ValueState) and leaf.role == "constant":
                constants[path] = leaf.device, leaf.value != "P"
        ties = tuple(tuple(paths) for paths in places.values() if len(paths) > 1)
        values = tuple(self._leaf(path, self.leaves[path]) for path in seen)
        return Meta(values, expected.skeleton(self.family.spec.root, "", constants), ties)

    def _leaf(self, path: str, leaf: LeafState) -> ValueMeta | FlagMeta:
        if isinstance(leaf, FlagState):
            return FlagMeta(path, leaf.id, leaf.enabled, leaf.configured)
        return ValueMeta(
            path=path,
            kind=leaf.kind,
            id=leaf.id,
            shape=leaf.bits.shape,
            dtype=leaf.bits.dtype,
            device=leaf.device,
            lazy=self.lazy(leaf),
            autodiff=leaf.value != "P",
            trainable=leaf.trainable,
            requires_grad=None if self.lazy(leaf) else leaf.value == "L",
        )

    def observation(self) -> Observation:
        """All that must be seen without making a value."""
        held = {path: leaf for path, leaf in self.leaves.items() if isinstance(leaf, ValueState)}
        return Observation(self.meta(), {path: leaf.bits for path, leaf in held.items() if not self.lazy(leaf)})

    # Changing

    def each(self, change: Callable[[LeafState], LeafState], paths: list[str] | None = None) -> "State":
        """The state with leaves changed: all, or those at some paths. A changed object is a new one there (D8)."""
        made: dict[LeafState, LeafState] = {}
        changed = dict(self.leaves)
        for path in self.leaves if paths is None else paths:
            leaf = self.leaves[path]
            if leaf not in made:
                after = change(leaf)
                made[leaf] = leaf if after == leaf else replace(after, number=next(self.family.numbers))
            changed[path] = made[leaf]
        return replace(self, leaves=changed)

    def _switched(self, on: bool, flags: bool, group: Group | None) -> "State":
        def change(leaf: LeafState) -> LeafState:
            if isinstance(leaf, FlagState):
                return replace(leaf, enabled=on, configured=on) if flags else leaf
            if leaf.role != "param" or leaf.kind != "float":
                return leaf
            return leaf.after("on" if on else "off", trainable=on)

        return self.each(change, matched(group, self.ids()))

    def _associated(self, row: Literal["train", "valid"]) -> "State":
        def change(leaf: LeafState) -> LeafState:
            if isinstance(leaf, FlagState):
                return replace(leaf, enabled=leaf.configured and row == "train")
            return leaf.after(row)

        return self.each(change)

    def _moved(self, device: str, cut: bool) -> "State":
        def change(leaf: LeafState) -> LeafState:
            if isinstance(leaf, FlagState):
                return leaf
            stays = self.lazy(leaf) or leaf.device == device
            return replace(leaf.after("fork" if cut else "stays" if stays else "to_device"), device=device)

        return self.each(change)

    def _loaded(self, record: op.Record) -> "State":
        entries = {entry.path: entry for entry in record.entries}
        given = {leaf.number: entries[path] for path, leaf in self.leaves.items() if path in entries}

        def change(leaf: LeafState) -> LeafState:
            if leaf.number not in given or isinstance(leaf, FlagState):
                return leaf
            entry = given[leaf.number]
            loaded = replace(leaf.after("load"), bits=entry.bits, cell=None)
            return loaded if leaf.role == "running" or entry.id is None else replace(loaded, id=entry.id)

        return self.each(change)

    def made(self, path: str) -> None:
        """The value at a path is read: it exists now in all versions that wait for it."""
        leaf = self.leaves[path]
        if isinstance(leaf, ValueState) and leaf.cell is not None:
            self.family.unmade.discard(leaf.cell)

    def updated(self, path: str, bits: Bits) -> "State":
        """The running state at a path takes another value; it is the same object."""
        number = self.leaves[path].number
        changed = {
            place: replace(leaf, bits=bits) if leaf.number == number and isinstance(leaf, ValueState) else leaf
            for place, leaf in self.leaves.items()
        }
        return replace(self, leaves=changed)

    def after(self, operation: op.Op) -> "State":
        """What an operation makes of the module.

        Raises:
            RefusalExpected: it must be refused.
        """
        match operation:
            case op.Clone() | op.Map(()):
                return self
            case op.Map(((op.SetFlag(path, value),),)):
                number = next(self.family.numbers)  # a mapper is asked for each path, so a place that it changes parts
                flag = replace(self.leaves[path], enabled=value, number=number)  # pyright: ignore[reportCallIssue]
                return replace(self, leaves={**self.leaves, path: flag})
            case op.SetRequireGrad(value, group):
                return self._switched(value, False, group)
            case op.NoGrad():
                return self._switched(False, False, None)
            case op.Freeze(group) | op.Unfreeze(group):
                return self._switched(isinstance(operation, op.Unfreeze), True, group)
            case op.Train():
                return self._associated("train")
            case op.Valid():
                return self._associated("valid")
            case op.Fork(device) | op.ToDevice(device):
                return self._moved(device.removesuffix("+autodiff"), isinstance(operation, op.Fork))
            case op.LoadRecord(record):
                return self._loaded(record)
        raise TypeError(f"the table has no row for {operation!r}")


def start(spec: TreeSpec, ids: Mapping[str, int]) -> State:
    """The state of a fresh build whose leaves got these ids (M23)."""
    numbers = {path: place for place, path in enumerate((*leaves(spec), *tensors(spec)))}
    made: dict[str, LeafState] = {}
    unmade: set[int] = set()
    for path, node in {**tensors(spec), **leaves(spec)}.items():
        first = tied_with(spec, path)[0]
        made[path] = made[first] if first in made else _leaf(node, numbers[path], ids.get(path, 0), unmade)
    return State(Family(spec, unmade), {path: made[path] for path in made})


def _leaf(node: ParamSpec | RunningSpec | ConstantSpec | FlagSpec, number: int, id: int, unmade: set[int]) -> LeafState:
    if isinstance(node, FlagSpec):
        return FlagState(number, id, node.enabled, node.enabled)
    value = node.value
    trainable = isinstance(node, ParamSpec) and node.wish and value.kind == "float"
    role = "param" if isinstance(node, ParamSpec) else "running" if isinstance(node, RunningSpec) else "constant"
    tracked: Value = "P" if not value.autodiff else "L" if trainable else "U"
    cell = None
    if isinstance(node, ParamSpec) and node.lazy:
        cell = number
        unmade.add(number)
    return ValueState(role, number, id, value.kind, value.hardware, trainable, tracked, expected.bits(value), cell)
