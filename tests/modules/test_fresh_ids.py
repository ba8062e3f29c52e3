"""Fresh ids differ, whatever is seeded, forked or run at the same time (L14)."""

import multiprocessing
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from records import ParamId
from tests.laws.law import inside

EACH: Final = 2500
WORKERS: Final = 4
ROOT: Final = Path(__file__).parents[2]

_PRINT_IDS: Final = f"""
import random, numpy
random.seed(0); numpy.random.seed(0)
from records import ParamId
print(*(int(ParamId.new()) for _ in range({EACH})))
"""


def ids(_: int = 0) -> list[int]:
    """Fresh ids, made after every generator that a user could seed was seeded alike."""
    random.seed(0)
    np.random.seed(0)
    return [int(ParamId.new()) for _ in range(EACH)]


@inside("L14")
def test_ids_of_four_threads_differ() -> None:
    """Rule M22."""
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.extend(ids())) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(found)) == len(found) == WORKERS * EACH


@inside("L14")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_ids_of_forked_processes_differ() -> None:
    """Also from those that the parent goes on to make (M22)."""
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        found = pool.map(ids, range(WORKERS), chunksize=1)
    found.append(ids())

    assert len({number for worker in found for number in worker}) == (WORKERS + 1) * EACH


@inside("L14")
def test_ids_of_separate_processes_differ() -> None:
    """Rule M22."""
    command = [sys.executable, "-c", _PRINT_IDS]
    outputs = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout for _ in range(2)]

    found = [int(word) for text in outputs for word in text.split()]
    assert len(set(found)) == len(found) == 2 * EACH
