"""Quantized tensors on GPUs: the values and scales of the CPU, moved whole, read from any device (L28, L31, L83)."""

import numpy as np
import pytest

from engine import (
    BlockScale,
    Calibration,
    Device,
    QuantizationError,
    QuantScheme,
    QuantStore,
    QuantValue,
    ScaleDtype,
    Tensor,
    dequantize,
    ops,
    quantize,
    quantize_like,
    tensor,
    transfer,
)
from engine.transfer import Count
from tests.fake_cupy import Machine

LEVELS = [
    {},
    *({"tensor": dtype} for dtype in ScaleDtype),
    {"block": BlockScale((4,), ScaleDtype.UE8M0)},
    {"block": BlockScale((2, 8), ScaleDtype.BF16)},
    {"tensor": ScaleDtype.F32, "block": BlockScale((4,), ScaleDtype.UE4M3)},
]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), device="cpu:0")


@pytest.mark.parametrize("value", QuantValue)
def test_a_gpu_gives_the_values_and_scales_of_the_cpu(machine: Machine, value: QuantValue) -> None:
    x = drawn(4, 16)
    for levels in LEVELS:
        scheme = QuantScheme(value, QuantStore.packed_u32(1), **levels)
        expected = quantize(x, scheme)
        made = quantize(x.to_device("cuda:1"), scheme)
        assert made.tobytes() == expected.tobytes()
        assert dequantize(made).to_device("cpu:0").tobytes() == dequantize(expected).tobytes()
        if not scheme.is_two_level:
            mean, wanted = (quantize(at, scheme, Calibration.ABS_MEAN) for at in (x.to_device("cuda:1"), x))
            assert np.array_equal(mean.to_device("cpu:0")._data.values, wanted._data.values)


def test_it_moves_whole_between_gpus_and_is_counted_once(machine: Machine) -> None:
    scheme = QuantScheme(QuantValue.Q8S, block=BlockScale((4,)))
    made = quantize(drawn(4, 16), scheme)
    with transfer.log() as log:
        there = made.to_device("cuda:0")
        other = there.to_device("cuda:1")
        back = other.to_device("cpu:0")
    assert back.tobytes() == other.tobytes() == made.tobytes()
    assert back.dtype == other.dtype == scheme
    assert set(log.values()) == {Count(1, 4 * 16 + 4 * 16)}
    assert {way[2] for way in log} == {"upload", "peer", "download"}
    read = Tensor.from_quantized(np.frombuffer(made.tobytes(), np.uint8), made.shape, scheme, "cuda:1")
    assert read.device == Device("cuda:1")
    assert read.tobytes() == made.tobytes()


def test_operations_on_a_gpu_dequantize_there(machine: Machine) -> None:
    scheme = QuantScheme(QuantValue.Q8S, block=BlockScale((8,), ScaleDtype.F16))
    weight, x = quantize(drawn(520, 512), scheme), drawn(3, 520, seed=1)
    there, numbers = weight.to_device("cuda:0"), dequantize(weight)
    ids = tensor([[3, 1]], device="cpu:0")
    for result, expected in (
        (ops.linear(x.to_device("cuda:0"), there), ops.linear(x, numbers)),
        (there * 2.0, numbers * 2.0),
        (ops.embedding(there, ids.to_device("cuda:0")), ops.embedding(numbers, ids)),
        (there.T.cast("float32"), numbers.T),
    ):
        assert result.device == Device("cuda:0")
        np.testing.assert_allclose(result.to_device("cpu:0").numpy(), expected.numpy(), rtol=0, atol=1e-3)
    with pytest.raises(QuantizationError, match="1 of 8"):
        quantize(tensor([1.0, np.nan, *range(6)], device="cuda:0"), scheme)
    like = quantize(drawn(4, 8), scheme)
    made = quantize_like(drawn(4, 8, seed=1).to_device("cuda:0"), like.to_device("cuda:0"))
    assert made.tobytes() == quantize_like(drawn(4, 8, seed=1), like).tobytes()
