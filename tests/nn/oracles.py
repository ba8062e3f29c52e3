"""What the layers compute, written out in float64 with NumPy and loops, from parameters that are read off a module."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine import Tensor
from modules.nn import Linear, MultiHeadAttention, RotaryPositions

Array = NDArray[Any]


def wide(x: Tensor) -> Array:
    """A tensor's elements in float64."""
    return x.numpy().astype(np.float64)


def linear(layer: Linear, x: Array) -> Array:
    """x · weight + bias."""
    y = np.einsum("...i,io->...o", x, wide(layer.weight.val()))
    return y if layer.bias is None else y + wide(layer.bias.val())


def turned(rotary: RotaryPositions, x: Array, position: int) -> Array:
    """One vector of features at a position, each pair as a complex number times e^(i · angle)."""
    half = rotary.d_model // 2
    y = np.empty_like(x)
    for i in range(half):
        first, second = (2 * i, 2 * i + 1) if rotary.interleaved else (i, i + half)
        angle = position * rotary.theta ** (-2 * i / rotary.d_model)
        z = complex(x[first], x[second]) * complex(math.cos(angle), math.sin(angle))
        y[first], y[second] = z.real, z.imag
    return y


def attention(layer: MultiHeadAttention, x: Array, mask: Array | None = None) -> Array:
    """The attention of every position, one head and one query at a time.

    Args:
        layer: its parameters and settings.
        x: [batch, positions, d_model].
        mask: bool [batch, positions], false where there is padding.
    """
    batch, positions, _ = x.shape
    joined = linear(layer.query_key_value, x)
    result = np.empty((batch, positions, layer.n_heads * layer.d_k))
    for b in range(batch):
        for head in range(layer.n_heads):
            kv_head = head * layer.n_kv_heads // layer.n_heads
            places = (head, layer.n_heads + kv_head, layer.n_heads + layer.n_kv_heads + kv_head)
            queries, keys, values = ([_part(layer, row, place) for row in joined[b]] for place in places)
            if layer.rotary is not None:
                queries = [turned(layer.rotary, q, p) for p, q in enumerate(queries)]
                keys = [turned(layer.rotary, k, p) for p, k in enumerate(keys)]
            for p, query in enumerate(queries):
                seen = [s for s in range(positions) if (s <= p or not layer.causal) and (mask is None or mask[b, s])]
                weights = [math.exp(query @ keys[s] / math.sqrt(layer.d_k)) for s in seen]
                mean = sum((w * values[s] for w, s in zip(weights, seen, strict=True)), np.zeros(layer.d_k))
                result[b, p, head * layer.d_k : (head + 1) * layer.d_k] = mean / (sum(weights) or 1)
    return linear(layer.output, result)


def _part(layer: MultiHeadAttention, row: Array, place: int) -> Array:
    return row[place * layer.d_k : (place + 1) * layer.d_k]
