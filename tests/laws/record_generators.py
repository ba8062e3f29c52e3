"""Strategies for records and loads: another build of a module, a real record plus a list of edits, options, names.

Edits are data, drawn for the spec tree whose record they change. One that no
longer finds its entry does nothing, so that deleting an edit is always valid.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, Final, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from .generators import CONFIGURATION, Pool, contents, pick, pools, special_patterns, trees
from .observations import Bits
from .operations import Entry, LoadOptions, Record
from .protocol import Adapter, Grammar
from .record_expected import recorded
from .spec_tree import (
    ConfigSpec,
    ConstantSpec,
    DictSpec,
    EnumSpec,
    FlagSpec,
    Node,
    OptionalSpec,
    ParamSpec,
    Printed,
    RunningSpec,
    SequenceSpec,
    SkipSpec,
    StructSpec,
    TreeSpec,
    Value,
    kind_of,
    leaves,
    tensors,
    tied_with,
)

OPTIONS: Final = tuple(
    LoadOptions(False, allow_partial, allow_unused, validate)
    for allow_partial, allow_unused, validate in product((False, True), (False, True), (True, False))
)
"""The strict options, and the seven others."""

_EITHER: Final = st.booleans()


# Ways to load


@dataclass(frozen=True, repr=False)
class Way(Printed):
    """How a record reaches a module: as it is, or through a file of a format, which may be one in memory."""

    format: str | None = None
    in_memory: bool = False


def ways(adapter: Adapter) -> SearchStrategy[Way]:
    """Every way there is, files on disk least often, since they wait for it; shrinks to a record as it is."""
    formats = [name.removeprefix("format.") for name in adapter.capabilities if name.startswith("format.")]
    files = [Way(name, in_memory) for name in formats for in_memory in (True, True, False)]
    return st.sampled_from([Way(), Way(), Way(), *files])


# Another build


def _kept(node: Node) -> Node | None:
    """Configuration of a reparameterization, which is the same in every build that takes its records (A28)."""
    return node if isinstance(node, ConfigSpec) else None


def _with_leaves(spec: TreeSpec, change: Callable[[Node, str], Node]) -> TreeSpec:
    """The tree with each leaf, plain tensor and piece of configuration changed; containers and skipped fields stay."""

    def of(node: Node, path: str) -> Node:
        match node:
            case StructSpec() | DictSpec():
                named = node.fields if isinstance(node, StructSpec) else node.items
                made = tuple((name, of(child, f"{path}.{name}" if path else name)) for name, child in named)
                return replace(node, fields=made) if isinstance(node, StructSpec) else DictSpec(made)
            case SequenceSpec(kind, items):
                return SequenceSpec(kind, tuple(of(child, f"{path}.{place}") for place, child in enumerate(items)))
            case EnumSpec(variant, held):
                return replace(node, node=of(held, f"{path}.{variant}"))
            case OptionalSpec(held):
                return node if held is None else OptionalSpec(of(held, path))
            case SkipSpec():
                return node
            case ParamSpec(attached=(name, held)):
                inside = f"{path}.{name}"
                made = ((at, _kept(child) or change(child, f"{inside}.{at}")) for at, child in held.fields)
                fields = tuple(made)
                return replace(change(node, path), attached=(name, replace(held, fields=fields)))
        return change(node, path)

    root = of(spec.root, "")
    assert isinstance(root, StructSpec)
    return TreeSpec(root, spec.ties)


def _other_value(draw: DrawFn, value: Value, pool: Pool, grammar: Grammar, same_dtype: bool) -> Value:
    dtype = value.dtype if same_dtype else pick(draw, (value.dtype, *grammar.dtypes_of(value.kind)))
    layout = pick(draw, grammar.layouts)
    return Value(dtype, value.shape, contents(draw, dtype, value.size), draw(pool.device), layout)


@st.composite
def other_builds(draw: DrawFn, spec: TreeSpec, grammar: Grammar, same_dtypes: bool = False) -> TreeSpec:
    """The same tree with other numbers, dtypes of the same kind, devices, flags, configuration, lazy or not."""
    pool = draw(pools(grammar, 1))
    made: dict[str, Node] = {}

    def other(node: Node) -> Node:
        match node:
            case ParamSpec(value):
                wish, lazy = draw(_EITHER) or value.kind != "float", grammar.lazy and draw(_EITHER)
                return ParamSpec(_other_value(draw, value, pool, grammar, same_dtypes), wish, lazy)
            case RunningSpec(value):
                return RunningSpec(_other_value(draw, value, pool, grammar, same_dtypes))
            case ConstantSpec(value):
                return ConstantSpec(_other_value(draw, value, pool, grammar, same_dtypes))
            case FlagSpec():
                return FlagSpec(draw(_EITHER))
            case ConfigSpec():
                return ConfigSpec(pick(draw, CONFIGURATION))
        return node

    def change(node: Node, path: str) -> Node:
        first = tied_with(spec, path)[0]
        if first not in made:
            made[first] = other(node)
        return made[first]

    return _with_leaves(spec, change)


@dataclass(frozen=True, repr=False)
class Builds(Printed):
    """Two builds of one module: the one that is recorded, and the one that takes the record."""

    source: TreeSpec
    target: TreeSpec


@st.composite
def builds(draw: DrawFn, grammar: Grammar, *, same_dtypes: bool = False, **of_trees: Any) -> Builds:
    """A tree, and another build of it."""
    target = draw(trees(grammar, **of_trees))
    return Builds(draw(other_builds(target, grammar, same_dtypes)), target)


def with_state(spec: TreeSpec) -> TreeSpec:
    """The tree with a running state among its fields, which few trees have."""
    value = Value("float32", (2,), b"\x00\x00\x80\x3f\x00\x00\x00\x40", next(iter(tensors(spec).values())).value.device)
    return replace(spec, root=replace(spec.root, fields=(("state", RunningSpec(value)), *spec.root.fields)))


# Edits of a record


@dataclass(frozen=True, repr=False)
class Drop(Printed):
    """Leave an entry out."""

    path: str


@dataclass(frozen=True, repr=False)
class Add(Printed):
    """Add an entry at the end, unless its path is there."""

    path: str
    bits: Bits
    id: int | None = None


@dataclass(frozen=True, repr=False)
class Move(Printed):
    """Put an entry under another path, unless that is there; it stays where it stands."""

    path: str
    to: str


@dataclass(frozen=True, repr=False)
class Become(Printed):
    """Give an entry another value: of another shape, another dtype, or with other numbers."""

    path: str
    bits: Bits


Edit: TypeAlias = Drop | Add | Move | Become


def edited(record: Record, edits: tuple[Edit, ...]) -> Record:
    """The record after the edits, first to last."""
    entries = {entry.path: entry for entry in record.entries}
    for edit in edits:
        match edit:
            case Add(path, bits, number):
                entries.setdefault(path, Entry(path, bits, number))
            case _ if edit.path not in entries:
                continue
            case Drop(path):
                del entries[path]
            case Move(path, to) if to not in entries:
                entries = {to if old == path else old: entry for old, entry in entries.items()}
                entries[to] = replace(entries[to], path=to)
            case Become(path, bits):
                entries[path] = replace(entries[path], bits=bits)
    return Record(tuple(entries.values()))


def near_shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shapes that a careless check takes for this one: of as many elements, or such as broadcast to it or from it."""
    size = prod(shape)
    found = [(1, *shape), (*shape, 1), shape[::-1], (size,), (1,), ()]
    for at, extent in enumerate(shape):
        before, behind = shape[:at], shape[at + 1 :]
        found += [(*before, *behind), *((*before, other, *behind) for other in (1, extent + 1, 0))]
    return [other for other in dict.fromkeys(found) if other != shape]


def filled(draw: DrawFn, dtype: str, shape: tuple[int, ...]) -> Bits:
    """A value by bit patterns."""
    return Bits(dtype, shape, contents(draw, dtype, prod(shape)))


def strange_paths(spec: TreeSpec) -> list[str]:
    """Paths that no entry can be for, close to those of the tree: below, above and beside them, flags and constants."""
    known = recorded(spec)
    others = [path for path in (*leaves(spec), *tensors(spec)) if path not in known]
    near = [name for path in known for name in (f"{path}.weight", f"{path}_", f"model.{path}", path.rpartition(".")[0])]
    return [path for path in dict.fromkeys(("extra", *others, *near)) if path and path not in known]


KINDS: Final = ("drop", "add", "rename", "reshape", "reshape", "retype", "retype", "refill")


def edit(draw: DrawFn, spec: TreeSpec, grammar: Grammar, kinds: tuple[str, ...] = KINDS) -> Edit:
    """One edit of one of some kinds."""
    known = recorded(spec)
    kind, path = pick(draw, kinds), pick(draw, list(known))
    value = known[path].value
    match kind:
        case "drop":
            return Drop(path)
        case "add":
            return Add(pick(draw, strange_paths(spec)), filled(draw, pick(draw, grammar.dtypes), value.shape))
        case "rename":
            return Move(path, pick(draw, [*strange_paths(spec), *known]))
        case "reshape":
            return Become(path, filled(draw, value.dtype, pick(draw, near_shapes(value.shape))))
        case "retype":
            return Become(path, filled(draw, pick(draw, [d for d in grammar.dtypes if d != value.dtype]), value.shape))
    return Become(path, filled(draw, value.dtype, value.shape))


@dataclass(frozen=True, repr=False)
class Change(Printed):
    """Two builds, and what is changed in the record of the one before the other takes it."""

    builds: Builds
    edits: tuple[Edit, ...]


@st.composite
def changes(draw: DrawFn, grammar: Grammar, kinds: tuple[str, ...] = KINDS, least: int = 0, **of_trees: Any) -> Change:
    """A record with up to three edits, in one case of five with none."""
    both = draw(builds(grammar, **of_trees))
    count = max(least, pick(draw, (1, 0, 1, 2, 3, 0, 1, 2, 3)))
    return Change(both, tuple(edit(draw, both.target, grammar, kinds) for _ in range(count)))


# Pairs of dtypes


@dataclass(frozen=True, repr=False)
class Pair(Printed):
    """An entry of one dtype for a parameter of another."""

    entry: Bits
    dtype: str


@st.composite
def pairs(draw: DrawFn, grammar: Grammar) -> Pair:
    """Two dtypes of any kinds, often of one kind, half of them floats; special bit patterns in every second entry."""
    dtype = pick(draw, (*grammar.dtypes_of("float"), *grammar.dtypes))
    other = pick(draw, (dtype, *grammar.dtypes_of(kind_of(dtype)), *grammar.dtypes))
    bits = filled(draw, other, pick(draw, ((3,), (2, 2), (), (3,), (0, 2))))
    return Pair(bits, dtype)


def all_patterns(dtype: str) -> Bits:
    """Every class of bit pattern of a dtype, one element each."""
    patterns = special_patterns(dtype)
    return Bits(dtype, (len(patterns),), b"".join(patterns))


# Names

_COMPONENTS: Final = st.text(st.characters(codec="utf-8", exclude_characters="."), min_size=1, max_size=4)
_WORDS: Final = st.sampled_from(("a", "b", "weight", "0", "10", "9", "ä", "文", "Z", "a b"))


@st.composite
def named_records(draw: DrawFn, grammar: Grammar) -> Record:
    """A record whose names are any texts, in any order, one of them perhaps of 200 components."""
    names = st.lists(_WORDS | _COMPONENTS, min_size=1, max_size=3).map(".".join)
    paths = draw(st.lists(names, max_size=5, unique=True))
    if draw(_EITHER):
        deep = ".".join(draw(_WORDS) for _ in range(3)) + ".a" * 197
        paths = [*paths, deep]
    entries: list[Entry] = []
    for path in paths:
        dtype = pick(draw, grammar.dtypes)
        bits = filled(draw, dtype, pick(draw, ((2,), (), (0,), (1, 3), (2, 0, 1), (65,))))
        entries.append(Entry(path, bits, draw(st.none() | st.integers(0, 2**64 - 1))))
    return Record(tuple(entries))
