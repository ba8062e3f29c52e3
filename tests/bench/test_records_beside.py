"""Records beside safetensors and PyTorch: the arithmetic of the rows, and where there is nothing beside."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import records_beside
from bench.answers import AnswerError
from bench.beside.client import Beside, BesideError
from bench.records import record_of
from bench.records_beside import Ours, rows
from bench.settings import Settings
from records import open_record

ARRAYS = {"b": np.full((3, 1000), 2, np.float32), "a": np.arange(1000, dtype=np.float32)}
NBYTES = 16_000
SECONDS = {"open": 0.002, "load": 0.004, "use": 0.008, "save": 0.016}


class Process:
    """Others that take these seconds; torch twice as long."""

    version = "torch and safetensors of a test"
    digest = hashlib.sha256(b"".join(ARRAYS[name].tobytes() for name in "ab")).hexdigest()

    def __init__(self, python: Path, script: str, file: Path, threads: int) -> None:
        self.file = file
        assert script == "records_with_torch"
        with open_record(file) as record:
            assert {name: entry.host().tobytes() for name, entry in record.items()} == {
                name: array.tobytes() for name, array in ARRAYS.items()
            }

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *error: object) -> None: ...

    def ask(self, do: str, ids: Sequence[int] = (), **request: Any) -> dict[str, Any]:
        times = 2 if request["by"] == "torch" else 1
        if do == "digest":
            return {"digest": self.digest}
        if do == "peak":
            return {"bytes": 1_000_000 * times * {"use": 1, "save": 3}[request["what"]]}
        return {"seconds": SECONDS[do] * times}

    reading = Beside.reading


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ours:
    """Ours takes a thousandth of a second for anything."""
    clock = 0.0

    def work() -> None:
        nonlocal clock
        clock += 0.001

    monkeypatch.setattr("bench.timing.perf_counter", lambda: clock)
    monkeypatch.setattr("bench.beside.client._REST", 0.0)
    monkeypatch.setattr(records_beside, "Beside", Process)
    target = tmp_path / "saved.bpk"

    def save() -> None:
        assert not target.exists()
        target.touch()
        work()

    return Ours(open=work, load=work, use=work, save=save, save_undigested=save, target=target)


def test_each_thing_is_a_row_for_each_of_them_and_ours_beside_each(ours: Ours, tmp_path: Path) -> None:
    """16,000 bytes in 1 ms are 0.016 GB/s; safetensors takes 4, torch 8, so ours is 4 and 8 times as fast."""
    settings = Settings(quick=True, beside=Path(sys.executable))
    found = {row.what: row for row in rows(settings, tmp_path, record_of(ARRAYS), ARRAYS, ours)}
    assert settings.progress.done == settings.progress.steps == 4
    for by, times in (("safetensors", 1), ("PyTorch", 2)):
        for what, do in (("loading", "load"), ("loading and using once", "use"), ("saving", "save")):
            its, mine = found[f"{what} by {by}"], found[f"{what} beside {by}"]
            seconds = SECONDS[do] * times
            assert (its.unit, its.value) == ("GB/s", pytest.approx([NBYTES / seconds / 1e9] * 3))
            assert mine.value == pytest.approx([0.016] * 3)
            assert (mine.ratio, mine.to) == (pytest.approx([seconds / 0.001] * 3), by)
        undigested = found[f"saving without digests beside {by}"]
        assert undigested.ratio == found[f"saving beside {by}"].ratio
        its, mine = found[f"opening by {by}"], found[f"opening beside {by}"]
        assert (its.unit, its.value) == ("ms", pytest.approx([2 * times] * 3))
        assert mine.ratio == pytest.approx([0.5 / times] * 3)
        for what, share in (("loading", 1), ("saving", 3)):
            row = found[f"memory that {what} takes at its peak, {by}"]
            assert (row.value, row.unit) == (pytest.approx([share * times] * 3), "MB")
            assert row.ratio == pytest.approx([1_000_000 * share * times / NBYTES] * 3)
    assert len(found) == 22


def test_other_bits_are_no_figures(ours: Ours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "digest", "other")
    with pytest.raises(AnswerError, match="what is loaded"):
        list(rows(Settings(quick=True, beside=Path("python")), tmp_path, record_of(ARRAYS), ARRAYS, ours))


def test_where_there_is_no_pytorch_one_row_says_so(ours: Ours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not installed here, or the interpreter that is named lacks a package."""
    monkeypatch.setattr(records_beside.importlib.util, "find_spec", lambda name: None)
    (row,) = rows(Settings(quick=True), tmp_path, record_of(ARRAYS), ARRAYS, ours)
    assert row.value is None
    assert row.note == "not measured: torch is not installed here; --beside names an interpreter that has it"

    def missing(*given: Any) -> Any:
        raise BesideError("No module named 'safetensors'")

    monkeypatch.setattr(records_beside, "Beside", missing)
    (row,) = rows(Settings(quick=True, beside=Path("python")), tmp_path, record_of(ARRAYS), ARRAYS, ours)
    assert (row.value, row.note) == (None, "not measured: No module named 'safetensors'")
