"""Laws of placements and stages (L97, L98, L102, L103)."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import get_args

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from .calls import applied, built, output
from .generators import pick
from .law import law
from .layered import Apart, Placement
from .layered_calls import names, wrapped
from .layered_expected import Misplaced, crossed, taken_apart
from .layered_generators import Case, cases
from .layered_operations import DevicesOf, Equal, Even, Forward, FromStages, IntoStages, RunStages, StagesOf, Wrap
from .placement_generators import edited, flagged_placements, of_stages, placements, split_placements, stages_over
from .protocol import Adapter, Refused
from .spec_tree import Printed

# Even shares

MOST_LAYERS = 64
MOST_DEVICES = 8


def numbered(adapter: Adapter, number: int) -> tuple[str, ...]:
    """That many different devices of the grammar's first kind."""
    kind = adapter.grammar.devices[0].partition(":")[0]
    return tuple(f"{kind}:{index}" for index in range(number))


@law("L97", needs=("parallel",))
def test_even_shares_differ_by_at_most_one_and_the_first_are_the_longest(adapter: Adapter) -> None:
    """Order kept, every layer placed, no device without a layer unless there is none to place (P17, P18, P80)."""
    for width in range(1, MOST_DEVICES + 1):
        given = numbered(adapter, width)
        for number in range(MOST_LAYERS + 1):
            found = adapter.answer(Even(given, number))

            shares = [found.hidden.count(device) for device in given]
            assert found.hidden == tuple(d for d, share in zip(given, shares, strict=True) for _ in range(share))
            assert sum(shares) == number
            assert shares == sorted(shares, reverse=True)
            used = [share for share in shares if share]
            assert len(used) == min(number, width)
            assert max(used, default=0) - min(used, default=0) <= 1
            assert (found.input, found.output) == (given[0], (found.hidden or given)[-1 if found.hidden else 0])


@law(
    "L97",
    needs=("parallel",),
    given=lambda a: st.lists(st.sampled_from(a.grammar.devices), min_size=1, max_size=6),
    number=lambda a: st.integers(0, 12),
)
def test_a_device_listed_again_gets_its_share_again(adapter: Adapter, given: list[str], number: int) -> None:
    """(P19)."""
    distinct = numbered(adapter, len(given))
    apart = adapter.answer(Even(distinct, number))

    found = adapter.answer(Even(tuple(given), number))

    event(f"listed again: {len({*given}) < len(given)}")
    assert found.layers == tuple(given[distinct.index(device)] for device in apart.layers)


@law("L97", needs=("parallel",))
def test_without_a_device_or_a_stage_there_is_no_placement(adapter: Adapter) -> None:
    """(P15, P18)."""
    for question in (Even((), 0), Even((), 3), FromStages(())):
        answer = adapter.answer(question)
        assert isinstance(answer, Refused)
        assert answer.kind == "placement"


# Stages and placements


@law("L98", needs=("parallel",), placement=lambda a: flagged_placements(a.grammar))
def test_stages_are_the_longest_runs_of_the_hidden_layers(adapter: Adapter, placement: Placement) -> None:
    """Neighbours differ, none is empty, and laid out again they are the hidden layers (P13, P21, P22, P81)."""
    stages = adapter.answer(StagesOf(placement))
    event(f"stages: {min(len(stages), 4)}")

    assert all(one[0] != other[0] for one, other in pairwise(stages))
    assert all(number > 0 for _, number in stages)
    assert tuple(device for device, number in stages for _ in range(number)) == placement.plain.hidden
    if stages:
        again = adapter.answer(FromStages(stages))
        hidden = placement.plain.hidden
        assert again == Placement(hidden[0], hidden, hidden[-1])


@law("L98", needs=("parallel",), placement=lambda a: flagged_placements(a.grammar))
def test_devices_come_once_each_in_order_of_first_use(adapter: Adapter, placement: Placement) -> None:
    """(P13, P20)."""
    found = adapter.answer(DevicesOf(placement))

    layers = placement.plain.layers
    event(f"devices: {len(found)}")
    assert sorted(found) == sorted({*layers})
    assert [layers.index(device) for device in found] == sorted(layers.index(device) for device in found)


@dataclass(frozen=True, repr=False)
class Stages(Printed):
    """Stages, a place among them, and a further device."""

    stages: tuple[tuple[str, int], ...]
    place: int
    device: str


@st.composite
def stage_lists(draw: DrawFn, adapter: Adapter) -> Stages:
    order = adapter.grammar.devices
    stages = stages_over(draw, order)
    place = pick(draw, (max(range(len(stages)), key=lambda at: stages[at][1]), *range(len(stages))))
    return Stages(stages, place, pick(draw, order))


@law("L98", needs=("parallel",), case=lambda a: stage_lists(a))
def test_a_placement_of_stages_is_each_device_as_often_as_its_stage_says(adapter: Adapter, case: Stages) -> None:
    """A stage of no layers moves an end, or nothing (P14, P16)."""
    found = adapter.answer(FromStages(case.stages))
    assert found.hidden == tuple(device for device, number in case.stages for _ in range(number))
    assert (found.input, found.output) == (case.stages[0][0], case.stages[-1][0])
    empty = ((case.device, 0),)
    event(f"stages: {len(case.stages)}")

    in_front, at_end = adapter.answer(FromStages(empty + case.stages)), adapter.answer(FromStages(case.stages + empty))

    assert in_front == replace(found, input=case.device)
    assert at_end == replace(found, output=case.device)
    if case.place:
        between = (*case.stages[: case.place], *empty, *case.stages[case.place :])
        assert adapter.answer(FromStages(between)) == found


@st.composite
def two_placements(draw: DrawFn, adapter: Adapter) -> tuple[Placement, Placement]:
    """Placements of which the second is most often an edit of the first, or the first with other flags."""
    one = draw(flagged_placements(adapter.grammar))
    other = pick(draw, (one.plain, edited(draw, adapter.grammar, one)))
    return one, other


@law("L98", needs=("parallel",), pair=lambda a: two_placements(a))
def test_placements_are_equal_exactly_if_each_layers_hardware_is(
    adapter: Adapter, pair: tuple[Placement, Placement]
) -> None:
    """And then their hashes are, if they have any (P12, P13)."""
    one, other = pair
    expected = one.plain == other.plain
    event(f"equal: {expected}")

    equal, hashes = adapter.answer(Equal(one, other))

    assert equal == expected
    assert hashes is not False or not expected


@st.composite
def cut_finer(draw: DrawFn, adapter: Adapter) -> tuple[Case, Stages, int]:
    """A model by a placement of stages, one of them, and how many of its layers come before a cut."""
    drawn = draw(stage_lists(adapter))
    placed, number = st.just(of_stages(drawn.stages)), drawn.stages[drawn.place][1]
    return draw(cases(adapter.grammar, placed)), drawn, pick(draw, [*range(1, number), number, 0])


@law("L103", needs=("parallel", "transfer_log"), drawn=lambda a: cut_finer(a))
def test_cutting_a_stage_in_two_on_its_device_changes_nothing(
    adapter: Adapter, drawn: tuple[Case, Stages, int]
) -> None:
    """Placement, stages, bits and copies stay (P21, P22)."""
    case, stages, before = drawn
    device, number = stages.stages[stages.place]
    event(f"both parts have layers: {0 < before < number}")
    finer = (
        *stages.stages[: stages.place],
        (device, before),
        (device, number - before),
        *stages.stages[stages.place + 1 :],
    )

    placement = adapter.answer(FromStages(finer))

    assert placement == adapter.answer(FromStages(stages.stages)) == case.spec.placement
    assert adapter.answer(StagesOf(placement)) == adapter.answer(StagesOf(case.spec.placement))
    model = built(adapter, case.spec)
    results = []
    for one in (placement, case.spec.placement):
        split = applied(adapter, model, Wrap(one))
        adapter.log()
        results.append((output(adapter, split, Forward(case.signal)), crossed(adapter.log())))
    assert results[0] == results[1]


# Taken apart


@st.composite
def taken(draw: DrawFn, adapter: Adapter) -> Case:
    """Models, some of whose `into_layers` exchanges, drops or repeats hidden layers."""
    apart: Apart = pick(draw, get_args(Apart))
    placed = placements if apart == "as they are" else split_placements
    case = draw(cases(adapter.grammar, placed(adapter.grammar)))
    return replace(case, spec=replace(case.spec, apart=apart))


@law("L102", needs=("parallel", "parallel.stages"), case=lambda a: taken(a))
def test_a_model_taken_apart_has_each_layer_once_in_order_on_its_stages_device(adapter: Adapter, case: Case) -> None:
    """Or is refused: the number of layers differs, or a layer is not on its stage's device (P47 to P50)."""
    expected = taken_apart(case.spec, case.spec.there, case.spec.placement)
    event(f"{case.spec.apart}: {'refused' if isinstance(expected, Misplaced) else 'taken'}")

    answer = adapter.apply(wrapped(adapter, case.spec), IntoStages())

    if isinstance(expected, Misplaced):
        assert isinstance(answer, Refused)
        assert answer.kind == "placement"
        assert names(answer.message, *expected.said)
    else:
        assert not isinstance(answer, Refused), answer.message
        assert answer.output == expected
        assert [device for device, _ in expected.stages] == [
            device for device, _ in adapter.answer(StagesOf(case.spec.placement))
        ]


@law("L102", needs=("parallel", "parallel.stages", "transfer_log"), case=lambda a: cases(a.grammar))
def test_parts_run_by_hand_give_the_bits_and_the_copies_of_the_forward(adapter: Adapter, case: Case) -> None:
    """Input layer, stages, output layer, the signal moved at each border (P49)."""
    split = wrapped(adapter, case.spec)
    adapter.log()
    expected = output(adapter, split, Forward(case.signal))
    copies = crossed(adapter.log())
    event(f"stages: {min(len(adapter.answer(StagesOf(case.spec.placement))), 4)}")

    found = output(adapter, split, RunStages(case.signal))

    assert found == expected
    assert crossed(adapter.log()) == copies
