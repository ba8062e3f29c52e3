"""Writing named MessagePack for one version of Burn, and reading it again. N15 to N24."""

import gzip
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Tensor
from records import ModuleRecord, ParamId, RecordEntry, RecordError, RecordIoError, open_record
from tests.records import named_mpk_oracle as oracle
from tests.records.strategies import arrays, expected, items, observed, record_of

FLOATS = ("float32", "float64", "float16", "bfloat16")
MODERN = [f"0.{minor}" for minor in range(14, 22)]
OLD = [f"0.{minor}" for minor in range(9, 14)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mpk")


def entry(array: object, id: int | None = None) -> RecordEntry:
    return RecordEntry(Tensor.from_numpy(np.asarray(array), "cpu:0"), None if id is None else ParamId(id))


@given(entries=items(), version=st.sampled_from(MODERN))
def test_what_is_written_reads_equal(folder, entries, version):
    """N15 to N19, L55: every dtype, rank 0, zero extents, every bit pattern; ids survive, a missing one is made."""
    file = folder / "w.mpk"
    paths = [item.path for item in entries]
    inside = any(one != other and f"{other}.".startswith(f"{one}.") for one in paths for other in paths)
    far = any(part.isdigit() and len(part) >= 5 for path in paths for part in path.split("."))
    early = version < "0.16" and any(item.array.dtype == "uint16" for item in entries)
    if inside or far or early:
        with suppress(RecordError):
            record_of(entries).save(file, for_burn=version)
        return
    record_of(entries).save(file, for_burn=version)
    with open_record(file) as record:
        found, told = observed(record), expected(entries)
    for path, (id, *data) in told.items():
        assert list(found[path][1:]) == data
        assert id is None or found[path][0] == id
    assert found.keys() == told.keys()
    first = file.read_bytes()
    record_of(entries).save(file, for_burn=version)
    assert file.read_bytes() == first


@given(array=arrays(), version=st.sampled_from(OLD))
def test_what_is_written_for_old_versions_reads_equal_as_its_kind(folder, array, version):
    """N6, N20: floats in the precision that holds them; integers by value; a refusal says what the version lacks."""
    file = folder / "o.mpk"
    kind = "float" if str(array.dtype) in FLOATS else "bool" if array.dtype == bool else "int"
    is_held = kind == "float" or version not in ("0.9", "0.10")
    if kind == "int" and array.size:
        wide = [int(one) for one in array.reshape(-1)]
        is_held &= min(wide) >= -(2**31) and max(wide) < 2**31
        is_held &= version != "0.11" or all(int(np.float32(one)) == one for one in wide)
    record = ModuleRecord([("m.w", entry(array, 3))])
    if not is_held:
        with pytest.raises(RecordError, match="'m.w'"):
            record.save(file, for_burn=version)
        return
    record.save(file, for_burn=version)
    with open_record(file) as record:
        found = record["m.w"]
        read = found.of_kind(kind).read("cpu:0").numpy()
    assert (found.id, found.shape) == (3, array.shape)
    if str(array.dtype) in FLOATS:
        wide = array.astype("float32") if str(array.dtype) == "bfloat16" else array
        assert read.dtype == wide.dtype
        assert read.tobytes() == wide.tobytes()
    else:
        assert np.array_equal(read, array)


@pytest.mark.parametrize("version", [*OLD, *MODERN])
def test_a_file_says_what_its_version_says(folder, version):
    """N2, N5, N6, N16, N18, N20, decoded by the library alone."""
    record = ModuleRecord(
        [("b.0.w", entry(np.array([1.5, -0.0], "f4"), 5)), ("b.1.w", entry(np.array([[1.0]], "f4"), 5))]
    )
    file = folder / "v.mpk"
    record.save(file, for_burn=version)
    top = msgpack.unpackb(file.read_bytes())
    assert list(top) == ["metadata", "item", "_b"][: 3 if version not in ("0.9", "0.10", "0.11") else 2]
    assert list(top["metadata"]) == ["float", "int", "format", "version", "settings"]
    assert top["metadata"]["version"].startswith(version + ".")
    assert top["metadata"]["format"] == oracle.METADATA["format"]
    first = top["item"]["b"][0]["w"]
    assert list(first) == ["id", "param"]
    assert first["id"] == "0k00000000000"
    if version in MODERN:
        assert list(first["param"].items()) == [
            ("bytes", np.array([1.5, -0.0], "f4").tobytes()), ("shape", [2]), ("dtype", "F32"),
        ]  # fmt: skip
    else:
        assert list(first["param"].items()) == [("value", [1.5, -0.0]), ("shape", [2])]


@pytest.mark.parametrize(("version", "dtype"), [("0.14", "Bool"), ("0.20", "Bool"), ("0.21", {"Bool": "Native"})])
def test_booleans_are_named_as_the_version_does(folder, version, dtype):
    """N18."""
    ModuleRecord([("b", entry(np.array([True])))]).save(folder / "b.mpk", for_burn=version)
    assert msgpack.unpackb((folder / "b.mpk").read_bytes())["item"]["b"]["param"]["dtype"] == dtype


@pytest.mark.parametrize(
    ("dtypes", "settings", "float"),
    [
        (["float32", "float16"], "FullPrecisionSettings", "f32"),
        (["float16", "float16"], "HalfPrecisionSettings", "half::binary16::f16"),
        (["float32", "float64"], "DoublePrecisionSettings", "f64"),
        ([ml_dtypes.bfloat16], "FullPrecisionSettings", "f32"),
        (["int64"], "FullPrecisionSettings", "f32"),
    ],
)
def test_the_precision_is_that_of_the_floats(folder, dtypes, settings, float):
    """N2, N19."""
    ModuleRecord([(f"w{at}", entry(np.ones(2, dtype))) for at, dtype in enumerate(dtypes)]).save(folder / "p.mpk")
    told = msgpack.unpackb((folder / "p.mpk").read_bytes())["metadata"]
    assert (told["settings"], told["float"]) == (settings, float)


def test_what_no_path_tells_is_given(folder):
    """N17: empty vectors, enums and arrays without state; places of an array that nothing stands at are nil."""
    record = ModuleRecord([("blocks.1.w", entry(np.ones(1, "f4"))), ("conv.w", entry(np.ones(1, "f4")))])
    stateless = {"act.Relu": None, "conv.stride": [None, None], "empty": [], "none": None}
    record.save(folder / "s.mpk", stateless=stateless)
    item = msgpack.unpackb((folder / "s.mpk").read_bytes())["item"]
    assert item["blocks"][0] is None
    assert [item[key] for key in ("act", "empty", "none")] == [{"Relu": None}, [], None]
    assert item["conv"]["stride"] == [None, None]
    with open_record(folder / "s.mpk") as again:
        assert list(again) == ["blocks.1.w", "conv.w"]
        part = ModuleRecord([("conv.w", again["conv.w"]), ("new.w", again["conv.w"])], metadata=again.metadata)
        part.save(folder / "t.mpk", stateless={"more": []})
    item = msgpack.unpackb((folder / "t.mpk").read_bytes())["item"]
    assert (list(item), item["blocks"]) == (["blocks", "conv", "act", "empty", "none", "new", "more"], [None, {}])


@pytest.mark.parametrize(
    ("record", "options", "said"),
    [
        (ModuleRecord(scalars={"step": 1}), {}, "no place for scalars; 'step' is one"),
        (ModuleRecord([("a", entry(1.0)), ("a.b", entry(1.0))]), {}, "'a.b' leads through 'a'"),
        (ModuleRecord([("a.b", entry(1.0)), ("a", entry(1.0))]), {}, "something stands at 'a' already"),
        (ModuleRecord([("a.123456", entry(1.0))]), {}, "'a' is an array of 123457 places"),
        (ModuleRecord([(".".join("a" * 200), entry(1.0))]), {}, "more than 120 components"),
        (ModuleRecord([("a", entry(1.0))]), {"stateless": {"a": []}}, "something stands at 'a'"),
        (ModuleRecord([("a", entry(1.0))]), {"stateless": {"b": 3}}, "stateless: 3 at 'b'"),
        (ModuleRecord([("a\ud800", entry(1.0))]), {}, "not Unicode"),
        (ModuleRecord(), {"for_burn": "0.8"}, "0.9 to 0.21"),
        (ModuleRecord(), {"for_burn": "0.22"}, "0.9 to 0.21"),
        (ModuleRecord(), {"for_burn": "now"}, "0.9 to 0.21"),
        (ModuleRecord([("a", entry(np.uint16(1)))]), {"for_burn": "0.15"}, "'a': Burn 0.15 has no dtype uint16"),
        (ModuleRecord([("a", entry(2**40))]), {"for_burn": "0.13"}, "'a': integers from .*int32"),
        (ModuleRecord([("a", entry(2**25 + 1))]), {"for_burn": "0.11"}, "'a': Burn 0.11 stores integers as float32"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_no_file(tmp_path, record, options, said):
    """N17 to N20, R44."""
    with pytest.raises(RecordError, match=said):
        record.save(tmp_path / "x.mpk", **options)
    assert not list(tmp_path.iterdir())


def test_the_extension_says_the_format_unless_it_is_named(tmp_path):
    """N24, R38: the path as given; a name without extension gets that of the format."""
    record = ModuleRecord([("w", entry(np.arange(1000.0), 1))])
    for name, format, made in (
        ("a.mpk", None, "a.mpk"),
        ("b.mpk.gz", None, "b.mpk.gz"),
        ("c", "mpk", "c.mpk"),
        ("d", "mpk.gz", "d.mpk.gz"),
        ("e.v1", "mpk", "e.v1"),
        ("f.MPK", None, "f.MPK"),
        ("g.mpk", "burnpack", "g.mpk"),
    ):
        record.save(tmp_path / name, format)
        data = (tmp_path / made).read_bytes()
        assert data[:2] == (b"NR" if format == "burnpack" else b"\x1f\x8b" if "gz" in made else b"\x83\xa8")
        assert observed(open_record(tmp_path / made)) == observed(record)
    assert (tmp_path / "b.mpk.gz").read_bytes() == (tmp_path / "d.mpk.gz").read_bytes()
    plain, top = (tmp_path / "a.mpk").read_bytes(), gzip.decompress((tmp_path / "b.mpk.gz").read_bytes())
    assert b"NamedMpkGzFileRecorder" in top
    assert top.partition(b"<")[2] == plain.partition(b"<")[2]
    for name, options in (("h.gz", {}), ("h", {"format": "bin"}), ("h.bpk", {"for_burn": "0.21"})):
        with pytest.raises(RecordError, match=r"h[.:]|h\.bpk"):
            record.save(tmp_path / name, **options)


def test_tensors_of_a_file_are_read_when_asked_and_not_after_it_is_closed(tmp_path):
    """R41, D11: on CPU devices they share the mapped file; those of gzip own their memory."""
    values = np.arange(50_000, dtype="u1")
    for name in ("r.mpk", "r.mpk.gz"):
        ModuleRecord([("a", entry(values, 1)), ("b", entry(values[::-1], 2))]).save(tmp_path / name)
        with open_record(tmp_path / name) as record:
            b, a = record["b"].read("cpu:0").numpy(), record["a"].read("cpu:0").numpy()
            assert a.tobytes() == values.tobytes()
            assert b.tobytes() == values[::-1].tobytes()
            assert np.shares_memory(a, record["a"].read("cpu:1").numpy()) == (name == "r.mpk")
        with pytest.raises(RecordIoError, match=r"r\.mpk.*: tensor 'a' was not read before the file was closed"):
            record["a"].read("cpu:0")
        assert a.tobytes() == values.tobytes()
        record = ModuleRecord([("m.f", entry(np.ones(2, "f4"))), ("m.i", entry(np.ones(2, "i4")))])
        record.save(tmp_path / name, for_burn="0.13")
        with open_record(tmp_path / name) as record:
            pass
        for path in ("m.f", "m.i"):
            with pytest.raises(RecordIoError, match=rf"r\.mpk.*: tensor '{path}' was not read before"):
                record[path].read("cpu:0")
