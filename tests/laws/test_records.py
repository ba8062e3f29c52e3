"""Laws of what records hold and what loading them does (L53, L54, L56, L59, L62, L70).

Each is put to records as they are and to files of them. L57, L58, L60 and L61
are in `test_load_options`, L55, L63 and L64 in `test_files`.
"""

import re
from dataclasses import replace
from typing import Any

from hypothesis import event
from hypothesis import strategies as st

from . import record_expected as expected
from .calls import Observation, all_bits, applied, built, observed, output, runs
from .generators import trees
from .law import law
from .observations import Bits
from .operations import LoadOptions, Map, Number, Record, Update
from .programs import some_paths
from .protocol import Adapter
from .record_calls import loaded, recorded, refused
from .record_generators import Builds, Way, all_patterns, builds, ways, with_state
from .record_operations import Open, Rename, Rules, Save, Turn
from .spec_tree import (
    FLOATS,
    Node,
    ParamSpec,
    RunningSpec,
    StructSpec,
    TreeSpec,
    Value,
    lazy_paths,
    leaves,
)

RECORDS = ("records", "ids", "groups")


def both(adapter: Adapter) -> Any:
    return builds(adapter.grammar)


# Content


@law("L53", needs=RECORDS, spec=lambda a: trees(a.grammar))
def test_a_record_has_every_parameter_and_running_state_in_visit_order(adapter: Adapter, spec: TreeSpec) -> None:
    """With path, id, dtype, shape and bits; no flag, plain tensor or configuration (R1 to R4). Lazy ones are made."""
    module = built(adapter, spec)

    record = recorded(adapter, module)

    assert record == expected.record(spec, adapter.meta(module).ids())
    assert adapter.meta(module).lazy() == set()
    assert set(runs(adapter, module, spec).values()) <= {1}


def tree_and_paths(adapter: Adapter) -> Any:
    return trees(adapter.grammar).flatmap(lambda spec: st.tuples(st.just(spec), some_paths(list(leaves(spec)))))


@law("L53", needs=RECORDS, case=tree_and_paths)
def test_a_groups_record_has_what_the_group_matches(adapter: Adapter, case: tuple[TreeSpec, tuple[str, ...]]) -> None:
    """In visit order, whatever the order of the group (R6)."""
    spec, paths = case
    module = built(adapter, spec)

    assert recorded(adapter, module, paths[::-1]) == expected.record(spec, adapter.meta(module).ids(), paths)


@law("L53", "L55", needs=(*RECORDS, "format.burnpack"), spec=lambda a: trees(a.grammar), memory=lambda a: st.booleans())
def test_a_modules_file_has_its_record(adapter: Adapter, spec: TreeSpec, memory: bool) -> None:
    """Offered in byte-wise order of names (R36, R37a, R40)."""
    module = built(adapter, spec)

    data = output(adapter, module, Save("burnpack", in_memory=memory))

    record = expected.record(spec, adapter.meta(module).ids())
    assert output(adapter, module, Open(data, "burnpack", not memory)) == expected.in_file_order(record)


# Round trips


def _check_taken(adapter: Adapter, spec: TreeSpec, before: Observation, after: Any, record: Record) -> None:
    """The module is what it was, but for what it takes of a record."""
    entries = expected.taken(spec, record)
    now = observed(adapter, after, spec)
    assert now.meta == expected.meta_after(before.meta, spec, entries)
    assert now.bits == before.bits | {path: entry.bits for path, entry in entries.items()}


@law("L54", needs=(*RECORDS, "map"), case=both, way=ways, start=lambda a: st.sampled_from((0, 2**64 - 2, 2**63)))
def test_a_load_takes_bits_and_ids_and_leaves_the_rest(adapter: Adapter, case: Builds, way: Way, start: int) -> None:
    """Devices, trainability, flags, configuration, constants and ties stay those of the build that loads.

    It has other numbers, dtypes, devices and ids, and is lazy elsewhere (M34, R18 to R21, D8).
    """
    target = built(adapter, case.target)
    before = observed(adapter, target, case.target)
    record = recorded(adapter, applied(adapter, built(adapter, case.source), Map(((Number(start),),))))
    event(f"lazy: {bool(lazy_paths(case.target))}, devices differ: {_devices(case.source) != _devices(case.target)}")

    after = loaded(adapter, target, record, way)

    _check_taken(adapter, case.target, before, after, record)
    assert set(runs(adapter, target, case.target).values()) <= {0}


def _devices(spec: TreeSpec) -> list[str]:
    return [node.value.hardware for node in expected.recorded(spec).values()]


@law("L54", needs=RECORDS, each=("dtype", FLOATS), way=ways)
def test_every_class_of_bit_pattern_survives_a_round_trip(adapter: Adapter, dtype: str, way: Way) -> None:
    """Signed zeros, subnormals, infinities, quiet and signalling NaNs with payloads; rank 0; no elements at all."""
    patterns = all_patterns(dtype)
    values = {"all": patterns, "scalar": Bits(dtype, (), patterns.data[-len(patterns.data) // 22 :])}
    values |= {"none": Bits(dtype, (0,), b""), "flat": Bits(dtype, (3, 0, 2), b"")}

    def holding(blank: bool) -> TreeSpec:
        fields: list[tuple[str, Node]] = []
        for name, bits in values.items():
            value = Value(dtype, bits.shape, bytes(len(bits.data)) if blank else bits.data, adapter.grammar.devices[0])
            fields.append((name, ParamSpec(value, lazy=adapter.grammar.lazy)))
            fields += [(f"{name}_state", RunningSpec(value))] if "running" in adapter.grammar.leaves else []
        return TreeSpec(StructSpec(tuple(fields), "Root"))

    record = recorded(adapter, built(adapter, holding(blank=False)))

    after = loaded(adapter, built(adapter, holding(blank=True)), record, way)

    assert all_bits(adapter, after, holding(blank=True)) == {
        path: values[path.removesuffix("_state")] for path in expected.recorded(holding(blank=True))
    }


# Projection and order


@law("L56", needs=RECORDS, case=both, way=ways)
def test_loading_twice_is_loading_once(adapter: Adapter, case: Builds, way: Way) -> None:
    """Rule R31."""
    record = recorded(adapter, built(adapter, case.source))
    once = loaded(adapter, built(adapter, case.target), record, way)

    twice = loaded(adapter, once, record, way)

    assert observed(adapter, twice, case.target) == observed(adapter, once, case.target)


@law("L56", needs=RECORDS, spec=lambda a: trees(a.grammar), way=ways)
def test_a_module_that_loads_its_own_record_stays_what_it_is(adapter: Adapter, spec: TreeSpec, way: Way) -> None:
    """But that lazy parameters have their values, which recording made (R5, R31)."""
    module = built(adapter, spec)
    before = adapter.meta(module)

    after = loaded(adapter, module, recorded(adapter, module), way)

    assert adapter.meta(after) == before.settled()
    assert all_bits(adapter, after, spec) == all_bits(adapter, module, spec)


def split_in_two(adapter: Adapter) -> Any:
    """Two builds, and some of the objects that are recorded."""
    return both(adapter).flatmap(
        lambda case: st.tuples(st.just(case), some_paths([paths[0] for paths in expected.objects(case.target)]))
    )


@law("L56", needs=(*RECORDS, "records.options"), case=split_in_two, way=ways)
def test_two_records_of_different_parameters_load_in_either_order(adapter: Adapter, case: Any, way: Way) -> None:
    """And come to what the whole record comes to (R31, R32). Tied places belong together (D8)."""
    builds_, firsts = case
    spec = builds_.target
    source, target = built(adapter, builds_.source), built(adapter, spec)
    inside = tuple(path for paths in expected.objects(spec) if paths[0] in firsts for path in paths)
    halves = [recorded(adapter, source, inside)]
    halves.append(recorded(adapter, source, tuple(path for path in expected.recorded(spec) if path not in inside)))
    event(f"both have entries: {all(half.entries for half in halves)}")

    def after(*records: Record) -> Observation:
        module = target
        for record in records:
            module = loaded(adapter, module, record, way, LoadOptions(allow_partial=len(records) > 1))
        return observed(adapter, module, spec)

    assert after(*halves) == after(*halves[::-1]) == after(recorded(adapter, source))


def builds_and_group(adapter: Adapter) -> Any:
    return both(adapter).flatmap(lambda case: st.tuples(st.just(case), some_paths(list(leaves(case.target)))))


@law("L59", needs=(*RECORDS, "records.options"), case=builds_and_group, way=ways)
def test_a_groups_record_changes_what_it_matches_and_what_is_tied_to_it_only(
    adapter: Adapter, case: Any, way: Way
) -> None:
    """The rest keeps values, ids and laziness (R6, R32, D8)."""
    builds_, paths = case
    target = built(adapter, builds_.target)
    before = observed(adapter, target, builds_.target)
    record = recorded(adapter, built(adapter, builds_.source), paths)
    reached = expected.taken(builds_.target, record)
    event(f"reaches tied places outside the group: {bool(reached.keys() - set(paths))}")

    after = loaded(adapter, target, record, way, LoadOptions(allow_partial=True))

    assert {entry.path for entry in record.entries} == set(paths) & expected.recorded(builds_.target).keys()
    _check_taken(adapter, builds_.target, before, after, record)


@law("L59", needs=(*RECORDS, "records.options", "running"), case=both, way=ways, whole=lambda a: st.booleans())
def test_a_running_state_is_the_modules_own_after_a_load(adapter: Adapter, case: Builds, way: Way, whole: bool) -> None:
    """Whether the record has it or not: when it changes, that of the version before does not, nor the reverse (M97)."""
    source, spec = with_state(case.source), with_state(case.target)
    target = built(adapter, spec)
    record = recorded(adapter, built(adapter, source), ("state",) if whole else ())
    after = loaded(adapter, target, record, way, LoadOptions(allow_partial=True))

    for changed, other in ((after, target), (target, after)):
        seen = observed(adapter, other, spec)
        output(adapter, changed, Update("state", 1))
        assert observed(adapter, other, spec) == seen


def builds_and_order(adapter: Adapter) -> Any:
    return both(adapter).flatmap(
        lambda case: st.tuples(st.just(case), st.permutations(list(expected.recorded(case.target))))
    )


@law("L62", needs=RECORDS, case=builds_and_order, way=ways)
def test_the_order_of_entries_does_not_matter(adapter: Adapter, case: Any, way: Way) -> None:
    """Rule R33."""
    builds_, order = case
    record = recorded(adapter, built(adapter, builds_.source))
    shuffled = Record(tuple(sorted(record.entries, key=lambda entry: order.index(entry.path))))
    target = built(adapter, builds_.target)

    one, other = (loaded(adapter, target, each, way) for each in (record, shuffled))

    assert observed(adapter, one, builds_.target) == observed(adapter, other, builds_.target)
    assert recorded(adapter, other) == recorded(adapter, one)


# Mappers and names


def builds_to_turn(adapter: Adapter) -> Any:
    """Two builds, and which parameters of each are held transposed."""

    def turned(spec: TreeSpec) -> Any:
        return some_paths([path for path, node in leaves(spec).items() if isinstance(node, ParamSpec)])

    return both(adapter).flatmap(lambda case: st.tuples(st.just(case), turned(case.source), turned(case.target)))


@law("L70", needs=(*RECORDS, "records.mappers"), case=builds_to_turn, way=ways)
def test_mappers_that_invert_each_other_keep_records_in_one_orientation(adapter: Adapter, case: Any, way: Way) -> None:
    """Recorded, loaded, loaded once more: initialised or lazy, compared and stored as files have it (M32, M33, R13)."""
    builds_, of_source, of_target = case
    plain, spec = built(adapter, builds_.source), builds_.target
    target = applied(adapter, built(adapter, spec), Turn(of_target))
    record = recorded(adapter, applied(adapter, plain, Turn(of_source)))
    turned = {path for paths in expected.objects(spec) if set(paths) & set(of_target) for path in paths}
    event(f"turns one that is not square: {any(_not_square(expected.recorded(spec)[path].value) for path in turned)}")

    assert record == recorded(adapter, plain)
    once = loaded(adapter, target, record, way)
    for after in (once, loaded(adapter, once, record, way)):
        assert {path: adapter.bits(after, path) for path in expected.recorded(spec)} == {
            entry.path: _exchanged(entry.bits) if entry.path in turned else entry.bits for entry in record.entries
        }
        back = recorded(adapter, after)
        assert [replace(entry, id=None) for entry in back.entries] == [
            replace(entry, id=None) for entry in record.entries
        ]
        taken = expected.meta_after(adapter.meta(target), spec, expected.taken(spec, record))
        assert adapter.meta(after).ids() == taken.ids()
    assert set(runs(adapter, target, spec).values()) <= {0}


def _not_square(value: Value) -> bool:
    return len(value.shape) > 1 and value.size > 0 and value.shape[-1] != value.shape[-2]


def _exchanged(bits: Bits) -> Bits:
    if len(bits.shape) < 2:
        return bits
    array = Value(bits.dtype, bits.shape, bits.data).numpy().swapaxes(-1, -2)
    return Bits(bits.dtype, array.shape, array.tobytes())


def tree_and_rules(adapter: Adapter) -> Any:
    """A tree, and rules whose expressions find pieces of its paths."""

    def rules(spec: TreeSpec) -> Any:
        pieces = {piece for path in expected.recorded(spec) for piece in path.split(".")}
        words = [re.escape(piece) for piece in sorted(pieces)]
        expressions = [form.format(word) for word in words for form in ("{}", "^{}", "{}$", r"\b{}\b", "({})")]
        expressions += [r"\.", r"(\d+)", r"(\w+)\.(\w+)", r"^(.)", ".+"]
        rule = st.tuples(st.sampled_from(expressions), st.sampled_from(("z", "m.w", "weight", r"\g<0>_", r"x\g<0>")))
        return st.lists(rule, min_size=1, max_size=3).map(tuple)

    return trees(adapter.grammar).flatmap(lambda spec: st.tuples(st.just(spec), rules(spec)))


@law("L70", needs=(*RECORDS, "records.rename"), case=tree_and_rules)
def test_renaming_by_a_list_is_renaming_by_its_rules_in_turn(adapter: Adapter, case: tuple[TreeSpec, Rules]) -> None:
    """All matches, in order; entries keep all but their names; names that become one are refused, both named (R34)."""
    spec, rules = case
    module = built(adapter, spec)
    record = recorded(adapter, module)
    names = {entry.path: entry.path for entry in record.entries}
    for pattern, replacement in rules:
        names = {path: re.sub(pattern, replacement, name) for path, name in names.items()}
    meet = {path for path, name in names.items() if list(names.values()).count(name) > 1}
    event(f"names meet: {bool(meet)}, change: {any(path != name for path, name in names.items())}")

    if meet:
        answer = refused(adapter, module, Rename(record, rules))
        assert answer.kind == "record_format"
        assert sum(path in answer.message for path in meet) >= 2
        return
    at_once = output(adapter, module, Rename(record, rules))
    in_turn = record
    for rule in rules:
        in_turn = output(adapter, module, Rename(in_turn, (rule,)))
    assert at_once == in_turn
    assert at_once == Record(tuple(replace(entry, path=names[entry.path]) for entry in record.entries))
