"""Burnpack files that we write: what they keep (L55, L64) and where everything lies (L65), with and without digests."""

import hashlib
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Tensor
from records import ModuleRecord, ParamId, RecordEntry, RecordError, RecordFormatError, open_record
from records.burnpack.writer import pieces
from tests.laws.law import inside
from tests.records import burnpack_oracle as oracle
from tests.records.strategies import Item, expected, items, observed, record_of, scalars, texts


def stored(entries: list[Item]) -> list[oracle.Stored]:
    return [
        oracle.Stored(item.path, oracle.PLAIN[item.array.dtype.name], item.array.shape, item.array.tobytes(), item.id)
        for item in entries
    ]


numbers = st.dictionaries(texts, scalars, max_size=3)
metadata = st.dictionaries(texts, texts, max_size=3)


@inside("L65")
@given(entries=items(), numbers=numbers, metadata=metadata)
def test_without_digests_the_bytes_are_those_of_the_layout_rules(entries, numbers, metadata):
    """L65, R49 to R65: put together by hand from the entries alone."""
    by_hand = {
        name: (scalar.kind, oracle.shortest_float(scalar.value) if scalar.kind == "Float" else scalar.value)
        for name, scalar in numbers.items()
    }
    record = record_of(entries, scalars=numbers, metadata=metadata)
    assert record.into_bytes(digest=False) == oracle.burnpack(stored(entries), metadata, by_hand)


@inside("L55")
@given(entries=items(), numbers=numbers, metadata=metadata, digest=st.booleans())
def test_a_file_keeps_entries_scalars_and_metadata_bit_for_bit(entries, numbers, metadata, digest):
    """L55: bytes, dtypes, shapes, ids, scalars, texts; names come in byte-wise order (R40)."""
    record = record_of(entries, scalars=numbers, metadata=metadata)
    with tempfile.TemporaryDirectory() as folder:
        record.save(Path(folder) / "r", digest=digest)
        assert [file.name for file in Path(folder).iterdir()] == ["r.bpk"]
        assert (Path(folder) / "r.bpk").read_bytes() == record.into_bytes(digest=digest)
        with open_record(Path(folder) / "r", check_data=True) as back:
            assert observed(back) == expected(entries)
            assert list(back) == sorted((item.path for item in entries), key=str.encode)
            assert dict(back.scalars) == numbers
            assert dict(back.metadata) == metadata


@inside("L64")
@given(entries=items(), digest=st.booleans())
def test_a_record_of_a_file_saves_to_the_same_bytes(entries, digest):
    """L64: also after a round trip, once the data is in the order of names."""
    ordered = sorted(entries, key=lambda item: item.path.encode())
    first = record_of(ordered).into_bytes(digest=digest)
    assert ModuleRecord.from_bytes(first).into_bytes(digest=digest) == first


@inside("L65")
@given(sizes=st.lists(st.sampled_from([0, 1, 255, 256, 257, 511, 512, 513]), max_size=6))
def test_data_starts_at_multiples_of_256_and_nothing_follows_the_last_byte(sizes):
    """R55 to R58: read back with cbor2, sizes around the alignment."""
    record = ModuleRecord(
        [
            (f"t{at}", RecordEntry(Tensor.from_numpy(np.full(size, 7, "uint8"), "cpu:0")))
            for at, size in enumerate(sizes)
        ]
    )
    for digest in (False, True):
        data = record.into_bytes(digest=digest)
        count = int.from_bytes(data[6:10], "little")
        start = -(-(10 + count) // 256) * 256
        tensors = cbor2.loads(data[10 : 10 + count])["tensors"]
        end = 0
        for at, size in enumerate(sizes):
            offsets = tensors[f"t{at}"]["data_offsets"]
            assert offsets == [-(-end // 256) * 256, -(-end // 256) * 256 + size]
            assert not any(data[start + end : start + offsets[0]])
            end = offsets[1]
        assert len(data) == start + end
        assert not any(data[10 + count : start])


def test_smallest_example_is_byte_for_byte_that_of_the_rules():
    """R65, records.md section 7."""
    record = ModuleRecord([("w", RecordEntry(Tensor.from_numpy(np.array([1, 2], "float32"), "cpu:0"), ParamId(1)))])
    data = record.into_bytes(digest=False)
    metadata = (
        b"\xa1\x67tensors\xa1\x61w\xa4\x65dtype\x63F32\x65shape\x81\x02\x6cdata_offsets\x82\x00\x08\x68param_id\x01"
    )
    assert data[:67] == bytes.fromhex("4e525542010039000000") + metadata
    assert len(data) == 264


@given(entries=items(), texts_=metadata)
def test_digests_are_the_sha_256_of_header_and_data(entries, texts_):
    """D1: computed here from the finished bytes."""
    data = record_of(entries, metadata=texts_).into_bytes()
    count = int.from_bytes(data[6:10], "little")
    start = -(-(10 + count) // 256) * 256
    found = cbor2.loads(data[10 : 10 + count])["metadata"]
    assert {key: found[key] for key in found if not key.startswith("layerloom.")} == texts_
    assert found["layerloom.data"] == hashlib.sha256(data[start:]).hexdigest()
    blanked = re.sub(rb"(layerloom\.(?:header|data)x@)[0-9a-f]{64}", rb"\g<1>" + b"0" * 64, data[:start])
    assert found["layerloom.header"] == hashlib.sha256(blanked).hexdigest()


def test_the_same_record_gives_the_same_bytes_in_another_process():
    """L64, R48: another hash seed, another time, another thread count."""
    program = (
        "import sys, numpy as np; from engine import Tensor; from records import *\n"
        "r = ModuleRecord([(f'p{i}.w', RecordEntry(Tensor.from_numpy(np.arange(i), 'cpu:0'), ParamId(i)))"
        " for i in (3, 1, 2)], scalars={'b': 1, 'a': 0.5}, metadata={'z': 'y', 'c': 'd'})\n"
        "sys.stdout.buffer.write(r.into_bytes())"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(runs) == 1
    assert len(ModuleRecord.from_bytes(runs.pop())) == 3


@pytest.mark.parametrize("order", ["C", "F"])
def test_large_tensors_are_written_in_pieces_that_are_together_the_row_major_bytes(order):
    """R83: none above 8 MiB, and no copy where the bytes lie in order."""
    array = np.asarray(np.arange(3 * 2**20, dtype="float32").reshape(6, 2**10, -1), order=order)
    for given_ in (array, array[:, ::3], np.broadcast_to(array[0], (2, *array[0].shape))):
        parts = list(pieces(given_))
        assert max(map(len, parts)) <= 8 * 2**20
        assert b"".join(parts) == given_.tobytes()
    if order == "C":
        assert all(np.shares_memory(np.frombuffer(part, "uint8"), array) for part in pieces(array))


def test_a_row_larger_than_a_piece_is_cut_too():
    """R83: whether its bytes lie in order or not."""
    row = np.arange(10 * 2**20, dtype="uint16")
    assert [len(part) for part in pieces(np.broadcast_to(row[: 5 * 2**20], (2, 5 * 2**20)))] == [
        8 * 2**20, 2 * 2**20, 8 * 2**20, 2 * 2**20,
    ]  # fmt: skip
    strided = np.stack([row, row + 1])[:, ::2]
    parts = list(pieces(strided))
    assert max(map(len, parts)) <= 8 * 2**20
    assert b"".join(parts) == strided.tobytes()


def test_many_small_and_some_large_tensors_keep_their_places():
    """R55, R83: small pieces are joined on the way, large ones are not."""
    draw = random.Random(0)
    sizes = [draw.choice([0, 3, 300, 70_000, 200_000]) for _ in range(60)] + [9 * 2**20, 5]
    entries = [Item(f"t{at:03}", np.full(size, at % 251, "uint8"), None) for at, size in enumerate(sizes)]
    data = record_of(entries).into_bytes(digest=False)
    assert data == oracle.burnpack(stored(entries))
    with tempfile.TemporaryDirectory() as folder:
        record_of(entries).save(Path(folder) / "r.bpk")
        with open_record(Path(folder) / "r.bpk", check_data=True) as back:
            assert observed(back) == expected(entries)


def test_booleans_of_every_store_and_flex32_load_as_bool_and_float32():
    """R69, R74, R75, and R68's Flex32."""
    truths = np.array([True, False, True])
    tensors = [
        oracle.Stored("native", {"Bool": "Native"}, (3,), truths.tobytes(), None),
        oracle.Stored("u8", {"Bool": "U8"}, (3,), truths.tobytes(), None),
        oracle.Stored("u32", {"Bool": "U32"}, (3,), truths.astype("<u4").tobytes(), None),
        oracle.Stored("old", "Bool", (3,), truths.tobytes(), None),
        oracle.Stored("flex", "Flex32", (1,), b"\x01\x00\x80\x7f", None),
    ]
    record = ModuleRecord.from_bytes(oracle.burnpack(tensors))
    assert record["u32"].nbytes == 3
    for name in ("native", "u8", "u32", "old"):
        assert observed(record)[name] == (None, "bool", (3,), truths.tobytes())
    assert observed(record)["flex"] == (None, "float32", (1,), b"\x01\x00\x80\x7f")
    for dtype, data in (
        ({"Bool": "Native"}, b"\1\2"),
        ({"Bool": "U32"}, b"\1\0\0\0\0\1\0\0"),
        ({"Bool": "U32"}, b"\1\0\0\0\xff\xff\xff\xff"),
    ):
        record = ModuleRecord.from_bytes(oracle.burnpack([oracle.Stored("b", dtype, (2,), data, None)]))
        with pytest.raises(RecordFormatError, match=r"tensor 'b': element 1 is .*0 or 1"):
            record["b"].read("cpu:0")


def test_metadata_that_is_no_text_is_written_as_json():
    """DESIGN, records: GGUF's numbers and lists survive in a format that has texts alone (R63)."""
    record = ModuleRecord(metadata={"n": 3, "tokens": ("a", "é"), "t": "text", "f": 0.5, "b": True})
    assert dict(ModuleRecord.from_bytes(record.into_bytes()).metadata) == {
        "n": "3", "tokens": '["a", "é"]', "t": "text", "f": "0.5", "b": "true",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (ModuleRecord(metadata={"layerloom.data": "0"}), "layerloom.data"),
        (ModuleRecord(metadata={"k": "\ud800"}), "not Unicode"),
        (ModuleRecord(metadata={"k": "nlayerloom.datax@" + "0" * 64}), "2 times"),
        (ModuleRecord(metadata={"k": "x" * (100 * 2**20)}), "more than the 104857600"),
    ],
)
def test_a_writer_refuses_what_its_reader_would(record, said, tmp_path):
    """R76, R81: before anything is created."""
    for write in (record.into_bytes, lambda: record.save(tmp_path / "r.bpk")):
        with pytest.raises(RecordError, match=said):
            write()
    assert not list(tmp_path.iterdir())
