"""What the machine can do at best: read memory, and multiply matrices."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .timing import Reading, timed

SGEMM_WIDTH: Final = 2048


def reads(nbytes: int, threads: int) -> Mapping[str, Reading]:
    """Ways to read so many bytes of memory once, on all threads; the fastest tells the bandwidth.

    Args:
        nbytes: far more than the caches hold.
        threads: how many read, each its own part; `dot` has those of BLAS.

    Returns:
        Readings by the name of the NumPy function that reads.
    """
    array = np.ones(nbytes // 4, np.float32)
    parts = np.array_split(array, threads)
    words = [part[: len(part) // 2 * 2].view(np.uint64) for part in parts]
    pool = ThreadPoolExecutor(threads)

    def each(function: Any, over: list[NDArray[Any]]) -> Reading:
        return timed(lambda: list(pool.map(function, over)))

    return {
        "numpy.dot": timed(lambda: np.dot(array, array)),
        "numpy.maximum.reduce": each(np.maximum.reduce, parts),
        "numpy.add.reduce": each(np.add.reduce, words),
    }


def sgemm(width: int) -> tuple[Reading, float]:
    """A reading of the product of two square float32 matrices, and its floating-point operations."""
    a, b = np.ones((2, width, width), np.float32)
    out = np.empty((width, width), np.float32)
    return timed(lambda: np.matmul(a, b, out=out)), 2.0 * width**3
