"""A step of attention with a cache as one operation: what each layer of a decoder does with each new token.

It is `ops.rope`, `Buffer.append` and `ops.attention`, made of the same
functions of arrays and so with the same bits, in one call in place of a dozen:
for a single token the calls cost more than the arithmetic. Caches hold no
histories, so it is for inference: a tracked operand is refused, for the
gradients through keys and values would be lost without a word.
"""

from typing import Any

from .backend import Array
from .buffer import Buffer
from .device import Device
from .dtype import FLOATS, HALVES
from .errors import AutodiffError, DTypeError, ShapeError
from .ops.attention import attention_array
from .ops.rotary import rope_array
from .primitive import Primitive, checked_operand
from .tensor import Tensor


def _step_array(
    xp: Any,
    joined: Array,
    *others: Array,
    keys: Buffer,
    values: Buffer,
    groups: int,
    turned: bool,
    offset: int,
    interleaved: bool,
    place: Device,
    split: tuple[int, int, int, int],
) -> Array:
    batch, positions, all_heads, d = split
    parts = joined.reshape(split).transpose(0, 2, 1, 3)
    rotated, mask = parts, others
    if turned:
        rotated = rope_array(xp, parts, *others[:2], offset=offset, interleaved=interleaved)
        mask = others[2:]
    heads = all_heads - 2 * groups
    k = keys._extended(place, rotated[:, heads : heads + groups])
    v = values._extended(place, parts[:, heads + groups :])
    y = attention_array(xp, rotated[:, :heads], k, v, *mask, causal=True, scale=d**-0.5)
    return y.transpose(0, 2, 1, 3).reshape(batch, positions, heads * d)


_STEP = Primitive("cached_attention", _step_array, takes=FLOATS, mixed=True)


def cached_attention(
    joined: Tensor,
    keys: Buffer,
    values: Buffer,
    *,
    heads: int,
    groups: int,
    rotary: tuple[Tensor, Tensor] | None = None,
    interleaved: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """Causal attention of new positions to those in a cache and to themselves; they are added to the cache.

    float16 and bfloat16 are not taken: they round after each operation, so
    theirs are called one by one.

    Args:
        joined: shape [batch, positions, (heads + 2 · groups) · d]: queries, keys and values side by side.
        keys: of the positions before, turned; [batch, groups, positions, d] along axis 2.
        values: of the positions before; likewise.
        heads: of queries.
        groups: of keys and values; a divisor of `heads`.
        rotary: cosines and sines, as `rotary_tables` makes them; None for no turning.
        interleaved: which features are a pair; see `ops.rope`.
        mask: bool, [batch, 1, 1, keys], true where a key may be seen.

    Returns:
        Shape [batch, positions, heads · d].

    Raises:
        AutodiffError: `joined` or a table is tracked.
        ShapeError: the shapes do not go together, or the tables end before the last position.
        DTypeError: `joined` is float16, bfloat16, or of no floats.
    """
    data = checked_operand("cached_attention", joined)._data
    if data.dtype in HALVES:
        raise DTypeError(f"cached_attention: not for a tensor of dtype {data.dtype}; call the operations one by one")
    shape = data.shape
    all_heads = heads + 2 * groups
    if len(shape) != 3 or shape[2] % all_heads or heads % groups:
        raise ShapeError(f"cached_attention: {shape} is not [batch, positions, ({heads} + 2 · {groups}) · d]")
    d, offset = shape[2] // all_heads, keys.length
    if rotary is not None and (rotary[0].shape[1] * 2 != d or offset + shape[1] > rotary[0].shape[0]):
        raise ShapeError(f"cached_attention: tables {rotary[0].shape} for heads of {d} from position {offset} on")
    others = (*(rotary or ()), *(() if mask is None else (mask,)))
    check_without_history("cached_attention", joined, *others)
    return _STEP(
        joined,
        *others,
        keys=keys,
        values=values,
        groups=groups,
        turned=rotary is not None,
        offset=offset,
        interleaved=interleaved,
        place=joined._device,
        split=(shape[0], shape[1], all_heads, d),
    )


def check_without_history(name: str, *tensors: Tensor) -> None:
    """Refuse tracked tensors, where a cache is to hold what comes of them.

    Raises:
        AutodiffError: one is tracked.
    """
    if any(tensor._node is not None for tensor in tensors):
        raise AutodiffError(
            f"{name}: an operand is tracked, and a cache holds no history, so that gradients would be lost; "
            "decode with the model's valid(), or detach() the operand"
        )
