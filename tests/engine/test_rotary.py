"""Rotary positions against rotations of complex numbers."""

import cmath
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import DTypeError, ShapeError, ops, rotary_tables, tensor, zeros
from tests.engine.comparison import assert_within, exact, same_bits
from tests.engine.strategies import FLOATS, HALVES, dtypes, tensors

CPU = "cpu:0"


def turned(x: Any, positions: Any, base: float, interleaved: bool) -> Any:
    """Each pair of features of `x` [..., d] as a complex number times e^(i · position · base^(−2i/d))."""
    result, d = np.empty(x.shape), x.shape[-1]
    for at in np.ndindex(x.shape[:-1]):
        for i in range(d // 2):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + d // 2)
            z = complex(x[at][a], x[at][b]) * cmath.exp(1j * float(positions[at]) * base ** (-2 * i / d))
            result[at][a], result[at][b] = z.real, z.imag
    return result


@st.composite
def queries(draw: st.DrawFn) -> Any:
    shape = (*draw(st.lists(st.integers(0, 3), max_size=2)), draw(st.integers(0, 4)), 2 * draw(st.integers(0, 3)))
    return draw(tensors(dtype=dtypes(*FLOATS), shape=st.just(shape)))


@given(
    x=queries(),
    offset=st.integers(0, 6),
    base=st.sampled_from([10000.0, 100000.0, 2.0]),
    interleaved=st.booleans(),
    data=st.data(),
)
def test_each_pair_is_turned_by_the_angle_of_its_position(x, offset, base, interleaved, data):
    time = x.shape[-2]
    table_dtype = "float32" if x.dtype in HALVES else x.dtype
    cos, sin = rotary_tables(offset + time + 2, x.shape[-1], base=base, device=CPU, dtype=table_dtype)
    positions = np.broadcast_to(np.arange(offset, offset + time), x.shape[:-1])
    scale = np.abs(exact(x)).max(initial=0)
    expected = turned(exact(x), positions, base, interleaved)
    result = ops.rope(x, cos, sin, offset=offset, interleaved=interleaved)
    assert_within(result, expected, x.dtype, ulps=2, scale=scale)
    as_tensor = tensor(np.arange(offset, offset + time), device=CPU)
    assert same_bits(ops.rope(x, cos, sin, positions=as_tensor, interleaved=interleaved), result)
    chosen = data.draw(st.lists(st.integers(0, offset + time + 1), min_size=time, max_size=time))
    some = ops.rope(x, cos, sin, positions=tensor(np.array(chosen, "int32"), device=CPU), interleaved=interleaved)
    expected = turned(exact(x), np.broadcast_to(np.array(chosen), x.shape[:-1]), base, interleaved)
    assert_within(some, expected, x.dtype, ulps=2, scale=scale)


def test_positions_may_differ_in_a_batch():
    x = tensor(np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype("float32"), device=CPU)
    cos, sin = rotary_tables(9, 6, device=CPU)
    positions = tensor([[[0, 1, 2, 3]], [[5, 6, 7, 8]]], device=CPU)
    result = ops.rope(x, cos, sin, positions=positions)
    assert same_bits(result[0], ops.rope(x[0], cos, sin))
    assert same_bits(result[1], ops.rope(x[1], cos, sin, offset=5))


def test_the_two_conventions_are_one_after_reordering_the_features():
    """2i and 2i + 1 brought to i and i + d/2 (GGUF against transformers); they round at different places."""
    x = tensor(np.random.default_rng(1).standard_normal((3, 5, 8)).astype("float32"), device=CPU)
    order = tensor([0, 2, 4, 6, 1, 3, 5, 7], device=CPU)
    cos, sin = rotary_tables(5, 8, device=CPU)
    halves = ops.rope(ops.take(x, order, -1), cos, sin)
    pairs = ops.take(ops.rope(x, cos, sin, interleaved=True), order, -1)
    assert_within(pairs, exact(halves), x.dtype, ulps=1, scale=np.abs(exact(x)).max())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_tables_are_computed_in_float64_and_rounded_once(dtype):
    cos, sin = rotary_tables(5000, 16, base=500000.0, device=CPU, dtype=dtype)
    angles = np.array([[p * 500000.0 ** (-i / 8) for i in range(8)] for p in range(5000)])
    assert_within(cos, np.cos(angles), dtype, ulps=0.51, tiny=1e-12)
    assert_within(sin, np.sin(angles), dtype, ulps=0.51, tiny=1e-12)


def test_what_does_not_go_together_is_refused():
    x, (cos, sin) = zeros((2, 3, 6), device=CPU), rotary_tables(4, 6, device=CPU)
    for call, message in (
        (lambda: ops.rope(x, cos, sin, offset=2), "rope: positions 2 to 4 are not all in tables of length 4"),
        (lambda: ops.rope(x, cos, sin, offset=-1), "rope: positions -1 to 1"),
        (lambda: ops.rope(x, cos, sin[:3]), "rope: cos has shape"),
        (lambda: ops.rope(x, cos[0], sin[0]), "rope: cos has shape"),
        (lambda: ops.rope(zeros((3, 5), device=CPU), cos, sin), "rope: x"),
        (lambda: ops.rope(zeros((6,), device=CPU), cos, sin), "rope: x"),
        (lambda: ops.rope(x, cos, sin, positions=tensor([0, 1], device=CPU)), "rope: positions"),
        (lambda: ops.rope(x, cos, sin, positions=zeros((5, 2, 3), device=CPU, dtype="int64")), "rope: positions"),
        (lambda: rotary_tables(4, 5, device=CPU), "rotary_tables: d is 5"),
        (lambda: rotary_tables(-4, 6, device=CPU), "rotary_tables: shape"),
    ):
        with pytest.raises(ShapeError, match=message):
            call()
    with pytest.raises(IndexError, match="rope: position 4 is out of range for tables of length 4"):
        ops.rope(x, cos, sin, positions=tensor([0, 4, 1], device=CPU))
    with pytest.raises(DTypeError, match="must be of integers"):
        ops.rope(x, cos, sin, positions=zeros((3,), device=CPU))
    for wrong in (x.cast("float64"), x.cast("int64")):
        with pytest.raises(DTypeError, match="rope: "):
            ops.rope(wrong, cos, sin)
    with pytest.raises(DTypeError, match="rope: "):
        ops.rope(x, cos, sin.cast("float64"))
    with pytest.raises(DTypeError, match="rope: "):
        ops.rope(x.cast("float16"), cos.cast("float64"), sin.cast("float64"))
    with pytest.raises(DTypeError, match="rotary_tables: takes a float dtype"):
        rotary_tables(4, 6, device=CPU, dtype="int64")
