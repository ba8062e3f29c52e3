"""Casts against exact arithmetic of rational numbers."""

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine import DTypeError, Tensor, ops, tensor
from tests.engine.comparison import same_bits
from tests.engine.strategies import BOOL, DTYPES, FLOATS, INTS, tensors

NUMBERS = st.one_of(
    st.floats(),
    st.integers(-(2**70), 2**70).map(float),
    st.sampled_from(
        [65504.0, 65519.99, 65520.0, 3.3895313892515355e38, 3.4e38, 1e-45, 2.0**-149, 2.0**-150, 6e-8, -0.0]
    ),
    st.builds(
        lambda m, e, d: (1 + m / 2**11 + d) * 2.0**e,
        st.integers(0, 2047),
        st.integers(-30, 30),
        st.sampled_from([0.0, 2.0**-40, -(2.0**-40)]),
    ),
)


def nearest(x: float, dtype: Any) -> float:
    """x rounded to a float dtype, ties to even, by rational arithmetic."""
    if math.isnan(x) or math.isinf(x) or x == 0:
        return x
    info = ml_dtypes.finfo(dtype)
    size = abs(Fraction(x))
    exponent = max(math.frexp(x)[1] - 1, int(info.minexp))
    unit = Fraction(2) ** (exponent - int(info.nmant))
    steps = size / unit
    whole = math.floor(steps)
    rest = steps - whole
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2):
        whole += 1
    rounded = whole * unit
    beyond = Fraction(float(info.max)) + Fraction(2) ** (int(info.maxexp) - 1 - int(info.nmant))
    value = math.inf if rounded >= beyond else float(rounded)
    return math.copysign(value, x)


@pytest.mark.parametrize("target", FLOATS, ids=str)
@given(x=NUMBERS)
@example(x=1 + 2.0**-8 + 2.0**-40)  # just over a tie of bfloat16: by way of float32 it would be the tie itself
@example(x=1 + 3 * 2.0**-8 - 2.0**-40)
@example(x=1 + 2.0**-11 + 2.0**-40)  # and of float16
def test_floats_round_once_to_nearest_even_and_overflow_to_infinity(target, x):
    source = tensor([x], device="cpu:0", dtype="float64")
    result = float(source.cast(target))
    expected = nearest(x, target)
    assert result == expected or (math.isnan(result) and math.isnan(expected))
    assert math.copysign(1, result) == math.copysign(1, expected) or math.isnan(x)


@pytest.mark.parametrize("target", INTS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
@given(numbers=st.lists(NUMBERS, max_size=5))
def test_floats_become_integers_towards_zero_into_the_limits_and_nan_becomes_zero(source, target, numbers):
    x = tensor(np.array(numbers, dtype="float64"), device="cpu:0").cast(source)
    limits = np.iinfo(target)
    for number, result in zip(x.numpy().astype("float64"), x.cast(target).numpy(), strict=True):
        if math.isnan(number):
            expected = 0
        elif math.isinf(number):
            expected = limits.max if number > 0 else limits.min
        else:
            expected = min(max(math.trunc(number), limits.min), limits.max)
        assert int(result) == expected


@pytest.mark.parametrize("target", INTS, ids=str)
@given(x=tensors(dtype=st.sampled_from([*INTS, BOOL])))
def test_integers_become_integers_by_their_low_bits(target, x):
    bits, low = 8 * target.itemsize, int(np.iinfo(target).min)
    expected = [(int(v) - low) % 2**bits + low for v in x.numpy().flat]
    assert [int(v) for v in x.cast(target).numpy().flat] == expected


@pytest.mark.parametrize("target", FLOATS, ids=str)
@given(
    number=st.one_of(
        st.integers(-(2**53), 2**53), st.builds(lambda m, e: m << e, st.integers(-4096, 4096), st.integers(0, 40))
    )
)
def test_integers_become_floats_rounded_once(target, number):
    x = tensor([number], device="cpu:0")
    assert float(x.cast(target)) == nearest(float(number), target)


@given(x=tensors(special=True))
def test_to_bool_is_whether_it_is_not_zero_and_from_bool_is_zero_or_one(x):
    truth = x.cast("bool")
    assert truth.numpy().ravel().tolist() == [bool(float(v) != 0) for v in x.numpy().flat]
    for dtype in DTYPES:
        assert truth.cast(dtype).numpy().astype("float64").ravel().tolist() == truth.numpy().ravel().tolist()


@given(x=tensors(special=True))
def test_a_cast_to_its_own_dtype_gives_the_tensor(x):
    assert x.cast(x.dtype) is x
    assert ops.cast(x, str(x.dtype)) is x


@given(x=tensors(dtype=st.sampled_from(FLOATS), special=True))
def test_casting_to_a_wider_dtype_and_back_gives_the_same_bits_but_for_nan(x):
    back = x.cast("float64").cast(x.dtype)
    assert same_bits(ops.where(x == x, back, 0), ops.where(x == x, x, 0))


@pytest.mark.parametrize("dtype", [None, "complex64", "float8_e4m3fn", "U3", "datetime64[s]", object, "nonsense"])
def test_a_dtype_that_no_tensor_has_is_refused(dtype):
    with pytest.raises(DTypeError, match="dtype"):
        tensor([1.0], device="cpu:0").cast(dtype)


def test_a_cast_takes_a_tensor():
    with pytest.raises(TypeError, match="cast"):
        ops.cast(np.zeros(2), "float32")
    assert isinstance(ops.cast(tensor(1.0, device="cpu:0"), "int8"), Tensor)
