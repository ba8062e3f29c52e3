"""Tests of the suite itself: the model passes every law, none applies to an empty adapter, and choices are checked."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from hypothesis import Phase, settings

from .law import Law
from .layered_model import ModelAdapter
from .other_adapters import EmptyAdapter, Reversing, Rounding
from .suite import OUTSIDE, named

ROOT: Final = Path(__file__).parents[2]
FEW: Final = settings(
    max_examples=30, derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate]
)


@pytest.mark.suite
@pytest.mark.parametrize("law", OUTSIDE, ids=named)
def test_the_model_passes(law: Law) -> None:
    """A law that fails for the rules as they stand, run without the engine, is wrong."""
    assert not law.missing(ModelAdapter())
    law.put_to(ModelAdapter(), FEW)


def test_no_law_applies_to_an_adapter_that_offers_nothing() -> None:
    assert all(law.missing(EmptyAdapter()) for law in OUTSIDE)


def test_every_law_has_a_number_and_says_what_it_needs() -> None:
    for law in OUTSIDE:
        assert law.numbers
        assert law.needs
        assert all(number[0] == "L" and number[1:].isdecimal() for number in law.numbers)


@pytest.mark.parametrize("liar", [Reversing, Rounding])
def test_a_lie_is_noticed(liar: type[ModelAdapter]) -> None:
    """A lying adapter fails a law that the model passes."""
    laws = [law for law in OUTSIDE if "L5" in law.numbers]

    assert any(_fails(law, liar()) for law in laws)


def _fails(law: Law, adapter: ModelAdapter) -> bool:
    try:
        law.put_to(adapter, FEW)
    except (Exception, pytest.fail.Exception):
        return True
    return False


def pytest_run(*arguments: str, **variables: str) -> tuple[int, str]:
    """Exit status and output of a pytest of its own over one file of laws."""
    command = [sys.executable, "-m", "pytest", "tests/laws/test_ids.py", *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LAYERLOOM_")}
    done = subprocess.run(command, cwd=ROOT, env={**kept, **variables}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_an_unknown_variable_is_an_error_that_names_it() -> None:
    status, said = pytest_run("--collect-only", LAYERLOOM_PROFIL="ci")

    assert status == pytest.ExitCode.USAGE_ERROR
    assert "LAYERLOOM_PROFIL" in said


def test_an_unknown_profile_is_an_error_that_names_those_there_are() -> None:
    status, said = pytest_run("--collect-only", LAYERLOOM_PROFILE="quick")

    assert status == pytest.ExitCode.USAGE_ERROR
    assert "quick" in said
    assert "nightly" in said


def test_profile_and_adapter_can_be_chosen_are_printed_and_reported(tmp_path: Path) -> None:
    """Whatever the variable CI says, which makes hypothesis load a profile of its own."""
    file = tmp_path / "report.json"
    chosen = ("--profile", "ci", "--adapter", "tests.laws.other_adapters:NoRecords", "--law-report", str(file))

    status, said = pytest_run(*chosen, "-k", "uuid or entry_without_id", CI="1")

    assert status == 0
    assert "profile: ci (200 examples, 100 of what is no law, 50 steps)" in said
    assert "adapter: tests.laws.other_adapters:NoRecords" in said
    told = json.loads(file.read_text(encoding="utf-8"))
    assert told["adapter"] == "model without records"
    assert {number: law["result"] for number, law in told["laws"].items()} == {"L15": "passed", "L17": "not applicable"}


def test_a_capability_can_be_required() -> None:
    """Then what is not applicable fails, and says for want of what."""
    chosen = ("--adapter", "tests.laws.other_adapters:NoRecords", "--require", "records", "-k", "entry_without_id")

    status, said = pytest_run(*chosen)

    assert status == pytest.ExitCode.TESTS_FAILED
    assert "does not offer records" in said
