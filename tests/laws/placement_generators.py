"""Strategies for placements, and for edits of them. Placements are drawn as data, without the classes under test."""

from collections.abc import Sequence
from functools import cache
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from .generators import devices, pick
from .layered import Placement, hardware, placement_of
from .protocol import Grammar

MOST_HIDDEN: Final = 6
_PLACES: Final = st.lists(st.integers(0, 3), min_size=2, max_size=MOST_HIDDEN + 2)
_STAGES: Final = st.lists(
    st.sampled_from([(n, layers) for layers in range(4) for n in range(4)]), min_size=1, max_size=5
)
_KINDS: Final = st.sampled_from(("stages", "free", "split"))


def _at(order: Sequence[str], places: Sequence[int]) -> Placement:
    return placement_of(order[place % len(order)] for place in places)


def stages_over(draw: DrawFn, order: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """One to five stages of no layers to three, at most six in all; neighbours may be on one device."""
    left, made = MOST_HIDDEN, []
    for place, layers in draw(_STAGES):
        made.append((order[place % len(order)], min(layers, left)))
        left -= made[-1][1]
    return tuple(made)


def of_stages(stages: Sequence[tuple[str, int]]) -> Placement:
    """Each device as often as its stage says, the ends where the first and the last stage are (P14)."""
    hidden = tuple(device for device, layers in stages for _ in range(layers))
    return Placement(stages[0][0], hidden, stages[-1][0])


@st.composite
def placements(draw: DrawFn, grammar: Grammar) -> Placement:
    """Over one to four devices, that may come back; up to six hidden layers; shrinks to one device."""
    kind = draw(_KINDS)
    if kind == "split":
        return _split(draw, grammar)
    order = draw(devices(grammar))
    return of_stages(stages_over(draw, order)) if kind == "stages" else _at(order, draw(_PLACES))


def _split(draw: DrawFn, grammar: Grammar) -> Placement:
    order, places = draw(devices(grammar, 2)), draw(_PLACES)
    if len({place % len(order) for place in places}) == 1:
        places = [*places[:-1], places[-1] + 1]
    return _at(order, places)


@st.composite
def split_placements(draw: DrawFn, grammar: Grammar) -> Placement:
    """With at least one change of device; shrinks to no hidden layer and two devices."""
    return _split(draw, grammar)


@st.composite
def flagged_split_placements(draw: DrawFn, grammar: Grammar) -> Placement:
    """With at least one change of device; devices may have the autodiff flag."""
    return flagged(draw, grammar, _split(draw, grammar))


@st.composite
def placements_of(draw: DrawFn, grammar: Grammar, number: int) -> Placement:
    """Of that many hidden layers."""
    return _at(draw(devices(grammar)), draw(_exactly(number + 2)))


@cache
def _exactly(number: int) -> SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 3), min_size=number, max_size=number)


_FLAGS: Final = (("",), ("",), ("+autodiff",), ("", "+autodiff"))


def flagged(draw: DrawFn, grammar: Grammar, placement: Placement) -> Placement:
    """The placement with autodiff flags on none, all or some of its devices, if the grammar has them."""
    flags = pick(draw, _FLAGS) if grammar.autodiff else ("",)
    return placement_of(device + flags[place % len(flags)] for place, device in enumerate(placement.layers))


@st.composite
def flagged_placements(draw: DrawFn, grammar: Grammar) -> Placement:
    """Placements whose devices may have the autodiff flag."""
    return flagged(draw, grammar, draw(placements(grammar)))


# Edits


def elsewhere(draw: DrawFn, grammar: Grammar, device: str) -> str:
    """Another device."""
    return pick(draw, [other for other in grammar.devices if other != hardware(device)])


def edited(draw: DrawFn, grammar: Grammar, placement: Placement) -> Placement:
    """The placement with one layer elsewhere, two neighbours exchanged, a hidden layer less, or one more."""
    layers = list(placement.layers)
    kind = pick(draw, ("change", "drop", "add", "swap", "change"))
    unequal = [at for at in range(len(layers) - 1) if hardware(layers[at]) != hardware(layers[at + 1])]
    if kind == "drop" and placement.hidden:
        del layers[1 + draw(_below(len(placement.hidden)))]
    elif kind == "add":
        layers.insert(1 + draw(_below(len(placement.hidden) + 1)), pick(draw, grammar.devices))
    elif kind == "swap" and unequal:
        at = pick(draw, unequal)
        layers[at], layers[at + 1] = layers[at + 1], layers[at]
    else:
        at = -1 - draw(_below(len(layers)))
        layers[at] = elsewhere(draw, grammar, layers[at])
    return placement_of(layers)


@cache
def _below(number: int) -> SearchStrategy[int]:
    return st.integers(0, number - 1)
