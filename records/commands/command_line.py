"""What command lines have in common: errors as one line, exit statuses, Ctrl-C without a trace, a bar of progress.

A command ends with 0, or with 1 after one line that says what went wrong, or
with 2 after one about its arguments, or with 130 after Ctrl-C.
"""

import argparse
import importlib
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn

from engine import EngineError

_INTERRUPTED: Final = 130  # what a shell expects of a program that SIGINT ended
_WRONG_ARGUMENTS: Final = 2  # what argparse itself ends with


class UsageError(Exception):
    """Something that whoever called the command can put right; it is shown as one line."""


class ArgumentError(UsageError):
    """An option of the command line that cannot be what it is; the command ends with status 2."""


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(_WRONG_ARGUMENTS, f"{self.prog}: {message} (--help lists the options)\n")


def run(name: str, command: Callable[[], int | None]) -> None:
    """Run a command, which gives its exit status; what the user can put right ends it with one line, Ctrl-C with none.

    Characters that the output's encoding lacks are printed as question marks.
    """
    _print_what_can_be_encoded()
    try:
        status = command()
        if sys.stdout is not None:  # as it is where it was closed
            sys.stdout.flush()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        _drop_output()  # whoever read it has gone; nothing is left to say
        sys.exit(1)
    except (EngineError, UsageError, OSError) as error:
        _drop_output()
        print(f"{name}: {one_line(_told(error))}", file=sys.stderr)
        sys.exit(_WRONG_ARGUMENTS if isinstance(error, ArgumentError) else 1)
    if status:
        sys.exit(status)


def _told(error: Exception) -> object:
    """What an error is about; the system's, where it names no file, is about the output."""
    if isinstance(error, OSError) and not isinstance(error, EngineError) and error.filename is None and error.strerror:
        return f"standard output: {error.strerror}"
    return error


def one_line(error: object) -> str:
    """What an error or a text says, in one line, with control characters of a file's names written out."""
    return printable(" ".join(str(error).split()))


def printable(text: str) -> str:
    """A text as it is, or written out where a terminal could take a part of it for a command."""
    return text if text.isprintable() else ascii(text)[1:-1]


def counted(number: int, thing: str) -> str:
    """A number of things: ``1 token``, ``2 tokens``."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


@contextmanager
def progress(title: str, nbytes: int) -> Iterator[Callable[[int], object]]:
    """A bar on a terminal's error stream that moves as it is told of bytes, and is gone at the end.

    It takes the package rich; without it, or elsewhere than on a terminal, nothing is shown.
    """
    rich: Any = None
    if sys.stderr is not None and sys.stderr.isatty():
        with suppress(ImportError):
            rich = importlib.import_module("rich.progress")
    if rich is None:
        yield lambda _: None
        return
    columns = (
        rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn(), rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )  # fmt: skip
    console = importlib.import_module("rich.console").Console(stderr=True)
    with rich.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(importlib.import_module("rich.markup").escape(title), total=nbytes)
        yield lambda more: bar.advance(task, more)


def _print_what_can_be_encoded() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """Write what is still to be written, or drop it for good: the interpreter would try again when it ends."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
