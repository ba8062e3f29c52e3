"""Scaled dot-product attention with grouped heads, causal and other masks."""

from math import prod
from typing import TYPE_CHECKING, Any

from engine.backend import Array
from engine.dtype import BOOL, FLOATS
from engine.errors import DTypeError, ShapeError
from engine.primitive import Primitive, check_alike, checked_operand

from .checks import checked_number

if TYPE_CHECKING:
    from engine.tensor import Tensor


def attention_array(xp: Any, q: Array, k: Array, v: Array, *mask: Array, causal: bool, scale: float) -> Array:
    *batch, heads, queries, d = q.shape
    groups, keys = k.shape[-3:-1]
    # The query heads of a group lie side by side, and are rows of one product with its keys: nothing is repeated.
    rows = (*batch, groups, heads // groups * queries if groups else 0)
    scores = _products(xp, q.reshape(*rows, d) * scale, k)
    hidden = _hidden(xp, mask, causal, queries, keys)
    if hidden is not None:
        xp.copyto(scores.reshape(*batch, heads, queries, keys), -xp.inf, where=hidden)
    if keys:
        largest = scores.max(axis=-1, keepdims=True)
        if hidden is not None:  # of a row that is hidden whole it is −∞; less the lowest number, that still is −∞
            largest = xp.maximum(largest, xp.finfo(scores.dtype).min)
        scores -= largest
    weights = xp.exp(scores)
    y = xp.matmul(weights, v)
    total = weights.sum(axis=-1, keepdims=True)
    # The largest weight is 1, and so the total is at least that, but for a row that is hidden whole.
    y /= total if hidden is None and keys else xp.maximum(total, 1)
    return y.reshape(*batch, heads, queries, v.shape[-1])


def _products(xp: Any, q: Array, k: Array) -> Array:
    """q kᵀ, which no longer shares memory with either."""
    rows = q.shape[-2]
    if 1 < rows <= 16 and k.size > 2**12 and rows * k.size > 2**16 * prod(k.shape[:-2]):
        # Few queries by many keys, as in decoding: OpenBLAS takes a quarter of the time the other way round.
        turned = xp.matmul(k, xp.ascontiguousarray(xp.swapaxes(q, -1, -2)))
        return xp.ascontiguousarray(xp.swapaxes(turned, -1, -2))
    return xp.matmul(q, k.swapaxes(-1, -2))


def _hidden(xp: Any, mask: tuple[Array, ...], causal: bool, queries: int, keys: int) -> Array | None:
    """Where a query may not see a key; None if it may everywhere."""
    hidden = ~mask[0] if mask else None
    if causal and queries > 1:
        later = xp.arange(keys) > xp.arange(keys - queries, keys)[:, None]
        hidden = later if hidden is None else hidden | later
    return hidden


_ATTENTION = Primitive("attention", attention_array, takes=FLOATS, mixed=True, wide=True)


def attention(
    q: "Tensor",
    k: "Tensor",
    v: "Tensor",
    mask: "Tensor | None" = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> "Tensor":
    """softmax(q kᵀ · scale) v, each query over the keys that it may see.

    A query that may see no key gives 0. float16 and bfloat16 are computed
    in float32 throughout and rounded once.

    Args:
        q: floats, shape [..., heads, queries, d].
        k: shape [..., groups, keys, d]; `groups` divides `heads`, and query heads side by side share a group.
        v: shape [..., groups, keys, d_v].
        mask: bool, true where a query may see a key; broadcasts to [..., heads, queries, keys].
        causal: whether a query sees only keys up to its own position. The queries are the last ones: with
            more keys than queries the first keys are older, as from a cache.
        scale: of the products; by default 1 / √d.

    Returns:
        Shape [..., heads, queries, d_v].

    Raises:
        ShapeError: the shapes do not go together, or causal has fewer keys than queries.
        DTypeError: q, k and v differ in dtype, or the mask is not bool.

    Source: A. Vaswani and others, "Attention is all you need" (2017), equation 1; J. Ainslie and others, "GQA:
    training generalized multi-query transformer models" (2023), for the groups.
    """
    check_alike("attention", q, k, v)
    shape, k_shape, v_shape = q._data.shape, k._data.shape, v._data.shape
    if not len(shape) == len(k_shape) == len(v_shape) >= 3 or (
        k_shape != (*shape[:-3], *k_shape[-3:-1], shape[-1])
        or v_shape[:-1] != k_shape[:-1]
        or (shape[-3] % k_shape[-3] if k_shape[-3] else shape[-3])
    ):
        raise ShapeError(
            f"attention: q {shape}, k {k_shape}, v {v_shape} must be [..., heads, queries, d], [..., groups, keys, d] "
            "and [..., groups, keys, d_v], with groups that divide the heads"
        )
    if causal and k_shape[-2] < shape[-2]:
        raise ShapeError(f"attention: causal with {shape[-2]} queries needs as many keys, there are {k_shape[-2]}")
    factor = (shape[-1] or 1) ** -0.5 if scale is None else checked_number("attention", "scale", scale)
    settings = {"causal": causal, "scale": factor}
    if mask is None:
        return _ATTENTION(q, k, v, **settings)
    if checked_operand("attention", mask)._data.dtype != BOOL:
        raise DTypeError(f"attention: mask of dtype {mask._data.dtype}; it must be bool, true where a key may be seen")
    return _ATTENTION(q, k, v, mask, **settings)
