"""Quantized tensors in named-MessagePack files, written for each version of Burn: N10, N18."""

from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import BlockScale, QuantScheme, QuantStore, QuantValue, ScaleDtype, Tensor, dequantize
from records import ModuleRecord, ParamId, RecordEntry, RecordError, open_record
from tests.records.quantized_items import QuantizedItem, quantized_items

WITH_SCHEMES = ("0.19", "0.20", "0.21")
BYTES = bytes.fromhex("81b90023")
SCALE = bytes.fromhex("d436683c")  # 0.014173228
Q8S = QuantScheme(QuantValue.Q8S, QuantStore.native())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mpk")


def is_written(item: QuantizedItem, version: str) -> bool:
    scheme = item.scheme
    two_levels = scheme["tensor"] is not None and scheme["block"] is not None
    if two_levels or scheme["value"].startswith("E"):
        return False
    return version in WITH_SCHEMES or (scheme["value"] == "Q8S" and scheme["block"] is None)


@given(item=quantized_items("w"), version=st.sampled_from([f"0.{minor}" for minor in range(13, 22)]))
def test_a_quantized_tensor_keeps_values_scales_and_id_or_is_refused(folder, item, version):
    """N10, N18: a byte a value, float32 scales; what the version has no word for is refused, naming the tensor."""
    record = ModuleRecord([("m.w", item.entry)])
    file = folder / "w.mpk"
    if version == "0.13" or not is_written(item, version):
        with pytest.raises(RecordError, match=rf"tensor 'm\.w': Burn {version} "):
            record.save(file, for_burn=version)
        return
    record.save(file, for_burn=version)
    with open_record(file) as found:
        entry = found["m.w"]
        read = entry.read("cpu:0")
    assert (entry.shape, entry.id) == (item.shape, item.id if item.id is not None else entry.id)
    assert dequantize(read).tobytes() == dequantize(item.tensor).tobytes()
    block = None if item.tensor.dtype.block is None else BlockScale(item.tensor.dtype.block.size)
    assert read.dtype == QuantScheme(item.tensor.dtype.value, QuantStore.native(), block=block)


def scheme(value: str = "Q8S", level: Any = "Tensor") -> dict[str, Any]:
    return {"value": value, "param": "F32", "store": "Native", "level": level, "mode": "Symmetric"}


@pytest.mark.parametrize(
    ("versions", "dtype", "behind"),
    [
        (["0.14", "0.15"], {"PerTensorSymmetricInt8": {"scale": np.float32(0.014173228).item(), "_q": []}}, b""),
        (["0.16"], {"PerTensorSymmetric": "QInt8"}, SCALE),
        (["0.17"], {"PerTensor": ["Symmetric", "QInt8"]}, SCALE),
        (["0.18"], {"level": "Tensor", "mode": "Symmetric", "q_type": "QInt8", "acc_precision": "Full",
                    "propagation": "Inhibit"}, SCALE),
        (WITH_SCHEMES, scheme(), SCALE),
    ],
)  # fmt: skip
def test_each_version_gets_the_words_and_bytes_of_its_row(versions, dtype, behind, tmp_path):
    """N10, decoded by the library alone; from 0.16 to 0.18 values are filled up to a multiple of four bytes."""
    for version in versions:
        for stored in (BYTES, BYTES[:3]):
            tensor = Tensor.from_quantized(np.frombuffer(stored + SCALE, np.uint8), (1, len(stored)), Q8S, "cpu:0")
            ModuleRecord([("w", RecordEntry(tensor, ParamId(5)))]).save(tmp_path / "r.mpk", for_burn=version)
            data = (tmp_path / "r.mpk").read_bytes()
            told = msgpack.unpackb(data)["item"]["w"]["param"]
            filling = b"\0" * (-len(stored) % 4) if version in ("0.16", "0.17", "0.18") else b""
            assert list(told) == ["bytes", "shape", "dtype"]
            assert told["bytes"] == stored + filling + behind
            assert told["shape"] == [1, len(stored)]
            assert told["dtype"] == {"QFloat": dtype}
            assert list(told["dtype"]["QFloat"]) == list(dtype)
            assert (b"\xca\x3c\x68\x36\xd4" in data) == (version in ("0.14", "0.15"))  # a float32


def test_blocks_and_small_values_have_a_byte_a_value_and_float32_scales(tmp_path):
    """N10, N18: whatever the record packs."""
    packed = QuantScheme(QuantValue.Q4S, QuantStore.packed_u32(), block=BlockScale((2, 1), ScaleDtype.F16))
    stored = np.frombuffer(bytes.fromhex("f100000027000000003c0040"), np.uint8)
    tensor = Tensor.from_quantized(stored, (2, 2), packed, "cpu:0")
    ModuleRecord([("w", RecordEntry(tensor))]).save(tmp_path / "r.mpk")
    told = msgpack.unpackb((tmp_path / "r.mpk").read_bytes())["item"]["w"]["param"]
    assert told["bytes"] == b"\x01\xff\x07\x02" + np.array([1, 2], "<f4").tobytes()
    assert told["dtype"] == {"QFloat": scheme("Q4S", {"Block": {"storage": [2, 1, 1, 1, 1], "len": 2}})}
