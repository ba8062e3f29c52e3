"""The worked examples of the rules of quantization, to the bit (Q21, Q43, Q71 to Q80b and what follows them)."""

import numpy as np
import pytest

from engine import (
    BlockScale,
    Calibration,
    QuantScheme,
    QuantStore,
    QuantValue,
    ScaleDtype,
    Tensor,
    dequantize,
    quantize,
    tensor,
)
from engine.quantization import packing
from engine.quantization.scales import stored

CPU = "cpu:0"
F32 = np.float32
Q71 = [-1.8, -1, 0, 0.5]
Q74 = [[1, 2.2, 3, 4, -10, 21, 30, -35]]
Q77 = [[1, 2, 10, 20], [3, 4, 30, 40], [-100, 50, 0, 0], [25, -75, 0, 0]]
Q79 = [[7, -3, 1, 0, 0.7, 0.35, -0.1, 0]]
NATIVE, PACKED = QuantStore.native(), QuantStore.packed_u32()


def scheme(value, tensor=None, block=None, dtype="F32", store=NATIVE):
    level = None if tensor is None else ScaleDtype[tensor]
    return QuantScheme(
        QuantValue[value], store, tensor=level, block=None if block is None else BlockScale(block, ScaleDtype[dtype])
    )


def made(x, form, calibration=Calibration.MIN_MAX) -> Tensor:
    return quantize(tensor(np.array(x, F32), device=CPU), form, calibration)


EXAMPLES = [  # input, scheme, integers or codes, scales, global scale, dequantized
    ("Q71", Q71, scheme("Q8S"), [-127, -71, 0, 35], [0.014173228], None, [-1.8, -1.0062993, 0, 0.496063]),
    ("Q72", Q71, scheme("Q8F"), [-128, -71, 0, 35], [0.014117647], None, [-1.8070588, -1.002353, 0, 0.49411765]),
    ("Q72 negated", [1.8, 1, 0, -0.5], scheme("Q8F"), [127, 71, 0, -35], [0.014117647], None, None),
    (
        "Q73",
        [127, 0.5, -0.5, 1.5, 2.5, -2.5],
        scheme("Q8S"),
        [127, 0, 0, 2, 2, -2],
        [1],
        None,
        [127, 0, 0, 2, 2, -2],
    ),
    (
        "Q74",
        Q74,
        scheme("Q4S", block=[4]),
        [[2, 4, 5, 7, -2, 4, 6, -7]],
        [[0.5714286, 5]],
        None,
        [[1.1428572, 2.2857144, 2.857143, 4, -10, 20, 30, -35]],
    ),
    (
        "Q75",
        Q74,
        scheme("Q4F", block=[4]),
        [[2, 4, 6, 7, -2, 4, 6, -8]],
        [[0.53333336, 4.6666665]],
        None,
        [[1.0666667, 2.1333334, 3.2000003, 3.7333336, -9.333333, 18.666666, 28, -37.333332]],
    ),
    (
        "Q77",
        Q77,
        scheme("Q8S", block=[2, 2]),
        [[32, 64, 32, 64], [95, 127, 95, 127], [-127, 64, 0, 0], [32, -95, 0, 0]],
        [[0.031496063, 0.31496063], [0.78740156, 1.1754944e-38]],
        None,
        None,
    ),
    ("Q78 F16", Q71, scheme("Q8S", "F16"), [-127, -71, 0, 35], [0.014175415], None, None),
    ("Q78 BF16", Q71, scheme("Q8S", "BF16"), [-127, -70, 0, 35], [0.014221191], None, None),
    ("Q78 UE4M3", Q71, scheme("Q8S", "UE4M3"), [-115, -64, 0, 32], [0.015625], None, [-1.796875, -1, 0, 0.5]),
    ("Q78 UE8M0", Q71, scheme("Q8S", "UE8M0"), [-115, -64, 0, 32], [0.015625], None, [-1.796875, -1, 0, 0.5]),
    (
        "Q79",
        Q79,
        scheme("Q4S", "F32", [4], "UE4M3"),
        [[7, -3, 1, 0, 7, 3, -1, 0]],
        [[448, 48]],
        0.002232143,
        [[7, -3, 1, 0, 0.75000006, 0.3214286, -0.107142866, 0]],
    ),
    (
        "Q80",
        [[7, -3, 0.07, 0.035, 0.00001, 0]],
        scheme("Q4S", "F32", [2], "UE4M3"),
        [[7, -3, 7, 3, 2, 0]],
        [[448, 4.5, 0.001953125]],
        0.002232143,
        [[7, -3, 0.07031251, 0.030133931, 0.000008719308, 0]],
    ),
    ("Q80a", Q71, scheme("E2M1"), [0xF, 0xD, 0, 3], [0.29999998], None, [-1.8, -0.9, 0, 0.45]),
    ("Q80b", Q71, scheme("E4M3"), [0xFE, 0xF8, 0, 0x70], [0.004017857], None, [-1.8, -1.0285714, 0, 0.5142857]),
    ("tiny", [1e-40, -2e-40, 0], scheme("Q8S"), [63, -127, 0], [1.575e-42], None, None),
    ("saturated", [1e6, -5e5, 1, 0], scheme("Q8S", "UE4M3"), [127, -127, 0, 0], [448], None, None),
    ("division", [46, 23], scheme("Q4S"), [7, 4], [6.5714288], None, None),
    (
        "division by the global scale",  # times its reciprocal, the second scale would be rounded up to 240
        [6, 0, 3, 0],
        scheme("Q4S", "F32", [2], "UE4M3"),
        [7, 0, 7, 0],
        [448, 224],
        0.0019132653,
        None,
    ),
    ("zeros", [0, 0, 0, 0], scheme("Q8S"), [0, 0, 0, 0], [1.17549435e-38], None, [0, 0, 0, 0]),
    ("zeros F16", [0, 0, 0, 0], scheme("Q8S", "F16"), [0, 0, 0, 0], [5.9604645e-08], None, [0, 0, 0, 0]),
    ("zeros UE8M0", [0, 0, 0, 0], scheme("Q8S", "UE8M0"), [0, 0, 0, 0], [5.877472e-39], None, [0, 0, 0, 0]),
    (
        "zeros two-level",
        [0, 0, 0, 0],
        scheme("Q8S", "F32", [2], "UE4M3"),
        [0, 0, 0, 0],
        [0.001953125] * 2,
        1.17549435e-38,
        [0, 0, 0, 0],
    ),
]


@pytest.mark.parametrize(("x", "form", "values", "scales", "factor", "back"), [e[1:] for e in EXAMPLES])
def test_worked_examples(x, form, values, scales, factor, back):
    """Q71 to Q80b, and zeros, tiny numbers, saturation, division."""
    found = made(x, form)
    data = found._data
    assert data.values.tolist() == values
    assert data.scales.tobytes() == np.array(scales, F32).tobytes()
    assert data.scales.shape == form.grid(found.shape)
    assert (data.factor is None and factor is None) or data.factor.tobytes() == F32(factor).tobytes()
    if back is not None:
        assert dequantize(found).numpy().tobytes() == np.array(back, F32).tobytes()


def test_first_row_of_blocks_of_two_by_two():
    """Q77."""
    back = dequantize(made(Q77, scheme("Q8S", block=[2, 2]))).numpy()
    assert back[0].tobytes() == np.array([1.007874, 2.015748, 10.07874, 20.15748], F32).tobytes()


def test_bit_patterns_that_the_examples_name():
    """Q71, Q79: 0x3C6836D4, 0x3B124925; the tiny scale is 0x464."""
    assert made(Q71, scheme("Q8S"))._data.scales.view(np.uint32)[0] == 0x3C6836D4
    assert made(Q79, scheme("Q4S", "F32", [4], "UE4M3"))._data.factor.view(np.uint32)[0] == 0x3B124925
    assert made([1e-40, -2e-40, 0], scheme("Q8S"))._data.scales.view(np.uint32)[0] == 0x464


def test_abs_mean():
    """Q76: γ = 0.45; with MinMax the scale is 0.9 and other numbers become 0."""
    x = [-0.9, -0.3, 0, 0.6]
    found = made(x, scheme("Q2S"), Calibration.ABS_MEAN)
    assert found._data.values.tolist() == [-1, -1, 0, 1]
    assert found._data.scales.tobytes() == F32(0.45000002).tobytes()
    assert dequantize(found).numpy().tobytes() == np.array([-0.45000002, -0.45000002, 0, 0.45000002], F32).tobytes()
    least = made(x, scheme("Q2S"))
    assert least._data.values.tolist() == [-1, 0, 0, 1]
    assert least._data.scales.tobytes() == F32(0.9).tobytes()


@pytest.mark.parametrize(
    ("scale", "dtype", "expected"),
    [
        (0.1, "F16", 0.10003662),
        (0.1, "BF16", 0.100097656),
        (0.1, "UE4M3", 0.1015625),
        (1.0001, "F16", 1.0009766),
        (1.0001, "BF16", 1.0078125),
        (1.0001, "UE4M3", 1.125),
        (1 / 3, "F16", 0.3334961),
        (1 / 3, "BF16", 0.33398438),
        (1 / 3, "UE4M3", 0.34375),
        (0.001, "UE4M3", 0.001953125),
        (0.01, "UE4M3", 0.01171875),
        (17, "UE4M3", 18),
        (17, "UE8M0", 32),
        (70000, "F16", 65504),
        (500, "UE4M3", 448),
        (1e-8, "F16", 5.9604645e-08),
    ],
)
def test_scales_are_rounded_up(scale, dtype, expected):
    """Q21's examples."""
    assert stored(np, np.array([scale], F32), ScaleDtype[dtype]).tobytes() == F32(expected).tobytes()


@pytest.mark.parametrize(
    ("shape", "form", "nbytes"),
    [
        ((3, 3), scheme("Q4S", "F32", store=PACKED), 16),
        ((4, 8), scheme("Q8S", block=[2, 4]), 48),
        ((1, 8), scheme("Q4S", "F32", [4], "UE4M3", PACKED), 10),
        ((1, 8), scheme("Q4S", "F32", [4], "UE4M3"), 14),
        ((2, 17), scheme("Q2S", store=PACKED), 20),
        ((2, 17), scheme("Q2S", store=QuantStore.packed_u32(1)), 72),
    ],
)
def test_lengths(shape, form, nbytes):
    """Q43's examples."""
    assert form.nbytes(shape) == nbytes
    assert len(made(np.ones(shape), form).tobytes()) == nbytes


def test_bytes_of_the_examples():
    """Q71, Q79, Q80a; a value packed in PackedNative is in the low half of its byte."""
    assert made(Q71, scheme("Q8S")).tobytes().hex(" ") == "81 b9 00 23 d4 36 68 3c"
    two = scheme("Q4S", "F32", [4], "UE4M3")
    assert made(Q79, two).tobytes().hex(" ") == "07 fd 01 00 07 03 ff 00 7e 64 25 49 12 3b"
    packed = made(Q79, scheme("Q4S", "F32", [4], "UE4M3", PACKED)).tobytes()
    assert packed[:4] == (0x0F3701D7).to_bytes(4, "little")
    pairs = made(Q71, scheme("E2M1", store=QuantStore.packed_native())).tobytes()
    assert pairs[:2].hex(" ") == "df 30"


@pytest.mark.parametrize(
    ("values", "value", "axis", "words"),
    [
        ([-128, 2, -3, 127], "Q8F", 0, [0x7FFD0280]),
        ([-128, 2, -3, 127, 55], "Q8F", 0, [0x7FFD0280, 0x37]),
        ([1, -1, 0, 1], "Q2F", 0, [0x4D]),
        ([[1, -2, 3], [-4, 5, -6], [7, -8, 0]], "Q4F", 0, [0x3E1, 0xA5C, 0x087]),
        ([[1, -2, 3], [-4, 5, -6], [7, -8, 0]], "Q4F", 1, [0x7C1, 0x85E, 0x0A3]),
        ([[(2 * i + j) % 8 for j in range(2)] for i in range(10)], "Q4F", 1, [0x64206420, 0x20, 0x75317531, 0x31]),
        (
            np.arange(24).reshape(4, 2, 3),
            "Q8F",
            2,
            [0x120C0600, 0x150F0903, 0x130D0701, 0x16100A04, 0x140E0802, 0x17110B05],
        ),
    ],
)
def test_packed_words(values, value, axis, words):
    """Q39, Q40."""
    form = scheme(value, store=QuantStore.packed_u32(axis))
    array = np.array(values, np.int8)
    packed = packing.pack(array, form)
    assert packed.view("<u4").tolist() == words
    assert np.array_equal(packing.unpack(packed, array.shape, form), array)


def test_the_grid_of_scales_is_stored_as_the_values_are():
    """Q41: [4, 8] with blocks of [2, 4] packed along the first axis: s0 s2 s1 s3."""
    x = np.repeat(np.repeat(np.array([[1, 2], [3, 4]], F32), 2, axis=0), 4, axis=1)
    found = made(x, scheme("Q2S", block=[2, 4], store=QuantStore.packed_u32(1)))
    assert np.frombuffer(found.tobytes()[-16:], "<f4").tolist() == [1, 3, 2, 4]


def test_leading_ones_of_a_block_are_dropped_and_a_level_that_is_named_is_another_scheme():
    """Q3, Q5, Q8, Q10."""
    assert BlockScale((1, 32)) == BlockScale((32,))
    assert scheme("Q8S", block=[1, 32]).grid((8, 64)) == (8, 2)
    assert scheme("Q8S") != scheme("Q8S", "F32")
    assert scheme("Q8S").scale_dtype is ScaleDtype.F32
    assert scheme("Q8S", "F32", [4], "UE4M3").scale_dtype is ScaleDtype.UE4M3
    assert QuantScheme() == QuantScheme(QuantValue.Q8F, QuantStore.packed_u32(0), "Symmetric")
    assert hash(QuantScheme(block=BlockScale([4]))) == hash(QuantScheme(block=BlockScale((1, 4))))
