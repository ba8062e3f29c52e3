"""Scaled dot-product attention with grouped heads, causal and other masks."""

from math import prod
from typing import TYPE_CHECKING, Any

from engine.backend import Array
from engine.dtype import BOOL, FLOATS
from engine.errors import DTypeError, ShapeError
from engine.primitive import JointPull, Primitive, check_alike, checked_operand

from .checks import checked_number
from .products import matmul_array

if TYPE_CHECKING:
    from engine.tensor import Tensor


def attention_array(xp: Any, q: Array, k: Array, v: Array, *mask: Array, causal: bool, scale: float) -> Array:
    weights, total = _weights(xp, q, k, mask, causal, scale)
    y = xp.matmul(weights, v)
    y /= total
    return y.reshape(*q.shape[:-1], v.shape[-1])


def _weights(xp: Any, q: Array, k: Array, mask: tuple[Array, ...], causal: bool, scale: float) -> tuple[Array, Array]:
    """The weights of the keys, [..., groups, heads / groups · queries, keys], and what to divide each row by."""
    *batch, heads, queries, d = q.shape
    keys = k.shape[-2]
    rows = _by_groups(q.shape, k.shape)
    scores = _products(xp, q.reshape(*rows, d) * scale, k)
    hidden = _hidden(xp, mask, causal, queries, keys)
    if hidden is not None:
        xp.copyto(scores.reshape(*batch, heads, queries, keys), -xp.inf, where=hidden)
    if keys:
        largest = scores.max(axis=-1, keepdims=True)
        if hidden is not None:  # of a row that is hidden whole it is −∞; less the lowest number, that still is −∞
            largest = xp.maximum(largest, xp.finfo(scores.dtype).min)
        scores -= largest
    weights = xp.exp(scores, out=scores)  # in place: fresh pages cost more than the exponentials
    total = weights.sum(axis=-1, keepdims=True)
    # The largest weight is 1, and so the total is at least that, but for a row that is hidden whole.
    return weights, total if hidden is None and keys else xp.maximum(total, 1)


def _by_groups(shape: tuple[int, ...], k_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of q without its last axis, the query heads of a group side by side.

    They are rows of one product with the keys of the group: nothing is repeated.
    """
    *batch, heads, queries, _ = shape
    groups = k_shape[-3]
    return *batch, groups, heads // groups * queries if groups else 0


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


def _attention_vjp(
    xp: Any, y: Array, q: Array, k: Array, v: Array, *mask: Array, causal: bool, scale: float
) -> JointPull:
    # The weights are computed anew, for one product more. To keep them would take heads · queries · keys numbers for
    # each layer, which for long sequences is more than all else that the graph keeps.
    def pull(g: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
        of_q, of_k, of_v = needs[:3]
        rows = _by_groups(q.shape, k.shape)
        g = g.reshape(*rows, v.shape[-1])
        weights, total = _weights(xp, q, k, mask, causal, scale)
        weights /= total
        to_q = to_k = None
        to_v = xp.matmul(weights.swapaxes(-1, -2), g) if of_v else None
        if of_q or of_k:
            scores = matmul_array(xp, g, v.swapaxes(-1, -2))
            scores *= weights
            weights *= scores.sum(axis=-1, keepdims=True)
            scores -= weights
            scores *= scale
            if of_q:
                to_q = xp.matmul(scores, k).reshape(q.shape)
            if of_k:
                to_k = xp.matmul(scores.swapaxes(-1, -2), q.reshape(*rows, q.shape[-1]))
        return to_q, to_k, to_v, *(None for _ in mask)

    return pull


_ATTENTION = Primitive("attention", attention_array, takes=FLOATS, mixed=True, wide=True, vjp=_attention_vjp)


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
