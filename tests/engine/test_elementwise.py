"""Arithmetic, comparison, logic and elementary functions against NumPy in float64, or against exact integers."""

import math
import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine import DTypeError, ShapeError, Tensor, ops, tensor
from tests.engine.comparison import assert_within, exact, same_bits
from tests.engine.strategies import BFLOAT16, BOOL, DTYPES, FLOATS, INTS, arrays, dtypes, in_order, tensors, values

CPU = "cpu:0"

ARITHMETIC = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
}
COMPARISONS = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
FUNCTIONS = ("exp", "log", "sqrt", "sin", "cos", "tanh", "reciprocal")


@st.composite
def two_that_broadcast(draw: st.DrawFn, dtype: Any) -> tuple[Tensor, Tensor]:
    """Tensors of one dtype whose shapes broadcast, with special values among floats."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    of = draw(dtype)
    pair = []
    for _ in range(2):
        kept = shape[draw(st.integers(0, len(shape))) :]
        mine = tuple(1 if draw(st.booleans()) else extent for extent in kept)
        array = values(mine, of, draw(st.integers(0, 2**32 - 1)), special=True)
        pair.append(in_order(array, tuple(draw(st.permutations(range(array.ndim))))))
    return pair[0], pair[1]


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
@given(data=st.data())
def test_arithmetic_of_floats_is_that_of_real_numbers_rounded(name, data):
    a, b = data.draw(two_that_broadcast(dtypes(*FLOATS)))
    with np.errstate(all="ignore"):
        assert_within(getattr(ops, name)(a, b), ARITHMETIC[name](exact(a), exact(b)), a.dtype, ulps=0.51)


@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
@given(data=st.data())
def test_floor_division_of_floats_is_exact_where_they_are_whole(name, data):
    a, b = data.draw(two_that_broadcast(dtypes(*INTS)))
    dtype = data.draw(dtypes(*FLOATS))
    a, b = a.cast(dtype), b.cast(dtype)
    with np.errstate(all="ignore"):
        assert_within(getattr(ops, name)(a, b), ARITHMETIC[name](exact(a), exact(b)), dtype, ulps=0)


@pytest.mark.parametrize("name", [name for name in ARITHMETIC if name != "divide"])
@given(data=st.data())
def test_arithmetic_of_integers_is_exact_and_wraps_around(name, data):
    a, b = data.draw(two_that_broadcast(dtypes(*INTS)))
    assume(name not in ("floor_divide", "remainder") or not (exact(b) == 0).any())
    a, b = ops.multiply(a, 13), b
    result = getattr(ops, name)(a, b)
    wide_a, wide_b = np.broadcast_arrays(a.numpy().astype(object), b.numpy().astype(object))
    bits, low = 8 * a.dtype.itemsize, np.iinfo(a.dtype).min
    expected = [
        (ARITHMETIC[name](x, y) - int(low)) % 2**bits + int(low) for x, y in zip(wide_a.flat, wide_b.flat, strict=True)
    ]
    assert result.dtype == a.dtype
    assert result.shape == wide_a.shape
    assert [int(x) for x in result.numpy().flat] == expected


@pytest.mark.parametrize("name", COMPARISONS)
@given(data=st.data())
def test_comparisons_give_bool_and_nan_equals_nothing(name, data):
    a, b = data.draw(two_that_broadcast(dtypes()))
    result = getattr(ops, name)(a, b)
    assert result.dtype == BOOL
    np.testing.assert_array_equal(result.numpy(), COMPARISONS[name](exact(a), exact(b)))
    operator_result = COMPARISONS[name](a, b)
    assert same_bits(operator_result, result)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
@given(data=st.data())
def test_maximum_and_minimum_let_nan_through(name, data):
    a, b = data.draw(two_that_broadcast(dtypes()))
    result = getattr(ops, name)(a, b)
    wide_a, wide_b = np.broadcast_arrays(exact(a), exact(b))
    choose = max if name == "maximum" else min
    expected = [
        math.nan if math.isnan(x) or math.isnan(y) else choose(x, y)
        for x, y in zip(wide_a.flat, wide_b.flat, strict=True)
    ]
    assert result.dtype == a.dtype
    np.testing.assert_array_equal(exact(result).ravel(), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
@given(x=tensors(dtype=dtypes(*FLOATS), special=True))
def test_elementary_functions_are_those_of_float64_rounded(name, x):
    with np.errstate(all="ignore"):
        result = getattr(ops, name)(x)
        expected = 1 / exact(x) if name == "reciprocal" else getattr(np, name)(exact(x))
    assert_within(result, expected, x.dtype, ulps=2, scale=1e-3 if name in ("sin", "cos") else 0)


@given(x=tensors(dtype=dtypes(*FLOATS), special=True))
def test_square_rsqrt_absolute_negative(x):
    with np.errstate(all="ignore"):
        assert_within(ops.square(x), exact(x) ** 2, x.dtype)
        assert_within(ops.rsqrt(x), 1 / np.sqrt(exact(x)), x.dtype, ulps=2)
    assert_within(ops.absolute(x), np.abs(exact(x)), x.dtype, ulps=0)
    assert_within(ops.negative(x), -exact(x), x.dtype, ulps=0)
    assert same_bits(-x, ops.negative(x))
    assert same_bits(abs(x), ops.absolute(x))


@given(data=st.data(), exponent=st.integers(0, 5))
def test_powers(data, exponent):
    x = data.draw(tensors(dtype=dtypes(*FLOATS)))
    positive = ops.absolute(x) + 0.5
    with np.errstate(over="ignore"):
        assert_within(x**exponent, exact(x) ** exponent, x.dtype, ulps=2)
        assert_within(positive**positive, exact(positive) ** exact(positive), x.dtype, ulps=3)
    whole = data.draw(tensors(dtype=dtypes(*INTS)))
    bits = 8 * whole.dtype.itemsize
    expected = [pow(int(v), exponent) % 2**bits for v in whole.numpy().flat]
    assert [int(v) % 2**bits for v in (whole**exponent).numpy().flat] == expected


def test_a_negative_power_of_an_integer_is_refused():
    x = tensor([1, 2], device=CPU)
    for exponent in (-1, tensor([2, -1], device=CPU)):
        with pytest.raises(DTypeError, match="power: a negative exponent"):
            x**exponent


@given(x=tensors(dtype=dtypes(*FLOATS, *INTS), special=True), low=st.integers(0, 5), high=st.integers(0, 5))
def test_clip_moves_into_the_bounds_and_keeps_nan(x, low, high):
    for bounds in ((low, high), (low, None), (None, high), (None, None)):
        expected = exact(x)
        if bounds[0] is not None:
            expected = np.where(expected < low, low, expected)
        if bounds[1] is not None:
            expected = np.where(expected > high, high, expected)
        result = ops.clip(x, *bounds)
        assert result.dtype == x.dtype
        np.testing.assert_array_equal(exact(result), expected)


@given(a=arrays(dtype=BOOL, shape=st.just((2, 3))), b=arrays(dtype=BOOL, shape=st.just((2, 3))))
def test_logic(a, b):
    x, y = tensor(a, device=CPU), tensor(b, device=CPU)
    pairs = list(zip(a.flat, b.flat, strict=True))
    assert (x & y).numpy().ravel().tolist() == [bool(p and q) for p, q in pairs]
    assert (x | y).numpy().ravel().tolist() == [bool(p or q) for p, q in pairs]
    assert (~x).numpy().ravel().tolist() == [not p for p, _ in pairs]
    assert same_bits(True & x, x)
    assert same_bits(x | False, x)


@given(data=st.data())
def test_where_chooses_and_broadcasts(data):
    a, b = data.draw(two_that_broadcast(dtypes()))
    shape = np.broadcast_shapes(a.shape, b.shape)
    condition = data.draw(tensors(dtype=BOOL, shape=st.just(shape[-1:])))
    chosen = ops.where(condition, a, b)
    assert chosen.dtype == a.dtype
    np.testing.assert_array_equal(exact(chosen), np.where(condition.numpy(), exact(a), exact(b)))


def test_where_takes_a_scalar_for_one_choice_only():
    mask, x = tensor([True, False], device=CPU), tensor([1.5, 2.5], device=CPU)
    assert ops.where(mask, -math.inf, x).numpy().tolist() == [-math.inf, 2.5]
    assert ops.where(mask, x, 0).numpy().tolist() == [1.5, 0.0]
    assert ops.where(mask, x, 0).dtype == x.dtype
    with pytest.raises(TypeError, match="where"):
        ops.where(mask, 1.0, 2.0)
    with pytest.raises(DTypeError, match="where"):
        ops.where(x, x, x)


class TestScalars:
    """DESIGN, principle 5: a Python or NumPy scalar takes the tensor's dtype, or is refused."""

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize(
        "scalar", [2, 2.0, True, np.float64(2), np.int8(2), np.bool_(True), BFLOAT16.type(2)], ids=repr
    )
    def test_a_scalar_takes_the_dtype_of_the_tensor_or_is_refused(self, dtype, scalar):
        x = tensor([1, 0], device=CPU).cast(dtype)
        is_bool, is_int = isinstance(scalar, (bool, np.bool_)), isinstance(scalar, (int, np.integer))
        if dtype in FLOATS or is_bool or (is_int and dtype in INTS):
            assert ops.maximum(x, scalar).dtype == dtype
            assert ops.maximum(scalar, x).dtype == dtype
            assert (
                ops.equal(
                    ops.maximum(scalar, x), float(scalar) if dtype in FLOATS else int(scalar) if dtype in INTS else True
                )
                .numpy()
                .all()
            )
        else:
            with pytest.raises(DTypeError, match="maximum: scalar"):
                ops.maximum(x, scalar)

    def test_arithmetic_with_a_scalar_keeps_the_dtype_from_both_sides(self):
        for dtype in FLOATS:
            x = tensor([1.0, 2.0], device=CPU, dtype=dtype)
            for result in (
                x + 1,
                1 + x,
                x - 1,
                1 - x,
                x * 2,
                2 * x,
                x / 2,
                2 / x,
                x // 2,
                2 // x,
                x % 2,
                2 % x,
                x**2,
                2**x,
            ):
                assert result.dtype == dtype
            assert (1 - x).numpy().tolist() == [0, -1]
            assert (2 / x).numpy().tolist() == [2, 1]
            assert (np.float32(2) - x).numpy().tolist() == [1, 0]

    @pytest.mark.parametrize(
        ("dtype", "value"),
        [("int8", 128), ("uint8", -1), ("uint8", np.int64(300)), ("int64", 2**63), ("float32", 10**400)],
    )
    def test_a_number_that_does_not_fit_is_refused(self, dtype, value):
        with pytest.raises(DTypeError, match="does not fit"):
            tensor([1], device=CPU).cast(dtype) + value

    @pytest.mark.parametrize(
        "other",
        [
            "2",
            None,
            1j,
            [1.0],
            (1.0,),
            np.zeros(2),
            np.zeros(()),
            np.str_("2"),
            np.datetime64(1, "ns"),
            np.timedelta64(1, "ns"),
            np.complex64(1),
            np.longdouble(1),
            object(),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_is_no_scalar_is_a_type_error_from_both_sides(self, other):
        x = tensor([1.0, 2.0], device=CPU)
        for call in (
            lambda: x + other,
            lambda: other + x,
            lambda: x * other,
            lambda: x == other,
            lambda: ops.maximum(other, x),
        ):
            with pytest.raises(TypeError, match=r"tensor\(…, device=…\)"):
                call()

    def test_no_tensor_at_all(self):
        with pytest.raises(TypeError, match="add"):
            ops.add(1.0, 2.0)


def test_quotients_of_integers_are_refused_and_the_message_says_what_to_do():
    with pytest.raises(DTypeError, match="//"):
        tensor([1, 2], device=CPU) / tensor([1, 2], device=CPU)


def test_booleans_have_no_arithmetic():
    x = tensor([True], device=CPU)
    for call in (
        lambda: x + x,
        lambda: x * True,
        lambda: -x,
        lambda: ops.square(x),
        lambda: ops.relu(x),
        lambda: ops.clip(x, 0, 1),
    ):
        with pytest.raises(DTypeError):
            call()


def test_shapes_that_do_not_broadcast_are_named():
    with pytest.raises(ShapeError, match=r"add: shapes \(2,\), \(3,\)"):
        ops.add(tensor([1.0, 2.0], device=CPU), tensor([1.0, 2.0, 3.0], device=CPU))
