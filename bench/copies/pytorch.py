"""The same copies in PyTorch, in a process of its own, where this interpreter or another one has it."""

import importlib.util
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Final

from bench.beside.client import Beside, BesideError
from bench.machine import blas_threads
from bench.report import Row
from bench.settings import Settings
from engine import Device

from .calls import by_engine, own_route, reading
from .point import Point

_READING: Final = 0.05  # seconds that a reading lasts at least
_ON_THE_WAY: Final = 1 << 28  # bytes that a reading may put on its way


def rows(settings: Settings, devices: Sequence[Device], sizes: Sequence[int]) -> Iterator[Row]:
    """Two rows for each pair and size, or one that says why there is none. All CPU devices are torch's one."""
    if settings.beside is None and importlib.util.find_spec("torch") is None:
        why = "not measured: torch is not installed here; --beside names an interpreter that has it"
        yield Row(what="copies by PyTorch", value=None, unit="GB/s", note=why)
        return
    pairs: dict[tuple[str, str], tuple[Device, Device]] = {}
    for source, destination in permutations(devices, 2):
        pairs.setdefault((_torch_name(source), _torch_name(destination)), (source, destination))
    try:
        with Beside(settings.beside or Path(sys.executable), "copy_with_torch", Path("-"), blas_threads()) as process:
            settings.progress.expect(len(pairs) * len(sizes))
            for (source, destination), ours in pairs.items():
                for nbytes in sizes:
                    yield from _rows(settings, process, source, destination, ours, nbytes)
    except BesideError as error:
        yield Row(what="copies by PyTorch", value=None, unit="GB/s", note=f"not measured: {error}")


def _torch_name(device: Device) -> str:
    return "cpu" if device.kind == "cpu" else str(device)


def _rows(
    settings: Settings, process: Beside, source: str, destination: str, ours: tuple[Device, Device], nbytes: int
) -> Iterator[Row]:
    """PyTorch's copy, and ours beside it in the same rounds."""
    request = {"source": source, "destination": destination, "nbytes": nbytes}
    process.ask("copy", **request, repeat=1)
    once = process.ask("copy", **request, repeat=1)["seconds"]
    repeat = max(1, min(math.ceil(settings.least_seconds(_READING) / max(once, 1e-9)), _ON_THE_WAY // nbytes))
    mine, its = settings.interleaved(
        reading([by_engine(*ours, "contiguous", nbytes)], repeat),
        process.reading("copy", **request, repeat=repeat, per=repeat),
        rounds=5,
        warmup=1,
    )
    place, destined = map(str, ours)
    point = Point(
        source=place, destination=destined, route="PyTorch", layout="contiguous", way="one way", nbytes=nbytes
    )
    yield Row(
        what=point.what,
        value=its.rate(nbytes / 1e9),
        unit="GB/s",
        note=f"by {process.version}",
        tags=point.tags("bandwidth"),
    )
    point = replace(point, route=own_route(*ours))
    yield Row(
        what=f"{point.what}, beside PyTorch",
        value=mine.rate(nbytes / 1e9),
        unit="GB/s",
        ratio=its.over(mine),
        to="PyTorch",
        tags=point.tags("beside"),
    )
