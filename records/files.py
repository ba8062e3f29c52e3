"""Names of record files: extensions, and the formats that they stand for (R38, R39)."""

import os
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast, get_args

from .errors import RecordError, RecordIoError

FilePath: TypeAlias = str | os.PathLike[str]
Format: TypeAlias = Literal["burnpack", "mpk", "mpk.gz", "safetensors"]

_EXTENSION: Final = ".bpk"
_EXTENSIONS: Final[dict[str, Format]] = {  # of the formats but burnpack
    ".mpk": "mpk",
    ".mpk.gz": "mpk.gz",
    ".safetensors": "safetensors",
}
_OTHER_FORMATS: Final = frozenset({"gguf", "gz", "json", "pt", "pth"})  # never to be mistaken for burnpack


def has_extension(file: Path) -> bool:
    """Whether the last component has a dot that is not its first character (R38)."""
    return file.name.rfind(".") > 0


def destination_of(file: FilePath, named: str | None = None) -> Path:
    """Where a record is saved: `file`, with ``.bpk`` or the extension of the format named if it has none.

    Raises:
        RecordIoError: it has no file name, ends in a slash, or is a device, pipe or socket.
    """
    extension = next((extension for extension, format in _EXTENSIONS.items() if format == named), _EXTENSION)
    path = Path(file)
    if path.name in ("", ".."):
        raise RecordIoError(f"{os.fspath(file)!r} has no file name")
    if os.fspath(file).endswith(("/", os.sep)):
        raise RecordIoError(f"{os.fspath(file)}: it ends in a slash, so it names a folder; give the name of a file")
    if _is_special(path):
        raise RecordIoError(f"{path}: it is no regular file")
    return path if has_extension(path) else path.with_name(path.name + extension)


def _is_special(path: Path) -> bool:
    try:
        return path.exists() and not (path.is_file() or path.is_dir())
    except OSError:  # creating it will tell
        return False


def existing_file(file: FilePath) -> Path:
    """What is opened: `file`, or with ``.bpk`` if it has no extension and is not there as given (R39).

    A directory is no record: where it has the name as given, the file with ``.bpk`` beside it is what is meant.

    Raises:
        RecordIoError: the path is empty.
    """
    if not os.fspath(file):
        raise RecordIoError("the path '' is empty; give the path of a record file")
    path = Path(file)
    if path.name in ("", "..") or has_extension(path):
        return path
    appended = path.with_name(path.name + _EXTENSION)
    try:
        is_as_given = path.exists() and not (path.is_dir() and appended.exists())
    except OSError:  # opening it will tell
        is_as_given = True
    return path if is_as_given else appended


def format_of(file: Path, named: str | None) -> Format:
    """The format in which a file is written.

    Raises:
        RecordError: it is not one that is written, or the extension is that of another format and none was named.
    """
    if named is not None:
        if named not in get_args(Format):
            raise RecordError(f"{file}: no format {named!r} is written; there are {', '.join(get_args(Format))}")
        return cast("Format", named)
    name = file.name.lower()
    for extension, format in _EXTENSIONS.items():
        if name.endswith(extension):
            return format
    extension = name.rpartition(".")[2]
    if extension in _OTHER_FORMATS:
        raise RecordError(f"{file}: no {extension} file is written; name it *{_EXTENSION}, or name the format burnpack")
    return "burnpack"
