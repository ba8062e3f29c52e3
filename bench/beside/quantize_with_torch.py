"""Quantizing the weight of `bench.quantize` in eager PyTorch; it takes the packages torch and numpy.

Each request names ``high``, the largest value, and ``block``, the values that share a scale, 0 for all of them.
``digest``: the ``values``, ``scales`` and ``numbers`` (values times scales), as the SHA-256 of their bytes.
``quantize``, ``dequantize`` (into a new tensor) and ``fill`` (into one that is there): the ``seconds`` of one.
"""

import hashlib
import importlib
import json
from collections.abc import Callable
from time import perf_counter
from typing import Any

from serve import serve


class Weight:
    """A float32 matrix, and what came of it last."""

    def __init__(self, file: str, threads: int) -> None:
        torch = importlib.import_module("torch")
        torch.set_num_threads(threads)
        self.torch = torch
        self.version = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
        with open(file, "rb") as stream:  # noqa: PTH123
            shape = json.loads(stream.readline())["shape"]
            self.x = torch.frombuffer(bytearray(stream.read()), dtype=torch.float32).reshape(shape)
        self.made: tuple[Any, ...] = ()
        self.out = torch.empty_like(self.x)

    def quantize(self, high: int, block: int) -> tuple[Any, Any]:
        """Values and scales, the nearest ones, halves to even."""
        x = self.x.view(-1, block) if block else self.x.view(1, -1)
        scales = x.abs().amax(dim=-1, keepdim=True) / high
        return (x / scales).round().clamp(-high, high).to(self.torch.int8), scales

    def prepared(self, high: int, block: int) -> tuple[Any, Any]:
        """The same, kept from one request to the next."""
        if self.made[:2] != (high, block):
            self.made = (high, block, *self.quantize(high, block))
        return self.made[2], self.made[3]

    def dequantize(self, high: int, block: int) -> Any:
        """The numbers, in a new tensor."""
        values, scales = self.prepared(high, block)
        return values.to(self.torch.float32) * scales

    def fill(self, high: int, block: int) -> Any:
        """The numbers, in a tensor that is there."""
        values, scales = self.prepared(high, block)
        return self.torch.mul(values, scales, out=self.out.view(values.shape))


def answer(weight: Weight, request: dict[str, Any]) -> dict[str, Any]:
    """What a request asks for."""
    high, block = request["high"], request["block"]
    values, scales = weight.prepared(high, block)
    if request["do"] == "digest":
        found = {"values": values, "scales": scales, "numbers": weight.dequantize(high, block)}
        return {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in found.items()}
    work: Callable[[int, int], Any] = getattr(weight, request["do"])
    start = perf_counter()
    work(high, block)
    return {"seconds": perf_counter() - start}


def load(file: str, threads: int) -> Weight:
    """The matrix in a file: a line of JSON, then float32 numbers."""
    return Weight(file, threads)


if __name__ == "__main__":
    serve(load, answer)
