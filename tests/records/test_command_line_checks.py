"""``python -m records verify`` and ``diff``: what is found in a file, and between two."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import cbor2
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine import QuantScheme, QuantStore, QuantValue, Tensor, dequantize, quantize
from records import ModuleRecord, ParamId, RecordEntry
from records.commands import data
from records.commands.data import difference, not_finite
from tests.records.command_calls import RECORD, call, entry
from tests.records.strategies import arrays

SAMPLES = Path(__file__).parent / "data" / "pytorch"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    RECORD.save(tmp_path / "r.bpk")
    return tmp_path / "r.bpk"


# verify


def test_a_sound_file_of_every_format_is_found_sound(file, tmp_path, capsys):
    files = [file]
    floats = ModuleRecord([("w", entry(np.ones(3, "float32")))])
    for name in ("r.safetensors", "r.mpk", "r.mpk.gz"):
        floats.save(tmp_path / name)
        files.append(tmp_path / name)
    status, out, err = call(capsys, "verify", *files, SAMPLES / "state_dict.pt")
    assert (status, err) == (0, "")
    unchecked = [f"  note: {one} carries no checksums" for one in ("safetensors", "named MessagePack")]
    assert [line.rpartition(": ")[2] for line in out.splitlines() if "note" not in line] == ["sound"] * 5
    assert [line.partition(",")[0] for line in out.splitlines() if "note" in line] == unchecked


def test_any_flipped_bit_of_a_file_with_digests_is_found(file, capsys):
    """D1, L67: in the header, in the padding, in the data; the status says so."""
    data_ = file.read_bytes()
    for at in (*range(0, len(data_), 37), 255, len(data_) - 1):
        flipped = bytearray(data_)
        flipped[at] ^= 1 << at % 8
        file.write_bytes(flipped)
        status, out, _ = call(capsys, "verify", file)
        assert (status, "damage" in out) == (1, True)


def test_what_readers_accept_is_noted_and_is_no_damage(tmp_path, capsys):
    """R93, R99, R101: of a file without digests; and NaN and infinities are counted."""
    record = ModuleRecord([
        ("a", entry(np.array([1, np.nan, -np.nan, np.inf], "float32"))), ("b", entry(np.array([1.0, -np.inf]))),
    ])  # fmt: skip
    data_ = record.into_bytes(digest=False)
    changed = bytearray(data_) + b"x"
    start = len(data_) - 256 - 16  # of the data
    changed[start - 1] = changed[start + 20] = 1
    file = tmp_path / "r.bpk"
    file.write_bytes(changed)
    status, out, _ = call(capsys, "verify", file)
    assert status == 0
    assert [line.strip() for line in out.splitlines()[1:]] == [
        "note: the bytes between metadata and data are not all zero",
        "note: it carries no digests, so damage to its numbers cannot be found",
        f"note: the bytes from offset {start + 16} to {start + 256}, between tensors, are not all zero",
        f"note: behind the last tensor, from offset {len(data_)} on, the file has 1 byte, not all zero",
        "note: tensor 'a' has 2 NaN and 1 infinite elements",
        "note: tensor 'b' has 0 NaN and 1 infinite elements",
    ]


def test_unknown_keys_and_odd_places_are_noted(tmp_path, capsys):
    """R93, R99: written by hand."""
    descriptor = {"dtype": "F32", "shape": [1], "data_offsets": [4, 8], "color": 1}
    raw = cbor2.dumps({"tensors": {"w": descriptor}, "more": 2})
    head = b"NRUB\1\0" + len(raw).to_bytes(4, "little") + raw
    (tmp_path / "r.bpk").write_bytes(head.ljust(256, b"\0") + bytes(8))
    status, out, _ = call(capsys, "verify", tmp_path / "r.bpk", "--json")
    assert status == 0
    assert json.loads(out) == {
        "file": str(tmp_path / "r.bpk"),
        "damage": [],
        "notes": [
            "the metadata has the unknown key 'more', which is ignored",
            "the metadata has the unknown key 'w: color', which is ignored",
            "tensor 'w' starts at offset 260, not at a multiple of 256",
            "it carries no digests, so damage to its numbers cannot be found",
        ],
    }


def test_a_boolean_that_is_none_is_damage_and_the_other_files_are_looked_at(file, tmp_path, capsys):
    """R104; one bad file among several."""
    bad = tmp_path / "bad.bpk"
    data_ = bytearray(ModuleRecord([("b", entry([True]))]).into_bytes(digest=False))
    data_[-1] = 2
    bad.write_bytes(data_)
    status, out, err = call(capsys, "verify", bad, tmp_path / "missing.bpk", file)
    lines = out.splitlines()
    assert status == 1
    assert "damage: tensor 'b': element 0 is 2; a boolean is 0 or 1" in out
    assert "missing.bpk" in err
    assert "missing.bpk" not in out
    assert lines[-1].endswith("r.bpk: burnpack, 3 tensors: sound")


def test_a_flipped_bit_of_a_pytorch_file_is_found_by_its_checksums(tmp_path, capsys):
    data_ = bytearray((SAMPLES / "state_dict.pt").read_bytes())
    data_[data_.index(np.float32(1.0).tobytes() + np.float32(2.0).tobytes())] ^= 1
    (tmp_path / "m.pt").write_bytes(data_)
    status, out, _ = call(capsys, "verify", tmp_path / "m.pt")
    assert status == 1
    assert "damage: record 'state_dict/data/0'" in out
    status, out, _ = call(
        capsys, "verify", SAMPLES / "without_crc.pt", SAMPLES / "before_1_6.pth", SAMPLES / "dtypes.pt"
    )
    assert status == 0
    assert out.count("checksum") == 2
    assert "'complex64' has elements of complex64, which are not looked at" in out


# diff


def test_records_that_are_equal_do_not_differ_whatever_their_formats(file, tmp_path, capsys):
    RECORD.save(tmp_path / "s.safetensors")
    status, out, _ = call(capsys, "diff", file, tmp_path / "s.safetensors")
    assert (status, out) == (0, "3 of 3 common tensors are equal\n")
    ModuleRecord(((path, RecordEntry(one.read("cpu:0"))) for path, one in RECORD.items()), scalars=RECORD.scalars).save(
        tmp_path / "without_ids.bpk"
    )
    assert call(capsys, "diff", file, tmp_path / "without_ids.bpk")[0] == 0


def test_diff_tells_paths_shapes_dtypes_ids_scalars_and_the_largest_difference(tmp_path, capsys):
    one = {
        "same": entry([1.0, np.nan], 1), "value": entry(np.array([[1, 2], [3, 4]], "float32"), 2),
        "shape": entry([1.0, 2.0]), "dtype": entry(np.array([1, 2], "float32")), "gone": entry([1.0]),
        "id": entry([1.0], 7), "ints": entry(np.array([-(2**63), 5])), "sign": entry([0.0]), "nan": entry([1.0, 2.0]),
    }  # fmt: skip
    other = {
        "same": entry([1.0, np.nan], 1), "value": entry(np.array([[1, 2.5], [3, 2]], "float32"), 2),
        "shape": entry([[1.0, 2.0]]), "dtype": entry(np.array([1, 2], "float64")), "new": entry([1.0]),
        "id": entry([1.0], 8), "ints": entry(np.array([2**63 - 1, 5])), "sign": entry([-0.0]),
        "nan": entry([7.0, np.nan]),
    }  # fmt: skip
    ModuleRecord(one, scalars={"step": 1}).save(tmp_path / "a.bpk")
    ModuleRecord(other, scalars={"step": 2, "lr": 0.5}).save(tmp_path / "b.bpk")
    status, out, err = call(capsys, "diff", tmp_path / "a.bpk", tmp_path / "b.bpk")
    assert (status, err) == (1, "")
    assert out.splitlines() == [
        f"only in {tmp_path / 'a.bpk'}: gone",
        f"only in {tmp_path / 'b.bpk'}: new",
        "dtype: dtypes float32, float64; equal numbers",
        f"id: ids {ParamId(7)}, {ParamId(8)}; equal numbers",
        f"ints: 1 elements differ, at most by {2**64 - 1} at [0]",
        "nan: 2 elements differ, at most by nan at [1]",
        "shape: shapes [2], [1, 2]",
        "sign: 1 elements differ, at most by 0.0 at [0]",
        "value: 2 elements differ, at most by 2.0 at [1, 1]",
        "scalar step: Int 1, Int 2",
        "scalar lr: none, Float 0.5",
        "1 of 8 common tensors are equal",
    ]
    _, out, _ = call(capsys, "diff", tmp_path / "a.bpk", tmp_path / "b.bpk", "--json")
    found = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert (found["only_a"], found["only_b"], found["equal"]) == (["gone"], ["new"], 1)
    assert {one["path"]: one["largest"] for one in found["differ"]} == {
        "dtype": None, "id": None, "ints": 2**64 - 1, "nan": "nan", "shape": None, "sign": 0.0, "value": 2.0,
    }  # fmt: skip


def test_foreign_elements_are_not_compared(capsys):
    status, out, _ = call(capsys, "diff", SAMPLES / "dtypes.pt", SAMPLES / "dtypes.pt")
    assert status == 1
    assert "complex64: elements of complex64 are not compared" in out


@example(pair=(np.array([0xFF81], "uint16").view(ml_dtypes.bfloat16), np.ones(1, "float32")), part=1)
@given(pair=st.tuples(arrays(), arrays()), part=st.sampled_from([1, 2, 3, 100]))
def test_a_difference_is_that_of_numpy_over_the_whole(pair, part):
    """Part by part or at once: how many elements, how much, where; bits decide where the dtypes are the same."""
    a, b = pair
    b = np.resize(b, a.shape).astype(b.dtype, copy=False)
    kept, data._PART = data._PART, part
    try:
        with warnings.catch_warnings(action="error"):
            found = difference(a, b)
            nans = not_finite(a)
    finally:
        data._PART = kept
    with np.errstate(all="ignore"):
        wide, other = a.astype("float64"), b.astype("float64")
    if a.dtype == b.dtype:
        bits = f"u{a.dtype.itemsize}"
        differs = np.ascontiguousarray(a).reshape(a.shape).view(bits) != np.ascontiguousarray(b).reshape(a.shape).view(
            bits
        )
    else:
        differs = ~((wide == other) | (np.isnan(wide) & np.isnan(other)))
    if "int" not in a.dtype.name:
        assert nans == (np.isnan(wide).sum(), np.isinf(wide).sum())
    if not differs.any():
        assert found is None
        return
    assert found is not None
    assert found.elements == differs.sum()
    assert differs[found.place]
    if a.dtype == b.dtype and "int" in a.dtype.name:
        assert found.largest == max(abs(int(x) - int(y)) for x, y in zip(a.flat, b.flat, strict=True))
        return
    with np.errstate(all="ignore"):
        apart = [
            0.0 if x == y or (x != x and y != y) else abs(x - y) for x, y in zip(wide.flat, other.flat, strict=True)
        ]
    expected = np.nan if np.isnan(apart).any() else max(apart)
    assert np.array_equal(np.reshape(apart, a.shape)[found.place], expected, equal_nan=True)
    assert np.array_equal(found.largest, expected, equal_nan=True)


def test_quantized_tensors_are_shown_checked_converted_and_compared_as_what_they_stand_for(tmp_path, capsys):
    """R70: with the scheme as dtype, and the bytes of the file."""
    x = Tensor.from_numpy(np.linspace(-1, 1, 32, dtype="float32").reshape(4, 8), "cpu:0")
    scheme = QuantScheme(QuantValue.Q8S, QuantStore.native())
    quantized = quantize(x, scheme)
    ModuleRecord([("q", RecordEntry(quantized, ParamId(3)))]).save(tmp_path / "q.bpk")
    ModuleRecord([("q", RecordEntry(dequantize(quantized), ParamId(3)))]).save(tmp_path / "d.bpk")
    assert str(scheme) in call(capsys, "inspect", tmp_path / "q.bpk")[1]
    assert call(capsys, "verify", tmp_path / "q.bpk")[1].endswith(": sound\n")
    assert call(capsys, "convert", tmp_path / "q.bpk", tmp_path / "r.bpk")[0] == 0
    assert call(capsys, "diff", tmp_path / "q.bpk", tmp_path / "r.bpk")[0] == 0
    packed = quantize(x, replace(scheme, store=QuantStore.packed_u32()))
    ModuleRecord([("q", RecordEntry(packed, ParamId(3)))]).save(tmp_path / "p.bpk")
    assert call(capsys, "diff", tmp_path / "q.bpk", tmp_path / "p.bpk")[0] == 0  # formats do not matter
    other = quantize(x, replace(scheme, value=QuantValue.Q8F))
    ModuleRecord([("q", RecordEntry(other, ParamId(3)))]).save(tmp_path / "o.bpk")
    assert call(capsys, "diff", tmp_path / "q.bpk", tmp_path / "o.bpk")[0] == 1
    status, out, _ = call(capsys, "diff", tmp_path / "q.bpk", tmp_path / "d.bpk")
    assert (status, "equal numbers" in out) == (1, True)
