"""Safetensors: what we write the reference library reads, and the other way round; indexes of several files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from engine import Tensor
from records import (
    ModuleRecord,
    ParamId,
    RecordEntry,
    RecordError,
    RecordFormatError,
    RecordIoError,
    Scalar,
    open_record,
)
from tests.laws.law import inside
from tests.records.strategies import DTYPES, expected, items, observed, record_of, scalars, texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("safetensors")


def entry(array: object, id: int | None = None) -> RecordEntry:
    return RecordEntry(Tensor.from_numpy(np.asarray(array), "cpu:0"), None if id is None else ParamId(id))


def back(mapping: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(mapping.items()))


@given(
    entries=items(),
    numbers=st.dictionaries(texts, scalars, max_size=3),
    metadata=st.dictionaries(texts, texts, max_size=3),
)
def test_what_is_written_reads_equal(folder, entries, numbers, metadata):
    """L55: names, ids, dtypes, shapes, bits, scalars and texts; the same record has the same bytes (R48)."""
    file = folder / "r.safetensors"
    record_of(entries, scalars=numbers, metadata=metadata).save(file)
    with open_record(file) as record:
        assert observed(record) == expected(entries)
        assert list(record) == sorted((item.path for item in entries), key=str.encode)
        assert dict(record.scalars) == numbers
        assert dict(record.metadata) == metadata
    first = file.read_bytes()
    record_of(entries[::-1], scalars=back(numbers), metadata=back(metadata)).save(file)
    assert file.read_bytes() == first


@given(entries=items())
def test_the_reference_library_reads_what_is_written_and_would_write_its_bytes(folder, entries):
    """Dtype by dtype, bit by bit; without ids, which it has no place for, the whole file."""
    file = folder / "w.safetensors"
    record_of([item._replace(id=None) for item in entries]).save(file)
    with safetensors.safe_open(file, framework="numpy") as opened:
        assert set(opened.keys()) == {item.path for item in entries}
        for item in entries:
            array = opened.get_tensor(item.path)
            assert (array.dtype, array.shape) == (item.array.dtype, item.array.shape)
            assert array.tobytes() == item.array.tobytes()
    theirs = safetensors.numpy.save({item.path: np.ascontiguousarray(item.array) for item in entries})
    if all(item.array.shape for item in entries):  # of rank 0 NumPy makes rank 1 there
        assert file.read_bytes() == theirs


def test_tensors_of_all_dtypes_lie_as_the_reference_library_lays_them(tmp_path):
    """Elements of more bytes first, then by its own order of dtypes, then by name."""
    arrays = {f"{way}{dtype}": np.ones(3, dtype) for way in "ba" for dtype in DTYPES}
    ModuleRecord([(name, entry(array)) for name, array in arrays.items()]).save(tmp_path / "r.safetensors")
    assert (tmp_path / "r.safetensors").read_bytes() == safetensors.numpy.save(arrays)


@given(entries=items())
def test_what_the_reference_library_writes_reads_equal(folder, entries):
    """Dtype by dtype; such entries have no ids (D9)."""
    file = folder / "l.safetensors"
    arrays = {item.path: np.array(item.array, order="C") for item in entries}
    safetensors.numpy.save_file(arrays, file, {"k": "v"})
    with open_record(file) as record:
        assert observed(record) == expected([item._replace(id=None) for item in entries])
        assert dict(record.metadata) == {"k": "v"}


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (ModuleRecord([("__metadata__", entry(1.0))]), "'__metadata__': a safetensors file has its metadata"),
        (ModuleRecord([("a\ud800", entry(1.0))]), "not Unicode"),
        (ModuleRecord(metadata={"layerloom.ids": "x"}), "'layerloom.ids' cannot be given"),
        (ModuleRecord(metadata={"x": object()}), "metadata 'x' cannot be written"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_no_file(tmp_path, record, said):
    """R81, R44."""
    with pytest.raises(RecordError, match=said):
        record.save(tmp_path / "x.safetensors")
    with pytest.raises(RecordError, match="for named MessagePack"):
        record.save(tmp_path / "x.safetensors", for_burn="0.21")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("layerloom.ids", "["), ("layerloom.ids", "[]"), ("layerloom.ids", '{"w": 3}'), ("layerloom.ids", '{"w": "x"}'),
        ("layerloom.scalars", '{"n": 3}'), ("layerloom.scalars", '{"n": {}}'), ("layerloom.scalars", '{"n": {"O": 1}}'),
        ("layerloom.scalars", '{"n": {"Float": "xy"}}'), ("layerloom.scalars", '{"n": {"Float": 1.0}}'),
        ("layerloom.scalars", '{"n": {"Float": "00"}}'), ("layerloom.scalars", '{"n": {"Int": 9223372036854775808}}'),
        ("layerloom.ids", "[" * 100_000),
    ],
)  # fmt: skip
def test_ids_and_scalars_in_another_form_are_refused(tmp_path, key, text):
    """They are ours; the message names the file."""
    file = tmp_path / "r.safetensors"
    safetensors.numpy.save_file({"w": np.ones(1)}, file, {key: text})
    with pytest.raises(RecordFormatError, match=r"r\.safetensors: "):
        open_record(file)


def test_ids_of_tensors_that_are_gone_do_no_harm(tmp_path):
    """A file that another tool has edited."""
    file = tmp_path / "r.safetensors"
    safetensors.numpy.save_file({"w": np.ones(1)}, file, {"layerloom.ids": '{"v": "ib8eptsg6c000"}'})
    assert open_record(file)["w"].id is None


def small_file(folder: Path) -> bytes:
    """Two tensors with ids, a scalar, a text."""
    record = ModuleRecord(
        [("b.w", entry(np.array([[1.0, -0.0]], "float32"), 5)), ("a", entry([True, False, True], 2**40))],
        scalars={"step": 3, "rate": 0.1},
        metadata={"k": "v"},
    )
    record.save(folder / "s.safetensors")
    return (folder / "s.safetensors").read_bytes()


@inside("L66")
def test_a_file_cut_at_any_byte_is_refused(tmp_path):
    """L66: every prefix."""
    data, file = small_file(tmp_path), tmp_path / "r.safetensors"
    for length in range(len(data)):
        file.write_bytes(data[:length])
        with pytest.raises(RecordFormatError, match=r"r\.safetensors"):
            open_record(file)


@inside("L67")
def test_a_flipped_bit_is_refused_or_in_one_tensor_or_in_the_metadata(tmp_path):
    """L67: the format has no digest. Ids and scalars are metadata; of tensors at most one is another."""
    data, file = small_file(tmp_path), tmp_path / "r.safetensors"
    with open_record(tmp_path / "s.safetensors") as record:
        whole = tensors_of(record)
    opened = 0
    for at in range(len(data)):
        for bit in range(8):
            file.unlink(missing_ok=True)
            file.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            try:
                with open_record(file) as record:
                    found = tensors_of(record)
            except RecordFormatError as error:
                assert "r.safetensors" in str(error)  # noqa: PT017
                continue
            opened += 1
            assert len(found) == len(whole)
            assert len(whole - found) <= 1
    assert opened > 8 * 8  # the float32 values alone


def test_a_shape_that_no_array_has_is_refused_though_it_has_no_element(tmp_path):
    """R98's kind: the library takes it."""
    file = tmp_path / "r.safetensors"
    for shape in ([0, 2**62], [0] + [2**31] * 3, [0] * 65):
        header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
        file.write_bytes(len(header).to_bytes(8, "little") + header)
        with pytest.raises(RecordFormatError, match=r"r\.safetensors: tensor 'w': the product of shape .* overflows"):
            open_record(file)


def tensors_of(record: ModuleRecord) -> set[tuple[Any, ...]]:
    """Path, dtype, shape and bytes."""
    return {(path, *found[1:]) for path, found in observed(record).items()}


# Indexes


def sharded(folder: Path, **changes: Any) -> Path:
    ModuleRecord([("b.w", entry([1.0, 2.0], 5)), ("extra", entry(0.0))], scalars={"n": 1}).save(
        folder / "model-1.safetensors"
    )
    ModuleRecord([("a.w", entry([3], 6))], metadata={"format": "np"}).save(folder / "model-2.safetensors")
    top = {
        "metadata": {"total_size": 24},
        "weight_map": {"b.w": "model-1.safetensors", "a.w": "model-2.safetensors"},
        **changes,
    }
    file = folder / "model.safetensors.index.json"
    file.write_text(json.dumps(top, indent=2))
    return file


def test_an_index_reads_as_one_record(tmp_path):
    """Entries in the order of their names, ids, scalars; the metadata of all; closing closes every file."""
    with open_record(sharded(tmp_path)) as record:
        assert list(record) == ["a.w", "b.w"]
        assert [one.id for one in record.values()] == [6, 5]
        assert dict(record.scalars) == {"n": Scalar("Int", 1)}
        assert dict(record.metadata) == {"total_size": 24, "format": "np"}
        assert record["b.w"].read("cpu:0").numpy().tolist() == [1.0, 2.0]
    with pytest.raises(RecordIoError, match=r"model-2\.safetensors: tensor 'a\.w' was not read"):
        record["a.w"].read("cpu:0")
    renamed = sharded(tmp_path, metadata={}).rename(tmp_path / "any.name")
    assert list(open_record(renamed)) == ["a.w", "b.w"]


@pytest.mark.parametrize(
    ("weight_map", "said"),
    [
        (None, "no map 'weight_map'"),
        ([], "no map 'weight_map'"),
        ({"a.w": 3}, "'a.w' is in 3, no name of a file"),
        ({"a.w": "../model-2.safetensors"}, "no name of a file beside the index"),
        ({"a.w": "/etc/passwd"}, "no name of a file beside the index"),
        ({"a.w": ""}, "no name of a file beside the index"),
        ({"a.w": ".."}, "no name of a file beside the index"),
        ({"a.w": "a\0b"}, "no name of a file beside the index"),
        ({"a.w": "model-1.safetensors"}, r"model-1\.safetensors: has no tensor 'a\.w'"),
        ({"a.w": "model.safetensors.index.json"}, "no safetensors file"),
        ({str(at): f"{at}.safetensors" for at in range(1001)}, "1001 files, the limit is 1000"),
    ],
)
def test_indexes_that_lead_elsewhere_are_refused(tmp_path, weight_map, said):
    """Only to files beside them, which have the tensors."""
    with pytest.raises(RecordFormatError, match=said):
        open_record(sharded(tmp_path, weight_map=weight_map))


def test_an_index_that_is_damaged_is_refused(tmp_path):
    """Missing files, cut JSON, keys that are there twice, nesting, limits."""
    file = sharded(tmp_path)
    whole = file.read_bytes()
    with pytest.raises(RecordFormatError, match="2 tensors, the limit is 1; give max_tensors"):
        open_record(file, max_tensors=1)
    with pytest.raises(RecordFormatError, match="give max_metadata_bytes"):
        open_record(file, max_metadata_bytes=10)
    for length in range(1, len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(RecordFormatError, match=r"index\.json"):
            open_record(file)
    file.write_bytes(b'{"metadata":' + b"[" * 127 + b"]" * 127 + b',"weight_map":{}}')
    assert len(open_record(file)) == 0
    with pytest.raises(RecordFormatError, match="deeper than the limit of 127; give max_depth"):
        open_record(file, max_depth=127)
    for data in (whole.replace(b'"a.w"', b'"b.w"'), b'{"weight_map":' + b"[" * 100_000, whole + b"\xff"):
        file.write_bytes(data)
        with pytest.raises(RecordFormatError, match=r"index\.json: no index"):
            open_record(file)
    file.write_bytes(whole)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(RecordIoError, match=r"model-2\.safetensors"):
        open_record(file)
