"""Damaged and malicious named-MessagePack files, and what a gzip file may unfold to. N1 to N14, L66 to L68."""

import gzip
import json
import random
import time
import tracemalloc
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from records import ModuleRecord, RecordFormatError, inflated, open_record
from records.inflated import GZIP_MAGIC, Inflated
from records.named_mpk import read_named_mpk
from records.named_mpk.reader import START_NBYTES, begins_named_mpk
from records.storage import LIMITS, Limits, Storage
from tests.laws.law import inside
from tests.records import named_mpk_oracle as oracle
from tests.records.strategies import observed


def small_file() -> bytes:
    """One of each: float, truth values, quantized; patterns and integers without a dtype; what has no state."""
    item = {
        "w": oracle.parameter(oracle.tensor(np.array([[1, np.nan]], "f4")), "ib8eptsg6c000"),
        "b": [oracle.parameter(oracle.tensor(np.array([True, False])))],
        "q": oracle.parameter({"bytes": b"\x81\0\2\0\0\0\x3f", "shape": [3], "dtype": {"QFloat": {
            "value": "Q8S", "param": "F32", "store": "Native", "level": "Tensor", "mode": "Symmetric"}}}),
        "v": oracle.parameter({"value": [15360, 3], "shape": [2]}),
        "f": oracle.parameter({"value": [0.5, 2.0], "shape": [2]}),
        "act": {"Relu": None},
    }  # fmt: skip
    return oracle.packed(item, oracle.HALF)


def read(data: bytes) -> dict[str, Any]:
    """What is in a file's bytes, which are in memory; writing thousands of files would take most of the time."""
    storage = Storage("r.mpk", data)
    store = Inflated(storage, LIMITS) if data[:2] == GZIP_MAGIC else storage
    if not begins_named_mpk(store.read(0, START_NBYTES)):
        raise RecordFormatError("r.mpk: begins no record")
    record = ModuleRecord.of_file(read_named_mpk(store, LIMITS), storage)
    return {path: entry.read("cpu:0").tobytes() for path, entry in record.items()}


def read_whole(folder: Path, data: bytes, **limits: int) -> dict[str, Any]:
    file = folder / "r.mpk"
    file.write_bytes(data)
    with open_record(file, **limits) as record:
        return {path: entry.read("cpu:0").tobytes() for path, entry in record.items()}


def forms() -> list[bytes]:
    plain = small_file()
    text = json.dumps({"metadata": oracle.METADATA, "item": {"w": oracle.parameter(
        {"bytes": [0, 0, 128, 63], "shape": [1], "dtype": "F32"})}})  # fmt: skip
    return [plain, gzip.compress(plain, mtime=0), text.encode()]


@inside("L66")
@pytest.mark.parametrize("form", range(3))
def test_a_file_cut_at_any_byte_is_refused(form, tmp_path):
    """L66: every prefix, plain, in gzip, and as JSON."""
    data = forms()[form]
    assert "w" in read_whole(tmp_path, data)
    for length in range(len(data)):
        with pytest.raises(RecordFormatError, match=r"r\.mpk"):
            read(data[:length])
        if length % 50 == 0:
            with pytest.raises(RecordFormatError, match=r"r\.mpk"):
                read_whole(tmp_path, data[:length])


@inside("L67")
@pytest.mark.parametrize("form", range(3))
def test_a_flipped_bit_is_refused_or_changes_what_it_stands_for(form):
    """L67: never another exception; in gzip, which has a checksum, refused or equal."""
    data = forms()[form]
    whole = read(data)
    for at in range(len(data)):
        for bit in range(8):
            damaged = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            try:
                found = read(damaged)
            except RecordFormatError:
                continue
            assert len(found) <= len(whole)
            assert found == whole or data[:2] != GZIP_MAGIC


@inside("L67")
def test_damage_of_many_bytes_is_refused_or_reads():
    """L67: bytes changed, put in, taken out and repeated at random places; never another exception."""
    drawn = random.Random(6)
    plain = small_file()
    for _ in range(1500):
        data = bytearray(plain)
        for _ in range(drawn.randrange(1, 4)):
            at, other, length = drawn.randrange(len(data)), drawn.randrange(len(data)), drawn.randrange(1, 9)
            piece = [
                bytes(drawn.randbytes(length)),
                data[other : other + length],
                b"",
                b"\xdf\xff\xff\xff\xff",
                b"\xc6",
            ]
            data[at : at + drawn.randrange(length + 1)] = drawn.choice(piece)
        try:
            read(bytes(data))
        except RecordFormatError as error:
            assert "r.mpk" in str(error)  # noqa: PT017


FLOAT = 0.5  # which `oracle.packed` makes a float32 of


@pytest.mark.parametrize("field", ["bytes", "shape", "dtype", "value"])
def test_a_float_where_a_tensors_map_has_an_array_is_refused(field, tmp_path):
    """A NumPy float32 compared with a list is an array."""
    for tensor in (oracle.tensor(np.ones(2, "f4")), {"value": [0.5, 2.0], "shape": [2]}):
        item = {"w": oracle.parameter({**tensor, field: FLOAT} if field in tensor else {field: FLOAT, "shape": []})}
        with pytest.raises(RecordFormatError, match="r.mpk"):
            read_whole(tmp_path, oracle.packed(item))


def test_a_zero_point_may_take_numbers_beyond_float32(tmp_path):
    """N10: they are infinite, without a warning."""
    values, offset, scale = b"\x7f\x80\0\0", b"\1\0\0\0", np.finfo("f4").max.tobytes()
    dtype = {"QFloat": {"PerTensorAffine": "QInt8"}}
    tensor = {"bytes": values + offset + scale, "shape": [2], "dtype": dtype}
    data = oracle.packed({"w": oracle.parameter(tensor)}, {**oracle.METADATA, "version": "0.16.1"})
    with warnings.catch_warnings(action="error"):
        found = read_whole(tmp_path, data)
    assert found == {"w": np.array([np.inf, -np.inf], "f4").tobytes()}


EMPTY = oracle.parameter(oracle.tensor(np.zeros(0, "f4")))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (small_file() + b"\0", "offset .*: bytes are left after the value"),
        (oracle.packed({"a": EMPTY}).replace(b"\x81\xa1a", b"\x82\xa1a\xc0\xa1a"), "'a' is there twice"),
        (b'{"item": {"a": null, "a": null}, "metadata": {}}', "'a' is there twice"),
        (b'{"item": {"a": NaN}, "metadata": {}}', "NaN, which JSON does not have"),
        (b'{"item": {"a": "\\ud800"}, "metadata": {}}', "no Unicode text"),
        (msgpack.packb({"item": {}, "_b": []}), "no key 'metadata'"),
        (msgpack.packb({"metadata": oracle.METADATA}), "no key 'item'"),
        (msgpack.packb({"metadata": None, "item": {}}), "metadata is no map"),
        (oracle.packed({}, {**oracle.METADATA, "version": 3}), "metadata has no text 'version'"),
        (oracle.packed({"a.b": EMPTY}), "'a.b' is no name of a field"),
        (oracle.packed({"a": {"": EMPTY}}), "'a': '' is no name of a field"),
        (oracle.packed({"a": "text"}), "'a': the text 'text' stands where"),
        (oracle.packed({"a": [1, 2]}), "'a': an array of 2 numbers stands where"),
        (oracle.packed({"a": b"xyz"}), "'a': a binary of 3 bytes stands where"),
        (oracle.packed({"a": {3: EMPTY}}), "at 'item.a': offset .*: a key is no text"),
        (oracle.packed({"a": msgpack.Timestamp(1)}), "at 'item.a': offset .*: an extension type"),
        (oracle.packed({"a": msgpack.ExtType(5, b"x" * 9)}), "an extension type"),
        (oracle.packed(EMPTY), "'' is no path"),
        (oracle.packed({"a": {"id": "x", "param": {"bytes": b"", "shape": [0]}}}), "'a.id': the text 'x'"),
        (oracle.packed({"a": [1, 2.0]}), "holds something else too"),
        (oracle.packed({"a": [True, 1]}), "holds something else too"),
        (oracle.packed({"a": [1.0, None]}), "holds something else too|ends behind"),
        (oracle.packed({"a": [1, [2]]}), "no MessagePack integer|something else"),
        (oracle.packed({"a": 2**64 - 1, "b": [2**64 - 1]}), "which 64 bits with a sign do not hold"),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused_saying_where(data, said, tmp_path):
    """N1 to N4: the file, and the offset or the path."""
    with pytest.raises(RecordFormatError, match=rf"r\.mpk: .*(?:{said})"):
        read_whole(tmp_path, data)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bytes": bytes(9)}, "9 bytes; shape .2. of 'F32' takes 8"),
        ({"bytes": [0] * 7 + [256]}, "no binary and no array of numbers from 0 to 255"),
        ({"bytes": [0] * 7 + [-1]}, "no binary and no array"),
        ({"shape": [-2]}, "no array of at most 64 unsigned"),
        ({"shape": [2.0]}, "no array of at most 64 unsigned"),
        ({"shape": [1] * 65}, "no array of at most 64 unsigned"),
        ({"shape": [2**40, 2**40]}, "overflows"),
        ({"shape": [0, 2**62, 4], "bytes": b""}, "overflows"),
        ({"shape": [2**63 - 1]}, "overflows"),
        ({"dtype": "F128"}, "'F128' is unknown"),
        ({"dtype": {"Bool": "Odd"}}, "stored as 'Odd'"),
        ({"dtype": {"Bool": "Native", "x": 1}}, "neither a name nor a map"),
        ({"dtype": {"QFloat": "x"}}, "quantized dtype is 'x'"),
        ({"dtype": {"QFloat": {}}}, "is unknown"),
        ({"dtype": {"QFloat": {"PerTensorAffine": "QInt9"}}}, "is unknown"),
        ({"dtype": {"QFloat": {"PerTensorAffineInt8": {"scale": 0.5, "offset": 2**40}}}}, "offset of the values"),
        ({"dtype": {"QFloat": {"PerTensorSymmetricInt8": {"scale": 0.0}}}}, "scales are positive and finite"),
        ({"dtype": {"QFloat": {"PerTensorSymmetricInt8": {"scale": np.inf}}}}, "the scale is inf"),
        ({"dtype": {"QFloat": {"PerTensorSymmetricInt8": {"scale": "x"}}}}, "the scale is 'x', no float"),
    ],
)
def test_tensors_that_contradict_themselves_are_refused_with_their_path(change, said, tmp_path):
    """N5, N10."""
    tensor = {**oracle.tensor(np.zeros(2, "f4")), **change}
    with pytest.raises(RecordFormatError, match=rf"r\.mpk: tensor 'm\.w': .*(?:{said})"):
        read_whole(tmp_path, oracle.packed({"m": {"w": oracle.parameter(tensor)}}))


@pytest.mark.parametrize(
    "change",
    [
        {"level": "Row"}, {"level": {"Block": {"storage": [1, 1, 1, 1], "len": 1}}},
        {"level": {"Block": {"storage": [0, 1, 1, 1, 1], "len": 1}}},
        {"level": {"Block": {"storage": [256, 1, 1, 1, 1], "len": 1}}},
        {"level": {"Block": {"storage": [1, 1, 1, 1, 1], "len": 6}}},
        {"level": {"Block": {"storage": [1, 1, 1, 1, 1], "len": 3}}},  # more axes than the tensor
        {"store": "U64"}, {"store": {"PackedU32": 2}}, {"store": {"PackedU32": -1}}, {"store": {"PackedU32": 2**70}},
        {"store": {"PackedU32": True}}, {"value": "Q9S"}, {"value": ["Q8S"]}, {"param": "F8"}, {"mode": "Lookup"},
    ],
)  # fmt: skip
def test_schemes_that_are_none_are_refused(change, tmp_path):
    """N10, Q44."""
    scheme = {"value": "Q8S", "param": "F32", "store": "Native", "level": "Tensor", "mode": "Symmetric", **change}
    tensor = {"bytes": bytes(8), "shape": [1, 4], "dtype": {"QFloat": scheme}}
    data = json.dumps({"metadata": oracle.METADATA, "item": {"w": oracle.parameter({**tensor, "bytes": [0] * 8})}})
    with pytest.raises(RecordFormatError, match="'w'|64 bits"):
        read_whole(tmp_path, data.encode())


def nested(depth: int) -> bytes:
    return oracle.packed({"deep": b"?"}).replace(msgpack.packb(b"?"), b"\x91" * depth + b"\xc0")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (nested(127), "nest deeper than 128"),
        (nested(100_000), "nest deeper than 128"),
        (b"\x81\xa4item" + b"\x81\xa1a" * 100_000, "nest deeper"),
        (b'{"item":' + b"[" * 100_000, "nest too deep"),
        (b'{"item":' + b'{"a":' * 500 + b"1" + b"}" * 501, "nest too deep"),
        (b"\xdf\xff\xff\xff\xff\xa4item", "end inside a value"),
        (b"\x81\xa4item\xdd\xff\xff\xff\xff\xc0", "end inside a value"),
        (b"\x81\xa4item\xdd\xff\xff\xff\xff\x01", "end inside a value"),
        (b"\x81\xa4item\xdd\xff\xff\xff\xff\xca", "ends behind"),
        (b"\x81\xa4item\xdd\xff\xff\xff\xff\xc3", "ends behind"),
        (b"\x81\xa4item\xc6\xff\xff\xff\xff\xc3", "ends at offset"),
        (b"\x81\xa4item\xdb\xff\xff\xff\xff\xc3", "end inside a value"),
        (b"\x81\xdb\x05\xff\xff\xff\xc3", "end inside a value"),
        (b"\x81\xa4item\xdc\xff\xff" + b"\x01" * 65534 + b"\xc1", "no MessagePack integer"),
    ],
)
def test_lengths_and_depths_that_the_bytes_cannot_hold_are_refused_at_once(data, said, tmp_path):
    """L68: in bounded time and memory, also inside gzip."""
    for form in (data, gzip.compress(data)) if said != "ends at offset" else (data,):
        tracemalloc.start()
        began = time.monotonic()
        with pytest.raises(RecordFormatError, match=rf"r\.mpk.*(?:{said})"):
            read_whole(tmp_path, form)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 32 * 2**20
        assert time.monotonic() - began < 10


def test_values_that_hold_nothing_are_bounded_too(tmp_path):
    """L68: the limits of tensors, texts, bytes and depth are keywords, and bound the rest with them."""
    many = oracle.packed({"a": [None] * 3000})
    assert read_whole(tmp_path, many) == {}
    with pytest.raises(RecordFormatError, match="give max_tensors to raise it"):
        read_whole(tmp_path, many, max_tensors=100)
    two = oracle.packed({"a": EMPTY, "b": EMPTY})
    with pytest.raises(RecordFormatError, match="2 tensors, the limit is 1; give max_tensors"):
        read_whole(tmp_path, two, max_tensors=1)
    wide = oracle.packed({"w": oracle.parameter(oracle.tensor(np.zeros(3, "f4")))})
    with pytest.raises(RecordFormatError, match="'w': 12 bytes, the limit is 11; give max_tensor_bytes"):
        read_whole(tmp_path, wide, max_tensor_bytes=11)
    with pytest.raises(RecordFormatError, match="give max_metadata_bytes|max_str_len"):
        read_whole(tmp_path, wide, max_metadata_bytes=100)
    with pytest.raises(RecordFormatError, match="nest deeper than 4; max_depth"):
        read_whole(tmp_path, wide, max_depth=4)
    assert read_whole(tmp_path, nested(150), max_depth=10_000) == {}
    with pytest.raises(RecordFormatError, match="nest deeper than 256"):
        read_whole(tmp_path, nested(900), max_depth=10_000)


# Gzip


def zeros(nbytes: int) -> Iterator[bytes]:
    for start in range(0, nbytes, 2**20):
        yield bytes(min(2**20, nbytes - start))


def test_a_gzip_file_that_unfolds_to_far_more_is_bounded(tmp_path):
    """L68: by max_unpacked_bytes; and a file of 256 MiB of zeros that is a record opens and reads in little memory."""
    length = 2**28
    head, tail = oracle.packed(
        {"w": oracle.parameter({"bytes": b"?", "shape": [length // 4], "dtype": "F32"})}
    ).split(msgpack.packb(b"?"))  # fmt: skip
    compressor = zlib.compressobj(9, wbits=31)
    parts = [compressor.compress(head + b"\xc6" + length.to_bytes(4, "big"))]
    parts += [compressor.compress(piece) for piece in zeros(length)]
    parts += [compressor.compress(tail), compressor.flush()]
    file = tmp_path / "bomb.mpk.gz"
    file.write_bytes(b"".join(parts))
    assert file.stat().st_size < 2**20
    tracemalloc.start()
    with pytest.raises(RecordFormatError, match=r"bomb\.mpk\.gz: it unfolds to more than the limit of 1048576 bytes"):
        open_record(file, max_unpacked_bytes=2**20)
    with open_record(file) as record:
        assert record["w"].shape == (length // 4,)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 * 2**20


def test_gzip_of_what_is_no_record_is_refused_without_unfolding_it(tmp_path):
    """N24: gzip is recognised by its first bytes, and what is in it by the next."""
    file = tmp_path / "x.mpk"
    for data in (bytes(10**7), b"", b"NRUB" + bytes(300), gzip.compress(small_file())):
        file.write_bytes(gzip.compress(data))
        with pytest.raises(RecordFormatError, match=r"x\.mpk: offset 0 inside gzip: .* begins no record"):
            open_record(file)


def test_a_damaged_gzip_stream_is_refused(tmp_path):
    """L66: its check of the data too, though no tensor is read; and bytes behind it, a second stream among them."""
    good = gzip.compress(small_file())
    damaged = {
        "checksum": good[:-8] + bytes([good[-8] ^ 1]) + good[-7:],
        "length": good[:-1] + b"\1",
        "behind": good + b"\0",
        "two": good + good,
        "method": good[:2] + b"\7" + good[3:],
    }
    for name, data in damaged.items():
        with pytest.raises(RecordFormatError, match=r"r\.mpk: offset \d+: .*(damaged gzip stream|left after)"):
            pytest.fail(f"{name}: {read_whole(tmp_path, data)}")


def test_any_place_of_a_gzip_file_can_be_read_in_any_order(tmp_path, monkeypatch):
    """L68, R41: as if it were held whole; also when few states are kept and blocks are forgotten."""
    monkeypatch.setattr(inflated, "_BLOCK", 64)
    monkeypatch.setattr(inflated, "_KEPT_BLOCKS", 2)
    monkeypatch.setattr(inflated, "_PIECE", 37)
    monkeypatch.setattr(inflated, "_SPACING", 2)
    monkeypatch.setattr(inflated, "_MAX_STATES", 5)
    drawn = random.Random(1)
    for length in (0, 1, 63, 64, 65, 5000):
        whole = bytes(drawn.choice(b"aab\0") for _ in range(length)) if length != 64 else bytes(64)
        file = tmp_path / f"{length}.gz"
        file.write_bytes(gzip.compress(whole))
        opened = Inflated(Storage.map(file, Limits()), Limits())
        for _ in range(200):
            offset, nbytes = drawn.randrange(length + 70), drawn.randrange(200)
            assert opened.read(offset, nbytes) == whole[offset : offset + nbytes]
            assert opened.reaches(offset) == (offset <= length)
        if length > 200:
            array = opened.array("it", 7, np.dtype("<u2"), (50, 1))
            assert array.tobytes() == whole[7:107]
            assert not array.flags.writeable


def test_a_record_of_gzip_reads_the_same_as_a_plain_one(tmp_path):
    """N24: tensors in any order, each as often as wanted."""
    arrays = {f"w{at}": np.arange(at * 100_000, dtype="i4") for at in range(4)}
    item = {path: oracle.parameter(oracle.tensor(array)) for path, array in arrays.items()}
    plain, packed = tmp_path / "a.mpk", tmp_path / "b.mpk.gz"
    plain.write_bytes(oracle.packed(item))
    packed.write_bytes(gzip.compress(plain.read_bytes(), 1))
    with open_record(plain) as one, open_record(packed) as other:
        backwards = ModuleRecord(reversed(list(other.items())))
        assert observed(backwards) == observed(one)
        assert observed(other) == observed(one)
