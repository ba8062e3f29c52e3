"""The CPU backend: NumPy. Every index is a device with memory of its own, so a copy between two is a real one."""

import platform
import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .backend import Backend, Description, Memory, Route
from .errors import DeviceError

_CGROUP_FILES: Final = (  # (limit, usage) of control groups, version 2 and 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


class CpuBackend:
    """NumPy arrays. All CPU devices share the machine's memory and need no context."""

    xp: Any = np

    def indices(self) -> Sequence[int]:
        return (0,)

    def enter(self, index: int) -> None: ...

    def leave(self, index: int, error: BaseException | None = None) -> None:
        if isinstance(error, MemoryError):
            raise out_of_memory(f"cpu:{index}", error) from error

    def synchronize(self, index: int) -> None: ...

    def describe(self, index: int) -> Description:
        """The processor's name; all CPU devices share its memory."""
        try:
            found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        except OSError:
            found = None
        return Description(found[1].strip() if found else platform.processor() or platform.machine())

    def memory(self, index: int) -> Memory:
        """What the machine, and the process's control group, still have to give."""
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(lines[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
        for limit_file, usage_file in _CGROUP_FILES:
            limit, usage = _number(limit_file), _number(usage_file)
            if limit is not None and usage is not None and limit < total:
                total, free = limit, min(free, max(0, limit - usage))
        return Memory(free, total)

    def upload(self, array: NDArray[Any], index: int) -> NDArray[Any]:
        return _copied(array, index)

    def download(self, arrays: Sequence[NDArray[Any]], index: int) -> list[NDArray[Any]]:
        return [_copied(array, index) for array in arrays]

    def copy_between(
        self, arrays: Sequence[NDArray[Any]], source: int, destination: int, route: Route | None = None
    ) -> tuple[list[NDArray[Any]], Route]:
        if route not in (None, "host"):
            raise DeviceError(f"copies between CPU devices go by the route 'host', not {route!r}")
        return [_copied(array, destination) for array in arrays], "host"


def out_of_memory(place: str, error: MemoryError) -> DeviceError:
    """What a `MemoryError` says of the device named `place`: the bytes asked for, where NumPy told their array."""
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    asked = f"asked for {prod(shape) * dtype.itemsize:,} bytes" if shape is not None and dtype is not None else error
    return DeviceError(f"{place} is out of memory ({asked}); use a smaller shape, batch or dtype")


def _copied(array: NDArray[Any], index: int) -> NDArray[Any]:
    try:
        return np.array(array, order="K", copy=True)
    except MemoryError as error:
        raise out_of_memory(f"cpu:{index}", error) from error


def _number(file: str) -> int | None:
    """The number in a one-line file of the kernel; None where there is no such file or number."""
    try:
        return int(Path(file).read_text())
    except (OSError, ValueError):
        return None


BACKEND: Final[Backend] = CpuBackend()
