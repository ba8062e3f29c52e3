"""Laws of quantization that look inside (L72, L80, L82), against scalar float32 steps (see `quantization_oracle`).

What can be said of any implementation is in `tests/laws/test_quantization.py`.
"""

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

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
from tests.engine.quantization_strategies import cases, schemes, shapes
from tests.laws.law import inside

CPU = "cpu:0"
F32 = np.float32
NATIVE = QuantStore.native()
INTEGERS = [value for value in QuantValue if not value.is_float]
GLOBAL = (ScaleDtype.F16, ScaleDtype.UE4M3)  # dtypes of blocks beside a global scale


def parts(x, scheme, calibration=Calibration.MIN_MAX, **options):
    """Values, scales and the global scale of what the engine makes of an array."""
    data = quantize(tensor(x, device=CPU), scheme, calibration, **options)._data
    return data.values, data.scales, None if data.factor is None else data.factor[0]


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
        assert values[at] == oracle.NAN.get(value.name, 0)
    else:
        end = F32(value.high if bad > 0 else value.low)
        assert values[at] == (oracle.code_of(end, value.name) if value.is_float else end)


@given(value=st.sampled_from(QuantValue), scale=st.sampled_from(ScaleDtype), seed=st.integers(0, 99), data=st.data())
def test_a_magnitude_above_half_of_the_largest_float_counts_as_infinite(value, scale, seed, data):
    """Q28, Q22: its tensor has the scale of one with an infinity, though nothing is refused; below, it has its own."""
    limit = np.finfo(F32).max / F32(2)
    scheme = QuantScheme(value, QuantStore.native(), tensor=scale)
    sign = F32(data.draw(st.sampled_from([-1, 1])))
    x = np.random.default_rng(seed).standard_normal(6).astype(F32)
    above, infinite, below = x.copy(), x.copy(), x.copy()
    above[2], infinite[2], below[2] = sign * np.nextafter(limit, F32(np.inf)), sign * F32(np.inf), sign * limit
    scales = parts(infinite, scheme, allow_nonfinite=True)[1]
    for allow_nonfinite in (False, True):
        assert parts(above, scheme, allow_nonfinite=allow_nonfinite)[1].tobytes() == scales.tobytes()
    if scale is ScaleDtype.F32:
        assert parts(above, scheme)[1].item() == np.finfo(F32).smallest_normal
        assert parts(below, scheme)[1].item() > 1e33


PARTS = [
    (lambda: QuantScheme("Q8S"), r"^QuantScheme: value is 'Q8S'; it must be a QuantValue \(Q8F, .*, E2M1\)$"),
    (lambda: QuantScheme(store="native"), "^QuantScheme: store is 'native'; it must be a QuantStore$"),
    (lambda: QuantScheme(mode=["Symmetric"]), r"\['Symmetric'\] is no mode; there are"),
    (lambda: QuantScheme(mode=np.array([1, 2])), "is no mode; there are"),
    (lambda: QuantScheme(tensor="f32"), r"^QuantScheme: tensor is 'f32'; it must be a ScaleDtype \(F32, .*, UE8M0\)$"),
    (lambda: QuantScheme(block=(8,)), r"^QuantScheme: block is \(8,\); it must be a BlockScale$"),
    (lambda: BlockScale((8,), "float32"), "^BlockScale: dtype is 'float32'; it must be a ScaleDtype"),
    (lambda: BlockScale(8), "^BlockScale: size is 8; it must be a tuple of integers"),
    (lambda: BlockScale("8"), "^BlockScale: size is '8'; it must be a tuple"),
    (lambda: BlockScale({8, 4}), "; it must be a tuple"),  # in no order
    (lambda: BlockScale((8.0,)), r"^BlockScale: size is \(8.0,\); it must be a tuple of integers"),
    (lambda: BlockScale((True,)), r"^BlockScale: size is \(True,\); it must be a tuple of integers"),
    (lambda: QuantStore("PackedU32", 1.5), "^QuantStore: axis is 1.5; it must be an integer"),
    (lambda: QuantStore("PackedU32", True), "^QuantStore: axis is True; it must be an integer"),
    (lambda: QuantStore(["Native"]), r"^QuantStore: \['Native'\] is no store"),
    (lambda: quantize(x_of(4), "q8"), "^quantize: scheme is 'q8'; it must be a QuantScheme$"),
]


@inside("L82")
@pytest.mark.parametrize(("made", "says"), PARTS)
def test_what_is_no_scheme_or_no_part_of_one_is_refused_where_it_is_given(made, says):
    """L82, Q1: not later, where it is used."""
    with pytest.raises(DTypeError, match=says):
        made()


def test_integers_of_numpy_are_taken_in_a_scheme_as_those_of_python():
    """Q1: a scheme is compared by its parts, hashed and printed as if they had been Python's."""
    plain = QuantScheme(store=QuantStore.packed_u32(1), block=BlockScale((4, 8)))
    of_numpy = QuantScheme(store=QuantStore("PackedU32", np.int64(1)), block=BlockScale([np.uint8(4), np.int64(8)]))
    assert (of_numpy, hash(of_numpy), repr(of_numpy)) == (plain, hash(plain), repr(plain))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"calibration": "MinMax"},
            r"^quantize: calibration is 'MinMax'; it must be a Calibration \(MIN_MAX, ABS_MEAN\)",
        ),
        ({"allow_nonfinite": "yes"}, "^quantize: allow_nonfinite is 'yes'; it must be True or False"),
    ],
)
def test_settings_of_another_type_are_refused_by_name(settings, says):
    """Q15, Q28."""
    with pytest.raises(TypeError, match=says):
        quantize(x_of(4), QuantScheme(), **settings)


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
