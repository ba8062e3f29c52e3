"""Laws of split models (L92, L94 to L96, L104, L124); `test_wrapper`, `test_stages`, `test_decoding` have the others.

What looks inside (identity of objects, lists that a caller changes later) is in `tests/parallel/test_split_inside.py`;
there L92 is also put to the models that people write, built of `modules.nn`.
"""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Any

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.parallel import by_memory_oracle
from tests.parallel.strategies import MemoryProblem, problems

from .calls import applied, built, observed, output, runs
from .generators import pick
from .law import law
from .layered import LayeredSpec, LayerName, Placement, hardware, placement_of
from .layered_calls import names, ran, with_extra, wrapped
from .layered_expected import close, course, crossed, misplaced, values_of
from .layered_generators import Case, cases, layer, models, turned_cases, with_adapters, with_lazy
from .layered_operations import ByMemory, Forward, GetPlacement, MoveByMap, Unwrap, Wrap
from .placement_generators import edited, elsewhere, flagged, flagged_placements, flagged_split_placements
from .protocol import Adapter, Refused
from .spec_tree import ALWAYS, ParamSpec, Printed, leaves, tensors

# Split and unsplit


def changes(placement: Placement) -> int:
    """How often the device changes from layer to layer."""
    return sum(one != other for one, other in pairwise(placement.plain.layers))


def split_cases(adapter: Adapter) -> Any:
    """Models over at least two devices, which may have the autodiff flag, with inputs."""
    return cases(adapter.grammar, flagged_split_placements(adapter.grammar))


@law("L92", needs=("parallel",), case=lambda a: cases(a.grammar, flagged_placements(a.grammar)))
def test_a_split_model_gives_the_bits_of_the_plain_composition(adapter: Adapter, case: Case) -> None:
    """On the output's device, for every placement, every tree and every order of memory (P35, P40, P41)."""
    placement, home = case.spec.placement, adapter.grammar.devices[0]
    event(f"changes of device: {min(changes(placement), 3)}")
    alone = built(adapter, case.spec.built_by(placement.all_on(home)))
    expected = ran(adapter, alone, case.signal.on(home))
    split = wrapped(adapter, case.spec)

    found = ran(adapter, split, case.signal)

    assert found == expected.on(hardware(placement.output))
    assert ran(adapter, split, case.signal) == found


@law("L92", needs=("parallel",), case=lambda a: turned_cases(a.grammar))
def test_a_copy_keeps_the_order_of_memory_and_so_every_bit_of_the_next_sum(adapter: Adapter, case: Case) -> None:
    """A transposed input lies on every device as it lay on the first (D5, P40)."""
    placement, home = case.spec.placement, adapter.grammar.devices[0]
    alone = built(adapter, case.spec.built_by(placement.all_on(home)))
    expected = ran(adapter, alone, case.signal.on(home))
    event(f"layout: {next(iter(case.signal.values().values())).layout}")

    assert ran(adapter, wrapped(adapter, case.spec), case.signal) == expected.on(hardware(placement.output))


@law("L92", needs=("parallel",), case=lambda a: cases(a.grammar, dtype="float64"))
def test_a_split_model_is_the_function_of_its_layers(adapter: Adapter, case: Case) -> None:
    """As NumPy computes it layer by layer; `CLOSE` says how close (P35, P39)."""
    expected = course(case.spec, case.signal, values_of(case.spec), case.spec.placement)

    assert close(ran(adapter, wrapped(adapter, case.spec), case.signal), expected.output, expected.peak)


# What is copied


@law("L94", needs=("parallel", "transfer_log"), case=split_cases)
def test_each_tensor_of_the_signal_is_copied_where_the_device_changes(adapter: Adapter, case: Case) -> None:
    """Each distinct one once, with its bytes of that moment, and never a parameter (P37, P38, D7)."""
    expected = course(case.spec, case.signal, values_of(case.spec), case.spec.placement)
    ways = Counter(
        way
        for value in case.signal.values().values()
        for way in pairwise((value.hardware, *case.spec.placement.plain.layers))
        if way[0] != way[1]
    )
    split = wrapped(adapter, case.spec)
    event(f"copies: {min(ways.total(), 5)}; tensors: {len(case.signal.values())}")
    adapter.log()

    ran(adapter, split, case.signal)

    log = crossed(adapter.log())
    assert log == expected.crossings
    assert {way: copies for way, (copies, _) in log.items()} == ways


@law(
    "L94",
    needs=("parallel", "transfer_log"),
    case=lambda a: cases(a.grammar, flagged_placements(a.grammar)),
    place=lambda a: st.sampled_from(a.grammar.devices),
)
def test_on_one_device_nothing_is_copied(adapter: Adapter, case: Case, place: str) -> None:
    """Whatever the autodiff flags of its handles are (P13, P37, D4)."""
    handles = (device.replace(hardware(device), place) for device in case.spec.placement.layers)
    spec = case.spec.built_by(placement_of(handles))
    split = wrapped(adapter, spec)
    adapter.log()

    ran(adapter, split, case.signal.on(place))

    assert adapter.log() == ()


# Wrapping is free


@law("L95", needs=("parallel", "lazy", "transfer_log"), spec=lambda a: models(a.grammar, flagged_placements(a.grammar)))
def test_wrapping_copies_nothing_and_makes_nothing(adapter: Adapter, spec: LayeredSpec) -> None:
    """Nor does unwrapping; what is wrapped is the model, with its ids and its lazy parameters (P24, P34)."""
    model = built(adapter, with_lazy(spec, ALWAYS))
    before = observed(adapter, model, spec.tree)
    event(f"lazy: {bool(before.meta.lazy())}")
    adapter.log()

    split = applied(adapter, model, Wrap(spec.placement))

    assert observed(adapter, split, spec.tree) == before
    assert observed(adapter, applied(adapter, split, Unwrap()), spec.tree) == before
    assert output(adapter, split, GetPlacement()) == spec.placement.plain
    assert output(adapter, model, GetPlacement()) is None
    assert adapter.log() == ()
    assert not any(runs(adapter, split, spec.tree).values())


# Refusals


@dataclass(frozen=True, repr=False)
class Checked(Printed):
    """A model, perhaps with a value that is not where it belongs, and a placement to wrap it with."""

    spec: LayeredSpec
    placement: Placement


@st.composite
def checks(draw: DrawFn, adapter: Adapter) -> Checked:
    """Up to two edits of the placement; in a third of the cases any one value of a layer, or factor, is elsewhere."""
    grammar = adapter.grammar
    spec = draw(models(grammar, flagged_placements(grammar)))
    if "lora" in adapter.capabilities and draw(st.booleans()):
        spec = with_adapters(spec)
    placement = spec.placement
    for _ in range(pick(draw, (1, 2, 1, 0))):
        placement = edited(draw, grammar, placement)
    held = [f"{path}.{inner}" for name, path in spec.paths.items() for inner in spec.there[name]]
    if held and pick(draw, (False, False, True)):
        path = pick(draw, held)
        spec = replace(spec, strays=((path, elsewhere(draw, grammar, tensors(spec.tree)[path].value.device)),))
    return Checked(spec, flagged(draw, grammar, placement.plain))


@law("L96", needs=("parallel",), case=lambda a: checks(a))
def test_a_model_is_refused_for_the_first_layer_that_is_elsewhere(adapter: Adapter, case: Checked) -> None:
    """Accepted exactly if every value is where the placement has its layer, flags aside (P25 to P31, P82).

    The refusal names the layer, the value and both devices, or both numbers of hidden layers.
    """
    wrong = misplaced(case.spec.there, case.placement)
    event("accepted" if wrong is None else f"refused for {wrong.reason}")

    answer = adapter.apply(built(adapter, case.spec), Wrap(case.placement))

    if wrong is None:
        assert not isinstance(answer, Refused), answer.message
        assert output(adapter, answer.handle, GetPlacement()) == case.placement.plain
    else:
        assert isinstance(answer, Refused)
        assert answer.kind == "placement"
        assert names(answer.message, *wrong.said)


# Never silently elsewhere


@st.composite
def strays(draw: DrawFn, adapter: Adapter) -> tuple[Case, str, str]:
    """A model with an input, one of its float parameters, and a device that this is not on."""
    case = with_extra(draw(cases(adapter.grammar)), adapter)
    held = {
        path: n for path, n in leaves(case.spec.tree).items() if isinstance(n, ParamSpec) and n.value.kind == "float"
    }
    path = pick(draw, sorted(held, key="extra".__eq__))
    return case, path, elsewhere(draw, adapter.grammar, held[path].value.device)


@law("L104", needs=("parallel", "map"), drawn=lambda a: strays(a))
def test_a_map_that_moves_a_layers_parameter_gives_no_result(adapter: Adapter, drawn: tuple[Case, str, str]) -> None:
    """It is refused, or the next forward is; the model before it runs as ever (P54, P55, D2).

    A parameter outside the layers may be anywhere (P10).
    """
    case, path, device = drawn
    split = wrapped(adapter, case.spec)
    before = ran(adapter, split, case.signal)

    answer = adapter.apply(split, MoveByMap(path, device))

    assert ran(adapter, split, case.signal) == before
    event("outside the layers" if path == "extra" else "refused" if isinstance(answer, Refused) else "mapped")
    if path == "extra":
        assert not isinstance(answer, Refused), answer.message
        assert ran(adapter, answer.handle, case.signal) == before
        return
    if not isinstance(answer, Refused):
        answer = adapter.apply(answer.handle, Forward(case.signal))
        assert isinstance(answer, Refused)
    there = {
        name: {inner: device if f"{prefix}.{inner}" == path else at for inner, at in case.spec.there[name].items()}
        for name, prefix in case.spec.paths.items()
    }
    wrong = misplaced(there, case.spec.placement)
    assert wrong is not None
    assert answer.kind in ("placement", "device_mismatch")
    assert names(answer.message, wrong.expected, wrong.found)


@st.composite
def failing(draw: DrawFn, adapter: Adapter) -> tuple[Case, LayerName]:
    """A model with an input, and the layer that raises."""
    case = draw(cases(adapter.grammar))
    return case, pick(draw, case.spec.names)


@law("L104", needs=("parallel", "transfer_log"), drawn=lambda a: failing(a))
def test_an_exception_in_a_layer_arrives_with_its_name_and_device(
    adapter: Adapter, drawn: tuple[Case, LayerName]
) -> None:
    """Of its own type; nothing runs behind it, and the model runs again (P42)."""
    case, name = drawn
    split = wrapped(adapter, case.spec)
    before = ran(adapter, split, case.signal)
    expected = course(case.spec, case.signal, values_of(case.spec), case.spec.placement, name)
    device = dict(zip(case.spec.names, case.spec.placement.plain.layers, strict=True))[name]
    adapter.log()

    answer = adapter.apply(split, Forward(case.signal, name))

    assert isinstance(answer, Refused)
    assert answer.kind == "layer"
    assert names(answer.message, str(name), device)
    assert crossed(adapter.log()) == expected.crossings
    assert ran(adapter, split, case.signal) == before


# A placement by memory


@law("L124", needs=("parallel",))
def test_without_devices_nothing_fits(adapter: Adapter) -> None:
    """Not even layers of no bytes (P23j)."""
    for shares_input in (True, False):
        assert adapter.answer(ByMemory((), 0, (), 0, shares_input)) is None
        assert adapter.answer(ByMemory((), 0, (0, 0), 0, shares_input)) is None


@law("L124", needs=("parallel",), problem=lambda a: problems())
def test_a_model_built_by_memory_is_where_the_rules_put_it(adapter: Adapter, problem: MemoryProblem) -> None:
    """Layer by layer, as the rules run step by step say, and the wrapper accepts it (P23a to P23f, P82)."""
    given = tuple(zip(adapter.grammar.devices, problem.capacities, strict=False))
    places = by_memory_oracle.places(problem.capacities, problem.sizes)
    event("placed" if places else "nothing fits")

    found = adapter.answer(ByMemory(given, problem.input, problem.hidden, problem.output, problem.shares_input))

    if places is None:
        assert found is None
        return
    expected = [given[place][0] for place in places]
    assert found == placement_of((*expected, expected[0]) if problem.shares_input else tuple(expected))
    starts = count()
    layers = tuple(layer("scale", "nothing", 1, "float32", starts) for _ in found.layers)
    wrapped(adapter, LayeredSpec(layers, found))
