"""The laws of quantization, L71 to L80 and L82, against scalar float32 steps (see `quantization_oracle`)."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

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
    quantize_like,
    tensor,
)
from engine.quantization.scales import round_up, stored
from tests.engine import quantization_oracle as oracle
from tests.engine.quantization_strategies import GLOBAL, INTEGERS, SYMMETRIC, cases, numbers, schemes, shapes
from tests.laws.law import inside

CPU = "cpu:0"
F32 = np.float32
NATIVE = QuantStore.native()


def parts(x, scheme, calibration=Calibration.MIN_MAX, **options):
    """Values, scales and the global scale of what the engine makes of an array."""
    data = quantize(tensor(x, device=CPU), scheme, calibration, **options)._data
    return data.values, data.scales, None if data.factor is None else data.factor[0]


def same(found, expected):
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@inside("L71")
@given(case=cases())
def test_values_and_scales_are_those_of_scalar_steps(case):
    """L71 (Q16 to Q30): integers, codes, scales of each block and the global scale, to the bit."""
    scheme, x = case
    values, scales, factor = parts(x, scheme)
    expected = oracle.quantized(x, scheme)
    assert scales.shape == expected.scales.shape == scheme.grid(x.shape)
    assert scales.tobytes() == expected.scales.tobytes()
    assert factor == expected.factor
    assert np.array_equal(values, expected.values)


@inside("L71")
@given(case=cases(two=False), data=st.data())
def test_under_abs_mean_the_scale_is_the_mean_and_what_is_beyond_it_is_the_end(case, data):
    """L71, Q15: the scale within float32 rounding, the integers exactly those of the scale that was stored."""
    scheme, x = case
    values, scales, _ = parts(x, scheme, Calibration.ABS_MEAN)
    expected = oracle.quantized(x, scheme, Calibration.ABS_MEAN)
    if scheme.scale_dtype is ScaleDtype.F32:
        np.testing.assert_allclose(scales, expected.scales, rtol=2e-6)
    effective = oracle.effective_scales(scales, None, scheme, x.shape)
    for at in np.ndindex(*x.shape):
        assert values[at] == oracle.value_of(x[at], effective[at], scheme.value)


@inside("L71")
@given(case=cases(values=INTEGERS, zeros=False))
def test_the_error_is_at_most_half_a_step(case):
    """L71, Q29, Q59: s · (1/2 + 1.5 · B · 2^-23) within the range, the range's end beyond it; exact arithmetic."""
    scheme, x = case
    made = quantize(tensor(x, device=CPU), scheme)
    data = made._data
    back = dequantize(made).numpy().astype(np.float64)
    s = oracle.effective_scales(data.scales, None if data.factor is None else data.factor[0], scheme, x.shape)
    s = s.astype(np.float64)
    low, high = scheme.value.low, scheme.value.high
    largest = max(-low, high)
    inside = (x >= (low - 0.5) * s) & (x <= (high + 0.5) * s)
    assert np.all(abs(back - x)[inside] <= (s * (0.5 + 1.5 * largest * 2.0**-23))[inside])
    with np.errstate(over="ignore"):
        ends = np.where(x < 0, (F32(low) * s.astype(F32)), (F32(high) * s.astype(F32)))
    assert np.array_equal(back[~inside], ends[~inside].astype(np.float64))


@given(case=cases())
def test_dequantizing_is_one_product_in_float32(case):
    """Q20, Q29: scale · value, two levels (global · block) · value; then rounded once to another dtype."""
    scheme, x = case
    made = quantize(tensor(x, device=CPU), scheme)
    data = made._data
    s = oracle.effective_scales(data.scales, None if data.factor is None else data.factor[0], scheme, x.shape)
    expected = np.zeros(x.shape, F32)
    with np.errstate(over="ignore", under="ignore"):
        for at in np.ndindex(*x.shape):
            expected[at] = oracle.number_of(int(data.values[at]), scheme) * s[at]
        assert dequantize(made).numpy().tobytes() == expected.tobytes()
        assert dequantize(made, "float16").numpy().tobytes() == expected.astype(np.float16).tobytes()
        assert dequantize(made, "float64").numpy().tobytes() == expected.astype(np.float64).tobytes()


@inside("L72")
@given(case=cases(values=INTEGERS), calibration=st.sampled_from(Calibration))
def test_with_the_same_scales_the_integers_come_back(case, calibration):
    """L72, Q60, barring overflow of scale · value."""
    scheme, x = case
    assume(calibration is Calibration.MIN_MAX or not scheme.is_two_level)
    made = quantize(tensor(x, device=CPU), scheme, calibration)
    back = dequantize(made)
    data = made._data
    effective = oracle.effective_scales(data.scales, None if data.factor is None else data.factor[0], scheme, x.shape)
    assume(np.isfinite(back.numpy()).all() and (effective > 0).all())
    again = quantize_like(back, made)
    assert np.array_equal(again._data.values, made._data.values)
    assert again.dtype == scheme


FINE = [  # Q61: kinds of values with dtypes whose step is fine enough to find the scale again
    *((value, dtype) for value in SYMMETRIC for dtype in (ScaleDtype.F32, ScaleDtype.F16, ScaleDtype.UE8M0)),
    (QuantValue.Q4S, ScaleDtype.BF16),
    (QuantValue.Q2S, ScaleDtype.BF16),
    (QuantValue.Q2S, ScaleDtype.UE4M3),
]


@inside("L73")
@given(pair=st.sampled_from(FINE), block=st.integers(1, 4), data=st.data())
def test_afresh_symmetric_kinds_with_fine_scales_come_back(pair, block, data):
    """L73, Q61: the integers and the scales, where no scale is saturated or below the normal range."""
    value, dtype = pair
    scheme = QuantScheme(value, NATIVE, block=BlockScale((block,), dtype))
    x = data.draw(numbers((2 * block,), scheme, zeros=False)) * F32(2.0**-20)
    smallest = {ScaleDtype.F16: 2.0**-14, ScaleDtype.UE4M3: 2.0**-6}.get(dtype, 2.0**-126)
    made = quantize(tensor(x, device=CPU), scheme)
    assume(np.all(made._data.scales >= smallest) and np.all(made._data.scales < dtype.largest))
    again = quantize(dequantize(made), scheme)
    assert again.tobytes() == made.tobytes()


@inside("L73")
@pytest.mark.parametrize(
    ("value", "dtype", "x", "calibration"),
    [
        (QuantValue.Q8F, ScaleDtype.F32, [1.0, 0.3], Calibration.MIN_MAX),
        (QuantValue.Q2S, ScaleDtype.F32, [0.9, -0.1, 0.0], Calibration.ABS_MEAN),
        (QuantValue.Q8S, ScaleDtype.BF16, [127.4, 1.0], Calibration.MIN_MAX),
        (QuantValue.Q8S, ScaleDtype.UE4M3, [14.9, 1.0], Calibration.MIN_MAX),
    ],
)
def test_afresh_other_schemes_need_not_come_back(value, dtype, x, calibration):
    """L73: one example each of where requantizing changes something, so that nobody promises it."""
    scheme = QuantScheme(value, NATIVE, tensor=dtype)
    made = quantize(tensor(np.array(x, F32), device=CPU), scheme, calibration)
    assert quantize(dequantize(made), scheme, calibration).tobytes() != made.tobytes()


@inside("L74")
@given(case=cases(values=INTEGERS))
def test_values_are_monotone_within_a_block(case):
    """L74, Q63."""
    scheme, x = case
    values, _, _ = parts(x, scheme)
    extents = oracle.block_extents(scheme, x.shape)
    for place in np.ndindex(*(n // e for n, e in zip(x.shape, extents, strict=True))):
        at = oracle.part(place, extents)
        order = np.argsort(x[at].ravel(), kind="stable")
        assert np.all(np.diff(values[at].ravel()[order].astype(int)) >= 0)


@inside("L75")
@given(case=cases(values=SYMMETRIC), mean=st.booleans())
def test_symmetric_kinds_commute_with_negation(case, mean):
    """L75, Q62: integers negated, scales the same, under AbsMean too."""
    scheme, x = case
    calibration = Calibration.ABS_MEAN if mean and not scheme.is_two_level else Calibration.MIN_MAX
    values, scales, factor = parts(x, scheme, calibration)
    assert same(parts(-x, scheme, calibration)[:2], (-values, scales))
    assert parts(-x, scheme, calibration)[2] == factor


@inside("L76")
@given(case=cases(values=INTEGERS, two=False, dtypes=[ScaleDtype.F32], zeros=False), power=st.integers(-40, 40))
def test_powers_of_two_scale_the_scales_alone(case, power):
    """L76, Q64."""
    scheme, x = case
    values, scales, _ = parts(x, scheme)
    factor = F32(2.0**power)
    assert same(parts(x * factor, scheme)[:2], (values, scales * factor))


@inside("L77")
@given(data=st.data(), value=st.sampled_from(QuantValue), dtype=st.sampled_from(ScaleDtype))
def test_blocks_do_not_see_each_other(data, value, dtype):
    """L77, Q9, Q65: changing a block changes that block; permuting blocks permutes the result, bit for bit."""
    size = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple))
    scheme = QuantScheme(value, NATIVE, block=BlockScale(size, dtype))
    extents = scheme.extents((0,) * len(size)) if len(scheme.block.size) < len(size) else scheme.block.size
    shape = tuple(2 * extent for extent in extents)
    x, other = data.draw(numbers(shape, scheme)), data.draw(numbers(shape, scheme))
    changed = x.copy()
    place = tuple(data.draw(st.integers(0, 1)) for _ in shape)
    at = oracle.part(place, extents)
    changed[at] = other[at]
    before, after, others = parts(x, scheme), parts(changed, scheme), parts(other, scheme)
    kept = np.ones(shape, bool)
    kept[at] = False
    assert np.array_equal(before[0][kept], after[0][kept])
    assert np.array_equal(after[0][at], others[0][at])
    kept_scales = np.ones(before[1].shape, bool)
    kept_scales[place] = False
    assert np.array_equal(before[1][kept_scales], after[1][kept_scales])
    assert after[1][place] == others[1][place]
    turned = np.roll(x, extents[0], axis=0)
    rolled = parts(turned, scheme)
    assert np.array_equal(rolled[0], np.roll(before[0], extents[0], axis=0))
    assert np.array_equal(rolled[1], np.roll(before[1], 1, axis=0))


@inside("L78")
@given(data=st.data(), value=st.sampled_from(QuantValue), dtype=st.sampled_from(ScaleDtype), mean=st.booleans())
def test_one_block_over_the_whole_is_one_scale_per_tensor(data, value, dtype, mean):
    """L78, Q66."""
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
    whole = QuantScheme(value, NATIVE, tensor=dtype)
    x = data.draw(numbers(shape, whole))
    calibration = Calibration.ABS_MEAN if mean else Calibration.MIN_MAX
    block = replace(whole, tensor=None, block=BlockScale(shape, dtype))
    values, scales, _ = parts(x, whole, calibration)
    found = parts(x, block, calibration)
    assert np.array_equal(found[0], values)
    assert found[1].ravel().tobytes() == scales.tobytes()


@inside("L79")
@given(scheme=schemes(), data=st.data())
def test_zero_stays_zero_and_no_nan_ever_leaves(scheme, data):
    """L79, Q22, Q27, Q69: of either sign, beside subnormals and numbers whose double overflows."""
    shape = data.draw(shapes(scheme))
    pool = [0.0, -0.0, 1e-45, -3e-44, 1.1754944e-38, 1.0, -0.75, 3.4028235e38, -2e38, 1.6e38]
    last = data.draw(st.sampled_from([3, 9]))
    x = np.array(pool, F32)[data.draw(hnp.arrays(np.int64, shape, elements=st.integers(0, last)))]
    values, scales, factor = parts(x, scheme)
    assert np.all((scales > 0) & np.isfinite(scales))
    assert factor is None or 0 < factor < np.inf
    back = dequantize(quantize(tensor(x, device=CPU), scheme)).numpy()
    assert not np.isnan(back).any()
    assert np.all(back[x == 0] == 0)
    if not scheme.value.is_float:
        assert np.all(values[x == 0] == 0)


@pytest.mark.parametrize("value", QuantValue)
@pytest.mark.parametrize("dtype", GLOBAL)
def test_an_effective_scale_that_underflows_makes_zeros_zeros(value, dtype):
    """L79, Q69: global times block scale is 0 in F16, and 0 / 0 is value 0 in each kind; of either sign."""
    scheme = QuantScheme(value, NATIVE, tensor=ScaleDtype.F32, block=BlockScale((2,), dtype))
    values, _, _ = parts(np.array([0.0, -0.0, 0.0, 0.0], F32), scheme)
    expected = oracle.quantized(np.array([0.0, -0.0, 0.0, 0.0], F32), scheme)
    assert np.array_equal(values, expected.values)


# Scales


@inside("L80")
@given(bits=st.integers(0, 0x7F7F_FFFF), dtype=st.sampled_from(list(ScaleDtype)[1:]), near=st.booleans())
@example(bits=0x3DCCCCCD, dtype=ScaleDtype.F16, near=False)
def test_a_stored_scale_is_the_least_value_that_is_not_below(bits, dtype, near):
    """L80, Q21: brute force over all values of the dtype, around its grid, subnormals and maximum."""
    table = oracle.values_of(dtype)
    numbers = np.array([bits], np.uint32).view(F32)
    if near:
        exact = table[bits % len(table)].astype(F32)
        numbers = np.array([np.nextafter(exact, F32(0)), exact, np.nextafter(exact, F32(np.inf))], F32)
    found = stored(np, numbers, dtype)
    assert found.tobytes() == np.array([oracle.stored(number, dtype) for number in numbers], F32).tobytes()
    assert round_up(np, found, dtype).tobytes() == found.tobytes()
    assert np.all(np.diff(round_up(np, np.sort(numbers), dtype)) >= 0)


@inside("L80")
@pytest.mark.parametrize("dtype", list(ScaleDtype)[1:])
def test_every_value_of_a_scale_dtype_is_kept_and_its_bytes_come_back(dtype):
    """L80, Q42: storing is idempotent, encodings are those of the dtype."""
    from_table = oracle.values_of(dtype).astype(F32)
    assert stored(np, from_table, dtype).tobytes() == from_table.tobytes()
    scheme = QuantScheme(QuantValue.Q8S, NATIVE, block=BlockScale((1,), dtype))
    count = len(from_table)
    width = dtype.nbytes
    codes = np.arange(0 if dtype is ScaleDtype.UE8M0 else 1, 256**width)[:count]
    data = bytes(count) + codes.astype(f"<u{width}").tobytes()
    read = Tensor.from_quantized(np.frombuffer(data, np.uint8), (count,), scheme, CPU)
    assert read._data.scales.tobytes() == from_table.tobytes()
    assert read.tobytes() == data


# What is refused


def x_of(*shape):
    return tensor(np.ones(shape, F32), device=CPU)


@inside("L82")
@pytest.mark.parametrize(
    ("scheme", "says"),
    [
        (QuantScheme(mode="Lookup"), "Lookup"),
        *(
            (QuantScheme(tensor=ScaleDtype.F32, block=BlockScale((2,), dtype)), dtype.name)
            for dtype in ScaleDtype
            if dtype not in GLOBAL
        ),
        (QuantScheme(tensor=ScaleDtype.F16, block=BlockScale((2,), ScaleDtype.UE4M3)), "global scale is in F32"),
    ],
)
def test_schemes_that_cannot_be_computed_are_refused_before_any_work(scheme, says):
    """L82, Q6, Q7."""
    with pytest.raises(DTypeError, match=says):
        quantize(x_of(4, 4), scheme)


@inside("L82")
@pytest.mark.parametrize(
    ("scheme", "shape", "says"),
    [
        (QuantScheme(block=BlockScale((4,))), (2, 6), "axis 1 .* extent 6, which a block of extent 4"),
        (QuantScheme(block=BlockScale((2, 4))), (3, 8), "axis 0 .* extent 3, which a block of extent 2"),
        (QuantScheme(block=BlockScale((4, 2))), (8,), "a block of 2 axes for a tensor of shape"),
        (QuantScheme(block=BlockScale((1,))), (), "a block of 1 axes for a tensor of shape"),
        (QuantScheme(store=QuantStore.packed_u32(2)), (2, 4), "packs axis 2 from the innermost"),
    ],
)
def test_shapes_that_a_scheme_is_not_for_are_refused(scheme, shape, says):
    """L82, Q11, Q12, Q32, Q44."""
    with pytest.raises(ShapeError, match=says):
        quantize(x_of(*shape), scheme)


@inside("L82")
@given(scheme=schemes(), data=st.data(), bad=st.sampled_from([np.nan, np.inf, -np.inf]))
def test_nan_and_infinities_are_refused_with_their_count_or_have_one_answer(scheme, data, bad):
    """L82, Q27, Q28: NaN becomes 0, or NaN of a small float (6 of E2M1); infinities the ends of the range."""
    shape = data.draw(shapes(scheme))
    x = np.ones(shape, F32)
    assume(x.size)
    at = tuple(data.draw(st.integers(0, length - 1)) for length in shape)
    x[at] = bad
    with pytest.raises(QuantizationError, match=r"1 of \d+ elements"):
        quantize(tensor(x, device=CPU), scheme)
    values, scales, _ = parts(x, scheme, allow_nonfinite=True)
    assert np.all((scales > 0) & np.isfinite(scales))
    value = scheme.value
    if np.isnan(bad):
        assert values[at] == {"E4M3": 0x7F, "E5M2": 0x7E, "E2M1": 7}.get(value.name, 0)
    else:
        end = F32(value.high if bad > 0 else value.low)
        assert values[at] == (oracle.code_of(end, value.name) if value.is_float else end)


@inside("L82")
def test_what_is_not_a_dense_float_tensor_is_refused():
    """L82, Q31; AbsMean has no form with two levels (Q15)."""
    scheme = QuantScheme()
    with pytest.raises(DTypeError, match="quantized already"):
        quantize(quantize(x_of(4), scheme), scheme)
    with pytest.raises(DTypeError, match="int64"):
        quantize(tensor([1, 2], device=CPU), scheme)
    with pytest.raises(DTypeError, match="not quantized"):
        dequantize(x_of(4))
    with pytest.raises(DTypeError, match="int32"):
        dequantize(quantize(x_of(4), scheme), "int32")
    two = QuantScheme(tensor=ScaleDtype.F32, block=BlockScale((2,), ScaleDtype.F16))
    with pytest.raises(DTypeError, match="AbsMean"):
        quantize(x_of(4), two, Calibration.ABS_MEAN)
    for size in ((), (0,), (256,), (1, 2, 3, 4, 5, 6)):
        with pytest.raises(DTypeError, match="extents"):
            BlockScale(size)


@pytest.mark.parametrize(
    ("scheme", "shape", "scales"),
    [
        (QuantScheme(), (0, 3), 1),
        (QuantScheme(tensor=ScaleDtype.UE8M0), (2, 0), 1),
        (QuantScheme(block=BlockScale((4,))), (2, 0), 0),
        (QuantScheme(tensor=ScaleDtype.F32, block=BlockScale((4,), ScaleDtype.F16)), (0, 8), 0),
    ],
)
@pytest.mark.parametrize("calibration", Calibration)
def test_what_has_no_elements_has_the_scale_of_zeros_or_none(scheme, shape, scales, calibration):
    """Q32."""
    if scheme.is_two_level and calibration is Calibration.ABS_MEAN:
        return
    made = quantize(x_of(*shape), scheme, calibration)
    zeros = quantize(tensor(np.zeros((4, 8), F32), device=CPU), scheme, calibration)
    assert made._data.scales.size == scales
    assert made._data.scales.tobytes() == zeros._data.scales.tobytes()[: 4 * scales]
    assert dequantize(made).shape == shape
    assert len(made.tobytes()) == scheme.nbytes(shape)
