"""Laws of what a load allows and refuses: options, failures, dtypes, shapes (L57, L58, L60, L61)."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, Final, TypeVar

import numpy as np
from hypothesis import event, example
from hypothesis import strategies as st

from . import record_expected as expected
from .burnpack_file import stored
from .calls import Observation, built, observed, output, read, runs
from .generators import pick, special_patterns, trees
from .law import law
from .observations import Bits
from .operations import Entry, LoadOptions, Record
from .programs import IDS
from .protocol import Adapter, Done, Handle, Refused
from .record_calls import loaded, loading, recorded, refused
from .record_generators import (
    OPTIONS,
    Become,
    Builds,
    Change,
    Pair,
    Way,
    all_patterns,
    builds,
    changes,
    edited,
    filled,
    near_shapes,
    pairs,
    strange_paths,
    ways,
    with_state,
)
from .record_operations import Fitting, Load, Save
from .spec_tree import FLOATS, Node, ParamSpec, RunningSpec, StructSpec, TreeSpec, Value, kind_of, numpy_dtype

OPTIONAL: Final = ("records", "records.options", "ids")
T = TypeVar("T", bound=Callable[..., None])


def _sorted(fitting: Any) -> Fitting:
    return replace(
        Fitting(fitting.missing, fitting.unused, fitting.mismatched), mismatched=tuple(sorted(fitting.mismatched))
    )


# Options


@law("L57", needs=OPTIONAL, case=lambda a: changes(a.grammar), way=ways, cast=lambda a: st.booleans())
def test_success_depends_on_what_does_not_fit_and_the_options_alone(
    adapter: Adapter, case: Change, way: Way, cast: bool
) -> None:
    """Under each of the eight sets: what is refused names every path; what succeeds takes all that fits.

    An option that is relaxed never turns success into failure (R9 to R12, R23 to R27).
    """
    spec = case.builds.target
    target = built(adapter, spec)
    record = edited(recorded(adapter, built(adapter, case.builds.source)), case.edits)
    fitting, before = expected.fitting(spec, record), observed(adapter, target, spec)
    event(f"missing {bool(fitting.missing)}, unused {bool(fitting.unused)}, mismatched {bool(fitting.mismatched)}")

    operation = loading(adapter, target, record, way)
    successes: list[LoadOptions] = []
    for options in OPTIONS:
        answer = adapter.apply(target, replace(operation, options=replace(options, cast=cast)))
        errors = expected.allowed(fitting, options)
        assert isinstance(answer, Refused) == (errors != Fitting())
        if isinstance(answer, Done):
            successes.append(options)
            assert _sorted(answer.output) == fitting
            _check_what_fits_is_taken(adapter, spec, before, answer.handle, record, cast)
        else:
            assert (answer.kind, _sorted(answer)) == (expected.kind_of_refusal(errors), errors)
            assert all(path in answer.message for path in (*errors.missing, *errors.unused, *errors.mismatched))
        assert observed(adapter, target, spec) == before
    assert all(options in successes for one in successes for options in OPTIONS if _is_laxer(options, one))


def _is_laxer(options: LoadOptions, than: LoadOptions) -> bool:
    return (
        options.allow_partial >= than.allow_partial
        and options.allow_unused >= than.allow_unused
        and options.validate <= than.validate
    )


def _check_what_fits_is_taken(
    adapter: Adapter, spec: TreeSpec, before: Observation, after: Handle, record: Record, cast: bool
) -> None:
    entries = expected.taken(spec, record)
    now = observed(adapter, after, spec)
    assert now.meta == expected.meta_after(before.meta, spec, entries, cast)
    own = {path: node.value.dtype for path, node in expected.recorded(spec).items()}
    same = {path: entry.bits for path, entry in entries.items() if not cast or entry.bits.dtype == own[path]}
    assert {path: bits for path, bits in now.bits.items() if path in same} == same
    kept = {path: bits for path, bits in before.bits.items() if path not in entries}
    assert {path: bits for path, bits in now.bits.items() if path not in entries} == kept


def tree_and_strange_paths(adapter: Adapter) -> Any:
    return trees(adapter.grammar, tied=True).flatmap(
        lambda spec: st.tuples(st.just(spec), st.permutations(strange_paths(spec)).map(lambda paths: tuple(paths[:3])))
    )


@law("L57", needs=OPTIONAL, case=tree_and_strange_paths, way=ways)
def test_a_record_of_something_else_is_told_whole(
    adapter: Adapter, case: tuple[TreeSpec, tuple[str, ...]], way: Way
) -> None:
    """What is missing in visit order, what is unused sorted; an empty record lacks everything (R24, R25, R28)."""
    spec, paths = case
    target = built(adapter, spec)
    for strange in (paths, ()):
        record = Record(tuple(Entry(path, all_patterns(adapter.grammar.dtypes[0])) for path in strange))

        answer = refused(adapter, target, loading(adapter, target, record, way))

        assert answer.kind == "record_missing"
        assert (answer.missing, answer.unused) == (tuple(expected.recorded(spec)), tuple(sorted(strange)))


def tied_and_another_value(adapter: Adapter) -> Any:
    """Two builds, the places of a tied parameter, and another value for it; None for the same."""

    def draw(draw: Any) -> tuple[Builds, tuple[str, ...], Bits | None]:
        both = draw(builds(adapter.grammar, tied=True))
        paths = pick(draw, [paths for paths in expected.objects(both.target) if len(paths) > 1])
        value = expected.recorded(both.target)[paths[0]].value
        return both, paths, filled(draw, value.dtype, value.shape) if draw(st.booleans()) else None

    return st.composite(draw)()


@law("L57", needs=OPTIONAL, case=tied_and_another_value, way=ways, number=lambda a: IDS)
def test_entries_for_a_tied_parameter_are_one_or_refused(adapter: Adapter, case: Any, way: Way, number: int) -> None:
    """Equal bits load as one, under the first of the ids; different ones are refused, both places named (D8)."""
    both, paths, other = case
    target = built(adapter, both.target)
    record = recorded(adapter, built(adapter, both.source))
    bits = next(entry.bits for entry in record.entries if entry.path == paths[0])
    last = {"bits": other or bits, "id": number}
    entries = [replace(entry, **last) if entry.path == paths[-1] else entry for entry in record.entries]
    event(f"different: {bits != last['bits']}")

    answer = adapter.apply(target, loading(adapter, target, Record(tuple(entries)), way))

    if bits == last["bits"]:
        assert isinstance(answer, Done), answer.message
        after = expected.meta_after(adapter.meta(target), both.target, expected.taken(both.target, record))
        assert adapter.meta(answer.handle) == after
        return
    assert isinstance(answer, Refused)
    assert (answer.kind, answer.mismatched) == ("record_mismatch", (paths[-1],))
    assert paths[0] in answer.message


# Failures

PLACES: Final = ("first", "middle", "last")


def _at(place: str, record: Record) -> int:
    return {"first": 0, "middle": len(record.entries) // 2, "last": len(record.entries) - 1}[place]


def builds_and_ways_to_fail(adapter: Adapter) -> Any:
    def failing(draw: Any) -> tuple[Any, str, Bits]:
        both = draw(builds(adapter.grammar, lazy=adapter.grammar.lazy))
        return both, pick(draw, ("shape", "kind", "missing", "unused")), filled(draw, "float32", (7, 1))

    return st.composite(failing)()


def _failing(adapter: Adapter, spec: TreeSpec, record: Record, at: int, failure: str, other: Bits) -> Record:
    """The record with the entry at that place made one that is refused."""
    entries = list(record.entries)
    entry = entries[at]
    match failure:
        case "missing":
            tied = {path for paths in expected.objects(spec) if entry.path in paths for path in paths}
            entries = [one for one in entries if one.path not in tied]
        case "unused":
            entries.insert(at, Entry(strange_paths(spec)[0], other))
        case "kind":
            kinds = [name for name in adapter.grammar.dtypes if kind_of(name) != kind_of(entry.bits.dtype)]
            bits = replace(entry.bits, dtype=kinds[0], data=bytes(_size(entry.bits) * numpy_dtype(kinds[0]).itemsize))
            entries[at] = replace(entry, bits=bits)
        case _:
            entries[at] = replace(entry, bits=other)
    return Record(tuple(entries))


def _size(bits: Bits) -> int:
    return Value(bits.dtype, bits.shape, bits.data).size


def places(adapter: Adapter) -> Any:
    return st.sampled_from(PLACES)


@law("L58", needs=OPTIONAL, place=places, case=builds_and_ways_to_fail, way=ways)
def test_a_refused_load_changes_nothing(adapter: Adapter, place: str, case: Any, way: Way) -> None:
    """Whichever entry is wrong: no value, id or running state, and nothing lazy has been made (R29)."""
    both, failure, other = case
    target = built(adapter, both.target)
    before = observed(adapter, target, both.target)
    good = recorded(adapter, built(adapter, both.source))
    bad = _failing(adapter, both.target, good, _at(place, good), failure, other)
    event(f"{failure}, {place}")

    answer = refused(adapter, target, loading(adapter, target, bad, way))

    assert answer.kind == {"missing": "record_missing", "unused": "record_unused"}.get(failure, "record_mismatch")
    assert observed(adapter, target, both.target) == before
    assert set(runs(adapter, target, both.target).values()) <= {0}
    after = observed(adapter, loaded(adapter, target, good, way), both.target)
    assert after.meta == expected.meta_after(before.meta, both.target, expected.taken(both.target, good))


@law(
    "L58",
    needs=("records", "ids", "format.burnpack"),
    place=places,
    case=lambda a: builds(a.grammar, lazy=a.grammar.lazy),
    memory=lambda a: st.booleans(),
)
def test_a_load_that_meets_damaged_data_changes_nothing(adapter: Adapter, place: str, case: Any, memory: bool) -> None:
    """A boolean that is neither 0 nor 1 is found when it is read, behind entries that were good (R29, R75, R104)."""
    source, target = (_with_booleans(spec, place) for spec in (case.source, case.target))
    module = built(adapter, target)
    before = observed(adapter, module, target)
    data = bytearray(output(adapter, built(adapter, source), Save("burnpack", in_memory=memory)))
    data[stored(bytes(data))["mask"].end - 1] = 2

    answer = refused(adapter, module, Load(bytes(data), "burnpack", in_memory=not memory))

    assert answer.kind == "record_format"
    assert "mask" in answer.message
    assert observed(adapter, module, target) == before
    assert set(runs(adapter, module, target).values()) <= {0}


def _with_booleans(spec: TreeSpec, place: str) -> TreeSpec:
    """The tree with a boolean parameter among its fields, and a running state in front."""
    fields = list(spec.root.fields)
    at = {"first": 0, "middle": len(fields) // 2, "last": len(fields)}[place]
    fields.insert(at, ("mask", ParamSpec(Value("bool", (2,), b"\x00\x01"))))
    return with_state(replace(spec, root=replace(spec.root, fields=tuple(fields))))


# Dtypes


def _one(adapter: Adapter, dtype: str, shape: tuple[int, ...], lazy: bool = False) -> TreeSpec:
    """A module of one parameter, zeros; and of a running state beside it, if it is of floats."""
    value = Value(
        dtype, shape, bytes(Value(dtype, shape, b"").size * numpy_dtype(dtype).itemsize), adapter.grammar.devices[-1]
    )
    fields: tuple[tuple[str, Node], ...] = (("weight", ParamSpec(value, lazy=lazy and adapter.grammar.lazy)),)
    if dtype in FLOATS and "running" in adapter.grammar.leaves:
        fields = (*fields, ("state", RunningSpec(value)))
    return TreeSpec(StructSpec(fields, "Root"))


def _check_pair(adapter: Adapter, pair: Pair, way: Way, cast: bool, lazy: bool) -> None:
    """An entry of one dtype, loaded into parameters of another."""
    spec = _one(adapter, pair.dtype, pair.entry.shape, lazy)
    target = built(adapter, spec)
    record = Record(tuple(Entry(path, pair.entry) for path in expected.recorded(spec)))
    operation = loading(adapter, target, record, way, LoadOptions(cast))
    if kind_of(pair.entry.dtype) != kind_of(pair.dtype):
        answer = refused(adapter, target, operation)
        assert (answer.kind, answer.mismatched) == ("record_mismatch", tuple(expected.recorded(spec)))
        assert all(said in answer.message for said in ("weight", pair.entry.dtype, pair.dtype))
        return
    answer = adapter.apply(target, operation)
    assert isinstance(answer, Done), answer.message
    after = pair.entry if not cast or pair.entry.dtype == pair.dtype else expected.cast(pair.entry, pair.dtype)
    for path in expected.recorded(spec):
        assert expected.same_number(read(adapter, answer.handle, path), after, pair.entry)
    assert set(runs(adapter, target, spec).values()) <= {0}


def every_class_of_float(law_: T) -> T:
    """An example of each class of bit pattern of each dtype of floats, for the equal dtype and for a wider one.

    And of a number beside a tie, which is rounded wrongly if it is rounded to float32 on the way.
    """
    tie = Bits("float64", (1,), np.float64(1 + 2**-8 + 2**-40).tobytes())
    law_ = example(pair=Pair(tie, "bfloat16"), way=Way(), cast=True, lazy=False)(law_)
    for dtype in FLOATS:
        for pattern in special_patterns(dtype):
            for other in (dtype, "float64"):
                law_ = example(pair=Pair(Bits(dtype, (1,), pattern), other), way=Way(), cast=True, lazy=False)(law_)
    return law_


@law(
    "L60",
    needs=OPTIONAL,
    pair=lambda a: pairs(a.grammar),
    way=ways,
    cast=lambda a: st.booleans(),
    lazy=lambda a: st.booleans(),
)
@every_class_of_float
def test_a_load_takes_the_records_dtype_or_casts_to_the_modules(
    adapter: Adapter, pair: Pair, way: Way, cast: bool, lazy: bool
) -> None:
    """FromRecord: the bits of the record. CastToModule: a cast, and the same bits where dtypes are equal.

    Kinds never mix: that is refused, naming both dtypes (R14, R17).
    """
    _check_pair(adapter, pair, way, cast, lazy)


@law("L60", needs=OPTIONAL, each=("cast", (False, True)))
def test_every_pair_of_dtypes_does_with_every_class_of_bit_pattern(adapter: Adapter, cast: bool) -> None:
    """As a loop over both (R14, R17)."""
    for entry, dtype in product(adapter.grammar.dtypes, repeat=2):
        _check_pair(adapter, Pair(all_patterns(entry), dtype), Way(), cast, lazy=False)


# Shapes


def changes_of_shape(adapter: Adapter) -> Any:
    return changes(adapter.grammar, ("reshape",), least=1)


@law("L61", needs=OPTIONAL, case=changes_of_shape, way=ways)
def test_shapes_must_be_equal_and_nothing_is_broadcast(adapter: Adapter, case: Change, way: Way) -> None:
    """Rank included: ones, a scalar for [1], transposed or flattened data are refused, naming the path (R12).

    Where that is no error, the parameter keeps its value (R26).
    """
    spec = case.builds.target
    target = built(adapter, spec)
    before = observed(adapter, target, spec)
    record = edited(recorded(adapter, built(adapter, case.builds.source)), case.edits)
    reshaped = {edit.path for edit in case.edits if isinstance(edit, Become)}
    sizes = {entry.path: _size(entry.bits) for entry in record.entries if entry.path in reshaped}
    event(f"as many elements: {any(size == expected.recorded(spec)[path].value.size for path, size in sizes.items())}")

    answer = refused(adapter, target, loading(adapter, target, record, way))

    assert answer.kind == "record_mismatch"
    assert set(answer.mismatched) == reshaped
    assert all(path in answer.message for path in reshaped)
    after = loaded(adapter, target, record, way, LoadOptions(validate=False))
    entries = expected.taken(spec, record)
    assert not reshaped & entries.keys()
    assert observed(adapter, after, spec).meta == expected.meta_after(before.meta, spec, entries)


@law("L61", needs=OPTIONAL)
def test_no_near_shape_is_taken_for_another(adapter: Adapter) -> None:
    """As a loop over small shapes (R12)."""
    for shape in [(), (1,), (2,), (1, 1), (2, 1), (2, 3), (0,), (0, 2), (1, 2, 3)]:
        spec = _one(adapter, adapter.grammar.dtypes[0], shape)
        target = built(adapter, spec)
        for other in near_shapes(shape):
            value = Value(adapter.grammar.dtypes[0], other, b"")
            bits = Bits(value.dtype, other, bytes(value.size * numpy_dtype(value.dtype).itemsize))
            record = Record(tuple(Entry(path, bits) for path in expected.recorded(spec)))
            answer = refused(adapter, target, loading(adapter, target, record, Way()))
            assert answer.mismatched == tuple(expected.recorded(spec)), (shape, other)
