"""Our own language model as the benchmarks ask it to work: as the scripts in `beside` do theirs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from engine import Device, Tensor, ops, tensor
from examples.models.llama import Llama
from examples.models.llama_gguf import llama_config, llama_record
from modules import ModuleVisitor, Param
from modules.parallel import DistributedLayeredModel, LayerPlacement
from records import open_record

from .beside.serve import answer
from .timing import Reading

_HOST: Final = Device("cpu:0")


class Speaker:
    """A Llama over some devices, with the cache of one sequence; greedy.

    Args:
        file: a GGUF file.
        devices: the layers are cut evenly over them.
        only_last: whether it gives the logits of the last position alone.
    """

    version = "ours"

    def __init__(self, file: Path, devices: Sequence[str], *, only_last: bool = True) -> None:
        with open_record(file) as record:
            self.config = llama_config(record)
            placement = LayerPlacement.even(devices, self.config.n_layers)
            if self.config.is_tied:
                placement = LayerPlacement(placement.input, placement.hidden, placement.input)
            built = DistributedLayeredModel(Llama(self.config, placement, only_last=only_last), placement)
            self.model = built.load_record(llama_record(record, self.config))
        self._cache: Any = None
        self._logits: Tensor | None = None

    def start(self, ids: Sequence[int]) -> int:
        """Forget everything, take these tokens, and give the likeliest next one."""
        self._cache = self.model.new_autoregressive_cache()
        return self._forward(ids)

    def step(self, id: int) -> int:
        """Take one token more, and give the likeliest next one."""
        return self._forward([id])

    def _forward(self, ids: Sequence[int]) -> int:
        batch = tensor([list(ids)], device=self.model.placement.input)
        logits: Tensor = self.model.forward_autoregressive_inference(batch, self._cache)[0, -1]
        self._logits = logits
        return int(ops.argmax(logits))

    def logits(self) -> list[float]:
        """The logits of the last position."""
        return [] if self._logits is None else self._logits.to_device(_HOST).numpy().tolist()

    def following(self, ids: Sequence[int], tokens: int) -> dict[str, Any]:
        """The ``ids`` that follow, and the ``logits`` of the last position of `ids`."""
        return answer(self, {"do": "continue", "ids": ids, "tokens": tokens})

    def decoding(self, ids: Sequence[int], tokens: int) -> Reading:
        """A reading of the seconds that one token takes, where so many follow `ids`."""
        request = {"do": "decode", "ids": ids, "tokens": tokens}
        return lambda: answer(self, request)["seconds"] / tokens

    def prefilling(self, ids: Sequence[int]) -> Reading:
        """A reading of the seconds that the logits after `ids` take."""
        return lambda: answer(self, {"do": "prefill", "ids": ids})["seconds"]

    def products(self) -> list[Tensor]:
        """The weights of all matrix products, each [d_input, d_output], in the order in which a token meets them."""
        visitor = _Matrices()
        for block in self.model.model.layers_hidden():
            block.visit(visitor)
        return [*visitor.found, self.model.model.head.weight.val().T]


class _Matrices(ModuleVisitor):
    """Collects the values of parameters of rank 2."""

    def __init__(self) -> None:
        self.found: list[Tensor] = []

    def visit_float(self, path: str, param: Param, /) -> None:
        if len(param.shape) == 2:
            self.found.append(param.val())


def multiplied(rows: Sequence[NDArray[Any]], weights: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Each row times its weight, and nothing else."""
    return [row @ weight for row, weight in zip(rows, weights, strict=True)]
