"""Where golden values lie: the folder that ``LAYERLOOM_GOLDEN`` names, or ``tests/golden``.

A file that is missing in ``tests/golden`` is a failure: what we ship is there.
Another folder may hold less, and what it lacks is skipped, saying so. What
lies under ``public/`` is other people's and never shipped.
"""

import os
from pathlib import Path

import pytest

SHIPPED = Path(__file__).parent / "golden"
FOLDER = Path(os.environ.get("LAYERLOOM_GOLDEN") or SHIPPED)


def golden_file(relative: str) -> Path:
    """The path of a golden file, for instance ``burn/ids.json``; skips or fails where it is missing."""
    file = FOLDER / relative
    if not file.is_file():
        if FOLDER != SHIPPED or relative.startswith("public/"):
            pytest.skip(f"{relative} is not in {FOLDER}; name a folder that has it with LAYERLOOM_GOLDEN")
        pytest.fail(f"{file} is missing")
    return file
