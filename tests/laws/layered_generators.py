"""Strategies for layered models: layers, signals, sequences.

Layers are drawn from a table of what they do and what they hold besides. The
numbers in them and in signals are sevenths, whose sums depend on the order in
which they are taken, so that a copy that loses the order of memory shows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, pairwise
from typing import Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from .generators import contents, pick
from .layered import BATCH, CAUSAL, DROP, ROWS, LayeredSpec, LayerSpec, Placement, Signal, hardware, nodes
from .placement_generators import placements, split_placements
from .protocol import Grammar
from .spec_tree import (
    ConfigSpec,
    ConstantSpec,
    DictSpec,
    FlagSpec,
    Node,
    OptionalSpec,
    ParamSpec,
    Printed,
    RunningSpec,
    SequenceSpec,
    StructSpec,
    Value,
    lora,
    numpy_dtype,
)

_STARTS: Final = st.integers(0, 22)
_WIDTHS: Final = st.integers(1, 4)
_ROWS: Final = st.integers(1, 3)
_EITHER: Final = st.booleans()

# Numbers


def rough(dtype: str, shape: tuple[int, ...], start: int, device: str = "cpu:0") -> Value:
    """Sevenths between -11/7 and 11/7: neighbours differ, and `start` decides where they begin."""
    size = int(np.prod(shape, dtype=int))
    numbers = [((start + 7 * place) % 23 - 11) / 7 for place in range(size)]
    return Value(dtype, shape, np.array(numbers, numpy_dtype(dtype)).tobytes(), device)


# Layers

HELD: Final = ("nothing", "nothing", "lazy", "state", "table", "count", "mask", "unused")
"""What a layer holds besides what its step needs, or ``lazy``: that is lazy."""

FIRST: Final = ("scale", "identity", "affine", "double", "embed", "embed")
HIDDEN: Final = ("scale", "identity", "affine", "norm", "shift", "prefix", "centre", "double", "position", "attend")
LAST: Final = ("scale", "identity", "affine", "centre", "project", "project")
MOST_DOUBLED: Final = 2


def _needed(step: str, width: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of what a step needs."""
    match step:
        case "scale" | "prefix" | "attend":
            return {"weight": ()}
        case "affine":
            return {"weight": (width, width), "bias": (width,)}
        case "norm":
            return {"weight": (width,)}
        case "shift":
            return {"state": (width,), "table": (width,)}
        case "position" | "embed" | "project":
            return {"weight": (ROWS, width)}
    return {}


def _besides(held: str, dtype: str, starts: Iterator[int]) -> tuple[list[tuple[str, Node]], list[tuple[str, Node]]]:
    """Fields before and behind those that a step needs."""
    value = rough(dtype, (2,), next(starts))
    match held:
        case "state":
            return [], [("seen", RunningSpec(value))]
        case "table":
            return [("fixed", ConstantSpec(value))], []
        case "count":
            return [], [("count", ParamSpec(Value("int64", (1,), b"\x03" + bytes(7)))), ("on", FlagSpec(True))]
        case "mask":
            return [("mask", ParamSpec(Value("bool", (2,), b"\x01\x00")))], []
        case "unused":
            return [("unused", ParamSpec(value, lazy=True))], []
    return [], []


def layer(step: str, held: str, width: int, dtype: str, starts: Iterator[int]) -> LayerSpec:
    """A layer."""
    kinds = {"state": RunningSpec, "table": ConstantSpec}
    needed: list[tuple[str, Node]] = []
    for name, shape in _needed(step, width).items():
        value = rough(dtype, shape, next(starts))
        other = kinds.get(name)
        needed.append((name, other(value) if other else ParamSpec(value, lazy=held == "lazy")))
    before, behind = _besides(held, dtype, starts)
    if step == DROP:
        settings = (("prob", ConfigSpec(0.5)), ("training", FlagSpec(True)))
        needed.append(("dropout", StructSpec(settings, "Dropout")))
    if step == BATCH:
        needed.append(("norm", StructSpec(_batch_norm(width, dtype, starts), "BatchNorm")))
    return LayerSpec(step, (*before, *needed, *behind))


def _batch_norm(width: int, dtype: str, starts: Iterator[int]) -> tuple[tuple[str, Node], ...]:
    gamma, beta, mean, other = (rough(dtype, (width,), next(starts)) for _ in range(4))
    var = replace(other, data=(np.abs(other.numpy()) + other.numpy().dtype.type(0.25)).tobytes())
    return (
        ("gamma", ParamSpec(gamma)),
        ("beta", ParamSpec(beta)),
        ("training", FlagSpec(True)),
        ("running_mean", RunningSpec(mean)),
        ("running_var", RunningSpec(var)),
        ("momentum", ConfigSpec(0.5)),
        ("epsilon", ConfigSpec(0.5)),
    )


@cache
def _choices(grammar: Grammar, steps: tuple[str, ...], held: tuple[str, ...]) -> SearchStrategy[tuple[str, str]]:
    """Step and what else is held, as far as the grammar has it; shrinks to the first step, with nothing more."""
    kinds = {"state": "running", "table": "constant", "count": "int", "mask": "bool"}
    has = [one for one in held if kinds.get(one, "int") in (*grammar.leaves, "int")]
    has = [one for one in has if grammar.lazy or one not in ("lazy", "unused")]
    can = [step for step in steps if step != "shift" or {"running", "constant"} <= {*grammar.leaves}]
    return st.sampled_from([(step, one) for one in has for step in can])


def _few_doubled(steps: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each doubling beyond the first ones scales instead, so that signals stay small."""
    doubled = count()
    return [("scale", held) if s == "double" and next(doubled) >= MOST_DOUBLED else (s, held) for s, held in steps]


def _model(
    draw: DrawFn,
    grammar: Grammar,
    placement: Placement,
    width: int,
    steps: tuple[tuple[str, ...], ...] = (FIRST, HIDDEN, LAST),
    dtype: str | None = None,
) -> LayeredSpec:
    """A model whose first, hidden and last layers are chosen from those steps."""
    first, hidden, last = (_choices(grammar, choice, HELD) for choice in steps)
    dtype = dtype or pick(draw, [name for name in ("float32", "float64") if name in grammar.dtypes])
    starts = count(draw(_STARTS), 5)
    chosen = [draw(first), *(draw(hidden) for _ in placement.hidden), draw(last)]
    layers = [layer(step, held, width, dtype, starts) for step, held in _few_doubled(chosen)]
    together = hardware(placement.input) == hardware(placement.output)
    ends = (chosen[0][0], chosen[-1][0])
    tied = grammar.ties and together and ends == ("embed", "project") and draw(_EITHER)
    if tied:
        weight = dict(layers[0].fields)["weight"]
        fields = tuple((name, weight if name == "weight" else node) for name, node in layers[-1].fields)
        layers[-1] = replace(layers[-1], fields=fields)
    containers = [kind for kind in ("list", "tuple", "dict") if kind in grammar.containers]
    extra = pick(draw, (None, None, *grammar.devices[:2]))
    return LayeredSpec(tuple(layers), placement, dtype, pick(draw, containers), draw(_EITHER), tied, extra)


def with_lazy(spec: LayeredSpec, fails: int) -> LayeredSpec:
    """The model, the initialisers of whose lazy parameters raise in their first runs."""

    def failing(node: Node) -> Node:
        return replace(node, fails=fails) if isinstance(node, ParamSpec) and node.lazy else node

    return _each_node(spec, failing)


def without_lazy(spec: LayeredSpec) -> LayeredSpec:
    """The model, all of whose parameters have values."""
    return _each_node(spec, lambda node: replace(node, lazy=False) if isinstance(node, ParamSpec) else node)


def with_adapters(spec: LayeredSpec) -> LayeredSpec:
    """The model with factors of zeros at each matrix of its layers; a tied one, which has none, as it is."""

    def adapted(node: Node) -> Node:
        if not isinstance(node, ParamSpec) or node.value.kind != "float" or len(node.value.shape) != 2:
            return node
        value = node.value
        width = numpy_dtype(value.dtype).itemsize
        shapes = (value.shape[0], 1), (1, value.shape[1])
        a, b = (ParamSpec(replace(value, shape=shape, data=bytes(width * max(shape)))) for shape in shapes)
        return replace(node, attached=lora(a, b, 1.0))

    return spec if spec.tied else _each_node(spec, adapted)


def with_other_values(spec: LayeredSpec) -> LayeredSpec:
    """The model with other values of all that a record holds."""

    def other(node: Node) -> Node:
        recorded = isinstance(node, (ParamSpec, RunningSpec))
        return replace(node, value=replace(node.value, data=node.value.run(1))) if recorded else node

    return _each_node(spec, other)


def _each_node(spec: LayeredSpec, change: Callable[[Node], Node]) -> LayeredSpec:
    def each(node: Node) -> Node:
        return replace(node, fields=fields(node)) if isinstance(node, StructSpec) else change(node)

    def fields(one: LayerSpec | StructSpec) -> tuple[tuple[str, Node], ...]:
        return tuple((name, each(node)) for name, node in one.fields)

    return replace(spec, layers=tuple(replace(one, fields=fields(one)) for one in spec.layers))


@st.composite
def models(draw: DrawFn, grammar: Grammar, placed: SearchStrategy[Placement] | None = None) -> LayeredSpec:
    """Models of zero to six hidden layers, by placements of the grammar or by those given."""
    placement = draw(placements(grammar) if placed is None else placed)
    return _model(draw, grammar, placement, draw(_WIDTHS))


# Signals

BESIDE: Final = ("nothing", "again", "number", "bits", "mask", "integers", "empty", "other", "none", "setting")
"""What can stand in a signal beside its first tensor."""

PASSING: Final = ("nothing", "again", "bits", "mask", "integers", "none", "setting")
"""Those of it that no step changes, or that are the first tensor."""


def _beside(draw: DrawFn, grammar: Grammar, kind: str, dtype: str, width: int) -> Node | None:
    """None for the first tensor once more."""
    device = pick(draw, grammar.devices)
    match kind:
        case "number":
            return ConstantSpec(rough(dtype, (), draw(_STARTS), device))
        case "other":
            layout = pick(draw, grammar.layouts)
            return ConstantSpec(replace(rough(dtype, (3, width), draw(_STARTS), device), layout=layout))
        case "empty":
            return ConstantSpec(Value(dtype, pick(draw, ((0, width), (2, 0), (0,))), b"", device))
        case "bits" | "mask" | "integers":
            names = {"bits": ("float16", "bfloat16"), "mask": ("bool",), "integers": ("int32", "uint8")}[kind]
            name = pick(draw, [name for name in names if name in grammar.dtypes] or ["int64"])
            shape = pick(draw, ((3,), (2, 2), ()))
            return ConstantSpec(Value(name, shape, contents(draw, name, int(np.prod(shape, dtype=int))), device))
        case "setting":
            return ConfigSpec(pick(draw, (3, "causal", 0.5, True)))
        case "none":
            return OptionalSpec(None)
    return None


def _contained(kind: str, items: Sequence[Node]) -> Node:
    match kind:
        case "dict":
            return DictSpec(tuple((f"k{9 - place}", item) for place, item in enumerate(items)))
        case "struct":
            return StructSpec(tuple((f"f{place}", item) for place, item in enumerate(items)), "Carried")
    return SequenceSpec(kind, tuple(items))  # pyright: ignore[reportArgumentType]


@cache
def _some(kinds: tuple[str, ...]) -> SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(kinds), max_size=3)


def signal_around(
    draw: DrawFn, grammar: Grammar, first: Value, dtype: str, width: int, beside: tuple[str, ...] = BESIDE
) -> Signal:
    """A tree that holds a tensor, and up to three other things, some of them one level deeper."""
    kinds = [kind for kind in ("tuple", "dict", "list", "struct") if kind in grammar.containers]
    drawn = [kind for kind in draw(_some(beside)) if kind != "nothing"]
    node = ConstantSpec(first)
    if not drawn or not kinds:
        return Signal(node)
    items: list[Node] = [node, *(_beside(draw, grammar, kind, dtype, width) or node for kind in drawn)]
    deeper = pick(draw, (0, 0, 1, 2))
    if 0 < deeper < len(items):
        items = [*items[:deeper], _contained(pick(draw, kinds), items[deeper:])]
    root = _contained(pick(draw, kinds), items)
    again = tuple(path for path, one in nodes(root) if one is node)
    return Signal(root, (again,) if len(again) > 1 else ())


_SHAPES: Final = ("matrix", "matrix", "matrix", "row", "batch", "none of it", "number")


def _first_tensor(draw: DrawFn, grammar: Grammar, spec: LayeredSpec, width: int) -> Value:
    """Of the model's dtype, or ids where the input layer embeds them; on any device, lying in any way."""
    rows, start = draw(_ROWS), draw(_STARTS)
    kind, device = pick(draw, _SHAPES), pick(draw, grammar.devices)
    if spec.layers[0].step == "embed":
        shape = {"batch": (2, rows), "none of it": (0,), "number": ()}.get(kind, (rows,))
        ids = np.array([(start + 5 * place) % ROWS for place in range(int(np.prod(shape, dtype=int)))], np.int64)
        value = Value("int64", shape, ids.tobytes(), device)
    else:
        shapes = {"row": (width,), "batch": (2, rows, width), "none of it": (0, width), "number": ()}
        value = rough(spec.dtype, shapes.get(kind, (rows, width)), start, device)
    return replace(value, layout=pick(draw, grammar.layouts) if value.size else "dense")


@dataclass(frozen=True, repr=False)
class Case(Printed):
    """A model and an input for it."""

    spec: LayeredSpec
    signal: Signal


@st.composite
def cases(
    draw: DrawFn, grammar: Grammar, placed: SearchStrategy[Placement] | None = None, dtype: str | None = None
) -> Case:
    """Models with inputs: any tree of tensors, None and configuration, on any devices."""
    placement, width = draw(placements(grammar) if placed is None else placed), draw(_WIDTHS)
    spec = _model(draw, grammar, placement, width, dtype=dtype)
    first = _first_tensor(draw, grammar, spec, width)
    return Case(spec, signal_around(draw, grammar, first, spec.dtype, width))


_KEEPING_ORDER: Final = ("scale", "identity")
_FEELING_ORDER: Final = ("centre", "norm", "affine", "scale", "prefix")


@st.composite
def turned_cases(draw: DrawFn, grammar: Grammar) -> Case:
    """Split models over an input whose axes lie in memory in the opposite order, and sums that feel it."""
    placement, width = draw(split_placements(grammar)), pick(draw, (3, 4))
    spec = _model(draw, grammar, placement, width, (_KEEPING_ORDER, _FEELING_ORDER, ("centre", "affine")))
    turned = [layout for layout in ("transposed", "strided") if layout in grammar.layouts]
    first = rough(spec.dtype, (pick(draw, (5, 4, 3)), width), draw(_STARTS), pick(draw, grammar.devices))
    return Case(spec, Signal(ConstantSpec(replace(first, layout=pick(draw, turned or ["dense"])))))


_DROPPING: Final = (*HIDDEN, *(DROP,) * len(HIDDEN))
_SEEDS: Final = st.integers(0, 2**64 - 1)


@st.composite
def dropping_cases(draw: DrawFn, grammar: Grammar, placed: SearchStrategy[Placement]) -> Case:
    """Models in which a layer or more leaves elements out, over autodiff inputs, with seeds."""
    placement, width = draw(placed), draw(_WIDTHS)
    spec = _model(draw, grammar, placement, width, (("scale", DROP, DROP), _DROPPING, ("centre", DROP, DROP)))
    if all(one.step != DROP for one in spec.layers):
        spec = replace(spec, layers=(*spec.layers[:-1], layer(DROP, "nothing", width, spec.dtype, count())))
    first = _first_tensor(draw, grammar, spec, width)
    signal = signal_around(draw, grammar, first, spec.dtype, width)
    on = signal.each(lambda value: replace(value, device=f"{value.hardware}+autodiff"))
    return Case(replace(spec, seed=draw(_SEEDS)), on)


@st.composite
def bare_dropping_cases(draw: DrawFn, grammar: Grammar) -> Case:
    """Models that do nothing but leave elements out, in at least one layer, of so many that no two draws are alike."""
    placement = draw(placements(grammar))
    spec = _model(draw, grammar, placement, 1, ((DROP,), ("identity", DROP), ("identity", DROP)), "float32")
    ones = Value("float32", (8, 64), np.ones((8, 64), "f4").tobytes(), f"{pick(draw, grammar.devices)}+autodiff")
    return Case(replace(spec, seed=draw(_SEEDS)), Signal(ConstantSpec(ones)))


# Sequences


@dataclass(frozen=True, repr=False)
class Decoding(Printed):
    """A model of autoregressive layers, a sequence, and the lengths of the pieces that it is run in.

    `path` is where the signal holds the tensor whose axis 0 are the positions.
    """

    spec: LayeredSpec
    whole: Signal
    path: str
    lengths: tuple[int, ...]

    def piece(self, start: int, stop: int) -> Signal:
        """The positions from `start` on, before `stop`, with all that stands beside them."""
        values = self.whole.values()
        one = values[self.path]
        rows = one.numpy()[start:stop]
        return self.whole.with_values({**values, self.path: replace(one, shape=rows.shape, data=rows.tobytes())})

    def pieces(self) -> list[Signal]:
        """The sequence in pieces."""
        ends = np.cumsum((0, *self.lengths)).tolist()
        return [self.piece(start, stop) for start, stop in pairwise(ends)]


POSITIONS: Final = (2, 3, 4, 5, 6, 7, 8, 1)
DECODING_FIRST: Final = ("scale", "identity", "affine", "embed", "embed")
DECODING_LAST: Final = ("scale", "identity", "affine", "project")


def _positions(spec: LayeredSpec, number: int, width: int, start: int, device: str) -> Value:
    """At each position and channel another value: position + channel / 8 (laws, section l); or ids."""
    if spec.layers[0].step == "embed":
        return Value(
            "int64", (number,), np.array([(start + 5 * n) % ROWS for n in range(number)], np.int64).tobytes(), device
        )
    rows = np.arange(number)[:, None] + np.arange(width) / 8 + start / 23
    return Value(spec.dtype, (number, width), rows.astype(spec.dtype).tobytes(), device)


@st.composite
def decodings(
    draw: DrawFn, grammar: Grammar, placed: SearchStrategy[Placement] | None = None, dtype: str | None = None
) -> Decoding:
    """Sequences of one to eight positions, and pieces of them, some of no positions; shrinks to [n - 1, 1]."""
    placement, width = draw(placements(grammar) if placed is None else placed), draw(_WIDTHS)
    spec = _model(draw, grammar, placement, width, (DECODING_FIRST, CAUSAL, DECODING_LAST), dtype)
    number, device = pick(draw, POSITIONS), pick(draw, grammar.devices)
    first = _positions(spec, number, width, draw(_STARTS), device)
    signal = signal_around(draw, grammar, first, spec.dtype, width, PASSING)
    path = next(path for path, value in signal.values().items() if value is first)
    cuts = sorted(draw(st.lists(st.integers(0, number), max_size=4)) or [number - 1])
    ends = [0, *cuts, number]
    return Decoding(spec, signal, path, tuple(stop - start for start, stop in pairwise(ends)))
