"""The law of known symmetries (L119): changes of a model or its input after which the outputs are known.

Sums are taken in another order, or over other shapes, after a permutation, so
outputs are close; powers of two and layers that do nothing change no bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from . import layered_generators as layered
from .generators import pick
from .law import law
from .layered import ROWS, LayeredSpec, LayerSpec, Signal, placement_of
from .layered_calls import ran, wrapped
from .layered_expected import Array, close, course, values_of
from .layered_generators import HIDDEN, PASSING, Case, cases, rough, signal_around
from .placement_generators import placements
from .protocol import Adapter, Grammar
from .spec_tree import ConstantSpec, Node, ParamSpec, Printed, RunningSpec, Value

ROWWISE: Final = ("identity", "scale", "affine", "norm", "shift")
LINEAR: Final = ("identity", "scale", "prefix", "centre", "double")
_STARTS: Final = st.integers(0, 22)


@dataclass(frozen=True, repr=False)
class Rows(Printed):
    """A model in float64, an input of rows, and the path of these in it; `order` is of units or of rows."""

    case: Case
    path: str
    order: tuple[int, ...]

    def output(self, adapter: Adapter, signal: Signal) -> Array:
        """What comes of the rows."""
        return ran(adapter, wrapped(adapter, self.case.spec), signal).values()[self.path].numpy()

    def of(self, rows: Array) -> Signal:
        """The input with other rows."""
        values = self.case.signal.values()
        value = replace(values[self.path], shape=rows.shape, data=rows.tobytes(), layout="dense")
        return self.case.signal.with_values({**values, self.path: value})

    @property
    def rows(self) -> Array:
        return self.case.signal.values()[self.path].numpy()

    @property
    def peak(self) -> float:
        return course(self.case.spec, self.case.signal, values_of(self.case.spec)).peak


@st.composite
def rows_for(draw: DrawFn, grammar: Grammar, hidden: tuple[str, ...], of_units: bool) -> Rows:
    """Models whose first layer makes units of rows, by any placement, and an order of the units or of the rows."""
    placement, width, number = draw(placements(grammar)), pick(draw, (2, 3, 4)), pick(draw, (2, 3, 4, 6))
    steps = (("affine", "embed", "embed"), hidden, ("affine", "project"))
    spec = layered._model(draw, grammar, placement, width, steps, "float64")
    start, device = draw(_STARTS), pick(draw, grammar.devices)
    if spec.layers[0].step == "embed":
        ids = np.array([(start + 5 * place) % ROWS for place in range(number)], np.int64)
        first = Value("int64", (number,), ids.tobytes(), device)
    else:
        first = rough("float64", (number, width), start, device)
    signal = signal_around(draw, grammar, first, "float64", width, PASSING)
    path = next(path for path, value in signal.values().items() if value is first)
    order = draw(st.permutations(range(width if of_units else number)))
    return Rows(Case(spec, signal), path, tuple(order))


# Hidden units


def _turned(step: str, place: str, order: Sequence[int]) -> Callable[[str, Array], Array]:
    """What becomes of the values of a layer when the units before and behind it are in another order."""
    before = place != "first" and step == "affine"
    behind = place != "last" or step == "project"

    def turned(name: str, array: Array) -> Array:
        if step in ("scale", "prefix", "attend") or name not in ("weight", "bias", "state", "table"):
            return array
        array = array[list(order)] if before and name == "weight" else array
        return array[..., list(order)] if behind else array

    return turned


def with_units(spec: LayeredSpec, order: Sequence[int]) -> LayeredSpec:
    """The model with its hidden units in another order, in every layer that makes or takes them."""

    def each(layer: LayerSpec, place: str) -> LayerSpec:
        turned = _turned(layer.step, place, order)
        return replace(layer, fields=tuple((name, held(name, node, turned)) for name, node in layer.fields))

    def held(name: str, node: Node, turned: Callable[[str, Array], Array]) -> Node:
        if not isinstance(node, (ParamSpec, RunningSpec, ConstantSpec)):
            return node
        array = turned(name, node.value.numpy())
        return replace(node, value=replace(node.value, data=array.tobytes()))

    places = ("first", *("hidden",) * (len(spec.layers) - 2), "last")
    return replace(spec, layers=tuple(map(each, spec.layers, places)))


@law("L119", needs=("parallel",), rows=lambda a: rows_for(a.grammar, HIDDEN, of_units=True))
def test_hidden_units_may_be_in_any_order(adapter: Adapter, rows: Rows) -> None:
    """Permuted in all layers at once they give the same outputs, but for rounding."""
    spec, signal = rows.case.spec, rows.case.signal
    event(f"moved: {rows.order != tuple(sorted(rows.order))}; layers: {len(spec.layers)}")
    expected = ran(adapter, wrapped(adapter, spec), signal)

    found = ran(adapter, wrapped(adapter, with_units(spec, rows.order)), signal)

    assert close(found, expected, rows.peak)


# Rows of a batch


def _near(one: Array, other: Array, rows: Rows) -> bool:
    return one.shape == other.shape and bool(np.all(np.abs(one - other) <= 2.0**-30 * rows.peak))


@law("L119", needs=("parallel",), rows=lambda a: rows_for(a.grammar, ROWWISE, of_units=False))
def test_the_rows_of_a_batch_do_not_see_each_other(adapter: Adapter, rows: Rows) -> None:
    """In another order they give their outputs in that order; in two parts, the parts of the outputs."""
    order = list(rows.order)
    expected = rows.output(adapter, rows.case.signal)
    cut = order[0] % len(order)
    event(f"cut behind {cut} of {len(order)}")

    assert _near(rows.output(adapter, rows.of(rows.rows[order])), expected[order], rows)
    parts = [rows.output(adapter, rows.of(part)) for part in (rows.rows[:cut], rows.rows[cut:])]
    assert _near(np.concatenate(parts), expected, rows)


# Powers of two


@st.composite
def linear_cases(draw: DrawFn, grammar: Grammar) -> Case:
    """Models of linear layers, over any signal."""
    placement, width = draw(placements(grammar)), pick(draw, (1, 2, 3, 4))
    spec = layered._model(draw, grammar, placement, width, (LINEAR, LINEAR, (*LINEAR, "project", "project")))
    first = layered._first_tensor(draw, grammar, spec, width)
    return Case(spec, signal_around(draw, grammar, first, spec.dtype, width))


def times(signal: Signal, factor: float, dtype: str) -> Signal:
    """The signal, its tensors of a dtype times a number that is exact in it."""

    def each(value: Value) -> Value:
        if value.dtype != dtype:
            return value
        array: Any = value.numpy()
        return replace(value, data=(array * array.dtype.type(factor)).tobytes())

    return signal.each(each)


@law("L119", needs=("parallel",), case=lambda a: linear_cases(a.grammar), power=lambda a: st.integers(-6, 6))
def test_a_power_of_two_goes_through_linear_layers_as_it_is(adapter: Adapter, case: Case, power: int) -> None:
    """Bit for bit: nothing is rounded otherwise."""
    split = wrapped(adapter, case.spec)
    expected = times(ran(adapter, split, case.signal), 2.0**power, case.spec.dtype)

    assert ran(adapter, split, times(case.signal, 2.0**power, case.spec.dtype)) == expected


# Layers that do nothing


@law(
    "L119",
    needs=("parallel",),
    case=lambda a: cases(a.grammar),
    place=lambda a: st.integers(0, 6),
    device=lambda a: st.sampled_from(a.grammar.devices),
)
def test_a_layer_that_does_nothing_changes_no_bit(adapter: Adapter, case: Case, place: int, device: str) -> None:
    """Anywhere among the hidden ones, on any device."""
    spec = case.spec
    at = 1 + place % (len(spec.layers) - 1)
    devices = list(spec.placement.layers)
    longer = replace(
        spec,
        layers=(*spec.layers[:at], LayerSpec("identity"), *spec.layers[at:]),
        placement=placement_of((*devices[:at], device, *devices[at:])),
    )
    event(f"on another device: {device not in (devices[at - 1], devices[at])}")

    assert ran(adapter, wrapped(adapter, longer), case.signal) == ran(adapter, wrapped(adapter, spec), case.signal)
