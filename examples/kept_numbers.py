"""What a record of an example holds beside its tensors: numbers, checked before anything is made of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import nextafter
from pathlib import Path
from typing import Any, Final, final

from examples.errors import UsageError
from records import ModuleRecord, RecordValidationError

MOST: Final = 2**31 - 1
"""The greatest count."""

GREATEST: Final = (2 - 2**-23) * 2.0**127
"""The greatest number of float32, in which the examples train."""

LEAST: Final = nextafter(0, 1)
"""The least number above 0."""


@final
@dataclass(frozen=True)
class KeptNumbers:
    """The numbers that each record of one kind holds.

    Args:
        of: the kind, as messages have it: ``a training run``.
        like: the names, each with a number of its type.
        ranges: the least and the greatest value of each, both included.
    """

    of: str
    like: Mapping[str, int | float]
    ranges: Mapping[str, tuple[float, float]]

    def read(self, file: Path, record: ModuleRecord) -> dict[str, Any]:
        """The numbers in a file's record, by name.

        Raises:
            UsageError: one is missing, of another type or out of its range.
        """
        return {name: self._number(file, record, name) for name in self.like}

    def check_extent(self, file: Path, record: ModuleRecord, name: str, found: int) -> None:
        """Refuse a number that is an extent of some tensors, and greater than those of the record's.

        Tensors so large would be made before the record is found not to fit.

        Raises:
            UsageError: it is greater.
        """
        extents = [extent for entry in record.values() for extent in entry.shape]
        self.check_most(file, name, found, max(extents, default=0))

    def check_most(self, file: Path, name: str, found: int, most: int) -> None:
        """Refuse a number that is greater than the record's tensors allow.

        Raises:
            UsageError: it is greater.
        """
        if found > most:
            raise self.refused(file, f"its {name!r} is {found}, and its tensors are of {most} at most")

    def refused(self, file: Path, why: str) -> UsageError:
        """The error that says that a file holds no record of this kind."""
        return UsageError(f"{file} is no record of {self.of}: {why}")

    @contextmanager
    def loaded_from(self, file: Path) -> Iterator[None]:
        """Inside the ``with``, tensors of a file's record are loaded.

        Raises:
            UsageError: they do not fit; it tells the first thing that does not, and how many more there are.
        """
        try:
            yield
        except RecordValidationError as error:
            first, *others = error.findings
            raise self.refused(file, f"{first}{f' (and {len(others)} more)' if others else ''}") from error

    def _number(self, file: Path, record: ModuleRecord, name: str) -> int | float:
        scalar = record.scalars.get(name)
        if scalar is None:
            raise self.refused(file, f"it has no number {name!r}")
        value, of, (low, high) = scalar.value, type(self.like[name]), self.ranges[name]
        if isinstance(value, bool) or not isinstance(value, (int, of)) or not low <= value <= high:
            raise self.refused(file, f"its {name!r} is {value!r}")
        return of(value)
