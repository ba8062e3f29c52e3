"""Llama models from GGUF files: their sizes, from the metadata, and their weights, under our names."""

import math
from typing import Any, Final

from examples.errors import UsageError
from examples.models.llama import LlamaConfig
from records import Join, KeyRemapper, ModuleRecord, RecordFormatError, Transpose

_NAMES: Final = (
    (r"^token_embd\.weight$", "embedding.rows"),
    (r"^output_norm\.weight$", "head.norm.gamma"),
    (r"^output\.weight$", "head.rows"),
    (r"^blk\.(\d+)\.attn_norm\.weight$", r"blocks.\1.attention_norm.gamma"),
    (r"^blk\.(\d+)\.attn_output\.weight$", r"blocks.\1.attention.o"),
    (r"^blk\.(\d+)\.attn_([qkv])\.weight$", r"blocks.\1.attention.\2"),
    (r"^blk\.(\d+)\.ffn_norm\.weight$", r"blocks.\1.feed_forward_norm.gamma"),
    (r"^blk\.(\d+)\.ffn_(gate|up)\.weight$", r"blocks.\1.feed_forward.\2"),
    (r"^blk\.(\d+)\.ffn_down\.weight$", r"blocks.\1.feed_forward.down.weight"),
)
_JOINED: Final = {  # a block's linear layers -> what they are made of
    "attention.query_key_value": ("attention.q", "attention.k", "attention.v"),
    "attention.output": ("attention.o",),
    "feed_forward.gate_up": ("feed_forward.gate", "feed_forward.up"),
}


def llama_config(record: ModuleRecord) -> LlamaConfig:
    """The sizes that a GGUF file's metadata gives.

    Raises:
        UsageError: it is a model of another family, or of a kind that is not supported.
        RecordFormatError: the metadata lacks a size, or has one that is none.
    """
    metadata = record.metadata
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UsageError(f"the file holds a model of architecture {architecture!r}; only 'llama' is supported")
    if metadata.get("llama.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in record:
        raise UsageError("the file's rotary positions are scaled, which is not supported")
    n_heads, d_model = (_size(metadata, key) for key in ("attention.head_count", "embedding_length"))
    d_k = _size(metadata, "attention.key_length", d_model // n_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if _size(metadata, key, d_k) != d_k:
            raise UsageError(f"the file's heads are {d_k} wide and its llama.{key} differs, which is not supported")
    n_layers = _size(metadata, "block_count")
    if n_layers > len(record):
        raise RecordFormatError(f"the file has {len(record)} tensors and claims {n_layers} layers")
    return LlamaConfig(
        n_tokens=len(metadata.get("tokenizer.ggml.tokens", ())),
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=_size(metadata, "attention.head_count_kv", n_heads),
        d_k=d_k,
        d_ff=_size(metadata, "feed_forward_length"),
        max_positions=_size(metadata, "context_length"),
        epsilon=_number(metadata, "attention.layer_norm_rms_epsilon"),
        theta=_number(metadata, "rope.freq_base", 10000.0),
        is_tied="output.weight" not in record,
    )


def llama_record(record: ModuleRecord, config: LlamaConfig) -> ModuleRecord:
    """A GGUF file's weights as `Llama` takes them: our names, [d_input, d_output], q, k, v and gate, up joined.

    A join copies, also of a single source: the weights of layers that are at
    least as wide as their input lie in memory as [d_input, d_output], those of
    tokens as [d_model, n_tokens]. Read so, one position takes half to
    nine tenths of the time that the file's order takes; the narrowing layer,
    down, takes half of it in the file's order.

    Raises:
        RecordFormatError: the file lacks a weight.
    """
    joins = [
        Join(f"blocks.{index}.{target}.weight", [f"blocks.{index}.{source}" for source in sources], axis=1)
        for index in range(config.n_layers)
        for target, sources in _JOINED.items()
    ]
    rows = ["embedding"] if config.is_tied else ["embedding", "head"]
    return record.adapt(
        KeyRemapper(_NAMES),
        Transpose(r"\.([qkvo]|gate|up|down\.weight|rows)$"),
        *joins,
        *(Join(f"{layer}.weight", [f"{layer}.rows"], axis=1) for layer in rows),
        Transpose(r"^(embedding|head)\.weight$"),
    )


def _size(metadata: Any, key: str, default: int | None = None) -> int:
    value = metadata.get(f"llama.{key}", default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RecordFormatError(f"the metadata llama.{key} is {value!r}; it must be a number of 1 or more")
    return value


def _number(metadata: Any, key: str, default: float | None = None) -> float:
    value = metadata.get(f"llama.{key}", default)
    if not isinstance(value, float) or not math.isfinite(value) or value <= 0:
        raise RecordFormatError(f"the metadata llama.{key} is {value!r}; it must be a number above 0")
    return value
