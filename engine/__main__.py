"""``python -m engine devices``: what this machine has to compute on, its memory, and which GPUs reach each other's."""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from .backend import Description, Memory
from .device import Device
from .errors import DeviceError

_COLUMNS: Final = ("device", "name", "compute capability", "memory", "free")
_WRONG_ARGUMENTS: Final = 2  # what argparse itself ends with


@dataclass(frozen=True, slots=True)
class Found:
    """A device, and what it says of itself; or why it says nothing."""

    device: Device
    description: Description | None
    memory: Memory | None
    trouble: str = ""

    @classmethod
    def of(cls, device: Device) -> "Found":
        """What a device says; a GPU is opened for it."""
        try:
            return cls(device, device.backend.describe(device.index), device.memory())
        except (DeviceError, OSError) as error:
            return cls(device, None, None, _line(error))

    def cells(self) -> tuple[str, ...]:
        """A row under `_COLUMNS`."""
        if self.description is None or self.memory is None:
            return str(self.device), self.trouble
        name, capability, _ = self.description
        return str(self.device), name, capability, *(f"{nbytes / 2**30:.1f} GiB" for nbytes in self.memory[::-1])

    def reaches(self, other: "Found") -> str:
        """Whether it can reach another's memory, as a cell of a table."""
        if other is self:
            return "-"
        if self.description is None:
            return "?"
        return "yes" if other.device.index in self.description.peers else "no"

    def document(self) -> dict[str, Any]:
        """The same as JSON holds it; sizes in bytes."""
        if self.description is None or self.memory is None:
            return {"device": str(self.device), "error": self.trouble}
        name, capability, peers = self.description
        return {
            "device": str(self.device),
            "name": name,
            "compute_capability": capability or None,
            "memory_nbytes": self.memory.total,
            "free_nbytes": self.memory.free,
            "peers": [str(Device(f"{self.device.kind}:{index}")) for index in peers],
        }


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(_WRONG_ARGUMENTS, f"{self.prog}: {message} (--help lists the options)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m engine", description="Commands of the engine.")
    commands = parser.add_subparsers(dest="command", metavar="devices", required=True)
    devices = commands.add_parser("devices", help="what this machine has to compute on", description=__doc__)
    devices.add_argument("--json", action="store_true", help="print JSON, sizes in bytes")
    return parser


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _gpus() -> tuple[list[Device], str]:
    """The GPUs, and where there are none, why."""
    try:
        indices = Device("cuda:0").backend.indices()
    except DeviceError as error:
        return [], _line(error)
    return [Device(f"cuda:{index}") for index in indices], "" if indices else "CUDA finds none"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of columns; a row's last cell may be as long as it likes."""
    count = max(map(len, rows))
    widths = [max((len(row[at]) for row in rows if at < len(row) - 1), default=0) for at in range(count)]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)).rstrip()


def _lines(found: Sequence[Found], gpus: Sequence[Found], missing: str) -> Iterator[str]:
    yield from _table([_COLUMNS, *(one.cells() for one in found)])
    if missing:
        yield f"no GPU: {missing}"
    if len(gpus) > 1:
        names = [str(gpu.device) for gpu in gpus]
        yield ""
        yield "peer access, as the driver says: whether the GPU of a row reaches the memory of that of a column"
        rows = zip(names, gpus, strict=True)
        yield from _table([["", *names], *([name, *(gpu.reaches(other) for other in gpus)] for name, gpu in rows)])
        if os.environ.get("LAYERLOOM_NO_PEER", "") not in ("", "0"):
            yield "LAYERLOOM_NO_PEER is set: copies between GPUs go through host memory all the same"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit status: 0; 1 if a device cannot be asked. Wrong arguments end the process with 2.
    """
    given = _parser().parse_args(arguments)
    devices, missing = _gpus()
    gpus = [Found.of(device) for device in devices]
    found = [*map(Found.of, Device.available("cpu")), *gpus]
    if given.json:
        print(json.dumps({"devices": [one.document() for one in found], "no_gpu": missing or None}, indent=2))
    else:
        print(*_lines(found, gpus, missing), sep="\n")
    return int(any(one.trouble for one in found))


def _run() -> int:
    """`main`, with an output that may be closed or full."""
    try:
        status = main()
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError):
            sys.stdout.close()  # the interpreter would try again when it ends
        if not isinstance(error, BrokenPipeError):
            print(f"python -m engine: standard output: {error.strerror}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(_run())
