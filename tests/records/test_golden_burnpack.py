"""Files that Burn 0.23.0-pre.1 wrote, inputs that it was shown, and a network that others published. R49 to R104."""

import functools
import gzip
import json
import zipfile
from typing import Any

import numpy as np
import pytest

from engine import dequantize
from records import ModuleRecord, RecordEntry, RecordFormatError, Scalar, open_record
from tests.golden_files import golden_file
from tests.modules.burn_values import scheme_of
from tests.records import burnpack_oracle as oracle

pytestmark = pytest.mark.golden

DTYPES = {
    "F64": "float64", "F32": "float32", "Flex32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "Bool(Native)": "bool", "Bool(U8)": "bool", "Bool(U32)": "bool",
}  # fmt: skip
FORMS = {"Flex32", "Bool(U8)", "Bool(U32)"}
REFUSED = {"odd_names": "none of them is empty", "quant_raw": "tensor '"}  # R102: names no module can have; see below


@functools.cache
def archive() -> dict[str, bytes]:
    with zipfile.ZipFile(golden_file("burn/burnpack.zip")) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def sidecars() -> dict[str, Any]:
    return {name[:-4]: json.loads(archive()[f"{name[:-4]}.json"]) for name in archive() if name.endswith(".bpk")}


def scalar(told: dict[str, Any]) -> Scalar:
    if set(told) == {"Float", "bits"}:
        return Scalar("Float", float(np.frombuffer(bytes.fromhex(told["bits"]), ">f8")[0]))
    ((kind, value),) = told.items()
    return Scalar(kind, value)


def test_every_file_of_burn_reads_as_burn_says():
    """R49 to R75: names, order, ids, dtypes, shapes, bytes, quantized numbers, scalars, metadata."""
    files = sidecars()
    assert len(files) == 84
    for name, told in files.items():
        data = archive()[f"{name}.bpk"]
        assert len(data) == told["bytes"]
        if name in REFUSED:
            with pytest.raises(RecordFormatError, match=REFUSED[name]):
                ModuleRecord.from_bytes(data)
            continue
        record = ModuleRecord.from_bytes(data)
        assert list(record) == sorted((tensor["name"] for tensor in told["tensors"]), key=str.encode), name
        assert dict(record.metadata) == told["metadata"]
        assert dict(record.scalars) == {key: scalar(value) for key, value in told["scalars"].items()}
        for tensor in told["tensors"]:
            entry = record[tensor["name"]]
            assert list(entry.shape) == tensor["shape"]
            assert entry.id == tensor["param_id"]
            assert entry.id is None or str(entry.id) == tensor["param_id_text"]
            raw = bytes.fromhex(tensor["data"])
            if tensor["dtype_name"] == "qfloat":
                check_quantized(entry, tensor)
                continue
            if tensor["dtype"] == "Bool(U32)":
                raw = np.frombuffer(raw, "<u4").astype("uint8").tobytes()
            assert str(entry.dtype) == DTYPES[tensor["dtype"]]
            assert entry.form == (tensor["dtype"] if tensor["dtype"] in FORMS else None)
            assert entry.read("cpu:0").tobytes() == raw, (name, tensor["name"])


def check_quantized(entry: RecordEntry, tensor: dict[str, Any]) -> None:
    raw = bytes.fromhex(tensor["data"])
    assert entry.dtype == scheme_of(tensor["scheme"])
    assert (entry.nbytes, entry.host().tobytes()) == (len(raw), raw)
    read = entry.read("cpu:0")
    assert (read.dtype, list(read.shape)) == (entry.dtype, tensor["shape"])
    if tensor["name"] != "packed_nonzero_filling":
        assert read.tobytes() == raw, tensor["name"]
    numbers = dequantize(read).tobytes().hex()
    if "dequantized" in tensor:
        assert numbers == tensor["dequantized"], tensor["name"]


REFUSED_RAW = {  # the tensors of `quant_raw` that are refused, and whether only when they are read
    "lookup_q4s_native": ("Lookup", False),  # Q6
    "two_level_bf16_global_bytes": ("global scale is in F32", False),  # Q44
    "two_level_f32_block": ("block scales in F32", False),  # Q7
    "scale_zero": ("not positive", True),  # Q47
    "scale_negative": ("not positive", True),
    "scale_nan": ("not positive", True),
    "scale_inf": ("not positive", True),
    "ue4m3_sign_set": ("not positive", True),
    "ue8m0_ff": ("not positive", True),
    "wrong_length": ("span 3 bytes", False),  # Q43
    "block_rank_above": ("block of 2 axes", False),  # Q12
    "packed_axis_beyond_rank": ("packs axis 2", False),
}


def test_raw_quantized_tensors_are_read_or_refused_as_the_rules_say():
    """Q6, Q7, Q12, Q32, Q39, Q43 to Q47, R94, R98, R104: each tensor that Burn wrote without complaint, in a file."""
    seen = set()
    for tensor in sidecars()["quant_raw"]["tensors"]:
        name = tensor["name"]
        raw = bytes.fromhex(tensor["data"])
        dtype = oracle.quantized(tensor["scheme"])
        data = oracle.burnpack([oracle.Stored(name, dtype, tuple(tensor["shape"]), raw, tensor["param_id"])])
        seen.add(name)
        if name not in REFUSED_RAW:
            record = ModuleRecord.from_bytes(data)
            check_quantized(record[name], tensor)
            assert record.into_bytes(digest=False) == data
            continue
        said, when_read = REFUSED_RAW[name]
        if not when_read:
            with pytest.raises(RecordFormatError, match=f"'{name}'.*{said}"):
                ModuleRecord.from_bytes(data)
            continue
        entry = ModuleRecord.from_bytes(data)[name]
        for read in (entry.host, lambda entry=entry: entry.read("cpu:0")):
            with pytest.raises(RecordFormatError, match=f"'{name}'.*{said}"):
                read()
    assert seen >= REFUSED_RAW.keys()


def test_writing_what_burn_wrote_gives_its_bytes():
    """R48 to R73: every file, its tensors in the order they were written in, without digests (D1)."""
    written = 0
    for name, told in sidecars().items():
        if name in REFUSED:
            continue
        data = archive()[f"{name}.bpk"]
        record = ModuleRecord.from_bytes(data)
        ordered = ModuleRecord(
            [(tensor["name"], record[tensor["name"]]) for tensor in told["tensors"]],
            scalars=record.scalars,
            metadata=record.metadata,
        )
        assert ordered.into_bytes(digest=False) == data, name
        written += 1
    assert written == 82


REFUSED_THOUGH_BURN_READS_IT = {
    "version 0": "R87",
    "n one more (a zero byte after the value)": "R91",
    "garbage after the value within n": "R91",
    "param_id bignum 5": "R103a",
    "shape a byte string": "R89",
    "zero first then overflow": "R98",
    "overlap": "R100",
    "same range twice": "R100",
    "duplicate tensor name": "R92",
    "duplicate metadata key": "R92",
    "tag 55799 before the value": "R103a",
    "tag inside": "R103a",
    "empty name": "R102",
    "quantized, two bytes short": "R98",
    "quantized, packed axis 7": "R94",
    "quantized, len 6": "R94",
    "quantized, extent 0": "R94",
    "quantized, len 0": "R94",
}
READ_THOUGH_BURN_REFUSES_IT = {"dtype text Bool": "R74"}
REFUSED_WHEN_READ = {"bool byte 2": "R104", "bool u8 byte 2": "R104"}


def test_burns_corrupt_inputs_are_refused_or_read_as_the_rules_say(tmp_path):
    """R84 to R104, the column `project` of records.md section 6; from memory and from a file alike."""
    cases = json.loads(gzip.decompress(archive()["corrupt.json.gz"]))
    assert len(cases) == 127
    seen = set()
    file = tmp_path / "r.bpk"
    for case in cases:
        name, data = case["name"], bytes.fromhex(case["bytes"])
        file.write_bytes(data)
        refused = case["from_bytes"]["outcome"] != "ok"
        seen.add(name)
        if name in REFUSED_THOUGH_BURN_READS_IT or name in READ_THOUGH_BURN_REFUSES_IT:
            assert refused == (name in READ_THOUGH_BURN_REFUSES_IT), name
            refused = not refused
        for read in (lambda data=data: ModuleRecord.from_bytes(data), lambda: open_record(file)):
            if refused:
                with pytest.raises(RecordFormatError):
                    pytest.fail(f"{name}: {read()!r} was opened")
            else:
                check_accepted(case, read())
    assert {*REFUSED_THOUGH_BURN_READS_IT, *READ_THOUGH_BURN_REFUSES_IT, *REFUSED_WHEN_READ} <= seen


def check_accepted(case: dict[str, Any], record: ModuleRecord) -> None:
    name = case["name"]
    if name in REFUSED_WHEN_READ:
        with pytest.raises(RecordFormatError, match="a boolean is 0 or 1"):
            record["w"].read("cpu:0")
        return
    if name in READ_THOUGH_BURN_REFUSES_IT:
        assert str(record["w"].read("cpu:0").dtype) == "bool"
        return
    assert list(record) == case["tensor_names"], name
    assert dict(record.metadata) == case["metadata"]
    assert dict(record.scalars) == {key: scalar(value) for key, value in case["scalars"].items()}
    for tensor in case["tensors"]:
        entry = record[tensor["name"]]
        assert (list(entry.shape), entry.id) == (tensor["shape"], tensor["param_id"]), name
        if tensor["dtype"] not in DTYPES:
            assert name.startswith("quantized")
            assert str(entry.dtype).startswith("(Q8S, Native")
        else:
            assert str(entry.dtype) == DTYPES[tensor["dtype"]]
        assert len(entry.read("cpu:0").tobytes()) == tensor["byte_len"]


MNIST = {  # records.md section 8: shape, start, end, id
    "conv1.conv.bias": ([64], 2304, 2560, 9505838338724798577),
    "conv1.conv.weight": ([64, 1, 3, 3], 0, 2304, 10777079075451239370),
    "conv1.norm.beta": ([64], 2816, 3072, 2754571703519099271),
    "conv1.norm.gamma": ([64], 2560, 2816, 3366457416367518553),
    "conv1.norm.running_mean": ([64], 3072, 3328, 14629392822177388866),
    "conv1.norm.running_var": ([64], 3328, 3584, 10589899029590977807),
    "conv2.conv.bias": ([64], 151040, 151296, 15610936121904110070),
    "conv2.conv.weight": ([64, 64, 3, 3], 3584, 151040, 11182327050026330461),
    "conv2.norm.beta": ([64], 151552, 151808, 425276833309772702),
    "conv2.norm.gamma": ([64], 151296, 151552, 5162429217262430322),
    "conv2.norm.running_mean": ([64], 151808, 152064, 7653953462918125781),
    "conv2.norm.running_var": ([64], 152064, 152320, 17310467163264002046),
    "fc1.bias": ([128], 971520, 972032, 15905375811386401305),
    "fc1.weight": ([1600, 128], 152320, 971520, 1730029982897944783),
    "fc2.bias": ([128], 1037568, 1038080, 10157234230921783009),
    "fc2.weight": ([128, 128], 972032, 1037568, 6156368336105823443),
    "fc3.bias": ([10], 1043200, 1043240, 7846584638995852899),
    "fc3.weight": ([128, 10], 1038080, 1043200, 9562590261885004638),
}


def test_a_published_network_reads_as_the_worked_example_says(tmp_path):
    """R49 to R62: every name, shape, place and id; what we write from it reads back equal, its data aligned."""
    file = golden_file("public/mnist.bpk")
    data = file.read_bytes()
    with open_record(file) as record:
        assert list(record) == list(MNIST)
        assert (len(data), sum(entry.nbytes for entry in record.values()) // 4) == (1_044_776, 260_810)
        for name, (shape, start, end, id) in MNIST.items():
            entry = record[name]
            assert (list(entry.shape), entry.id, str(entry.dtype)) == (shape, id, "float32")
            assert entry.read("cpu:0").tobytes() == data[1536 + start : 1536 + end]
            assert entry.read("cpu:0").numpy().ctypes.data % 256 == 0
        gamma = record["conv1.norm.gamma"].read("cpu:0").numpy()
        np.testing.assert_allclose(gamma[:4], [0.98318607, 1.4876516, 1.3918636, 1.4584008], rtol=1e-7)
        assert abs(gamma.mean() - 0.986758) < 1e-6
        bias = record["fc3.bias"].read("cpu:0").numpy()
        np.testing.assert_allclose(bias[:4], [0.51002616, -0.19103652, -0.20890829, 0.143869], rtol=1e-6)
        in_order = ModuleRecord(sorted(record.items(), key=lambda pair: MNIST[pair[0]][1]))
        assert in_order.into_bytes(digest=False) == data
        in_order.save(tmp_path / "again.bpk")
    with open_record(tmp_path / "again.bpk", check_data=True) as again:
        for name, (shape, start, end, id) in MNIST.items():
            array = again[name].read("cpu:0")
            assert (list(array.shape), again[name].id) == (shape, id)
            assert array.tobytes() == data[1536 + start : 1536 + end]
            assert array.numpy().ctypes.data % 256 == 0
