"""Strategies for training layered models: models over autodiff devices, what of them is frozen, and their losses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from . import layered_generators as layered
from .calls import applied, built
from .generators import pick
from .group_expressions import Paths
from .group_generators import chosen
from .layered import BATCH, DROP, ROWS, LayeredSpec, Placement, Signal, hardware, placement_of
from .layered_expected import course, values_of
from .layered_generators import rough, signal_around
from .operations import Freeze, Op, SetRequireGrad
from .placement_generators import split_placements
from .protocol import Adapter, Grammar, Handle
from .spec_tree import ConstantSpec, FlagSpec, Layout, ParamSpec, Printed, Value, leaves
from .training_operations import Cotangents

OPTIMIZERS: Final[Mapping[str, tuple[str, tuple[tuple[str, Any], ...]]]] = {
    "sgd": ("SGD", (("lr", 0.125), ("weight_decay", 0.125))),
    "momentum": ("SGD", (("lr", 0.125), ("momentum", 0.5), ("weight_decay", 0.125))),
    "nesterov": ("SGD", (("lr", 0.125), ("momentum", 0.5), ("nesterov", True))),
    "adam": ("Adam", (("lr", 0.125), ("weight_decay", 0.125))),
    "adamw": ("AdamW", (("lr", 0.125), ("weight_decay", 0.125))),
}
"""Kind and settings. With gradients of a norm of at most `LIMIT` no step moves a value by more than a quarter or so."""

KEEPING: Final = ("momentum", "nesterov", "adam", "adamw")
LIMIT: Final = 1.0

FIRST: Final = ("scale", "affine", "embed", "embed")
DROPPING: Final = (*layered.HIDDEN, "affine", DROP, DROP)
HIDDEN: Final = (*DROPPING, BATCH, BATCH)
LAST: Final = ("scale", "affine", "project", "project")
Steps: TypeAlias = tuple[tuple[str, ...], ...]
_STARTS: Final = st.integers(0, 22)
_WIDTHS: Final = st.integers(1, 4)
_MOST_HIDDEN: Final = 4
_BESIDE: Final = tuple(kind for kind in layered.BESIDE if kind != "empty")  # which has no statistics


def tracking(placement: Placement) -> Placement:
    """The placement on autodiff devices."""
    return placement_of(f"{hardware(device)}+autodiff" for device in placement.layers)


def on(device: str, signal: Signal) -> Signal:
    """A signal on the autodiff device."""
    return signal.on(f"{hardware(device)}+autodiff")


def cotangents_of(spec: LayeredSpec, signal: Signal, start: int, layout: Layout = "dense") -> Cotangents:
    """Cotangents of what a model makes of a signal."""
    made = course(spec, signal, values_of(spec)).output.values()
    return tuple(
        (path, replace(rough(spec.dtype, value.shape, start + 5 * place), layout=layout if value.size else "dense"))
        for place, (path, value) in enumerate(made.items())
        if value.dtype == spec.dtype
    )


@dataclass(frozen=True, repr=False)
class Training(Printed):
    """A model over autodiff devices, its input, the cotangents of its output, and a switch thrown at the start."""

    spec: LayeredSpec
    signal: Signal
    cotangents: Cotangents
    frozen: Op | None = None

    def started(self, adapter: Adapter, spec: LayeredSpec | None = None) -> Handle:
        """A build of the model, or of another spec in its place, after the switch."""
        module = built(adapter, self.spec if spec is None else spec)
        return applied(adapter, module, self.frozen) if self.frozen else module

    def alone(self, adapter: Adapter) -> Handle:
        """A build of it on one device, not wrapped."""
        return self.started(adapter, self.spec.built_by(self.spec.placement.all_on(self.home(adapter))))

    def home(self, adapter: Adapter) -> str:
        return f"{adapter.grammar.devices[0]}+autodiff"


def trained(
    draw: DrawFn, spec: LayeredSpec, signal: Signal, layouts: Sequence[Layout], keeps: str | None = None
) -> Training:
    """On autodiff devices, with cotangents that lie in some way, partly frozen in half of the draws.

    The value at `keeps` is not frozen.
    """
    extra = spec.extra and f"{hardware(spec.extra)}+autodiff"
    spec = replace(spec, placement=tracking(spec.placement), extra=extra)
    signal = signal.each(lambda value: replace(value, device=f"{value.hardware}+autodiff"))
    cotangents = cotangents_of(spec, signal, draw(_STARTS), pick(draw, layouts))
    return Training(spec, signal, cotangents, _frozen(draw, spec, keeps))


def _frozen(draw: DrawFn, spec: LayeredSpec, keeps: str | None) -> Op | None:
    """Some parameters switched off, or frozen with some flags."""
    held = {path: n for path, n in leaves(spec.tree).items() if isinstance(n, (ParamSpec, FlagSpec)) and path != keeps}
    kind = pick(draw, (None, SetRequireGrad, Freeze, None))
    if kind is None or not held:
        return None
    group = Paths(chosen(draw, list(held)))
    return SetRequireGrad(False, group) if kind is SetRequireGrad else Freeze(group)


def _perhaps_tied(draw: DrawFn, placement: Placement, steps: Steps) -> tuple[Placement, Steps]:
    """In a third of the draws, ends that are on one device and can be tied."""
    if not pick(draw, (False, False, True)):
        return placement, steps
    return replace(placement, output=placement.input), (("embed",), steps[1], ("project",))


@st.composite
def losses(
    draw: DrawFn,
    grammar: Grammar,
    placed: SearchStrategy[Placement],
    hidden: tuple[str, ...] = DROPPING,
    dtype: str | None = None,
) -> Training:
    """Any layers, inputs and layouts, as `layered_generators.cases` has them, and hidden layers of these steps."""
    width, steps = draw(_WIDTHS), ((*FIRST, *layered.FIRST), hidden, (*LAST, *layered.LAST))
    placement, steps = _perhaps_tied(draw, draw(placed), steps)
    spec = layered._model(draw, grammar, placement, width, steps, dtype)
    signal = signal_around(draw, grammar, layered._first_tensor(draw, grammar, spec, width), spec.dtype, width)
    return trained(draw, spec, signal, grammar.layouts)


@st.composite
def turned_losses(draw: DrawFn, grammar: Grammar) -> Training:
    """Split models whose input and cotangent lie in memory with their axes in the opposite order.

    Layers keep that order, and the sum that the gradient of a weight is feels it.
    """
    placement, width = draw(split_placements(grammar)), pick(draw, (3, 4))
    steps = (("scale",), ("scale", "norm", "identity"), ("identity", "scale"))
    spec = layered._model(draw, grammar, placement, width, steps)
    turned = ("transposed",) if "transposed" in grammar.layouts else ("dense",)
    first = rough(spec.dtype, (pick(draw, (5, 4, 3)), width), draw(_STARTS), pick(draw, grammar.devices))
    return trained(draw, spec, Signal(ConstantSpec(replace(first, layout=turned[0]))), turned)


@st.composite
def trainings(
    draw: DrawFn, grammar: Grammar, placed: SearchStrategy[Placement], hidden: tuple[str, ...] = HIDDEN
) -> Training:
    """Models whose first layer always trains, over a matrix or a row of ids; layers with state among the others."""
    placement, width = draw(placed), draw(_WIDTHS)
    placement = replace(placement, hidden=placement.hidden[:_MOST_HIDDEN])
    placement, steps = _perhaps_tied(draw, placement, (FIRST, hidden, LAST))
    spec = layered._model(draw, grammar, placement, width, steps)
    rows, start, device = pick(draw, (2, 3, 4, 1)), draw(_STARTS), pick(draw, grammar.devices)
    if spec.layers[0].step == "embed":
        ids = np.array([(start + 5 * place) % ROWS for place in range(rows)], np.int64)
        value = Value("int64", (rows,), ids.tobytes(), device)
    else:
        layout = pick(draw, grammar.layouts)
        value = replace(rough(spec.dtype, (rows, width), start, device), layout=layout)
    signal = signal_around(draw, grammar, value, spec.dtype, width, _BESIDE)
    return trained(draw, spec, signal, grammar.layouts, "stem.weight")
