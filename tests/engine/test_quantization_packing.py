"""L81: packing against words that are put together as Python integers, for each width, axis and length."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engine import (
    BlockScale,
    DTypeError,
    QuantizationError,
    QuantScheme,
    QuantStore,
    QuantValue,
    ScaleDtype,
    ShapeError,
    Tensor,
    quantize,
    tensor,
)
from engine.quantization.packing import pack, unpack
from tests.engine import quantization_oracle as oracle
from tests.engine.quantization_strategies import numbers, schemes
from tests.laws.law import inside

CPU = "cpu:0"


def limits(value: QuantValue) -> tuple[int, int]:
    """Every bit pattern of the width: two's complement, or codes."""
    return (0, (1 << value.bits) - 1) if value.is_float else (-(1 << (value.bits - 1)), (1 << (value.bits - 1)) - 1)


@st.composite
def packable(draw):
    value = draw(st.sampled_from(QuantValue))
    shape = tuple(draw(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 33)), min_size=0, max_size=2)))
    shape = (*shape, *draw(st.lists(st.integers(1, 3), max_size=1)))
    low, high = limits(value)
    dtype = np.uint8 if value.is_float else np.int8
    values = draw(hnp.arrays(dtype, shape, elements=st.integers(low, high)))
    axis = draw(st.integers(0, max(0, len(shape) - 1)))
    kind = draw(st.sampled_from([QuantStore.native(), QuantStore.packed_u32(axis), QuantStore.packed_native(axis)]))
    return values, QuantScheme(value, kind)


@inside("L81")
@given(case=packable())
def test_pack_and_unpack_are_inverse_and_words_are_those_put_together_by_hand(case):
    """L81, Q36 to Q40, Q43, Q67: any bit pattern, filling of zeros, lines one after another."""
    values, scheme = case
    packed = pack(values, scheme)
    assert packed.tobytes() == oracle.packed(values, scheme)
    assert packed.size + 4 == scheme.nbytes(values.shape)
    back = unpack(packed, values.shape, scheme)
    assert back.dtype == values.dtype
    assert back.shape == values.shape
    assert np.array_equal(back, values)


@inside("L81")
@pytest.mark.parametrize("value", [QuantValue.Q8F, QuantValue.Q4F, QuantValue.Q2F, QuantValue.E2M1])
def test_every_bit_pattern_of_a_byte_is_read_as_its_values(value):
    """L81, Q39: sign-extended integers, codes as they are."""
    scheme = QuantScheme(value, QuantStore.packed_u32())
    per_byte = 8 // value.bits
    data = np.arange(256, dtype=np.uint8)
    found = unpack(data, (256 * per_byte,), scheme).reshape(256, per_byte)
    low = limits(value)[0]
    for byte, place in product(range(256), range(per_byte)):
        field = (byte >> (place * value.bits)) & ((1 << value.bits) - 1)
        signed = field - (1 << value.bits) if low < 0 and field >= 1 << (value.bits - 1) else field
        assert found[byte, place] == signed


@given(seed=st.integers(0, 2**32 - 1), value=st.sampled_from(QuantValue), length=st.integers(1, 40))
def test_filling_is_dropped_whatever_it_is(seed, value, length):
    """Q39, Q45."""
    scheme = QuantScheme(value, QuantStore.packed_u32())
    words = -(-length // scheme.values_per_element)
    data = np.random.default_rng(seed).integers(0, 256, 4 * words, dtype=np.uint8)
    values = unpack(data, (length,), scheme)
    assert np.array_equal(unpack(pack(values, scheme), (length,), scheme), values)


@pytest.mark.parametrize("value", [QuantValue.Q8F, QuantValue.Q8S, QuantValue.E4M3, QuantValue.E5M2])
def test_words_of_8_bits_are_native_where_the_last_axis_is_whole(value):
    """Q45."""
    values = np.arange(24).reshape(3, 8).astype(np.uint8 if value.is_float else np.int8)
    packed = pack(values, QuantScheme(value, QuantStore.packed_u32()))
    assert packed.tobytes() == pack(values, QuantScheme(value, QuantStore.native())).tobytes() == values.tobytes()


@st.composite
def stored(draw):
    """A quantized tensor of any store, of which each axis may be the packed one."""
    value = draw(st.sampled_from(QuantValue))
    scheme = draw(schemes([value]))
    rank = draw(st.integers(1 if scheme.block is None else len(scheme.block.size), 3))
    size = (1,) * rank if scheme.block is None else scheme.extents((1,) * rank)
    shape = tuple(extent * draw(st.integers(1, 3)) for extent in size)
    kind = draw(st.sampled_from(["PackedU32", "PackedNative"]))
    store = QuantStore(kind, draw(st.integers(0, rank - 1)))
    x = draw(numbers(shape, scheme))
    return quantize(tensor(x, device=CPU), QuantScheme(value, store, tensor=scheme.tensor, block=scheme.block))


@inside("L81")
@given(made=stored())
def test_bytes_are_values_then_scales_then_the_global_scale_and_come_back(made):
    """L81, Q41, Q43, Q68: scales of blocks follow the packed axis."""
    scheme, data = made.dtype, made._data
    found = made.tobytes()
    values = oracle.packed(data.values, scheme)
    assert found[: len(values)] == values
    grid, count = scheme.grid(made.shape), prod(scheme.grid(made.shape))
    end = len(values) + count * scheme.scale_dtype.nbytes
    widths = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "UE4M3": "u1", "UE8M0": "u1"}
    codes = np.frombuffer(found[len(values) : end], widths[scheme.scale_dtype.name])
    scales = decoded(codes, scheme.scale_dtype)
    if scheme.block is not None:
        order = np.arange(count).reshape(grid).swapaxes(made.ndim - 1 - scheme.store.axis, made.ndim - 1).ravel()
        assert np.array_equal(scales, data.scales.ravel()[order])
    else:
        assert np.array_equal(scales, data.scales)
    assert found[end:] == (b"" if data.factor is None else data.factor.astype("<f4").tobytes())
    read = Tensor.from_quantized(np.frombuffer(found, np.uint8), made.shape, scheme, CPU)
    assert read.dtype == scheme
    assert np.array_equal(read._data.values, data.values)
    assert np.array_equal(read._data.scales, data.scales)
    assert read.tobytes() == found


def decoded(codes: np.ndarray, dtype: ScaleDtype) -> np.ndarray:
    """Q42, from the table of all positive values: code 1 is its first, of UE8M0 code 0."""
    if dtype is ScaleDtype.F32:
        return codes
    if dtype is ScaleDtype.F16:
        codes = codes.view(np.uint16)
    return oracle.values_of(dtype)[codes.astype(int) - (dtype is not ScaleDtype.UE8M0)].astype(np.float32)


TWO = QuantScheme(tensor=ScaleDtype.F32, block=BlockScale((2,), ScaleDtype.F16))


@pytest.mark.parametrize(
    ("scheme", "shape", "data", "error", "says"),
    [
        (QuantScheme(), (4,), bytes(7), ShapeError, "takes 8 bytes, not 7"),
        (QuantScheme(), (3,), bytes(7), ShapeError, "takes 8 bytes, not 7"),
        (TWO, (4,), bytes(8), ShapeError, "takes 12 bytes, not 8"),
        (QuantScheme(), (4,), bytes(8), QuantizationError, r"scale 0.0 is not positive and finite \(1 of 1"),
        (QuantScheme(), (4,), bytes(4) + np.float32(-2).tobytes(), QuantizationError, "scale -2.0"),
        (QuantScheme(), (4,), bytes(4) + np.float32(np.nan).tobytes(), QuantizationError, "scale nan"),
        (TWO, (4,), bytes(4) + b"\0\x3c" * 2 + np.float32(np.inf).tobytes(), QuantizationError, "global scale inf"),
        (QuantScheme(tensor=ScaleDtype.UE4M3), (4,), bytes(4) + b"\xb8", QuantizationError, "scale -1.0"),
        (QuantScheme(tensor=ScaleDtype.UE8M0), (4,), bytes(4) + b"\xff", QuantizationError, "scale nan"),
        (QuantScheme(mode="Lookup"), (4,), bytes(8), DTypeError, "Lookup"),
        (QuantScheme(store=QuantStore.packed_u32(1)), (4,), bytes(8), ShapeError, "packs axis 1"),
        (QuantScheme(block=BlockScale((2, 2))), (4,), bytes(8), ShapeError, "a block of 2 axes"),
        (
            QuantScheme(tensor=ScaleDtype.F16, block=BlockScale((2,), ScaleDtype.F16)),
            (4,),
            bytes(12),
            DTypeError,
            "global scale is in F32",
        ),
    ],
)
def test_bytes_that_are_no_quantized_tensor_are_refused(scheme, shape, data, error, says):
    """Q44, Q47."""
    with pytest.raises(error, match=says):
        Tensor.from_quantized(np.frombuffer(data, np.uint8), shape, scheme, CPU)


@given(made=stored())
def test_bytes_may_be_of_any_type_that_holds_bytes(made):
    """Q41: as `tobytes` gives them, in a buffer with gaps, or as an array; none is written to or kept."""
    found = made.tobytes()
    spread = np.repeat(np.frombuffer(found, np.uint8), 2)
    held = bytearray(found)
    for data in (found, held, memoryview(found), memoryview(spread)[::2], spread[::2]):
        read = Tensor.from_quantized(data, made.shape, made.dtype, CPU)
        assert read.tobytes() == found
    read = Tensor.from_quantized(held, made.shape, made.dtype, CPU)
    held[:] = bytes(len(held))
    assert read.tobytes() == found


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"data": [0, 0, 0, 0]}, TypeError, "data is of type list; it must be bytes"),
        ({"data": "text"}, TypeError, "data is of type str"),
        ({"data": None}, TypeError, "data is of type NoneType"),
        ({"data": np.zeros(8, np.int8)}, TypeError, "data is an array of int8"),
        ({"data": np.zeros((2, 4), np.uint8)}, ShapeError, r"data has shape \(2, 4\); it must have one axis"),
        ({"scheme": "q8"}, DTypeError, "scheme is 'q8'; it must be a QuantScheme"),
        ({"shape": 4}, TypeError, "shape is 4; it must be a sequence of integers"),
        ({"shape": (4.0,)}, TypeError, "shape is 4.0; it must be an integer"),
        ({"shape": (-4,), "data": bytes(4)}, ShapeError, r"shape \(-4,\) has a negative extent"),
    ],
)
def test_arguments_of_another_type_are_refused_by_name(changed, error, says):
    """Q41."""
    with pytest.raises(error, match=f"^from_quantized: {says}"):
        Tensor.from_quantized(**{"data": bytes(8), "shape": (4,), "scheme": QuantScheme(), "device": CPU, **changed})


def test_a_block_that_does_not_divide_can_be_read():
    """Q10: the last block of an axis is then not full; only quantizing needs whole ones (Q11)."""
    scheme = QuantScheme(QuantValue.Q8S, QuantStore.native(), block=BlockScale((2, 2)))
    data = bytes(range(1, 10)) + np.array([1, 2, 4, 8], "<f4").tobytes()
    read = Tensor.from_quantized(np.frombuffer(data, np.uint8), (3, 3), scheme, CPU)
    assert read.cast("float32").numpy().tolist() == [[1, 2, 6], [4, 5, 12], [28, 32, 72]]
    assert read.T.cast("float32").numpy().tolist() == [[1, 4, 28], [2, 5, 32], [6, 12, 72]]
