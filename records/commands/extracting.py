"""``extract FILE OUT PATH …``: a part of a record as a record of its own, or one tensor as a NumPy file.

PATH is the path of a tensor, or of a module, of which all tensors and numbers
are taken. If OUT ends with .npy, it is one tensor's. Damaged data is refused.
"""

import argparse
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.dtype import BFLOAT16
from records.atomic import replacing
from records.burnpack.writer import pieces
from records.errors import RecordError
from records.nearest import nearest
from records.record import ModuleRecord

from .command_line import ArgumentError, printable
from .converting import add_writing, check_destination, undamaged, write
from .data import numbers


def add(commands: Any) -> None:
    """Add the command to a parser's."""
    parser = commands.add_parser(
        "extract", help="write a part of a record", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("source", type=Path, metavar="FILE")
    parser.add_argument("destination", metavar="OUT")
    parser.add_argument("paths", nargs="+", metavar="PATH")
    add_writing(parser)
    parser.set_defaults(run=extract)


def extract(arguments: argparse.Namespace) -> None:
    """Write the entries at and below some paths."""
    with undamaged(arguments.source) as record:
        part = _part(record, arguments.paths)
        if arguments.destination.lower().endswith(".npy"):
            _write_array(part, Path(arguments.destination), arguments.force)
        else:
            write(part, arguments.destination, arguments)


def _part(record: ModuleRecord, wanted: Sequence[str]) -> ModuleRecord:
    """The entries and scalars at and below the paths that are wanted, in the record's order, and its metadata.

    Raises:
        RecordError: nothing is there.
    """
    for path in wanted:
        if path not in record and not any(one.startswith(f"{path}.") for one in record):
            near = nearest(path, record)
            hint = "the record is empty" if near is None else f"the nearest path is {near!r}"
            raise RecordError(f"there is nothing at {path!r}; {hint}")

    def is_wanted(path: str) -> bool:
        return any(path == one or path.startswith(f"{one}.") for one in wanted)

    return ModuleRecord(
        [(path, entry) for path, entry in record.items() if is_wanted(path)],
        scalars={name: scalar for name, scalar in record.scalars.items() if is_wanted(name)},
        metadata=record.metadata,
    )


def _write_array(part: ModuleRecord, file: Path, is_forced: bool) -> None:
    """Write the only tensor of a record as a NumPy file.

    Raises:
        ArgumentError: there are several, or the file is there already.
        RecordError: NumPy's files have no place for its dtype.
    """
    if len(part) != 1:
        raise ArgumentError(f"{file}: a NumPy file holds one tensor, and {len(part)} were asked for")
    check_destination(file, is_forced)
    ((path, entry),) = part.items()
    if entry.dtype == BFLOAT16:
        raise RecordError(
            f"tensor {path!r} is bfloat16, which NumPy's files do not have; convert it with --cast float32"
        )
    array = numbers(entry)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header,
        {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape},
    )
    with replacing(file) as scratch:
        scratch.write(header.getvalue())
        for piece in pieces(array):
            scratch.write(piece)
    print(printable(f"{file}: {entry.dtype} {list(entry.shape)}"))
