"""``python -m bench.gpu_check``: check the CUDA path on this machine's GPUs, print one table, and write it as JSON."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import machine
from bench.copies.measuring import between
from bench.copies.point import Point
from bench.progress import Progress
from bench.report import Result, Row, Table, document, print_machine, print_tables, spread_text, trouble_writing
from bench.settings import Settings
from engine import Device, DeviceError
from examples import command_line

from . import computing, copying, elsewhere, ordering, splitting, statuses
from .check import Bench, Check, Found, need, run

CHECKS: Final[Sequence[Check]] = (
    *(*computing.CHECKS, *statuses.CHECKS, *copying.CHECKS, *ordering.CHECKS),
    *splitting.CHECKS,
)
LAST: Final[Sequence[Check]] = (*elsewhere.CHECKS, *ordering.LAST)
_SIZES: Final = (1 << 10, 1 << 20, 1 << 26, 1 << 28)
_QUICK_SIZES: Final = (1 << 10, 1 << 12)
_COLUMNS: Final = ("check", "outcome", "", "took")


def _gpus() -> list[Device]:
    """The GPUs.

    Raises:
        DeviceError: there is none; the message says why.
    """
    found = [Device(f"cuda:{index}") for index in Device("cuda:0").backend.indices()]
    if not found:
        raise DeviceError("CUDA finds none")
    for gpu in found:
        with gpu:
            pass
    return found


def _measuring(rows: list[Row]) -> Check:
    """The benchmark of copies as a check, which leaves its rows."""

    def copies(bench: Bench) -> str:
        """The benchmark of copies, at a few sizes: what arrives is compared, and bounds are kept."""
        settings, sizes = Settings(quick=bench.quick), _QUICK_SIZES if bench.quick else _SIZES
        rows.extend(between(settings, [Device("cpu:0"), *bench.gpus[:2]], sizes))
        large = [
            row for row in rows if (point := Point.of(row, "bandwidth")) is not None and _is_headline(point, sizes)
        ]
        slow = [f"{row.what}: {row.judged:.0%} of {row.to}" for row in rows if row.holds is False]
        need(bench.quick or not slow, "; ".join(slow))
        return "; ".join(f"{row.what} {spread_text(row.value, row.unit)}" for row in large if row.value is not None)

    return copies


def _is_headline(point: Point, sizes: Sequence[int]) -> bool:
    """Whether a figure stands in the table: a copy of the engine's, one way, contiguous, of the largest size."""
    kind = (point.layout, point.way, point.nbytes)
    return kind == ("contiguous", "one way", sizes[-1]) and point.route in ("upload", "download", "peer", "staged")


def _all() -> list[str]:
    """The names of all checks."""
    return [check.__name__ for check in (*CHECKS, _measuring([]), *LAST)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_check", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CHECK", help=f"{', '.join(_all())}; all of them without a name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, checks and figures there too")
    parser.add_argument("--markdown", action="store_true", help="print tables as text for a README")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that the script works, checks little")
    return parser


def _print(found: Sequence[Found], *, markdown: bool) -> None:
    checks = Table("", _COLUMNS, [one.cells() for one in found])
    counts = {outcome: sum(one.outcome == outcome for one in found) for outcome in ("ok", "FAILED", "not run")}
    heading = "checks of the CUDA path: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    print_tables(heading, [checks], [], markdown=markdown)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks.

    Returns:
        The exit status: 0; 1 if a check failed; 2 for wrong arguments, or where there is no GPU.
    """
    given = _parser().parse_args(arguments)
    gpus: list[Device] = []
    wrong = [name for name in given.names if name not in _all()]
    if wrong:
        print(
            f"python -m bench.gpu_check: there is no check {wrong[0]!r}; there are {', '.join(_all())}", file=sys.stderr
        )
        return 2
    try:
        gpus = _gpus()
        trouble = None if given.json is None else trouble_writing(given.json)
    except DeviceError as error:
        trouble = f"there is no GPU to check: {' '.join(str(error).split())}"
    if trouble is not None:
        print(f"python -m bench.gpu_check: {trouble}", file=sys.stderr)
        return 2
    described = machine.describe()
    print_machine(described)
    rows: list[Row] = []
    found: list[Found] = []
    checks = [check for check in (*CHECKS, _measuring(rows), *LAST) if check.__name__ in (given.names or _all())]
    with Progress("checks") as progress:
        progress.expect(len(checks))
        for one in run(checks, Bench(gpus, given.quick)):
            print(f"{one.outcome}: {one.name}", file=sys.stderr)
            progress.part(1, 1)
            found.append(one)
    _print(found, markdown=given.markdown)
    if given.json is not None:
        result = Result(name="copies", question="", rows=rows, quick=given.quick, others=None)
        written = {**document(described, [result]), "checks": [one.document() for one in found]}
        given.json.write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(any(one.outcome == "FAILED" for one in found))


if __name__ == "__main__":
    command_line.run("python -m bench.gpu_check", main)
