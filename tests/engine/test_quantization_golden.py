"""Quantization against what the released Burn 0.23.0-pre.1 did, bit for bit (Q71 ff., `golden/burn/README.md`).

Where the rules depart from Burn, the departure is asserted: what Burn panics
on and we define, or refuse; the x_dtype cases, whose range Burn takes in the
tensor's own dtype (Q26), are compared with what the rules give for float32.
At the end: integers that PyTorch made.
"""

import gzip
import json
from collections import Counter
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from engine import (
    BlockScale,
    Calibration,
    DTypeError,
    QuantizationError,
    QuantScheme,
    QuantStore,
    QuantValue,
    ScaleDtype,
    ShapeError,
    Tensor,
    dequantize,
    quantize,
    tensor,
)
from tests.engine import quantization_oracle as oracle
from tests.golden_files import golden_file

pytestmark = pytest.mark.golden

CPU = "cpu:0"
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f64": np.float64}
REFUSED = {  # classes that we refuse, and how; Burn panics, but for the quirks of Q6, Q12
    "unsupported_two_level": DTypeError,
    "unsupported_global": DTypeError,
    "absmean_two_level": DTypeError,
    "lookup": DTypeError,
    "not_divisible": ShapeError,
    "block_rank_above": ShapeError,
    "packed_axis_beyond_rank": ShapeError,
}
DEFINED = {"rank0", "zero_elements"}  # Burn panics on these (Q32)


@cache
def cases() -> list[dict[str, Any]]:
    with gzip.open(golden_file("burn/quant.jsonl.gz")) as lines:
        return [json.loads(line) for line in lines]


def floats(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), "<f4")


def scheme_of(record: dict[str, Any]) -> QuantScheme:
    store, block = record["store"], record["block"]
    kind, axis = next(iter(store.items())) if isinstance(store, dict) else (store, 0)
    return QuantScheme(
        QuantValue[record["value"]],
        QuantStore(kind, axis),
        record["mode"],
        None if record["tensor"] is None else ScaleDtype[record["tensor"]],
        None if block is None else BlockScale(tuple(block["size"]), ScaleDtype[block["dtype"]]),
    )


def given(case: dict[str, Any]) -> np.ndarray:
    return floats(case["x"]).reshape(case["shape"]).astype(DTYPES[case["x_dtype"]])


def made(case: dict[str, Any]) -> Tensor:
    return quantize(
        tensor(given(case), device=CPU),
        scheme_of(case["scheme"]),
        Calibration(case["calibration"]),
        allow_nonfinite=case["nonfinite"],
    )


def is_compared(case: dict[str, Any]) -> bool:
    return case["panicked"] is None and case["class"] not in REFUSED


def test_each_case_is_compared_refused_or_defined_by_us():
    """Nothing is left out by mistake."""
    counts = Counter(
        "compared" if is_compared(case) else "refused" if case["class"] in REFUSED else case["class"]
        for case in cases()
    )
    assert counts == {"compared": 305, "refused": 27, "zero_elements": 8, "rank0": 6, "twice": 1}


def test_values_scales_and_bytes_are_those_of_burn():
    """Q16 to Q43; NaN codes, whose bits belong to the processor, read as NaN."""
    for case in filter(is_compared, cases()):
        scheme, name = scheme_of(case["scheme"]), (case["id"], case["class"], case["scheme"])
        data = made(case)._data
        scales, values = floats(case["scales"]), np.array(case["q"]).reshape(case["shape"])
        if case["calibration"] == "AbsMean":  # the order of its sum is free
            np.testing.assert_allclose(data.scales.ravel(), scales, rtol=4e-6, err_msg=str(name))
            assert np.array_equal(data.values, values), name
            continue
        if case["x_dtype"] in ("f16", "bf16"):
            assert_is_float32s(case, data)
            continue
        assert data.scales.tobytes() == scales.tobytes(), name
        assert (data.factor is None) == (case["global"] is None), name
        assert data.factor is None or data.factor.tobytes().hex() == case["global"], name
        back = dequantize(made(case)).numpy().ravel()
        expected = floats(case["dequantized"])
        assert np.array_equal(back, expected, equal_nan=True), name
        if case["class"] == "zeros" and values.any():  # Q69: Burn's 0 / 0 in E2M1 is code 7, ours 0
            assert scheme.value is QuantValue.E2M1, name
            assert not data.values.any(), name
            continue
        assert np.array_equal(data.values, values), name
        assert made(case).tobytes().hex() == case["bytes"], name


def assert_is_float32s(case: dict[str, Any], data: Any) -> None:
    """Q26: the range and raw scale of half precision are those of its numbers in float32."""
    expected = oracle.quantized(given(case).astype(np.float32), scheme_of(case["scheme"]))
    assert data.scales.tobytes() == expected.scales.tobytes()
    assert np.array_equal(data.values, expected.values)


def test_the_bytes_of_burn_are_read_and_written_again():
    """Q41, Q68: equal values and scales of every store, filling dropped."""
    for case in filter(is_compared, cases()):
        data = bytes.fromhex(case["bytes"])
        read = Tensor.from_quantized(np.frombuffer(data, np.uint8), case["shape"], scheme_of(case["scheme"]), CPU)
        assert np.array_equal(read._data.values, np.array(case["q"]).reshape(case["shape"])), case["id"]
        assert read._data.scales.tobytes().hex() == case["scales"], case["id"]
        assert read.tobytes() == data, case["id"]
        found = dequantize(read).numpy().ravel()
        assert np.array_equal(found, floats(case["dequantized"]), equal_nan=True), case["id"]


def test_what_we_refuse_is_refused_with_a_clear_error():
    """Q6, Q7, Q11, Q12, Q15, Q44."""
    for case in cases():
        if case["class"] in REFUSED and not is_compared(case):
            with pytest.raises(REFUSED[case["class"]], match="scheme"):
                made(case)


def test_what_burn_cannot_do_and_we_define_works():
    """Q32: rank 0 with one scale, no elements; a block for rank 0 is refused."""
    for case in cases():
        if case["class"] not in DEFINED:
            continue
        if case["class"] == "rank0" and case["scheme"]["block"] is not None:
            with pytest.raises(ShapeError, match="axes"):
                made(case)
            continue
        assert dequantize(made(case)).shape == tuple(case["shape"])


def test_nan_and_infinities_are_refused_unless_asked_for():
    """Q28: Burn quantizes them."""
    for case in cases():
        if case["nonfinite"]:
            with pytest.raises(QuantizationError, match="NaN or infinite"):
                quantize(tensor(given(case), device=CPU), scheme_of(case["scheme"]))


def test_int8_blocks_are_those_of_another_implementation():
    """Q8S in blocks of 32: its scale of an all-zero block is 0, ours the smallest normal number (Q22)."""
    with np.load(golden_file("ops/quant_int8_block.npz")) as data:
        x, scales = data["block32/in/x"], data["block32/f32/out/scale"]
        made = quantize(tensor(x, device=CPU), QuantScheme(QuantValue.Q8S, block=BlockScale((32,))))
        assert np.array_equal(made._data.values, data["block32/f32/out/q"])
        ours = made._data.scales.ravel()
        np.testing.assert_allclose(ours, np.where(scales == 0, oracle.TINY, scales), rtol=2e-7)
        np.testing.assert_allclose(dequantize(made).numpy(), data["block32/f32/out/dequantized"], rtol=4e-7)
