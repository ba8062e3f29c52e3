"""The copies of `bench.copies` in PyTorch; it takes the package torch.

``copy`` from ``source`` to ``destination`` of ``nbytes``, ``repeat`` times: the ``seconds`` that they take, of events
where a GPU takes part. Devices are named as torch does; from ``cpu`` to ``cpu`` is a clone.
"""

import importlib
from time import perf_counter
from typing import Any

from serve import serve


class Copies:
    """A tensor of bytes for each place and size that was asked for last."""

    def __init__(self, threads: int) -> None:
        torch = importlib.import_module("torch")
        torch.set_num_threads(threads)
        self.torch = torch
        self.version = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
        self._held: tuple[tuple[str, int], Any] | None = None

    def _tensor(self, place: str, nbytes: int) -> Any:
        if self._held is None or self._held[0] != (place, nbytes):
            self._held = None
            self._held = (place, nbytes), self.torch.ones(nbytes, dtype=self.torch.uint8, device=place)
        return self._held[1]

    def seconds(self, source: str, destination: str, nbytes: int, repeat: int) -> float:
        """How long so many copies take."""
        x = self._tensor(source, nbytes)
        cuda = self.torch.cuda
        gpus = [place for place in (source, destination) if place != "cpu"]
        for gpu in gpus:
            cuda.synchronize(gpu)
        if not gpus:
            begin = perf_counter()
            for _ in range(repeat):
                x.clone()
            return perf_counter() - begin
        with cuda.device(gpus[0]):
            start, end = (cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(repeat):
                x.to(destination, non_blocking=destination != "cpu")
            if len(gpus) == 2:
                with cuda.device(gpus[1]):
                    there = cuda.Event()
                    there.record()
                cuda.current_stream().wait_event(there)
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1e3


def answer(copies: Copies, request: dict[str, Any]) -> dict[str, Any]:
    """What a request asks for."""
    return {"seconds": copies.seconds(*(request[name] for name in ("source", "destination", "nbytes", "repeat")))}


def load(file: str, threads: int) -> Copies:
    """Nothing of a file is needed."""
    return Copies(threads)


if __name__ == "__main__":
    serve(load, answer)
