"""A record in memory: R1, R7, R8, and what gives other records over the same data."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Device, Tensor, tensor, transfer, zeros
from records import ModuleRecord, ParamId, RecordEntry, RecordError, RecordFormatError, RecordValidationError, Scalar
from tests.records.strategies import expected, items, observed, record_of, scalars, texts


def entry(*shape: int, device: str = "cpu:0") -> RecordEntry:
    return RecordEntry(zeros(shape, device=device), ParamId(7))


@given(entries=items())
def test_a_record_is_an_ordered_mapping_of_its_entries(entries):
    """R1: length, order, and each entry's id, dtype, shape, bytes."""
    record = record_of(entries)
    assert len(record) == len(entries)
    assert list(record) == [item.path for item in entries]
    assert observed(record) == expected(entries)
    for item in entries:
        assert record[item.path].nbytes == item.array.nbytes


def test_two_entries_of_one_path_are_refused():
    """R8."""
    with pytest.raises(RecordFormatError, match=r"two entries have the path 'a\.b'"):
        ModuleRecord([("a.b", entry(1)), ("c", entry(1)), ("a.b", entry(2))])


@pytest.mark.parametrize("path", ["", ".", "a..b", ".a", "a.", 3])
def test_paths_have_components(path):
    """R102."""
    with pytest.raises(RecordFormatError, match="no path"):
        ModuleRecord([(path, entry(1))])


def test_entries_are_pairs_or_a_mapping_and_each_is_a_record_entry():
    """DESIGN, records: what is none is refused where it is given, and told what to give."""
    one, two = entry(1), entry(2)
    record = ModuleRecord({"a": one, "b.c": two})
    assert list(record.items()) == [("a", one), ("b.c", two)]
    assert dict(ModuleRecord(record)) == dict(record)
    for value in (zeros((2,), device="cpu:0"), np.ones(2), None):
        for wrong in ([("w", value)], {"w": value}):
            with pytest.raises(RecordFormatError, match=r"'w': .* is no RecordEntry; give RecordEntry\(tensor\)"):
                ModuleRecord(wrong)
    for wrong in (["ab"], [("a", one, two)], [one], "ab", 3, one):
        with pytest.raises(RecordFormatError, match="pairs of a path and a RecordEntry"):
            ModuleRecord(wrong)


def test_a_record_and_an_entry_are_values_so_a_copy_is_the_thing_itself():
    """DESIGN, records; pickling is refused with the way out."""
    record = ModuleRecord([("a", entry(1))], scalars={"n": 1}, metadata={"k": "v"})
    for value in (record, record["a"]):
        assert copy.copy(value) is value
        assert copy.deepcopy(value) is value
        with pytest.raises(TypeError, match="into_bytes"):
            pickle.dumps(value)


@pytest.mark.parametrize("value", [b"x", {1, 2}, object(), ["deep", b"x"], {(1,): 2}])
def test_metadata_that_has_no_form_in_a_file_is_refused_naming_its_key(value, tmp_path):
    """R63: texts; numbers, sequences and mappings of them are written as JSON."""
    record = ModuleRecord(metadata={"good": (1, 2.5, True)}).with_metadata(bad=value)
    for write in (record.into_bytes, lambda: record.save(tmp_path / "r")):
        with pytest.raises(RecordError, match="metadata 'bad' cannot be written"):
            write()
    assert list(tmp_path.iterdir()) == []
    assert ModuleRecord.from_bytes(record.with_metadata(bad="x").into_bytes()).metadata == {
        "good": "[1, 2.5, true]", "bad": "x",
    }  # fmt: skip


@pytest.mark.parametrize("given_", [{"scalars": {1: 1}}, {"metadata": {1: "a"}}, {"scalars": {"a": "text"}}])
def test_names_are_texts_and_scalars_numbers(given_):
    """R63, R64."""
    with pytest.raises(RecordFormatError):
        ModuleRecord(**given_)


def test_repr_shows_the_number_of_tensors_and_the_options():
    """R1."""
    record = ModuleRecord([("a", entry(2, 3))], scalars={"step": 1}, metadata={"k": "v"})
    assert repr(record) == (
        "ModuleRecord(1 tensor, dtype_policy=FromRecord, allow_partial=False, allow_unused=False, validate=True)"
    )
    assert "2 tensors, dtype_policy=CastToModule" in repr((record.under("x") | record).cast_to_module_dtype())


def test_options_change_one_by_one_and_leave_the_record_they_come_from():
    """R7."""
    plain = ModuleRecord([("a", entry(1))])
    changed = plain.with_options(allow_partial=True).with_options(validate=False).cast_to_module_dtype()
    assert (plain.options.dtype_policy, plain.options.allow_partial, plain.options.validate) == (
        "FromRecord", False, True,
    )  # fmt: skip
    assert (changed.options.dtype_policy, changed.options.allow_partial, changed.options.validate) == (
        "CastToModule", True, False,
    )  # fmt: skip
    assert changed.options.allow_unused is False
    assert changed["a"] is plain["a"]
    kept = changed.adapt().under("m").part("m").with_scalars(n=1).with_metadata(k="v")
    assert kept.options == changed.options
    for wrong in ({"dtype_policy": "Cast"}, {"validate": 1}):
        with pytest.raises(RecordError):
            plain.with_options(**wrong)


def test_a_record_is_read_only():
    """DESIGN, records."""
    record = ModuleRecord([("a", entry(1))], scalars={"n": 1}, metadata={"k": "v"})
    for mapping in (record, record.scalars, record.metadata):
        with pytest.raises(TypeError):
            mapping["a"] = None  # pyright: ignore[reportIndexIssue]
    with pytest.raises(AttributeError):
        record["a"].id = None  # pyright: ignore[reportAttributeAccessIssue]
    assert record != ModuleRecord(record.items())  # identity, so that a record can be a key
    assert record in {record}


@given(entries=items(), numbers=st.dictionaries(texts, scalars, max_size=3), prefix=st.sampled_from(["m", "a.b"]))
def test_part_takes_out_what_under_put_below_a_prefix(entries, numbers, prefix):
    """DESIGN, records: paths and scalars alike."""
    record = record_of(entries, scalars=numbers)
    other = ModuleRecord([(f"{prefix}x", entry(1))], scalars={"step": 1})
    both = record.under(prefix) | other
    assert all(path.startswith(f"{prefix}.") for path in record.under(prefix))
    taken = both.part(prefix)
    assert observed(taken) == expected(entries)
    assert list(taken) == list(record)
    assert dict(taken.scalars) == numbers
    assert len(both.part("elsewhere")) == 0


def test_union_refuses_what_both_records_have():
    """DESIGN, records: a common path is refused; so are scalars, and metadata that differs."""
    left = ModuleRecord([("a", entry(1))], scalars={"n": 1}, metadata={"k": "v"}).with_options(allow_partial=True)
    right = ModuleRecord([("b", entry(1))], scalars={"m": 2}, metadata={"k": "v", "l": "w"})
    both = left | right
    assert list(both) == ["a", "b"]
    assert dict(both.scalars) == {"n": Scalar("Int", 1), "m": Scalar("Int", 2)}
    assert dict(both.metadata) == {"k": "v", "l": "w"}
    assert both.options.allow_partial
    with pytest.raises(RecordFormatError, match="path 'a'"):
        left | ModuleRecord([("a", entry(1))])
    with pytest.raises(RecordFormatError, match="scalar 'n'"):
        left | ModuleRecord(scalars={"n": 1})
    with pytest.raises(RecordFormatError, match="metadata 'k'"):
        left | ModuleRecord(metadata={"k": "other"})
    with pytest.raises(TypeError):
        left | {}  # pyright: ignore[reportOperatorIssue]


def test_with_scalars_and_metadata_add_and_replace():
    """DESIGN, records."""
    record = ModuleRecord(scalars={"n": 1, "m": 2}, metadata={"k": "v"})
    changed = record.with_scalars(n=0.5, **{"draws/a.b": 3}).with_metadata(k="w", l="x")
    assert dict(changed.scalars) == {
        "n": Scalar("Float", 0.5), "m": Scalar("Int", 2), "draws/a.b": Scalar("Int", 3),
    }  # fmt: skip
    assert dict(changed.metadata) == {"k": "w", "l": "x"}
    assert dict(record.scalars) == {"n": Scalar("Int", 1), "m": Scalar("Int", 2)}


def test_a_tensor_in_memory_is_given_as_it_is_where_it_lies_and_copied_elsewhere():
    """Principle 3: the copy is counted, and only where there is one."""
    tensor = Tensor.from_numpy(np.arange(6.0).reshape(2, 3), "cpu:1")
    record = ModuleRecord([("a", RecordEntry(tensor))])
    with transfer.log() as log:
        assert record["a"].read("cpu:1") is tensor
        assert record.into_bytes(digest=False).endswith(tensor.tobytes())
        assert log.copies == 0
        there = record["a"].read("cpu:0")
    assert (there.device, there.tobytes()) == (Device("cpu:0"), tensor.tobytes())
    assert log[Device("cpu:1"), Device("cpu:0"), "host"] == (1, 48)


def test_what_is_read_is_associated_with_autodiff_as_the_device_is_and_has_no_history():
    """M34, M39."""
    leaf = zeros((2,), device="cpu:0+autodiff").require_grad()
    for source in (RecordEntry(leaf), RecordEntry(leaf.without_autodiff())):
        for device in ("cpu:0", "cpu:0+autodiff", "cpu:1+autodiff"):
            read = source.read(device)
            assert read.device.is_autodiff == Device(device).is_autodiff
            assert not read.is_tracked


def test_a_validation_error_tells_all_findings_and_shows_the_first():
    """R27."""
    error = RecordValidationError(
        [f"p{index}: missing" for index in range(30)], missing=[f"p{index}" for index in range(30)], unused=["x"]
    )
    assert len(error.findings) == 30
    assert error.missing[29] == "p29"
    assert (error.unused, error.mismatched) == (("x",), ())
    assert "p19: missing" in str(error)
    assert "p20" not in str(error)
    assert "10 more" in str(error)
    assert isinstance(error, ValueError)


def test_an_entry_takes_what_makes_data_only():
    """Where it is made, not where it is saved or loaded."""
    for source in (np.ones(2), None, "w"):
        with pytest.raises(TypeError, match="RecordEntry takes a Tensor"):
            RecordEntry(source)  # pyright: ignore[reportArgumentType]
    one = tensor([1.0], device="cpu:0")
    with pytest.raises(TypeError, match="id is 'x'; it must be a ParamId"):
        RecordEntry(one, "x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(RecordFormatError, match="form is 'zzz'; there are Flex32"):
        RecordEntry(one, form="zzz")  # pyright: ignore[reportArgumentType]
