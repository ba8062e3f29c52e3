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
from .model_leaves import quantized
from .observations import Bits, FlagMeta, Meta, ValueMeta
from .protocol import RefusalKind
from .schemes import Scheme, is_scheme
from .spec_tree import (
    LORA,
    ConstantSpec,
    FlagSpec,
    Kind,
    ParamSpec,
    RunningSpec,
    StructSpec,
    TreeSpec,
    attached_at,
    attached_to,
    leaves,
    lora,
    places,
    tied_with,
)
from .spec_tree import Value as TensorSpec

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
    "quantize": ("P", "U", "U", "U"),
    "materialize": ("P", "U", "L", "U"),
}


class RefusalExpected(Exception):
    """The call must be refused: a value that must train was made by a recorded operation (M49), if nothing else."""

    def __init__(self, kind: RefusalKind = "autodiff") -> None:
        super().__init__(kind)
        self.kind: Final[RefusalKind] = kind


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
        if not self.quantized and (outcome == "!" or (outcome == "a!" and asked)):
            raise RefusalExpected
        value: Value = ("L" if asked else "U") if outcome[0] == "a" else outcome  # pyright: ignore[reportAssignmentType]
        return replace(self, trainable=asked, value="U" if value == "L" and self.quantized else value)

    @property
    def quantized(self) -> bool:
        """Whether the value is: then it never trains (Q33)."""
        return is_scheme(self.bits.dtype)

    @property
    def is_float(self) -> bool:
        """Whether it is a parameter of floats."""
        return self.role == "param" and self.kind == "float"


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
    """What all versions of a module share: cells without a value yet, numbers for new objects."""

    unmade: set[int]
    numbers: "count[int]" = field(default_factory=lambda: count(1000))


@dataclass(frozen=True)
class State:
    """What a version of a module must be, by path in the order of the tree; plain tensors included."""

    spec: TreeSpec
    family: Family
    leaves: Mapping[str, LeafState]

    # Observing

    def lazy(self, leaf: LeafState) -> bool:
        """Whether nobody has made the value yet."""
        return isinstance(leaf, ValueState) and leaf.cell in self.family.unmade

    def ids(self) -> dict[str, int]:
        """The ids of what visitors see, by path."""
        return {path: leaf.id for path, leaf in self.leaves.items() if path in leaves(self.spec)}

    def meta(self) -> Meta:
        """All that must be seen without values."""
        seen = leaves(self.spec)
        constants: dict[str, tuple[str, bool]] = {}
        places: dict[int, list[str]] = {}
        for path, leaf in self.leaves.items():
            places.setdefault(leaf.number, []).append(path)
            if isinstance(leaf, ValueState) and leaf.role == "constant":
                constants[path] = leaf.device, leaf.value != "P"
        ties = tuple(tuple(paths) for paths in places.values() if len(paths) > 1)
        values = tuple(self._leaf(path, self.leaves[path]) for path in seen)
        return Meta(values, expected.skeleton(self.spec.root, "", constants), ties)

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
            if not leaf.is_float:
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
            loaded = replace(leaf, bits=entry.bits, cell=None).after("load")
            return loaded if leaf.role == "running" or entry.id is None else replace(loaded, id=entry.id)

        return self.each(change)

    def matrices(self, group: Group | None) -> list[str]:
        """The paths of what gets an adapter (A15)."""
        held = ((path, self.leaves[path]) for path in matched(group, self.ids()))
        return [path for path, v in held if isinstance(v, ValueState) and v.is_float and len(v.bits.shape) == 2]

    def adapted(self, group: Group | None, scale: float, factors: Mapping[str, tuple[int, Bits]]) -> "State":
        """The state with adapters whose factors have these ids and values, by path.

        Raises:
            RefusalExpected: something is attached already (A4).
        """
        if attached_to(self.spec):
            raise RefusalExpected("other")
        frozen = self._switched(False, False, None)
        made: dict[tuple[int, str], ValueState] = {}
        attached: dict[str, tuple[str, StructSpec] | None] = {}
        held = dict(frozen.leaves)
        for path in self.matrices(group):
            self.made(path)
            base = frozen.leaves[path]
            assert isinstance(base, ValueState)
            for name in "ab":
                key, value = (base.number, name), "P" if base.value == "P" else "L"
                if key not in made:
                    id, bits = factors[f"{path}.{LORA}.{name}"]
                    number = next(self.family.numbers)
                    made[key] = ValueState("param", number, id, "float", base.device, True, value, bits)
                held[f"{path}.{LORA}.{name}"] = made[key]
            a, b = (_spec(made[base.number, name].bits) for name in "ab")
            attached[path] = lora(a, b, scale)
        return frozen._with_attached(attached, held)

    def materialized(self, values: Mapping[str, Bits]) -> "State":
        """The state whose adapted parameters store these values, by path, and have nothing attached (A32)."""
        made: dict[tuple[int, ...], ValueState] = {}
        held = dict(self.leaves)
        for path in attached_to(self.spec):
            parts = [self.leaves[at] for at in (path, *(f"{path}.{LORA}.{name}" for name in "ab"))]
            key, base = tuple(part.number for part in parts), parts[0]
            assert isinstance(base, ValueState)
            if key not in made:
                new = base.after("materialize")
                made[key] = replace(new, bits=values[path], cell=None, number=next(self.family.numbers))
            held[path] = made[key]
        return self._with_attached(dict.fromkeys(attached_to(self.spec)), held)

    def _with_attached(
        self, attached: Mapping[str, tuple[str, StructSpec] | None], held: Mapping[str, LeafState]
    ) -> "State":
        spec = attached_at(self.spec, attached)
        return replace(self, spec=spec, leaves={path: held[path] for path in places(spec) if path in held})

    def _quantized(self, operation: op.Quantize) -> "State":
        chosen = [path for path in matched(operation.group, self.ids()) if self._quantizes(self.leaves[path])]
        for path in chosen:
            self.made(path)
        shapes = [leaf.bits.shape for leaf in map(self.leaves.get, chosen) if isinstance(leaf, ValueState)]
        if not all(fits(operation.scheme, shape) for shape in shapes):
            raise RefusalExpected("scheme")

        def change(leaf: LeafState) -> LeafState:
            assert isinstance(leaf, ValueState)
            bits = quantized(leaf.bits, operation.scheme, operation.calibration == "AbsMean")
            return replace(leaf.after("quantize"), bits=bits, cell=None)

        return self.each(change, chosen)

    def _quantizes(self, leaf: LeafState) -> bool:
        return isinstance(leaf, ValueState) and leaf.is_float and not leaf.quantized

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
            case op.Quantize():
                return self._quantized(operation)
        raise TypeError(f"the table has no row for {operation!r}")


def start(spec: TreeSpec, ids: Mapping[str, int]) -> State:
    """The state of a fresh build whose leaves got these ids (M23)."""
    made: dict[str, LeafState] = {}
    unmade: set[int] = set()
    for number, (path, node) in enumerate(places(spec).items()):
        if isinstance(node, (ParamSpec, RunningSpec, ConstantSpec, FlagSpec)):
            first = tied_with(spec, path)[0]
            made[path] = made[first] if first in made else _leaf(node, number, ids.get(path, 0), unmade)
    return State(spec, Family(unmade), made)


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


def _spec(bits: Bits) -> ParamSpec:
    return ParamSpec(TensorSpec(bits.dtype, bits.shape, bits.data))


def fits(scheme: Scheme, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of a shape can be quantized: it has the packed axis, and is whole blocks (Q11, Q12, Q44)."""
    blocks = scheme.blocks or ()
    if len(blocks) > len(shape) or scheme.axis >= max(1, len(shape)):
        return False
    return all(length % extent == 0 for length, extent in zip(shape[len(shape) - len(blocks) :], blocks, strict=True))
