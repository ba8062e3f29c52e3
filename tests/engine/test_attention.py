"""Attention against loops over heads, queries and keys in float64."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import DTypeError, ShapeError, causal_mask, ops, tensor, zeros
from tests.engine.comparison import assert_within, exact, same_bits
from tests.engine.strategies import BOOL, FLOATS, HALVES, dtypes, tensors

CPU = "cpu:0"


def attended(q: Any, k: Any, v: Any, seen: Any, scale: float) -> tuple[Any, Any]:
    """By the definition, one query at a time; and the largest size of what is averaged, for the error."""
    *batch, heads, queries, _ = q.shape
    per_group = heads // k.shape[-3] if heads else 1
    result = np.zeros((*batch, heads, queries, v.shape[-1]))
    for at in np.ndindex(*batch, heads, queries):
        *where, head, _ = at
        group = (*where, head // per_group)
        visible = [key for key in range(k.shape[-2]) if seen[at][key]]
        if not visible:
            continue
        scores = [scale * math.fsum(q[at] * k[group][key]) for key in visible]
        weights = [math.exp(score - max(scores)) for score in scores]
        for key, weight in zip(visible, weights, strict=True):
            result[at] += weight / math.fsum(weights) * v[group][key]
    return result, np.abs(v).max(initial=0)


@st.composite
def heads(draw: st.DrawFn) -> Any:
    batch = draw(st.lists(st.integers(0, 2), max_size=2))
    groups, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    queries, keys, d, d_v = (draw(st.integers(0, 4)) for _ in range(4))
    dtype = draw(dtypes(*FLOATS))
    shapes = ((*batch, groups * per_group, queries, d), (*batch, groups, keys, d), (*batch, groups, keys, d_v))
    return [draw(tensors(dtype=dtype, shape=st.just(shape))) for shape in shapes]


@given(qkv=heads(), causal=st.booleans(), masked=st.booleans(), scale=st.sampled_from([None, 0.3]), data=st.data())
def test_attention_is_its_definition(qkv, causal, masked, scale, data):
    """Grouped heads, causal masks over keys that are older than the queries, other masks that broadcast."""
    q, k, v = qkv
    queries, keys = q.shape[-2], k.shape[-2]
    causal = causal and queries <= keys
    shape = (*q.shape[:-1], keys)
    seen, mask = np.ones(shape, bool), None
    if masked:
        mine = tuple(1 if data.draw(st.booleans()) else n for n in shape[data.draw(st.integers(0, len(shape))) :])
        mask = data.draw(tensors(dtype=BOOL, shape=st.just(mine)))
        seen &= mask.numpy()
    if causal:
        seen &= np.arange(keys) <= np.arange(queries)[:, None] + (keys - queries)
    factor = scale if scale is not None else 1 / math.sqrt(q.shape[-1] or 1)
    expected, size = attended(exact(q), exact(k), exact(v), seen, factor)
    sharpness = 1 + factor * (np.abs(exact(q)).max(initial=0) * np.abs(exact(k)).max(initial=0) * q.shape[-1])
    result = ops.attention(q, k, v, mask, causal=causal, scale=scale)
    ulps = 1 if q.dtype in HALVES else 4 * sharpness
    assert_within(result, expected, q.dtype, ulps=ulps, scale=size)


@given(queries=st.integers(0, 4), older=st.integers(0, 4), seed=st.integers(0, 100))
def test_causal_is_the_causal_mask_and_hides_what_comes_later(queries, older, seed):
    generator = np.random.default_rng(seed)
    q, k, v = (
        tensor(generator.standard_normal((2, 3, n, 4)).astype("float32"), device=CPU)
        for n in (queries, older + queries, older + queries)
    )
    mask = causal_mask(queries, older + queries, device=CPU)
    assert mask.numpy().tolist() == [
        [key <= older + query for key in range(older + queries)] for query in range(queries)
    ]
    result = ops.attention(q, k, v, causal=True)
    assert same_bits(result, ops.attention(q, k, v, mask))
    for query in range(queries):
        upto = older + query + 1
        alone = ops.attention(q[:, :, query : query + 1], k[:, :, :upto], v[:, :, :upto], causal=True)
        assert_within(result[:, :, query : query + 1], exact(alone), np.dtype("float32"), ulps=8, scale=1)


@pytest.mark.parametrize("queries", [1, 2, 5])
@pytest.mark.parametrize("keys", [100, 400, 900])
def test_many_keys_are_attended_to_like_few(queries, keys):
    """Long products of few rows are computed the other way round."""
    generator = np.random.default_rng(keys + queries)
    q, k, v = (
        generator.standard_normal((2, h, n, 64)).astype("float32") for h, n in ((6, queries), (2, keys), (2, keys))
    )
    result = ops.attention(*(tensor(x, device=CPU) for x in (q, k, v)), causal=True)
    seen = np.broadcast_to(np.arange(keys) <= np.arange(queries)[:, None] + (keys - queries), (2, 6, queries, keys))
    expected, size = attended(q.astype("float64"), k.astype("float64"), v.astype("float64"), seen, 1 / 8)
    assert_within(result, expected, np.dtype("float32"), ulps=20, scale=size)


def test_hidden_keys_change_nothing_whatever_they_hold():
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((1, 2, n, 4)).astype("float32") for n in (3, 5, 5))
    mask = tensor([[[[True, True, False, True, False]]]], device=CPU)
    expected = ops.attention(*(tensor(x, device=CPU) for x in (q, k[:, :, [0, 1, 3]], v[:, :, [0, 1, 3]])))
    for garbage in (math.nan, math.inf, 3e38, -math.inf):
        k[:, :, [2, 4]], v[:, :, [2, 4]] = garbage, 7.0
        with np.errstate(all="ignore"):
            result = ops.attention(*(tensor(x, device=CPU) for x in (q, k, v)), mask)
        assert_within(result, exact(expected), np.dtype("float32"), ulps=8, scale=1)


def test_a_query_that_sees_no_key_gives_zero_without_a_warning():
    x = tensor(np.ones((1, 2, 3, 4)), device=CPU, dtype="float32")
    mask = tensor([[True, True, True], [False, False, False], [False, True, False]], device=CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = ops.attention(x, x, x, mask)
        nothing = ops.attention(x, zeros((1, 2, 0, 4), device=CPU), zeros((1, 2, 0, 4), device=CPU))
    assert result.numpy()[0, 0].tolist() == [[1] * 4, [0] * 4, [1] * 4]
    assert exact(nothing).tolist() == np.zeros((1, 2, 3, 4)).tolist()


def test_large_scores_do_not_overflow():
    q = tensor(np.full((1, 1, 2, 4), 1e4), device=CPU, dtype="float32")
    v = tensor(np.arange(8.0).reshape(1, 1, 2, 4), device=CPU, dtype="float32")
    assert exact(ops.attention(q, q, v)).tolist() == np.broadcast_to([2.0, 3, 4, 5], (1, 1, 2, 4)).tolist()


def test_shapes_that_do_not_go_together_are_named():
    def of(*shape):
        return zeros(shape, device=CPU)

    good = of(2, 4, 3, 6), of(2, 2, 5, 6), of(2, 2, 5, 7)
    for at, wrong in (
        (0, of(2, 3, 3, 6)),  # heads that the groups do not divide
        (0, of(1, 4, 3, 6)),
        (0, of(2, 4, 3, 5)),
        (0, of(3, 6)),
        (1, of(2, 2, 4, 6)),
        (1, of(2, 5, 6)),
        (2, of(2, 1, 5, 7)),
        (2, of(2, 5, 7)),
    ):
        with pytest.raises(ShapeError, match=r"attention: q \("):
            ops.attention(*(wrong if position == at else operand for position, operand in enumerate(good)))
    with pytest.raises(ShapeError, match="causal with 3 queries needs as many keys, there are 2"):
        ops.attention(of(1, 3, 6), of(1, 2, 6), of(1, 2, 6), causal=True)
    for shape in ((2, 4, 3, 4), (3, 2, 4, 3, 5), (3, 1, 1, 5)):
        with pytest.raises(ShapeError, match="attention: shapes"):
            ops.attention(*good, zeros(shape, device=CPU, dtype=BOOL))
    with pytest.raises(DTypeError, match="mask of dtype float32; it must be bool"):
        ops.attention(*good, of(3, 5))
    with pytest.raises(ShapeError, match="causal_mask: 3 queries and 2 keys"):
        causal_mask(3, 2, device=CPU)
