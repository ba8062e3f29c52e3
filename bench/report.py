"""Results: rows of a table, and the same as JSON."""

import importlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from .timing import Spread

_WIDTH: Final = 140  # columns of a table that goes to a file
BUSY: Final = 0.05  # share of the machine that others may take before figures are doubtful


class Limit(NamedTuple):
    """A number that another must not exceed, or must reach."""

    relation: Literal["at most", "at least"]
    number: float

    def holds(self, value: float) -> bool:
        """Whether `value` keeps to it."""
        return value <= self.number if self.relation == "at most" else value >= self.number

    def __str__(self) -> str:
        return f"{'≤' if self.relation == 'at most' else '≥'} {self.number:g}"


def at_most(number: float) -> Limit:
    """A limit from above."""
    return Limit("at most", number)


def at_least(number: float) -> Limit:
    """A limit from below."""
    return Limit("at least", number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that was measured.

    Attributes:
        what: its name, different from that of every other row of the benchmark.
        value: what it measured; None where it could not be, and `note` says why.
        unit: of `value`.
        ratio: the value, as a multiple of another thing's in the same rounds.
        to: what that other thing is.
        bound: what the ratio, or without one the value, must keep to.
        goal: what it should.
        note: one line to read with it.
        tags: what it is about, for whoever reads the JSON; None where its name says it all.
    """

    what: str
    value: Spread | None
    unit: str
    ratio: Spread | None = None
    to: str = ""
    bound: Limit | None = None
    goal: Limit | None = None
    note: str = ""
    tags: Mapping[str, Any] | None = None

    @property
    def judged(self) -> float | None:
        """The number that bound and goal are about."""
        spread = self.value if self.ratio is None else self.ratio
        return None if spread is None else spread.median

    @property
    def holds(self) -> bool | None:
        """Whether the bound is kept; None where there is none, or nothing was measured."""
        judged = self.judged
        return None if self.bound is None or judged is None else self.bound.holds(judged)


class Table(NamedTuple):
    """A table of a benchmark's own."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A benchmark's rows.

    Attributes:
        name: what the command line calls it.
        question: its docstring.
        rows: in order.
        quick: whether the figures mean nothing.
        others: the share of the machine that other work took, 0 to 1; None where that is unknown.
        tables: what is printed first; then of the rows only those that have a bound or a goal, or were not measured.
    """

    name: str
    question: str
    rows: Sequence[Row]
    quick: bool
    others: float | None
    tables: Sequence[Table] = ()

    @property
    def printed(self) -> Sequence[Row]:
        """The rows that are printed."""
        if not self.tables:
            return self.rows
        return [row for row in self.rows if row.value is None or row.bound is not None or row.goal is not None]

    @property
    def warning(self) -> str:
        """Why the figures should not be believed; empty if they may."""
        if self.quick:
            return "a quick run shows that the benchmark works; its figures mean nothing"
        if self.others is not None and self.others > BUSY:
            return f"other work took {self.others:.0%} of this machine meanwhile; wait until it is quiet and run again"
        return ""


def document(machine: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """All results as JSON holds them; a spread is an object of ``low``, ``median`` and ``high``."""
    return {
        "machine": dict(machine),
        "benchmarks": [
            {
                "name": result.name,
                "question": result.question,
                "quick": result.quick,
                "others": result.others,
                "rows": [_row_object(row, result.quick) for row in result.rows],
            }
            for result in results
        ],
    }


def _row_object(row: Row, quick: bool) -> dict[str, Any]:
    tags = {} if row.tags is None else {"tags": dict(row.tags)}
    return {
        "what": row.what,
        "value": None if row.value is None else row.value._asdict(),
        "unit": row.unit,
        "ratio": None if row.ratio is None else row.ratio._asdict(),
        "to": row.to,
        "bound": None if row.bound is None else row.bound._asdict(),
        "goal": None if row.goal is None else row.goal._asdict(),
        "holds": None if quick else row.holds,
        "note": row.note,
        **tags,
    }


def write_json(file: Path, machine: Mapping[str, Any], results: Sequence[Result]) -> None:
    """Write `document` to a file."""
    file.write_text(json.dumps(document(machine, results), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def trouble_writing(file: Path) -> str | None:
    """Why a file cannot be written, found out before anything is measured; None if it can.

    What is in the file stays, and a file that is not there is not left behind.
    """
    try:
        if not file.parent.is_dir():
            return f"there is no folder {file.parent}"
        is_new = not file.exists()
        file.open("ab").close()
        if is_new:
            file.unlink()
    except OSError as error:
        return f"it cannot be written: {error.strerror}"
    return None


def number_text(number: float) -> str:
    """A number with three digits that count, or all in front of the point."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def spread_text(spread: Spread, unit: str = "") -> str:
    """A median in a unit, with its quartiles where they say more."""
    low, median, high = map(number_text, spread)
    return f"{median} {unit}".rstrip() + ("" if low == high else f" ({low} … {high})")


COLUMNS: Final = ("measured", "median (quartiles)", "ratio", "to", "bound", "goal", "kept")


def cells(row: Row, *, quick: bool = False) -> tuple[str, ...]:
    """A row of the table, under `COLUMNS`; of a quick run nothing is judged."""
    value = row.note if row.value is None else spread_text(row.value, row.unit)
    ratio = "" if row.ratio is None else spread_text(row.ratio)
    bound, goal = ("" if limit is None else str(limit) for limit in (row.bound, row.goal))
    kept = {True: "yes", False: "no", None: ""}[None if quick else row.holds]
    return row.what, value, ratio, row.to, bound, goal, kept


def print_result(result: Result, *, markdown: bool = False) -> None:
    """Print a benchmark's question, table, notes and, if there is one, warning.

    Args:
        markdown: as text for a README, which it is without the package rich as well.
    """
    rows = [cells(row, quick=result.quick) for row in result.printed]
    tables = [*result.tables, *([Table("", COLUMNS, rows)] if rows else [])]
    notes = [f"{row.what}: {row.note}" for row in result.printed if row.note and row.value is not None]
    if result.warning:
        notes.append(result.warning)
    print_tables(_title(result), tables, notes, markdown=markdown, name=result.name)


def print_tables(
    heading: str, tables: Sequence[Table], notes: Sequence[str], *, markdown: bool = False, name: str = ""
) -> None:
    """Print a heading, tables with their titles, and notes.

    Args:
        markdown: as text for a README, which it is without the package rich as well.
        name: what stands in front of the heading.
    """
    if markdown or importlib.util.find_spec("rich") is None:
        _print_markdown(f"**{name}**: {heading}" if name else heading, tables, notes)
    else:
        _print_rich(f"{name}: {heading}" if name else heading, tables, notes)


def _title(result: Result) -> str:
    return result.question.strip().split("\n", 1)[0]


def _print_markdown(heading: str, tables: Sequence[Table], notes: Sequence[str]) -> None:
    print(f"\n{heading}")
    for title, columns, rows in tables:
        lines = [columns, ("---",) * len(columns), *rows]
        print(*([f"\n{title}"] if title else []), "", *(f"| {' | '.join(line)} |" for line in lines), sep="\n")
    for note in notes:
        print(f"\n{note}")


def _print_rich(heading: str, tables: Sequence[Table], notes: Sequence[str]) -> None:
    console = importlib.import_module("rich.console").Console()
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    console.print(heading, style="italic", markup=False, highlight=False)
    for title, columns, rows in tables:
        if title:
            console.print(f"\n{title}", markup=False, highlight=False)
        table = importlib.import_module("rich.table").Table(*columns, box=_box())
        for row in rows:
            table.add_row(*row)
        console.print(table, markup=False)
    for note in notes:
        console.print(note, style="dim", markup=False, highlight=False)


def _box() -> Any:
    return importlib.import_module("rich.box").SIMPLE_HEAD


def print_machine(machine: Mapping[str, Any]) -> None:
    """Print in two lines what is measured on."""
    libraries = ", ".join(f"{blas['name']} {blas['version']} on {blas['threads']} threads" for blas in machine["blas"])
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    print(f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 1e9:.0f} GB, {gpus}")
    print(f"Python {machine['python']}, NumPy {machine['numpy']}, {libraries or 'BLAS unknown'}")
