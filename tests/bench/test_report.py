"""Rows, limits, tables and JSON."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from bench.report import (
    Result,
    Row,
    Table,
    at_least,
    at_most,
    cells,
    document,
    number_text,
    print_machine,
    print_result,
    spread_text,
    write_json,
)
from bench.timing import Spread

MACHINE = {"cpu": "Abacus", "cores": 2, "memory_bytes": 8e9, "gpus": [], "python": "3", "numpy": "2", "blas": []}
ROW = Row(
    what="a thing",
    value=Spread(1.0, 2.0, 3.0),
    unit="ms",
    ratio=Spread(0.5, 0.9, 1.1),
    to="another",
    bound=at_least(0.8),
    goal=at_least(1),
    note="as seen",
)


def result_of(*rows: Row, quick: bool = False, others: float | None = 0.0) -> Result:
    return Result(name="thing", question="How long?\n\nMore.", rows=rows, quick=quick, others=others)


def test_limits_hold_at_their_number() -> None:
    assert at_most(2).holds(2)
    assert not at_most(2).holds(2.001)
    assert at_least(2).holds(2)
    assert not at_least(2).holds(1.999)
    assert (str(at_most(1.05)), str(at_least(0.85))) == ("≤ 1.05", "≥ 0.85")


def test_a_bound_is_of_the_ratio_where_there_is_one_and_of_the_value_otherwise() -> None:
    assert ROW.judged == 0.9
    assert ROW.holds is True
    alone = Row(what="x", value=Spread(1, 12, 13), unit="ms", bound=at_most(10))
    assert alone.judged == 12
    assert alone.holds is False
    assert Row(what="x", value=Spread(1, 2, 3), unit="ms").holds is None
    assert Row(what="x", value=None, unit="ms", bound=at_most(10)).holds is None


@pytest.mark.parametrize(
    ("number", "text"),
    [(1234.5, "1,234"), (123.4, "123"), (12.345, "12.3"), (1.0, "1"), (0.12345, "0.123"), (0, "0"), (2e-6, "2e-06")],
)
def test_numbers_have_three_digits(number: float, text: str) -> None:
    assert number_text(number) == text


def test_quartiles_are_left_out_where_they_say_nothing() -> None:
    assert spread_text(Spread(1.0, 2.0, 3.0), "ms") == "2 ms (1 … 3)"
    assert spread_text(Spread(2.0, 2.0, 2.0)) == "2"


def test_a_row_shows_value_unit_ratio_limits_and_whether_it_is_kept() -> None:
    assert cells(ROW) == ("a thing", "2 ms (1 … 3)", "0.9 (0.5 … 1.1)", "another", "≥ 0.8", "≥ 1", "yes")
    assert cells(ROW, quick=True)[-1] == ""
    unmeasured = Row(what="x", value=None, unit="ms", note="torch is not installed")
    assert cells(unmeasured)[1] == "torch is not installed"


def test_the_json_has_every_field_of_every_row(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    write_json(file, MACHINE, [result_of(ROW, Row(what="b", value=None, unit="s"))])
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["machine"] == MACHINE
    (benchmark,) = found["benchmarks"]
    assert benchmark.keys() == {"name", "question", "quick", "others", "rows"}
    first, second = benchmark["rows"]
    assert first == {
        "what": "a thing",
        "value": {"low": 1.0, "median": 2.0, "high": 3.0},
        "unit": "ms",
        "ratio": {"low": 0.5, "median": 0.9, "high": 1.1},
        "to": "another",
        "bound": {"relation": "at least", "number": 0.8},
        "goal": {"relation": "at least", "number": 1},
        "holds": True,
        "note": "as seen",
    }
    assert second["value"] is None
    assert second["holds"] is None
    assert first.keys() == second.keys()


def test_a_quick_run_judges_nothing() -> None:
    (benchmark,) = document(MACHINE, [result_of(ROW, quick=True)])["benchmarks"]
    assert benchmark["quick"] is True
    assert benchmark["rows"][0]["holds"] is None


@pytest.mark.parametrize(
    ("quick", "others", "word"), [(False, 0.0, ""), (False, None, ""), (False, 0.2, "20%"), (True, 0.0, "quick")]
)
def test_figures_that_mean_nothing_are_said_to(quick: bool, others: float | None, word: str) -> None:
    warning = result_of(ROW, quick=quick, others=others).warning
    assert (word in warning) if word else warning == ""


@pytest.mark.parametrize("markdown", [True, False])
def test_a_table_has_the_question_every_row_and_the_notes(
    markdown: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_machine(MACHINE)
    print_result(result_of(ROW, others=0.5), markdown=markdown)
    printed = capsys.readouterr().out
    for text in ("Abacus", "How long?", "a thing", "2 ms (1 … 3)", "0.9", "another", "≥ 0.8", "yes", "as seen", "50%"):
        assert text in printed
    assert "More." not in printed


def test_without_rich_a_table_is_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rich" else found(name))
    print_result(result_of(ROW))
    assert "| a thing | 2 ms (1 … 3) |" in capsys.readouterr().out


def test_a_benchmarks_own_tables_come_first_and_then_the_rows_that_are_judged_or_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = Row(what="plain", value=Spread(1, 2, 3), unit="ms")
    missing = Row(what="missing", value=None, unit="ms", note="not measured: why")
    own = Table("A matrix", ("", "there"), [("here", "7")])
    result = Result(name="thing", question="How?", rows=[plain, ROW, missing], quick=False, others=None, tables=[own])
    for has_rich in (True, False):
        if not has_rich:
            monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        print_result(result)
        text = capsys.readouterr().out
        assert text.index("A matrix") < text.index("7") < text.index("a thing") < text.index("missing")
        assert "plain" not in text
    (found,) = document(MACHINE, [result])["benchmarks"]
    assert [row["what"] for row in found["rows"]] == ["plain", "a thing", "missing"]


def test_tags_are_written_where_there_are_any() -> None:
    tagged = Row(what="x", value=Spread(1, 2, 3), unit="ms", tags={"nbytes": 3})
    (found,) = document(MACHINE, [result_of(tagged, ROW)])["benchmarks"]
    assert found["rows"][0]["tags"] == {"nbytes": 3}
    assert "tags" not in found["rows"][1]
