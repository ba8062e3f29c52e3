"""Placements as Burn 0.23.0-pre.1 itself made them: ``burn/placements.jsonl.gz``, all kinds but ``split``.

Where we differ from it on purpose (P23k, P23l), a case must be one that the
oracle of the rules explains: told to follow upstream it gives Burn's answer,
told to follow the project it gives ours. Nothing else is excused.
"""

import gzip
import json
import re

import pytest

from engine import Device
from modules.parallel import LayerPlacement, LayerStage, PlacementError
from tests.golden_files import FOLDER, SHIPPED, golden_file
from tests.parallel import by_memory_oracle as oracle
from tests.parallel.strategies import MemoryProblem

pytestmark = pytest.mark.golden

FIELDS = {  # of each kind: the fields that a case has
    "devices": ["equal names"],
    "refusal": ["call panic"],
    "even": ["devices n result"],
    "new": ["result stages"],
    "equal": ["a b equal"],
    "by_memory": ["devices hidden input output result", "devices hidden input output panic"],
    "split": [],  # compared with split models, in a file of its own
}


def all_cases() -> list[dict]:
    with gzip.open(golden_file("burn/placements.jsonl.gz"), "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def cases(kind: str) -> list[tuple[int, dict]]:
    """The cases of one kind with their line numbers; none in the data we ship is a failure, elsewhere a skip."""
    found = [(number, case) for number, case in enumerate(all_cases(), 1) if case["kind"] == kind]
    if not found:
        assert FOLDER != SHIPPED, f"no case of kind {kind}"
        pytest.skip(f"no case of kind {kind} in {FOLDER}")
    for number, case in found:
        assert " ".join(sorted(case.keys() - {"kind"})) in FIELDS[kind], (
            f"line {number} is not understood: {sorted(case)}"
        )
    return found


def device(text: str) -> Device:
    """A device of the golden data: a number, with ``a`` for the autodiff handle."""
    match = re.fullmatch(r"([0-9]+)(a?)", text)
    assert match, f"{text!r} is no device of the golden data"
    return Device(f"cpu:{match[1]}{'+autodiff' if match[2] else ''}")


def golden_text(found: Device) -> str:
    return f"{found.index}{'a' if found.is_autodiff else ''}"


def placement(fields: dict) -> LayerPlacement:
    assert sorted(fields) == ["hidden", "input", "output"]
    return LayerPlacement(device(fields["input"]), map(device, fields["hidden"]), device(fields["output"]))


def described(found: LayerPlacement | None) -> dict | None:
    """A placement as the golden data writes it, flags included."""
    if found is None:
        return None
    hidden = [golden_text(one) for one in found.hidden]
    return {"input": golden_text(found.input), "hidden": hidden, "output": golden_text(found.output)}


def fully_described(found: LayerPlacement) -> dict:
    """As the results of ``even`` and ``new``: with devices, stages and whether these give it back."""
    stages = found.stages()
    return {
        **described(found),
        "devices": [golden_text(one) for one in found.devices()],
        "stages": [[golden_text(stage.device), stage.num_hidden_layers] for stage in stages],
        "new_of_stages_equals": LayerPlacement.from_stages(stages) == found if stages else None,
    }


def test_every_case_is_of_a_known_kind():
    """A case that is read and not understood is a failure."""
    unknown = {number: case["kind"] for number, case in enumerate(all_cases(), 1) if case["kind"] not in FIELDS}

    assert not unknown


def test_devices_are_equal_where_burn_says_so():
    """P13, M39: the autodiff flag plays no part."""
    for _, case in cases("devices"):
        assert all(golden_text(device(name)) == name for name in case["names"])
        assert case["equal"] == [[a, b, device(a) == device(b)] for a, b, _ in case["equal"]]
        assert all(hash(device(a)) == hash(device(b)) for a, b, equal in case["equal"] if equal)


def test_what_burn_refuses_is_refused():
    """P15, P18."""
    for number, case in cases("refusal"):
        call = re.fullmatch(r"new\(\[\]\)|even\(\[\], ([0-9]+)\)", case["call"])
        assert call, f"line {number} is not understood: {case}"
        with pytest.raises(PlacementError, match="at least one"):
            LayerPlacement.from_stages([]) if call[1] is None else LayerPlacement.even([], int(call[1]))


def test_even_is_burns_case_by_case():
    """P17 to P22; flags and the device first met included."""
    for number, case in cases("even"):
        found = LayerPlacement.even([device(text) for text in case["devices"]], case["n"])

        assert fully_described(found) == case["result"], f"line {number}"


def test_from_stages_is_burns_new_case_by_case():
    """P14 to P16, P19 to P22; flags and the device first met included."""
    for number, case in cases("new"):
        found = LayerPlacement.from_stages([LayerStage(device(text), count) for text, count in case["stages"]])

        assert fully_described(found) == case["result"], f"line {number}"


def test_placements_are_equal_where_burn_says_so():
    """P12, P13."""
    for number, case in cases("equal"):
        a, b = placement(case["a"]), placement(case["b"])

        assert (a == b) is case["equal"], f"line {number}"
        assert hash(a) == hash(b) or not case["equal"], f"line {number}"


def by_memory_problem(case: dict) -> tuple[MemoryProblem, list[Device]]:
    (place, nbytes), *more = case["output"].items()
    assert not more
    assert place in ("after_hidden", "with_input")
    names, capacities = zip(*case["devices"], strict=True) if case["devices"] else ((), ())
    problem = MemoryProblem(capacities, case["input"], tuple(case["hidden"]), nbytes, place == "with_input")
    return problem, [device(name) for name in names]


def by_oracle(problem: MemoryProblem, devices: list[Device], *, upstream: bool) -> dict | None:
    """What the rules give, as upstream has them or as the project does, as the golden data writes it."""
    places = oracle.places(problem.capacities, problem.sizes, upstream=upstream)
    if places is None:
        return None
    texts = [golden_text(devices[index]) for index in places]
    output = texts[0] if problem.shares_input else texts.pop()
    return {"input": texts[0], "hidden": texts[1:], "output": output}


def test_by_memory_is_burns_case_by_case():
    """P23a to P23j, P23m, P23n; other answers only by P23k (zero bytes at the end) and P23l (large numbers)."""
    for number, case in cases("by_memory"):
        problem, devices = by_memory_problem(case)
        found = described(problem.solve(devices))

        assert found == by_oracle(problem, devices, upstream=False), f"line {number}: not what the rules give"
        if "panic" in case:
            assert case["panic"] == "attempt to add with overflow", f"line {number} is not understood"
            assert max(sum(problem.capacities), sum(problem.sizes)) >= 2**64, f"line {number}: P23l does not apply"
            continue
        assert by_oracle(problem, devices, upstream=True) == case["result"], f"line {number}: the oracle is wrong"
        if found != case["result"]:
            by_p23k = case["result"] is None and problem.sizes[-1] == 0
            by_p23l = any(int(float(capacity)) > capacity for capacity in problem.capacities)
            assert by_p23k or by_p23l, f"line {number}: {found} is not Burn's {case['result']}"
