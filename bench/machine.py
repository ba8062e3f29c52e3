"""What was measured on: a description of the machine, and how much of it other work took meanwhile."""

import importlib
import os
import platform
import re
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, final

import numpy as np

from engine import Device


def describe() -> dict[str, Any]:
    """The processor, memory, BLAS and versions that figures depend on, as JSON can hold them.

    ``cores`` are those that this process may use; ``blas`` has the number of threads each library uses now.
    """
    return {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": Device("cpu:0").memory().total,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": _blas(),
        "gpus": _gpus(),
    }


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def blas_threads() -> int:
    """Threads that matrix products use now."""
    return max((library["threads"] for library in _blas()), default=1)


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _blas() -> list[dict[str, Any]]:
    """Name, version, kernels and threads of each BLAS that is loaded; empty without the package threadpoolctl."""
    try:
        libraries = importlib.import_module("threadpoolctl").threadpool_info()
    except ImportError:
        return []
    return [
        {
            "name": library["internal_api"],
            "version": library["version"],
            "architecture": library.get("architecture"),
            "threads": library["num_threads"],
        }
        for library in libraries
        if library["user_api"] == "blas"
    ]


def _gpus() -> list[str]:
    """Names of the GPUs that the engine can use; their devices where nvidia-ml-py is not installed."""
    devices = Device.available("cuda")
    if not devices:
        return []
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # no package, or a driver without NVML: the devices are all that is known
        return [str(device) for device in devices]
    try:
        count = nvml.nvmlDeviceGetCount()
        names = [nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    finally:
        nvml.nvmlShutdown()
    return [name.decode() if isinstance(name, bytes) else name for name in names]


class CpuTimes(NamedTuple):
    """Seconds of processor time since the machine started."""

    all: float  # of all cores, idle or not
    busy: float  # of all cores, in any program, or taken by the hypervisor
    own: float  # in this process and its children that have ended

    @classmethod
    def now(cls) -> Self | None:
        """What the kernel says now; None where it does not."""
        try:
            line = Path("/proc/stat").read_text().split("\n", 1)[0]
        except OSError:
            return None
        used = os.times()
        return cls.read(
            line, os.sysconf("SC_CLK_TCK"), used.user + used.system + used.children_user + used.children_system
        )

    @classmethod
    def read(cls, line: str, ticks_per_second: int, own: float) -> Self:
        """The times in the first line of ``/proc/stat``: user, nice, system, idle, iowait, irq, softirq, steal, …"""
        numbers = [int(text) / ticks_per_second for text in line.split()[1:9]]
        idle = numbers[3] + numbers[4]
        return cls(sum(numbers), sum(numbers) - idle, own)

    def others_until(self, later: "CpuTimes") -> float:
        """The share of all cores' time, 0 to 1, that went to others from here until `later`."""
        passed = later.all - self.all
        others = (later.busy - self.busy) - (later.own - self.own)
        return min(1.0, max(0.0, others / passed)) if passed > 0 else 0.0


@final
class OtherWork:
    """Watches, while its ``with`` is open, what other processes take; `share` says it afterwards.

    Attributes:
        share: of the time of all cores, 0 to 1; None where the system does not tell.
    """

    def __init__(self) -> None:
        self.share: float | None = None
        self._start: CpuTimes | None = None

    def __enter__(self) -> Self:
        self._start = CpuTimes.now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = CpuTimes.now()
        if self._start is not None and end is not None:
            self.share = self._start.others_until(end)
