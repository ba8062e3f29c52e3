"""A file that appears whole or not at all: written beside its destination, flushed, renamed over it (R43 to R47)."""

import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, final

from .errors import RecordIoError

_COUNTER: Final = itertools.count(1)


@contextmanager
def replacing(destination: Path) -> "Iterator[ScratchFile]":
    """A scratch file that becomes `destination` when the ``with`` ends well, and goes when it does not.

    Raises:
        RecordIoError: `destination` is a directory or has no file name, or the
            system refused. Unless the message says otherwise, what was at the
            destination is still there.
    """
    _check_destination(destination)
    scratch = ScratchFile(destination)
    try:
        yield scratch
        scratch._finish()
        with _errors_name(destination, "cannot be replaced by the finished file"):
            scratch.file.replace(destination)
    except BaseException:
        scratch._discard()
        raise
    _flush_directory(destination)


@final
class ScratchFile:
    """A file being written. `file` is where it lies until it is renamed."""

    def __init__(self, destination: Path) -> None:
        self._destination = destination
        self.file, self._descriptor = _created(destination)
        self._is_open = True
        try:
            self._take_permissions()
        except BaseException:
            self._discard()
            raise

    def _take_permissions(self) -> None:
        """Give it the permission bits of the regular file that it will replace (R45), before any data is in it."""
        with _errors_name(self._destination, "its permission bits cannot be kept"):
            try:
                replaced = os.lstat(self._destination)
            except FileNotFoundError:
                return
            if os.name == "posix" and stat.S_ISREG(replaced.st_mode):
                os.fchmod(self._descriptor, stat.S_IMODE(replaced.st_mode))

    def write(self, data: Any) -> None:
        """Append bytes.

        Raises:
            RecordIoError: the system refused.
        """
        with _errors_name(self._destination, "cannot be written"), memoryview(data) as view:
            written = 0
            while written < len(view):
                written += os.write(self._descriptor, view[written:])

    def overwrite_start(self, data: bytes) -> None:
        """Put other bytes in the place of the first ones; nothing can be appended afterwards.

        Raises:
            RecordIoError: the system refused.
        """
        with _errors_name(self._destination, "cannot be written"):
            os.lseek(self._descriptor, 0, os.SEEK_SET)
        self.write(data)

    def flush(self) -> None:
        """Wait until all that was written is on the disk, as it is at the end in any case.

        Raises:
            RecordIoError: the system refused.
        """
        with _errors_name(self._destination, "cannot be flushed to disk"):
            os.fsync(self._descriptor)

    def _finish(self) -> None:
        self.flush()
        with _errors_name(self._destination, "cannot be closed"):
            self._close()

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self._descriptor)

    def _discard(self) -> None:
        with suppress(OSError):
            self._close()
        with suppress(OSError):
            self.file.unlink()


def _check_destination(destination: Path) -> None:
    """R46, before anything is created."""
    if destination.name in ("", ".."):
        raise RecordIoError(f"{destination}: has no file name")
    with _errors_name(destination, "cannot be looked at"):
        try:
            is_directory = stat.S_ISDIR(os.lstat(destination).st_mode)
        except FileNotFoundError:
            return
    if is_directory:
        raise RecordIoError(f"{destination}: is a directory")


def _created(destination: Path) -> tuple[Path, int]:
    """A new file beside the destination, by the first free name ``NAME.PROCESS-n.tmp``."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    with _errors_name(destination, "a file beside it cannot be created"):
        while True:
            file = destination.with_name(f"{destination.name}.{os.getpid()}-{next(_COUNTER)}.tmp")
            try:
                return file, os.open(file, flags, 0o666)
            except FileExistsError:
                continue


def _flush_directory(destination: Path) -> None:
    if os.name != "posix":
        return
    try:
        descriptor = os.open(destination.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise RecordIoError.of(
            f"{destination}: the new file is in place, but may not survive a loss of power; "
            f"its directory cannot be flushed to disk",
            error,
        ) from error


@contextmanager
def _errors_name(destination: Path, what: str) -> Iterator[None]:
    """Turns what the system refuses into an error that names the destination."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise RecordIoError.of(f"{destination}: {what}", error) from error
