"""Files of PyTorch: what is read out of them, and that nothing in them is run."""

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from records import ForeignDType, ModuleRecord, RecordError, RecordFormatError, RecordIoError, Scalar, open_record
from records.pytorch.checking import check_pytorch
from records.storage import LIMITS, Storage
from tests.records.pytorch_oracle import (
    Call,
    Global,
    Persistent,
    Raw,
    archive,
    legacy,
    memory,
    opcodes,
    pickled,
    tensor,
    typed_storage,
)
from tests.records.strategies import Item, items, observed

SAMPLES = Path(__file__).parent / "data" / "pytorch"
MIB = 2**20


def opened(data: bytes, folder: Path, **limits: int) -> ModuleRecord:
    file = folder / "m.pt"
    file.unlink(missing_ok=True)
    file.write_bytes(data)
    return open_record(file, **limits)


def refused(data: bytes, folder: Path, said: str, **limits: int) -> None:
    """It is refused in the name of the file, and in little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(RecordFormatError, match=rf"m\.pt: .*{said}"):
            opened(data, folder, **limits)
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB + len(data)
    finally:
        tracemalloc.stop()


def counted(*shape: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + np.prod(shape, dtype=int), dtype="float32").reshape(shape)


# What PyTorch itself wrote

NETWORK = {
    "embed.weight": counted(5, 4), "linear.weight": counted(3, 4, start=100), "linear.bias": counted(3, start=200),
    "norm.weight": counted(3, start=300), "norm.bias": counted(3, start=400), "batch.weight": counted(3, start=500),
    "batch.bias": counted(3, start=600), "batch.running_mean": counted(3, start=700),
    "batch.running_var": counted(3, start=800), "batch.num_batches_tracked": np.array(900),
    "conv.weight": counted(2, 1, 2, 2, start=1000),
}  # fmt: skip


@pytest.mark.parametrize("name", ["state_dict.pt", "before_1_6.pth"])
def test_a_state_dict_of_either_form_is_read_in_its_order_without_ids(name):
    """What PyTorch saved is what was put in; shapes are PyTorch's, a Linear's weight is [out, in]."""
    with open_record(SAMPLES / name) as record:
        assert list(record) == list(NETWORK)
        for path, array in NETWORK.items():
            assert record[path].id is None
            assert (record[path].dtype, record[path].shape) == (array.dtype, array.shape)
            assert np.array_equal(record[path].read("cpu:1").numpy(), array)
        assert not record.scalars
        assert not record.metadata


def test_a_training_runs_checkpoint_has_its_names_joined_and_numbers_as_scalars():
    """Dicts and lists are gone through; numbers are scalars, texts metadata."""
    with open_record(SAMPLES / "training_run.pt") as record:
        assert list(record) == [f"model.{path}" for path in NETWORK]
        assert record.scalars["epoch"] == Scalar("Int", 7)
        assert record.scalars["optimizer.param_groups.0.lr"] == Scalar("Float", 0.5)
        assert record.scalars["optimizer.param_groups.0.params.1"] == Scalar("Int", 1)
        assert record.metadata["name"] == "run 1"
        assert list(record.part("model")) == list(NETWORK)


def test_views_are_read_as_what_they_show():
    """Transposed, strided, repeated, of rank 0, empty; a parameter is its tensor; None is left out."""
    whole = counted(3, 4)
    shown = {
        "whole": whole, "turned": whole.T, "parameter": whole[1:, ::2], "repeated": np.tile(np.arange(3), (2, 1)),
        "number": np.array(2.5, "float32"), "empty": np.zeros((0, 3), "float32"),
    }  # fmt: skip
    with open_record(SAMPLES / "views.pt") as record:
        assert list(record) == list(shown)
        for path, array in shown.items():
            assert record[path].shape == array.shape
            assert np.array_equal(record[path].read("cpu:0").numpy(), array)
        assert record["turned"].read("cpu:0").tobytes() == whole.T.tobytes()
        assert np.shares_memory(record["whole"].read("cpu:0").numpy(), record["turned"].read("cpu:1").numpy())


def test_every_dtype_that_a_tensor_can_have_is_read_and_others_are_listed():
    """L55; complex numbers and floats of 8 bits are foreign."""
    with open_record(SAMPLES / "dtypes.pt") as record:
        for path, entry in record.items():
            if path in ("complex64", "float8_e4m3fn"):
                assert entry.dtype == ForeignDType(path)
                assert entry.shape == (2,)
                with pytest.raises(RecordFormatError, match=f"'{path}' has elements of {path}"):
                    entry.read("cpu:0")
            else:
                assert str(entry.dtype) == path
                assert entry.read("cpu:0").numpy().astype(float).tolist() == [0, 1, 1 if path == "bool" else 3]
        assert len(record) == 15


def test_a_pickled_module_is_refused_by_the_name_of_its_class():
    with pytest.raises(
        RecordFormatError, match=r"offset \d+: .*'torch\.nn\.modules\.container\.Sequential'.*state_dict"
    ):
        open_record(SAMPLES / "whole_module.pt")


def test_a_file_without_checksums_is_read():
    with open_record(SAMPLES / "without_crc.pt") as record:
        assert record["w"].read("cpu:0").numpy().tolist() == [0, 1]


# What is written here


@given(entries=items(), is_legacy=st.booleans())
def test_what_was_saved_is_read_bit_for_bit(entries, is_legacy, tmp_path_factory):
    """L55: every dtype, shape, memory order and bit pattern; names of any kind, in their order."""
    if is_legacy:
        entries = [Item(path, array, None) for path, array, _ in entries if array.dtype.name not in
                   ("uint16", "uint32", "uint64")]  # fmt: skip
    state = {item.path: tensor(str(key), item.array) for key, item in enumerate(entries)}
    arrays = [item.array for item in entries]
    data = legacy(state, arrays) if is_legacy else archive(state, [memory(array) for array in arrays])
    with opened(data, tmp_path_factory.getbasetemp()) as record:
        assert observed(record) == {
            item.path: (None, str(item.array.dtype), item.array.shape, item.array.tobytes()) for item in entries
        }
        assert list(record) == [item.path for item in entries]


def test_opening_reads_no_tensor_and_aligned_ones_are_mapped(tmp_path, monkeypatch):
    """R41, D11."""
    read: list[int] = []
    array = Storage.array
    monkeypatch.setattr(Storage, "array", lambda self, what, *place: read.append(1) or array(self, what, *place))
    data = archive({"w": tensor("0", counted(3))}, [memory(counted(3))])
    record = opened(data, tmp_path)
    assert not read
    assert not record["w"].host().flags.writeable
    record.close()
    with pytest.raises(RecordIoError, match="closed"):
        record["w"].read("cpu:0")


def test_tied_tensors_lie_in_one_storage_and_are_entries_each(tmp_path):
    array = counted(2, 2)
    record = opened(archive({"a": tensor("0", array), "b": tensor("0", array)}, [memory(array)]), tmp_path)
    assert record["a"].read("cpu:0").tobytes() == record["b"].read("cpu:0").tobytes() == array.tobytes()


def test_a_file_of_one_tensor_has_the_path_tensor(tmp_path):
    record = opened(archive(tensor("0", counted(2)), [memory(counted(2))]), tmp_path)
    assert list(record) == ["tensor"]


def test_old_pickles_and_new_ones_are_understood(tmp_path):
    """Opcodes of the protocols 0 to 4: texts and numbers as lines, short forms, names on the stack, MEMOIZE."""
    text = Raw(b"Va\\u0062\n")
    number = Raw(b"I7\n")
    true = Raw(b"I01\n")
    real = Raw(b"F0.5\n")
    name = Raw(b"\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93)R")
    value = {
        text: number, "t": true, "f": real, "d": name, "l": Raw(b"(lp5\nI1\na"), "e": Raw(b"(dp6\nVk\nI2\ns"),
        "b": Raw(b"C\x02ab"), "g": Raw(b"g5\n"),
    }  # fmt: skip
    scalars = {"ab": 7, "t": True, "f": 0.5, "l.0": 1, "e.k": 2, "g.0": 1}
    record = opened(archive(value, []), tmp_path)
    assert record.scalars == {name: Scalar.of(number) for name, number in scalars.items()}


# What is refused


@pytest.mark.parametrize(
    "name",
    ["os system", "posix system", "builtins eval", "builtins exec", "builtins getattr", "builtins __import__",
     "__builtin__ set", "subprocess Popen", "torch load", "torch.hub load", "torch._utils _rebuild_sparse_tensor",
     "torch._utils _rebuild_qtensor", "numpy.core.multiarray scalar", "_codecs encode", "collections defaultdict",
     "collections OrderedDict.fromkeys", "torch FloatStorage.from_file", "torch.serialization add_safe_globals",
     "torch float32.to", "copyreg _reconstructor", "torch.storage _load_from_bytes",
     "torch._tensor _rebuild_from_type_v2"],
)  # fmt: skip
def test_any_name_that_no_state_dict_needs_is_refused_by_name_and_not_run(name, tmp_path):
    """By GLOBAL, by the stack, inside a checkpoint beside good tensors; the process stays as it was."""
    dotted = name.replace(" ", ".")
    mark = tmp_path / "was_run"
    module, attribute = name.split(" ")
    on_stack = Raw(opcodes(module) + opcodes(attribute) + b"\x93" + opcodes((f"touch {mark}",)) + b"R")
    for bad in (Call(name, (f"touch {mark}",)), on_stack, Global(name)):
        state = {"w": tensor("0", counted(2)), "x": bad}
        refused(archive(state, [memory(counted(2))]), tmp_path, f"offset .*'{dotted}'")
        refused(legacy(state, [counted(2)]), tmp_path, f"offset .*'{dotted}'")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (b"(S'x'\nios\nsystem\n", "opcode INST"),
        (b"(cos\nsystem\n", "'os.system'"),
        (b"\x82\x01", "opcode EXT1"),
        (b"P1\n", "opcode PERSID"),
        (b")\x81", "opcode NEWOBJ"),
        (b"]]R", "calls something that is no name"),
        (b"ctorch\nfloat32\n)R", "'torch.float32', which is no function"),
        (b"ccollections\nOrderedDict\n)R}bb", "takes a value where there is none"),
        (b"]}b", "something else than a dict"),
        (b"}N]s", "a NoneType, no text or number"),
        (b"}(]Nu", "a list, no text or number"),
        (b"}(Vk\nu", "a key without a value"),
        (b"}(Vk\nNVk\nNu", "the key 'k' twice"),
        (b"]N}N", r"ends with 4 values"),
        (b"(", "ends with 1 values"),
        (b"", "ends with 0 values"),
        (b"t", "mark where there is none"),
        (b"(a", "takes a value where there is none"),
        (b"}Na", "something else than a list"),
        (b"]Vk\nNs", "something else than a dict"),
        (b"h\x07", "asks for 7"),
        (b"NQ", "something else than a storage"),
        (opcodes(Persistent(("storage", Global("torch float32"), "0", "cpu", 1))), "something else than a storage"),
        (opcodes(Persistent(("storage", Global("torch FloatStorage"), 0, "cpu", 1))), "something else than a storage"),
        (opcodes(Persistent(("storage", Global("torch FloatStorage"), "0", "cpu", -1))), "something else than a stor"),
        (opcodes(Persistent(("storage", Global("torch FloatStorage"), "0", "cpu", 1, ("1", 0, 1)))), "a view of"),
        (opcodes(typed_storage("0", "float32", 1)), "is a storage, not a tensor"),
        (opcodes(Call("torch._utils _rebuild_parameter", (1, True, None))), "something else than a tensor"),
        (opcodes(Call("torch._utils _rebuild_tensor_v2", (1, 2))), "2 arguments; it takes 6 to 7"),
        (opcodes(Call("torch._utils _rebuild_tensor", (1, 0, (1,), (1,)))), "something else than a storage, an offset"),
        (opcodes(Call("collections OrderedDict", (1,))), "list of pairs"),
        (opcodes(Call("collections OrderedDict", ([1],))), "list of pairs"),
        (opcodes({"a": 2**64}), "an integer of 65 bits"),
        (opcodes({"a": {"b": 1}, "a.b": 2}), "two values have the path 'a.b'"),
    ],
)
def test_a_pickle_that_is_no_state_dicts_is_refused_naming_where(code, said, tmp_path):
    refused(archive(b"\x80\x02" + code + b".", []), tmp_path, said)


def test_pickles_made_to_exhaust_a_process_are_refused_in_bounded_memory(tmp_path):
    """L68: absurd lengths, memo indices, nesting, sharing, numbers of opcodes."""
    storm = b"(}q\0" + b"".join(b"}(Va\nh%cVb\nh%cuq%c" % (n, n, n + 1) for n in range(100)) + b"l"
    keys = b")" + b"\x85" * 300_000 + b"Ns"
    refused(archive(b"\x80\x02}" + keys + b".", []), tmp_path, "a tuple, no text or number")
    for code, said in (
        (b"Nr\xff\xff\xff\xff0", "opcode POP"),
        (b"\x8d" + b"\xff" * 8, "damaged pickle"),
        (b"X\xff\xff\xff\xff", "damaged pickle"),
        (b"\x8b\xff\xff\xff\x7f", "damaged pickle"),
        (b"L" + b"9" * 10_000 + b"L\n", "damaged pickle"),
        (b"]q\0h\0a", "nest deeper"),
        (b"]" * 2_900 + b"a" * 2_899, "nest deeper"),
        (storm, "more values than 100 tensors"),
        (b"N" * 10_000, "more than 6000 opcodes"),
    ):
        refused(archive(b"\x80\x02" + code + b".", []), tmp_path, said, max_tensors=100)


def view(offset=0, shape=(2, 2), strides=(2, 1), count=4, extra=()) -> Call:
    storage = typed_storage("0", "float32", count)
    return Call("torch._utils _rebuild_tensor_v2", (storage, offset, shape, strides, False, None, *extra))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (view(offset=1), "ends behind its storage"),
        (view(shape=(3, 2)), "ends behind its storage"),
        (view(strides=(3, 1)), "ends behind its storage"),
        (view(strides=(2**62, 2**62)), "ends behind its storage"),
        (view(shape=(2**31, 2**31, 2), strides=(0, 0, 0)), "overflows"),
        (view(shape=(2**40,), strides=(0,)), "the limit is"),
        (view(shape=(-1, 2)), "something else"),
        (view(strides=(-1, 1)), "something else"),
        (view(strides=(1,)), "something else"),
        (view(offset=-1), "something else"),
        (view(offset=2**80), "something else"),
        (view(shape=(2, 2.0)), "something else"),
        (view(shape=(1,) * 65, strides=(1,) * 65), "overflows"),
        (view(count=5), "has 16 bytes; 5 elements take 20"),
        (view(count=2**62), "elements take"),
        (view(extra=({"neg": True},)), "negates"),
    ],
)
def test_a_tensor_that_does_not_fit_its_storage_is_refused_at_opening(bad, said, tmp_path):
    """R78, R96, R98."""
    refused(archive({"w": bad}, [bytes(16)]), tmp_path, said)


def test_a_refusal_names_the_offset_in_the_file(tmp_path):
    """Of the opcode, in either form."""
    state = {"w": tensor("0", counted(2)), "x": Call("os system", ())}
    for data in (archive(state, [memory(counted(2))]), legacy(state, [counted(2)])):
        refused(data, tmp_path, f"offset {data.index(b'cos')}: .*'os.system'")


def test_an_archives_directory_is_bounded_before_it_is_read(tmp_path):
    """R76, R77: 200,000 bytes of it are more than a record of one tensor has."""
    others = {f"run/{at:0100}": b"" for at in range(1500)}
    data = archive({"w": view()}, [bytes(16)], others)
    assert len(opened(data, tmp_path)) == 1
    refused(data, tmp_path, "bytes at once, the limit is", max_tensors=1)


def test_archives_that_are_no_files_of_pytorch_are_refused(tmp_path):
    state = {"w": view()}
    compressed = io.BytesIO()
    with zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("a/data.pkl", pickled(state))
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = archive(state, [bytes(16)], {"run/data/0": bytes(16)})
    for data, said in (
        (archive(state, []), r"no record 'run/data/0'"),
        (archive(state, [bytes(16)], {"b/data.pkl": b""}), "2 records NAME/data.pkl"),
        (archive(state, [bytes(16)]).replace(b"little", b"bigbig"), "byte order is b'bigbig'"),
        (compressed.getvalue(), "compressed"),
        (twice, "two records of one name"),
        (b"PK\3\4" + bytes(300), "damaged zip archive"),
        (archive(b"", [], {}).replace(b"data.pkl", b"data.txt"), "0 records"),
    ):
        refused(data, tmp_path, said)


def test_two_storages_over_the_same_bytes_are_refused(tmp_path):
    """R100: the directory of the archive leads both keys to one place."""
    data = archive({"a": view(), "b": Call("torch._utils _rebuild_tensor_v2", (
        typed_storage("1", "float32", 4), 0, (4,), (1,), False, None))}, [bytes(16), bytes(16)])  # fmt: skip
    directory = zipfile.ZipFile(io.BytesIO(data))
    at = data.rindex(b"run/data/1") - 4
    moved = data[:at] + struct.pack("<I", directory.getinfo("run/data/0").header_offset) + data[at + 4 :]
    refused(moved, tmp_path, "overlap")


@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_a_file_cut_at_any_byte_is_refused(form, tmp_path):
    """L66."""
    state, array = {"w": tensor("0", counted(2))}, counted(2)
    data = archive(state, [memory(array)]) if form == "zip" else legacy(state, [array])
    for end in range(len(data)):
        with pytest.raises(RecordFormatError):
            opened(data[:end], tmp_path)


@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_any_flipped_bit_is_refused_or_read_without_another_error(form, tmp_path):
    """L67: never another exception; what an archive's record reads otherwise, its checksums tell `verify`."""
    state, array = {"w": tensor("0", counted(2)), "n": [1, 0.5, "t"]}, counted(2)
    data = archive(state, [memory(array)]) if form == "zip" else legacy(state, [array])
    with opened(data, tmp_path) as record:
        whole = contents(record)
    for at in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        try:
            with opened(bytes(flipped), tmp_path) as record:
                found = contents(record)
        except RecordError:
            continue
        if found != whole and form == "zip":
            findings = check_pytorch(Storage("r.pt", bytes(flipped)), LIMITS, lambda _: None)
            assert any(finding.is_damage for finding in findings), f"bit {at}"


def test_what_a_library_says_about_a_file_is_cut_short(tmp_path):
    """`pickletools` quotes the line that it cannot take."""
    with pytest.raises(RecordFormatError, match="damaged pickle: no string quotes around b'x") as caught:
        opened(archive(b"\x80\x02S" + b"x" * 9999 + b"\n.", []), tmp_path)
    assert len(str(caught.value)) < 1000


def contents(record: ModuleRecord) -> tuple[Any, ...]:
    return observed(record), dict(record.scalars), dict(record.metadata)


def test_limits_bound_tensors_pickle_and_tensor_bytes(tmp_path):
    """R76 to R79."""
    data = archive({"a": view(), "b": view()}, [bytes(16)])
    assert len(opened(data, tmp_path, max_tensors=2, max_tensor_bytes=16)) == 2
    refused(data, tmp_path, "give max_tensors", max_tensors=1)
    refused(data, tmp_path, "16 bytes, the limit is 15; give max_tensor_bytes", max_tensor_bytes=15)
    refused(data, tmp_path, "give max_metadata_bytes|at once, the limit", max_metadata_bytes=100)
    refused(archive({"a": {"b": {"c": view()}}}, [bytes(16)]), tmp_path, "deeper than the limit of 2", max_depth=2)


def test_a_record_of_pytorch_is_saved_as_burnpack(tmp_path):
    """Tensor by tensor, views as what they show."""
    with open_record(SAMPLES / "views.pt") as record:
        record.save(tmp_path / "r.bpk")
        with open_record(tmp_path / "r.bpk") as saved:
            assert observed(saved) == observed(record)
    assert [file.name for file in tmp_path.iterdir()] == ["r.bpk"]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_file_of_before_1_6_is_told_by_its_number_in_any_protocol_that_torch_writes(protocol, tmp_path):
    array = counted(2)
    with opened(legacy({"w": tensor("0", array)}, [array], protocol), tmp_path) as record:
        assert record["w"].read("cpu:0").tobytes() == array.tobytes()


def test_what_is_no_dense_tensor_says_how_to_save_one(tmp_path):
    """As of quantized and sparse ones, which a state dict may have."""
    state = {"w": Call("torch._utils _rebuild_qtensor", ())}
    with pytest.raises(RecordFormatError, match=r"_rebuild_qtensor'.*dequantize\(\).*to_dense\(\)"):
        opened(archive(state, []), tmp_path)
