"""What the gradients of products, joins, positions, norms, windows and attention do beside obeying the laws.

What they keep in memory, what they do not compute, in which order sums are
added, and what they give where functions have kinks.
"""

import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from engine import AutodiffError, Buffer, Tensor, cached_attention, ops, tensor
from engine.ops import normalization, products
from tests.engine.comparison import same_bits

CPU = "cpu:0"


def constant(values: ArrayLike, dtype: str = "float64") -> Tensor:
    """A tensor with autodiff that has no gradient."""
    return tensor(values, device=f"{CPU}+autodiff", dtype=dtype)


def leaf(values: ArrayLike, dtype: str = "float64") -> Tensor:
    return constant(values, dtype).require_grad()


def drawn(*shape: int, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).standard_normal(shape)


def gradients(y: Tensor, cotangent: ArrayLike, *leaves: Tensor) -> list[Any]:
    found = y.backward(tensor(cotangent, device=CPU, dtype=y.dtype))
    return [None if gradient is None else gradient.numpy() for gradient in (of.grad(found) for of in leaves)]


# What is kept, and what is computed

PRODUCTS = {
    "linear": (ops.linear, (3, 4), (4, 5)),
    "matmul": (ops.matmul, (3, 4), (4, 5)),
    "batched": (ops.matmul, (2, 3, 4), (2, 4, 5)),
    "vector": (ops.matmul, (3, 4), (4,)),
    "conv2d": (ops.conv2d, (1, 2, 3, 3), (2, 2, 2, 2)),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("frozen", [0, 1])
def test_beside_a_frozen_factor_the_other_is_not_kept(name, frozen):
    """A product keeps x for the gradient of its weight alone, and the weight for that of x alone."""
    call, *shapes = PRODUCTS[name]
    leaves = [leaf(drawn(*shape)) for shape in shapes]
    made = [of + 1.0 for of in leaves]  # nobody but the product may keep these
    kept = [weakref.ref(each._data) for each in made]
    factors = [each.detach() if at == frozen else each for at, each in enumerate(made)]
    y = call(*factors)
    del made, factors
    assert kept[frozen]() is not None
    assert kept[1 - frozen]() is None
    found = gradients(y, np.ones(y.shape), *leaves)
    assert [gradient is None for gradient in found] == [at == frozen for at in (0, 1)]


@pytest.mark.parametrize(("tracked", "count"), [((True, True), 2), ((True, False), 1), ((False, True), 1)])
def test_the_gradients_of_a_linear_layer_are_two_products_and_one_if_a_factor_is_frozen(tracked, count, monkeypatch):
    x, weight, bias = (leaf(drawn(*shape)) for shape in ((2, 3, 4), (4, 5), (5,)))
    factors = x.set_require_grad(tracked[0]), weight.set_require_grad(tracked[1])
    y = ops.linear(*factors, bias)
    calls: list[tuple[int, ...]] = []
    original = products._linear_array
    monkeypatch.setattr(
        products, "_linear_array", lambda xp, a, b, *more: (calls.append(a.shape), original(xp, a, b, *more))[1]
    )
    gradients(y, drawn(2, 3, 5), bias)
    assert len(calls) == count


def test_norms_compute_nothing_anew_for_a_bias_alone(monkeypatch):
    x, gamma, beta = constant(drawn(2, 3)), constant(drawn(3)), leaf(drawn(3))
    y = ops.layer_norm(x, gamma, beta)
    monkeypatch.setattr(normalization, "_centred", None)
    (found,) = gradients(y, [[1.0, 2.0, 3.0], [0.5, 0.5, 0.5]], beta)
    assert found.tolist() == [1.5, 2.5, 3.5]


@pytest.mark.parametrize("at", range(5))
def test_each_gradient_of_a_norm_is_the_same_alone_as_with_the_others(at):
    operands = [drawn(2, 3, 4), drawn(3), np.abs(drawn(3)) + 0.5, drawn(3), drawn(3)]
    alone: list[Any] = [constant(each) for each in operands]
    alone[at] = leaf(operands[at])
    together: list[Any] = [leaf(each) for each in operands]
    cotangent = drawn(2, 3, 4, seed=9)
    (found,) = gradients(ops.batch_norm(*alone), cotangent, alone[at])
    assert found.tolist() == gradients(ops.batch_norm(*together), cotangent, *together)[at].tolist()


def test_attention_keeps_no_weights():
    """Memory grows with the positions, not with their square: the weights are computed anew."""
    q, k, v = (leaf(drawn(1, 2, 256, 4, seed=seed)) for seed in range(3))
    tracemalloc.start()
    y = ops.attention(q, k, v, causal=True)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 3 * y.nbytes < 2 * 256 * 256 * 8


# In which order, and where in memory


@given(
    ids=st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), max_size=12),
    by_columns=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_row_that_is_read_often_gets_the_sum_of_its_gradients(ids, by_columns, seed):
    """Against `numpy.add.at` of integers, which are added exactly; rows that are not read get 0."""
    weight = Tensor.from_numpy(np.asarray(drawn(5, 2), order="F" if by_columns else "C"), f"{CPU}+autodiff")
    weight = weight.require_grad()
    places = np.array(ids, dtype="int64").reshape(len(ids), 3)
    cotangent = np.random.default_rng(seed).integers(-9, 9, (len(ids), 3, 2)).astype("float64")
    expected = np.zeros((5, 2))
    np.add.at(expected, places, cotangent)
    for read in (ops.embedding, ops.take, ops.index):
        (found,) = gradients(read(weight, tensor(places, device=CPU)), cotangent, weight)
        assert found.tolist() == expected.tolist()


def test_a_long_run_of_one_position_loses_little():
    """Ten thousand float32 tenths, added one after another, would be off by more than 0.1."""
    weight, ids = leaf([[0.0], [0.0]], "float32"), tensor([1] * 10_000, device=CPU)
    (found,) = gradients(ops.embedding(weight, ids), np.full((10_000, 1), 0.1), weight)
    assert found[0, 0] == 0
    assert abs(float(found[1, 0]) - 10_000 * float(np.float32(0.1))) < 1e-3


@pytest.mark.parametrize("order", ["C", "F"])
def test_gradients_of_weights_lie_in_memory_as_the_weights_do(order):
    """So that an optimizer goes through both in one order: a checkpoint's [out, in] is a weight by columns."""
    weight = Tensor.from_numpy(np.asarray(drawn(4, 5), order=order), f"{CPU}+autodiff").require_grad()
    ids = tensor([1, 3, 1], device=CPU)
    for y in (ops.linear(constant(drawn(3, 4)), weight), ops.embedding(weight, ids)):
        gradient = weight.grad(y.backward(tensor(np.ones(y.shape), device=CPU)))
        assert gradient is not None
        assert gradient._data.strides == weight._data.strides


# Operands of which the first has the shape of the result; wide enough for NumPy's other way to round differently.
SELVES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "linear": (ops.linear, (24, 100), (100, 100)),
    "matmul": (ops.matmul, (2, 24, 100), (2, 100, 100)),
    "conv2d": (ops.conv2d, (24, 100, 1, 1), (100, 100, 1, 1)),
    "attention": (lambda v, q: ops.attention(q, q, v), (1, 24, 100), (1, 24, 4)),
}


@pytest.mark.parametrize("name", SELVES)
def test_bits_of_gradients_do_not_depend_on_where_the_cotangent_lies(name):
    """P40, P59: NumPy multiplies a matrix by its own transpose in another way, as where the cotangent is an operand."""
    call, *shapes = SELVES[name]
    operands = [leaf(drawn(*shape, seed=seed)) for seed, shape in enumerate(shapes)]
    copy = tensor(operands[0].numpy(), device=CPU)
    near, far = (call(*operands).backward(cotangent) for cotangent in (operands[0], copy))
    for operand in operands:
        here, there = operand.grad(near), operand.grad(far)
        assert here is not None
        assert there is not None
        assert same_bits(here, there)


# Kinks, and what is infinite


def test_the_first_of_equal_pixels_takes_the_gradient_of_a_window():
    """Row by row, as PyTorch does; a NaN before all; padding and pixels between windows take none."""
    image = np.array([[1, 1, 0, 2], [1, 1, 2, 2], [-np.inf, -np.inf, np.nan, 5], [-np.inf, -np.inf, 7, np.nan]])
    x = leaf(image[None, None])
    (found,) = gradients(ops.max_pool2d(x, 2), [[[[1, 2], [3, 4]]]], x)
    assert found[0, 0].tolist() == [[1, 0, 0, 2], [0, 0, 0, 0], [3, 0, 4, 0], [0, 0, 0, 0]]
    padded = leaf([[[[-1.0, -2.0]]]])
    (found,) = gradients(ops.max_pool2d(padded, 3, padding=1, stride=2), np.ones((1, 1, 1, 1)), padded)
    assert found.tolist() == [[[[1, 0]]]]
    apart = leaf([[[[2.0], [9.0], [3.0]]]])
    (found,) = gradients(ops.max_pool2d(apart, 1, stride=2), [[[[1], [2]]]], apart)
    assert found.ravel().tolist() == [1, 0, 2]


def test_an_infinite_cotangent_reaches_only_the_largest_pixel():
    x = leaf([[[[1.0, 2.0]]]])
    (found,) = gradients(ops.max_pool2d(x, (1, 2)), [[[[np.inf]]]], x)
    assert found.tolist() == [[[[0, np.inf]]]]


def test_a_query_that_sees_no_key_has_no_gradient_and_gives_none():
    q, k, v = leaf(drawn(1, 2, 3)), leaf(drawn(1, 4, 3, seed=1)), leaf(drawn(1, 4, 3, seed=2))
    mask = tensor([[False] * 4, [True, False, True, True]], device=CPU)
    of_q, of_k, of_v = gradients(ops.attention(q, k, v, mask), drawn(1, 2, 3, seed=3), q, k, v)
    assert of_q[0, 0].tolist() == [0, 0, 0]
    assert np.isfinite([of_k, of_v]).all()
    assert of_k[0, 1].tolist() == of_v[0, 1].tolist() == [0, 0, 0]
    assert of_q[0, 1].all()
    assert of_v[0, [0, 2, 3]].all()


def test_norms_of_equal_numbers_have_finite_gradients():
    for row in ([2.0, 2.0, 2.0], [0.0, 0.0, 0.0]):
        x, gamma = leaf([row]), leaf([1.0, 2.0, 3.0])
        for norm in (ops.layer_norm, ops.rms_norm):
            assert np.isfinite(
                np.concatenate([each.ravel() for each in gradients(norm(x, gamma), [[1, 2, 4]], x, gamma)])
            ).all()


# Caches


@pytest.mark.parametrize("tracked", ["joined", "cos", "sin"])
def test_a_step_with_a_cache_refuses_what_is_tracked_and_stores_nothing(tracked):
    """A cache holds no history: gradients through keys and values would be lost without a word."""
    operands = {"joined": constant(drawn(1, 2, 6)), "cos": constant(drawn(4, 1)), "sin": constant(drawn(4, 1))}
    keys, values = Buffer(2), Buffer(2)

    def step() -> Tensor:
        rotary = operands["cos"], operands["sin"]
        return cached_attention(operands["joined"], keys, values, heads=1, groups=1, rotary=rotary)

    operands[tracked] = operands[tracked].require_grad()
    with pytest.raises(AutodiffError, match=r"cached_attention: .* valid\(\)"):
        step()
    assert (keys.length, values.length) == (0, 0)
    operands[tracked] = operands[tracked].set_require_grad(False)
    assert not step().is_tracked
    assert (keys.length, values.length) == (2, 2)
