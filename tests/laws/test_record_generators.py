"""The generators of records are good: what they draw is valid, and what the laws need to see is frequent enough.

As `test_generators`: each strategy is drawn 500 times or more, and least shares are stated.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import pytest

from tests.independent_draws import drawn, share

from . import record_expected as expected
from . import record_generators, spec_tree
from .generators import special_patterns
from .layered_model import ModelAdapter
from .observations import Bits
from .operations import Record
from .record_generators import (
    OPTIONS,
    Add,
    Become,
    Builds,
    Change,
    Drop,
    Move,
    Pair,
    builds,
    changes,
    edited,
    named_records,
    near_shapes,
    pairs,
    strange_paths,
    ways,
)
from .record_operations import Fitting
from .spec_tree import (
    FLOATS,
    ParamSpec,
    RunningSpec,
    kind_of,
    lazy_paths,
    leaves,
    numpy_dtype,
    places,
    tensors,
    walk,
)

pytestmark = pytest.mark.suite

GRAMMAR: Final = ModelAdapter.grammar


@cache
def some_builds() -> list[Builds]:
    return drawn(builds(GRAMMAR), 1000)


@cache
def some_changes() -> list[Change]:
    return drawn(changes(GRAMMAR))


def record_of(case: Change) -> Record:
    """The record that a load of the case is given; ids are 1."""
    source = case.builds.source
    return edited(expected.record(source, dict.fromkeys(leaves(source), 1)), case.edits)


def fitting_of(case: Change) -> Fitting:
    return expected.fitting(case.builds.target, record_of(case))


def test_two_builds_differ_in_all_but_structure_shapes_and_kinds() -> None:
    for case in some_builds():
        source, target = case.source, case.target
        assert walk(source) == walk(target)
        assert source.ties == target.ties
        assert list(places(source)) == list(places(target))
        for path, node in tensors(target).items():
            other = tensors(source)[path]
            assert (type(node), node.value.shape, node.value.kind) == (type(other), other.value.shape, other.value.kind)
            assert len(other.value.data) == other.value.size * numpy_dtype(other.value.dtype).itemsize
        for group in source.ties:
            assert len({repr(places(source)[path]) for path in group}) == 1


def differ(get: Callable[[Any], Any]) -> Callable[[Builds], bool]:
    """Whether the builds differ in something of a recorded leaf."""

    def holds(case: Builds) -> bool:
        source, target = expected.recorded(case.source), expected.recorded(case.target)
        return any(get(source[path]) != get(target[path]) for path in source)

    return holds


BUILDS: Final[dict[str, tuple[float, Callable[[Builds], Any]]]] = {
    "other values": (0.9, differ(lambda node: node.value.data)),
    "other dtypes": (0.4, differ(lambda node: node.value.dtype)),
    "other devices": (0.3, differ(lambda node: node.value.hardware)),
    "another association": (0.4, differ(lambda node: node.value.autodiff)),
    "other wishes": (0.3, differ(lambda node: getattr(node, "wish", None))),
    "lazy where the other is not": (0.4, differ(lambda node: getattr(node, "lazy", None))),
    "lazy in the target": (0.4, lambda case: lazy_paths(case.target)),
    "no elements": (0.15, lambda case: any(n.value.size == 0 for n in expected.recorded(case.target).values())),
    "rank 0": (0.1, lambda case: any(n.value.shape == () for n in expected.recorded(case.target).values())),
    "a running state": (0.1, lambda case: any(isinstance(n, RunningSpec) for n in leaves(case.target).values())),
    "ties": (0.25, lambda case: any(len(paths) > 1 for paths in expected.objects(case.target))),
    "a matrix that is not square": (
        0.3,
        lambda case: any(
            isinstance(n, ParamSpec) and n.value.size and len(s := n.value.shape) > 1 and s[-1] != s[-2]
            for n in leaves(case.target).values()
        ),
    ),
}


@pytest.mark.parametrize("what", BUILDS)
def test_builds_have(what: str) -> None:
    least, holds = BUILDS[what]
    assert share(some_builds(), holds) >= least


CHANGES: Final[dict[str, tuple[float, Callable[[Change], Any]]]] = {
    "no edit": (0.1, lambda case: not case.edits),
    "several edits": (0.2, lambda case: len(case.edits) > 1),
    "an entry dropped": (0.1, lambda case: any(isinstance(edit, Drop) for edit in case.edits)),
    "an entry added": (0.1, lambda case: any(isinstance(edit, Add) for edit in case.edits)),
    "an entry renamed": (0.1, lambda case: any(isinstance(edit, Move) for edit in case.edits)),
    "an entry of another shape": (0.1, lambda case: changed(case, lambda bits, own: bits.shape != own.shape)),
    "an entry of another kind": (0.1, lambda case: changed(case, lambda bits, own: kind_of(bits.dtype) != own.kind)),
    "something missing": (0.15, lambda case: fitting_of(case).missing),
    "something unused": (0.2, lambda case: fitting_of(case).unused),
    "something mismatched": (0.25, lambda case: fitting_of(case).mismatched),
    "one cause only": (0.3, lambda case: causes(case) == 1),
    "two causes or three": (0.15, lambda case: causes(case) > 1),
    "a load that fails": (0.5, lambda case: fitting_of(case) != Fitting()),
    "a load that succeeds": (0.2, lambda case: fitting_of(case) == Fitting()),
    "different values for tied places": (0.01, lambda case: ties_broken(case)),
}


def changed(case: Change, holds: Callable[[Bits, Any], bool]) -> bool:
    nodes = expected.recorded(case.builds.target)
    return any(isinstance(edit, Become) and holds(edit.bits, nodes[edit.path].value) for edit in case.edits)


def causes(case: Change) -> int:
    fitting = fitting_of(case)
    return sum(bool(paths) for paths in (fitting.missing, fitting.unused, fitting.mismatched))


def ties_broken(case: Change) -> bool:
    nodes = expected.recorded(case.builds.target)
    entries = {entry.path: entry.bits for entry in record_of(case).entries}
    return any(
        entries[path].shape == nodes[path].value.shape and kind_of(entries[path].dtype) == nodes[path].value.kind
        for path in fitting_of(case).mismatched
    )


@pytest.mark.parametrize("what", CHANGES)
def test_changes_have(what: str) -> None:
    least, holds = CHANGES[what]
    assert share(some_changes(), holds) >= least


def test_a_third_of_all_loads_fail_and_a_third_succeed() -> None:
    """Over all eight sets of options, as L57 tries them."""
    found = [expected.allowed(fitting_of(case), options) == Fitting() for case in some_changes() for options in OPTIONS]

    assert 0.3 <= share(found, lambda success: success) <= 0.7


def test_an_edited_record_is_a_record() -> None:
    """No path twice, none with an empty component, bytes as many as dtype and shape say, booleans 0 or 1."""
    for case in some_changes():
        paths = [entry.path for entry in record_of(case).entries]
        assert len(set(paths)) == len(paths)
        assert all(name for path in paths for name in path.split("."))
        for entry in record_of(case).entries:
            value = spec_tree.Value(entry.bits.dtype, entry.bits.shape, entry.bits.data)
            assert len(value.data) == value.size * numpy_dtype(value.dtype).itemsize
            assert value.dtype != "bool" or set(value.data) <= {0, 1}


def test_changes_print_as_the_python_that_rebuilds_them() -> None:
    names = {**vars(spec_tree), **vars(record_generators), "Bits": Bits}
    for case in some_changes():
        assert eval(repr(case), names) == case


def test_strange_paths_are_none_of_the_record() -> None:
    for case in some_builds():
        found = strange_paths(case.target)
        assert found
        assert not set(found) & expected.recorded(case.target).keys()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (1, 1), (0,), (2, 0), (1, 2, 3)])
def test_near_shapes_are_others(shape: tuple[int, ...]) -> None:
    found = near_shapes(shape)

    assert found
    assert shape not in found
    assert len(set(found)) == len(found)
    assert (1, *shape) in found


def test_pairs_are_often_of_one_kind_and_of_all_dtypes() -> None:
    found = drawn(pairs(GRAMMAR))

    def is_special(pair: Pair) -> bool:
        width = numpy_dtype(pair.entry.dtype).itemsize
        data = pair.entry.data
        elements = {data[at : at + width] for at in range(0, len(data), width)}
        return pair.entry.dtype in FLOATS and bool(elements & set(special_patterns(pair.entry.dtype)))

    assert share(found, lambda pair: kind_of(pair.entry.dtype) == kind_of(pair.dtype)) >= 0.4
    assert share(found, lambda pair: kind_of(pair.entry.dtype) != kind_of(pair.dtype)) >= 0.2
    assert share(found, lambda pair: pair.entry.dtype != pair.dtype) >= 0.5
    assert share(found, lambda pair: pair.entry.dtype == pair.dtype) >= 0.1
    assert {pair.dtype for pair in found} == {pair.entry.dtype for pair in found} == set(GRAMMAR.dtypes)
    assert share(found, is_special) >= 0.1


def test_named_records_have_deep_names_other_alphabets_and_any_order() -> None:
    found = drawn(named_records(GRAMMAR))
    names = [[entry.path for entry in record.entries] for record in found]

    assert share(names, lambda paths: any(path.count(".") == 199 for path in paths)) >= 0.3
    assert share(names, lambda paths: not all(path.isascii() for path in paths)) >= 0.3
    assert share(names, lambda paths: paths != sorted(paths, key=str.encode)) >= 0.3
    assert share(found, lambda record: any(entry.id is None for entry in record.entries)) >= 0.3
    assert any(not record.entries for record in found)


def test_every_way_to_load_occurs() -> None:
    found = drawn(ways(ModelAdapter()))

    assert {(way.format, way.in_memory) for way in found} == {(None, False), ("burnpack", True), ("burnpack", False)}
