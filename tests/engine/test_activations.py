"""Activations and the error function against the C library's, value by value."""

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine import ShapeError, ops, tensor
from tests.engine.comparison import assert_within, exact
from tests.engine.strategies import DTYPES, FLOATS, INTS, dtypes, tensors

CPU, INF = "cpu:0", math.inf


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else math.exp(x)


def gelu_tanh(x: float) -> float:
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)) if abs(x) < 1e50 else max(x, 0.0)


REFERENCES: dict[str, Callable[[float], float]] = {
    "erf": math.erf,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": gelu_tanh,
    "softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
    "relu": lambda x: max(x, 0.0),
}
NUMBERS = st.one_of(st.floats(-12, 12), st.floats(-1, 1), st.floats(-3e38, 3e38))


def _call(name: str):
    return (lambda x: ops.gelu(x, "tanh")) if name == "gelu_tanh" else getattr(ops, name)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", REFERENCES)
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=20))
@example(numbers=np.linspace(-12, 12, 3001).tolist())
@example(numbers=[0.0, -0.0, 1e-30, -1e-30, 5.5, -5.5, 40.0, -40.0, 100.0, -100.0, 3e38, -3e38])
def test_activations_are_those_of_the_c_library_rounded(name, dtype, numbers):
    """Within a few roundings of x, erf and sigmoid of the result; without a warning, for numbers of any size."""
    with np.errstate(over="ignore"):
        array = np.array(numbers).astype(dtype)
    x = tensor(np.where(np.isfinite(array.astype("float64")), array, np.zeros((), dtype)), device=CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = _call(name)(x)
    expected = [REFERENCES[name](float(v)) for v in exact(x)]
    scale = np.abs(exact(x)) if name in ("silu", "gelu", "gelu_tanh") else 0.0
    # e^(−x) overflows below −88 in float32 and −709 in float64; the result there is smaller than any normal number.
    tiny = float(np.finfo("float64").tiny if dtype == np.float64 else np.finfo("float32").tiny) * 100
    assert_within(result, expected, dtype, ulps=5, scale=scale, tiny=tiny)


@pytest.mark.parametrize("dtype", [np.dtype("float32"), np.dtype("float64")], ids=str)
def test_erf_is_exact_to_about_an_ulp_everywhere(dtype):
    x = np.concatenate([np.linspace(-7, 7, 20001), 10.0 ** np.linspace(-30, 0, 2001)]).astype(dtype)
    result = ops.erf(tensor(x, device=CPU)).numpy()
    expected = np.array([math.erf(float(v)) for v in x])
    ulp = np.spacing(np.abs(expected).astype(dtype)).astype("float64")
    assert (np.abs(result.astype("float64") - expected) <= 2 * ulp).all()


@pytest.mark.parametrize("dtype", [np.dtype("float32"), np.dtype("float64")], ids=str)
def test_gelu_keeps_its_digits_far_out_to_the_left(dtype):
    """½ (1 + erf) would cancel there: at −5 float32 has four digits left, at −6 none."""
    x = np.linspace(-9, -1, 1001).astype(dtype)
    result = ops.gelu(tensor(x, device=CPU)).numpy().astype("float64")
    expected = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.astype("float64")])
    assert (np.abs(result / expected - 1) < 60 * np.finfo(dtype).eps).all()


def test_infinities_and_nan():
    x = tensor([INF, -INF, math.nan], device=CPU)
    found = {name: exact(_call(name)(x)).tolist() for name in REFERENCES}
    assert all(math.isnan(values[2]) for values in found.values())
    assert all(found[name][0] == (1 if name in ("erf", "sigmoid") else INF) for name in REFERENCES)
    assert [found[name][1] for name in ("erf", "sigmoid", "gelu", "softplus", "relu")] == [-1, 0, 0, 0, 0]


@given(x=tensors(dtype=dtypes(*INTS)))
def test_relu_takes_integers_too(x):
    assert ops.relu(x).dtype == x.dtype
    np.testing.assert_array_equal(ops.relu(x).numpy(), np.maximum(x.numpy(), 0))


def test_gelu_has_two_forms_and_no_third():
    assert len(DTYPES) == 13
    with pytest.raises(ValueError, match="approximate is 'sigmoid'; it must be 'none' or 'tanh'"):
        ops.gelu(tensor([1.0], device=CPU), "sigmoid")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_swiglu_is_silu_of_the_first_half_times_the_second_bit_for_bit(dtype):
    """Of every row; in halves the product is rounded once."""
    x = np.random.default_rng(0).standard_normal((2, 3, 10)).astype(dtype)
    joined, gate, up = (tensor(part, device=CPU) for part in (x, x[..., :5], x[..., 5:]))
    assert ops.swiglu(joined).numpy().tobytes() == (ops.silu(gate) * up).numpy().tobytes()
    half = ops.swiglu(joined.cast("float16"))
    exact_half = ops.swiglu(joined.cast("float16").cast("float32")).cast("float16")
    assert half.numpy().tobytes() == exact_half.numpy().tobytes()
    for shape in ((3,), ()):
        with pytest.raises(ShapeError, match="swiglu"):
            ops.swiglu(tensor(np.zeros(shape, dtype), device=CPU))
