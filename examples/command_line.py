"""What the commands have in common: options for devices, errors as one line, and Ctrl-C without a trace."""

import argparse
import io
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NoReturn

from engine import Device, DeviceError, EngineError
from examples.errors import ArgumentError, UsageError

_UNITS: Final = {
    "": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate(("", "k", "m", "g", "t"))},
    **{f"{letter}ib": 1024**power for power, letter in enumerate(("k", "m", "g", "t"), 1)},
}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)", re.ASCII | re.IGNORECASE)
_MAX_SIZE: Final = 2**63 - 1  # bytes
_MAX_DIGITS: Final = 9  # of a number of layers
_INTERRUPTED: Final = 130  # what a shell expects of a program that SIGINT ended
_WRONG_ARGUMENTS: Final = 2  # what argparse itself ends with


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(_WRONG_ARGUMENTS, f"{self.prog}: {message} (--help lists the options)\n")


def run(name: str, command: Callable[[], None]) -> None:
    """Run a command; what the user can put right ends it with one line, Ctrl-C with none.

    Characters that the output's encoding lacks are printed as question marks.
    """
    _print_what_can_be_encoded()
    try:
        command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        _drop_output()  # whoever read it has gone; nothing is left to say
        sys.exit(1)
    except (EngineError, UsageError, OSError) as error:
        _drop_output()
        lines = " ".join(str(error).split())
        print(f"{name}: {lines}", file=sys.stderr)
        sys.exit(_WRONG_ARGUMENTS if isinstance(error, ArgumentError) else 1)


def _print_what_can_be_encoded() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """Write what is still to be written, or drop it for good: the interpreter would try again when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()


def counted(number: int, thing: str) -> str:
    """A number of things: ``1 token``, ``2 tokens``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def add_devices(parser: argparse.ArgumentParser) -> None:
    """The option --devices."""
    parser.add_argument(
        "--devices",
        metavar="D,D,…",
        default="cpu:0",
        help="where the layers go, in order: cpu:0,cpu:1 or cuda:0,cuda:1 (default: %(default)s)",
    )


def devices_of(text: str) -> list[Device]:
    """The devices that the option names, each of them usable.

    Raises:
        ArgumentError: one is no device.
        DeviceError: this machine lacks one.
    """
    try:
        devices = [Device(part.strip()).inner() for part in text.split(",")]
    except DeviceError as error:
        raise ArgumentError(f"--devices {text}: {error}") from None
    for device in devices:
        with device:
            pass
    return devices


def stages_of(text: str, devices: Sequence[Device], num_layers: int) -> list[int]:
    """How many hidden layers each device gets.

    Raises:
        ArgumentError: they are no counts, not one for each device, or do not add up to the model's layers.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= _MAX_DIGITS for part in parts):
        raise ArgumentError(f"--stages {text}: give a number of layers for each device, such as 10,20")
    counts = [int(part) for part in parts]
    if len(counts) != len(devices):
        given = f"{counted(len(counts), 'stage')} for {counted(len(devices), 'device')}"
        raise ArgumentError(f"--stages {text}: {given}; give one for each")
    if sum(counts) != num_layers:
        raise ArgumentError(f"--stages {text}: that is {counted(sum(counts), 'layer')}, and the model has {num_layers}")
    return counts


def sizes_of(text: str, devices: Sequence[Device]) -> list[int]:
    """How many bytes each device has for layers.

    Raises:
        ArgumentError: they are no sizes, too large ones, or not one for each device.
    """
    sizes = [_size(part.strip()) for part in text.split(",")]
    known = [size for size in sizes if size is not None]
    if len(known) != len(sizes):
        raise ArgumentError(f"--memory {text}: give a size for each device, such as 300MB,1.5GB or 400MiB")
    if len(sizes) != len(devices):
        given = f"{counted(len(sizes), 'size')} for {counted(len(devices), 'device')}"
        raise ArgumentError(f"--memory {text}: {given}; give one for each")
    if not all(size <= _MAX_SIZE for size in known):
        raise ArgumentError(f"--memory {text}: a size is {_MAX_SIZE:,} bytes at most")
    return [round(size) for size in known]


def _size(text: str) -> float | None:
    """The bytes of a size, maybe infinitely many or a part of one; None for what is none."""
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    return None if match is None or unit is None else float(match[1]) * unit
