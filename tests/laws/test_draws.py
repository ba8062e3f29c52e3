"""The law of draws (L105): what a layer leaves out at random follows the layer, wherever it is.

What derived modules and records do with the count of draws is in
`tests/modules/test_draws.py` and `test_draws_in_records.py`.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Final

from hypothesis import event
from hypothesis import strategies as st

from .calls import applied, built
from .law import law
from .layered import DROP, hardware
from .layered_calls import ran, wrapped
from .layered_generators import Case, bare_dropping_cases, dropping_cases
from .operations import Clone, Fork, NoGrad, Op, Train
from .placement_generators import flagged_placements, flagged_split_placements
from .protocol import Adapter

CALLS: Final = 3


def dropping(case: Case) -> list[str]:
    """The devices of the layers that leave elements out."""
    pairs = zip(case.spec.layers, case.spec.placement.plain.layers, strict=True)
    return [device for layer, device in pairs if layer.step == DROP]


@law(
    "L105", needs=("parallel", "dropout"), case=lambda a: dropping_cases(a.grammar, flagged_split_placements(a.grammar))
)
def test_what_is_left_out_does_not_depend_on_the_placement(adapter: Adapter, case: Case) -> None:
    """Three calls of a split model give the bits that three of the same model on one device give."""
    placement, home = case.spec.placement, adapter.grammar.devices[0]
    where = dropping(case)
    event(f"layers that drop: {min(len(where), 3)}; they change device: {any(a != b for a, b in pairwise(where))}")
    alone = built(adapter, case.spec.built_by(placement.all_on(f"{home}+autodiff")))
    split = wrapped(adapter, case.spec)

    expected = [ran(adapter, alone, case.signal.on(f"{home}+autodiff")) for _ in range(CALLS)]

    found = [ran(adapter, split, case.signal) for _ in range(CALLS)]
    assert found == [one.on(hardware(placement.output)) for one in expected]


@law(
    "L105",
    needs=("parallel", "dropout"),
    case=lambda a: bare_dropping_cases(a.grammar),
    other=lambda a: st.integers(0, 2**64 - 1),
)
def test_what_is_left_out_changes_with_the_seed_and_from_call_to_call(adapter: Adapter, case: Case, other: int) -> None:
    """And is the same again in a build of the same seed. Of 512 elements no two draws are alike."""
    seeds = (case.spec.seed, other if other != case.spec.seed else other ^ 1)
    specs = [replace(case.spec, seed=seed) for seed in seeds]
    builds = [wrapped(adapter, spec) for spec in (specs[0], specs[1], specs[0])]

    first, second, again = ([ran(adapter, one, case.signal) for _ in range(CALLS)] for one in builds)

    assert first == again
    outputs = [next(iter(one.values().values())).data for one in (*first, *second)]
    assert len(set(outputs)) == 2 * CALLS


@law(
    "L105",
    needs=("parallel", "dropout", "fork", "state.params"),
    case=lambda a: dropping_cases(a.grammar, flagged_placements(a.grammar)),
    calls=lambda a: st.integers(0, 2),
    operation=lambda a: st.sampled_from([Clone(), Train(), NoGrad(), Fork(a.grammar.devices[-1])]),
)
def test_a_derived_model_leaves_out_on_from_where_it_was_made(
    adapter: Adapter, case: Case, calls: int, operation: Op
) -> None:
    """By itself: what one of the two draws, the other draws too, in the same order (DESIGN, Draws)."""
    split = wrapped(adapter, case.spec)
    for _ in range(calls):
        ran(adapter, split, case.signal)
    event(f"{type(operation).__name__} after {calls} calls")

    made = applied(adapter, split, operation)

    found = [ran(adapter, made, case.signal) for _ in range(CALLS)]
    expected = [ran(adapter, split, case.signal) for _ in range(CALLS)]
    last = hardware(case.spec.placement.output)
    assert [one.on(last) for one in found] == expected
