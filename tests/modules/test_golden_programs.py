"""Programs of calls that Burn 0.23.0-pre.1 ran, replayed: ``burn/programs.jsonl.gz`` (PROGRAMS.md says what is in it).

After each call everything that Burn observed must be so here; at the end also
what was kept, every value, how often initialisers ran, and the display. What
differs on purpose is named by the marks of a program, and nothing else is:

* M63, M47: a parameter that is lazy here and was made upstream is compared as what it will be, and initialisers may
  have run less often.
* M94, M97: running states are left out.
* M33, D4, M47 in `burn_programs`: what upstream does beforehand is done by hand.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

from engine import AutodiffError
from modules import RunningState, display
from tests.golden_files import FOLDER, SHIPPED, golden_file

from .burn_programs import CALLS, Run, array_of, as_it_will_be, observed

pytestmark = pytest.mark.golden

PROGRAMS: Final = 149
STEPS: Final = 525  # with the start of each program, and what was refused
LEFT_OUT: Final = {"quantization or reparameterization": 136}
LAZIER: Final = {"M63", "M47"}
PENDING: Final = {"M94", "M97"}
KNOWN: Final = {*LAZIER, *PENDING, "D4", "M33"}
FIELDS: Final = {"name", "tree", "device", "steps", "end", "depends_on"}


@cache
def trees() -> dict[str, Any]:
    return json.loads(golden_file("burn/tree.json").read_text())


@cache
def programs() -> list[dict[str, Any]]:
    with gzip.open(golden_file("burn/programs.jsonl.gz"), "rt") as lines:
        return [json.loads(line) for line in lines]


def reason_to_leave_out(program: Mapping[str, Any]) -> str | None:
    """Why a program waits; None if it is replayed."""
    calls = [step["call"] for step in program["steps"] if step["call"]]
    later = any(call["op"] not in CALLS or "prepare" in call.get("fresh", {}) for call in calls)
    return "quantization or reparameterization" if later else None


def replayed() -> Iterator[dict[str, Any]]:
    for program in programs():
        assert program.keys() == FIELDS, program["name"]
        if reason_to_leave_out(program) is None:
            assert set(program["depends_on"]) <= KNOWN, program["name"]
            yield program


def running(module: Any, path: str) -> bool:
    return isinstance(module.at(path), RunningState)


def compare(module: Any, state: Mapping[str, Any], what: str, marks: set[str]) -> None:
    """A module against a state, by paths in order."""
    found = observed(module, [constant["path"] for constant in state["constants"]])
    recorded = state["items"]
    assert [item["path"] for item in found["items"]] == [item["path"] for item in recorded], what
    for item, expected in zip(found["items"], recorded, strict=True):
        will = as_it_will_be(item, expected)
        assert will == expected, f"{what}: {expected['path']}"
        assert will is item or marks & LAZIER, f"{what}: {expected['path']} is lazy"
    assert {**found, "items": recorded} == state, what


def compare_deep(module: Any, state: Mapping[str, Any], what: str, marks: set[str]) -> None:
    """A module against a state with values, which are made."""
    found = observed(module, [constant["path"] for constant in state["constants"]], deep=True)
    for item, expected in zip(found["items"], state["items"], strict=True):
        where = f"{what}: {expected['path']}"
        if item["kind"] == "flag":
            assert item == expected, where
            continue
        if not (running(module, item["path"]) and marks & PENDING):
            assert np.array_equal(item["base"], array_of(expected)), where
        assert {**item, "base": None} == {**expected, "base": None}, where
    assert {**found, "items": None} == {**state, "items": None}, what


def compare_inits(run: Run, recorded: Mapping[str, int], what: str, marks: set[str]) -> None:
    """How often initialisers ran, over all trees."""
    ran: Counter[int] = Counter()
    for one in run.inits:
        ran.update(one)
    if marks & LAZIER:
        assert all(times <= recorded.get(str(id_), 0) for id_, times in ran.items()), what
    else:
        assert {str(id_): times for id_, times in ran.items()} == recorded, what


def unindented(text: str) -> list[str]:
    """Lines without indentation, which differs inside optionals (M101)."""
    return [line.strip() for line in text.splitlines()]


def compare_end(run: Run, end: Mapping[str, Any], what: str, marks: set[str]) -> None:
    """Kept modules, initialisers, values and text; `deep` is absent after a panic."""
    compare_inits(run, end["inits"], f"{what}, inits", marks)
    for number, (module, state) in enumerate(zip(run.kept, end["kept"], strict=True)):
        compare(module, state, f"{what}, kept {number}", marks)
    if "deep" in end:
        compare_deep(run.module, end["deep"], f"{what}, at the end", marks)
        assert unindented(display(run.module)) == unindented(end["display"]), what
        assert not end["effective"], what
    for number, (module, state) in enumerate(zip(run.kept, end["kept_deep"], strict=True)):
        state = {name: value for name, value in state.items() if name != "effective"}
        compare_deep(module, state, f"{what}, kept {number} at the end", marks)
    compare_inits(run, end["inits_after"], f"{what}, inits after reading", marks)


def replay(program: Mapping[str, Any]) -> int:
    """Run a program and compare all of it; gives the number of steps."""
    marks = set(program["depends_on"])
    run = Run.of(program, trees())
    state: Mapping[str, Any] | None = None
    for number, step in enumerate(program["steps"]):
        call = step["call"]
        what = f"{program['name']}, step {number}: {call}"
        if call is not None and "panic" in call:
            assert number == len(program["steps"]) - 1, what
            with pytest.raises(AutodiffError):
                run.call(call, program["tree"], None)
            break
        assert step.keys() == {"call", "same"} or step.keys() == {"call", "state"}, what
        state = step.get("state", state)
        assert state is not None, what
        if call is not None:
            run.call(call, program["tree"], state)
            if call["op"] == "running_sync" and running(run.module, call["path"]) and not marks & PENDING:
                assert run.module.at(call["path"]).value().tobytes().hex() == call["value"], what
        compare(run.module, state, what, marks)
    compare_end(run, program["end"], program["name"], marks)
    return len(program["steps"])


def test_programs_are_burns_step_by_step():
    """M51 to M63, M112: paths, ids, kinds, training state, counts, devices and values, of the kept modules too."""
    steps = [replay(program) for program in replayed()]

    print(f"compared {sum(steps)} steps of {len(steps)} programs")
    assert steps or FOLDER != SHIPPED
    if FOLDER == SHIPPED:
        assert (len(steps), sum(steps)) == (PROGRAMS, STEPS)


def test_programs_with_quantization_or_reparameterization_are_the_only_ones_left_out():
    """Nothing is left out in silence."""
    left_out = Counter(reason for program in programs() if (reason := reason_to_leave_out(program)))

    if FOLDER == SHIPPED:
        assert left_out == LEFT_OUT
