"""Quantized entries: in burnpack files, from file to file, through the steps of `adapt`, damaged. R3, R70 to R74."""

import hashlib
import re
import tempfile
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import QuantScheme, QuantStore, QuantValue, ScaleDtype, Tensor, dequantize, quantize
from records import (
    Join,
    ModuleRecord,
    ParamId,
    RecordEntry,
    RecordError,
    RecordFormatError,
    RecordIoError,
    Transpose,
    open_record,
)
from records.burnpack import digest as burnpack_digest
from tests.laws.law import inside
from tests.modules.burn_values import scheme_of
from tests.records import burnpack_oracle as oracle
from tests.records.quantized_items import QuantizedItem, block, quantized_items
from tests.records.strategies import observed
from tests.records.test_damage import contents, flipped

SCHEME = {"value": "Q4S", "store": {"PackedU32": 0}, "mode": "Symmetric", "tensor": "F32", "block": block([4], "UE4M3")}
Q79 = QuantizedItem("w", SCHEME, (1, 8), bytes.fromhex("d701370f7e642549123b"), 5)


def record_of_one(item: QuantizedItem) -> ModuleRecord:
    return ModuleRecord([(item.path, item.entry)])


@inside("L65")
@given(items=st.tuples(quantized_items("a"), quantized_items("b.c")))
def test_the_bytes_of_a_quantized_file_are_those_of_the_layout_rules(items):
    """L65, R70 to R72, Q41 to Q43: put together by hand, scheme by scheme."""
    record = ModuleRecord([(item.path, item.entry) for item in items])
    assert record.into_bytes(digest=False) == oracle.burnpack([item.stored for item in items])


@inside("L55")
@given(items=st.tuples(quantized_items("a"), quantized_items("b.c")))
def test_a_file_keeps_quantized_entries_bit_for_bit(items):
    """L55, Q68: scheme, shape, bytes and id, and what they are in memory."""
    record = ModuleRecord([(item.path, item.entry) for item in items])
    with tempfile.TemporaryDirectory() as folder:
        record.save(Path(folder) / "r.bpk")
        with open_record(Path(folder) / "r.bpk", check_data=True) as back:
            for item in items:
                entry = back[item.path]
                assert (entry.dtype, entry.shape, entry.id) == (scheme_of(item.scheme), item.shape, item.id)
                assert (entry.kind, entry.nbytes, entry.host().tobytes()) == ("float", len(item.data), item.data)
                read = entry.read("cpu:1")
                assert (str(read.device), read.dtype, read.shape) == ("cpu:1", entry.dtype, item.shape)
                assert read.tobytes() == item.data
                assert dequantize(read).tobytes() == dequantize(item.tensor).tobytes()


def test_the_worked_example_is_byte_for_byte_that_of_the_rules():
    """R73; Q79 packed."""
    data = record_of_one(Q79).into_bytes(digest=False)
    told = (
        b"\xa1\x66QFloat\xa5\x65value\x63Q4S\x65store\xa1\x69PackedU32\x00\x64mode\x69Symmetric\x66tensor\x63F32"
        b"\x65block\xa2\x64size\xa2\x67storage\x85\x04\x01\x01\x01\x01\x63len\x01\x65dtype\x65UE4M3"
    )
    assert told in data
    numbers = dequantize(ModuleRecord.from_bytes(data)["w"].read("cpu:0")).numpy()
    assert np.array_equal(numbers[0, :4], [7, -3, 1, 0])


def test_what_fills_up_packed_lines_stays_in_files_and_goes_in_memory():
    """Q39: bytes go from file to file as they are."""
    scheme = {**SCHEME, "tensor": None, "block": None}
    data = bytes.fromhex("21f3ffff65a7aaaa0000803f")
    file = oracle.burnpack([oracle.Stored("w", oracle.quantized(scheme), (2, 3), data, None)])
    record = ModuleRecord.from_bytes(file)
    assert record.into_bytes(digest=False) == file
    assert record["w"].read("cpu:0").tobytes().hex() == "21030000650700000000803f"


def test_a_closed_file_says_so(tmp_path):
    """R41."""
    record_of_one(Q79).save(tmp_path / "r.bpk")
    with open_record(tmp_path / "r.bpk") as record:
        early = record["w"].read("cpu:0")
    for read in (record["w"].host, lambda: record["w"].read("cpu:0")):
        with pytest.raises(RecordIoError, match=r"r\.bpk: tensor 'w' was not read before the file was closed"):
            read()
    assert early.tobytes() == Q79.data


# Damage


def small_record() -> ModuleRecord:
    dense = RecordEntry(Tensor.from_numpy(np.array([1, -0.0], "float32"), "cpu:0"), ParamId(9))
    per_tensor = quantize(Tensor.from_numpy(np.array([[1, -2], [0.5, 0]], "float32"), "cpu:0"), QuantScheme())
    return ModuleRecord([("w", Q79.entry), ("d", dense), ("t", RecordEntry(per_tensor))])


@inside("L66")
def test_a_quantized_file_cut_at_any_byte_is_refused():
    """L66: with and without digests."""
    for digest in (False, True):
        data = small_record().into_bytes(digest=digest)
        for length in range(len(data)):
            with pytest.raises(RecordFormatError):
                ModuleRecord.from_bytes(data[:length])


@inside("L67")
def test_a_flipped_bit_of_a_quantized_file_with_digests_is_refused():
    """L67: wherever it is, once both are checked."""
    for at, damaged in flipped(small_record().into_bytes()):
        try:
            ModuleRecord.from_bytes(damaged, check_data=True)
        except RecordFormatError:
            continue
        pytest.fail(f"byte {at} is damaged, and the file was read")


@inside("L67")
def test_a_flipped_bit_of_a_quantized_file_without_digests_is_refused_or_harmless_or_local():
    """L67: never another exception; at most one tensor, name or id differs, also where the scheme is another."""
    data = small_record().into_bytes(digest=False)
    names, entries, _, _ = contents(ModuleRecord.from_bytes(data))
    opened = 0
    for at, damaged in flipped(data):
        try:
            record = ModuleRecord.from_bytes(damaged)
            found = observed(record)
        except RecordFormatError:
            continue
        opened += 1
        assert len(set(entries.items()) - set(found.items())) <= 1, at
        assert len(record) == len(names)
    assert opened > 100


def changed(**changes: Any) -> dict[str, Any]:
    return {**SCHEME, **changes}


def sized(**changes: Any) -> dict[str, Any]:
    return changed(block={"size": {"storage": [4, 1, 1, 1, 1], "len": 1, **changes}, "dtype": "UE4M3"})


@inside("L68")
@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        (changed(value="Q3S"), "kind of value is 'Q3S'; there are Q8F"),
        (changed(value=7), "kind of value is 7"),
        (changed(store="PackedU8"), "store of quantized values is 'PackedU8'"),
        (changed(store={"PackedU32": -1}), "store"),
        (changed(store={"PackedU32": 0, "PackedNative": 0}), "store"),
        (changed(store={"Native": 0}), "store"),
        (changed(store={"PackedU32": 2**64 - 1}), "which a tensor of shape (1, 8) has not"),
        (changed(mode="Affine"), "'Affine' is no mode"),
        (changed(mode="Lookup"), "mode Lookup needs a table"),
        (changed(mode=None), "is no mode"),
        (changed(tensor="F8"), "scale per tensor is 'F8'; there are F32"),
        (changed(tensor="F16"), "global scale is in F32, not F16"),
        (changed(tensor=False), "scale per tensor is False"),
        (changed(block=[]), "block of a scheme is [], no map"),
        (changed(block={"dtype": "F16"}), "size of a block is None"),
        (changed(block={"size": {"storage": [4, 1, 1, 1, 1], "len": 1}}), "dtype of the block scales is None"),
        (changed(block=block([4], "F32")), "block scales in F32 leave nothing"),
        (sized(storage=[4, 1, 1, 1]), "not 5 numbers"),
        (sized(storage=[4, 1, 1, 1, 1, 1]), "not 5 numbers"),
        (sized(storage=[0, 1, 1, 1, 1]), "each is from 1 to 255"),
        (sized(storage=[256, 1, 1, 1, 1]), "each is from 1 to 255"),
        (sized(storage=[4, 0, 1, 1, 1]), "each is from 1 to 255"),
        (sized(storage=[oracle.shortest_float(4.0), 1, 1, 1, 1]), "each is from 1 to 255"),
        (sized(len=0), "a block has 0 extents"),
        (sized(len=6), "a block has 6 extents"),
        (sized(storage=[4, 4, 4, 1, 1], len=3), "a block of 3 axes"),
        (changed(tensor=None), "takes 6"),  # the length of another scheme
        (changed(value="Q8S"), "takes 14"),
        (changed(store={"PackedU32": 1}), "takes 38"),
    ],
)  # fmt: skip
def test_a_scheme_that_means_nothing_is_refused(scheme, said):
    """R94, R98, Q6, Q7, Q44: at opening, naming the tensor."""
    dtype = {"QFloat": scheme}
    data = oracle.burnpack([oracle.Stored("a.w", dtype, (1, 8), Q79.data, None)])
    with pytest.raises(RecordFormatError, match="tensor 'a.w': .*" + re.escape(said)):
        ModuleRecord.from_bytes(data)


@inside("L68")
@pytest.mark.parametrize("key", ["value", "store", "mode"])
def test_a_scheme_without_a_key_that_it_needs_is_refused(key):
    """R71: only `tensor` and `block` may be missing; other keys are ignored, as R93 has it."""
    lacking = {name: value for name, value in SCHEME.items() if name != key}
    with pytest.raises(RecordFormatError, match=f"tensor 'w': a scheme has no {key}"):
        ModuleRecord.from_bytes(oracle.burnpack([Q79.stored._replace(dtype={"QFloat": lacking})]))
    more = {"QFloat": {**SCHEME, "new": [1]}}
    record = ModuleRecord.from_bytes(oracle.burnpack([Q79.stored._replace(dtype=more)]))
    assert record["w"].dtype == scheme_of(SCHEME)


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ({"level": "Tensor", "param": "F32"}, None),
        ({"level": "Tensor", "param": "F16"}, "level 'Tensor' and param 'F16'"),
        ({"level": {"Block": [4]}, "param": "F32"}, "level {'Block': "),
        ({"level": "Tensor"}, "param None"),
        ({"param": "F32"}, "level None"),
        ({"level": "Tensor", "param": "F32", "tensor": "F32"}, "only level 'Tensor'"),
    ],
)
def test_schemes_of_older_burns_are_read_where_they_mean_the_same(old, said):
    """R74."""
    scheme = {"value": "Q8S", "store": "Native", "mode": "Symmetric", **old}
    data = oracle.burnpack([oracle.Stored("w", {"QFloat": scheme}, (4,), bytes.fromhex("81b90023d436683c"), None)])
    if said is None:
        entry = ModuleRecord.from_bytes(data)["w"]
        assert entry.dtype == QuantScheme(QuantValue.Q8S, QuantStore.native())
        assert dequantize(entry.read("cpu:0")).numpy()[0] == np.float32(-1.8)  # Q71
        return
    with pytest.raises(RecordFormatError, match="tensor 'w': .*" + re.escape(said)):
        ModuleRecord.from_bytes(data)


def test_a_scale_that_is_none_is_refused_when_the_tensor_is_read_and_when_it_is_saved(tmp_path):
    """Q47, R104: no file is left."""
    data = oracle.burnpack([Q79.stored._replace(data=Q79.data[:-4] + b"\0\0\xc0\x7f")])
    record = ModuleRecord.from_bytes(data)
    for use in (lambda: record["w"].read("cpu:0"), lambda: record.save(tmp_path / "r.bpk")):
        with pytest.raises(RecordFormatError, match=r"tensor 'w': .*global scale nan is not positive and finite"):
            use()
    assert not list(tmp_path.iterdir())


# Steps, formats, memory


@given(item=quantized_items(ranks=(2, 3)))
def test_a_transposed_entry_is_the_transposed_tensor(item):
    """Q13: blocks and packing go along; in memory and in a file alike."""
    turned = record_of_one(item).adapt(Transpose("q"))
    expected = item.tensor.T
    for record in (turned, ModuleRecord.from_bytes(turned.into_bytes())):
        entry = record["q"]
        assert (entry.dtype, entry.shape, entry.id) == (expected.dtype, expected.shape, item.id)
        assert entry.nbytes == len(entry.host())
        assert entry.host().tobytes() == entry.read("cpu:0").tobytes() == expected.tobytes()
    again = turned.adapt(Transpose("q"))
    assert again["q"].dtype == scheme_of(item.scheme)
    assert again.into_bytes() == record_of_one(item).into_bytes()


def test_quantized_entries_are_not_joined_and_not_written_as_safetensors(tmp_path):
    """Both name the paths and the scheme."""
    record = ModuleRecord([("a", Q79.entry), ("b", Q79.entry)])
    with pytest.raises(RecordFormatError, match=r"'ab' of 'a' \(\(Q4S.* no quantized ones"):
        record.adapt(Join("ab", ["a", "b"], axis=0))
    with pytest.raises(RecordError, match=r"tensor 'a': a safetensors file has no dtype \(Q4S"):
        record.save(tmp_path / "r.safetensors")
    assert not list(tmp_path.iterdir())


class SlowHash:
    """A digest that is behind the writer, as on a machine without instructions for it."""

    def __init__(self, data: bytes = b"") -> None:
        self._hash = hashlib.sha256(data)

    def update(self, piece: Any) -> None:
        time.sleep(0.01)
        self._hash.update(piece)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


@pytest.mark.parametrize("digest", [False, True])
@pytest.mark.parametrize("value", [QuantValue.Q8S, QuantValue.Q2S])
def test_saving_holds_the_bytes_of_one_quantized_tensor_at_a_time(value, digest, tmp_path, monkeypatch):
    """R83: beside the tensors themselves, which have a byte a value; also where the digest is slow."""
    nbytes = 12 * 2**20  # in the file of Q8S, so that no padding comes between
    stored = np.concatenate([np.zeros(nbytes - 4, np.uint8), np.array([1], "<f4").view(np.uint8)])
    one = Tensor.from_quantized(stored, (4, nbytes // 4 - 1), QuantScheme(QuantValue.Q8S, QuantStore.native()), "cpu:0")
    if value is not QuantValue.Q8S:
        one = quantize(dequantize(one), QuantScheme(value, tensor=ScaleDtype.F16))
    del stored
    record = ModuleRecord([(f"w{at}", RecordEntry(one)) for at in range(4)])
    monkeypatch.setattr(burnpack_digest, "hashlib", SimpleNamespace(sha256=SlowHash))
    tracemalloc.start()
    try:
        record.save(tmp_path / "r.bpk", digest=digest)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < nbytes * 1.3
