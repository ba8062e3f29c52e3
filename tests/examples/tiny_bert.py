"""A BERT of random weights as transformers stores one, with a tokenizer of words, and what it computes in float64."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file

WIDTH, HEADS, INNER, LAYERS, POSITIONS, EPSILON = 8, 2, 12, 3, 16, 1e-12
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "mat"]


def weights() -> dict[str, Any]:
    """Name to float32 array, with a pooler that sentence embeddings leave out, and the positions' numbers."""
    random = np.random.default_rng(0)

    def both(name: str, *shape: int) -> dict[str, Any]:
        drawn = {"weight": random.standard_normal(shape), "bias": random.standard_normal(shape[:1])}
        return {f"{name}.{part}": array.astype(np.float32) for part, array in drawn.items()}

    made = {
        f"embeddings.{name}_embeddings.weight": random.standard_normal((rows, WIDTH)).astype(np.float32)
        for name, rows in (("word", len(WORDS)), ("position", POSITIONS), ("token_type", 2))
    }
    made |= both("embeddings.LayerNorm", WIDTH) | both("pooler.dense", WIDTH, WIDTH)
    made["embeddings.position_ids"] = np.arange(POSITIONS)[None]
    for layer in range(LAYERS):
        under = f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            made |= both(f"{under}.attention.self.{name}", WIDTH, WIDTH)
        made |= both(f"{under}.attention.output.dense", WIDTH, WIDTH) | both(
            f"{under}.attention.output.LayerNorm", WIDTH
        )
        made |= both(f"{under}.intermediate.dense", INNER, WIDTH) | both(f"{under}.output.dense", WIDTH, INNER)
        made |= both(f"{under}.output.LayerNorm", WIDTH)
    return made


def write(folder: Path) -> Path:
    """The three files of a model in a folder."""
    config = {
        "model_type": "bert", "hidden_act": "gelu", "hidden_size": WIDTH, "intermediate_size": INNER,
        "layer_norm_eps": EPSILON, "max_position_embeddings": POSITIONS, "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS, "type_vocab_size": 2, "vocab_size": len(WORDS),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights(), folder / "model.safetensors")
    words = {word: index for index, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = [(word, words[word]) for word in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=None, special_tokens=special
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def embedding(ids: list[int]) -> Any:
    """The embedding of one text in float64."""
    w = {name: array.astype(np.float64) for name, array in weights().items()}

    def linear(name: str, x: Any) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][0])
    for layer in range(LAYERS):
        under, d = f"encoder.layer.{layer}", WIDTH // HEADS
        q, k, v = (linear(f"{under}.attention.self.{name}", x) for name in ("query", "key", "value"))
        heads = []
        for head in range(HEADS):
            at = slice(head * d, head * d + d)
            shares = np.exp(q[:, at] @ k[:, at].T / math.sqrt(d))
            heads.append(shares / shares.sum(-1, keepdims=True) @ v[:, at])
        attended = linear(f"{under}.attention.output.dense", np.concatenate(heads, axis=-1))
        x = norm(f"{under}.attention.output.LayerNorm", x + attended)
        inner = linear(f"{under}.intermediate.dense", x)
        inner = inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2))) / 2
        x = norm(f"{under}.output.LayerNorm", x + linear(f"{under}.output.dense", inner))
    mean = x.mean(0)
    return mean / np.sqrt((mean**2).sum())
