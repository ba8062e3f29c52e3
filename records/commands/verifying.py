"""``verify FILE …``: every byte of a record: structure, overlaps, gaps, digests, and each number of each tensor.

Damage ends the command with status 1. Notes do not: NaN and infinities, and
what readers accept though no writer should make it.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from engine import EngineError
from records.burnpack.checking import check_burnpack
from records.entry import ForeignDType
from records.errors import RecordError, RecordIoError
from records.files import existing_file
from records.finding import Finding, damage, note
from records.inflated import GZIP_MAGIC
from records.opening import open_record
from records.pytorch.checking import check_pytorch
from records.record import ModuleRecord
from records.storage import LIMITS, Extent, Storage

from .command_line import counted, one_line, printable, progress
from .data import not_finite, numbers

_PIECE: Final = 8 * 2**20
_CHECKS: Final[Mapping[str, Callable[..., Iterator[Finding]]]] = {"burnpack": check_burnpack, "PyTorch": check_pytorch}
_WITH_GAPS: Final = ("burnpack", "GGUF")  # formats whose tensors lie side by side, with zeros between them


def add(commands: Any) -> None:
    """Add the command to a parser's."""
    parser = commands.add_parser("verify", help="check every byte of a file", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each file")
    parser.set_defaults(run=verify)


def verify(arguments: argparse.Namespace) -> int:
    """Print what is wrong with each file; 1 if anything is, or one cannot be read."""
    is_damaged = is_missing = False
    for file in arguments.files:
        findings: list[Finding] = []
        about = ""
        try:
            with open_record(file) as record:
                about = f"{record.format}, {counted(len(record), 'tensor')}: "
                findings += _findings(file, record)
        except RecordIoError as error:
            print(f"records verify: {one_line(error)}", file=sys.stderr)
            is_missing = True
            continue
        except RecordError as error:
            findings.append(damage(str(error).removeprefix(f"{file}: ")))
        is_damaged |= any(finding.is_damage for finding in findings)
        if arguments.json:
            print(json.dumps(_as_json(file, findings)))
        else:
            print("\n".join(_lines(file, about, findings)))
    return int(is_damaged or is_missing)


def _as_json(file: Path, findings: list[Finding]) -> dict[str, Any]:
    return {
        "file": str(file),
        "damage": [finding.text for finding in findings if finding.is_damage],
        "notes": [finding.text for finding in findings if not finding.is_damage],
    }


def _lines(file: Path, about: str, findings: list[Finding]) -> Iterator[str]:
    is_damaged = any(finding.is_damage for finding in findings)
    yield printable(f"{file}: {about}{'damaged' if is_damaged else 'sound'}")
    for finding in findings:
        yield f"  {'damage' if finding.is_damage else 'note'}: {one_line(finding.text)}"


def _findings(file: Path, record: ModuleRecord) -> Iterator[Finding]:
    total = sum(entry.nbytes for entry in record.values())
    check = _CHECKS.get(record.format or "")
    with closing(Storage.map(existing_file(file), LIMITS)) as storage:
        nbytes = total + (storage.nbytes if check else 0)
        with progress(f"verifying {file.name}", nbytes) as report:
            if check is not None:
                yield from check(storage, LIMITS, report)
            elif storage.read(0, len(GZIP_MAGIC)) != GZIP_MAGIC:  # which has a checksum, and was gone through whole
                yield note(f"{record.format} carries no checksums, so damage to its numbers cannot be found")
            yield from _of_places(storage, record)
            yield from _of_numbers(storage.name, record, report)


def _of_places(storage: Storage, record: ModuleRecord) -> Iterator[Finding]:
    """Tensors that share bytes, and bytes between and behind them that are not zero (R100, R101)."""
    extents = {path: entry.extent for path, entry in record.items() if entry.nbytes}
    if record.format not in _WITH_GAPS or not extents:
        return
    placed = sorted((extent, path) for path, extent in extents.items() if extent is not None)
    for (before, one), (after, other) in pairwise(placed):
        if after.start < before.end:
            yield damage(f"tensors {one!r} and {other!r} overlap at offset {after.start}")
        elif len(placed) == len(extents) and not _is_zero(storage, Extent(before.end, after.start)):
            yield note(f"the bytes from offset {before.end} to {after.start}, between tensors, are not all zero")
    end = placed[-1][0].end if placed else storage.nbytes
    if len(placed) == len(extents) and end < storage.nbytes:
        rest = counted(storage.nbytes - end, "byte")
        filled = "zero" if _is_zero(storage, Extent(end, storage.nbytes)) else "not all zero"
        if record.format == "burnpack" or filled != "zero":
            yield note(f"behind the last tensor, from offset {end} on, the file has {rest}, {filled}")


def _is_zero(storage: Storage, extent: Extent) -> bool:
    return not any(
        any(storage.read(offset, min(_PIECE, extent.end - offset)))
        for offset in range(extent.start, extent.end, _PIECE)
    )


def _of_numbers(file: str, record: ModuleRecord, report: Callable[[int], object]) -> Iterator[Finding]:
    """Tensors that cannot be read, or have numbers that are not finite."""
    for path, entry in record.items():
        if isinstance(entry.dtype, ForeignDType):
            yield note(f"tensor {path!r} has elements of {entry.dtype}, which are not looked at")
            continue
        try:
            nans, infinities = not_finite(numbers(entry))
        except EngineError as error:
            yield damage(str(error).removeprefix(f"{file}: "))
        else:
            if nans or infinities:
                yield note(f"tensor {path!r} has {nans:,} NaN and {infinities:,} infinite elements")
        report(entry.nbytes)
