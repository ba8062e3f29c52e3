"""The generators of layered models are good: valid, and what the laws need to see is frequent enough."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final, get_args

import numpy as np
import pytest

from tests.independent_draws import drawn, share

from .layered import CAUSAL, REMEMBERING, ROWS, STEPS, Apart, LayeredSpec, Placement, hardware, nodes
from .layered_expected import Misplaced, course, misplaced, stages, taken_apart, values_of
from .layered_generators import (
    BESIDE,
    HELD,
    Case,
    Decoding,
    bare_dropping_cases,
    cases,
    decodings,
    dropping_cases,
    models,
    with_lazy,
    with_other_values,
)
from .layered_model import ModelAdapter
from .placement_generators import (
    MOST_HIDDEN,
    flagged_placements,
    flagged_split_placements,
    placements,
    placements_of,
    split_placements,
)
from .spec_tree import (
    ALWAYS,
    LAYOUTS,
    ConfigSpec,
    ConstantSpec,
    DictSpec,
    OptionalSpec,
    ParamSpec,
    RunningSpec,
    SequenceSpec,
    StructSpec,
    leaves,
    tensors,
)
from .test_draws import dropping
from .test_parallel import Checked, checks
from .test_stages import taken

pytestmark = pytest.mark.suite

GRAMMAR: Final = ModelAdapter.grammar


@cache
def some_cases() -> list[Case]:
    return drawn(cases(GRAMMAR))


@cache
def some_decodings() -> list[Decoding]:
    return drawn(decodings(GRAMMAR))


def shares(found: Sequence[Any], **facts: Callable[[Any], Any]) -> dict[str, float]:
    """The part of what was drawn for which each fact holds."""
    return {name: share(found, fact) for name, fact in facts.items()}


def changes(placement: Placement) -> int:
    return sum(one != other for one, other in pairwise(placement.layers))


def test_placements_are_split_and_come_back_and_have_every_number_of_layers() -> None:
    """Laws, section j."""
    found = shares(
        drawn(placements(GRAMMAR)),
        valid=lambda p: len(p.hidden) <= MOST_HIDDEN and {*p.layers} <= {*GRAMMAR.devices},
        two_changes=lambda p: changes(p) >= 2,
        comes_back=lambda p: changes(p) >= len({*p.layers}),
        three_devices=lambda p: len({*p.layers}) >= 3,
        ends_apart=lambda p: p.hidden and p.input != p.hidden[0] and p.output != p.hidden[-1],
        several_in_a_run=lambda p: any(number > 1 for _, number in stages(p.hidden)),
        many_hidden=lambda p: len(p.hidden) >= 4,
        no_hidden=lambda p: not p.hidden,
        one_device=lambda p: len({*p.layers}) == 1,
    )

    assert found.pop("valid") == 1
    assert found["two_changes"] > 0.3
    assert 0.02 < found.pop("no_hidden") < 0.4
    assert 0.02 < found.pop("one_device") < 0.4
    assert min(found.values()) > 0.1, found


def test_other_placements_have_what_they_promise() -> None:
    """A change of device; a number of layers; flags on some, all or none."""
    flags = shares(
        drawn(flagged_placements(GRAMMAR)),
        plain=lambda p: p == p.plain,
        all=lambda p: all(device != hardware(device) for device in p.layers),
        mixed=lambda p: len({device != hardware(device) for device in p.layers}) == 2,
    )

    assert share(drawn(split_placements(GRAMMAR)), changes) == 1
    assert share(drawn(placements_of(GRAMMAR, 3)), lambda p: len(p.hidden) == 3) == 1
    assert min(flags.values()) > 0.1, flags


def is_valid(spec: LayeredSpec) -> bool:
    """As many layers as devices, values on them, ties between equal specs, paths that are all different."""
    held = leaves(spec.tree)
    on_place = all(
        set(values.values()) <= {hardware(device)}
        for values, device in zip(spec.there.values(), spec.placement.layers, strict=True)
    )
    alike = all(len({repr(held[path]) for path in group}) == 1 for group in spec.tree.ties)
    return (
        len(spec.layers) == len(spec.placement.layers)
        and on_place
        and alike
        and len({*spec.paths.values()}) == len(spec.layers)
    )


def test_models_are_valid_and_hold_all_that_layers_can() -> None:
    """Every step, everything that can be held, all containers, ties, parameters outside the layers."""
    specs = [case.spec for case in some_cases()]
    steps = {name: share(specs, lambda s, name=name: any(one.step == name for one in s.layers)) for name in STEPS}
    held = {field for spec in specs for layer in spec.layers for field, _ in layer.fields}
    facts = shares(
        specs,
        lists=lambda s: s.container == "list",
        tuples=lambda s: s.container == "tuple",
        dicts=lambda s: s.container == "dict",
        backwards=lambda s: s.backwards,
        extra=lambda s: s.extra,
        double=lambda s: s.dtype == "float64",
        lazy=lambda s: any(isinstance(n, ParamSpec) and n.lazy for n in leaves(s.tree).values()),
        no_tensor=lambda s: not all(s.there.values()),
        several=lambda s: any(len(values) > 2 for values in s.there.values()),
    )

    assert all(map(is_valid, specs))
    assert min(steps.values()) > 0.05, steps
    assert {"seen", "fixed", "count", "on", "mask", "unused"} <= held
    assert len({*HELD}) == 7
    assert share(specs, lambda s: s.tied) > 0.01
    assert min(facts.values()) > 0.15, facts


def test_changed_models_are_changed_as_they_say() -> None:
    """Other values of all that is recorded, and of nothing else; lazy parameters that raise."""
    for spec in [case.spec for case in some_cases()[::10]]:
        before, after = tensors(spec.tree), tensors(with_other_values(spec).tree)
        for path, node in before.items():
            other = isinstance(node, (ParamSpec, RunningSpec)) and node.value.size and path != "extra"
            assert (after[path].value.data != node.value.data) == bool(other)
        failing = leaves(with_lazy(spec, ALWAYS).tree).values()
        assert all(node.fails == ALWAYS * node.lazy for node in failing if isinstance(node, ParamSpec))


def has(of: type, **fields: Any) -> Callable[[Case], bool]:
    """Whether a case's signal has such a node."""
    return lambda case: any(
        isinstance(node, of) and all(getattr(node, name) == value for name, value in fields.items())
        for _, node in nodes(case.signal.node)
    )


def test_signals_are_trees_of_all_kinds_of_tensors_on_any_devices() -> None:
    """Laws, section j: not contiguous, zero-size, rank 0, a tensor twice, None, dicts, configuration."""
    found = some_cases()

    def some(holds: Callable[[Any], Any]) -> Callable[[Case], bool]:
        return lambda case: any(map(holds, case.signal.values().values()))

    facts = shares(
        found,
        alone=lambda c: isinstance(c.signal.node, ConstantSpec),
        twice=lambda c: c.signal.ties,
        lists=has(SequenceSpec, kind="list"),
        tuples=has(SequenceSpec, kind="tuple"),
        dicts=has(DictSpec),
        modules=has(StructSpec),
        nothing=has(OptionalSpec),
        setting=has(ConfigSpec),
        nested=lambda c: any("." in path for path, _ in nodes(c.signal.node)),
        empty=some(lambda v: not v.size),
        number=some(lambda v: v.shape == ()),
        passing=some(lambda v: v.dtype not in ("float32", "float64")),
        several_devices=lambda c: len({v.device for v in c.signal.values().values()}) > 1,
        elsewhere=lambda c: c.spec.placement.input not in {v.device for v in c.signal.values().values()},
    )
    layouts = {layout: share(found, some(lambda v, layout=layout: v.layout == layout)) for layout in LAYOUTS}

    assert len(BESIDE) == 10
    assert min(facts.values()) > 0.05, facts
    assert facts["several_devices"] > 0.2
    assert min(layouts.values()) > 0.1, layouts


def test_forwards_do_something_and_stay_finite() -> None:
    """The output differs from the input, signals change size on the way, and no number is lost in infinity."""

    def out(case: Case) -> Any:
        return course(case.spec, case.signal, values_of(case.spec), case.spec.placement)

    def resized(case: Case) -> bool:
        value, made = (next(iter(signal.values().values())) for signal in (case.signal, out(case).output))
        return len(value.data) != len(made.data)

    facts = shares(
        some_cases(),
        finite=lambda c: np.isfinite(out(c).peak) and out(c).peak < 2.0**30,
        changed=lambda c: out(c).output.on("x") != c.signal.on("x"),
        resized=resized,
        crossing=lambda c: out(c).crossings,
    )

    assert facts["finite"] == 1
    assert facts["changed"] > 0.8
    assert facts["resized"] > 0.3
    assert facts["crossing"] > 0.6


def test_checks_are_accepted_and_refused_for_every_reason() -> None:
    """L96: a number, any layer, any value of it; by another placement, or by a value that strays."""

    def wrong(case: Checked) -> Misplaced | None:
        return misplaced(case.spec.there, case.placement)

    def field(case: Checked) -> Any:
        found = wrong(case)
        if found is None or found.layer is None:
            return None
        return tensors(case.spec.tree)[f"{case.spec.paths[found.layer]}.{found.path}"]

    def not_first(case: Checked) -> bool:
        found = wrong(case)
        return found is not None and found.layer is not None and found.path != next(iter(case.spec.there[found.layer]))

    facts = shares(
        drawn(checks(ModelAdapter())),
        accepted=lambda c: wrong(c) is None,
        accepted_elsewhere=lambda c: wrong(c) is None and c.placement.plain != c.spec.placement.plain,
        number=lambda c: wrong(c) and wrong(c).layer is None,
        input=lambda c: wrong(c) and wrong(c).layer == "input",
        hidden=lambda c: wrong(c) and isinstance(wrong(c).layer, int),
        output=lambda c: wrong(c) and wrong(c).layer == "output",
        not_first=not_first,
        lazy=lambda c: isinstance(field(c), ParamSpec) and field(c).lazy,
        integers=lambda c: isinstance(field(c), ParamSpec) and field(c).value.kind != "float",
        state=lambda c: isinstance(field(c), RunningSpec),
        constant=lambda c: isinstance(field(c), ConstantSpec),
    )

    assert 0.2 < facts["accepted"] < 0.7
    assert min(facts.values()) > 0.01, facts
    assert min(facts[name] for name in ("number", "input", "hidden", "output")) > 0.04, facts


def test_models_are_taken_apart_and_refused_whatever_into_layers_does() -> None:
    """L102."""
    found = drawn(taken(ModelAdapter()))

    def refused(case: Case) -> bool:
        return isinstance(taken_apart(case.spec, case.spec.there, case.spec.placement), Misplaced)

    assert 0.2 < share(found, refused) < 0.7
    for apart in get_args(Apart):
        these = [case for case in found if case.spec.apart == apart]
        assert len(these) > len(found) / 20
        assert any(map(refused, these)) == (apart != "as they are")
        assert not all(map(refused, these)) or apart in ("dropped", "added")


def test_sequences_are_cut_in_every_way_and_models_remember() -> None:
    """L114: pieces of no positions too; layers whose caches store values."""
    found = some_decodings()
    facts = shares(
        found,
        three_pieces=lambda d: len(d.lengths) >= 3,
        an_empty_piece=lambda d: 0 in d.lengths,
        one_by_one=lambda d: len(d.lengths) > 2 and max(d.lengths) == 1,
        remembers=lambda d: any(layer.step in REMEMBERING for layer in d.spec.layers[1:-1]),
        positions=lambda d: any(layer.step == "position" for layer in d.spec.layers[1:-1]),
        several_layers=lambda d: len(d.spec.layers) > 4,
        ids=lambda d: d.spec.layers[0].step == "embed",
        beside=lambda d: not isinstance(d.whole.node, ConstantSpec),
    )

    for case in found:
        assert all(layer.step in CAUSAL for layer in case.spec.layers[1:-1])
        assert sum(case.lengths) == case.whole.values()[case.path].shape[0] <= 8 < ROWS
        assert [piece.values()[case.path].shape[0] for piece in case.pieces()] == list(case.lengths)
    assert min(facts.values()) > 0.04, facts
    assert min(facts[name] for name in ("three_pieces", "an_empty_piece", "remembers")) > 0.2, facts


def test_models_shrink_to_two_layers_on_the_first_device() -> None:
    """The first draw of a derandomized run is the simplest."""
    simplest = drawn(models(GRAMMAR))[0]

    assert simplest.placement == Placement("cpu:0", (), "cpu:0")
    assert [layer.step for layer in simplest.layers] == ["scale", "scale"]


def test_models_that_leave_elements_out_do_so_on_several_devices() -> None:
    """Laws, L105: always in one layer at least, over inputs that are autodiff throughout."""
    split, bare = drawn(dropping_cases(GRAMMAR, flagged_split_placements(GRAMMAR))), drawn(bare_dropping_cases(GRAMMAR))
    found = shares(
        split,
        on_several=lambda case: len({*dropping(case)}) > 1,
        with_others=lambda case: {layer.step for layer in case.spec.layers} & {"affine", "norm", "double", "prefix"},
        several_tensors=lambda case: len(case.signal.values()) > 1,
    )

    assert all(dropping(case) for case in (*split, *bare))
    assert all(value.autodiff for case in (*split, *bare) for value in case.signal.values().values())
    assert min(found.values()) > 0.2, found
