"""What one row of the benchmark is about, as text, as tags of a row, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self, TypeAlias

from bench.report import Row

Layout: TypeAlias = Literal["contiguous", "strided"]
Measured: TypeAlias = Literal["bandwidth", "latency", "beside"]
Way: TypeAlias = Literal["one way", "both ways"]

LAYOUTS: Final[Sequence[Layout]] = ("contiguous", "strided")
WAYS: Final[Sequence[Way]] = ("one way", "both ways")
_UNITS: Final = ((30, "GiB"), (20, "MiB"), (10, "KiB"))


def size_text(nbytes: int) -> str:
    """Bytes in the largest unit that divides them: ``64 KiB``."""
    for exponent, unit in _UNITS:
        if nbytes and nbytes % (1 << exponent) == 0:
            return f"{nbytes >> exponent} {unit}"
    return f"{nbytes} B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Copies of one size between two devices.

    Attributes:
        source: a device, as text; of both ways at once the one that was given first.
        destination: another one.
        route: how the bytes go, or who copies them.
        layout: how they lie in the source.
        way: one way, or both at once.
        nbytes: of one copy.
    """

    source: str
    destination: str
    route: str
    layout: Layout
    way: Way
    nbytes: int

    @property
    def what(self) -> str:
        """The name of its row."""
        arrow = "→" if self.way == "one way" else "↔"
        return f"{self.source} {arrow} {self.destination}, {self.route}, {self.layout}, {size_text(self.nbytes)}"

    def tags(self, measured: Measured) -> Mapping[str, Any]:
        """The same as JSON holds it, with what its row's value is."""
        return {**asdict(self), "measured": measured}

    @classmethod
    def of(cls, row: Row, measured: Measured) -> Self | None:
        """What a row is about; None where that is something else, or was not measured."""
        tags = dict(row.tags or {})
        if row.value is None or tags.pop("measured", None) != measured:
            return None
        return cls(**tags)
