"""Visits and maps as Burn 0.23.0-pre.1 made them: ``burn/traversal.json`` over the trees of ``burn/tree.json``."""

import json
from functools import cache
from typing import Any

import pytest

from modules import Flag, Module, ModuleMapper, ModuleVisitor, Param
from tests.golden_files import FOLDER, SHIPPED, golden_file

from .burn_mappers import group_of, reparameterized
from .burn_programs import CALLS
from .burn_trees import BurnTree

pytestmark = pytest.mark.golden

COMPARED = 16  # in the data we ship
DEVICES = {"plain": "cpu:0", "autodiff": "cpu:0+autodiff"}


@cache
def trees() -> dict[str, Any]:
    return json.loads(golden_file("burn/tree.json").read_text(encoding="utf-8"))


def entries() -> list[dict[str, Any]]:
    found = json.loads(golden_file("burn/traversal.json").read_text(encoding="utf-8"))
    for entry in found:
        assert entry.keys() == {"tree", "device", "call", "visit", "map_is_equal"}, f"not understood: {entry.keys()}"
        assert entry["map_is_equal"] is True
    return found


def name_of(entry: dict[str, Any]) -> str:
    call = entry["call"]
    if call is None:
        return entry["tree"]
    assert call["op"] in ("apply_lora", "apply_reparameterization"), f"not understood: {call}"
    group = "all" if call["group"] == {"all": True} else call["group"]
    return f"{entry['tree']} after {call['op']} to {group}"


class Events(ModuleVisitor):
    """Writes down what a visit shows."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def _param(self, path: str, param: Param, /) -> None:
        self.seen.append([param.kind, str(int(param.id))])

    visit_float = visit_int = visit_bool = _param

    def visit_flag(self, path: str, flag: Flag, /) -> None:
        self.seen.append(["flag", str(int(flag.id))])

    def enter_module(self, name: str, container_type: str, /) -> None:
        self.seen.append(["enter", name, container_type])

    def exit_module(self, name: str, container_type: str, /) -> None:
        self.seen.append(["exit", name, container_type])


class MapEvents(ModuleMapper):
    """Writes down what a map shows, and changes nothing."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def _param(self, path: str, param: Param, /) -> Param:
        self.seen.append([param.kind, str(int(param.id))])
        return param

    map_float = map_int = map_bool = _param

    def map_flag(self, path: str, flag: Flag, /) -> Flag:
        self.seen.append(["flag", str(int(flag.id))])
        return flag

    def enter_module(self, name: str, container_type: str, /) -> None:
        self.seen.append(["enter", name, container_type])

    def exit_module(self, name: str, container_type: str, /) -> None:
        self.seen.append(["exit", name, container_type])


def test_a_visit_and_a_map_show_what_burns_do_in_the_same_order():
    """M2, M3, M6 to M9, M11 to M14, M17, A8: components, container types, hooks and ids; neither makes a value."""
    compared = 0
    for entry in entries():
        tree = BurnTree(trees()[f"{entry['tree']}/{entry['device']}/0/0"], DEVICES[entry["device"]])
        module, call = tree.value, entry["call"]
        if call is not None:
            assert call.keys() - {"op"} == CALLS[call["op"]], name_of(entry)
            module = reparameterized(module, call, group_of)
        made = dict(tree.inits)
        visited, mapped = Events(), MapEvents()
        module.visit(visited)
        module.map(mapped)

        assert visited.seen == entry["visit"], name_of(entry)
        assert mapped.seen == entry["visit"], name_of(entry)
        assert tree.inits == made
        assert not made or call is not None
        compared += 1
    assert compared == COMPARED or FOLDER != SHIPPED


def test_every_tree_can_be_built_on_both_handles():
    """Programs and loads start from these; building runs no initialiser."""
    for key, node in trees().items():
        tree = BurnTree(node, DEVICES[key.split("/")[1]])

        assert isinstance(tree.value, Module), key
        assert not tree.inits, key
