"""Parameter groups as Burn 0.23.0-pre.1 matches them: ``burn/groups.jsonl.gz``.

Each expression is made with our constructors and asked Burn's questions. An
expression that a mark depends on is Burn's where its quirks lie, and means the
same as a set here (M88): what it then matches is worked out in this file.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import pytest

from modules import GroupError
from tests.golden_files import FOLDER, SHIPPED, golden_file

from .burn_mappers import group_of

pytestmark = pytest.mark.golden

QUIRKS: Final = {"M85", "M86", "M87"}


@cache
def groups() -> list[dict[str, Any]]:
    with gzip.open(golden_file("burn/groups.jsonl.gz"), "rt") as lines:
        return [json.loads(line) for line in lines]


def cases() -> Iterator[tuple[dict[str, Any], bool]]:
    """Each expression that can be made, and whether Burn answers as a set would."""
    for entry in groups():
        if "error" not in entry:
            assert entry.keys() == {"group", "cases", "depends_on"}, entry
            assert set(entry["depends_on"]) <= QUIRKS, entry
            yield entry, not entry["depends_on"]


def has(expression: Mapping[str, Any], id_: str, path: str | None) -> bool:
    """The meaning of an expression as a set (M75 to M82, M84, M88)."""
    [(kind, value)] = expression.items()
    if kind in ("fuse", "exclude"):
        one, other = (has(part, id_, path) for part in value)
        return one or other if kind == "fuse" else one and not other
    if kind in ("all", "ids"):
        return kind == "all" or id_ in value
    texts = [value] if isinstance(value, str) else value
    if path is None:
        return False
    if kind in ("path", "paths"):
        return path in texts
    found = [text in path if "predicate" in kind else re.search(text, path) is not None for text in texts]
    return any(found) if kind.startswith("any_") else all(found)


def test_groups_match_what_burns_match():
    """M75 to M89; where Burn forgets exclusions or takes an empty list for everything, the meaning as sets instead."""
    compared: Counter[str] = Counter()
    for entry, is_plain in cases():
        group = group_of(entry["group"])
        for id_, path, answer in entry["cases"]:
            found = group.matches(int(id_), path)
            assert found == has(entry["group"], id_, path), (entry["group"], id_, path)
            if is_plain:
                assert found == answer, (entry["group"], id_, path)
                compared["Burn's"] += 1
            else:
                compared["differ" if found != answer else "alike"] += 1
    print(f"compared {dict(compared)} answers")
    assert compared or FOLDER != SHIPPED
    if FOLDER == SHIPPED:
        assert compared == {"Burn's": 3312, "alike": 80, "differ": 112}


def test_expressions_that_burn_refuses_are_refused_or_pythons():
    """M83: Python's dialect has look-around and back references, which Burn's has not."""
    outcomes: Counter[str] = Counter()
    for entry in groups():
        if "error" in entry:
            assert entry.keys() == {"group", "error"}, entry
            try:
                group_of(entry["group"])
            except GroupError:
                outcomes["refused"] += 1
            else:
                outcomes["Python's"] += 1
                assert re.search(r"\(\?[=!<]|\\[1-9]", str(entry["group"])), entry
    if FOLDER == SHIPPED:
        assert outcomes == {"refused": 7, "Python's": 1}
