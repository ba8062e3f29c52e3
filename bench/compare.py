"""``python -m bench compare OLD NEW``: what changed between two runs on one machine, in ratios with their spread.

A ratio is new over old. Its spread is the widest that the quartiles of both
runs allow: the lower quartile of the new over the upper one of the old, up to
the upper over the lower. Where that has 1 in it, nothing is said to have
changed. The ratio to a reference that a row may have was taken in the same
rounds, so how it changed says more on a machine that is not quiet.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .report import BUSY, Table, print_tables, spread_text
from .timing import Spread

_COLUMNS: Final = ("measured", "old", "new", "new ÷ old", "which is", "beside its reference")
_SAME: Final = ("cpu", "cores", "gpus")  # of a machine; more than these may change on it
_NOTED: Final = ("system", "python", "numpy", "blas")
_MEMORY: Final = 0.05  # share by which a machine's memory may differ: another kernel keeps more of it
_TIMES: Final = frozenset({"s", "ms", "µs", "ns"})


class CompareError(ValueError):
    """Two files that cannot be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A row of both runs; None where one has no figure, or divides by 0.

    Attributes:
        what: its name.
        unit: of the figures.
        old: the figures of the old run.
        new: those of the new one.
        ratio: the new ones as multiples of the old ones.
        beside: the same of the ratios to the row's reference.
    """

    what: str
    unit: str
    old: Spread | None
    new: Spread | None
    ratio: Spread | None
    beside: Spread | None

    @property
    def verdict(self) -> str:
        """What the ratio means for this unit; that it is within the spread where that has 1 in it."""
        if self.ratio is None:
            return ""
        low, high = (float(f"{end:.3g}") for end in (self.ratio.low, self.ratio.high))  # as the table shows them
        if low <= 1 <= high:
            return "within the spread"
        is_more = self.ratio.median > 1
        if self.unit.endswith("/s") or self.unit in _TIMES:
            return "faster" if is_more == self.unit.endswith("/s") else "slower"
        return "more" if is_more else "less"

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        figures = ("not measured" if one is None else spread_text(one, self.unit) for one in (self.old, self.new))
        ratios = ["" if one is None else spread_text(one) for one in (self.ratio, self.beside)]
        return self.what, *figures, ratios[0], self.verdict, ratios[1]


def ratio_of(new: Spread | None, old: Spread | None) -> Spread | None:
    """New over old, with the widest spread that their quartiles allow; None where there is no such number."""
    if new is None or old is None or old.low <= 0:
        return None
    return Spread(new.low / old.high, new.median / old.median, new.high / old.low)


def load(file: Path) -> dict[str, Any]:
    """What ``--json`` wrote.

    Raises:
        CompareError: the file cannot be read, or holds something else.
    """
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CompareError(f"{file}: it cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CompareError(f"{file}: it is no JSON: {error}") from error
    if (trouble := _trouble(found)) is not None:
        raise CompareError(f"{file}: it is not what python -m bench --json writes: {trouble}")
    return found


def _trouble(found: Any) -> str | None:
    """What a file of another form has in place of results; None for one of ours."""
    machine, benchmarks = (found.get(name) if isinstance(found, dict) else None for name in ("machine", "benchmarks"))
    if not isinstance(machine, dict) or not {"cpu", "cores"} <= machine.keys():
        return "it has no machine"
    if not _is_number(machine.get("memory_bytes", 0)):
        return "its machine's 'memory_bytes' is no number"
    if not isinstance(benchmarks, list):
        return "it has no benchmarks"
    for benchmark in benchmarks:
        if not isinstance(benchmark, dict) or not isinstance(benchmark.get("name"), str):
            return "a benchmark has no name"
        name, others = benchmark["name"], benchmark.get("others", "")
        if not isinstance(benchmark.get("quick"), bool) or not (others is None or _is_number(others)):
            return f"{name}: 'quick' or 'others' is none"
        if not isinstance(benchmark.get("rows"), list):
            return f"{name}: it has no rows"
        for row in benchmark["rows"]:
            if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("what", "unit", "to")):
                return f"{name}: a row lacks what it is, its unit or its reference"
            for key in ("value", "ratio"):
                if not _is_spread(row.get(key, "")):
                    return f"{name}: the {key} of {row['what']!r} is no rising three numbers from 0"
    return None


def _is_number(value: Any) -> bool:
    """A number from 0 that a float has."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value <= sys.float_info.max


def _is_spread(numbers: Any) -> bool:
    """None, or numbers of a spread."""
    if numbers is None:
        return True
    parts: list[Any] = [numbers.get(name) for name in Spread._fields] if isinstance(numbers, dict) else [None]
    return all(map(_is_number, parts)) and parts == sorted(parts)


def _spread(numbers: Mapping[str, float] | None) -> Spread | None:
    return None if numbers is None else Spread(*(float(numbers[name]) for name in Spread._fields))


def refusal(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Why two files say nothing about each other, in one line; None where they do."""
    first, second = old["machine"], new["machine"]
    for name in _SAME:
        if first.get(name) != second.get(name):
            values = f"{first.get(name)!r} in the old, {second.get(name)!r} in the new"
            return f"they are of different machines: {name} is {values}"
    sizes = [machine.get("memory_bytes", 0) for machine in (first, second)]
    if abs(sizes[0] - sizes[1]) > _MEMORY * max(sizes):
        return f"they are of different machines: of {sizes[0] / 1e9:.0f} GB the old, of {sizes[1] / 1e9:.0f} GB the new"
    names = [[benchmark["name"] for benchmark in one["benchmarks"]] for one in (old, new)]
    if sorted(names[0]) != sorted(names[1]):
        texts = (", ".join(some) or "none" for some in names)
        return "they are of different benchmarks: {} in the old, {} in the new".format(*texts)
    if not names[0]:
        return "there is nothing to compare: they are of no benchmark"
    quick = [{benchmark["name"]: benchmark["quick"] for benchmark in one["benchmarks"]} for one in (old, new)]
    for name in names[0]:
        if quick[0][name] != quick[1][name]:
            return f"{name}: one is of a quick run, whose sizes are others"
    return None


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """The rows that two runs of a benchmark have in common, in the order of the new one."""
    before = {_key(row): row for row in old["rows"]}
    for row in new["rows"]:
        other = before.get(_key(row))
        if other is not None:
            values, ratios = ([_spread(one[name]) for one in (row, other)] for name in ("value", "ratio"))
            yield Change(
                what=row["what"],
                unit=row["unit"],
                old=values[1],
                new=values[0],
                ratio=ratio_of(*values),
                beside=ratio_of(*ratios),
            )


def _key(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """What rows have in common whose figures can be compared."""
    return row["what"], row["unit"], row["to"]


def notes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """What to know when reading the ratios."""
    for name in _NOTED:
        first, second = (one["machine"].get(name) for one in (old, new))
        if first != second:
            yield f"{name}: {first} in the old, {second} in the new"
    later = {benchmark["name"]: benchmark for benchmark in new["benchmarks"]}
    for benchmark in old["benchmarks"]:
        name, other = benchmark["name"], later[benchmark["name"]]
        if benchmark["quick"]:
            yield f"{name}: quick runs show that a benchmark works; their figures mean nothing"
        for which, one in (("old", benchmark), ("new", other)):
            if (one["others"] or 0) > BUSY:
                yield f"{name}: other work took {one['others']:.0%} of the machine in the {which} run"
        keys = [dict.fromkeys(map(_key, one["rows"])) for one in (benchmark, other)]
        for which, mine, its in (("old", *keys), ("new", *keys[::-1])):
            whats = {what for what, _, _ in its}
            alone = [f"{key[0]} (in {key[1]}, to {key[2] or 'nothing'})" if key[0] in whats else key[0]
                     for key in mine if key not in its]  # fmt: skip
            if alone:
                yield f"{name}: only in the {which}: {'; '.join(alone)}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench compare", description=__doc__)
    parser.add_argument("old", type=Path, metavar="OLD", help="what --json wrote")
    parser.add_argument("new", type=Path, metavar="NEW", help="what it wrote later, on the same machine")
    parser.add_argument("--markdown", action="store_true", help="print tables as text for a README")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Compare two files and print a table for each benchmark.

    Returns:
        The exit status: 0; 2 for wrong arguments, or files that cannot be compared.
    """
    given = _parser().parse_args(arguments)
    try:
        old, new = load(given.old), load(given.new)
        trouble = refusal(old, new)
        if trouble is not None:
            raise CompareError(f"{given.old} and {given.new}: {trouble}")
    except CompareError as error:
        print(f"python -m bench compare: {error}", file=sys.stderr)
        return 2
    before = {benchmark["name"]: benchmark for benchmark in old["benchmarks"]}
    tables = [
        Table(one["name"], _COLUMNS, [change.cells() for change in changes(before[one["name"]], one)])
        for one in new["benchmarks"]
    ]
    print_tables(f"{given.new} ÷ {given.old}", tables, list(notes(old, new)), markdown=given.markdown)
    return 0
