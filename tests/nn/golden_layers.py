"""Display texts of layers as Burn wrote them (``burn/display.jsonl.gz``, entries with the key ``layer``).

Configuration shows by its `repr` here and by Rust's text there (M102), so
both are written alike before they are compared: numbers by value, pairs in
brackets. Ids are random.
"""

import gzip
import json
import re
from typing import Final

from modules import DisplaySettings
from tests.golden_files import golden_file

_VALID: Final = "padding: Valid"
_CEIL_MODE: Final = ", ceil_mode: false"


def shown(layer: str) -> list[tuple[DisplaySettings, str]]:
    """Settings and text of each display of a layer, which is named as ``Dropout(0.5)``; there must be some."""
    with gzip.open(golden_file("burn/display.jsonl.gz"), "rt", encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    found = [case for case in cases if case["tree"].get("layer") == layer]
    assert found, f"no display of {layer}"
    return [(DisplaySettings(**case["settings"]), case["text"]) for case in found]


def alike(text: str) -> str:
    """The text without what is written differently on purpose, or is not there: Burn's padding has names, and its
    pooling a mode that rounds extents up."""
    text = text.replace(_VALID, "padding: [0, 0]").replace(_CEIL_MODE, "")
    text = re.sub(r"\n *ceil_mode: false", "", text)
    text = re.sub(r"id: \w{13}", "id", text)
    text = re.sub(r"\((\d+), (\d+)\)", r"[\1, \2]", text)
    return re.sub(r"\d+\.\d+(e-?\d+)?|\d+e-?\d+", lambda number: repr(float(number[0])), text)
