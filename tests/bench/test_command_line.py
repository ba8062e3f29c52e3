"""``python -m bench``: its arguments, its errors, its exit status, and what it writes."""

import json
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as command
from bench.answers import AnswerError
from bench.report import Row
from bench.settings import Settings
from bench.timing import Spread
from engine import Device
from examples.errors import UsageError

ROW = Row(what="a thing", value=Spread(1, 2, 3), unit="ms")


def benchmark_of(measure: Callable[[Settings], Iterable[Row]]) -> Any:
    return types.SimpleNamespace(__doc__="How long?", measure=measure)


def raising(error: BaseException) -> Any:
    def measure(settings: Settings) -> Iterable[Row]:
        yield ROW
        raise error

    return benchmark_of(measure)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Settings]]:
    """Three benchmarks that measure nothing, and what they are asked."""
    found: list[tuple[str, Settings]] = []

    def named(name: str) -> Any:
        def measure(settings: Settings) -> Iterable[Row]:
            found.append((name, settings))
            return [ROW]

        return benchmark_of(measure)

    monkeypatch.setattr(command, "BENCHMARKS", {name: named(name) for name in ("first", "second", "third")})
    return found


def test_the_benchmarks_that_are_named_run_in_that_order(asked: list[tuple[str, Settings]]) -> None:
    assert command.main(["third", "first"]) == 0
    assert [name for name, _ in asked] == ["third", "first"]


def test_without_a_name_all_run(asked: list[tuple[str, Settings]]) -> None:
    assert command.main([]) == 0
    assert [name for name, _ in asked] == ["first", "second", "third"]


def test_an_unknown_name_is_one_line_that_lists_the_known_ones(
    asked: list[tuple[str, Settings]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["first", "frist"]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert "'frist'" in line
    assert "first, second, third" in line
    assert printed.out == ""
    assert asked == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--json", "nowhere/found.json"], "no folder nowhere"),
        (["--beside", "nowhere/python"], "no such interpreter"),
        (["--json", "."], "--json .: it cannot be written: Is a directory"),
        (["--json", "n" * 300], "cannot be written"),
        (["--beside", "/bin/true"], "no Python interpreter"),
        (["--beside", "/bin/echo"], "no Python interpreter"),
        (["--beside", __file__], "no Python interpreter"),
        (["--threads", "0"], "1 or more"),
        (["--threads", "99999999999999999999"], "at most"),
        (["--quick", "compare", "a.json", "b.json"], "compare comes first"),
        (["--devices", "cpu:0"], "two devices or more"),
        (["--devices", "cpu:0,cpu:1,cpu:0"], "each once"),
        (["--devices", "cpu:0,gpu:1"], "--devices cpu:0,gpu:1: 'gpu:1' is no device"),
        (["--devices", "cpu:0,cuda:99"], "cuda"),
        (["--plots", __file__], "no folder"),
    ],
)
def test_wrong_options_are_one_line_each_before_anything_runs(
    arguments: list[str],
    word: str,
    asked: list[tuple[str, Settings]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert word in line
    assert asked == []


def test_threads_without_the_package_say_what_to_install(
    asked: list[tuple[str, Settings]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert command.main(["--threads", "1"]) == 2
    assert "threadpoolctl" in capsys.readouterr().err
    assert asked == []


def test_a_folder_of_plots_that_cannot_be_made_is_refused_before_anything_runs(
    asked: list[tuple[str, Settings]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: object())
    assert command.main(["--plots", f"{__file__}/plots"]) == 2
    assert f"--plots {__file__}/plots: it cannot be made: " in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize("option", ["--json", "--plots", "--beside"])
def test_an_empty_name_is_refused_by_its_option(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main([option, ""])
    assert f"argument {option}: the name is empty" in capsys.readouterr().err


def test_whoever_no_longer_reads_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run`, which the process goes through, ends in silence."""
    monkeypatch.setattr(command, "BENCHMARKS", {"first": raising(BrokenPipeError())})
    with pytest.raises(BrokenPipeError):
        command.main(["first"])


def test_options_reach_the_benchmark(
    asked: list[tuple[str, Settings]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is drawn here, so matplotlib, which --plots asks for, need not be installed."""
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: object())
    python = Path(sys.executable)
    command.main(["first", "--quick", "--beside", str(python)])
    command.main(["first"])
    command.main(["first", "--devices", "cpu:3, cpu:0", "--plots", str(tmp_path / "plots")])
    devices = (Device("cpu:3"), Device("cpu:0"))
    assert asked == [
        ("first", Settings(quick=True, beside=python)),
        ("first", Settings(quick=False, beside=None)),
        ("first", Settings(devices=devices, plots=tmp_path / "plots")),
    ]


def test_json_holds_machine_and_results_of_every_benchmark(asked: list[tuple[str, Settings]], tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    assert command.main(["--json", str(file), "--quick"]) == 0
    found = json.loads(file.read_text())
    assert found.keys() == {"machine", "benchmarks"}
    assert [benchmark["name"] for benchmark in found["benchmarks"]] == ["first", "second", "third"]
    assert all(benchmark["quick"] for benchmark in found["benchmarks"])
    assert found["benchmarks"][0]["question"] == "How long?"


def test_trying_where_the_json_goes_leaves_what_is_there(asked: list[tuple[str, Settings]], tmp_path: Path) -> None:
    """Also where another option is refused afterwards: an old file stays, and a new one does not appear."""
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("kept")
    for file in (old, new):
        assert command.main(["--json", str(file), "--threads", "0"]) == 2
    assert old.read_text() == "kept"
    assert not new.exists()
    assert asked == []


@pytest.mark.parametrize("error", [AnswerError("other bits"), UsageError("no model"), OSError("disk full")])
def test_a_failure_is_one_line_and_keeps_the_results_before_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "found.json"
    both = {"good": benchmark_of(lambda settings: [ROW]), "bad": raising(error)}
    monkeypatch.setattr(command, "BENCHMARKS", both)
    assert command.main(["--json", str(file)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(error) in line
    assert [benchmark["name"] for benchmark in json.loads(file.read_text())["benchmarks"]] == ["good"]


def test_an_interrupt_leaves_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "BENCHMARKS", {"slow": raising(KeyboardInterrupt())})
    assert command.main([]) == 130
    assert capsys.readouterr().err == ""


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "BENCHMARKS", {"broken": raising(ZeroDivisionError())})
    with pytest.raises(ZeroDivisionError):
        command.main([])
