"""The Llama family: embedding, decoder blocks, and a head, each a layer that can run on a device of its own.

A block is ``x + attention(norm(x))``, then ``x + feed_forward(norm(x))``, with
RMS norms, rotary positions, grouped-query causal attention and a gated
feed-forward network. The signal between layers is the residual stream alone,
[batch, positions, d_model]: every block finds its positions in its own cache.

Source: H. Touvron et al., "LLaMA: Open and efficient foundation language
models" (2023).
"""

from dataclasses import dataclass

from engine import Device, Seed, Tensor, ops
from modules import Module, Param
from modules.nn import Embedding, GatedFeedForward, KeyValueCache, MultiHeadAttention, RmsNorm, RotaryPositions
from modules.parallel import LayerParallelism, LayerPlacement


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """The sizes of a model.

    Attributes:
        n_tokens: size of the vocabulary.
        d_model: width of the residual stream.
        n_layers: number of decoder blocks.
        n_heads: query heads of each block.
        n_kv_heads: key and value heads; each serves ``n_heads // n_kv_heads`` query heads.
        d_k: width of a head.
        d_ff: inner width of the feed-forward networks.
        max_positions: the longest sequence there are positions for.
        epsilon: of the RMS norms.
        theta: base of the rotary positions.
        is_tied: whether the head shares the embedding's weight.
    """

    n_tokens: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_k: int
    d_ff: int
    max_positions: int
    epsilon: float
    theta: float
    is_tied: bool


class DecoderBlock(Module):
    """One hidden layer. Takes and gives [batch, positions, d_model]."""

    def __init__(self, config: LlamaConfig, rotary: RotaryPositions, *, device: Device, seed: Seed) -> None:
        d_model = config.d_model
        self.attention_norm = RmsNorm(d_model, epsilon=config.epsilon, device=device)
        self.attention = MultiHeadAttention(
            d_model,
            config.n_heads,
            n_kv_heads=config.n_kv_heads,
            d_k=config.d_k,
            bias=False,
            causal=True,
            rotary=rotary,
            device=device,
            seed=seed,
        )
        self.feed_forward_norm = RmsNorm(d_model, epsilon=config.epsilon, device=device)
        self.feed_forward = GatedFeedForward(d_model, config.d_ff, device=device, seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        """The block over whole sequences, from position 0."""
        return self._run(x, None)

    def new_autoregressive_cache(self) -> KeyValueCache:
        """An empty cache for one sequence."""
        return self.attention.new_cache()

    def forward_autoregressive_inference(self, x: Tensor, cache: KeyValueCache) -> Tensor:
        """The block over the positions that follow those in the cache."""
        return self._run(x, cache)

    def _run(self, x: Tensor, cache: KeyValueCache | None) -> Tensor:
        x = x + self.attention.forward(self.attention_norm.forward(x), cache=cache)
        return x + self.feed_forward.forward(self.feed_forward_norm.forward(x))


class Head(Module):
    """The output layer: RMS norm, then the product with each token's row. [batch, positions, d_model] to logits.

    Args:
        norm: the norm.
        weight: [n_tokens, d_model]; the embedding's own, or another.
        only_last: whether only the last position gets logits, which is what generating needs.
    """

    def __init__(self, norm: RmsNorm, weight: Param, *, only_last: bool) -> None:
        self.norm = norm
        self.weight = weight
        self.only_last = only_last

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, positions, n_tokens]; of one position if only the last is wanted."""
        if self.only_last:
            x = x[:, -1:]
        return ops.linear(self.norm.forward(x), self.weight.val().T)


class Llama(LayerParallelism):
    """A language model: token ids [batch, positions] to logits [batch, positions, n_tokens].

    The blocks of a device share the tables of its rotary positions.

    Args:
        config: its sizes.
        placement: where each layer is built. Parameters are not made before they are read, so weights
            that are loaded go straight to their layer's device.
        only_last: whether the head gives logits of the last position alone.
        seed: of the initial values.
    """

    def __init__(
        self, config: LlamaConfig, placement: LayerPlacement, *, only_last: bool = False, seed: int | Seed | None = None
    ) -> None:
        stream = Seed.of(seed)
        rotary = {device: _rotary(config, device) for device in dict.fromkeys(placement.hidden)}
        self.config = config
        self.embedding = Embedding(config.n_tokens, config.d_model, device=placement.input, seed=stream)
        self.blocks = [DecoderBlock(config, rotary[device], device=device, seed=stream) for device in placement.hidden]
        norm = RmsNorm(config.d_model, epsilon=config.epsilon, device=placement.output)
        rows = self.embedding
        if not config.is_tied:
            rows = Embedding(config.n_tokens, config.d_model, device=placement.output, seed=stream)
        self.head = Head(norm, rows.weight, only_last=only_last)

    def layer_input(self) -> Embedding:
        return self.embedding

    def layers_hidden(self) -> list[DecoderBlock]:
        return self.blocks

    def layer_output(self) -> Head:
        return self.head


def _rotary(config: LlamaConfig, device: Device) -> RotaryPositions:
    """Rotary positions whose pairs are side by side, as GGUF files of the family have them."""
    return RotaryPositions(config.max_positions, config.d_k, theta=config.theta, interleaved=True, device=device)
