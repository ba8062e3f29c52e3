"""``convert A B``: a record in another format, tensor by tensor; ids, scalars and metadata too, where B has a place.

The format of B is told by its extension: .bpk, .safetensors, .mpk, .mpk.gz;
a name without one gets it. Steps change entries on the way, in the order given;
what each did is printed. Data that the file's checksums find damaged is refused.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, get_args

from records.adapt import KeyRemapper, Step, Transpose
from records.adapt_trained import Cast, Drop, NormNames
from records.errors import RecordError, RecordFormatError
from records.files import Format, destination_of, existing_file, format_of
from records.named_mpk.settings import release_of
from records.opening import open_record
from records.pytorch.checking import check_pytorch
from records.record import ModuleRecord
from records.storage import LIMITS, Storage
from records.watched import Watched

from .command_line import ArgumentError, counted, printable, progress
from .inspecting import size


def add(commands: Any) -> None:
    """Add the command to a parser's."""
    parser = commands.add_parser(
        "convert", help="write a record in another format", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("source", type=Path, metavar="A")
    parser.add_argument("destination", metavar="B")
    add_writing(parser)
    for option, metavar, help_, make in (
        ("--rename", ("PATTERN", "REPLACEMENT"), r"rename paths, as re.sub does: \1 is a group", _rename),
        ("--drop", ("PATTERN",), "leave out tensors whose path the expression is found in", lambda given: Drop(*given)),
        (
            "--norms",
            ("PATTERN",),
            "of norms at these paths ('': of all) rename weight, bias to gamma, beta",
            lambda given: NormNames(*given),
        ),
        ("--transpose", ("PATTERN",), "swap the last two axes", lambda given: Transpose(*given)),
        ("--cast", ("DTYPE",), "cast floats to float64, float32, float16 or bfloat16", lambda given: Cast(*given)),
    ):
        parser.add_argument(
            option,
            dest="steps",
            action=_Append,
            nargs=len(metavar),
            metavar=metavar,
            help=help_,
            const=make,
            default=[],
        )
    parser.set_defaults(run=convert)


class _Append(argparse.Action):
    """Appends the step that an option means, so that steps of several options keep their order."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        make: Callable[[Sequence[str]], Step] = self.const
        try:
            setattr(namespace, self.dest, [*getattr(namespace, self.dest), make(values)])
        except RecordError as error:
            parser.error(f"{option}: {error}")


def _rename(given: Sequence[str]) -> Step:
    return KeyRemapper([(given[0], given[1])])


def add_writing(parser: argparse.ArgumentParser) -> None:
    """The options of a command that writes a record."""
    parser.add_argument("--format", choices=get_args(Format), help="of the file written (default: by its extension)")
    parser.add_argument("--for-burn", metavar="VERSION", help="named MessagePack for Burn 0.9 to 0.21 (default: 0.21)")
    parser.add_argument("--no-digest", action="store_true", help="burnpack without digests, as Burn writes it")
    parser.add_argument("--force", action="store_true", help="replace the file, or link, if it is there")


def convert(arguments: argparse.Namespace) -> None:
    """Write the record of one file to another."""
    with undamaged(arguments.source) as record:
        adapted = record.adapt(*arguments.steps)
        for change in adapted.adapted:
            print("\n".join(map(printable, str(change).splitlines())))
        write(adapted, arguments.destination, arguments)


@contextmanager
def undamaged(file: Path) -> Iterator[ModuleRecord]:
    """The record in a file, once its digests or checksums, if it carries any, are found right.

    Raises:
        RecordFormatError: they are not; a copy would have new ones, and look sound.
    """
    with open_record(file, check_data=True) as record:
        if record.format == "PyTorch":
            with closing(Storage.map(existing_file(file), LIMITS)) as storage:
                for finding in check_pytorch(storage, LIMITS, lambda _: None):
                    if finding.is_damage:
                        raise RecordFormatError(f"{file}: {finding.text}")
        yield record


def write(record: ModuleRecord, destination: str, arguments: argparse.Namespace) -> None:
    """Write a record as the options of `add_writing` say, with a bar, and say what was written.

    Raises:
        ArgumentError: the file is there already, and is not to be replaced.
        RecordError: it cannot be written.
    """
    file = destination_of(destination, arguments.format)
    try:
        _check_options(format_of(file, arguments.format), arguments)
    except RecordError as error:
        raise ArgumentError(str(error)) from None
    check_destination(file, arguments.force)
    total = sum(entry.nbytes for entry in record.values())
    with progress(f"writing {file.name}", total) as report:
        record.adapt(Watched(report)).save(file, arguments.format, not arguments.no_digest, for_burn=arguments.for_burn)
    said = f"{file}: {counted(len(record), 'tensor')}, {size(file.stat().st_size)}"
    print(printable(said))


def _check_options(format: Format, arguments: argparse.Namespace) -> None:
    """Raises RecordError where an option is none of the format written, or names no version of Burn."""
    if arguments.no_digest and format != "burnpack":
        raise RecordError(f"--no-digest is for burnpack; {format} carries no digests")
    if arguments.for_burn is not None:
        if format not in ("mpk", "mpk.gz"):
            raise RecordError(f"--for-burn is for named MessagePack, *.mpk or *.mpk.gz, not for {format}")
        release_of(arguments.for_burn)


def check_destination(file: Path, is_forced: bool) -> None:
    """Raises ArgumentError where a file would be replaced that is not to be."""
    if os.path.lexists(file) and not is_forced:
        raise ArgumentError(f"{file} is there already; --force replaces it")
