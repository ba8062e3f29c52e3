"""Devices, placements and memories to draw: what the laws of layer parallelism are tried on.

Placements are over one to four CPU devices, with devices that come back,
stages of no layers, and up to six hidden layers. All of it shrinks to
everything on ``cpu:0``; a law about moves takes `split_placements`, which has a
change of device in every draw. Edits and problems are data, so that they print.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from engine import Device
from modules.parallel import DeviceMemory, LayerMemory, LayerPlacement, LayerStage, OutputMemory

POOL = tuple(Device.cpu(index) for index in range(4))
MOST_HIDDEN = 6


def distinct_devices(
    min_size: int = 1, max_size: int = len(POOL), pool: Sequence[Device] = POOL
) -> SearchStrategy[list[Device]]:
    """Different devices in any order; shrinks to ``[cpu:0]``."""
    drawn = st.tuples(st.permutations(pool), st.integers(min_size, max_size))
    return drawn.map(lambda both: both[0][: both[1]])


def flagged(devices: Sequence[Device]) -> SearchStrategy[list[Device]]:
    """The same hardware in the same order, each as its plain or its autodiff device."""
    flags = st.lists(st.booleans(), min_size=len(devices), max_size=len(devices))
    return flags.map(
        lambda drawn: [d.autodiff() if flag else d.inner() for d, flag in zip(devices, drawn, strict=True)]
    )


def _shortened(stages: list[tuple[Device, int]]) -> list[LayerStage]:
    """Stages of at most `MOST_HIDDEN` layers in all: what is too much is cut off the last ones."""
    left, kept = MOST_HIDDEN, []
    for device, count in stages:
        kept.append(LayerStage(device, min(count, left)))
        left -= min(count, left)
    return kept


def stage_lists(pool: Sequence[Device] = POOL) -> SearchStrategy[list[LayerStage]]:
    """One to five stages of no layers to three, neighbours on one device included."""

    def over(devices: list[Device]) -> SearchStrategy[list[LayerStage]]:
        pairs = st.tuples(st.sampled_from(devices), st.integers(0, 3))
        return st.lists(pairs, min_size=1, max_size=5).map(_shortened)

    return distinct_devices(max_size=len(pool), pool=pool).flatmap(over)


def free_placements(
    num_hidden_layers: int | None = None, pool: Sequence[Device] = POOL
) -> SearchStrategy[LayerPlacement]:
    """The device of each layer chosen freely; of that many hidden layers, or of any number."""
    fewest, most = (0, MOST_HIDDEN) if num_hidden_layers is None else (num_hidden_layers, num_hidden_layers)

    def over(devices: list[Device]) -> SearchStrategy[LayerPlacement]:
        one = st.sampled_from(devices)
        return st.builds(LayerPlacement, one, st.lists(one, min_size=fewest, max_size=most), one)

    return distinct_devices(max_size=len(pool), pool=pool).flatmap(over)


@st.composite
def split_placements(draw: st.DrawFn, pool: Sequence[Device] = POOL) -> LayerPlacement:
    """Placements with at least one change of device: all on one, then some layers, but not all, put elsewhere."""
    base, *others = draw(distinct_devices(min_size=2, max_size=len(pool), pool=pool))
    devices = [base] * (draw(st.integers(0, MOST_HIDDEN)) + 2)
    positions = st.integers(0, len(devices) - 1)
    for position in draw(st.lists(positions, min_size=1, max_size=len(devices) - 1, unique=True)):
        devices[position] = draw(st.sampled_from(others))
    return LayerPlacement(devices[0], devices[1:-1], devices[-1])


def placements(pool: Sequence[Device] = POOL) -> SearchStrategy[LayerPlacement]:
    """Placements made of stages, chosen freely, or certainly split."""
    staged = stage_lists(pool).map(LayerPlacement.from_stages)
    return st.one_of(staged, free_placements(pool=pool), split_placements(pool))


@dataclass(frozen=True)
class Edit:
    """One change of a placement.

    ``change`` puts another device at `position` among input, hidden layers and
    output; ``swap`` exchanges the devices there and one further; ``drop`` and
    ``add`` take out a hidden layer, and put one before, at `position` among the
    hidden ones.
    """

    kind: Literal["change", "swap", "drop", "add"]
    position: int
    device: Device | None = None

    def apply(self, placement: LayerPlacement) -> LayerPlacement:
        """The placement with this one change."""
        devices = [placement.input, *placement.hidden, placement.output]
        here, next_one = self.position, self.position + 1
        if self.kind == "change":
            devices[here] = self.device
        elif self.kind == "swap":
            devices[here], devices[next_one] = devices[next_one], devices[here]
        elif self.kind == "drop":
            del devices[next_one]
        else:
            devices.insert(next_one, self.device)
        return LayerPlacement(devices[0], devices[1:-1], devices[-1])


def edits(placement: LayerPlacement, pool: Sequence[Device] = POOL) -> SearchStrategy[Edit]:
    """Edits after which the placement is another one."""
    devices = [placement.input, *placement.hidden, placement.output]
    every = range(len(devices))
    possible = [Edit("change", index, new) for index in every for new in pool if new != devices[index]]
    possible += [Edit("swap", index) for index in every[:-1] if devices[index] != devices[index + 1]]
    possible += [Edit("drop", index) for index in range(len(placement.hidden))]
    possible += [Edit("add", index, new) for index in range(len(placement.hidden) + 1) for new in pool]
    kinds = sorted({edit.kind for edit in possible}, key=["change", "swap", "drop", "add"].index)
    return st.sampled_from(kinds).flatmap(
        lambda kind: st.sampled_from([edit for edit in possible if edit.kind == kind])
    )


@dataclass(frozen=True)
class MemoryProblem:
    """What `by_memory` is asked: capacities in the order of the devices, and the bytes of the layers."""

    capacities: tuple[int, ...]
    input: int
    hidden: tuple[int, ...]
    output: int
    shares_input: bool

    @property
    def names(self) -> tuple[Device, ...]:
        """A device for each capacity, ``cpu:0`` first, so that a run shows its place in the list."""
        return tuple(Device.cpu(index) for index in range(len(self.capacities)))

    @property
    def memory(self) -> LayerMemory:
        """The bytes of the layers, as `by_memory` takes them."""
        return LayerMemory(self.input, self.hidden, OutputMemory(self.output, self.shares_input))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes in the order in which they are laid (P23a)."""
        if self.shares_input:
            return (self.input + self.output, *self.hidden)
        return (self.input, *self.hidden, self.output)

    def solve(self, names: Sequence[Device] | None = None) -> LayerPlacement | None:
        """What `by_memory` answers; `names` are the devices, one for each capacity."""
        devices = [DeviceMemory(d, c) for d, c in zip(names or self.names, self.capacities, strict=True)]
        return LayerPlacement.by_memory(devices, self.memory)

    def times(self, factor: int) -> "MemoryProblem":
        """The same problem in smaller units: every number times `factor`."""
        hidden = tuple(size * factor for size in self.hidden)
        capacities = tuple(capacity * factor for capacity in self.capacities)
        return MemoryProblem(capacities, self.input * factor, hidden, self.output * factor, self.shares_input)


def laid(capacities: Sequence[int], sizes: Sequence[int], shares_input: bool) -> MemoryProblem:
    """The problem in which layers of these sizes are laid in this order; a shared output takes half of the first."""
    first, *others = sizes
    if shares_input:
        return MemoryProblem(tuple(capacities), first - first // 2, tuple(others), first // 2, shares_input=True)
    *hidden, output = others or [0]
    return MemoryProblem(tuple(capacities), first, tuple(hidden), output, shares_input=False)


def _problems_of(capacity: SearchStrategy[int], size: SearchStrategy[int]) -> SearchStrategy[MemoryProblem]:
    capacities, hidden = st.lists(capacity, min_size=1, max_size=4), st.lists(size, max_size=5)
    return st.builds(MemoryProblem, capacities.map(tuple), size, hidden.map(tuple), size, st.booleans())


def small_problems() -> SearchStrategy[MemoryProblem]:
    """Few bytes: many ties, zero sizes and zero capacities."""
    return _problems_of(st.integers(0, 16), st.integers(0, 8))


def large_problems() -> SearchStrategy[MemoryProblem]:
    """Devices of 2**30 to 2**37 bytes and layers of that order."""
    size = st.one_of(st.integers(2**28, 2**36), st.integers(0, 2**20), st.just(0))
    return _problems_of(st.integers(2**30, 2**37), size)


def huge_problems() -> SearchStrategy[MemoryProblem]:
    """Numbers beyond 2**53 and up to 2**64 - 1: conversion rounds, and sums pass 64 bits."""
    number = st.one_of(st.integers(2**53, 2**64 - 1), st.integers(2**53 - 4, 2**53 + 8), st.just(2**64 - 1))
    return _problems_of(number, st.one_of(number, st.integers(0, 8)))


@st.composite
def tight_problems(draw: st.DrawFn) -> MemoryProblem:
    """Layers drawn device by device, and capacities that are just their bytes, or one more or fewer."""
    unit = draw(st.sampled_from([1, 2**20, 2**30 + 1]))
    loads = draw(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=3))
    slack = st.sampled_from([0, 0, 1, -1, unit])
    capacities = [max(0, sum(load) * unit + draw(slack)) for load in loads]
    sizes = [size * unit for load in loads for size in load] or [0]
    return laid(capacities, sizes, draw(st.booleans()))


@st.composite
def level_problems(draw: st.DrawFn, most: int) -> MemoryProblem:
    """Equal devices, and layers of one, two or no times a size: a layer's middle falls on the target, or just beside.

    Only rounding decides then. No capacity is above `most`.
    """
    capacity = draw(st.integers(most // 256, most))
    size = draw(st.integers(1, max(1, capacity // 4)))
    times = draw(st.lists(st.integers(0, 2), min_size=1, max_size=7))
    return laid([capacity] * draw(st.integers(1, 4)), [size * n for n in times], draw(st.booleans()))


@st.composite
def unit_problems(draw: st.DrawFn, most: int) -> MemoryProblem:
    """Multiples of one unit, some a byte off, so that limits decide. No capacity is above `most`."""
    unit = draw(st.integers(most // 256, most // 16))
    beside = st.sampled_from([0, 0, 0, 1, -1])
    capacities, sizes = (
        [max(0, unit * n + draw(beside)) for n in draw(st.lists(st.integers(0, largest), min_size=1, max_size=number))]
        for largest, number in [(12, 4), (5, 7)]
    )
    return laid(capacities, sizes, draw(st.booleans()))


@st.composite
def near_ties(draw: st.DrawFn, most: int) -> MemoryProblem:
    """Two devices, and two splits that differ in level by less than the halving can tell, or by a little more.

    One device has `factor` times the other's capacity. The layer in the middle
    belongs to the small one by its middle, and on the large one the fullest
    device is emptier by `gap` bytes of the large one. No capacity is above `most`.
    """
    factor = draw(st.integers(2, 5))
    capacity = draw(st.integers(most // 16, most // 5))
    first = draw(st.integers(capacity // 8, capacity // 2))
    middle = draw(st.integers(1, capacity // 8))
    gap = max(1, most >> draw(st.integers(46, 53))) + draw(st.integers(0, 8))
    last = max(0, factor * (first + middle) - middle - gap)
    return laid([capacity, factor * capacity], [first, middle, last], draw(st.booleans()))


def problems() -> SearchStrategy[MemoryProblem]:
    """Of all kinds, up to 2**37 bytes: at most four devices and nine layers, for brute force."""
    most = st.sampled_from([2**8, 2**37])
    shaped = [most.flatmap(level_problems), most.flatmap(unit_problems), near_ties(2**37)]
    return st.one_of(small_problems(), large_problems(), tight_problems(), *shaped)


def rounded_problems() -> SearchStrategy[MemoryProblem]:
    """Of all kinds, up to 2**64 - 1 bytes, where float64 holds neither sizes nor products exactly."""
    most = 2**64 - 2
    return st.one_of(huge_problems(), level_problems(most), unit_problems(most), near_ties(most))
