"""Which benchmarks there are: a file of this folder for each, listed here under its name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from . import copies, forward, generate, modules, quantize, records, train
from .report import Row, Table
from .settings import Settings


class Benchmark(Protocol):
    """A file that asks one question, in its docstring."""

    __doc__: str | None

    def measure(self, settings: Settings, /) -> Iterable[Row]:
        """The answers, a row each, as they are found.

        Raises:
            AnswerError: two sides of a comparison computed different things.
        """
        ...


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "copies": copies,
    "forward": forward,
    "generate": generate,
    "modules": modules,
    "quantize": quantize,
    "records": records,
    "train": train,
}


def tables_of(benchmark: Benchmark, rows: Sequence[Row]) -> Sequence[Table]:
    """The tables of a benchmark's own that show its rows; none where it has no function ``tables``."""
    made = getattr(benchmark, "tables", None)
    return () if made is None else made(rows)
