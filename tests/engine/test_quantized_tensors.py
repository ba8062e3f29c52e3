"""Quantized tensors in use: devices, operations, layouts, autodiff (L28, L31, L83; Q13, Q31 to Q35, M60, M70)."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.operations import CASES, Free
from engine import (
    AutodiffError,
    BlockScale,
    Buffer,
    Calibration,
    Device,
    DeviceMismatchError,
    DTypeError,
    QuantScheme,
    QuantStore,
    QuantValue,
    ScaleDtype,
    ShapeError,
    Tensor,
    dequantize,
    kind_of,
    ops,
    quantize,
    quantize_like,
    tensor,
    transfer,
)
from engine.transfer import Count
from tests.engine.comparison import same_bits
from tests.engine.quantization_strategies import cases
from tests.engine.strategies import in_order
from tests.laws.law import inside

CPU, OTHER = "cpu:0", "cpu:1"
F32 = np.float32
PER_TENSOR = QuantScheme(QuantValue.Q8S, QuantStore.native())
PER_BLOCK = QuantScheme(QuantValue.Q8S, QuantStore.packed_u32(), block=BlockScale((1,)))
TWO_LEVEL = QuantScheme(
    QuantValue.Q4S, QuantStore.native(), tensor=ScaleDtype.F32, block=BlockScale((2,), ScaleDtype.UE4M3)
)
FLOAT_CASES = [case for case in CASES if case.takes != "bools" and case.name != "cast"]  # whose case names the dtype
each_case = pytest.mark.parametrize(
    "case", FLOAT_CASES, ids=[f"{case.name}-{at}" for at, case in enumerate(FLOAT_CASES)]
)


def drawn(*shape, seed=0):
    return tensor(np.random.default_rng(seed).standard_normal(shape).astype(F32), device=CPU)


def plain(x: Tensor) -> Tensor:
    return dequantize(x) if x.is_quantized else x


@inside("L83")
@each_case
@pytest.mark.parametrize("scheme", [PER_TENSOR, PER_BLOCK], ids=["tensor", "block"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_operation_on_a_quantized_tensor_is_that_on_its_numbers(case, scheme, dtype):
    """L83, Q35: bit for bit, each operand quantized alone, in the dtype of those beside it, and all, in float32."""
    free = [at for at, kind in enumerate(case.operands) if isinstance(kind, Free) and kind.shape]
    dense = case.tensors(np.dtype(dtype))
    for chosen in [*([at] for at in free), free]:
        beside = dtype if len(chosen) < sum(isinstance(kind, Free) for kind in case.operands) else "float32"
        operands, numbers = list(dense), list(dense)
        for at in chosen:
            operands[at] = quantize(dense[at], scheme)
            numbers[at] = dequantize(operands[at], beside)
        found, expected = case.results(operands), case.results(numbers)
        for result, wanted in zip(found, expected, strict=True):
            number = dequantize(result, beside) if result.is_quantized else result
            assert same_bits(number, wanted), case.name


@given(case=cases(), axes=st.permutations(range(3)))
def test_a_copy_is_whole_and_counted_once_with_its_bytes(case, axes):
    """L28, L31, L32, Q34: values and scales in one copy of one tensor; memory of its own."""
    scheme, x = case
    made = quantize(tensor(x, device=CPU), scheme).autodiff()
    with transfer.log() as log:
        first, second = transfer.copy([made, made], OTHER)
    nbytes = made._data.values.size + 4 * made._data.scales.size + (4 if scheme.is_two_level else 0)
    assert dict(log) == {(Device(CPU), Device(OTHER), "host"): Count(1, nbytes)}
    assert made.nbytes == nbytes
    assert first is second
    assert first.device == Device(OTHER)
    assert first.device.is_autodiff
    assert first.dtype == scheme
    assert first.tobytes() == made.tobytes()
    for part, other in zip(first._data.parts, made._data.parts, strict=True):
        assert not np.shares_memory(part, other)
        assert not part.flags.writeable
        assert not other.flags.writeable


@inside("L83")
@given(case=cases(), data=st.data())
def test_the_memory_order_changes_no_value_and_is_kept(case, data):
    """L83, D5: a tensor in any order of the axes is quantized to the same values, dequantized in its own order."""
    scheme, x = case
    other = np.array(in_order(x, data.draw(st.permutations(range(x.ndim)))), copy=True, order="K")
    made, turned = (quantize(Tensor.from_numpy(array, CPU), scheme) for array in (x, other))
    assert turned.tobytes() == made.tobytes()
    back = dequantize(turned)
    assert same_bits(back, dequantize(made))
    if x.size:
        strides = [s for s, n in zip(back._data.strides, x.shape, strict=True) if n > 1]
        assert strides == [s for s, n in zip(other.strides, x.shape, strict=True) if n > 1]


@given(case=cases(), data=st.data())
def test_axes_permute_with_their_blocks_and_the_packed_axis(case, data):
    """Q13, Q35: integers and scales are kept; the numbers are those of the permuted tensor."""
    scheme, x = case
    made = quantize(tensor(x, device=CPU), scheme)
    axes = data.draw(st.permutations(range(x.ndim)))
    turned = made.transpose(*axes) if axes else made
    assert turned.is_quantized
    assert same_bits(dequantize(turned), dequantize(made).transpose(*axes) if axes else dequantize(made))
    back = turned.transpose(*np.argsort(axes).tolist()) if axes else turned
    assert back.dtype == scheme
    assert back.tobytes() == made.tobytes()


def test_the_packed_axis_and_the_block_move_with_their_axes():
    """Q13."""
    scheme = QuantScheme(QuantValue.Q4S, QuantStore.packed_u32(0), block=BlockScale((4,), ScaleDtype.F16))
    turned = quantize(drawn(2, 3, 8), scheme).transpose(2, 0, 1)
    assert turned.dtype == QuantScheme(
        QuantValue.Q4S, QuantStore.packed_u32(2), block=BlockScale((4, 1, 1), ScaleDtype.F16)
    )
    assert turned.T.dtype.block == BlockScale((4, 1, 1), ScaleDtype.F16)
    assert turned.T.dtype.store == QuantStore.packed_u32(2)
    last = quantize(drawn(2, 8), scheme).T
    assert (last.dtype.store, last.dtype.block.size) == (QuantStore.packed_u32(1), (4, 1))
    with pytest.raises(ShapeError, match="transpose"):
        turned.transpose(0, 1)
    with pytest.raises(ShapeError, match="out of bounds"):
        ops.swap_axes(turned, 0, 3)


def test_layouts_keep_integers_and_scale_without_blocks_and_give_floats_with_them():
    """Q13, Q35."""
    x, rows = drawn(4, 6), tensor([3, 0], device=CPU)
    packed = QuantScheme(QuantValue.Q8S, QuantStore.packed_u32(1))
    for scheme, kept in ((packed, True), (PER_BLOCK, False)):
        made = quantize(x, scheme)
        for result in (made.reshape(24), made[1], made[:, 2:5], made[rows], ops.take(made, rows, axis=1),
                       ops.broadcast_to(made, (2, 4, 6)), *ops.split(made, [1, 3], axis=0)):  # fmt: skip
            assert result.is_quantized == kept
    assert quantize(x, packed).reshape(24).dtype.store == QuantStore.packed_u32(0)
    assert quantize(x, packed).reshape(2, 2, 6).dtype.store == QuantStore.packed_u32(1)
    assert not ops.embedding(quantize(x, packed), rows).is_quantized


@inside("L83")
@pytest.mark.parametrize("scheme", [PER_TENSOR, PER_BLOCK, TWO_LEVEL, QuantScheme(block=BlockScale((4, 2)))])
def test_rows_of_a_table_are_those_of_the_whole(scheme):
    """L83: an embedding reads the rows that it needs, with their scales."""
    ids = tensor([[0, 7], [3, 3]], device=CPU)
    table = quantize(drawn(8, 6), scheme)
    assert same_bits(ops.embedding(table, ids), ops.embedding(dequantize(table), ids))
    turned = quantize(drawn(6, 8).T, scheme)
    assert same_bits(ops.embedding(turned, ids), ops.embedding(dequantize(turned), ids))


LARGE = [
    (drawn(520, 512), QuantScheme(QuantValue.Q8S, block=BlockScale((32,)))),
    (drawn(512, 520).T, QuantScheme(QuantValue.Q4S, block=BlockScale((8, 64), ScaleDtype.F16))),
    (drawn(520, 512), PER_TENSOR),
]


@pytest.mark.parametrize(("weight", "scheme"), LARGE, ids=["block", "by columns", "tensor"])
def test_a_product_with_a_large_weight_is_that_with_its_numbers(weight, scheme):
    """Q35: piece by piece, so within rounding; gradients reach x and the bias."""
    made = quantize(weight, scheme)
    x, bias = drawn(3, 2, 520, seed=1).autodiff().require_grad(), drawn(512, seed=2).autodiff().require_grad()
    cotangent = drawn(3, 2, 512, seed=3)
    results = []
    for w in (made, dequantize(made)):
        y = ops.linear(x, w, bias)
        gradients = y.backward(cotangent.autodiff())
        results.append([y.numpy(), x.grad(gradients).numpy(), bias.grad(gradients).numpy(), (x @ w).numpy()])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * abs(expected).max())
    with pytest.raises(ShapeError, match=r"linear: .*\(2, 3\)"):
        ops.linear(drawn(2, 3), made)
    with pytest.raises(ShapeError, match="bias has shape"):
        ops.linear(drawn(2, 520), made, drawn(3))
    half = ops.linear(drawn(2, 520).cast("float16"), made)
    assert same_bits(half, ops.linear(drawn(2, 520).cast("float16"), dequantize(made, "float16")))


def test_a_large_weight_is_never_whole_in_float32():
    """The memory that a product takes is a fraction of the weight's, forward and backward."""
    made = quantize(drawn(2048, 2048), QuantScheme(QuantValue.Q8S, block=BlockScale((32,))))
    x = drawn(1, 2048).autodiff().require_grad()
    tracemalloc.start()
    try:
        ops.linear(x, made).backward(drawn(1, 2048).autodiff())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < made.size  # bytes; whole, it would be four times as many


def test_a_quantized_tensor_is_what_it_says():
    """Q33, Q34, M60, M70."""
    x = drawn(4, 6).autodiff().require_grad()
    made = quantize(x, TWO_LEVEL)
    assert (made.shape, made.ndim, made.size, made.dtype, made.device) == ((4, 6), 2, 24, TWO_LEVEL, Device(CPU))
    assert made.is_quantized
    assert not x.is_quantized
    assert made.device.is_autodiff
    assert kind_of(made.dtype) == "float"
    for tried in (made, made.require_grad(), made.set_require_grad(True), made.set_require_grad(False)):
        assert tried is made
        assert not tried.is_tracked
        assert not tried.is_require_grad
    assert not (made * 2.0).is_tracked
    assert (made * x).is_tracked
    assert not dequantize(made).is_tracked
    with pytest.raises(AutodiffError):
        made.without_autodiff().require_grad()
    for read in (made.numpy, lambda: np.asarray(made)):
        with pytest.raises(DTypeError, match="dequantize"):
            read()
    assert "Q4S" in repr(made)
    assert float(made[0, 0]) == dequantize(made).numpy()[0, 0]


def test_scalars_and_casts_are_those_of_the_numbers():
    """Q29, Q35: the default float dtype; rounding once."""
    made = quantize(drawn(4, 6), PER_BLOCK)
    assert same_bits(made * 2 + 1.5, dequantize(made) * 2 + 1.5)
    for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "bool"):
        assert same_bits(made.cast(dtype), dequantize(made).cast(dtype))
    with pytest.raises(DTypeError, match="float32 and float64"):
        ops.where(made > 0.0, drawn(4, 6), drawn(4, 6).cast("float64"))


def test_a_buffer_stores_the_numbers():
    made, buffer = quantize(drawn(4, 6), PER_BLOCK), Buffer(0)
    buffer.append(made)
    assert same_bits(buffer.view(), dequantize(made))


def test_quantizing_like_another_keeps_its_scales():
    """Q60: also of numbers beyond them."""
    x = drawn(4, 6)
    like = quantize(x, PER_BLOCK)
    made = quantize_like(x * 3.0, like)
    assert made.dtype == like.dtype
    assert np.array_equal(made._data.scales, like._data.scales)
    assert abs(made._data.values).max() == 127
    with pytest.raises(DTypeError, match="`like` has dtype float32"):
        quantize_like(x, x)
    with pytest.raises(DTypeError, match="quantized already"):
        quantize_like(like, like)
    with pytest.raises(ShapeError, match="must be the same"):
        quantize_like(drawn(6, 4), like)
    with pytest.raises(DeviceMismatchError, match="cpu:1"):
        quantize_like(x.to_device(OTHER), like)


def test_operands_on_two_devices_are_refused():
    """L33."""
    made = quantize(drawn(4, 6), PER_BLOCK)
    with pytest.raises(DeviceMismatchError, match="add"):
        made + drawn(4, 6).to_device(OTHER)
    with pytest.raises(DeviceMismatchError, match="linear"):
        ops.linear(drawn(4, 4), made.to_device(OTHER))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("calibration", Calibration)
def test_other_float_dtypes_are_quantized_as_their_float32(dtype, calibration):
    """Q26."""
    x = drawn(4, 6).cast(dtype)
    assert (
        quantize(x, PER_BLOCK, calibration).tobytes() == quantize(x.cast("float32"), PER_BLOCK, calibration).tobytes()
    )


@pytest.mark.parametrize(
    ("shape", "block"), [((300, 512), (32,)), ((300, 512), (4, 128)), ((512, 300), (64, 1)), ((400, 700), None)]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_is_computed_in_parts_is_what_its_pieces_give(shape, block, order):
    """Several parts in the cache: the first and last rows of blocks alone are quantized to the same values."""
    x = np.asarray(drawn(*shape).numpy(), order=order)
    scheme = QuantScheme(QuantValue.Q8S, QuantStore.native(), block=None if block is None else BlockScale(block))
    made = quantize(Tensor.from_numpy(x, CPU), scheme)
    largest = abs(x).max() if block is None else None
    rows = 1 if block is None or len(block) == 1 else block[0]
    for piece in (slice(0, rows), slice(shape[0] - rows, shape[0])):
        values = made._data.values[piece]
        if block is None:
            assert np.array_equal(values, np.rint(x[piece] / (2 * largest / F32(254))))
        else:
            assert np.array_equal(values, quantize(tensor(x[piece], device=CPU), scheme)._data.values)
