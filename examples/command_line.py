"""What the commands of the examples have in common: options for devices and for where layers go."""

import argparse
import re
from collections.abc import Sequence
from typing import Final

from engine import Device, DeviceError
from examples.errors import ArgumentError
from records.commands.command_line import OneLineParser as OneLineParser
from records.commands.command_line import counted as counted
from records.commands.command_line import run as run

_UNITS: Final = {
    "": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate(("", "k", "m", "g", "t"))},
    **{f"{letter}ib": 1024**power for power, letter in enumerate(("k", "m", "g", "t"), 1)},
}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)", re.ASCII | re.IGNORECASE)
_MAX_SIZE: Final = 2**63 - 1  # bytes
_MAX_DIGITS: Final = 9  # of a number of layers


def add_devices(parser: argparse.ArgumentParser) -> None:
    """The option --devices."""
    parser.add_argument(
        "--devices",
        metavar="D,D,…",
        default="cpu:0",
        help="where the layers go, in order: cpu:0,cpu:1 or cuda:0,cuda:1; those left without a layer are named "
        "(default: %(default)s)",
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
