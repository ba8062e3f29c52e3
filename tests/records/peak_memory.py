"""``python -m tests.records.peak_memory [SIZE] [FOLDER]``: what memory saving and converting take beyond a record.

A record of SIZE (``2GB`` by default) in sixteen tensors is saved, converted,
compared, checked and taken apart, each in a process of its own. The bound is
that of its largest tensor and 64 MB. It is set as the process's limit, so one
that would go beyond ends with an error; what is printed is the most that was
seen while it ran. Memory is what the process has for itself, without pages of
mapped files, which the system takes back at will. FOLDER, by default
that of temporary files, needs room for four times SIZE. Linux only.
"""

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine import Device, Tensor
from records import ModuleRecord, ParamId, RecordEntry
from records.__main__ import main as command

MARGIN: Final = 64 * 10**6

_TENSORS: Final = 16
_ROOT: Final = Path(__file__).parents[2]
_PAUSE: Final = 0.002  # seconds between two looks at a process
_UNITS: Final = {"GB": 10**9, "MB": 10**6}


class Step(NamedTuple):
    """Something that is done with files in a folder: `prepare` makes what is not to be measured."""

    name: str
    run: Callable[[Any], object]
    prepare: Callable[[int], Any] = lambda _: None


class Taken(NamedTuple):
    """What a step took: bytes beyond those that it began with, and seconds."""

    nbytes: int
    seconds: float


class _Made:
    """A tensor that is made when it is asked for, as one of a GPU is."""

    dtype = np.dtype("float32")

    def __init__(self, nbytes: int, number: int) -> None:
        self.shape = (nbytes // 4,)
        self.nbytes = nbytes // 4 * 4
        self._number = number

    def host(self) -> NDArray[Any]:
        return np.full(self.shape, self._number, self.dtype)

    def read(self, device: Device) -> Tensor:
        return Tensor.adopt(self.host(), device)


def _record(size: int) -> ModuleRecord:
    made = [_Made(size // _TENSORS, number) for number in range(1, _TENSORS + 1)]
    return ModuleRecord([(f"blocks.{at}.weight", RecordEntry(one, ParamId(at))) for at, one in enumerate(made)])


def _held(size: int) -> ModuleRecord:
    entries = {path: RecordEntry(entry.read("cpu:0"), entry.id) for path, entry in _record(size).items()}
    return ModuleRecord(entries)


def _save_another(size: int) -> None:
    entry = RecordEntry(_Made(size // _TENSORS, 0))
    ModuleRecord([("blocks.0.weight", entry)]).save("c.bpk")


def _diff(one: str, other: str, status: int) -> Callable[[Any], object]:
    def run(_: Any) -> None:
        try:
            command(["diff", one, other])
        except SystemExit as ended:
            if ended.code != status:
                raise
        else:
            assert status == 0, "the files differ"

    return run


def _convert(source: str, destination: str) -> Callable[[Any], object]:
    return lambda _: command(["convert", source, destination, "--force"])


_HALF: Final = [f"blocks.{at}" for at in range(_TENSORS // 2)]
STEPS: Final = (  # in an order in which each finds the files that it needs
    Step("save, tensors made one by one", lambda record: record.save("a.bpk"), _record),
    Step("save, tensors in memory", lambda record: record.save("b.bpk"), _held),
    Step("save as safetensors, one by one", lambda record: record.save("a.safetensors"), _record),
    Step("save as named MessagePack, one by one", lambda record: record.save("a.mpk"), _record),
    Step("burnpack to safetensors", _convert("a.bpk", "a.safetensors")),
    Step("safetensors to burnpack", _convert("a.safetensors", "b.bpk")),
    Step("diff of equal files", _diff("a.safetensors", "b.bpk", 0)),
    Step("diff of others", _diff("a.safetensors", "c.bpk", 1), _save_another),
    Step("verify", lambda _: command(["verify", "b.bpk"])),
    Step("extract", lambda _: command(["extract", "a.safetensors", "b.bpk", *_HALF, "--force"])),
    Step("burnpack to named MessagePack", _convert("a.bpk", "a.mpk")),
    Step("named MessagePack to burnpack", _convert("a.mpk", "b.bpk")),
    Step("burnpack to named MessagePack in gzip", _convert("a.bpk", "a.mpk.gz")),
    Step("named MessagePack in gzip to burnpack", _convert("a.mpk.gz", "b.bpk")),
)


def bound(size: int) -> int:
    """The bytes that a step may take beyond a record of that size, or beyond nothing where the record is in a file."""
    return size // _TENSORS + MARGIN


def taken(step: Step, size: int, folder: Path) -> Taken:
    """Run a step in a process of its own, which may take no more than the bound.

    Raises:
        MemoryError: it would have; or it failed otherwise. The message has what it said.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", __name__ if __name__ != "__main__" else "tests.records.peak_memory", "--step", step.name,
         str(size), str(folder)],
        cwd=_ROOT, env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        process.stdout.readline()  # it is ready
        first = most = _bytes(process.pid, "RssAnon")
        begun = time.perf_counter()
        process.stdin.close()
        while process.poll() is None:
            most = max(most, _bytes(process.pid, "RssAnon"))
            time.sleep(_PAUSE)
        said = process.stdout.read()
    if process.returncode:
        raise MemoryError(f"{step.name}: status {process.returncode}: {said}")
    return Taken(most - first, time.perf_counter() - begun)


def _bytes(process: int | str, name: str) -> int:
    """A number of a process's status; 0 where it has ended."""
    found = re.search(rf"^{name}:\s*(\d+) kB$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _run(name: str, size: int, folder: str) -> None:
    """What the process of a step does."""
    os.chdir(folder)
    step = next(step for step in STEPS if step.name == name)
    prepared = step.prepare(size)
    print("ready", flush=True)
    sys.stdin.read()
    limit = _bytes("self", "VmData") + bound(size)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    step.run(prepared)


def main(arguments: list[str]) -> None:
    """Measure every step and print a line for each."""
    if arguments[:1] == ["--step"]:
        _run(arguments[1], int(arguments[2]), arguments[3])
        return
    text = arguments[0] if arguments else "2GB"
    size = int(float(text[:-2]) * _UNITS[text[-2:]])
    print(f"a record of {text} in {_TENSORS} tensors; the bound is {bound(size) / 1e6:.0f} MB", flush=True)
    with tempfile.TemporaryDirectory(dir=arguments[1] if len(arguments) > 1 else None) as folder:
        for step in STEPS:
            found = taken(step, size, Path(folder))
            print(f"{step.name:40}{found.nbytes / 1e6:7.0f} MB {found.seconds:7.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
