"""A Llama of random weights in a GGUF file, whose tokens are bytes, and what it computes, written out in float64."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

BYTES = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
SPELLING = {byte: chr(byte) for byte in BYTES}
SPELLING |= {byte: chr(256 + n) for n, byte in enumerate(b for b in range(256) if b not in BYTES)}
END, START, TOOL = 0, 1, 2
FIRST_BYTE = 3

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}: {{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)


@dataclass
class TinyLlama:
    """Sizes, tokenizer data and weights; `metadata` replaces single entries, None leaves one out."""

    width: int = 8
    heads: int = 2
    groups: int = 1
    inner: int = 12
    blocks: int = 3
    positions: int = 64
    is_tied: bool = True
    seed: int = 0
    template: str | None = TEMPLATE
    metadata: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    theta = 1000.0
    epsilon = 1e-5

    @property
    def tokens(self) -> list[str]:
        """Three special tokens, the bytes, and one merged pair."""
        return ["<|end|>", "<|start|>", "<tool>", *(SPELLING[byte] for byte in range(256)), "he"]

    @property
    def d_head(self) -> int:
        return self.width // self.heads

    def weights(self) -> dict[str, Any]:
        """Name to float32 array, as the file has them: a linear layer's weight is [out, in]."""
        random = np.random.default_rng(self.seed)
        width, keys = self.width, self.groups * self.d_head
        shapes = {"token_embd": (len(self.tokens), width), "output_norm": (width,)}
        if not self.is_tied:
            shapes["output"] = (len(self.tokens), width)
        for block in range(self.blocks):
            of_block = {
                "attn_q": (width, width), "attn_k": (keys, width), "attn_v": (keys, width),
                "attn_output": (width, width), "ffn_gate": (self.inner, width), "ffn_up": (self.inner, width),
                "ffn_down": (width, self.inner), "attn_norm": (width,), "ffn_norm": (width,),
            }  # fmt: skip
            shapes |= {f"blk.{block}.{name}": shape for name, shape in of_block.items()}
        drawn = {f"{n}.weight": random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
        return {name: array for name, array in drawn.items() if name not in self.without}

    def write(self, file: Path) -> Path:
        """The file, written anew."""
        writer = gguf.GGUFWriter(file, "llama")
        values: dict[str, Any] = {
            "llama.block_count": np.uint32(self.blocks),
            "llama.context_length": np.uint32(self.positions),
            "llama.embedding_length": np.uint32(self.width),
            "llama.feed_forward_length": np.uint32(self.inner),
            "llama.attention.head_count": np.uint32(self.heads),
            "llama.attention.head_count_kv": np.uint32(self.groups),
            "llama.rope.freq_base": np.float32(self.theta),
            "llama.attention.layer_norm_rms_epsilon": np.float32(self.epsilon),
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": self.tokens,
            "tokenizer.ggml.token_type": [3, 3, 4, *[1] * 257],
            "tokenizer.ggml.merges": ["h e"],
            "tokenizer.ggml.eos_token_id": np.uint32(END),
            "tokenizer.ggml.bos_token_id": np.uint32(START),
            "tokenizer.chat_template": self.template,
            **self.metadata,
        }
        if (architecture := values.pop("general.architecture", None)) is not None:
            writer = gguf.GGUFWriter(file, architecture)
        for key, value in values.items():
            if value is not None:
                _add(writer, key, value)
        for name, array in self.weights().items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file

    def logits(self, ids: list[int]) -> Any:
        """Logits [positions, n_tokens] in float64, one position and one head at a time."""
        weights = {name.removesuffix(".weight"): array.astype(np.float64) for name, array in self.weights().items()}
        x = weights["token_embd"][ids]
        for block in range(self.blocks):
            of = {name.split(".")[-1]: w for name, w in weights.items() if name.startswith(f"blk.{block}.")}
            x = x + self._attention(of, self._norm(x, of["attn_norm"]))
            normed = self._norm(x, of["ffn_norm"])
            gate = normed @ of["ffn_gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (normed @ of["ffn_up"].T)) @ of["ffn_down"].T
        return self._norm(x, weights["output_norm"]) @ weights.get("output", weights["token_embd"]).T

    def _norm(self, x: Any, gamma: Any) -> Any:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + np.float32(self.epsilon)) * gamma

    def _attention(self, of: dict[str, Any], x: Any) -> Any:
        d, rows = self.d_head, []
        q, k, v = (x @ of[f"attn_{which}"].T for which in "qkv")
        for p in range(len(x)):
            heads = []
            for head in range(self.heads):
                group = head * self.groups // self.heads
                at = slice(group * d, group * d + d)
                query = self._turned(q[p, head * d : head * d + d], p)
                scores = [query @ self._turned(k[s, at], s) / np.sqrt(d) for s in range(p + 1)]
                shares = np.exp(np.array(scores) - max(scores))
                heads.append(shares @ v[: p + 1, at] / shares.sum())
            rows.append(np.concatenate(heads))
        return np.stack(rows) @ of["attn_output"].T

    def _turned(self, features: Any, position: int) -> Any:
        """Pairs (2i, 2i + 1) as complex numbers, turned."""
        angles = position * float(self.theta) ** (-np.arange(0, self.d_head, 2) / self.d_head)
        z = (features[::2] + 1j * features[1::2]) * np.exp(1j * angles)
        return np.stack([z.real, z.imag], axis=-1).reshape(-1)


def _add(writer: Any, key: str, value: Any) -> None:
    kinds = gguf.GGUFValueType
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, np.uint32):
        writer.add_key_value(key, int(value), kinds.UINT32)
    elif isinstance(value, np.float32):
        writer.add_key_value(key, float(value), kinds.FLOAT32)
    else:
        raise TypeError(key)
