"""The BERT encoder, as sentence embeddings use it: each layer can run on a device of its own.

A block is ``norm(x + attention(x))``, then ``norm(x + feed_forward(x))``. The
signal between layers is a pair: the hidden state [batch, positions, d_model],
and a mask, bool [batch, positions], false where a text is padded; None where
no text is. The output layer gives each text the mean over its tokens, scaled
to length 1.

Source: J. Devlin et al., "BERT" (2018); N. Reimers, I. Gurevych, "Sentence-BERT" (2019).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from engine import Device, Seed, Tensor, arange, ops
from examples.errors import UsageError
from modules import Module
from modules.nn import Embedding, FeedForward, LayerNorm, MultiHeadAttention
from modules.parallel import LayerParallelism, LayerPlacement
from records import Join, KeyRemapper, ModuleRecord, RecordFormatError, Transpose

Signal: TypeAlias = tuple[Tensor, Tensor | None]

_NAMES: Final = (
    (r"^embeddings\.(word|position|token_type)_embeddings\.weight$", r"embeddings.\1.weight"),
    (r"^encoder\.layer\.(\d+)\.", r"blocks.\1."),
    (r"attention\.self\.(query|key|value)\.", r"attention.\1."),
    (r"attention\.output\.dense\.", "attention.output."),
    (r"attention\.output\.LayerNorm\.", "attention_norm."),
    (r"intermediate\.dense\.", "feed_forward.linear_inner."),
    (r"^(blocks\.\d+)\.output\.dense\.", r"\1.feed_forward.linear_outer."),
    (r"^(blocks\.\d+)\.output\.LayerNorm\.", r"\1.feed_forward_norm."),
    (r"LayerNorm\.", "norm."),
    (r"norm\.weight$", "norm.gamma"),
    (r"norm\.bias$", "norm.beta"),
)


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The sizes of a model.

    Attributes:
        n_tokens: size of the vocabulary.
        d_model: width of the hidden state.
        n_layers: number of blocks.
        n_heads: heads of each block.
        d_ff: inner width of the feed-forward networks.
        max_positions: the longest text.
        n_types: token types; all our tokens are of type 0.
        epsilon: of the layer norms.
    """

    n_tokens: int
    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    max_positions: int
    n_types: int
    epsilon: float


class BertEmbeddings(Module):
    """The input layer: for each token the sum of its word's, its position's and its type's vector, normalised."""

    def __init__(self, config: BertConfig, *, device: Device, seed: Seed) -> None:
        self.word = Embedding(config.n_tokens, config.d_model, device=device, seed=seed)
        self.position = Embedding(config.max_positions, config.d_model, device=device, seed=seed)
        self.token_type = Embedding(config.n_types, config.d_model, device=device, seed=seed)
        self.norm = LayerNorm(config.d_model, epsilon=config.epsilon, device=device)

    def forward(self, input: tuple[Tensor, Tensor | None]) -> Signal:
        """Ids [batch, positions] and the mask to the signal."""
        ids, mask = input
        positions = self.position.forward(arange(ids.shape[1], device=ids.device))
        return self.norm.forward(self.word.forward(ids) + positions + self.token_type.weight.val()[0]), mask


class EncoderBlock(Module):
    """One hidden layer. Takes and gives the signal; the mask passes unchanged."""

    def __init__(self, config: BertConfig, *, device: Device, seed: Seed) -> None:
        d_model, epsilon = config.d_model, config.epsilon
        self.attention = MultiHeadAttention(d_model, config.n_heads, device=device, seed=seed)
        self.attention_norm = LayerNorm(d_model, epsilon=epsilon, device=device)
        self.feed_forward = FeedForward(d_model, config.d_ff, device=device, seed=seed)
        self.feed_forward_norm = LayerNorm(d_model, epsilon=epsilon, device=device)

    def forward(self, signal: Signal) -> Signal:
        x, mask = signal
        x = self.attention_norm.forward(x + self.attention.forward(x, mask))
        return self.feed_forward_norm.forward(x + self.feed_forward.forward(x)), mask


class MeanOfTokens(Module):
    """The output layer: the mean over the tokens of each text, scaled to length 1. It has no parameters."""

    def forward(self, signal: Signal) -> Tensor:
        """The signal to [batch, d_model]."""
        x, mask = signal
        if mask is not None:
            x = ops.where(mask.reshape(*mask.shape, 1), x, 0.0)
        total = ops.sum(x, axis=1)
        return total / ops.sqrt(ops.sum(total * total, axis=-1, keepdims=True))  # the number of tokens cancels


class Bert(LayerParallelism):
    """A sentence encoder: token ids and mask, both [batch, positions], to embeddings [batch, d_model].

    Args:
        config: its sizes.
        placement: where each layer is built; parameters are not made before they are read.
        seed: of the initial values.
    """

    def __init__(self, config: BertConfig, placement: LayerPlacement, *, seed: int | Seed | None = None) -> None:
        stream = Seed.of(seed)
        self.config = config
        self.embeddings = BertEmbeddings(config, device=placement.input, seed=stream)
        self.blocks = [EncoderBlock(config, device=device, seed=stream) for device in placement.hidden]
        self.pooling = MeanOfTokens()

    def layer_input(self) -> BertEmbeddings:
        return self.embeddings

    def layers_hidden(self) -> list[EncoderBlock]:
        return self.blocks

    def layer_output(self) -> MeanOfTokens:
        return self.pooling


def bert_config(file: Path) -> BertConfig:
    """The sizes that a ``config.json`` of transformers gives.

    Raises:
        RecordFormatError: it lacks one, or is no JSON object.
        UsageError: it is no BERT, or one that computes otherwise.
    """
    try:
        values = json.loads(file.read_text())
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise RecordFormatError(f"{file}: no JSON object")
    supported = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    for key, value in supported.items():
        if values.get(key, value) != value:
            raise UsageError(f"{file}: {key} is {values[key]!r}; only {value!r} is supported")
    try:
        return BertConfig(
            n_tokens=values["vocab_size"],
            d_model=values["hidden_size"],
            n_layers=values["num_hidden_layers"],
            n_heads=values["num_attention_heads"],
            d_ff=values["intermediate_size"],
            max_positions=values["max_position_embeddings"],
            n_types=values["type_vocab_size"],
            epsilon=values["layer_norm_eps"],
        )
    except KeyError as error:
        raise RecordFormatError(f"{file}: {error} is missing") from None


def bert_record(record: ModuleRecord, config: BertConfig) -> ModuleRecord:
    """A checkpoint of transformers as `Bert` takes it: our names, [d_input, d_output], q, k and v joined.

    What pools by the first token is left out, as sentence embeddings do.

    Raises:
        RecordFormatError: the checkpoint lacks a weight.
    """
    joins = [
        Join(
            f"blocks.{index}.attention.query_key_value.{part}",
            [f"blocks.{index}.attention.{which}.{part}" for which in ("query", "key", "value")],
            axis=-1,
        )
        for index in range(config.n_layers)
        for part in ("weight", "bias")
    ]
    adapted = record.adapt(
        KeyRemapper(_NAMES),
        Transpose(r"^blocks\.\d+\.(attention|feed_forward)\..*weight$"),
        *joins,
    )
    return adapted.with_options(allow_unused=True)
