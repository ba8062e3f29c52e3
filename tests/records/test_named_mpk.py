"""Reading named MessagePack, Burn's files before burnpack, in every form that they have had. N1 to N14."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import Tensor, dequantize
from modules import Module, Param
from records import ModuleRecord, RecordFormatError, RecordValidationError, open_record
from tests.records import named_mpk_oracle as oracle
from tests.records.strategies import arrays, expected, observed

PACKED = {"float32": b"\xca", "float64": b"\xcb", "float16": b""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mpk")


def opened(folder: Path, data: bytes, **limits: int) -> ModuleRecord:
    file = folder / "r.mpk"
    file.write_bytes(data)
    return open_record(file, **limits)


@given(tree=oracle.module_trees(), is_gzip=st.booleans())
def test_every_tree_of_modules_reads_as_its_parameters(folder, tree, is_gzip):
    """N3 to N5, N9: paths in file order, ids, dtypes, shapes and bits; fields named id, param, bytes are no trap."""
    data = oracle.packed(oracle.item_of(tree))
    record = opened(folder, gzip.compress(data, 1) if is_gzip else data)
    found = list(oracle.walked(tree))
    assert list(record) == [item.path for item in found]
    assert observed(record) == expected(found)
    assert record.kind == "module"


@st.composite
def old_arrays(draw: st.DrawFn) -> NDArray[Any]:
    """An array of a dtype that files had before 0.14, by bit patterns."""
    return draw(arrays().filter(lambda array: str(array.dtype) in (*PACKED, "bool", "int32", "int16", "int64")))


@given(array=old_arrays(), is_gzip=st.booleans())
def test_numbers_without_a_dtype_read_as_the_precision_says(folder, array, is_gzip):
    """N6, N11: floats by their width, half precision by patterns; integers; booleans; NaN payloads included."""
    name = str(array.dtype)
    metadata = {"float16": oracle.HALF, "int16": oracle.HALF, "float64": oracle.DOUBLE, "int64": oracle.DOUBLE}
    if name in ("float32", "float64"):  # by hand: packing Python floats would make signalling NaNs quiet
        numbers = b"".join(PACKED[name] + one.tobytes()[::-1] for one in array.reshape(-1))
    else:
        patterns = oracle.half_patterns(array) if name == "float16" else array.reshape(-1).tolist()
        numbers = b"".join(map(msgpack.packb, patterns))
    packer: Any = msgpack.Packer()
    mark = b"\xc0\x01mark\xc0"
    data = oracle.packed(
        {"w": oracle.parameter({"value": mark, "shape": list(array.shape)})}, metadata.get(name, oracle.METADATA)
    ).replace(msgpack.packb(mark), packer.pack_array_header(array.size) + numbers)
    kind = "float" if name.startswith("float") else "bool" if name == "bool" else "int"
    read = opened(folder, gzip.compress(data, 1) if is_gzip else data)["w"].of_kind(kind).read("cpu:0")
    assert (str(read.dtype), read.shape) == (name, array.shape)
    assert read.tobytes() == array.tobytes()


def test_fields_with_the_names_of_parts_are_told_by_what_they_are(folder):
    """N4, and a tensor without an id in a record of another shape."""
    w, bare = oracle.parameter(oracle.tensor(np.ones(1, "f4"))), oracle.tensor(np.ones(2, "f4"))
    for tree, paths in (
        ({"value": [], "shape": []}, []),
        ({"bytes": [], "shape": [], "dtype": {"x": w}}, ["m.dtype.x"]),
        ({"bytes": w, "shape": [], "dtype": {}}, ["m.bytes"]),
        ({"id": w, "param": w}, ["m.id", "m.param"]),
        ({"id": None, "param": bare}, ["m.param"]),
        ({"id": "0000000000000", "param": bare}, ["m"]),
        ({"value": bare}, ["m.value"]),
    ):
        record = opened(folder, oracle.packed({"m": tree}))
        assert list(record) == paths
    assert opened(folder, oracle.packed({"m": {"id": None, "param": bare}}))["m.param"].id is None


def test_nothing_depends_on_where_the_reader_divides_the_file(folder):
    """N1: whatever stands across the end of a piece that was read, a binary's length or an array's among them."""
    values = {"b": oracle.tensor(np.arange(300, dtype="u1")), "i": oracle.values(np.arange(40) - 20)}
    item = {key: oracle.parameter(value) for key, value in values.items()}
    for pad in range(4096 - 460, 4096):
        record = opened(folder, oracle.packed({"pad": {"x" * pad: None}, **item}))
        assert record["b"].read("cpu:0").numpy().sum() == sum(one % 256 for one in range(300))
        assert record["i"].read("cpu:0").numpy().tolist() == list(range(-20, 20))


class _Kinds(Module):
    def __init__(self, dtype: str) -> None:
        self.w = Param(Tensor.from_numpy(np.zeros(3, dtype), "cpu:0"))


@pytest.mark.parametrize(
    ("value", "metadata", "dtype", "loaded"),
    [
        ([15360, 0, 1], oracle.HALF, "float32", [1.0, 0.0, 2.0**-24]),
        ([15360, 0, 1], oracle.HALF, "int16", [15360, 0, 1]),
        ([3.0, -2.0, 0.0], {**oracle.METADATA, "int": "f32"}, "int32", [3, -2, 0]),
        ([3.0, -2.0, 0.0], {**oracle.METADATA, "int": "f32"}, "float32", [3.0, -2.0, 0.0]),
        ([-1, 2, 3], oracle.HALF, "int16", [-1, 2, 3]),
    ],
)
def test_the_parameter_decides_what_a_file_leaves_open(folder, value, metadata, dtype, loaded):
    """N11."""
    file = oracle.packed({"w": oracle.parameter({"value": value, "shape": [3]})}, metadata)
    module = _Kinds(dtype).load_record(opened(folder, file))
    assert module.w.val().numpy().tolist() == loaded
    assert str(module.w.dtype)[:3] == str(np.asarray(loaded).dtype)[:3]


def test_what_is_no_kind_of_number_the_parameter_takes_is_a_mismatch(folder):
    """N11, R17: a negative integer means integers; so do numbers that are no patterns."""
    for value in ([-1, 2, 3], [70000, 1, 1]):
        metadata = oracle.HALF if value[0] < 0 else {**oracle.HALF, "int": "i64"}
        record = opened(folder, oracle.packed({"w": oracle.parameter({"value": value, "shape": [3]})}, metadata))
        assert record["w"].kind == "int"
        with pytest.raises(RecordValidationError, match="kinds are not converted"):
            _Kinds("float32").load_record(record)
    record = opened(
        folder,
        oracle.packed({"w": oracle.parameter({"value": [0.5], "shape": [1]})}, {**oracle.METADATA, "int": "f32"}),
    )
    with pytest.raises(RecordFormatError, match=r"'w': element 0 is 0\.5, no integer"):
        record["w"].of_kind("int").read("cpu:0")


def test_empty_values_are_of_any_kind(folder):
    """N11, N12."""
    record = opened(folder, oracle.packed({"w": oracle.parameter({"value": [], "shape": [0, 3]})}, oracle.HALF))
    kinds = {"float": "float16", "int": "int16", "bool": "bool"}
    assert {kind: str(record["w"].of_kind(kind).read("cpu:0").dtype) for kind in kinds} == kinds
    assert (record["w"].kind, record["w"].shape) == ("float", (0, 3))


@pytest.mark.parametrize(
    ("version", "text", "id"),
    [
        ("0.14.1", "ib8eptsg6c", 56697727799442),
        ("0.21.0", "ib8eptsg6c000", 56697727799442),
        ("0.21.0", "IB8EPTSG6C000", 56697727799442),
        ("0.21.0", "ib8eptsg6c", 56697727799442),
        ("0.13.2", "9d0b2c55-3c6e-4f6e-8a0f-0d8f5d0c6b1a", None),
        ("0.21.0", "9d0b2c55-3c6e-4f6e-8a0f-0d8f5d0c6b1a", None),
        ("0.13.2", "my-own-id", None),
        ("0.13.2", "abcg", None),
        ("0.14.1", "abcg", None),
        ("0.15.0", "abcg", 0xD952),
        ("0.12.0", "ib8eptsg6c000", 56697727799442),
        ("0.21.0", "my-own-id", "refused"),
        ("0.15.0", "ib8eptsg6c001", "refused"),
        ("0.21.0", "ib8eptsg6c0000", "refused"),
        ("unheard of", "my-own-id", "refused"),
    ],
)
def test_ids_of_every_generation(folder, version, text, id):
    """N7."""
    data = oracle.packed(
        {"w": oracle.parameter(oracle.tensor(np.zeros(1, "f4")), text)}, {**oracle.METADATA, "version": version}
    )
    if id == "refused":
        with pytest.raises(RecordFormatError, match=r"r\.mpk: tensor 'w': '.*' is no parameter id"):
            opened(folder, data)
    else:
        assert opened(folder, data)["w"].id == id


@pytest.mark.parametrize(
    ("dtype", "stored", "read"),
    [
        ("Bool", b"\1\0", "bool"),
        ({"Bool": "Native"}, b"\1\0", "bool"),
        ({"Bool": "U8"}, b"\1\0", "bool"),
        ({"Bool": "U32"}, b"\1\0\0\0\0\0\0\0", "bool"),
        ("Flex32", np.array([1, 0], "f4").tobytes(), "float32"),
        ("U16", b"\1\0\0\0", "uint16"),
    ],
)
def test_dtypes_of_single_versions(folder, dtype, stored, read):
    """N5. `bytes` may be an array of numbers."""
    for data in (stored, list(stored)):
        record = opened(folder, oracle.packed({"w": oracle.parameter({"bytes": data, "shape": [2], "dtype": dtype})}))
        assert str(record["w"].dtype) == read
        assert record["w"].read("cpu:0").numpy().tolist() == [1, 0]


def scheme(value: str = "Q8S", param: str = "F32", store: Any = "Native", level: Any = "Tensor") -> dict[str, Any]:
    return {"QFloat": {"value": value, "param": param, "store": store, "level": level, "mode": "Symmetric"}}


BLOCK = {"Block": {"storage": [1, 2, 1, 1, 1], "len": 2}}
HALF_SCALES = np.array([0.5, 2.0], "float16").tobytes()
SCALES = np.array([0.5, 2.0], "float32").tobytes()
WORDS = b"\x81\0\0\0\4\0\0\0\5\0\0\0\x7f\0\0\0"
ROW = np.array([[-127, 4, 5, 127]], "int8")


@pytest.mark.parametrize(
    ("dtype", "stored", "numbers"),
    [
        (scheme(), ROW.tobytes() + SCALES[:4], [-63.5, 2, 2.5, 63.5]),
        (scheme(level=BLOCK), ROW.tobytes() + SCALES, [-63.5, 2, 10, 254]),
        (scheme(param="F16", level=BLOCK), ROW.tobytes() + SCALES, [-63.5, 2, 10, 254]),
        (scheme(param="F16", level=BLOCK), ROW.tobytes() + HALF_SCALES, [-63.5, 2, 10, 254]),
        (scheme(store="U32"), ROW.tobytes() + SCALES[:4], [-63.5, 2, 2.5, 63.5]),
        (scheme("Q4S", store={"PackedU32": 0}), b"\x29\x7f\0\0" + SCALES[:4], [-3.5, 1, -0.5, 3.5]),
        (scheme("Q4F"), np.array([-8, 7, 0, 1], "i1").tobytes() + SCALES[4:], [-16, 14, 0, 2]),
        (scheme("Q8S", store={"PackedU32": 1}), WORDS + SCALES[:4], [-63.5, 2, 2.5, 63.5]),
        ({"QFloat": {"PerTensor": ["Symmetric", "QInt8"]}}, ROW.tobytes() + SCALES[:4], [-63.5, 2, 2.5, 63.5]),
    ],
)  # fmt: skip
def test_quantized_tensors_keep_their_values_and_scales(folder, dtype, stored, numbers):
    """N10, Q39 to Q43: schemes of 0.17 to 0.21 beyond those that CPU back ends wrote."""
    record = opened(folder, oracle.packed({"w": oracle.parameter({"bytes": stored, "shape": [1, 4], "dtype": dtype})}))
    read = record["w"].read("cpu:0")
    assert read.is_quantized
    assert (read.dtype, read.shape) == (record["w"].dtype, (1, 4))
    assert read.tobytes() == record["w"].host().tobytes()
    assert dequantize(read).numpy().tolist() == [numbers]
    for other in (stored + b"\0", stored[:-1]):
        with pytest.raises(RecordFormatError, match=r"'w': \d+ bytes; .* takes"):
            opened(folder, oracle.packed({"w": oracle.parameter({"bytes": other, "shape": [1, 4], "dtype": dtype})}))
    bad = stored[: -len(SCALES[:4])] + np.array([np.nan], "f4").tobytes()
    if dtype["QFloat"].get("param") != "F16":
        record = opened(folder, oracle.packed({"w": oracle.parameter({"bytes": bad, "shape": [1, 4], "dtype": dtype})}))
        with pytest.raises(RecordFormatError, match="'w': .*scale nan"):
            record["w"].read("cpu:0")


def test_json_holds_the_same_tree(folder):
    """N14: `bytes` are an array; the other forms of numbers; null for NaN is refused, saying why."""
    tree = {"w": oracle.parameter({"bytes": [0, 0, 128, 63], "shape": [1], "dtype": "F32"}), "act": None, "e": []}
    top = {"metadata": oracle.METADATA, "item": tree, "_b": None}
    for data in (json.dumps(top, indent=2).encode(), gzip.compress(json.dumps(top).encode())):
        assert opened(folder, data)["w"].read("cpu:0").numpy().tolist() == [1.0]
    old = {"metadata": oracle.METADATA, "item": {"w": oracle.parameter({"value": [0.1, 2.0], "shape": [2]})}}
    read = opened(folder, json.dumps(old).encode())["w"].read("cpu:0")
    assert read.tobytes() == np.array([0.1, 2.0], "f4").tobytes()
    with pytest.raises(RecordFormatError, match="null for what was NaN"):
        opened(folder, json.dumps(old).replace("2.0", "null").encode())


def test_other_records_in_the_same_envelope_are_named_as_such(folder):
    """N13: they can be looked at, and load into no module, whatever the options."""
    state = {"time": 2, "moment_1": oracle.tensor(np.ones(3, "f4")), "max_moment_2": None}
    record = opened(folder, oracle.packed({"41vfmh3csrpho": {"V1": {"Rank1": {"momentum": state}}}}))
    assert (record.kind, list(record)) == ("optimizer", ["41vfmh3csrpho.V1.Rank1.momentum.moment_1"])
    assert record.scalars["41vfmh3csrpho.V1.Rank1.momentum.time"].value == 2
    for other in (record, opened(folder, oracle.packed(0.0625))):
        lenient = other.with_options(allow_partial=True, allow_unused=True, validate=False)
        with pytest.raises(RecordValidationError, match=f"for its {other.kind}, not for a module"):
            _Kinds("float32").load_record(lenient)
    record = opened(folder, oracle.packed(7))
    assert (record.kind, record.scalars["item"].value) == ("scheduler", 7)
