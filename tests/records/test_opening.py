"""Opening record files: formats by content, lazily, closed afterwards. R39 to R41, D11, DESIGN records."""

import sys
import warnings

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from engine import Tensor, transfer
from records import ModuleRecord, RecordEntry, RecordError, RecordFormatError, RecordIoError, Scalar, open_record
from records.storage import Storage
from tests.records.strategies import expected, items, observed, texts


def tensor(array: object, device: str = "cpu:0") -> Tensor:
    return Tensor.from_numpy(np.asarray(array), device)


def test_a_path_without_extension_is_tried_as_it_is_and_then_with_bpk(tmp_path):
    """R39, R38."""
    ModuleRecord(scalars={"n": 1}).save(tmp_path / "r")
    assert open_record(tmp_path / "r").scalars["n"] == Scalar("Int", 1)
    assert open_record(str(tmp_path / "r")).scalars["n"] == Scalar("Int", 1)
    (tmp_path / "r").write_bytes(ModuleRecord(scalars={"n": 2}).into_bytes())
    assert open_record(tmp_path / "r").scalars["n"] == Scalar("Int", 2)
    with pytest.raises(RecordIoError, match=r"s\.bpk"):
        open_record(tmp_path / "s")
    with pytest.raises(RecordIoError, match=r"r\.v1: cannot be opened: No such file"):
        open_record(tmp_path / "r.v1")


def test_a_directory_of_the_name_given_does_not_hide_the_file_that_was_saved(tmp_path):
    """R38, R39: a directory is no record; without a file beside it, it is what the message names."""
    (tmp_path / "mlp").mkdir()
    with pytest.raises(RecordIoError, match=r"mlp: a directory"):
        open_record(tmp_path / "mlp")
    ModuleRecord(scalars={"n": 1}).save(tmp_path / "mlp")
    assert open_record(tmp_path / "mlp").scalars["n"] == Scalar("Int", 1)
    for empty in ("", tmp_path / "x.v1"):
        with pytest.raises(RecordIoError, match="the path '' is empty" if empty == "" else r"x\.v1"):
            open_record(empty)


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"PK\3\4" + bytes(300), b"\x89HDF\r\n\x1a\n" + bytes(300), b"{}" * 200, b"\x80\x02" + bytes(300)],
)
def test_files_that_are_no_records_are_refused_saying_what_can_be_opened(data, tmp_path):
    """R85, R86: whatever the name says."""
    file = tmp_path / "r.bpk"
    file.write_bytes(data)
    with pytest.raises(RecordFormatError, match=r"r\.bpk: .*(begins no record|empty|10 at least|no file of PyTorch)"):
        open_record(file)


def test_opening_reads_no_tensor_and_reading_one_maps_it(tmp_path, monkeypatch):
    """R41, D11: tensors on all CPU devices share the mapped file, read-only; nothing is copied."""
    file = tmp_path / "r.bpk"
    ModuleRecord([(name, RecordEntry(tensor(np.arange(100.0)))) for name in "abc"]).save(file)
    taken: list[str] = []
    array = Storage.array
    monkeypatch.setattr(Storage, "array", lambda self, what, *rest: (taken.append(what), array(self, what, *rest))[1])
    with open_record(file) as record, transfer.log() as log:
        assert (record["b"].shape, record["b"].nbytes, record["b"].dtype) == ((100,), 800, np.dtype("float64"))
        assert not taken
        here, there = record["b"].read("cpu:0"), record["b"].read("cpu:1")
        assert taken == ["tensor 'b'", "tensor 'b'"]
        assert not log.copies
        assert np.shares_memory(here.numpy(), there.numpy())
        assert not here.numpy().flags.writeable
        assert here.numpy().ctypes.data % 256 == 0


def test_tensors_of_bytes_in_memory_own_their_memory():
    """L32: D11's exception is for mapped files."""
    record = ModuleRecord.from_bytes(bytearray(ModuleRecord([("a", RecordEntry(tensor([1.0, 2.0])))]).into_bytes()))
    assert not np.shares_memory(record["a"].read("cpu:0").numpy(), record["a"].read("cpu:1").numpy())


@pytest.mark.parametrize("format", ["burnpack", "safetensors", "gguf", "gguf quantized"])
def test_a_closed_record_refuses_to_read_and_what_was_read_stays(format, tmp_path):
    """DESIGN, records: also records derived from it."""
    file = tmp_path / "r.x"
    values = np.arange(64, dtype="float32").reshape(2, 32)
    if format == "burnpack":
        ModuleRecord([("a.w", RecordEntry(tensor(values)))]).save(file)
    elif format == "safetensors":
        save_file({"a.w": values}, file)
    else:
        write_gguf(file, {"a.w": values}, gguf.GGMLQuantizationType.Q8_0 if format.endswith("quantized") else None)
    with open_record(file) as record:
        derived = record.under("m").with_options(allow_partial=True) | ModuleRecord([("x", RecordEntry(tensor([1.0])))])
        early = record["a.w"].read("cpu:0")
    assert early.numpy().tobytes() == values.tobytes() or format.endswith("quantized")
    for entry in (record["a.w"], derived["m.a.w"]):
        with pytest.raises(RecordIoError, match=r"r\.x: tensor 'a\.w' was not read before the file was closed"):
            entry.read("cpu:0")
    assert derived["x"].read("cpu:0").numpy() == 1.0
    record.close()


def test_closing_a_derived_record_closes_the_files_of_all_that_it_is_made_of(tmp_path):
    """DESIGN, records."""
    for name in "ab":
        ModuleRecord([(name, RecordEntry(tensor([1.0])))]).save(tmp_path / name)
    for derive in (lambda a, b: a | b, lambda a, b: b.under("m") | a.with_scalars(n=1)):
        a, b = open_record(tmp_path / "a"), open_record(tmp_path / "b")
        derive(a, b).close()
        for record in (a, b):
            with pytest.raises(RecordIoError, match="before the file was closed"):
                record[next(iter(record))].read("cpu:0")


def write_gguf(file: object, tensors: dict[str, np.ndarray], quantized: object = None, **fields: object) -> None:
    writer = gguf.GGUFWriter(file, "llama")
    for key, value in fields.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_float32(key, value)
    for name, array in tensors.items():
        if quantized is None:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@given(entries=items(), texts=st.dictionaries(texts, texts, max_size=2))
def test_safetensors_files_read_as_they_are(entries, texts, tmp_path_factory):
    """L55 for reading: every dtype, bit for bit, rank 0 and zero extents; entries have no ids (D9)."""
    file = tmp_path_factory.mktemp("st") / "m.safetensors"
    save_file(
        {item.path: np.ascontiguousarray(item.array).reshape(item.array.shape) for item in entries}, file, texts or None
    )
    with open_record(file) as record:
        assert list(record) == sorted(item.path for item in entries)
        assert dict(record.metadata) == texts
        assert observed(record) == expected([item._replace(id=None) for item in entries])
        assert observed(ModuleRecord.from_bytes(record.into_bytes())) == observed(record)


@pytest.mark.parametrize("cut", [9, 20, 80, 150, -1])
def test_a_cut_safetensors_file_is_refused(cut, tmp_path):
    file = tmp_path / "m.safetensors"
    save_file({"a": np.arange(9.0), "b": np.arange(3)}, file)
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(RecordFormatError, match=r"m\.safetensors"):
        open_record(file)


def test_safetensors_booleans_other_than_0_and_1_and_foreign_dtypes_are_refused_when_read(tmp_path):
    """R104, and what no tensor can be."""
    file = tmp_path / "m.safetensors"
    header = b'{"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]},'
    header += b'"b":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[2,4]}}'
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\1\2\0\0")
    record = open_record(file)
    with pytest.raises(RecordFormatError, match=r"m\.safetensors: tensor 'a': element 1 is 2"):
        record["a"].read("cpu:0")
    with pytest.raises(RecordFormatError, match="tensor 'b' has elements of F8_E4M3"):
        record["b"].read("cpu:0")


def test_gguf_files_give_numbers_as_they_are_and_metadata_as_python_values(tmp_path):
    """DESIGN, records: shapes in NumPy's order."""
    file = tmp_path / "m.gguf"
    arrays = {
        "blk.0.w": np.arange(6, dtype="float32").reshape(2, 3),
        "half": np.arange(3, dtype="float16"),
        "ints": np.arange(-2, 2, dtype="int64"),
        "tiny": np.arange(4, dtype="int8").reshape(2, 2),
    }
    write_gguf(file, arrays, None, text="é", n=3, f=0.5, b=True, tokens=["a", "bc", ""], types=[1, -2], floats=[0.5])
    with open_record(file) as record:
        assert observed(record) == {
            name: (None, str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()
        }
        assert {key: value for key, value in record.metadata.items() if key != "general.architecture"} == {
            "text": "é", "n": 3, "f": 0.5, "b": True, "tokens": ("a", "bc", ""), "types": (1, -2), "floats": (0.5,),
        }  # fmt: skip
        with open_record(file) as other:
            assert np.shares_memory(record["half"].host(), record["half"].read("cpu:0").numpy())
            assert not np.shares_memory(record["half"].host(), other["half"].host())


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"])
def test_quantized_gguf_tensors_become_the_float32_that_the_library_gives(name, tmp_path):
    """DESIGN, records; F16 and BF16 stay what they are."""
    kind = gguf.GGMLQuantizationType[name]
    values = np.random.default_rng(0).standard_normal((70, 4096), dtype="float32")  # more than one chunk
    write_gguf(tmp_path / "m.gguf", {"w": values}, kind)
    entry = open_record(tmp_path / "m.gguf")["w"]
    read = entry.read("cpu:0")
    expected = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
    assert (entry.shape, read.nbytes) == (values.shape, entry.nbytes)
    if name in ("BF16", "F16"):
        assert read.dtype.itemsize == 2
        assert read.numpy().astype("float32").tobytes() == expected.tobytes()
    else:
        assert (read.dtype, read.tobytes()) == (np.dtype("float32"), expected.tobytes())


def test_quantized_gguf_scales_that_are_not_finite_give_such_numbers_without_a_warning(tmp_path):
    """As NumPy computes them; `verify` counts them."""
    stored = np.zeros((1, 210), "uint8")  # a block of Q6_K, whose scale is at its end
    stored[0, -2:] = 0, 0x7C  # infinite, and multiplied by zeros
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("w", stored, raw_dtype=gguf.GGMLQuantizationType.Q6_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with warnings.catch_warnings(action="error"), open_record(tmp_path / "m.gguf") as record:
        numbers = record["w"].read("cpu:0").numpy()
    assert not np.isfinite(numbers).any()


def test_a_gguf_file_cut_or_damaged_anywhere_in_its_header_is_refused_or_read_in_bounded_time(tmp_path):
    """L66 and L67's spirit for GGUF: never another exception."""
    file = tmp_path / "m.gguf"
    write_gguf(file, {"w": np.arange(3, dtype="float32")}, None, tokens=["a", "b"], nested=[[1, 2], [3]], n=1)
    data = file.read_bytes()
    header = data.index(np.arange(3, dtype="float32").tobytes())
    damaged = tmp_path / "d.gguf"
    for length in range(len(data)):
        damaged.write_bytes(data[:length])
        if length >= header + 12:  # the library pads behind the last tensor
            assert open_record(damaged)["w"].shape == (3,)
            continue
        with pytest.raises(RecordFormatError, match=r"d\.gguf"):
            open_record(damaged)
    for at in range(header):
        for value in (0, 0x7F, 0xFF, data[at] ^ 1):
            damaged.write_bytes(data[:at] + bytes([value]) + data[at + 1 :])
            try:
                with open_record(damaged) as record:
                    for entry in record.values():
                        entry.read("cpu:0")
            except RecordFormatError:
                continue


@pytest.mark.parametrize("limit", ["max_metadata_bytes", "max_tensors", "max_depth", "max_file_bytes"])
@pytest.mark.parametrize("value", ["1", 1.5, True, None, -1])
def test_a_limit_that_is_no_number_is_refused_by_name(limit, value, tmp_path):
    ModuleRecord(scalars={"n": 1}).save(tmp_path / "r")
    with pytest.raises(RecordError, match=f"{limit} is "):
        open_record(tmp_path / "r", **{limit: value})


@pytest.mark.parametrize("data", ["r.bpk", None, 3, [1, 2]])
def test_only_bytes_are_read_as_bytes(data):
    """R37a."""
    with pytest.raises(RecordError, match="from_bytes takes the bytes of a file"):
        ModuleRecord.from_bytes(data)


def test_a_gguf_file_beyond_a_limit_or_with_two_tensors_of_a_name_is_refused(tmp_path):
    """R77, R78, R102."""
    file = tmp_path / "m.gguf"
    write_gguf(file, {"ab": np.zeros(3, "float32"), "ac": np.zeros(3, "float32")})
    for limit in ({"max_tensors": 1}, {"max_tensor_bytes": 11}, {"max_metadata_bytes": 60}):
        with pytest.raises(RecordFormatError):
            open_record(file, **limit)
    for wrong, said in ((b"ab", "two entries have the path 'ab'"), (b"a.", "no path")):
        data = file.read_bytes()
        file.write_bytes(data.replace(b"ac", wrong))
        with pytest.raises(RecordFormatError, match=rf"m\.gguf: .*{said}"):
            open_record(file)
        file.write_bytes(data)
    save_file({"u..v": np.zeros(1)}, tmp_path / "s.safetensors")
    with pytest.raises(RecordFormatError, match=r"s\.safetensors: 'u\.\.v' is no path"):
        open_record(tmp_path / "s.safetensors")


def test_gguf_numbers_that_contradict_each_other_are_refused(tmp_path):
    """L68 for GGUF: a key twice, rows that are no whole blocks, counts and extents that no file can hold."""
    file = tmp_path / "m.gguf"
    write_gguf(file, {"w": np.zeros((1, 32), "float32")}, gguf.GGMLQuantizationType.Q8_0, ka=1, kb=[1, 2])
    data = file.read_bytes()
    extents, many = (32).to_bytes(8, "little") + (1).to_bytes(8, "little"), (2**64 - 1).to_bytes(8, "little")
    for old, new, said in (
        (b"kb", b"ka", "the key 'ka' is there twice"),
        (extents, (16).to_bytes(8, "little") + (2).to_bytes(8, "little"), "rows of 16 elements"),
        (extents, (32).to_bytes(8, "little") + many, "overflows"),
        (extents, (32).to_bytes(8, "little") + bytes(8), None),
        ((1).to_bytes(8, "little") + (3).to_bytes(8, "little"), many + (3).to_bytes(8, "little"), "tensors, the limit"),
        ((3).to_bytes(8, "little"), many, r"m\.gguf: offset"),
        ((2).to_bytes(8, "little") + (1).to_bytes(4, "little"), many + (1).to_bytes(4, "little"), "numbers of"),
        (b"GGUF\3", b"GGUF\1", "version 1"),
    ):
        assert old in data
        file.write_bytes(data.replace(old, new, 1))
        if said is None:
            assert open_record(file)["w"].read("cpu:0").shape == (0, 32)
            continue
        with pytest.raises(RecordFormatError, match=said):
            open_record(file)


@pytest.mark.parametrize(("package", "start"), [("safetensors", b"\2\0\0\0\0\0\0\0{}"), ("gguf", b"GGUF\3\0\0\0")])
def test_a_format_whose_package_is_missing_says_what_to_install(package, start, tmp_path, monkeypatch):
    """DESIGN: the extra `models`."""
    (tmp_path / "r.x").write_bytes(start + bytes(100))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RecordError, match=rf"package {package} .*pip install -e '\.\[models\]'"):
        open_record(tmp_path / "r.x")
