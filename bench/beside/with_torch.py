"""A Llama in eager PyTorch, from a float32 GGUF file: one function of torch for each step, as in the usual code.

It takes the packages torch and gguf.
"""

import importlib
from collections.abc import Sequence
from typing import Any

from serve import LanguageModel, serve


class Llama:
    """The model and the keys and values of one sequence, at most `_MOST` positions."""

    _MOST = 1024

    def __init__(self, file: str, threads: int) -> None:
        gguf, torch = (importlib.import_module(name) for name in ("gguf", "torch"))
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.torch = torch
        self.version = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
        reader = gguf.GGUFReader(file)

        def number(key: str) -> Any:
            return reader.fields[f"llama.{key}"].contents()

        self.heads, self.groups = number("attention.head_count"), number("attention.head_count_kv")
        self.width, self.epsilon = number("embedding_length"), number("attention.layer_norm_rms_epsilon")
        self.head_width = self.width // self.heads
        self.weights = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
        self.layers = [self._layer(index) for index in range(number("block_count"))]
        self.embedding = self.weights["token_embd.weight"]
        self.output = self.weights.get("output.weight", self.embedding)
        rates = number("rope.freq_base") ** -(torch.arange(0, self.head_width, 2).double() / self.head_width)
        angles = torch.outer(torch.arange(self._MOST).double(), rates).repeat(1, 2)
        self.cos, self.sin = angles.cos().float(), angles.sin().float()
        shape = (len(self.layers), 2, 1, self.groups, self._MOST, self.head_width)
        self.cache = torch.zeros(shape)
        self.length = 0
        self.last = torch.zeros(0)

    def _layer(self, index: int) -> dict[str, Any]:
        names = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
        layer = {name: self.weights[f"blk.{index}.{name}.weight"] for name in names}
        for name, heads in (("attn_q", self.heads), ("attn_k", self.groups)):
            # GGUF holds the pairs that rotate together as neighbours; the usual code holds them half a head apart.
            pairs = layer[name].reshape(heads, self.head_width // 2, 2, self.width)
            layer[name] = pairs.transpose(1, 2).reshape(heads * self.head_width, self.width).contiguous()
        return layer

    def _rotated(self, x: Any, start: int, end: int) -> Any:
        half = self.head_width // 2
        turned = self.torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * self.cos[start:end] + turned * self.sin[start:end]

    def _forward(self, ids: Sequence[int]) -> int:
        functional = self.torch.nn.functional
        start, end = self.length, self.length + len(ids)
        x = functional.embedding(self.torch.tensor([list(ids)]), self.embedding)
        for layer, (keys, values) in zip(self.layers, self.cache, strict=True):
            normed = functional.rms_norm(x, (self.width,), layer["attn_norm"], self.epsilon)
            q, k, v = (
                functional.linear(normed, layer[name]).view(1, len(ids), -1, self.head_width).transpose(1, 2)
                for name in ("attn_q", "attn_k", "attn_v")
            )
            keys[:, :, start:end] = self._rotated(k, start, end)
            values[:, :, start:end] = v
            mixed = functional.scaled_dot_product_attention(
                self._rotated(q, start, end),
                keys[:, :, :end],
                values[:, :, :end],
                is_causal=len(ids) > 1,
                enable_gqa=True,
            )
            x = x + functional.linear(mixed.transpose(1, 2).reshape(1, len(ids), -1), layer["attn_output"])
            normed = functional.rms_norm(x, (self.width,), layer["ffn_norm"], self.epsilon)
            gate = functional.silu(functional.linear(normed, layer["ffn_gate"]))
            x = x + functional.linear(gate * functional.linear(normed, layer["ffn_up"]), layer["ffn_down"])
        normed = functional.rms_norm(x[0, -1:], (self.width,), self.weights["output_norm.weight"], self.epsilon)
        self.last = functional.linear(normed, self.output)[0]
        self.length = end
        return int(self.last.argmax())

    def start(self, ids: Sequence[int]) -> int:
        self.length = 0
        return self._forward(ids)

    def step(self, id: int) -> int:
        return self._forward([id])

    def logits(self) -> list[float]:
        return self.last.tolist()


def load(file: str, threads: int) -> LanguageModel:
    """The model in a GGUF file."""
    return Llama(file, threads)


if __name__ == "__main__":
    serve(load)
