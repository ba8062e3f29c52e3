"""The bar: on a terminal's error stream alone, never drawn during a reading, and whole at the end."""

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import __main__ as command
from bench import progress
from bench.progress import Progress
from bench.registry import BENCHMARKS
from bench.settings import Settings


@given(st.lists(st.integers(1, 9), max_size=5))
def test_steps_are_done_whole_whatever_their_parts(parts: list[int]) -> None:
    bar = Progress()
    bar.expect(len(parts))
    for at, of in enumerate(parts):
        for done in range(1, of + 1):
            bar.part(done, of)
            assert bar.done == pytest.approx(at + done / of)
    assert bar.done == bar.steps == len(parts)


def test_each_round_is_a_part_of_a_step_and_told_after_its_readings() -> None:
    """Those for warmth too."""
    told: list[Any] = []
    settings = Settings()

    def reading() -> float:
        told.append("reading")
        return 1.0

    settings.progress.part = lambda done, of: told.append((done, of))  # pyright: ignore[reportAttributeAccessIssue]
    settings.interleaved(reading, rounds=2, warmup=1)
    assert told == ["reading", (1, 3), "reading", (2, 3), "reading", (3, 3)]


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name not in ("generate", "quantize")])
def test_a_benchmark_makes_as_many_steps_as_it_expects(name: str) -> None:
    """Else the bar would stop short, or go on past its end. (Those that are left out take a minute.)"""
    settings = Settings(quick=True)
    for _ in BENCHMARKS[name].measure(settings):
        assert settings.progress.done <= settings.progress.steps
    assert settings.progress.done == settings.progress.steps > 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_than_on_a_terminal_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # by which rich takes anything for a terminal
    for stream, shown in ((io.StringIO(), False), (Terminal(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress("copies") as bar:
            bar.expect(2)
            bar.found("[one] thing")
        assert ("copies" in stream.getvalue()) == shown


def test_without_the_package_for_bars_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    with Progress("copies") as bar:
        bar.expect(1)
        bar.part(1, 1)
    assert sys.stderr.getvalue() == ""  # pyright: ignore[reportAttributeAccessIssue]


def test_it_is_drawn_by_who_tells_it_and_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread of its own; a hundred calls within a tenth of a second are one drawing."""
    clock = iter([0.0, *(1 + at / 1000 for at in range(100)), 9.0, 9.0])
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys, "stderr", Terminal())
    drawn: list[None] = []
    with Progress("copies") as bar:
        assert bar._bar.live._refresh_thread is None
        monkeypatch.setattr(bar._bar, "refresh", lambda: drawn.append(None))
        bar.expect(100)
        for at in range(100):
            bar.part(at + 1, 100)
        assert len(drawn) == 1
        bar.found("last")
        assert len(drawn) == 2


def test_on_a_terminal_the_command_shows_it_on_stderr_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """What goes to stdout, and into the file, is as without."""
    file = tmp_path / "found.json"
    arguments = [sys.executable, "-m", "bench", "modules", "--quick", "--json", str(file)]
    seen, terminal = pty.openpty()
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=terminal, cwd=Path(command.__file__).parents[1],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )  # fmt: skip
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(seen, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(seen)
    printed, _ = process.communicate()
    assert process.returncode == 0
    assert b"modules" in shown
    assert shown.rstrip().endswith(b"\x1b[2K")
    assert b"\x1b" not in printed
    assert [one["name"] for one in json.loads(file.read_text())["benchmarks"]] == ["modules"]
