"""Tensors made from nothing but a shape and numbers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import DTypeError, ShapeError, arange, full, ones, zeros
from tests.engine.comparison import assert_within, exact
from tests.engine.strategies import DTYPES, FLOATS, INTS, dtypes, shapes

CPU = "cpu:0"


@given(shape=shapes(), dtype=dtypes())
def test_zeros_and_ones(shape, dtype):
    for make, number in ((zeros, 0), (ones, 1)):
        x = make(shape, device="cpu:2", dtype=dtype)
        assert (x.shape, x.dtype, str(x.device)) == (shape, dtype, "cpu:2")
        assert (exact(x) == number).all()
        assert make(list(shape), device=CPU).dtype == np.float32


@given(shape=shapes(), value=st.one_of(st.integers(-(2**64), 2**65), st.floats()), dtype=dtypes())
def test_full_holds_one_number_or_refuses_what_the_dtype_cannot_hold(shape, value, dtype):
    holds = dtype in FLOATS or (
        math.isfinite(value)
        and value == int(value)
        and (value in (0, 1) if dtype not in INTS else np.iinfo(dtype).min <= value <= np.iinfo(dtype).max)
    )
    with np.errstate(over="ignore"):
        if holds:
            x = full(shape, value, device=CPU, dtype=dtype)
            assert (x.shape, x.dtype) == (shape, dtype)
            number = dtype.type(float(value) if dtype in FLOATS else int(value))
            np.testing.assert_array_equal(exact(x), np.full(shape, number).astype("float64"))
        else:
            with pytest.raises(DTypeError, match="full: "):
                full(shape, value, device=CPU, dtype=dtype)


@given(start=st.integers(-20, 20), stop=st.integers(-20, 20), step=st.integers(-5, 5).filter(bool), dtype=dtypes())
def test_arange_is_range(start, stop, step, dtype):
    expected = list(range(start, stop, step))
    if dtype == np.bool_ or (dtype in INTS and dtype.kind == "u" and expected and min(expected) < 0):
        with pytest.raises(DTypeError, match="arange: "):
            arange(start, stop, step, device=CPU, dtype=dtype)
        return
    x = arange(start, stop, step, device=CPU, dtype=dtype)
    assert x.dtype == dtype
    assert exact(x).tolist() == expected


def test_arange_counts_from_zero_and_its_default_is_int64():
    x = arange(3, device=CPU)
    assert (x.dtype, x.numpy().tolist()) == (np.dtype("int64"), [0, 1, 2])
    assert arange(0, device=CPU).shape == (0,)
    assert arange(2**62, 2**62 + 2, device=CPU).numpy().tolist() == [2**62, 2**62 + 1]
    assert_within(arange(0, 1, 0.25, device=CPU, dtype="float32"), [0, 0.25, 0.5, 0.75], np.dtype("float32"), ulps=0)


def test_arange_refuses_what_it_cannot_count():
    for arguments, error in (
        (((0, 3, 0), {}), ShapeError),
        (((0, math.inf), {}), ShapeError),
        (((math.nan,), {}), ShapeError),
        (((0, 1, 0.25), {}), DTypeError),
        (((0.5, 3), {}), DTypeError),
        (((300,), {"dtype": "uint8"}), DTypeError),
        (((2**63 - 2, 2**63 + 2), {}), DTypeError),
        (((2,), {"dtype": "bool"}), DTypeError),
    ):
        with pytest.raises(error, match="arange: "):
            arange(*arguments[0], device=CPU, **arguments[1])


@pytest.mark.parametrize("shape", [3, (-1,), (2, -3), (1.5,), "ab", None, ((1,),)], ids=repr)
def test_what_is_no_shape_is_refused(shape):
    makers = {"zeros": zeros, "ones": ones, "full": lambda shape, device: full(shape, 1, device=device)}
    for name, make in makers.items():
        with pytest.raises(ShapeError, match=f"^{name}: .*shape"):
            make(shape, device=CPU)


def test_numpy_integers_are_extents():
    assert zeros((np.int64(2), np.uint8(3)), device=CPU).shape == (2, 3)
    assert {type(extent) for extent in zeros((np.int64(2),), device=CPU).shape} == {int}
    assert len(DTYPES) == len(set(DTYPES))
