"""What a check is, and running them: one that fails or cannot run does not keep the others from running."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeAlias

from engine import Device

Outcome: TypeAlias = Literal["ok", "FAILED", "not run"]


class WrongError(AssertionError):
    """A GPU did not do what it must."""


class NotRunError(Exception):
    """A check cannot run here; the message says why."""


class Bench(NamedTuple):
    """What the checks run on.

    Attributes:
        gpus: in order; one or more.
        quick: tiny sizes, and nothing that needs a GPU to be busy for a while.
    """

    gpus: Sequence[Device]
    quick: bool

    @property
    def gpu(self) -> Device:
        """The one that most checks take."""
        return self.gpus[0]

    @property
    def two(self) -> tuple[Device, Device]:
        """The first two.

        Raises:
            NotRunError: there is one.
        """
        if len(self.gpus) < 2:
            raise NotRunError("it takes two GPUs, and there is one")
        return self.gpus[0], self.gpus[1]


Check: TypeAlias = Callable[[Bench], str]  # its docstring is its name; it gives a detail worth reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of a check."""

    name: str
    outcome: Outcome
    detail: str
    seconds: float

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        return self.name, self.outcome, self.detail, f"{self.seconds:.1f} s"

    def document(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        return asdict(self)


def need(holds: bool, otherwise: str) -> None:
    """Check something.

    Raises:
        WrongError: it does not hold.
    """
    if not holds:
        raise WrongError(otherwise)


def run(checks: Iterable[Check], bench: Bench) -> Iterator[Found]:
    """The checks one by one, whatever comes of each."""
    for check in checks:
        start = perf_counter()
        outcome: Outcome = "ok"
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="The device where the array resides")  # CuPy reads it remotely
                detail = check(bench)
            for gpu in bench.gpus:
                gpu.synchronize()
        except NotRunError as why:
            outcome, detail = "not run", str(why)
        except Exception as error:  # whatever a GPU makes of it belongs into the table
            text = " ".join(str(error).split())
            outcome, detail = "FAILED", text if isinstance(error, WrongError) else f"{type(error).__name__}: {text}"
        name = (check.__doc__ or check.__name__).strip().split("\n", 1)[0].rstrip(".")
        yield Found(name=name, outcome=outcome, detail=detail, seconds=perf_counter() - start)
