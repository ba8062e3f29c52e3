"""Which benchmarks there are: a file of this folder for each, listed here under its name."""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from . import forward, generate, modules, records, train
from .report import Row
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
    "forward": forward,
    "generate": generate,
    "modules": modules,
    "records": records,
    "train": train,
}
