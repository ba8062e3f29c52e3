"""The steps of adapt that other frameworks' files need, and what a chain of steps says that it did."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Tensor
from records import (
    Cast,
    Drop,
    Join,
    KeyRemapper,
    ModuleRecord,
    NormNames,
    ParamId,
    RecordEntry,
    RecordError,
    RecordFormatError,
    Transpose,
    open_record,
)
from tests.records.strategies import items, observed, record_of

FLOATS = ["float64", "float32", "float16", "bfloat16"]
SAMPLES = Path(__file__).parent / "data" / "pytorch"


def entry(array: object, id: int | None = None) -> RecordEntry:
    return RecordEntry(Tensor.from_numpy(np.asarray(array), "cpu:0"), None if id is None else ParamId(id))


# Norms


def test_a_norm_is_told_by_its_weight_of_one_axis():
    """Its bias goes with it; a linear layer's, a bias alone and other names stay; ids and order stay."""
    record = ModuleRecord([
        ("norm.weight", entry([1.0], 1)), ("norm.bias", entry([2.0], 2)), ("norm.running_mean", entry([3.0], 3)),
        ("linear.weight", entry([[4.0]], 4)), ("linear.bias", entry([5.0], 5)), ("alone.bias", entry([6.0], 6)),
        ("weight", entry([7.0], 7)), ("bias", entry([8.0], 8)), ("rms.weight", entry([9.0], 9)),
    ])  # fmt: skip
    adapted = record.adapt(NormNames())
    assert list(adapted) == [
        "norm.gamma", "norm.beta", "norm.running_mean", "linear.weight", "linear.bias", "alone.bias", "gamma", "beta",
        "rms.gamma",
    ]  # fmt: skip
    assert [int(one.id or 0) for one in adapted.values()] == list(range(1, 10))
    assert list(observed(adapted).values()) == list(observed(record).values())


def test_a_pattern_says_which_paths_are_norms():
    record = ModuleRecord(
        [("act.weight", entry([1.0])), ("a.norm.weight", entry([1.0])), ("a.norm.bias", entry([1.0]))]
    )
    assert list(record.adapt(NormNames(r"norm$"))) == ["act.weight", "a.norm.gamma", "a.norm.beta"]


def test_a_norm_whose_new_name_is_taken_is_refused():
    record = ModuleRecord([("norm.gamma", entry([1.0])), ("norm.weight", entry([1.0]))])
    with pytest.raises(RecordFormatError, match=r"'norm\.weight' becomes 'norm\.gamma', which exists already"):
        record.adapt(NormNames())


# Dropping


@given(entries=items(), pattern=st.sampled_from(["a", r"^b", "weight$", r"\.", "", "x{9}"]))
def test_what_is_dropped_is_what_the_expression_is_found_in(entries, pattern):
    """The others stay, bit for bit and in order; the two parts make up the whole."""
    record = record_of(entries)
    left = record.adapt(Drop(pattern))
    gone = set(record) - set(left)
    assert gone == {path for path in record if re.search(pattern, path)}
    assert observed(left) == {path: found for path, found in observed(record).items() if path not in gone}
    assert list(left) == [path for path in record if path in left]


# Casting


@given(entries=items(), dtype=st.sampled_from(FLOATS))
def test_floats_are_cast_as_the_engine_casts_them_and_the_rest_stays(entries, dtype):
    """L60: read on a device, on the host, and from a file; the same dtype keeps its bits."""
    record = record_of(entries)
    adapted = record.adapt(Cast(dtype))
    assert list(adapted) == list(record)
    for path, found in adapted.items():
        tensor = record[path].read("cpu:0")
        is_float = str(tensor.dtype) in FLOATS
        expected = tensor.cast(dtype) if is_float else tensor
        assert str(found.dtype) == str(expected.dtype)
        assert (found.shape, found.id) == (expected.shape, record[path].id)
        assert found.nbytes == expected.nbytes
        assert found.read("cpu:2").tobytes() == expected.tobytes()
        assert np.asarray(found.host()).tobytes() == expected.tobytes()
    assert observed(ModuleRecord.from_bytes(adapted.into_bytes())) == observed(adapted)


def test_casting_rounds_once_and_only_what_the_pattern_says():
    """A double between two bfloat16s goes to the nearest, not to what float32 on the way would give."""
    record = ModuleRecord([("a", entry(1 + 2.0**-8 + 2.0**-40)), ("b", entry(1.0))])
    adapted = record.adapt(Cast("bfloat16", "^a"))
    assert adapted["a"].read("cpu:0").numpy() == np.asarray(1 + 2.0**-7, ml_dtypes.bfloat16)
    assert [str(one.dtype) for one in adapted.values()] == ["bfloat16", "float64"]


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64", "no such", None])
def test_only_floats_can_be_cast_to(dtype):
    with pytest.raises(RecordError, match="Cast: "):
        Cast(dtype)


@pytest.mark.parametrize("make", [NormNames, Drop, lambda pattern: Cast("float32", pattern)])
@pytest.mark.parametrize("pattern", ["(", 3])
def test_a_pattern_that_is_none_is_refused_where_it_is_given(make, pattern):
    with pytest.raises(RecordError, match="no regular expression"):
        make(pattern)


# What a chain did


def test_a_chain_says_what_each_step_did():
    """Of every step, in order, over several calls too; what a record was adapted from stays as it was."""
    with open_record(SAMPLES / "state_dict.pt") as record:
        first = record.adapt(
            Drop(r"num_batches_tracked$"),
            NormNames(),
            Transpose(r"^linear\.weight$"),
            Cast("float16", "^embed"),
        )
        adapted = first.adapt(KeyRemapper([("^embed", "table")]), Join("both", ["norm.gamma", "batch.gamma"], 0))
        assert not record.adapted
        assert adapted.adapted[:4] == first.adapted
        drop, norms, transpose, cast, renaming, join = adapted.adapted
        assert drop.dropped == ("batch.num_batches_tracked",)
        assert norms.renamed == (
            ("norm.weight", "norm.gamma"), ("norm.bias", "norm.beta"),
            ("batch.weight", "batch.gamma"), ("batch.bias", "batch.beta"),
        )  # fmt: skip
        assert transpose.changed == (("linear.weight", "float32 [3, 4]", "float32 [4, 3]"),)
        assert cast.changed == (("embed.weight", "float32 [5, 4]", "float16 [5, 4]"),)
        assert renaming.renamed == (("embed.weight", "table.weight"),)
        assert (join.made, join.dropped) == (("both",), ("norm.gamma", "batch.gamma"))
        assert [one.untouched for one in adapted.adapted] == [10, 6, 9, 9, 9, 8]
        assert str(norms) == (
            "NormNames: 4 renamed, 6 untouched\n  norm.weight -> norm.gamma\n  norm.bias -> norm.beta\n"
            "  batch.weight -> batch.gamma\n  batch.bias -> batch.beta"
        )
        assert str(join).startswith("Join: 1 made, 2 dropped, 8 untouched\n  made both\n  dropped norm.gamma")
        assert adapted.under("m").with_scalars(n=1).adapted == adapted.adapted


@given(entries=items())
def test_every_entry_is_accounted_for(entries):
    """Renamed, changed and untouched ones with the dropped are what went in, with the made what came out."""
    record = record_of(entries)
    steps = (KeyRemapper([("a", "q"), (r"\d", "a")]), Drop("weight"), Cast("float32"))
    try:
        adapted = record.adapt(*steps)
    except RecordFormatError:  # two paths became one
        return
    before = len(record)
    for change in adapted.adapted:
        kept = len(change.renamed) + len(change.changed) + change.untouched
        assert kept + len(change.dropped) == before
        before = kept + len(change.made)
    assert before == len(adapted)


def test_long_lists_are_cut_short_and_nothing_is_said_to_have_changed_where_nothing_did():
    record = ModuleRecord([(f"w{at}", entry([1.0])) for at in range(9)])
    assert str(record.adapt(Drop("w")).adapted[0]).splitlines()[-1] == "  … and 4 more"
    assert str(record.adapt(Drop("x")).adapted[0]) == "Drop: nothing changed, 9 untouched"
    assert record.adapt().adapted == ()


@pytest.mark.parametrize("made", [None, [("a", 1)], {"a": 1}])
def test_a_step_that_gives_no_entries_is_refused(made):
    with pytest.raises(RecordFormatError, match="something else than RecordEntries"):
        ModuleRecord([("a", entry([1.0]))]).adapt(lambda entries: made)
