"""NVIDIA's own tool beside ours, where the machine has it.

Its tests with copy engines are those that are comparable: one pair at a time,
buffers of 512 MiB, the source's device issuing the copy.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bench.report import Row
from bench.timing import Spread

from .point import Point

_TESTS: Final = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_write_ce")
_LIMIT: Final = 300  # seconds
_BARE: Final = frozenset({"pinned", "driver"})


def rows(measured: Sequence[Row]) -> Iterator[Row]:
    """Each of its figures, with the ratio of our bare copy's to it, at the largest size we measured."""
    program = shutil.which("nvbandwidth")
    ours = _largest(measured)
    if program is None or not ours:
        return
    try:
        theirs = read(_output(program))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        note = f"not measured: {' '.join(str(error).split())}"
        yield Row(what="nvbandwidth", value=None, unit="GB/s", note=note)
        return
    for (source, destination), row in ours.items():
        figure = theirs.get(_names(source, destination))
        if figure is None or row.value is None:
            continue
        what = f"{source} → {destination}"
        yield Row(what=f"{what}, nvbandwidth, 512 MiB", value=Spread(figure, figure, figure), unit="GB/s")
        ratio = row.value.scaled(1 / figure)
        yield Row(
            what=f"{row.what}, beside nvbandwidth",
            value=row.value,
            unit="GB/s",
            ratio=ratio,
            to="nvbandwidth",
            tags={**(row.tags or {}), "measured": "beside"},
        )


def _output(program: str) -> str:
    tests = [word for name in _TESTS for word in ("-t", name)]
    return subprocess.run([program, "-j", *tests], capture_output=True, text=True, timeout=_LIMIT).stdout


def _largest(measured: Sequence[Row]) -> Mapping[tuple[str, str], Row]:
    """For each pair with a GPU, our bare copy one way of the largest size."""
    found: dict[tuple[str, str], tuple[int, Row]] = {}
    for row in measured:
        point = Point.of(row, "bandwidth")
        if point is None or point.route not in _BARE or point.way != "one way":
            continue
        pair = (point.source, point.destination)
        if pair not in found or found[pair][0] < point.nbytes:
            found[pair] = (point.nbytes, row)
    return {pair: row for pair, (_, row) in found.items()}


def _names(source: str, destination: str) -> tuple[str, str]:
    """A pair as its figures name it: its host is one."""
    return tuple("cpu" if name.startswith("cpu") else name for name in (source, destination))  # pyright: ignore


def read(text: str) -> dict[tuple[str, str], float]:
    """GB/s by source and destination, of what the tool prints with ``-j``.

    Raises:
        ValueError: it is not of that form, or the tool failed.
    """
    try:
        found: Any = json.loads(text[text.index("{") :])["nvbandwidth"]
        if "error" in found:
            raise ValueError(f"nvbandwidth failed: {found['error']}")
        figures: dict[tuple[str, str], float] = {}
        for test in found["testcases"]:
            for row, cells in enumerate(test.get("bandwidth_matrix", [])):
                for column, cell in enumerate(cells):
                    if cell != "N/A":
                        figures[_pair(test["name"], row, column)] = float(cell)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"nvbandwidth printed something else than its JSON: {error!r}") from error
    return figures


def _pair(name: str, row: int, column: int) -> tuple[str, str]:
    """What a cell of a test's matrix is about: its rows are GPUs, or the one host; its columns are GPUs."""
    if name == _TESTS[0]:
        return "cpu", f"cuda:{column}"
    if name == _TESTS[1]:
        return f"cuda:{column}", "cpu"
    if name == _TESTS[2]:
        return f"cuda:{row}", f"cuda:{column}"
    raise KeyError(name)
