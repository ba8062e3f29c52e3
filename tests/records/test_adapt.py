"""The steps of adapt: R34, L70, DESIGN records."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Tensor
from records import (
    Join,
    KeyRemapper,
    ModuleRecord,
    ParamId,
    RecordEntry,
    RecordError,
    RecordFormatError,
    Transpose,
    open_record,
)
from tests.laws.law import inside
from tests.records.strategies import items, observed, record_of

rules = st.lists(
    st.tuples(
        st.sampled_from(["a", r"\.", "^a", "b$", r"(\w+)\.(\w+)", "weight", r"(\d+)", "x*"]),
        st.sampled_from(["a", "b.c", r"\1", "w", "z"]),
    ).filter(lambda rule: "\\" not in rule[1] or "(" in rule[0]),
    max_size=3,
)


def entry(array: object, id: int | None = 5) -> RecordEntry:
    return RecordEntry(Tensor.from_numpy(np.asarray(array), "cpu:0"), None if id is None else ParamId(id))


@inside("L70")
@given(entries=items(), rules=rules)
def test_renaming_applies_each_rule_to_all_matches_of_the_result_before(entries, rules):
    """L70, R34: Python's re.sub in order; ids and data untouched; order kept; what becomes one is refused."""
    record = record_of(entries)
    renamed = []
    for path in record:
        for pattern, replacement in rules:
            path = re.sub(pattern, replacement, path)
        renamed.append(path)
    step = KeyRemapper(rules)
    if len(set(renamed)) < len(renamed) or any("" in path.split(".") for path in renamed):
        with pytest.raises(RecordFormatError):
            record.adapt(step)
        return
    adapted = record.adapt(step)
    assert list(adapted) == renamed
    assert list(observed(adapted).values()) == list(observed(record).values())


@inside("L70")
@given(entries=items())
def test_renaming_and_its_inverse_give_the_record_again(entries):
    """L70."""
    record = record_of(entries).under("m")
    back = record.adapt(KeyRemapper([("^m", "n.o")])).adapt(KeyRemapper([(r"^n\.o", "m")]))
    assert observed(back) == observed(record)


def test_names_that_become_one_are_refused_naming_both():
    """R34."""
    record = ModuleRecord([("a.1.w", entry([1])), ("b", entry([2])), ("a.2.w", entry([3]))])
    with pytest.raises(RecordFormatError, match=r"'a\.1\.w' and 'a\.2\.w' both become 'a\.w'"):
        record.adapt(KeyRemapper([(r"\.\d", "")]))


@pytest.mark.parametrize("step", [lambda: KeyRemapper([("(", "")]), lambda: Transpose("[")])
def test_an_expression_that_is_none_is_refused_when_the_step_is_made(step):
    with pytest.raises(RecordError, match="no regular expression"):
        step()


@pytest.mark.parametrize(
    "rules",
    [
        ("weight", "w"),
        ["ab"],
        "ab",
        [("a", None)],
        [("a",)],
        [("a", "b", "c")],
        [(b"a", b"b")],
        {"a": 1},
        {1: "a"},
        3,
        None,
    ],
)
def test_rules_that_are_no_pairs_of_texts_are_refused_saying_what_they_are(rules):
    """R34."""
    with pytest.raises(RecordError, match=r"rules are pairs of texts, \[\(expression, replacement\), …\]"):
        KeyRemapper(rules)


def test_rules_may_be_a_mapping_or_any_series_of_pairs():
    """R34: in its order."""
    record = ModuleRecord([("a.b", entry([1]))])
    rules = {"a": "b", "b": "c"}
    for given_ in (rules, list(rules.items()), iter(rules.items()), [["a", "b"], ["b", "c"]]):
        assert list(record.adapt(KeyRemapper(given_))) == ["c.c"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Transpose(3),  # pyright: ignore[reportArgumentType]
        lambda: Transpose(b"a"),  # pyright: ignore[reportArgumentType]
        lambda: Join(3, ["a"], 0),  # pyright: ignore[reportArgumentType]
        lambda: Join("t", None, 0),  # pyright: ignore[reportArgumentType]
        lambda: Join("t", [["a"]], 0),  # pyright: ignore[reportArgumentType]
        lambda: Join("t", ["a"], "0"),  # pyright: ignore[reportArgumentType]
        lambda: ModuleRecord().adapt([KeyRemapper([])]),  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_makes_no_step_is_refused_where_it_is_given(make):
    """DESIGN, records."""
    with pytest.raises(RecordError):
        make()


@pytest.mark.parametrize("replacement", [r"\1", r"\g<name>", "\\"])
def test_a_replacement_that_names_no_group_is_refused_at_once(replacement):
    """Whether or not there is anything to replace."""
    with pytest.raises(RecordError, match="KeyRemapper"):
        KeyRemapper([("a", replacement)])


@given(entries=items())
def test_transpose_swaps_the_last_two_axes_of_what_matches_and_undoes_itself(entries):
    """DESIGN, records: a view; dtype, id and the other axes stay."""
    record = record_of([item for item in entries if item.array.ndim >= 2])
    once = record.adapt(Transpose(""))
    for item in entries:
        if item.array.ndim >= 2:
            turned = np.swapaxes(item.array, -1, -2)
            found = observed(once)[item.path]
            assert found == (item.id, str(turned.dtype), turned.shape, turned.tobytes())
    assert observed(once.adapt(Transpose(""))) == observed(record)
    assert observed(ModuleRecord.from_bytes(once.into_bytes())) == observed(once)


def test_transpose_takes_what_the_expression_is_found_in():
    record = ModuleRecord([("a.weight", entry([[1, 2]])), ("b.weight", entry([[1, 2]])), ("a.bias", entry([1]))])
    assert [found.shape for found in record.adapt(Transpose(r"^a.*weight$")).values()] == [(2, 1), (1, 2), (1,)]
    with pytest.raises(RecordFormatError, match=r"'a\.bias' has shape \(1,\)"):
        record.adapt(Transpose("a"))


@given(
    extents=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    others=st.lists(st.integers(0, 3), max_size=2),
    data=st.data(),
)
def test_a_joined_entry_is_the_concatenation_without_an_id(extents, others, data):
    """DESIGN, records: along any axis, counted from either end, in the order of the sources."""
    rank = len(others) + 1
    axis = data.draw(st.integers(-rank, rank - 1))
    arrays = []
    for extent in extents:
        shape = list(others)
        shape.insert(axis % rank, extent)
        arrays.append(np.arange(np.prod(shape, dtype=int), dtype="int16").reshape(shape) + 100 * len(arrays))
    names = [f"s{at}" for at in range(len(arrays))]
    pairs = [("first", entry([1])), *((name, entry(array)) for name, array in zip(names, arrays, strict=True))]
    record = ModuleRecord([*pairs, ("last", entry([2]))])
    order = data.draw(st.permutations(names))
    joined = record.adapt(Join("t", order, axis))
    whole = np.concatenate([arrays[int(name[1:])] for name in order], axis)
    assert observed(joined)["t"] == (None, "int16", whole.shape, whole.tobytes())
    assert joined["t"].nbytes == whole.nbytes
    assert list(joined) == ["first", "t", "last"]
    read = joined["t"].read("cpu:3")
    assert str(read.device) == "cpu:3"
    assert not any(np.shares_memory(read.numpy(), record[name].host()) for name in names)


def test_a_joined_entry_stands_where_its_first_source_stood():
    """DESIGN, records."""
    record = ModuleRecord([(name, entry([at])) for at, name in enumerate("abcd")])
    assert list(record.adapt(Join("t", ["b", "d"], 0))) == ["a", "t", "c"]
    assert list(record.adapt(Join("t", ["d", "b"], 0))) == ["a", "c", "t"]


def test_steps_see_what_the_one_before_left(tmp_path):
    """DESIGN, records: q and k of [out, in] become one [in, out] under a new name, in memory and in a file."""
    q, k = np.arange(6.0).reshape(3, 2), np.arange(10, 14.0).reshape(2, 2)
    record = ModuleRecord([("blk.0.q", entry(q, 1)), ("blk.0.k", entry(k, 2)), ("blk.0.norm", entry([1.0], 3))])
    record.save(tmp_path / "r.bpk")
    steps = (
        KeyRemapper([(r"^blk\.(\d+)\.", r"layers.\1.")]),
        Transpose(r"\.[qk]$"),
        Join("layers.0.qk", ["layers.0.q", "layers.0.k"], 1),
    )
    with open_record(tmp_path / "r.bpk") as opened:
        adapted = opened.adapt(*steps)
        whole = np.concatenate([q.T, k.T], 1)
        assert observed(adapted) == observed(record.adapt(*steps))
        assert observed(adapted) == {
            "layers.0.qk": (None, "float64", (2, 5), whole.tobytes()),
            "layers.0.norm": (3, "float64", (1,), np.array([1.0]).tobytes()),
        }
        assert np.shares_memory(
            opened.adapt(steps[0], steps[1])["layers.0.q"].read("cpu:0").numpy(),
            opened["blk.0.q"].read("cpu:1").numpy(),
        )
        adapted.save(tmp_path / "s.bpk")
    assert observed(open_record(tmp_path / "s.bpk")) == observed(record.adapt(*steps))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (Join("a", ["b", "c"], 0), "'a' exists already"),
        (Join("b", ["b", "c"], 0), "'b' exists already"),
        (Join("t", ["a", "x"], 0), "'x', a source of 't', is missing"),
        (Join("t", ["a", "b"], 0), r"'a', shape \(2, 3\), and 'b', shape \(2, 2\); the other extents differ"),
        (Join("t", ["a", "d"], 0), "the other extents differ"),
        (Join("t", ["a", "c"], 0), r"'a' \(float64\) and 'c' \(float32\)"),
        (Join("t", ["a"], 2), r"along axis 2, but 'a' has shape \(2, 3\)"),
    ],
)
def test_entries_that_cannot_be_joined_are_refused(step, said):
    """DESIGN, records."""
    record = ModuleRecord([
        ("a", entry(np.zeros((2, 3)))), ("b", entry(np.zeros((2, 2)))), ("c", entry(np.zeros((2, 3), "float32"))),
        ("d", entry(np.zeros(3))),
    ])  # fmt: skip
    with pytest.raises(RecordFormatError, match=said):
        record.adapt(step)


@pytest.mark.parametrize("sources", [[], ["a", "a"], "ab"])
def test_a_join_needs_different_sources(sources):
    with pytest.raises(RecordError, match="different paths"):
        Join("t", sources, 0)
