"""Options that name a file: one that is read, and one where a record with numbers beside its tensors is kept.

Both are types of an argument; what cannot be such a file is refused before anything runs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from examples.errors import ArgumentError
from records import RecordError, RecordIoError
from records.files import destination_of, format_of

_FORMATS: Final = ("burnpack", "safetensors")  # those that hold scalars


def read_by(option: str) -> Callable[[str], Path]:
    """The type of an option that names a file to read.

    What it gives raises ArgumentError for an empty name.
    """

    def named(text: str) -> Path:
        if not text:
            raise ArgumentError(f"{option} '': give the name of a file")
        return Path(text)

    return named


def kept_by(option: str) -> Callable[[str], Path]:
    """The type of an option that names where a record with numbers is kept; ``.bpk`` is added to a bare name (R38).

    A folder's name is a bare one too: the record is beside it. What this gives
    raises ArgumentError for a text that names no file, a file that is no
    regular one, or one of a format that is not written or holds no numbers.
    """

    def named(text: str) -> Path:
        try:
            file = destination_of(text)
            if file.exists() and not file.is_file():
                raise ArgumentError(f"{option} {text}: it is no regular file")
        except RecordIoError as error:
            raise ArgumentError(f"{option}: {error}") from None
        except OSError as error:
            raise ArgumentError(f"{option} {text}: {error.strerror}") from None
        if not _holds_numbers(file):
            raise ArgumentError(f"{option} {text}: it cannot be kept in such a file; name it *.bpk")
        return file

    return named


def _holds_numbers(file: Path) -> bool:
    try:
        return format_of(file, None) in _FORMATS
    except RecordError:  # no such file is written
        return False
