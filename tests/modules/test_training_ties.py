"""Training state of places that hold one object: they are tied until a group tells them apart (D8)."""

from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import AutodiffError
from modules import Flag, ParamGroup, RunningState

from .small_modules import AUTODIFF, Holder, numbers
from .training_states import CALLS, ERROR, GROUP_CALLS, STATES, State, after, leaf_in, state_of


@pytest.mark.parametrize("call", GROUP_CALLS)
def test_tied_places_stay_tied_unless_a_group_has_only_some_of_them(call: str):
    """D8: one result for one object; those that are left out keep it."""
    state = State("U", True) if "True" in call or call == "unfreeze" else State("L", True)
    param, flag = leaf_in(state, 1), leaf_in(State("F", True), 2)
    before = Holder(a=param, b=[param, param], c=flag, d=flag)
    everywhere = CALLS[call](before)
    some = GROUP_CALLS[call](before, ParamGroup.from_any_predicates(["a", "0", "c"]))

    assert everywhere.a is everywhere.b[0] is everywhere.b[1] is not param
    assert everywhere.c is everywhere.d
    assert some.a is some.b[0] is not param
    assert some.b[1] is param
    assert some.d is flag
    assert state_of(some.a) == after(call, state)
    assert (some.c is flag) == (call.startswith("set_require_grad"))
    assert GROUP_CALLS[call](before, ParamGroup.from_ids([1])).b[1] is not param


def test_a_tied_running_state_stays_tied_whatever_the_group():
    """D8, M97: no switch concerns it."""
    state = RunningState(numbers(2, device=AUTODIFF))
    before = Holder(a=state, b=state)
    module = before.freeze_group(ParamGroup.from_path("a"))

    assert module.a is module.b is not state


@st.composite
def layouts(draw: Any) -> tuple[list[State], list[int]]:
    """States of a few parameters and flags, and which of them stands at each place."""
    objects = draw(st.lists(st.sampled_from(STATES), min_size=1, max_size=4))
    return objects, draw(st.lists(st.integers(0, len(objects) - 1), min_size=1, max_size=6))


CALL: Final = st.tuples(st.sampled_from(sorted(CALLS)), st.none() | st.sets(st.integers(0, 5)))


@given(layouts(), st.lists(CALL, min_size=1, max_size=8))
def test_any_program_leaves_what_its_calls_leave_one_by_one(
    layout: tuple[list[State], list[int]], program: list[tuple[str, set[int] | None]]
):
    """M112, M52, D8, L10: at each place the state of the table; ties as the groups say; older versions as they were."""
    objects, standing = layout
    leaves = [leaf_in(state, id) for id, state in enumerate(objects)]
    module: Any = Holder(places=[leaves[one] for one in standing])
    states = [objects[one] for one in standing]
    ties = [str(one) for one in standing]
    is_elsewhere = False
    older: list[tuple[Any, list[State]]] = []
    for step, (call, some) in enumerate(program):
        older.append((module, states))
        row = call
        if call.startswith("to_device"):
            row = "to_device" if is_elsewhere == call.endswith("elsewhere") else "to_device elsewhere"
        group = None if call not in GROUP_CALLS else some
        concerned = [group is None or place in group for place in range(len(states))]
        expected = [after(row, state) if yes else state for state, yes in zip(states, concerned, strict=True)]
        refused = [f"places.{place}" for place, state in enumerate(expected) if state.value == ERROR]
        if refused:
            with pytest.raises(AutodiffError, match=f": {', '.join(refused)} w"):
                applied(module, call, group)
            continue
        module = applied(module, call, group)
        is_elsewhere = call.endswith("elsewhere") if call.startswith(("fork", "to_device")) else is_elsewhere
        ties = [f"{tie} {step}" if new != old else tie for tie, old, new in zip(ties, states, expected, strict=True)]
        states = expected
        for leaf, tie in zip(module.places, ties, strict=True):
            assert [other is leaf for other in module.places] == [other == tie for other in ties]
    for version, its_states in [*older, (module, states)]:
        assert [state_of(leaf) for leaf in version.places] == its_states
        assert all(isinstance(leaf, Flag) or np.array_equal(leaf.val().numpy(), [1.0, 2.0]) for leaf in version.places)


def applied(module: Any, call: str, group: set[int] | None) -> Any:
    """The module after a call, of everything or of the places of a group."""
    if group is None:
        return CALLS[call](module)
    return GROUP_CALLS[call](module, ParamGroup.from_paths([f"places.{place}" for place in group]))
