"""Damaged and malicious burnpack files: L66 to L68, R84 to R104."""

import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest

from engine import Tensor
from records import ModuleRecord, ParamId, RecordEntry, RecordFormatError, RecordIoError, Scalar, open_record
from tests.laws.law import inside
from tests.records import burnpack_oracle as oracle
from tests.records.strategies import observed

U64 = 2**64 - 1


def small_record() -> ModuleRecord:
    return ModuleRecord(
        [
            ("b.w", RecordEntry(Tensor.from_numpy(np.array([[1, -0.0], [np.nan, 2]], "float32"), "cpu:0"), ParamId(9))),
            ("a", RecordEntry(Tensor.from_numpy(np.array([True, False, True]), "cpu:0"), ParamId(2**40))),
        ],
        scalars={"step": 3, "rate": 0.1},
        metadata={"k": "v"},
    )


def contents(record: ModuleRecord) -> tuple[Any, ...]:
    return list(record), observed(record), dict(record.scalars), dict(record.metadata)


@inside("L66")
@pytest.mark.parametrize("digest", [False, True])
def test_a_file_cut_at_any_byte_is_refused(digest):
    """L66: every prefix, in memory and from a file."""
    data = small_record().into_bytes(digest=digest)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "r.bpk"
        for length in range(len(data)):
            with pytest.raises(RecordFormatError):
                ModuleRecord.from_bytes(data[:length])
            if length % 7 == 0:
                file.write_bytes(data[:length])
                with pytest.raises(RecordFormatError, match=r"r\.bpk"):
                    open_record(file)
    assert contents(ModuleRecord.from_bytes(data)) == contents(ModuleRecord.from_bytes(small_record().into_bytes()))


@inside("L66")
def test_a_file_without_tensors_may_end_in_the_padding_unless_its_digest_says_otherwise():
    """R56, L66."""
    data = ModuleRecord().into_bytes(digest=False)
    count = 10 + int.from_bytes(data[6:10], "little")
    assert len(data) == 256
    for length in range(len(data)):
        if length < count:
            with pytest.raises(RecordFormatError):
                ModuleRecord.from_bytes(data[:length])
        else:
            assert len(ModuleRecord.from_bytes(data[:length])) == 0
    signed = ModuleRecord().into_bytes()
    for length in range(len(signed)):
        with pytest.raises(RecordFormatError):
            ModuleRecord.from_bytes(signed[:length])


def flipped(data: bytes) -> Any:
    for at in range(len(data)):
        for bit in range(8):
            yield at, data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


@inside("L67")
def test_every_flipped_bit_is_refused_where_both_digests_are_checked():
    """L67: no bit of the file is outside both."""
    for at, damaged in flipped(small_record().into_bytes()):
        try:
            ModuleRecord.from_bytes(damaged, check_data=True)
        except RecordFormatError:
            continue
        pytest.fail(f"byte {at} is damaged, and the file was read")


@inside("L67")
def test_without_reading_the_data_a_flipped_bit_is_refused_or_in_one_tensor():
    """L67, D1: the header's digest is checked whenever a file is opened; it leaves out the digits of the data's."""
    data = small_record().into_bytes()
    start = -(-(10 + int.from_bytes(data[6:10], "little")) // 256) * 256
    whole = contents(ModuleRecord.from_bytes(data))
    digits = data.index(b"layerloom.data") + len(b"layerloom.data") + 2
    for at, damaged in flipped(data):
        try:
            record = ModuleRecord.from_bytes(damaged)
        except RecordFormatError:
            assert at < start
            continue
        if at < start:
            assert digits <= at < digits + 64
            assert contents(record) == whole
            continue
        changed = []
        for path, entry in record.items():
            try:
                if entry.read("cpu:0").tobytes() != whole[1][path][3]:
                    changed.append(path)
            except RecordFormatError:  # a boolean byte (R75)
                changed.append(path)
        assert len(changed) <= 1


@inside("L67")
def test_a_flipped_bit_in_a_file_without_digests_is_refused_or_harmless_or_local():
    """L67: never another exception; what opens differs in one name, id, scalar or text, or in one tensor's data."""
    data = small_record().into_bytes(digest=False)
    names, entries, scalars, texts = contents(ModuleRecord.from_bytes(data))
    opened = 0
    for at, damaged in flipped(data):
        try:
            record = ModuleRecord.from_bytes(damaged, check_data=True)
            found = observed(record)
        except RecordFormatError:
            continue
        opened += 1
        differences = len(set(entries.items()) - set(found.items()))
        differences += len(set(scalars.items()) - set(record.scalars.items()))
        differences += texts != dict(record.metadata)
        lost_section = (not record.scalars) + (not record.metadata)  # its key became an unknown one, which is ignored
        assert differences <= 1 or lost_section == 1, at
        assert len(record) == len(names)
    assert opened > 100


def good() -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "param_id": 1}


def test_what_a_file_holds_makes_no_message_long():
    """L68: a value of a megabyte where a number, an id or a text is expected."""
    long = {"x" * 999: ["y" * 999] * 999}
    tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for top in (
        {"tensors": {"w": tensor}, "scalars": {"n": {"Int": long}}},
        {"tensors": {"w": tensor}, "scalars": {"n" * 9999: {"z" * 9999: 1}}},
        {"tensors": {"w": tensor | {"shape": [2] * 99_999}}},
        {"tensors": {"w": tensor | {"param_id": long}}},
        {"tensors": {"w" * 9999: tensor | {"dtype": long}}},
        {"tensors": {"w": tensor}, "metadata": {"k" * 9999: long}},
    ):
        with pytest.raises(RecordFormatError) as caught:
            ModuleRecord.from_bytes(oracle.with_header(cbor2.dumps(top), bytes(8)))
        assert len(str(caught.value)) < 1500


@inside("L68")
def test_numbers_at_the_edges_are_refused_or_mean_what_they_say():
    """L68: one field of the header is an edge value; time and memory stay small."""
    edges = [0, 1, 3, 2**31, 2**32 - 1, 2**32, 2**53, 2**61, 2**62, 2**63 - 1, 2**63, U64 - 7, U64]
    data = np.array([1, 2], "float32").tobytes()
    tracemalloc.start()
    began = time.monotonic()
    for edge in edges:
        for field in ("shape", "data_offsets", "param_id"):
            for value in {"shape": ([edge], [edge, 2], [2, edge], [0, edge, edge], [edge] * 65), "data_offsets": (
                [edge, 8], [0, edge], [edge, edge], [8, edge]), "param_id": (edge,)}[field]:  # fmt: skip
                tensor = {**good(), field: value}
                try:
                    record = ModuleRecord.from_bytes(oracle.with_header(oracle.cbor({"tensors": {"w": tensor}}), data))
                    read = record["w"].read("cpu:0")
                except RecordFormatError:
                    continue
                assert list(read.shape) == tensor["shape"]
                assert read.nbytes == tensor["data_offsets"][1] - tensor["data_offsets"][0]
                assert record["w"].id == tensor["param_id"]
        with pytest.raises(RecordFormatError):
            ModuleRecord.from_bytes(oracle.with_header(oracle.cbor({"tensors": {"w": good()}}), data, n=edge % 2**32))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 2**20
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\xbb" + b"\x7f" + b"\xff" * 7, "premature"),
        (b"\xa1\x67tensors\x9b\x00\x00\x01" + bytes(5), "premature"),
        (b"\xa1\x7b\x00\x00\x01" + bytes(5) + b"abc", "premature"),
        (b"\xa1\x61x\x5b\xff" + bytes(7), "premature"),
        (b"\x81" * 100_000, "depth"),
        (b"\xa1\x61x" + b"\x81" * 128 + b"\x01", "depth"),
        (b"\xa1\x61x\x9f" + b"\x9f" * 200, "depth"),
    ],
)
def test_containers_that_the_bytes_cannot_hold_are_refused_at_once(raw, said):
    """R90."""
    began = time.monotonic()
    with pytest.raises(RecordFormatError, match=said):
        ModuleRecord.from_bytes(oracle.with_header(raw, b""))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "tag", [b"\xc2", b"\xd8\x1c", b"\xd8\x1d", b"\xd9\xd9\xf7", b"\xda\xff\xff\xff\xff", b"\xd9\x01\x02"]
)
@pytest.mark.parametrize("where", ["whole", "unknown key", "param_id", "name"])
def test_tags_are_refused_wherever_they_stand(tag, where):
    """R103a: also those that the library would resolve to plain values."""
    tagged = oracle.Raw(tag + b"\x41\x05")
    top = {
        "whole": oracle.Raw(tag + oracle.cbor({"tensors": {}})),
        "unknown key": {"tensors": {}, "more": [tagged]},
        "param_id": {"tensors": {"w": {**good(), "param_id": tagged}}},
        "name": {"tensors": oracle.Pairs([(oracle.Raw(tag + b"\x61w"), good())])},
    }[where]
    with pytest.raises(RecordFormatError, match="tag"):
        ModuleRecord.from_bytes(oracle.with_header(oracle.cbor(top), bytes(8)))


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [2, True]},
        {"param_id": True},
        {"data_offsets": [False, 8]},
        {"dtype": {"QFloat": {}}, "data_offsets": [8, 0]},  # whose length is not checked against the shape
    ],
)
def test_truth_values_are_no_numbers_and_ranges_do_not_run_backwards(change):
    """R89, R96."""
    with pytest.raises(RecordFormatError, match="'w'"):
        ModuleRecord.from_bytes(oracle.with_header(oracle.cbor({"tensors": {"w": {**good(), **change}}}), bytes(8)))


def test_unknown_keys_are_ignored_and_other_key_orders_read():
    """R66, R93."""
    tensor = {"more": [{"x": None}], "param_id": 1, "data_offsets": [0, 8], "shape": [2], "dtype": "F32"}
    record = ModuleRecord.from_bytes(
        oracle.with_header(oracle.cbor({"scalars": {}, "later": {"a": 1}, "tensors": {"w": tensor}}), bytes(8))
    )
    assert observed(record) == {"w": (1, "float32", (2,), bytes(8))}


@pytest.mark.parametrize("offset", range(1, 9))
def test_starts_that_are_not_aligned_are_read(offset, tmp_path):
    """R99, from memory and from a mapped file: the tensor's own memory is aligned."""
    values = np.array([1.5, -2], "float64")
    tensor = {"dtype": "F64", "shape": [2], "data_offsets": [offset, offset + 16]}
    data = oracle.with_header(oracle.cbor({"tensors": {"w": tensor}}), bytes(offset) + values.tobytes())
    (tmp_path / "r.bpk").write_bytes(data)
    for record in (ModuleRecord.from_bytes(data), open_record(tmp_path / "r.bpk")):
        array = record["w"].read("cpu:0").numpy()
        assert array.flags.aligned
        assert not array.flags.writeable
        assert array.tobytes() == values.tobytes()


def test_overlaps_are_refused_but_empty_tensors_may_lie_anywhere():
    """R100, R57."""
    inside = {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]}
    record = ModuleRecord.from_bytes(oracle.with_header(oracle.cbor({"tensors": {"e": inside, "w": good()}}), bytes(8)))
    assert record["e"].read("cpu:0").shape == (0,)
    touching = {"dtype": "U8", "shape": [3], "data_offsets": [7, 10]}
    with pytest.raises(RecordFormatError, match=r"'w'.*'x'.*overlap"):
        ModuleRecord.from_bytes(oracle.with_header(oracle.cbor({"tensors": {"w": good(), "x": touching}}), bytes(12)))


def signed(mutate: Any) -> bytes:
    """A file whose metadata map is changed by `mutate` after the digests were made."""
    data = small_record().into_bytes()
    count = int.from_bytes(data[6:10], "little")
    top = cbor2.loads(data[10 : 10 + count])
    mutate(top["metadata"])
    top["scalars"] = {"n": {"Int": 1}}
    return oracle.with_header(oracle.cbor(top), data[-(-(10 + count) // 256) * 256 :])


@pytest.mark.parametrize(
    ("mutate", "said"),
    [
        (lambda texts: texts.pop("layerloom.header"), "only one"),
        (lambda texts: texts.pop("layerloom.data"), "only one"),
        (lambda texts: texts.update({"layerloom.data": "0" * 63}), "no SHA-256"),
        (lambda texts: texts.update({"layerloom.data": "A" * 64}), "no SHA-256"),
        (lambda texts: texts.update({"x": "nlayerloom.datax@" + texts["layerloom.data"]}), "2 times"),
        (lambda texts: texts.update({"k": "w"}), "does not have the digest"),
    ],
)
def test_one_digest_alone_or_a_wrong_one_is_refused(mutate, said):
    """D1."""
    with pytest.raises(RecordFormatError, match=said):
        ModuleRecord.from_bytes(signed(mutate))


def test_a_digest_hidden_behind_a_damaged_key_is_still_asked_for():
    """D1, L67: a file does not lose its digests because "metadata" became an unknown key, which R93 ignores."""
    data = small_record().into_bytes()
    with pytest.raises(RecordFormatError, match="not in the metadata map"):
        ModuleRecord.from_bytes(data.replace(b"\x68metadata", b"\x68metadatb"))


def test_data_is_compared_with_its_digest_only_on_request(tmp_path):
    """D1."""
    data = bytearray(small_record().into_bytes())
    data[-1] ^= 1
    file = tmp_path / "r.bpk"
    file.write_bytes(data)
    open_record(file).close()
    with pytest.raises(RecordFormatError, match=r"r\.bpk: the data .* digest"):
        open_record(file, check_data=True)
    file.write_bytes(small_record().into_bytes(digest=False))
    assert open_record(file, check_data=True).scalars["step"] == Scalar("Int", 3)


def test_the_last_byte_of_the_data_is_compared_too():
    """D1."""
    record = ModuleRecord([("a", RecordEntry(Tensor.from_numpy(np.array([7], "uint8"), "cpu:0")))])
    data = record.into_bytes()
    assert len(ModuleRecord.from_bytes(data, check_data=True)) == 1
    for damaged in (data[:-1] + b"\6", data + b"\0"):
        with pytest.raises(RecordFormatError, match="digest"):
            ModuleRecord.from_bytes(damaged, check_data=True)
        assert len(ModuleRecord.from_bytes(damaged)) == 1


def test_limits_are_keywords_and_each_error_names_its_own(tmp_path):
    """R76 to R80."""
    file = tmp_path / "r.bpk"
    small_record().save(file)
    nbytes = file.stat().st_size
    count = int.from_bytes(file.read_bytes()[6:10], "little")
    exact = {
        "max_file_bytes": nbytes, "max_metadata_bytes": count, "max_tensors": 2, "max_tensor_bytes": 16, "max_depth": 4,
    }  # fmt: skip
    open_record(file, **exact).close()
    for name, value in exact.items():
        with pytest.raises(RecordFormatError, match=r"r\.bpk.*(depth|give " + name + ")"):
            open_record(file, **{name: value - 1})


def test_what_is_no_file_is_an_error_of_the_system(tmp_path):
    """R84."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "secret").write_bytes(b"x" * 300)
    for name in ("missing", "missing.bpk", "folder", "secret/below", "nul\0"):
        with pytest.raises(RecordIoError, match=name.partition("\0")[0]):
            open_record(tmp_path / name)
    with pytest.raises(RecordIoError, match="not a regular file"):
        open_record("/dev/null")
