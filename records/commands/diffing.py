"""``diff A B``: paths, shapes, dtypes, ids and scalars that differ, and the largest difference of numbers.

Formats do not matter, nor does the order of entries or an id that only one of
the files has. Of quantized tensors, what they stand for is compared. Numbers
are equal if all their bits are. Differences end the command with status 1.
"""

import argparse
import json
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from engine import QuantScheme
from records.entry import EntryDType, ForeignDType, RecordEntry
from records.opening import open_record
from records.record import ModuleRecord

from .command_line import printable, progress
from .data import Difference, difference, numbers


class _Pair(NamedTuple):
    """How two entries of one path differ; what does not is None."""

    path: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None
    dtypes: tuple[str, str] | None
    ids: tuple[str, str] | None
    foreign: str | None
    numbers: Difference | None


def add(commands: Any) -> None:
    """Add the command to a parser's."""
    parser = commands.add_parser("diff", help="how two files differ", description=__doc__)
    parser.add_argument("one", type=Path, metavar="A")
    parser.add_argument("other", type=Path, metavar="B")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=diff)


def diff(arguments: argparse.Namespace) -> int:
    """Print how two records differ; 1 if they do."""
    with open_record(arguments.one) as one, open_record(arguments.other) as other:
        only_one, only_other = [[p for p in a if p not in b] for a, b in ((one, other), (other, one))]
        pairs = _pairs(one, other)
        scalars = {
            name: (_text(one, name), _text(other, name))
            for name in dict.fromkeys([*one.scalars, *other.scalars])
            if one.scalars.get(name) != other.scalars.get(name)
        }
        common = len(one) - len(only_one)
    if arguments.json:
        print(json.dumps({
            "only_a": only_one, "only_b": only_other, "differ": list(map(_as_json, pairs)), "scalars": scalars,
            "equal": common - len(pairs),
        }))  # fmt: skip
    else:
        for file, paths in ((arguments.one, only_one), (arguments.other, only_other)):
            for path in paths:
                print(printable(f"only in {file}: {path}"))
        for pair in pairs:
            print(printable(f"{pair.path}: {_described(pair)}"))
        for name, (a, b) in scalars.items():
            print(printable(f"scalar {name}: {a or 'none'}, {b or 'none'}"))
        print(f"{common - len(pairs):,} of {common:,} common tensors are equal")
    return int(bool(only_one or only_other or pairs or scalars))


def _text(record: ModuleRecord, name: str) -> str | None:
    scalar = record.scalars.get(name)
    return None if scalar is None else f"{scalar.kind} {scalar.value}"


def _pairs(one: ModuleRecord, other: ModuleRecord) -> list[_Pair]:
    """The common paths whose entries differ."""
    common = [path for path in one if path in other]
    total = sum(one[path].nbytes + other[path].nbytes for path in common)
    pairs: list[_Pair] = []
    with progress("comparing", total) as report:
        for path in common:
            a, b = one[path], other[path]
            pair = _compared(path, a, b)
            report(a.nbytes + b.nbytes)
            if any(part is not None for part in pair[1:]):
                pairs.append(pair)
    return pairs


def _compared(path: str, a: RecordEntry, b: RecordEntry) -> _Pair:
    foreign = next((str(one.dtype) for one in (a, b) if isinstance(one.dtype, ForeignDType)), None)
    is_other_id = a.id is not None and b.id is not None and a.id != b.id
    return _Pair(
        path,
        None if a.shape == b.shape else (a.shape, b.shape),
        None if _is_like(a.dtype, b.dtype) else (str(a.dtype), str(b.dtype)),
        (str(a.id), str(b.id)) if is_other_id else None,
        foreign,
        difference(numbers(a), numbers(b)) if a.shape == b.shape and foreign is None else None,
    )


def _is_like(a: EntryDType, b: EntryDType) -> bool:
    """Whether two dtypes are one, but for how a format lays the values of a scheme out."""
    if isinstance(a, QuantScheme) and isinstance(b, QuantScheme):
        return replace(a, store=b.store) == b
    return a == b


def _described(pair: _Pair) -> str:
    said: list[str] = []
    if pair.shapes is not None:
        said.append(f"shapes {list(pair.shapes[0])}, {list(pair.shapes[1])}")
    if pair.dtypes is not None:
        said.append(f"dtypes {pair.dtypes[0]}, {pair.dtypes[1]}")
    if pair.ids is not None:
        said.append(f"ids {pair.ids[0]}, {pair.ids[1]}")
    if pair.foreign is not None:
        said.append(f"elements of {pair.foreign} are not compared")
    elif pair.numbers is not None:
        count, largest, place = pair.numbers
        said.append(f"{count:,} elements differ, at most by {largest} at {list(place)}")
    elif pair.shapes is None:
        said.append("equal numbers")
    return "; ".join(said)


def _as_json(pair: _Pair) -> dict[str, Any]:
    count, largest, place = (None, None, None) if pair.numbers is None else pair.numbers
    return {
        "path": pair.path,
        "shapes": pair.shapes,
        "dtypes": pair.dtypes,
        "ids": pair.ids,
        "not_compared": pair.foreign,
        "elements": count,
        "largest": largest if largest is None or isfinite(largest) else str(largest),
        "place": place,
    }
