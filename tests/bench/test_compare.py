"""``python -m bench compare``: ratios and their spread, and files that are refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.__main__ import main
from bench.compare import Change, ratio_of
from bench.report import Result, Row, write_json
from bench.timing import Spread

MACHINE: dict[str, Any] = {
    "cpu": "Abacus", "cores": 2, "memory_bytes": 16e9, "system": "Linux", "python": "3.11", "numpy": "2.4",
    "blas": [], "gpus": [],
}  # fmt: skip
ROWS = [
    Row(what="a step", value=Spread(8, 10, 12), unit="ms", ratio=Spread(1.0, 1.25, 1.5), to="by hand"),
    Row(what="a rate", value=Spread(90, 100, 110), unit="GB/s"),
    Row(what="memory", value=Spread(5, 5, 5), unit="MB"),
]


def write(file: Path, *rows: Row, machine: Any = MACHINE, quick: bool = False, name: str = "thing") -> str:
    """A file as ``--json`` writes it; its path."""
    write_json(file, machine, [Result(name=name, question="How long?", rows=rows, quick=quick, others=0.0)])
    return str(file)


def spreads() -> st.SearchStrategy[Spread]:
    numbers = st.lists(st.floats(0.01, 1000), min_size=3, max_size=3)
    return numbers.map(lambda three: Spread(*sorted(three)))


@given(old=spreads(), new=spreads(), at=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_the_spread_of_a_ratio_holds_the_ratio_of_whatever_lies_between_the_quartiles(
    old: Spread, new: Spread, at: tuple[float, float]
) -> None:
    """And its ends are ratios of quartiles, so no narrower spread does."""
    ratio = ratio_of(new, old)
    assert ratio is not None
    before, after = (min(s.low + (s.high - s.low) * t, s.high) for s, t in zip((old, new), at, strict=True))
    assert ratio.low * (1 - 1e-9) <= after / before <= ratio.high * (1 + 1e-9)
    assert ratio == (new.low / old.high, new.median / old.median, new.high / old.low)


def test_there_is_no_ratio_to_nothing() -> None:
    assert ratio_of(Spread(1, 2, 3), Spread(0, 1, 2)) is None
    assert ratio_of(None, Spread(1, 2, 3)) is None
    assert ratio_of(Spread(1, 2, 3), None) is None


@pytest.mark.parametrize(
    ("ratio", "unit", "verdict"),
    [
        ((1.1, 1.2, 1.3), "ms", "slower"),
        ((0.7, 0.8, 0.9), "µs", "faster"),
        ((1.1, 1.2, 1.3), "tokens/s", "faster"),
        ((0.7, 0.8, 0.9), "GB/s", "slower"),
        ((1.1, 1.2, 1.3), "MB", "more"),
        ((0.7, 0.8, 0.9), "MB", "less"),
        ((0.9, 1.2, 1.3), "s", "within the spread"),
        ((0.7, 0.8, 1.0), "GB/s", "within the spread"),
    ],
)
def test_a_change_is_named_by_its_unit_and_only_beyond_the_spread(ratio: Any, unit: str, verdict: str) -> None:
    change = Change(what="x", unit=unit, old=None, new=None, ratio=Spread(*ratio), beside=None)
    assert change.verdict == verdict


def test_rows_of_both_are_compared_in_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """20 ms for 10: twice as slow; beside its reference as before. What one has alone is named."""
    old = write(tmp_path / "old.json", *ROWS, Row(what="gone", value=Spread(1, 1, 1), unit="s"))
    new = write(
        tmp_path / "new.json",
        Row(what="a step", value=Spread(18, 20, 24), unit="ms", ratio=Spread(1.0, 1.25, 1.5), to="by hand"),
        Row(what="a rate", value=Spread(95, 101, 110), unit="GB/s"),
        Row(what="memory", value=None, unit="MB", note="not measured: no memory"),
        Row(what="come", value=Spread(1, 1, 1), unit="s"),
    )
    assert main(["compare", old, new, "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    step = next(line for line in lines if line.startswith("| a step"))
    assert step.split(" | ")[1:3] == ["10 ms (8 … 12)", "20 ms (18 … 24)"]
    assert step.split(" | ")[3:] == ["2 (1.5 … 3)", "slower", "1 (0.667 … 1.5) |"]
    assert "within the spread" in next(line for line in lines if line.startswith("| a rate"))
    assert "| not measured |" in next(line for line in lines if line.startswith("| memory"))
    assert "thing: only in the old: gone" in lines
    assert "thing: only in the new: come" in lines


def refused(capsys: pytest.CaptureFixture[str], old: str, new: str) -> str:
    assert main(["compare", old, new]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("name", "value"), [("cpu", "Other"), ("cores", 4), ("gpus", ["A GPU"]), ("memory_bytes", 32e9)]
)
def test_files_of_different_machines_are_refused(
    name: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write(tmp_path / "old.json", *ROWS)
    new = write(tmp_path / "new.json", *ROWS, machine=MACHINE | {name: value})
    assert "different machines" in refused(capsys, old, new)


def test_another_version_or_a_kernel_that_keeps_more_memory_is_noted_and_no_other_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write(tmp_path / "old.json", *ROWS)
    new = write(tmp_path / "new.json", *ROWS, machine=MACHINE | {"numpy": "2.5", "memory_bytes": 15.9e9})
    assert main(["compare", old, new]) == 0
    assert "numpy: 2.4 in the old, 2.5 in the new" in capsys.readouterr().out


def test_files_of_different_benchmarks_or_sizes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old.json", *ROWS)
    line = refused(capsys, old, write(tmp_path / "new.json", *ROWS, name="other"))
    assert "different benchmarks: thing in the old, other in the new" in line
    assert "quick" in refused(capsys, old, write(tmp_path / "new.json", *ROWS, quick=True))


def test_quick_runs_are_compared_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write(tmp_path / f"{which}.json", *ROWS, quick=True) for which in ("old", "new")]
    assert main(["compare", *files]) == 0
    assert "figures mean nothing" in capsys.readouterr().out


def test_other_work_during_a_run_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (write(tmp_path / f"{which}.json", *ROWS) for which in ("old", "new"))
    found = json.loads(Path(new).read_text())
    found["benchmarks"][0]["others"] = 0.4
    Path(new).write_text(json.dumps(found))
    assert main(["compare", old, new]) == 0
    assert "other work took 40% of the machine in the new run" in capsys.readouterr().out


def test_what_is_no_result_is_refused_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old.json", *ROWS)
    found = json.loads(Path(old).read_text())
    without = copy.deepcopy(found)
    del without["benchmarks"][0]["rows"][0]["value"]["low"]
    texts = ["", "{", "[]", "3", "{}", json.dumps({"machine": {}, "benchmarks": []}), json.dumps(without)]
    for text in texts:
        (tmp_path / "new.json").write_text(text)
        assert str(tmp_path / "new.json") in refused(capsys, old, str(tmp_path / "new.json"))
    (tmp_path / "new.json").write_bytes(b"\xff\xfe")
    assert "no JSON" in refused(capsys, old, str(tmp_path / "new.json"))
    assert "No such file" in refused(capsys, old, str(tmp_path / "nowhere.json"))


NUMBERS: dict[str, Any] = {
    "text": "fast", "nan": float("nan"), "below 0": -1.0, "true": True, "beyond float": 10**400, "falling": 99.0,
}  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
def test_figures_that_no_benchmark_writes_are_refused_by_their_row(
    number: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write(tmp_path / "old.json", *ROWS)
    found = json.loads(Path(old).read_text())
    found["benchmarks"][0]["rows"][0]["value"]["low"] = number
    (tmp_path / "new.json").write_text(json.dumps(found))
    assert "thing: the value of 'a step' is no rising" in refused(capsys, old, str(tmp_path / "new.json"))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("benchmarks", 0, "others"), "x"),
        (("benchmarks", 0, "name"), 5),
        (("benchmarks", 0, "rows", 0, "what"), None),
        (("benchmarks", 0, "rows", 0), [1]),
        (("benchmarks", 0, "rows"), None),
        (("benchmarks", 0), None),
        (("machine", "memory_bytes"), "much"),
        (("machine",), []),
    ],
)
def test_parts_of_another_form_are_refused(
    place: tuple[Any, ...], value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write(tmp_path / "old.json", *ROWS)
    found = json.loads(Path(old).read_text())
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "new.json").write_text(json.dumps(found))
    line = refused(capsys, old, str(tmp_path / "new.json"))
    assert "it is not what python -m bench --json writes: " in line
    assert "Error(" not in line


def test_json_that_nests_too_deep_and_files_of_no_benchmark_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deep.json"
    file.write_text("[" * 100_000)
    assert "no JSON" in refused(capsys, str(file), str(file))
    write_json(file, MACHINE, [])
    assert "nothing to compare" in refused(capsys, str(file), str(file))


def test_a_row_that_is_measured_otherwise_is_in_neither_and_named_with_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write(tmp_path / "old.json", *ROWS)
    new = write(tmp_path / "new.json", Row(what="a step", value=Spread(8, 10, 12), unit="µs", to="PyTorch"), *ROWS[1:])
    assert main(["compare", old, new, "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "thing: only in the old: a step (in ms, to by hand)" in lines
    assert "thing: only in the new: a step (in µs, to PyTorch)" in lines


def test_the_verdict_is_of_the_figures_that_are_shown() -> None:
    change = Change(what="x", unit="ms", old=None, new=None, ratio=Spread(1.003, 1.2, 1.3), beside=None)
    assert (change.cells()[3], change.verdict) == ("1.2 (1 … 1.3)", "within the spread")
