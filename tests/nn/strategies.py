"""Generators for the layers' tests: settings of attention that go together, inputs, and ways to cut a sequence."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from engine import Tensor, tensor
from modules.nn import MultiHeadAttention, RotaryPositions

CPU = "cpu:0"


def values(shape: tuple[int, ...], seed: int = 0, dtype: str = "float32") -> Tensor:
    """Numbers of about 1, the same for the same seed."""
    return tensor(np.random.default_rng(seed).standard_normal(shape), device=CPU, dtype="float64").cast(dtype)


@st.composite
def attentions(draw: st.DrawFn, **fixed: Any) -> MultiHeadAttention:
    """Any attention of small sizes; `fixed` settings are as given."""
    n_kv_heads, per_group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    n_heads = n_kv_heads * per_group
    d_k = 2 * draw(st.integers(1, 2))
    d_model = draw(st.sampled_from([n_heads * d_k, 3]))
    rotary = None
    if draw(st.booleans()):
        theta, interleaved = draw(st.sampled_from([100.0, 1e4])), draw(st.booleans())
        dtype = fixed.get("dtype", "float32")
        rotary = RotaryPositions(16, d_k, theta=theta, interleaved=interleaved, device=CPU, dtype=dtype)
    settings = {"bias": draw(st.booleans()), "causal": draw(st.booleans()), **fixed}
    seed = draw(st.integers(0, 3))
    return MultiHeadAttention(
        d_model, n_heads, n_kv_heads=n_kv_heads, d_k=d_k, rotary=rotary, device=CPU, seed=seed, **settings
    )


@st.composite
def cuts(draw: st.DrawFn, total: int) -> list[int]:
    """Lengths of consecutive pieces of a sequence, empty ones among them; shrinks to all but one, then one."""
    pieces = []
    while sum(pieces) < total:
        pieces.append(draw(st.integers(0, total - sum(pieces))))
    return pieces
