"""Laws of the wrapped model as a module (L99 to L101): it is its model, and only moves rewrite the placement."""

from dataclasses import dataclass, replace

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from .calls import applied, built, observed, output, runs
from .generators import pick
from .law import law
from .layered import LayeredSpec, Placement, hardware
from .layered_calls import ran, with_extra, wrapped
from .layered_generators import Case, cases, with_lazy, with_other_values
from .layered_operations import GetPlacement, Unwrap, Wrap
from .operations import (
    Clone,
    CollectDevices,
    Force,
    Fork,
    Freeze,
    LoadRecord,
    Map,
    NoGrad,
    Op,
    Record,
    SetRequireGrad,
    ToDevice,
    ToRecord,
    Train,
    Unfreeze,
    Update,
    Valid,
)
from .placement_generators import placements_of
from .programs import EVERY, REMAKING, Places, offered, operation
from .protocol import Adapter, Refused
from .spec_tree import ALWAYS, LORA, Printed, devices

# The wrapper is a homomorphism


@dataclass(frozen=True, repr=False)
class Steps(Printed):
    """A model with an input, and operations one after the other."""

    case: Case
    steps: tuple[Op, ...]


@st.composite
def steps_on(draw: DrawFn, adapter: Adapter, kinds: tuple[type[Op], ...], moves: bool = False) -> Steps:
    """Operations of these classes that the implementation offers; half of them moves, if asked for."""
    case = with_extra(draw(cases(adapter.grammar)), adapter)
    at = Places(case.spec.tree)
    lacking = {kind for kind, paths in ((Force, at.lazy), (Update, at.running)) if not paths}
    possible = [kind for kind in offered(adapter, kinds) if kind not in lacking]
    steps: list[Op] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = pick(draw, (Fork, ToDevice) if moves and draw(st.booleans()) else possible)
        steps.append(draw(operation(kind, case.spec.tree, adapter.grammar, adds=not moves)))
    return Steps(case, tuple(steps))


@law("L99", needs=("parallel",), case=lambda a: steps_on(a, (*EVERY, *REMAKING)))
def test_an_operation_on_the_wrapper_is_that_on_the_model(adapter: Adapter, case: Steps) -> None:
    """In structure, ids, values, devices, what it reports, and its refusals (P51, P52, P83)."""
    spec = case.case.spec
    model = built(adapter, spec)
    split = applied(adapter, model, Wrap(spec.placement))
    for step in case.steps:
        one, other = adapter.apply(split, step), adapter.apply(model, step)
        event(f"{type(step).__name__} {'refused' if isinstance(other, Refused) else 'done'}")
        if isinstance(other, Refused):
            assert isinstance(one, Refused)
            assert (one.kind, one.missing, one.unused) == (other.kind, other.missing, other.unused)
            continue
        assert not isinstance(one, Refused), one.message
        assert one.output == other.output
        split, model = one.handle, other.handle
        inside = observed(adapter, applied(adapter, split, Unwrap()), spec.tree)
        bare = observed(adapter, model, spec.tree)
        factors = {path for path in bare.meta.ids() if f".{LORA}." in path}
        assert inside.bits == bare.bits
        if factors:  # fresh ones have other ids, and the same values: they go by the seed and the path
            assert inside.meta.numbered() == bare.meta.numbered()
            ids = bare.meta.ids()
            assert {p: n for p, n in inside.meta.ids().items() if p not in factors} == {
                path: number for path, number in ids.items() if path not in factors
            }
        else:
            assert inside.meta == bare.meta


@st.composite
def loads(draw: DrawFn, adapter: Adapter) -> tuple[LayeredSpec, int | None]:
    """A model, and which entry its record is to lack, if any."""
    spec = with_extra(draw(cases(adapter.grammar)), adapter).spec
    number = len(Places(spec.tree).owned) + len(Places(spec.tree).running)
    return spec, pick(draw, (None, None, draw(st.integers(0, number - 1))))


@law("L99", needs=("parallel", "records"), drawn=lambda a: loads(a))
def test_loading_into_the_wrapper_is_loading_into_the_model(
    adapter: Adapter, drawn: tuple[LayeredSpec, int | None]
) -> None:
    """Refusals included (P51, P52, P83)."""
    spec, lacking = drawn
    entries = output(adapter, built(adapter, with_other_values(spec)), ToRecord()).entries
    record = Record(tuple(entry for place, entry in enumerate(entries) if place != lacking))
    model = built(adapter, spec)
    split = applied(adapter, model, Wrap(spec.placement))

    one, other = adapter.apply(split, LoadRecord(record)), adapter.apply(model, LoadRecord(record))

    event("refused" if isinstance(other, Refused) else "loaded")
    if isinstance(other, Refused) or isinstance(one, Refused):
        assert one == other
    else:
        inside = applied(adapter, one.handle, Unwrap())
        assert observed(adapter, inside, spec.tree) == observed(adapter, other.handle, spec.tree)


# What rewrites the placement

KEEPING = (Clone, Map, Train, Valid, NoGrad, SetRequireGrad, Freeze, Unfreeze, Force, ToRecord, *REMAKING)


@law("L100", needs=("parallel", "fork"), drawn=lambda a: steps_on(a, KEEPING, moves=True))
def test_moves_rewrite_the_placement_and_nothing_else_does(adapter: Adapter, drawn: Steps) -> None:
    """After each step the model is accepted under its placement, and gives the same bits (P53, P57, P84)."""
    case = drawn.case
    split, placement = wrapped(adapter, case.spec), case.spec.placement.plain
    expected = ran(adapter, split, case.signal)
    for step in drawn.steps:
        answer, bare = adapter.apply(split, step), adapter.apply(applied(adapter, split, Unwrap()), step)
        event(f"{type(step).__name__} {'refused' if isinstance(answer, Refused) else 'done'}")
        assert isinstance(answer, Refused) == isinstance(bare, Refused)
        if isinstance(answer, Refused):
            continue
        split = answer.handle
        if isinstance(step, REMAKING):  # it computes with other numbers from now on
            expected = ran(adapter, split, case.signal)
        if isinstance(step, (Fork, ToDevice)):
            placement = placement.all_on(hardware(step.device))
        assert output(adapter, split, GetPlacement()) == placement
        again = applied(adapter, applied(adapter, split, Unwrap()), Wrap(placement))
        assert ran(adapter, split, case.signal) == expected.on(placement.output)
        assert ran(adapter, again, case.signal) == expected.on(placement.output)


# The placement is not in the record


@st.composite
def placed_twice(draw: DrawFn, adapter: Adapter) -> tuple[Case, Placement]:
    """A model with an input, and a placement of it that is most often another one."""
    case = draw(cases(adapter.grammar))
    other = draw(placements_of(adapter.grammar, len(case.spec.placement.hidden)))
    return case, replace(other, output=other.input) if case.spec.tied else other


@law("L101", needs=("parallel", "records", "lazy"), drawn=lambda a: placed_twice(a))
def test_a_record_of_one_split_loads_into_any_other(adapter: Adapter, drawn: tuple[Case, Placement]) -> None:
    """And into the bare model: paths are the model's; no initial value is made, no value moves (P51, P52, R35)."""
    case, placement = drawn
    source = wrapped(adapter, case.spec)
    expected = ran(adapter, source, case.signal).on(hardware(placement.output))
    other = with_lazy(with_other_values(case.spec), ALWAYS).built_by(placement)
    bare = built(adapter, other)
    event(f"another placement: {placement.plain != case.spec.placement.plain}")

    record = output(adapter, source, ToRecord())

    assert record == output(adapter, applied(adapter, source, Unwrap()), ToRecord())
    values = [(entry.path, entry.bits) for entry in record.entries]
    split = applied(adapter, applied(adapter, bare, Wrap(placement)), LoadRecord(record))
    for loaded in (split, applied(adapter, applied(adapter, bare, LoadRecord(record)), Wrap(placement))):
        assert [(e.path, e.bits) for e in output(adapter, loaded, ToRecord()).entries] == values
        assert output(adapter, loaded, CollectDevices()) == devices(other.tree)
        assert ran(adapter, loaded, case.signal) == expected
    assert not any(runs(adapter, bare, other.tree).values())
