"""llama.cpp on a GGUF file, through the C interface that the package llama_cpp (llama-cpp-python) gives."""

import importlib
from collections.abc import Sequence
from typing import Any

from serve import LanguageModel, serve


class LlamaCpp:
    """A model with a context for one sequence."""

    def __init__(self, file: str, threads: int) -> None:
        llama_cpp, arrays = (importlib.import_module(name) for name in ("llama_cpp", "numpy.ctypeslib"))
        self.library = llama_cpp
        self.as_array = arrays.as_array
        self.version = f"llama-cpp-python {llama_cpp.__version__}, {threads} threads"
        self.model = llama_cpp.Llama(
            file, n_ctx=1024, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self.last: Any = None

    def _forward(self, ids: Sequence[int]) -> int:
        context = self.model.ctx
        tokens = (self.library.llama_token * len(ids))(*ids)
        if self.library.llama_decode(context, self.library.llama_batch_get_one(tokens, len(ids))):
            raise RuntimeError("llama_decode failed")
        self.last = self.as_array(self.library.llama_get_logits_ith(context, -1), (self.model.n_vocab(),))
        return int(self.last.argmax())

    def start(self, ids: Sequence[int]) -> int:
        self.library.llama_memory_clear(self.library.llama_get_memory(self.model.ctx), True)
        return self._forward(ids)

    def step(self, id: int) -> int:
        return self._forward([id])

    def logits(self) -> list[float]:
        return self.last.tolist()


def load(file: str, threads: int) -> LanguageModel:
    """The model in a GGUF file."""
    return LlamaCpp(file, threads)


if __name__ == "__main__":
    serve(load)
