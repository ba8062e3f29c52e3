"""The description of the machine, and the arithmetic of what others take of it."""

import json
import types
from typing import Any

import numpy as np
import pytest

from bench import machine
from bench.machine import CpuTimes, OtherWork
from engine import Device


def test_the_description_is_json_and_names_what_figures_depend_on() -> None:
    described = machine.describe()
    assert json.loads(json.dumps(described)) == described
    assert {"cpu", "cores", "memory_bytes", "python", "numpy", "blas", "gpus"} <= described.keys()
    assert described["numpy"] == np.__version__
    assert described["cores"] >= 1
    assert described["memory_bytes"] > 2**20
    assert described["cpu"]
    assert all({"name", "version", "threads"} <= library.keys() for library in described["blas"])


def test_without_a_gpu_there_are_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "available", classmethod(lambda cls, kind: []))
    assert machine.describe()["gpus"] == []


def test_gpus_are_called_what_the_driver_calls_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "available", classmethod(lambda cls, kind: [Device("cuda:0"), Device("cuda:1")]))
    library = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: [b"Old name", "New name"][handle],
    )
    monkeypatch.setitem(__import__("sys").modules, "pynvml", library)
    assert machine.describe()["gpus"] == ["Old name", "New name"]


def test_without_a_driver_library_gpus_are_named_as_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "available", classmethod(lambda cls, kind: [Device("cuda:0")]))
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert machine.describe()["gpus"] == ["cuda:0"]


def test_the_first_line_of_stat_is_read_in_ticks() -> None:
    """User 100, nice 20, system 50, idle 700, iowait 30, irq 4, softirq 6, steal 90, guest (within user) 10."""
    times = CpuTimes.read("cpu  100 20 50 700 30 4 6 90 10 0", 100, own=0.5)
    assert times == (10.0, 2.7, 0.5)


@pytest.mark.parametrize(
    ("later", "share"),
    [
        ((200.0, 60.0, 55.0), 0.0),  # all that was busy was this process
        ((200.0, 80.0, 45.0), 0.3),  # 75 s busy, 45 own: 30 of 100
        ((200.0, 10.0, 30.0), 0.0),  # rounding never makes it negative
        ((100.0, 5.0, 0.0), 0.0),  # no time has passed
    ],
)
def test_others_have_what_is_busy_and_not_our_own(later: tuple[float, float, float], share: float) -> None:
    start = CpuTimes(100.0, 5.0, 0.0)
    assert start.others_until(CpuTimes(*later)) == pytest.approx(share)


def test_other_work_is_a_share_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    with OtherWork() as other:
        sum(range(1000))
    assert other.share is None or 0 <= other.share <= 1
    monkeypatch.setattr(CpuTimes, "now", classmethod(lambda cls: None))
    with OtherWork() as other:
        pass
    assert other.share is None


def test_blas_threads_follow_the_limit() -> None:
    threadpoolctl: Any = pytest.importorskip("threadpoolctl")
    if not machine.describe()["blas"]:
        pytest.skip("no BLAS that threadpoolctl knows")
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        assert machine.blas_threads() == 1
