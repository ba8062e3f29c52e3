"""Saving, converting and looking through a record take one tensor and a bit: R4, R83."""

from pathlib import Path

import pytest

from tests.records.peak_memory import STEPS, bound, taken

SIZE = 128 * 10**6  # of the record, so that half of it is too much


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("peak")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_no_step_takes_more_than_its_largest_tensor_and_64_mb(folder):
    """One after the other, as each reads what those before it wrote; the process of each is limited to it too."""
    for step in STEPS:
        assert taken(step, SIZE, folder).nbytes <= bound(SIZE), step.name
