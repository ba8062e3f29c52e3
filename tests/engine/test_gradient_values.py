"""Gradients at particular places: on kinks and ties, far out, at infinities; and what a recorded operation keeps."""

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Tensor, ops, tensor
from tests.engine.comparison import eps, exact
from tests.engine.differentiable_inputs import plain

INF, NAN = math.inf, math.nan


def gradients(call: Callable[..., Tensor], *operands: Any, dtype: Any = "float64", cotangent: Any = None) -> list[Any]:
    """The gradients by all operands of a result's sum (or with a cotangent), as lists of Python numbers."""
    leaves = [tensor(operand, device="cpu:0+autodiff", dtype=dtype).require_grad() for operand in operands]
    y = call(*leaves)
    w = np.ones(y.shape) if cotangent is None else np.asarray(cotangent)
    found = y.backward(Tensor.from_numpy(w.astype(y.dtype), "cpu:0"))
    parts = [leaf.grad(found) for leaf in leaves]
    return [None if part is None else exact(part).tolist() for part in parts]


ON_KINKS: Final[list[tuple[str, Callable[..., Tensor], Sequence[Any], Sequence[Any]]]] = [
    ("relu", ops.relu, ([-1.0, -0.0, 0.0, 2.0, NAN],), ([0, 0, 0, 1, 1],)),
    ("absolute", ops.absolute, ([-1.0, -0.0, 0.0, 2.0],), ([-1, 0, 0, 1],)),
    ("maximum", ops.maximum, ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]), ([0, 0.5, 1], [1, 0.5, 0])),
    ("minimum", ops.minimum, ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]), ([1, 0.5, 0], [0, 0.5, 1])),
    ("maximum of itself", lambda x: ops.maximum(x, x), ([2.0],), ([1],)),
    ("maximum of a scalar", lambda x: ops.maximum(x, 2.0), ([1.0, 2.0, 3.0],), ([0, 0.5, 1],)),
    ("clip", lambda x: ops.clip(x, 0.0, 1.0), ([-1.0, 0.0, 0.5, 1.0, 2.0],), ([0, 1, 1, 1, 0],)),
    ("clip from below", lambda x: ops.clip(x, 0.0), ([-1.0, 0.0, INF],), ([0, 1, 1],)),
    ("clip of crossed bounds", lambda x: ops.clip(x, 1.0, 0.0), ([-1.0, 0.5, 2.0],), ([0, 0, 0],)),
    ("sqrt", ops.sqrt, ([0.0, 4.0],), ([INF, 0.25],)),
    ("rsqrt", ops.rsqrt, ([0.0, 4.0],), ([-INF, -0.0625],)),
    ("log", ops.log, ([0.0, 4.0],), ([INF, 0.25],)),
    ("power 0", lambda x: ops.power(x, 0), ([0.0, -3.0],), ([0, 0],)),
    ("power 1", lambda x: ops.power(x, 1), ([0.0, -3.0],), ([1, 1],)),
    ("power 2", lambda x: ops.power(x, 2), ([0.0, -3.0],), ([0, -6],)),
    ("power", ops.power, ([0.0, 0.0], [2.0, 0.0]), ([0, 0], [0, 0])),
    ("max", ops.max, ([3.0, 1.0, 3.0, 3.0],), ([1 / 3, 0, 1 / 3, 1 / 3],)),
    ("min along an axis", lambda x: ops.min(x, 1), ([[1.0, 1.0], [3.0, 2.0]],), ([[0.5, 0.5], [0, 1]],)),
    ("prod", ops.prod, ([2.0, 0.0, 3.0],), ([0, 6, 0],)),
    ("prod with two zeros", ops.prod, ([2.0, 0.0, 0.0],), ([0, 0, 0],)),
    ("remainder", ops.remainder, ([7.0, -7.0], [2.0, 2.0]), ([1, 1], [-3, 4])),
    ("where", lambda x, y: ops.where(x > 1.0, x, y), ([1.0, 2.0], [5.0, NAN]), ([0, 1], [1, 0])),
]


@pytest.mark.parametrize(("name", "call", "operands", "expected"), ON_KINKS, ids=[case[0] for case in ON_KINKS])
def test_on_kinks_and_ties_gradients_are_those_of_pytorch(
    name: str, call: Callable[..., Tensor], operands: Sequence[Any], expected: Sequence[Any]
) -> None:
    """DESIGN, ops: the convention of each operation where it has no derivative."""
    with np.errstate(all="ignore"):  # the result may be infinite too
        found = gradients(call, *operands)
    np.testing.assert_array_equal(found, expected)


def _sigmoid(x: float) -> float:
    e = math.exp(-abs(x))
    return (1 if x >= 0 else e) / (1 + e)


def _normal(x: float) -> tuple[float, float]:
    """Φ(x) and x φ(x)."""
    return math.erfc(-x / math.sqrt(2)) / 2, x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh(x: float) -> tuple[float, float]:
    u = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    inner = 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return _sigmoid(u), x * _sigmoid(u) * _sigmoid(-u) * inner


SLOPES: Final[dict[str, tuple[Callable[..., Tensor], Callable[[float], tuple[float, ...]]]]] = {
    "sigmoid": (ops.sigmoid, lambda x: (_sigmoid(x) * _sigmoid(-x),)),
    "softplus": (ops.softplus, lambda x: (_sigmoid(x),)),
    "silu": (ops.silu, lambda x: (_sigmoid(x), x * _sigmoid(x) * _sigmoid(-x))),
    "gelu": (ops.gelu, _normal),
    "gelu tanh": (lambda x: ops.gelu(x, "tanh"), _gelu_tanh),
    "erf": (ops.erf, lambda x: (2 / math.sqrt(math.pi) * math.exp(-x * x),)),
    "tanh": (ops.tanh, lambda x: (1, -(math.tanh(x) ** 2))),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SLOPES)
@given(x=st.floats(-9, 9))
def test_slopes_are_exact_where_they_are_tiny(name: str, dtype: str, x: float) -> None:
    """Relative to the terms of their formula, not to 1; e^(−x²) and Φ magnify a rounding of x by x² or so."""
    call, formula = SLOPES[name]
    rounded = float(np.dtype(dtype).type(x))
    terms = formula(rounded)
    (found,) = gradients(call, rounded, dtype=dtype)
    assert abs(found - sum(terms)) <= 8 * (4 + x * x) * eps(dtype) * sum(map(abs, terms)) + 1e-37


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", SLOPES)
def test_slopes_end_in_0_and_1(name: str, dtype: str) -> None:
    """And do not become NaN on the way, for numbers whose squares and exponentials overflow."""
    far = float(np.finfo("float16").max if dtype == "float16" else 1e30)
    (found,) = gradients(SLOPES[name][0], [-far, -200.0, 200.0, far], dtype=dtype)
    right = 0 if name in ("sigmoid", "erf", "tanh") else 1
    np.testing.assert_allclose(found, [0, 0, right, right], rtol=0, atol=1e-37)


@pytest.mark.parametrize("call", [ops.softmax, ops.log_softmax, ops.logsumexp], ids=lambda call: call.__name__)
def test_gradients_along_an_axis_survive_large_and_infinite_numbers(call: Callable[..., Tensor]) -> None:
    """Adding a constant changes nothing; a place at −∞, as a mask makes it, gets no share."""
    x, cotangent = np.array([0.5, -1.5, 2.5]), np.array([0.75, 2.5, -0.5])
    w = cotangent.sum() if call is ops.logsumexp else cotangent
    (near,) = gradients(call, x.tolist(), cotangent=w)
    (far,) = gradients(call, (x + 1000).tolist(), cotangent=w)
    np.testing.assert_allclose(far, near, rtol=1e-12)

    longer = cotangent.sum() if call is ops.logsumexp else [*cotangent, 0.0]
    (masked,) = gradients(call, [*x.tolist(), -INF], cotangent=longer)
    np.testing.assert_allclose(masked, [*near, 0.0], rtol=1e-12, atol=1e-16)


def test_logsumexp_of_nothing_but_infinities_pulls_nothing():
    assert gradients(ops.logsumexp, [-INF, -INF]) == [[0, 0]]


def test_cross_entropy_of_certain_examples_has_whole_slopes():
    """Far apart logits: 0 where it is right, ±1 where it is wrong; divided by the number of examples in a mean."""
    logits, targets = [[1000.0, 0.0, -1000.0], [1000.0, 0.0, -1000.0]], tensor([0, 2], device="cpu:0")
    slopes = np.array([[0, 0, 0], [1, 0, -1]])
    weights: dict[Any, float] = {"sum": 1, "mean": 0.5, "none": 1}
    for reduction, weight in weights.items():
        call: Any = partial(ops.cross_entropy, targets=targets, reduction=reduction)
        np.testing.assert_array_equal(gradients(call, logits), [slopes * weight])


def test_a_maximum_that_is_nan_has_gradients_that_are_nan():
    (found,) = gradients(lambda x: ops.max(x, 1), [[1.0, NAN], [1.0, 2.0]])
    np.testing.assert_array_equal(found, [[NAN, NAN], [0, 1]])


@pytest.mark.parametrize("target", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("source", ["float64", "float32", "float16", "bfloat16"])
def test_the_gradient_of_a_cast_is_cast_back(source: str, target: str) -> None:
    leaf = tensor([1.5, -2.5], device="cpu:0+autodiff", dtype=source).require_grad()
    cotangent = tensor([0.75, 1.25], device="cpu:0", dtype=target)

    gradient = leaf.grad(leaf.cast(target).backward(cotangent))

    assert gradient is not None
    assert gradient.dtype == leaf.dtype
    assert exact(gradient).tolist() == [0.75, 1.25]


@pytest.mark.parametrize("target", ["int64", "bool"])
def test_what_is_cast_to_no_float_is_not_tracked(target: str) -> None:
    assert not tensor([1.5], device="cpu:0+autodiff").require_grad().cast(target).is_tracked


LET_GO: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "add": ops.add,
    "subtract": ops.subtract,
    "multiply by a scalar": lambda x, other: x * 2.0,
    "negative": lambda x, other: -x,
    "exp": lambda x, other: ops.exp(x),
    "sqrt": lambda x, other: ops.sqrt(x),
    "tanh": lambda x, other: ops.tanh(x),
    "relu": lambda x, other: ops.relu(x),
    "where": lambda x, other: ops.where(other > 1.0, x, other),
    "sum": lambda x, other: ops.sum(x, 0),
    "mean": lambda x, other: ops.mean(x),
    "cumsum": lambda x, other: ops.cumsum(x, 0),
    "softmax": lambda x, other: ops.softmax(x),
    "log_softmax": lambda x, other: ops.log_softmax(x),
    "cast": lambda x, other: x.cast("float32"),
    "the factor of a constant": lambda x, other: x * other.detach().set_require_grad(False),
}


@pytest.mark.inside
@pytest.mark.parametrize("name", LET_GO)
def test_an_operation_does_not_keep_an_operand_that_its_gradient_does_not_need(name: str) -> None:
    """Memory: what was computed on the way is gone as soon as nobody else has it."""
    generator = np.random.default_rng(0)
    a, b = (tensor(plain(generator, (3, 4), ()), device="cpu:0+autodiff").require_grad() for _ in range(2))
    x, other = ops.square(a), ops.square(b)
    remembered = weakref.ref(x._data)

    y = LET_GO[name](x, other)
    del x

    assert y.is_tracked
    assert remembered() is None
