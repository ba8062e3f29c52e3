"""Multi-head attention, with what decoder and encoder models ask of it, and the cache that it decodes with."""

from typing import Any, final

from engine import Buffer, Device, Seed, ShapeError, Tensor, cached_attention, ops
from engine.decoding import check_without_history
from engine.dtype import HALVES
from modules.errors import ModuleError
from modules.module import Module
from modules.parallel.cache import Cache

from .linear import Linear
from .rotary import RotaryPositions
from .settings import divisible, float_dtype, size


@final
class KeyValueCache(Cache):
    """Keys, turned to their positions, and values of the positions that an attention layer has seen.

    Attributes:
        keys, values: grow along the positions of [batch, n_kv_heads, positions, d_k].
    """

    def __init__(self) -> None:
        super().__init__()
        self.keys = Buffer(axis=2)
        self.values = Buffer(axis=2)

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of new positions; gives those of all positions.

        Raises:
            AutodiffError: they are tracked.
        """
        check_without_history("MultiHeadAttention", keys, values)
        self.keys.append(keys)
        self.values.append(values)
        self.length += keys.shape[2]
        return self.keys.view(), self.values.view()


@final
class MultiHeadAttention(Module):
    """Self-attention: output(softmax(q kᵀ / √d_k) v), where q, k and v are linear in x, per head.

    Query heads come in groups, ``n_heads // n_kv_heads`` to a key and value
    head. One linear layer makes q, k and v, in that order: one large product
    reads memory faster than three. Separate ones of a checkpoint are joined
    as they load, by the step `records.Join` along the last axis.

    Args:
        d_model: features of input and output.
        n_heads: query heads.
        n_kv_heads: key and value heads, a divisor of `n_heads`; by default as many.
        d_k: width of a head; by default ``d_model // n_heads``.
        bias: whether the linear layers have biases.
        causal: whether a position sees only itself and those before it.
        rotary: turns queries and keys by their positions; on the same device, for `d_k` features.
        device: where it is.
        dtype: of the parameters, and of the input.
        seed: of the initial values.

    Attributes:
        query_key_value: Linear, d_model to (n_heads + 2 · n_kv_heads) · d_k.
        output: Linear, n_heads · d_k to d_model.

    Raises:
        ModuleError: a setting is out of its range or does not go with the others.

    Source: A. Vaswani et al., "Attention is all you need" (2017); J. Ainslie et al., "GQA" (2023); Burn 0.23,
    ``nn::attention::MultiHeadAttention``, whose three linear layers are one here.
    """

    query_key_value: Linear
    output: Linear
    rotary: RotaryPositions | None

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_k: int | None = None,
        bias: bool = True,
        causal: bool = False,
        rotary: RotaryPositions | None = None,
        device: Device | str,
        dtype: Any = "float32",
        seed: int | Seed | None = None,
    ) -> None:
        name = "MultiHeadAttention"
        self.d_model = size(name, "d_model", d_model)
        self.n_heads = size(name, "n_heads", n_heads)
        self.n_kv_heads = self.n_heads if n_kv_heads is None else size(name, "n_kv_heads", n_kv_heads)
        divisible(name, "n_heads", self.n_heads, "n_kv_heads", self.n_kv_heads)
        if d_k is None:
            divisible(name, "d_model", self.d_model, "n_heads", self.n_heads)
        self.d_k = self.d_model // self.n_heads if d_k is None else size(name, "d_k", d_k)
        self.causal = bool(causal)
        if rotary is not None and rotary.d_model != self.d_k:
            raise ModuleError(f"{name}: rotary turns {rotary.d_model} features, and a head has {self.d_k}")
        of, stream = float_dtype(name, dtype), Seed.of(seed)
        joined = (self.n_heads + 2 * self.n_kv_heads) * self.d_k
        self.query_key_value = Linear(self.d_model, joined, bias=bias, device=device, dtype=of, seed=stream)
        self.output = Linear(self.n_heads * self.d_k, self.d_model, bias=bias, device=device, dtype=of, seed=stream)
        self.rotary = rotary

    def new_cache(self) -> KeyValueCache:
        """An empty cache, for one sequence or one batch of equally long ones.

        Raises:
            ModuleError: the attention is not causal: earlier outputs would change with each new position.
        """
        if not self.causal:
            raise ModuleError("MultiHeadAttention: only causal attention has a cache; construct it with causal=True")
        return KeyValueCache()

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: KeyValueCache | None = None) -> Tensor:
        """The attention of each position.

        Args:
            x: [batch, positions, d_model]; with a cache the positions that follow those in it.
            mask: bool, [batch, keys], false where a key is padding, which no position sees; the keys
                are the positions in the cache, if there is one, and those of x. None: there is no padding.
            cache: what the positions before these left; it is extended by these.

        Returns:
            [batch, positions, d_model].

        Raises:
            ShapeError: x or the mask has another shape.
            AutodiffError: there is a cache, and a parameter or x is tracked.
        """
        if x.ndim != 3:
            raise ShapeError(f"MultiHeadAttention: x has shape {x.shape}; it must be [batch, positions, d_model]")
        batch, positions, _ = x.shape
        joined = self.query_key_value.forward(x)
        if mask is not None:  # before the cache is extended, so that a wrong one leaves it as it was
            mask = _over_heads_and_queries(mask, batch, positions + (0 if cache is None else cache.length))
        if cache is None or joined.dtype in HALVES:
            return self.output.forward(self._attended(joined, mask, cache))
        return self.output.forward(self._attended_at_once(joined, mask, cache))

    def _attended(self, joined: Tensor, mask: Tensor | None, cache: KeyValueCache | None) -> Tensor:
        """Queries, keys and values [batch, positions, …] to what the queries attend to, operation by operation."""
        batch, positions, _ = joined.shape
        all_heads = self.n_heads + 2 * self.n_kv_heads
        heads = turned = joined.reshape(batch, positions, all_heads, self.d_k).transpose(0, 2, 1, 3)
        if self.rotary is not None:  # turns the values too, which are then taken from what was not turned
            turned = self.rotary.forward(heads, 0 if cache is None else cache.length)
        first_key, first_value = self.n_heads, self.n_heads + self.n_kv_heads
        queries, keys, values = turned[:, :first_key], turned[:, first_key:first_value], heads[:, first_value:]
        if cache is not None:
            keys, values = cache.extend(keys, values)
        seen = ops.attention(queries, keys, values, mask, causal=self.causal)
        return seen.transpose(0, 2, 1, 3).reshape(batch, positions, self.output.d_input)

    def _attended_at_once(self, joined: Tensor, mask: Tensor | None, cache: KeyValueCache) -> Tensor:
        """The same for a cache, in one operation."""
        rotary, length = self.rotary, cache.length + joined.shape[1]
        if rotary is not None:
            rotary.check_positions(length)
        seen = cached_attention(
            joined,
            cache.keys,
            cache.values,
            heads=self.n_heads,
            groups=self.n_kv_heads,
            rotary=None if rotary is None else (rotary.cos, rotary.sin),
            interleaved=rotary is not None and rotary.interleaved,
            mask=mask,
        )
        cache.length = length
        return seen


def _over_heads_and_queries(mask: Tensor, batch: int, keys: int) -> Tensor:
    if mask.shape != (batch, keys):
        raise ShapeError(
            f"MultiHeadAttention: mask has shape {mask.shape}; here it must be [batch, keys], {(batch, keys)}"
        )
    return mask.reshape(batch, 1, 1, keys)
