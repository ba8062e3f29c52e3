"""What a load comes to, for people: which entry goes where, what is cast, missing, unused, or does not fit."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from engine import Device
from records.nearest import nearest

_LINES = 10

T = TypeVar("T")


class Mismatch(NamedTuple):
    """An entry that a module cannot take."""

    path: str
    reason: str


class Loading(NamedTuple):
    """An entry that a module takes.

    Attributes:
        path: of the entry.
        shape: of the entry.
        stored: its dtype in the record, as text.
        loaded: its dtype in the module, afterwards.
        before: the dtype that the module had for it.
        device: where it goes.
        tied: other places of the module that it serves (D8).
    """

    path: str
    shape: tuple[int, ...]
    stored: str
    loaded: str
    before: str
    device: Device
    tied: tuple[str, ...]

    @property
    def is_cast(self) -> bool:
        """Whether its numbers are converted."""
        return self.stored != self.loaded


@dataclass(frozen=True)
class LoadReport:
    """What of a record goes where in a module; `str` and `text` say it in lines.

    Attributes:
        loaded: the entries that the module takes, in traversal order.
        missing: paths of the module that the record lacks.
        unused: paths of the record that the module lacks.
        mismatched: entries that the module cannot take, and why.
        turned: paths of mismatched entries that would fit with their last two axes swapped.
        findings: one line for each thing that is an error under the record's options; without any, it loads.
        paths: all paths of the module that a record can fill.
    """

    loaded: tuple[Loading, ...] = ()
    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    mismatched: tuple[Mismatch, ...] = ()
    turned: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    @property
    def cast(self) -> tuple[Loading, ...]:
        """The loaded entries whose numbers are converted to another dtype."""
        return tuple(one for one in self.loaded if one.is_cast)

    def nearest(self, path: str) -> str | None:
        """The module's path that is most like a path of the record, a missing one if two are equally near."""
        missing = set(self.missing)
        return nearest(path, [*self.missing, *(one for one in self.paths if one not in missing)])

    def text(self, lines: int | None = _LINES) -> str:
        """The report as lines.

        Args:
            lines: how many of each kind, at most; None for all.
        """
        return "\n".join([
            self._summary(),
            *_section("loaded", self.loaded, _loaded_line, lines),
            *_section("missing from the record", self.missing, str, lines),
            *_section("unused, not in the module", self.unused, self._unused_line, lines),
            *_section("does not fit", self.mismatched, self._mismatched_line, lines),
        ])  # fmt: skip

    def _summary(self) -> str:
        counts = {
            "loaded": len(self.loaded),
            "cast": len(self.cast),
            "missing": len(self.missing),
            "unused": len(self.unused),
            "mismatched": len(self.mismatched),
        }
        end = "it does not load" if self.findings else "it loads"
        return f"{', '.join(f'{count} {what}' for what, count in counts.items())}: {end}"

    def _unused_line(self, path: str) -> str:
        near = self.nearest(path)
        return path if near is None else f"{path}, the nearest path of the module is {near}"

    def _mismatched_line(self, one: Mismatch) -> str:
        hint = f"; it fits once it is turned, by Transpose({f'^{re.escape(one.path)}$'!r})"
        return f"{one.path}: {one.reason}{hint if one.path in self.turned else ''}"

    def __str__(self) -> str:
        return self.text()


def _loaded_line(one: Loading) -> str:
    dtype = f"{one.stored} cast to {one.loaded}" if one.is_cast else one.loaded
    line = f"{one.path}: {dtype} {list(one.shape)} -> {one.device}"
    if one.loaded != one.before:
        line += f", was {one.before}"
    return f"{line}, tied to {', '.join(one.tied)}" if one.tied else line


def _section(title: str, found: Sequence[T], line: Callable[[T], str], lines: int | None) -> list[str]:
    """A title and the first lines below it; nothing where nothing was found."""
    if not found:
        return []
    shown = [f"  {line(one)}" for one in found[:lines]]
    more = [f"  … and {len(found) - len(shown)} more"] if len(found) > len(shown) else []
    return [f"{title}:", *shown, *more]
