"""Display texts as Burn 0.23.0-pre.1 wrote them: ``burn/display.jsonl.gz``.

Left out are displays of library layers (``layer``), which are for reading.
The field ``debug`` is Rust's debug text and not compared. Two rules differ
from Burn on purpose, each where it is named below: M101 (what an optional
holds stands at its own level) and M103 (a lazy parameter shows its declared
shape, and stays lazy).
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from modules import DisplaySettings, Lora, Module, ModuleVisitor, Param, display
from tests.golden_files import FOLDER, SHIPPED, golden_file

from .burn_trees import BurnTree

pytestmark = pytest.mark.golden

LEFT_OUT = {"layer": 86}  # in the data we ship
SHAPE_MAPPED = "init_mapper"


def cases() -> list[tuple[int, dict[str, Any]]]:
    with gzip.open(golden_file("burn/display.jsonl.gz"), "rt", encoding="utf-8") as lines:
        found = [(number, json.loads(line)) for number, line in enumerate(lines, 1)]
    for number, case in found:
        assert case.keys() - {"debug"} == {"name", "tree", "settings", "text"}, f"line {number}: {sorted(case)}"
    return found


def replayed() -> Iterator[tuple[str, dict[str, Any]]]:
    for number, case in cases():
        if not case["tree"].keys() & LEFT_OUT.keys():
            yield f"line {number}: {case['name']} {case['settings']}", case


def built(node: dict[str, Any], device: str = "cpu:0") -> tuple[BurnTree, Any]:
    """A tree, and the module that is displayed: after LoRA where the data says so."""
    if "apply_lora" not in node:
        tree = BurnTree(node, device)
        return tree, tree.value
    assert node.keys() == {"apply_lora", "tree"}, node
    assert node["apply_lora"].keys() == {"rank", "alpha"}, node
    tree = BurnTree(node["tree"], device)
    return tree, tree.value.apply_lora(Lora(**node["apply_lora"]))


def holds(node: Any, key: str) -> bool:
    """Whether a node, or one inside it, has a key."""
    if isinstance(node, dict):
        return key in node or any(holds(inner, key) for inner in node.values())
    return isinstance(node, list) and any(holds(inner, key) for inner in node)


def has_deep_optional(node: Any) -> bool:
    """Whether an optional of the tree holds something that has lines of its own."""
    if isinstance(node, dict):
        return ("some" in node and not holds_only_a_leaf(node)) or any(map(has_deep_optional, node.values()))
    return isinstance(node, list) and any(map(has_deep_optional, node))


def holds_only_a_leaf(node: dict[str, Any]) -> bool:
    while "some" in node or "box" in node:
        node = node.get("some", node.get("box"))
    return bool({"param", "tensor", "running_state", "same_param_as", "none", "config"} & node.keys())


def unindented(text: str) -> str:
    return "\n".join(line.lstrip(" ") for line in text.splitlines())


class Reading(ModuleVisitor):
    """Makes every value."""

    def visit_float(self, path: str, param: Param, /) -> None:
        param.val()

    visit_int = visit_bool = visit_float


def test_displays_are_burns_case_by_case():
    """M101, M102; where optionals hold modules, lines are compared without their indentation (M101).

    Trees with a lazy shape-mapped parameter are read first, as Burn does when it displays (M103).
    """
    compared: Counter[str] = Counter()
    for what, case in replayed():
        _, value = built(case["tree"])
        if holds(case["tree"], SHAPE_MAPPED):
            value.visit(Reading())
            compared["M103"] += 1
        text = display(value, DisplaySettings(**case["settings"]))

        if has_deep_optional(case["tree"]):
            assert unindented(text) == unindented(case["text"]), what
            compared["M101"] += 1
        else:
            assert text == case["text"], what
        compared["all"] += 1
    if FOLDER == SHIPPED:
        assert compared == {"all": 139, "M101": 21, "M103": 14}


def test_the_method_gives_the_text_of_the_function():
    """DESIGN, repr and display."""
    for what, case in replayed():
        _, value = built(case["tree"])
        settings = DisplaySettings(**case["settings"])
        if isinstance(value, Module):
            assert value.display(settings) == display(value, settings), what


def test_a_display_makes_no_value_and_shows_declared_shapes():
    """M103: the shape of a lazy shape-mapped parameter is the one before its mapper."""
    for what, case in replayed():
        tree, value = built(case["tree"])
        made = dict(tree.inits)
        text = display(value, DisplaySettings(**case["settings"]))

        assert tree.inits == made, what
        if case["name"] == "lazy":
            assert "turned: ParamTensor {rank: 2, shape: [2, 3], kind: float" in text, what
            assert "turned: ParamTensor {rank: 2, shape: [3, 2], kind: float" in case["text"], what


def test_library_layers_are_the_only_ones_left_out():
    """Nothing is left out in silence."""
    kinds = Counter(kind for _, case in cases() for kind in LEFT_OUT if kind in case["tree"])

    if FOLDER == SHIPPED:
        assert kinds == LEFT_OUT
