"""Attention with a cache as one operation, against the operations that it stands for."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Buffer, DTypeError, ShapeError, cached_attention, ops, rotary_tables, tensor
from tests.engine.comparison import same_bits

CPU = "cpu:0"


def drawn(shape: tuple[int, ...], seed: int, dtype: str) -> Any:
    return tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype), device=CPU)


def composed(
    joined: Any, keys: Buffer, values: Buffer, heads: int, groups: int, rotary: Any, interleaved: bool, mask: Any
):
    """The same by reshape, rope, append, attention and reshape."""
    batch, positions, width = joined.shape
    all_heads = heads + 2 * groups
    parts = joined.reshape(batch, positions, all_heads, width // all_heads).transpose(0, 2, 1, 3)
    turned = parts if rotary is None else ops.rope(parts, *rotary, offset=keys.length, interleaved=interleaved)
    keys.append(turned[:, heads : heads + groups])
    values.append(parts[:, heads + groups :])
    y = ops.attention(turned[:, :heads], keys.view(), values.view(), mask, causal=True)
    return y.transpose(0, 2, 1, 3).reshape(batch, positions, heads * (width // all_heads))


@given(
    pieces=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 3), st.integers(1, 2)),
    is_rotary=st.booleans(),
    interleaved=st.booleans(),
    is_masked=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_cached_attention_is_the_operations_that_it_stands_for_bit_for_bit(
    pieces, sizes, is_rotary, interleaved, is_masked, dtype
):
    """Piece after piece of a sequence, with and without rotary positions and padding."""
    batch, groups, per_group, half = sizes
    heads, d = groups * per_group, 2 * half
    rotary = rotary_tables(16, d, device=CPU, dtype=dtype) if is_rotary else None
    ours, theirs = ((Buffer(2), Buffer(2)) for _ in range(2))
    for number, positions in enumerate(pieces):
        joined = drawn((batch, positions, (heads + 2 * groups) * d), number, dtype)
        mask = None
        if is_masked:
            seen = np.random.default_rng(number).random((batch, 1, 1, ours[0].length + positions)) < 0.7
            mask = tensor(seen, device=CPU)
        y = cached_attention(
            joined, *ours, heads=heads, groups=groups, rotary=rotary, interleaved=interleaved, mask=mask
        )
        assert same_bits(y, composed(joined, *theirs, heads, groups, rotary, interleaved, mask))
        for mine, other in zip(ours, theirs, strict=True):
            assert same_bits(mine.view(), other.view())


def test_what_does_not_go_together_is_refused_before_anything_is_stored():
    """Shapes, tables that end too early, and dtypes that round after each operation."""
    keys, values = Buffer(2), Buffer(2)
    joined = drawn((1, 3, 8), 0, "float32")
    for arguments in ({"heads": 3, "groups": 2}, {"heads": 1, "groups": 1}):
        with pytest.raises(ShapeError, match="cached_attention"):
            cached_attention(joined, keys, values, **arguments)
    short = rotary_tables(2, 2, device=CPU)
    with pytest.raises(ShapeError, match="tables"):
        cached_attention(joined, keys, values, heads=2, groups=1, rotary=short)
    with pytest.raises(DTypeError):
        cached_attention(joined.cast("float16"), keys, values, heads=2, groups=1)
    assert (keys.length, values.length) == (0, 0)
