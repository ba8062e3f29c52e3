"""A model of the Module system in plain Python, without the engine: the rules, applied to spec trees.

It must pass every law. So a law that fails for it is wrong, and an
implementation that fails a law differs from what can be read here in one
sitting. Lying variants of it are in `faults`.

A version of a module is a dict of leaves by path; versions share the leaves
that did not change, as objects. A value that does not exist yet lies in a cell
that all versions of its parameter share.
"""

import base64
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from . import expected
from . import model_attaching as attaching
from . import operations as op
from .group_expressions import Group, accepts, matched, patterns, resolved
from .model_gradients import gradients, stepped, uses_of
from .model_leaves import Cell, Leaf, RefusalError, Switch, Weight, sum_of
from .model_records import on_records, to_record
from .model_version import Version
from .observations import Bits, Crossing, FlagMeta, Meta, TransferLog, ValueMeta
from .protocol import Done, Grammar, Level, Refused
from .spec_tree import (
    LAYOUTS,
    ConstantSpec,
    FlagSpec,
    Kind,
    Node,
    ParamSpec,
    RunningSpec,
    Seen,
    TreeSpec,
    children,
    places,
    present,
    tied_with,
    walk,
)


class ModelAdapter:
    """The rules, run."""

    name: str = "model"
    version: str = "of the rules"
    grammar: Grammar = Grammar(layouts=LAYOUTS, reserved=("visit", "map", "fork"))
    capabilities: Mapping[str, Level] = dict.fromkeys(
        (
            *("visit", "map", "order", "ids", "lazy", "running", "threads", "devices", "transfer_log", "fork"),
            *("state.flags", "state.params", "groups", "records", "records.options", "records.rename"),
            *("records.mappers", "format.burnpack", "display", "persistent", "autodiff", "optimizers"),
            *("quantize", "lora", "reparam"),
        ),
        "native",
    )

    def __init__(self) -> None:
        self._crossings: dict[tuple[str, str], list[int]] = {}

    # Building

    def build(self, spec: TreeSpec) -> Version | Refused:
        try:
            self.check_names(spec.root, "")
        except RefusalError as error:
            return error.refused
        made: dict[str, Leaf] = {}
        cells: dict[str, Cell] = {}
        for path, node in places(spec).items():
            first = tied_with(spec, path)[0]
            if first not in made and isinstance(node, (ParamSpec, FlagSpec, RunningSpec, ConstantSpec)):
                made[first] = self.leaf(node)
            if first in made:
                made[path] = made[first]
            if isinstance(leaf := made.get(path), Weight) and isinstance(leaf.held, Cell):
                cells[path] = leaf.held
        return Version(spec, made, cells, {})

    def check_names(self, node: Node | None, path: str) -> None:
        """Refuse names that are empty, hold a dot, or belong to a method of every module (M10)."""
        for name, container, child in children(node):
            reserved = name in self.grammar.reserved and container.startswith(("Struct:", "Enum:"))
            if not name or "." in name or reserved:
                raise RefusalError("name", f"{name!r} below {path!r} cannot be part of a path")
            self.check_names(present(child), f"{path}.{name}")

    def leaf(self, node: ParamSpec | FlagSpec | RunningSpec | ConstantSpec) -> Leaf:
        number = random.SystemRandom().getrandbits(64)
        if isinstance(node, FlagSpec):
            return Switch(number, node.enabled, node.enabled)
        value = node.value
        trainable = isinstance(node, ParamSpec) and node.wish and value.kind == "float"
        role = "param" if isinstance(node, ParamSpec) else "running" if isinstance(node, RunningSpec) else "constant"
        tracking = "P" if not value.autodiff else "L" if trainable else "U"
        held = Cell(node) if isinstance(node, ParamSpec) and node.lazy else expected.bits(value)
        return Weight(role, number, value.kind, value.dtype, value.shape, value.hardware, trainable, tracking, held)

    # Observing

    def meta(self, target: Version) -> Meta:
        seen = tuple(_observed(e.path, target.leaves[e.path]) for e in walk(target.spec) if isinstance(e, Seen))
        constants = {
            path: (leaf.device, leaf.autodiff)
            for path, leaf in target.leaves.items()
            if isinstance(leaf, Weight) and leaf.role == "constant"
        }
        places_of: dict[int, list[str]] = {}
        for path, leaf in target.leaves.items():
            places_of.setdefault(id(leaf), []).append(path)
        ties = tuple(tuple(paths) for paths in places_of.values() if len(paths) > 1)
        return Meta(seen, expected.skeleton(target.spec.root, "", constants), ties)

    def bits(self, target: Version, path: str) -> Bits | Refused:
        leaf = target.leaves[path]
        if isinstance(leaf, Switch):
            raise TypeError(f"{path} is a flag")
        try:
            return leaf.bits()
        except RefusalError as error:
            return error.refused

    def runs(self, target: Version, path: str) -> int:
        return target.cells[path].runs

    def log(self) -> TransferLog:
        seen = tuple(Crossing(*way, copies, nbytes) for way, (copies, nbytes) in self._crossings.items())
        self._crossings.clear()
        return seen

    def format_id(self, number: int) -> str:
        return base64.b32hexencode(number.to_bytes(8, "little")).decode().rstrip("=").lower()

    def parse_id(self, text: str) -> int | Refused:
        try:
            data = base64.b32hexdecode(text + "=" * (-len(text) % 8), casefold=True)
        except ValueError as error:
            return Refused("record_format", str(error))
        canonical = base64.b32hexencode(data).decode().rstrip("=").lower()
        return int.from_bytes(data, "little") if canonical == text.lower() else Refused("record_format", text)

    # Operations

    def apply(self, target: Version, operation: op.Op) -> Done | Refused:
        try:
            return self.done(target, operation)
        except RefusalError as error:
            return error.refused

    def done(self, target: Version, operation: op.Op) -> Done:
        match operation:
            case op.Visit():
                return Done(target, tuple(walk(target.spec)))
            case op.Map(mappers, fail_at):
                return self.map(target, mappers, fail_at)
            case op.CountParams():
                return Done(target, sum(self.count(leaf) for leaf in target.leaves.values()))
            case op.CollectDevices(found):
                known = [leaf.device for leaf in target.leaves.values() if isinstance(leaf, Weight)]
                return Done(target, (*found, *(d for d in dict.fromkeys(known) if d not in found)))
            case op.Display():
                return Done(target, self.display(target))
            case op.Clone():
                return Done(target.each(lambda leaf: leaf))
            case op.Force(path):
                target.leaves[path].bits()  # pyright: ignore[reportAttributeAccessIssue]
                return Done(target)
            case op.Update(path, amount):
                self.update(target.leaves[path], amount)
                return Done(target)
            case op.Train() | op.Valid():
                return Done(target.each(lambda leaf: self.associated(leaf, isinstance(operation, op.Train))))
            case op.Fork(device) | op.ToDevice(device):
                hardware, cut = device.removesuffix("+autodiff"), isinstance(operation, op.Fork)
                return Done(target.each(lambda leaf: self.moved(leaf, hardware, cut)))
            case op.SetRequireGrad(value, group):
                return Done(target.each(lambda leaf: self.switch(leaf, value, flags=False), group))
            case op.NoGrad():
                return Done(target.each(lambda leaf: self.switch(leaf, False, flags=False)))
            case op.Freeze(group) | op.Unfreeze(group):
                on = isinstance(operation, op.Unfreeze)
                return Done(target.each(lambda leaf: self.switch(leaf, on, flags=True), group))
            case op.Backward(used, through):
                return self.backward(target, used, through)
            case op.Step(_, _, used, number):
                uses = uses_of(target.leaves, used)
                return Done(target.each(lambda leaf: stepped(leaf, uses, number)))
            case op.KeepGroup(name, group):
                target.kept[name] = self.group(target, group)
                return Done(target)
            case op.AskGroup(group, asked):
                meant = self.group(target, group)
                return Done(target, tuple(accepts(meant, *place) for place in asked))
            case op.PathsOfGroup(group):
                return Done(target, tuple(matched(self.group(target, group), target.ids)))
            case op.ToRecord(group):
                chosen = None if group is None else matched(group, target.ids, target.kept)
                return Done(target, to_record(target.leaves, chosen))
            case op.Quantize() | op.ApplyLora() | op.Materialize():
                return Done(attaching.changed(target, operation))
            case op.Effective(path):
                return Done(target, attaching.effective(target, path))
        leaves, output = on_records(target.leaves, operation)
        return Done(replace(target, leaves=leaves), output)

    def group(self, target: Version, group: Group) -> Group:
        """A group made from a version (M83)."""
        for pattern in patterns(group):
            try:
                re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                raise RefusalError("group", f"{pattern!r}: {error}") from error
        return resolved(group, target.ids, target.kept)

    def update(self, leaf: Leaf, amount: int) -> None:
        """The one change that a module undergoes: a running state takes another value (M93)."""
        object.__setattr__(leaf, "held", sum_of(leaf.bits(), amount))  # pyright: ignore[reportAttributeAccessIssue]

    def count(self, leaf: Leaf) -> int:
        if isinstance(leaf, Switch) or leaf.role == "constant" or leaf.kind != "float":
            return 0
        return prod(leaf.shape)

    def display(self, target: Version) -> str:
        shown = (
            f"{path}: {'flag' if isinstance(leaf, Switch) else (leaf.dtype, leaf.shape)}"
            for path, leaf in target.leaves.items()
        )
        return "\n".join(shown)

    def associated(self, leaf: Leaf, train: bool) -> Leaf:
        if isinstance(leaf, Switch):
            return replace(leaf, enabled=leaf.configured and train)
        if train and leaf.trainable and leaf.tracking == "N":
            raise RefusalError("autodiff", "a recorded operation made the value; use fork")
        return leaf.tracked("P" if not train else "L" if leaf.trainable else "U")

    def moved(self, leaf: Leaf, device: str, cut: bool) -> Leaf:
        if isinstance(leaf, Switch):
            return leaf
        if leaf.lazy:
            return replace(leaf, device=device, node=object())
        if device != leaf.device:
            self.cross(leaf, device)
        there = replace(leaf, device=device)
        if cut:
            return replace(there, tracking="U" if leaf.tracking == "N" else leaf.tracking, node=object())
        if device == leaf.device or leaf.tracking not in ("L", "N"):
            return there
        return there.tracked("N" if "autodiff" in self.capabilities else "U")

    def cross(self, leaf: Weight, device: str) -> None:
        count = self._crossings.setdefault((leaf.device, device), [0, 0])
        count[0] += 1
        count[1] += leaf.nbytes

    def switch(self, leaf: Leaf, on: bool, flags: bool) -> Leaf:
        """The leaf on or off; the same object where that changes nothing, so that ties stay (L11, D8)."""
        if isinstance(leaf, Switch):
            changes = flags and (leaf.enabled, leaf.configured) != (on, on)
            return replace(leaf, enabled=on, configured=on) if changes else leaf
        if leaf.role != "param" or leaf.kind != "float":
            return leaf
        if on and leaf.tracking == "N":
            raise RefusalError("autodiff", "a recorded operation made the value; use fork")
        tracking = "P" if not leaf.autodiff else "L" if on and not leaf.quantized else "U"
        changes = (leaf.trainable, leaf.tracking) != (on, tracking)
        return replace(leaf.tracked(tracking), trainable=on) if changes else leaf

    def backward(self, target: Version, used: Sequence[str], through: Sequence[op.Op]) -> Done:
        versions = [target]
        for step in through:
            versions.append(self.done(versions[-1], step).handle)
        uses = uses_of(versions[-1].leaves, used)
        return Done(target, tuple(gradients({path: one.leaves[path] for path in one.ids}, uses) for one in versions))

    # Mappers

    def map(self, target: Version, mappers: tuple[op.Mapper, ...], fail_at: int | None) -> Done:
        shown: list[list[tuple[str, Kind, int]]] = [[] for _ in mappers]
        states: dict[tuple[int, int], tuple[Leaf, Leaf]] = {}
        changed: dict[str, Leaf] = {}
        events = walk(target.spec)
        for call, event in enumerate(event for event in events if isinstance(event, Seen)):
            if call == fail_at:
                raise RefusalError("hook", f"call {call}")
            leaf = mapped = target.leaves[event.path]
            for mapper, seen in zip(mappers, shown, strict=True):
                seen.append((event.path, leaf.kind, mapped.id))
                for edit in mapper:
                    mapped = self.edited(edit, event.path, mapped, call)
            if isinstance(leaf, Weight) and leaf.role == "running" and isinstance(mapped, Weight):
                own = replace(mapped, id=leaf.id)
                mapped = states.setdefault((id(leaf), id(mapped)), (mapped, own))[1]
            changed[event.path] = mapped
        leaves = {path: changed.get(path, leaf) for path, leaf in target.leaves.items()}
        return Done(replace(target, leaves=leaves), (tuple(events), tuple(map(tuple, shown))))

    def edited(self, edit: op.Edit, path: str, leaf: Leaf, call: int) -> Leaf:
        if isinstance(edit, op.Number):
            return replace(leaf, id=(edit.start + call) % 2**64)
        if edit.path != path:
            return leaf
        match edit:
            case op.SetTrainable(_, value):
                return self.switch(leaf, value, flags=False)
            case op.AddConstant(_, amount) if isinstance(leaf, Weight):
                return leaf.with_bits(sum_of(leaf.bits(), amount))
            case op.ReplaceId(_, number):
                return replace(leaf, id=number)
            case op.SetFlag(_, value) if isinstance(leaf, Switch):
                return replace(leaf, enabled=value)
        raise TypeError(f"{edit!r} does not apply to {path}")


def _observed(path: str, leaf: Leaf) -> ValueMeta | FlagMeta:
    if isinstance(leaf, Switch):
        return FlagMeta(path, leaf.id, leaf.enabled, leaf.configured)
    return ValueMeta(
        path=path,
        kind=leaf.kind,
        id=leaf.id,
        shape=leaf.shape if leaf.lazy else leaf.bits().shape,
        dtype=leaf.dtype,
        device=leaf.device,
        lazy=leaf.lazy,
        autodiff=leaf.autodiff,
        trainable=leaf.trainable,
        requires_grad=None if leaf.lazy else leaf.tracking == "L",
    )
