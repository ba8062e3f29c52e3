"""Programs of calls that Burn 0.23.0-pre.1 ran, replayed: ``burn/programs.jsonl.gz`` (PROGRAMS.md says what is in it).

After each call everything that Burn observed must be so here; at the end also
what was kept, every value, how often initialisers ran, and the display. What
differs on purpose is named by the marks of a program, and nothing else is:

* M63, M47: a parameter that is lazy here and was made upstream is compared as what it will be, and initialisers may
  have run less often.
* A24: as M63; only what gets an adapter is made by LoRA.
* M94, M96, M97: running states are left out.
* M27: kept modules are left out.
* M33, D4, M42, M47, M85 in `burn_programs`: what upstream does is done by hand.
* Q24: nothing, as quantized values agree to the bit.

Without a mark: a program that ends as upstream panics where it quantizes what is quantized, which is skipped here
(Q31), and a load of different values for tied parameters, which is done with the ties parted (D8).
"""

import gzip
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

from engine import AutodiffError
from modules import ModuleError, RunningState, display
from tests.golden_files import FOLDER, SHIPPED, golden_file

from .burn_programs import Run, array_of, as_it_will_be, effective, observed

pytestmark = pytest.mark.golden

PROGRAMS: Final = 285
STEPS: Final = 1439  # with the start of each program, and what was refused
LAZIER: Final = {"M63", "M47", "A24"}
PENDING: Final = {"M94", "M96", "M97"}
KNOWN: Final = {*LAZIER, *PENDING, "D4", "M33", "M27", "M42", "M85", "Q24"}
FIELDS: Final = {"name", "tree", "device", "steps", "end", "depends_on"}


@cache
def trees() -> dict[str, Any]:
    return json.loads(golden_file("burn/tree.json").read_text())


@cache
def programs() -> list[dict[str, Any]]:
    with gzip.open(golden_file("burn/programs.jsonl.gz"), "rt") as lines:
        return [json.loads(line) for line in lines]


def running(module: Any, path: str) -> bool:
    return isinstance(module.at(path), RunningState)


def compare(module: Any, state: Mapping[str, Any], what: str, marks: set[str]) -> None:
    """A module against a state, by paths in order."""
    found = observed(module, [constant["path"] for constant in state["constants"]])
    recorded = state["items"]
    assert [item["path"] for item in found["items"]] == [item["path"] for item in recorded], what
    for item, expected in zip(found["items"], recorded, strict=True):
        if "M96" in marks and running(module, item["path"]):
            continue
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
        if running(module, item["path"]) and "M96" in marks:
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


def compare_effective(module: Any, recorded: list[dict[str, str]], what: str) -> None:
    """Values that reparameterizations compute."""
    found = effective(module)
    assert [path for path, _ in found] == [one["path"] for one in recorded], what
    for (path, value), one in zip(found, recorded, strict=True):
        numbers = np.frombuffer(bytes.fromhex(one["value"]), np.float32).reshape(value.shape)
        assert np.array_equal(value.numpy(), numbers), f"{what}: {path}"


def unindented(text: str) -> list[str]:
    """Lines without indentation, which differs inside optionals (M101)."""
    return [line.strip() for line in text.splitlines()]


def compare_end(run: Run, end: Mapping[str, Any], what: str, marks: set[str]) -> None:
    """Kept modules, initialisers, values and text; `deep` is absent after a panic."""
    compare_inits(run, end["inits"], f"{what}, inits", marks)
    kept = [] if "M27" in marks else list(enumerate(run.kept))
    assert len(run.kept) == len(end["kept"]) == len(end["kept_deep"]), what
    for (number, module), state in zip(kept, end["kept"], strict=False):
        compare(module, state, f"{what}, kept {number}", marks)
    if "deep" in end:
        compare_deep(run.module, end["deep"], f"{what}, at the end", marks)
        assert unindented(display(run.module)) == unindented(end["display"]), what
        compare_effective(run.module, end["effective"], what)
    for (number, module), state in zip(kept, end["kept_deep"], strict=False):
        values = {name: value for name, value in state.items() if name != "effective"}
        compare_deep(module, values, f"{what}, kept {number} at the end", marks)
        compare_effective(module, state["effective"], f"{what}, kept {number} at the end")
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
            with nullcontext() if call["op"] == "quantize_weights" else pytest.raises((AutodiffError, ModuleError)):
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
    """M51 to M63, M112, A1 to A49, Q48 to Q58: paths, ids, kinds, training state, counts, devices and values.

    Those of the modules that a program keeps too, and effective values.
    """
    for program in programs():
        assert program.keys() == FIELDS, program["name"]
        assert set(program["depends_on"]) <= KNOWN, program["name"]
    steps = [replay(program) for program in programs()]

    print(f"compared {sum(steps)} steps of {len(steps)} programs")
    if FOLDER == SHIPPED:
        assert (len(steps), sum(steps)) == (PROGRAMS, STEPS)
