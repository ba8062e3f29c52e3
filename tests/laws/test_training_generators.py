"""The generators of training state are good: what the laws need to see is frequent enough.

As `test_generators`. What a program comes to is told by `training_state`.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import pytest

from tests.independent_draws import drawn, share

from . import operations as op
from .group_expressions import by_ids, matched
from .layered_model import ModelAdapter
from .programs import Program
from .spec_tree import FlagSpec, ParamSpec, RunningSpec, TreeSpec, devices, leaves, tied_with
from .test_generators import numbered
from .test_layers_in_training import Living, dropping, normalising
from .test_training_gradients import partly_frozen, used_after_a_move
from .test_training_machine import two_builds
from .test_training_state import moved_away, two_switches, two_that_commute
from .training_state import FlagState, State, ValueState, start

pytestmark = pytest.mark.suite

GRAMMAR: Final = ModelAdapter.grammar
Uses = tuple[Program, tuple[str, ...]]


@cache
def some_uses() -> list[tuple[set[str], set[str], Program]]:
    """What trains, and what is used, by path, with the program that leads there."""
    return [(training(program), set(used), program) for program, used in drawn(partly_frozen(ModelAdapter()))]


def state_of(program: Program) -> State:
    """Where a program whose steps are on the newest version ends."""
    state = start(program.spec, numbered(program.spec))
    for back, step in program.steps:
        assert back == 0
        state = state.after(step)
    return state


def training(program: Program) -> set[str]:
    leaves = state_of(program).leaves
    return {path for path, leaf in leaves.items() if isinstance(leaf, ValueState) and leaf.value == "L"}


USES: Final[dict[str, tuple[float, Callable[[set[str], set[str], Program], Any]]]] = {
    "something used that trains": (0.6, lambda trains, used, program: trains & used),
    "something used that does not train": (0.3, lambda trains, used, program: used - trains),
    "something that trains and is not used": (0.3, lambda trains, used, program: trains - used),
    "both used": (0.2, lambda trains, used, program: trains & used and used - trains),
    "nothing used that trains": (0.1, lambda trains, used, program: not trains & used),
    "two devices": (0.6, lambda trains, used, program: len(devices(program.spec)) > 1),
    "a tied parameter that trains": (
        0.1,
        lambda trains, used, program: any(trains & used & {*group} for group in program.spec.ties),
    ),
    "a flag that is off": (
        0.3,
        lambda trains, used, program: any(
            isinstance(leaf, FlagState) and not leaf.enabled for leaf in state_of(program).leaves.values()
        ),
    ),
}


@pytest.mark.parametrize("what", USES)
def test_modules_are_partly_frozen_and_partly_used(what: str) -> None:
    least, holds = USES[what]
    assert share(some_uses(), lambda case: holds(*case)) >= least


def test_moves_change_devices_and_leave_them_of_values_and_lazy_ones() -> None:
    found: list[Any] = drawn(used_after_a_move(GRAMMAR))

    def trains(case: Any, lazy: bool) -> bool:
        nodes = leaves(case[0]).values()
        return any(isinstance(n, ParamSpec) and n.wish and n.lazy == lazy and n.value.kind == "float" for n in nodes)

    assert share(found, lambda case: isinstance(case[1], op.Fork)) >= 0.4
    assert share(found, lambda case: isinstance(case[1], op.ToDevice)) >= 0.4
    assert share(found, lambda case: case[1].device not in devices(case[0])) >= 0.5
    assert share(found, lambda case: case[1].device in devices(case[0])) >= 0.15
    for lazy in (True, False):
        assert share(found, lambda case, lazy=lazy: trains(case, lazy)) >= 0.4


def test_modules_that_are_moved_away_mostly_have_a_value_that_trains() -> None:
    found = drawn(moved_away(GRAMMAR))

    def recorded(case: tuple[TreeSpec, str]) -> bool:
        nodes = leaves(case[0]).values()
        return any(isinstance(n, ParamSpec) and n.wish and not n.lazy and n.value.kind == "float" for n in nodes)

    assert share(found, recorded) >= 0.5
    assert all(place not in devices(spec) for spec, place in found)


def test_two_switches_are_of_all_kinds_and_overlap_in_part() -> None:
    found = drawn(two_switches(ModelAdapter()))

    def overlap(case: Any) -> bool:
        spec, *switches = case
        one, other = (set(matched(getattr(switch, "group", None), numbered(spec))) for switch in switches)
        return bool(one & other) and bool(one ^ other)

    kinds = {(type(first), type(second)) for _, first, second in found}
    assert len(kinds) == 16
    assert share(found, overlap) >= 0.3


def test_what_commutes_is_tried_in_all_pairs() -> None:
    found = drawn(two_that_commute(ModelAdapter()))

    def kind(call: op.Op | None) -> type:
        return op.LoadRecord if call is None else type(call)

    kinds = {(kind(call), type(switch)) for _, call, switch in found}
    assert len(kinds) == 5 * 6 + 3
    for of in (op.Fork, op.LoadRecord, op.ToDevice):
        assert share(found, lambda case, of=of: kind(case[1]) is of) >= 0.08
    assert not any(call is None and by_ids([group]) for _, call, s in found if (group := getattr(s, "group", None)))


def test_the_machine_often_has_leaves_running_states_ties_and_lazy_parameters() -> None:
    found = drawn(two_builds(GRAMMAR))

    def holds(of: type, **fields: Any) -> Callable[[Any], bool]:
        def has(case: Any) -> bool:
            nodes = leaves(case.target).values()
            return any(isinstance(n, of) and all(getattr(n, k) == v for k, v in fields.items()) for n in nodes)

        return has

    def leaf(case: Any) -> bool:
        values = start(case.target, numbered(case.target)).leaves.values()
        return any(isinstance(one, ValueState) and one.value == "L" and one.cell is None for one in values)

    assert share(found, leaf) >= 0.4
    assert share(found, holds(RunningSpec)) >= 0.4
    assert share(found, holds(ParamSpec, lazy=True)) >= 0.3
    assert share(found, holds(ParamSpec, wish=False)) >= 0.1
    assert share(found, holds(FlagSpec, enabled=False)) >= 0.4
    assert share(found, lambda case: case.target.ties) >= 0.25
    tied = [tied_with(case.target, path) for case in found for path in leaves(case.target)]
    assert max(map(len, tied)) >= 3


@pytest.mark.parametrize("strategy", [dropping, normalising])
def test_layers_are_in_training_and_not_for_either_reason(strategy: Callable[..., Any]) -> None:
    found: list[Living] = drawn(strategy(ModelAdapter()))

    def on(case: Living) -> bool:
        state = start(case.spec.tree, dict.fromkeys(leaves(case.spec.tree), 0))
        for switch in case.switches:
            state = state.after(switch)
        flag = state.leaves[f"{case.path}.training"]
        return isinstance(flag, FlagState) and flag.enabled

    assert share(found, lambda case: on(case) and case.autodiff) >= 0.2
    assert share(found, lambda case: on(case) and not case.autodiff) >= 0.1
    assert share(found, lambda case: not on(case) and case.autodiff) >= 0.2
    assert share(found, lambda case: case.switches) >= 0.6
