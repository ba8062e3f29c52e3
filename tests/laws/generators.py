"""Strategies for spec trees: numbers, devices, leaves, trees. (`programs` has those for what is done with them.)

Nothing here filters: what may not occur is not generated, and what an
implementation cannot take is left out by its grammar. A tree is grown from a
list of placed leaves, each inserted along a short list of path segments, so
that deleting a list element deletes a leaf and shortening a segment list
flattens: minimal examples are flat modules of two leaves. How often what
occurs is tested in `test_generators`.

Numbers are bit patterns: hypothesis's own floats hardly make a NaN with
payload and no signalling one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import permutations, product
from math import prod
from typing import Any, Final, Literal, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from .protocol import Grammar
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
    leaves,
    lora,
    numpy_dtype,
)

T = TypeVar("T")

# Numbers

_FLOAT_BITS: Final = {"float64": (11, 52), "float32": (8, 23), "float16": (5, 10), "bfloat16": (8, 7)}


def special_patterns(dtype: str) -> tuple[bytes, ...]:
    """The bit patterns of a dtype that code gets wrong: signed zeros, subnormals, ends of ranges, NaNs."""
    width = numpy_dtype(dtype).itemsize
    if dtype == "bool":
        return b"\x00", b"\x01"
    if dtype not in _FLOAT_BITS:
        top = 1 << (8 * width - 1)
        return tuple(number.to_bytes(width, "little") for number in (0, 1, 2 * top - 1, top, top - 1))
    exponent, mantissa = _FLOAT_BITS[dtype]
    sign, infinity, one = (
        1 << (exponent + mantissa),
        ((1 << exponent) - 1) << mantissa,
        ((1 << exponent - 1) - 1) << mantissa,
    )
    quiet = 1 << (mantissa - 1)
    positive = (
        *(0, 1, (1 << mantissa) - 1, 1 << mantissa),  # zero, smallest and largest subnormal, smallest normal
        *(one, one + 1, one - 1, infinity - 1, infinity),  # one and its neighbours, the largest, infinity
        *(infinity | quiet | 5, infinity | 5),  # a quiet and a signalling NaN with a payload
    )
    return tuple((number | s).to_bytes(width, "little") for number in positive for s in (0, sign))


@cache
def shapes(grammar: Grammar, nonempty: bool = False) -> SearchStrategy[tuple[int, ...]]:
    """Shapes, half of them of rank 2; one in eight has an extent of zero. Shrinks to one element."""
    extents = range(1, grammar.max_extent + 1)
    by_rank = [list(product(extents, repeat=rank)) for rank in range(grammar.max_rank + 1)]
    full = [shape for shapes_of in by_rank[1:3] for shape in shapes_of * 2] + [()] * 6
    full += [shape for large in by_rank[3:] for shape in sorted(large, key=sum)[:: max(1, len(large) // 8)]]
    empty = [(0,), (0, 1), (1, 0), (2, 0), (0, 3), (1, 0, 2), (0, 0), (2, 1, 2, 0)] * 2
    return st.sampled_from(full + [shape for shape in empty if len(shape) <= grammar.max_rank and not nonempty])


@cache
def _patterns(dtype: str, count: int) -> SearchStrategy[bytes]:
    width = numpy_dtype(dtype).itemsize
    return st.binary(min_size=count * width, max_size=count * width)


@cache
def _special(dtype: str) -> SearchStrategy[bytes]:
    patterns = special_patterns(dtype)
    return st.sampled_from((b"",) * len(patterns) + patterns)


@cache
def _integers(most: int) -> SearchStrategy[int]:
    return st.integers(0, most)


@cache
def _one_of(choices: tuple[Any, ...]) -> SearchStrategy[Any]:
    return st.sampled_from(choices)


def contents(draw: DrawFn, dtype: str, size: int) -> bytes:
    """Bytes of `size` elements: up to four patterns, repeated with one added each time, and perhaps a special one.

    So elements differ by position even where a pattern shrinks to zero.
    """
    if not size:
        return b""
    width, period = numpy_dtype(dtype).itemsize, min(size, 4)
    patterns = draw(_patterns(dtype, period))
    made = bytearray((patterns * (size // period + 1))[: size * width])
    if dtype == "bool":
        return bytes((byte + place // period) % 2 for place, byte in enumerate(made))
    for place in range(size):
        made[place * width] = (made[place * width] + place // period) % 256
    if pattern := draw(_special(dtype)):
        at = draw(_integers(size - 1)) * width
        made[at : at + width] = pattern
    return bytes(made)


@cache
def devices(grammar: Grammar, min_size: int = 1) -> SearchStrategy[tuple[str, ...]]:
    """From `min_size` to four different devices, in any order; shrinks to the first of the grammar."""
    sizes = range(min_size, min(4, len(grammar.devices)) + 1)
    return st.sampled_from([order for size in sizes for order in permutations(grammar.devices, size)])


@dataclass(frozen=True)
class Pool:
    """The devices of one tree, and whether they carry the autodiff flag: never, always, or drawn for each tensor."""

    devices: tuple[str, ...]
    autodiff: Literal["plain", "autodiff", "mixed"]

    @cached_property
    def device(self) -> SearchStrategy[str]:
        """A device for a tensor."""
        flags = {"plain": ("",), "autodiff": ("+autodiff",), "mixed": ("", "+autodiff")}[self.autodiff]
        return st.sampled_from([device + flag for flag in flags for device in self.devices])


@cache
def pools(grammar: Grammar, min_devices: int = 1) -> SearchStrategy[Pool]:
    """Devices for a tree."""
    modes = ("plain", "autodiff", "mixed") if grammar.autodiff else ("plain",)
    return st.builds(Pool, devices(grammar, min_devices), st.sampled_from(modes))


def values(draw: DrawFn, grammar: Grammar, kind: str, pool: Pool, nonempty: bool = False) -> Value:
    """A tensor's content."""
    dtype = draw(_one_of(grammar.dtypes_of(kind)))
    shape = draw(shapes(grammar, nonempty))
    value = Value(dtype, shape, b"", draw(pool.device), draw(_one_of(grammar.layouts)))
    return replace(value, data=contents(draw, dtype, value.size))


# Leaves

CONFIGURATION: Final = (0, 3, True, 0.5, "relu", "", (1, 2), ("a", (0.5, False)))


_WISHES: Final = ((True, False), (True, True), (False, False), (False, True), (True, False), (True, True))


def param(draw: DrawFn, grammar: Grammar, kind: str, pool: Pool, *, lazy: bool = False, nonempty: bool = False) -> Node:
    """A parameter; half of them lazy, if the grammar has it; a third of them not to train."""
    wish, deferred = draw(_one_of(_WISHES))
    value = values(draw, grammar, kind, pool, nonempty)
    return ParamSpec(value, wish=wish or kind != "float", lazy=lazy or (deferred and grammar.lazy))


def adapted(draw: DrawFn, grammar: Grammar, pool: Pool) -> ParamSpec:
    """A matrix with the factors of LoRA, of rank 1 or 2, which train or not like any other parameter."""
    wish, lazy = draw(_one_of(_WISHES))
    (rows, columns), rank, dtype = draw(_one_of(_MATRICES)), draw(_one_of((1, 2))), draw(_dtypes(grammar))
    device = draw(pool.device)

    def value(*shape: int) -> Value:
        return Value(dtype, shape, contents(draw, dtype, prod(shape)), device)

    a, b = (ParamSpec(value(*shape), wish=draw(_one_of((True, False)))) for shape in ((rows, rank), (rank, columns)))
    scale = draw(_one_of((0.5, 2.0, -1.0)))
    return ParamSpec(value(rows, columns), wish, lazy and grammar.lazy, attached=lora(a, b, scale))


_MATRICES: Final = ((1, 1), (1, 2), (2, 3), (3, 2))


@cache
def _dtypes(grammar: Grammar) -> SearchStrategy[str]:
    return st.sampled_from(grammar.dtypes_of("float"))


@cache
def _leaf_kinds(grammar: Grammar) -> SearchStrategy[str]:
    absent = ["none"] if grammar.absent else []
    return st.sampled_from(["float", "float", *grammar.leaves, *absent])


def pick(draw: DrawFn, choices: Sequence[T]) -> T:
    """One of the choices; shrinks to the first."""
    return choices[draw(_integers(len(choices) - 1))]


def leaf_of(draw: DrawFn, grammar: Grammar, kind: str, pool: Pool) -> Node:
    """A leaf, plain tensor, None, empty container or configuration."""
    match kind:
        case "float" | "int" | "bool":
            return param(draw, grammar, kind, pool)
        case "adapted":
            return adapted(draw, grammar, pool)
        case "flag":
            return FlagSpec(draw(st.booleans()))
        case "running":
            return RunningSpec(values(draw, grammar, "float", pool))
        case "constant":
            return ConstantSpec(values(draw, grammar, draw(_one_of(("float", "int", "bool"))), pool))
        case "config":
            return ConfigSpec(draw(_one_of(CONFIGURATION)))
        case "skip":
            held = ConstantSpec(values(draw, grammar, "float", pool))
            return SkipSpec(pick(draw, (ConfigSpec(7), held, SequenceSpec("list", (held,)))))
        case "empty":
            empty: list[Node] = [StructSpec(())]
            empty += [SequenceSpec(kind, ()) for kind in ("list", "tuple", "array") if kind in grammar.containers]
            empty += [DictSpec(())] if "dict" in grammar.containers else []
            return pick(draw, empty)
    return OptionalSpec(None)


# Trees

NAMES: Final = ("a", "b", "weight", "a1", "bias")
KEYS: Final = (*NAMES, "0", "10", "class", "ключ", "to device")
LISTS: Final = ("list", "tuple", "array")
KINDS: Final = ("struct", "dict", *LISTS, "enum", "optional", "dict")
STEPS: Final = ("stay", "last", "last", "new", "gap", "gap", "name", "name", "name")


@dataclass(frozen=True)
class Segment:
    """One step towards the place of a leaf, and the kind of the node it makes if there is none."""

    step: str
    name: str
    kind: str


@dataclass
class Growing:
    """A node of a tree under construction. It takes its kind from its first child."""

    kind: str | None = None
    children: list[tuple[str, "Growing | Planted"]] = field(default_factory=list)


@dataclass(frozen=True)
class Planted:
    """A leaf in its place. `same` is the number of the object it holds; equal numbers are tied."""

    node: Node
    same: int | None = None


@cache
def segments(grammar: Grammar) -> SearchStrategy[Segment]:
    """One path segment; shrinks to "stay here". A new item makes a list where there is no node yet."""
    kinds = [kind for kind in KINDS if kind in grammar.containers] or ["struct"]
    lists = [kind for kind in kinds if kind in LISTS]
    steps = [step for step in STEPS if (lists or step in ("stay", "name")) and (grammar.absent or step != "gap")]
    return st.sampled_from(
        [
            Segment(step, name, kind)
            for step in steps
            for name in KEYS
            for kind in (lists if step in ("new", "gap") else kinds)
        ]
    )


@cache
def _routes(grammar: Grammar) -> SearchStrategy[list[Segment]]:
    """The way to a leaf: up to two segments, and the one that places it."""
    return st.lists(segments(grammar), min_size=1, max_size=3)


def _free(name: str, node: Growing) -> str:
    """The name, changed until nothing in the node has it: a field's begins with it then, a key's sorts before it."""
    taken = {other for other, _ in node.children}
    while name in taken:
        name = f"_{name}" if node.kind == "dict" else f"{name}_"
    return name


def _add(node: Growing, segment: Segment, child: Growing | Planted) -> None:
    """Put a child at the end of a node, under the segment's name, or the next index."""
    if node.kind is None:
        node.kind = segment.kind
    if node.kind in LISTS:
        node.children.append((str(len(node.children)), child))
    else:
        name = (
            segment.name
            if node.kind == "dict" or segment.name in NAMES
            else NAMES[KEYS.index(segment.name) % len(NAMES)]
        )
        node.children.append((_free(name, node), child))


def _descend(node: Growing, segment: Segment) -> Growing:
    """The node that a segment leads to from `node`, grown where it is missing."""
    below = [(name, child) for name, child in node.children if isinstance(child, Growing)]
    if segment.step == "stay":
        return node
    if segment.step == "last" and below:
        return below[-1][1]
    if segment.step == "name" and segment.name in dict(below):
        return dict(below)[segment.name]
    if segment.step == "gap":
        _add(node, segment, Planted(OptionalSpec(None)))
    grown = Growing()
    _add(node, segment, grown)
    return grown


def plant(root: Growing, path: Sequence[Segment], last: Segment, leaf: Planted) -> None:
    """Insert a leaf at the end of a path of segments."""
    node = root
    for segment in path:
        node = _descend(node, segment)
    if last.step == "gap":
        _add(node, last, Planted(OptionalSpec(None)))
    _add(node, last, leaf)


class Harvest:
    """Turns what has grown into a spec tree, and notes the paths of each object."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.paths: dict[tuple[int, str], list[str]] = {}

    def tree(self, root: Growing) -> TreeSpec:
        top = StructSpec(self.fields(root, ""), "Root")
        ties = tuple(tuple(paths) for paths in self.paths.values() if len(paths) > 1)
        return TreeSpec(top, ties)

    def fields(self, node: Growing, prefix: str) -> tuple[tuple[str, Node], ...]:
        children = node.children
        if not self.grammar.interleaved:
            children = sorted(children, key=lambda child: isinstance(child[1], Growing))
        return tuple((name, self.node(child, f"{prefix}{name}")) for name, child in children)

    def node(self, node: "Growing | Planted", path: str) -> Node:
        if isinstance(node, Planted):
            if node.same is not None:
                for below in _places_in(node.node):
                    self.paths.setdefault((node.same, below), []).append(f"{path}{below}")
            return node.node
        match node.kind:
            case "list" | "tuple" | "array" as kind:
                return SequenceSpec(kind, tuple(child for _, child in self.fields(node, f"{path}.")))
            case "dict":
                return DictSpec(self.fields(node, f"{path}."))
            case "enum":
                return EnumSpec("On", StructSpec(self.fields(node, f"{path}.On."), "Inner"))
            case "optional":
                return OptionalSpec(StructSpec(self.fields(node, f"{path}."), "Maybe"))
        return StructSpec(self.fields(node, f"{path}."))


def _places_in(node: Node) -> list[str]:
    """What is tied where this stands in two places: itself, and what is attached to it; as ends of paths."""
    if not isinstance(node, ParamSpec) or node.attached is None:
        return [""]
    name, held = node.attached
    return ["", *(f".{name}.{inner}" for inner in leaves(TreeSpec(held)))]


@st.composite
def trees(
    draw: DrawFn,
    grammar: Grammar,
    *,
    lazy: bool = False,
    tied: bool = False,
    min_devices: int = 1,
    holding: tuple[str, ...] = (),
    pool: Pool | None = None,
) -> TreeSpec:
    """Modules of two to seven leaves: a non-empty float parameter, a flag, and what else comes.

    Args:
        draw: given by hypothesis.
        grammar: what the implementation can take.
        lazy: the float parameter is lazy.
        tied: another place holds that float parameter too.
        min_devices: how many devices there are to choose from, at least; where it is more than one, a
            parameter each is on that many of them but the first.
        holding: kinds of leaf that must be there too, if the grammar has them.
        pool: the devices to choose from, where that is settled.
    """
    pool = pool or draw(pools(grammar, min_devices))
    pinned = [Pool((device,), pool.autodiff) for device in pool.devices[1:min_devices]]
    planted = [Planted(param(draw, grammar, "float", pool, lazy=lazy, nonempty=True), 0)]
    planted += [Planted(FlagSpec(draw(st.booleans())), 1)] if "flag" in grammar.leaves else []
    planted += [Planted(param(draw, grammar, "float", at), -1 - n) for n, at in enumerate(pinned)]
    held = [leaf_of(draw, grammar, kind, pool) for kind in holding if kind in grammar.leaves]
    planted += [Planted(node, -10 - n) for n, node in enumerate(held)]
    most = grammar.max_leaves - len(planted)
    for number in range(2, 2 + min(most, draw(_one_of((0, 1, 2, 3, 3, 4, 5, 5))))):
        again = draw(_integers(11)) - 8 if grammar.ties else 0
        if again > 0 or (tied and number == 2):
            planted.append(planted[again % len(planted) if number > 2 else 0])
        else:
            node = leaf_of(draw, grammar, draw(_leaf_kinds(grammar)), pool)
            tieable = isinstance(node, (ParamSpec, FlagSpec, RunningSpec, ConstantSpec))
            planted.append(Planted(node, number if tieable else None))
    if tied and sum(leaf.same == 0 for leaf in planted) == 1:
        planted.append(planted[0])
    first = draw(_integers(len(planted) - 1))
    root = Growing("struct")
    for leaf in (*planted[first:], *planted[:first]):
        *route, last = draw(_routes(grammar))
        plant(root, route, last, leaf)
    return Harvest(grammar).tree(root)
