"""The generators of placements and memories: what they draw is not vacuous, and valid."""

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations_with_replacement, pairwise
from typing import Any

import pytest
from hypothesis.strategies import SearchStrategy

from engine import Device
from modules.parallel import LayerPlacement
from tests.independent_draws import drawn, share
from tests.parallel import by_memory_oracle as oracle
from tests.parallel.strategies import (
    MOST_HIDDEN,
    POOL,
    MemoryProblem,
    distinct_devices,
    edits,
    flagged,
    free_placements,
    near_ties,
    placements,
    problems,
    rounded_problems,
    small_problems,
    split_placements,
    stage_lists,
    tight_problems,
)

pytestmark = pytest.mark.suite


def shares(strategy: SearchStrategy[Any], **facts: Callable[[Any], bool]) -> dict[str, float]:
    """The share of draws for which each fact is true."""
    found = drawn(strategy)
    return {name: share(found, fact) for name, fact in facts.items()}


def layers(placement: LayerPlacement) -> list[Device]:
    return [placement.input, *placement.hidden, placement.output]


def changes(placement: LayerPlacement) -> int:
    """How often the device changes along the layers."""
    devices = layers(placement)
    return sum(one != other for one, other in pairwise(devices))


def test_placements_are_split_and_come_back_and_have_every_number_of_layers():
    """laws.md, sections (j) and 5."""
    found = shares(
        placements(),
        two_changes=lambda p: changes(p) >= 2,
        comes_back=lambda p: changes(p) >= len(p.devices()),
        three_devices=lambda p: len(p.devices()) >= 3,
        one_device=lambda p: len(p.devices()) == 1,
        no_hidden=lambda p: not p.hidden,
        many_hidden=lambda p: len(p.hidden) >= 4,
        input_apart=lambda p: bool(p.hidden) and p.input != p.hidden[0],
        valid=lambda p: len(p.hidden) <= MOST_HIDDEN and set(layers(p)) <= set(POOL),
    )

    assert found["valid"] == 1
    assert found["two_changes"] > 0.3
    assert min(found["comes_back"], found["three_devices"], found["many_hidden"], found["input_apart"]) > 0.1
    assert min(found["no_hidden"], found["one_device"]) > 0.02
    assert max(found["no_hidden"], found["one_device"]) < 0.5


def test_stage_lists_have_empty_stages_everywhere_and_neighbours_on_one_device():
    """laws.md, section (j)."""
    found = shares(
        stage_lists(),
        empty_first=lambda s: s[0].num_hidden_layers == 0,
        empty_last=lambda s: s[-1].num_hidden_layers == 0,
        empty_between=lambda s: any(stage.num_hidden_layers == 0 for stage in s[1:-1]),
        neighbours=lambda s: any(one.device == other.device for one, other in pairwise(s)),
        valid=lambda s: bool(s) and sum(stage.num_hidden_layers for stage in s) <= MOST_HIDDEN,
    )

    assert found.pop("valid") == 1
    assert min(found.values()) > 0.1


def test_split_placements_always_have_a_change_of_device():
    """laws.md, section (j): laws about moves are never vacuous."""
    found = shares(split_placements(), split=lambda p: changes(p) > 0, inner=lambda p: len(p.stages()) > 1)

    assert found["split"] == 1
    assert found["inner"] > 0.3


def test_free_placements_have_the_number_of_layers_asked_for():
    """A model is built of a number of layers, and then placed in several ways."""
    assert shares(free_placements(3), three=lambda p: len(p.hidden) == 3)["three"] == 1


def test_devices_are_different_and_flags_leave_the_hardware_alone():
    """laws.md, section 5: autodiff is drawn apart."""
    found = shares(
        distinct_devices(min_size=2).flatmap(flagged),
        distinct=lambda devices: len(set(devices)) == len(devices) >= 2,
        mixed=lambda devices: len({device.is_autodiff for device in devices}) == 2,
        reordered=lambda devices: [device.index for device in devices] != list(range(len(devices))),
    )

    assert found["distinct"] == 1
    assert min(found["mixed"], found["reordered"]) > 0.2


def test_edits_always_give_another_placement_and_all_kinds_occur():
    """laws.md, section 5."""
    pairs = placements().flatmap(lambda p: edits(p).map(lambda edit: (p, edit)))
    kinds = {kind: (lambda pair, kind=kind: pair[1].kind == kind) for kind in ("change", "swap", "drop", "add")}

    found = shares(pairs, differs=lambda pair: pair[1].apply(pair[0]) != pair[0], **kinds)

    assert found.pop("differs") == 1
    assert min(found.values()) > 0.05


def test_problems_fit_and_do_not_fit_and_have_ties_and_zeros():
    """L121 to L124 meet both answers, and more than one split to choose from."""
    found = shares(
        problems(),
        placed=lambda p: oracle.places(p.capacities, p.sizes) is not None,
        refused=lambda p: oracle.places(p.capacities, p.sizes) is None,
        used_two=lambda p: len(set(oracle.places(p.capacities, p.sizes) or [])) >= 2,
        zero_last=lambda p: p.sizes[-1] == 0,
        zero_capacity=lambda p: 0 in p.capacities,
        shared=lambda p: p.shares_input,
    )

    assert min(found["placed"], found["refused"]) > 0.15
    assert found["used_two"] > 0.3
    assert min(found["zero_last"], found["zero_capacity"]) > 0.05
    assert 0.2 < found["shared"] < 0.8


def test_tight_problems_are_on_both_sides_of_what_fits():
    """L122: a byte decides."""
    found = shares(tight_problems(), placed=lambda p: oracle.least_fullest(p.capacities, p.sizes) is not None)

    assert 0.2 < found["placed"] < 0.9


def test_rounded_problems_are_placed_over_several_devices_and_are_beyond_float64():
    """L124: capacities beyond 2**53 whose float is another number, sums beyond 64 bits."""
    found = shares(
        rounded_problems(),
        used_two=lambda p: len(set(oracle.places(p.capacities, p.sizes) or [])) >= 2,
        refused=lambda p: oracle.places(p.capacities, p.sizes) is None,
        rounds=lambda p: any(int(float(capacity)) != capacity for capacity in p.capacities),
        overflows=lambda p: sum(p.capacities) >= 2**64,
        valid=lambda p: max(*p.capacities, p.input, *p.hidden, p.output) < 2**64,
    )

    assert found["valid"] == 1
    assert min(found["used_two"], found["rounds"]) > 0.3
    assert min(found["refused"], found["overflows"]) > 0.1


def test_near_ties_are_nearer_than_the_halving_can_tell_and_farther():
    """L124, P23n: the two most level splits differ by less than 2**-48, or by more."""

    def gap(problem: MemoryProblem) -> Fraction:
        splits = combinations_with_replacement(range(2), len(problem.sizes))
        ratios = (oracle.fullest(problem.capacities, problem.sizes, split) for split in splits)
        best, second, *_ = sorted(ratio for ratio in ratios if ratio is not None)
        return second - best

    near = shares(near_ties(2**64 - 2), near=lambda p: 0 < gap(p) < Fraction(1, 2**48))

    assert 0.2 < near["near"] < 0.8


def test_small_problems_have_several_equally_level_splits():
    """L124: only the walk tells which of them is the answer."""

    def tied(problem: MemoryProblem) -> bool:
        best = oracle.least_fullest(problem.capacities, problem.sizes)
        splits = combinations_with_replacement(range(len(problem.capacities)), len(problem.sizes))
        equal = sum(oracle.fullest(problem.capacities, problem.sizes, split) == best for split in splits)
        return best is not None and equal > 1

    assert shares(small_problems(), tied=tied)["tied"] > 0.1
