"""The steps of optimizers over arrays: the formulas, written out in float64, for every dtype and order of memory."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import DeviceMismatchError, DTypeError, ShapeError, Tensor, updates, zeros
from engine.updates import adam_update, sgd_update, state_dtype, sums_of_squares

from .comparison import assert_within, exact, is_dense, same_bits
from .strategies import FLOATS, in_order, shapes, values

RATES = st.sampled_from([0.0, 0.01, 0.3])


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dozen elements are several parts."""
    monkeypatch.setattr(updates, "_PART", 5)


@st.composite
def operands(draw: st.DrawFn, kept: int, dtype: Any = None) -> list[Tensor]:
    """A value, its gradient and what is kept, each in an order of memory of its own; second moments are positive."""
    of = draw(st.sampled_from(FLOATS)) if dtype is None else dtype
    shape = draw(shapes(max_rank=3))
    made = []
    for place in range(2 + kept):
        array = values(shape, of if place < 2 else state_dtype(of), draw(st.integers(0, 2**32 - 1)))
        made.append(in_order(abs(array) if place == 3 else array, tuple(draw(st.permutations(range(len(shape)))))))
    return made


def written_out_sgd(p: Any, g: Any, v: Any, s: dict[str, Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    g = g + s["weight_decay"] * p
    v = s["momentum"] * v + g
    return p - s["lr"] * (g + s["momentum"] * v if s["nesterov"] else v), v


def written_out_adam(p: Any, g: Any, m: Any, v: Any, s: dict[str, Any]) -> tuple[NDArray[Any], ...]:
    (b1, b2), t = s["betas"], s["time"]
    if s["decoupled"]:
        p = p - s["lr"] * s["weight_decay"] * p
    else:
        g = g + s["weight_decay"] * p
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g**2
    return p - s["lr"] * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + s["epsilon"]), m, v


@given(
    operands=operands(1),
    settings=st.fixed_dictionaries(
        {"lr": RATES, "momentum": RATES, "nesterov": st.booleans(), "weight_decay": RATES},
    ),
)
def test_a_step_of_descent_is_the_formula_in_the_value_s_order_of_memory(operands, settings):
    """A half is computed in float32 and rounded once; velocities are float32 then."""
    p, g, v = operands
    expected = written_out_sgd(*map(exact, operands), settings)
    found = sgd_update(p, g, v, **settings)
    check(found, expected, p, scale=40.0)


@given(operands=operands(0), lr=RATES, weight_decay=RATES)
def test_without_momentum_nothing_is_kept(operands, lr, weight_decay):
    """p − lr · (g + decay · p)."""
    p, g = operands
    found, velocity = sgd_update(p, g, None, lr=lr, weight_decay=weight_decay)
    assert velocity is None
    check([found], [exact(p) - lr * (exact(g) + weight_decay * exact(p))], p, scale=20.0)


@given(
    operands=operands(2),
    settings=st.fixed_dictionaries(
        {
            "time": st.integers(1, 50),
            "lr": RATES,
            "betas": st.tuples(*[st.sampled_from([0.0, 0.5, 0.9, 0.999])] * 2),
            "epsilon": st.sampled_from([1e-8, 0.1]),
            "weight_decay": RATES,
            "decoupled": st.booleans(),
        },
    ),
)
def test_a_step_of_adam_is_the_formula_in_the_value_s_order_of_memory(operands, settings):
    """As for descent."""
    p = operands[0]
    expected = written_out_adam(*map(exact, operands), settings)
    found = adam_update(*operands, **settings)
    # The value goes by lr · m / √v: v is large enough here for the roundings of the quotient to be those of its size.
    size = np.abs(expected[0] - exact(p)) * 8 + 40
    check(found, expected, p, scale=size)


def check(found: Any, expected: Any, p: Tensor, scale: Any) -> None:
    """Values are right, of the right dtypes, plain, dense, and lie as the value does."""
    dtypes = [p.dtype, *[state_dtype(p.dtype)] * (len(expected) - 1)]
    for one, wanted, dtype in zip(found, expected, dtypes, strict=True):
        assert_within(one, wanted, dtype, scale=scale)
        assert not one.is_tracked
        assert is_dense(one._data)
        assert not p.size or steps(one) == steps(p)


def steps(x: Tensor) -> list[int]:
    """How many elements apart neighbours lie, along each axis that has some."""
    pairs = zip(x._data.strides, x.shape, strict=True)
    return [stride // x.dtype.itemsize for stride, extent in pairs if extent > 1]


@given(operands=operands(2, dtype=np.dtype("bfloat16")))
def test_a_half_is_rounded_once(operands):
    """The step is that of the same numbers in float32, rounded at the end."""
    p, g, m, v = operands
    settings = {"time": 3, "lr": 0.1, "betas": (0.9, 0.99), "epsilon": 1e-8, "weight_decay": 0.1}
    found = adam_update(p, g, m, v, **settings)
    wide = adam_update(p.cast("float32"), g.cast("float32"), m, v, **settings)
    assert same_bits(found[0], wide[0].cast("bfloat16"))
    assert all(same_bits(one, other) for one, other in zip(found[1:], wide[1:], strict=True))


@given(operands=operands(2))
def test_the_size_of_parts_changes_no_bit(operands):
    """Each element is computed alone."""
    settings = {"time": 3, "lr": 0.1, "betas": (0.9, 0.99), "epsilon": 1e-8}
    found = adam_update(*operands, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updates, "_PART", 10_000)
        whole = adam_update(*operands, **settings)
    assert all(same_bits(one, other) for one, other in zip(found, whole, strict=True))


def test_operands_stay_as_they_are():
    """Tensors are values."""
    operands = [in_order(values((3, 4), np.dtype("float32"), seed), (0, 1)) for seed in range(3)]
    before = [operand.tobytes() for operand in operands]
    sgd_update(*operands, lr=1.0, momentum=0.5, nesterov=True, weight_decay=0.5)
    adam_update(*operands, abs(operands[2]), time=1, lr=1.0, betas=(0.5, 0.5), epsilon=1.0, weight_decay=0.5)
    assert [operand.tobytes() for operand in operands] == before


def test_what_does_not_go_together_is_refused():
    """By what it is, what it has and what it should have."""
    p = zeros((2, 3), device="cpu:0")
    settings: dict[str, Any] = {"time": 1, "lr": 0.1, "betas": (0.9, 0.9), "epsilon": 1e-8}
    with pytest.raises(ShapeError, match=r"sgd: the gradient has shape \(3, 2\), the parameter \(2, 3\)"):
        sgd_update(p, p.T, None, lr=0.1)
    with pytest.raises(DTypeError, match="adam: the state is float64; beside a parameter of float32 it is float32"):
        adam_update(p, p, p, p.cast("float64"), **settings)
    with pytest.raises(DTypeError, match="the gradient is float16"):
        sgd_update(p, p.cast("float16"), None, lr=0.1)
    with pytest.raises(DTypeError, match="takes floats"):
        sgd_update(p.cast("int64"), p.cast("int64"), None, lr=0.1)
    with pytest.raises(DeviceMismatchError, match="operand 0 is on cpu:0, operand 1 on cpu:1"):
        sgd_update(p, p.to_device("cpu:1"), None, lr=0.1)


@given(tensors=st.lists(operands(0).map(lambda pair: pair[0]), max_size=4), data=st.data())
def test_squares_are_summed_in_float64_wherever_the_tensors_lie(tensors, data):
    """Halves do not overflow, and a copy of a tensor has the same sum, bit for bit."""
    expected = [float((exact(x) ** 2).sum()) for x in tensors]
    found = sums_of_squares(tensors)
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    moved = [x.to_device(data.draw(st.sampled_from(["cpu:0", "cpu:1", "cpu:2"]))) for x in tensors]
    assert sums_of_squares(moved) == found
