"""Generators of dtypes, shapes, arrays and tensors in any memory order, for the tests of the engine.

Values come from a random generator whose seed hypothesis draws: a failure
shrinks to a small shape, not to round numbers, which would hide rounding.
"""

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import Tensor

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = (np.dtype("float32"), np.dtype("float64"), np.dtype("float16"), BFLOAT16)
HALVES = (np.dtype("float16"), BFLOAT16)
INTS = tuple(np.dtype(name) for name in ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"))
BOOL = np.dtype("bool")
DTYPES = (*FLOATS, *INTS, BOOL)

SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0)


def dtypes(*choices: np.dtype[Any]) -> st.SearchStrategy[np.dtype[Any]]:
    """A dtype: of the given ones, or any."""
    return st.sampled_from(choices or DTYPES)


def shapes(min_rank: int = 0, max_rank: int = 4, min_extent: int = 0, max_extent: int = 5) -> Any:
    """A shape, small; extents of 0 and 1 are frequent."""
    return st.lists(st.integers(min_extent, max_extent), min_size=min_rank, max_size=max_rank).map(tuple)


def values(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int, special: bool = False) -> NDArray[Any]:
    """An array of random numbers that `dtype` holds: normal times 2, small integers, or booleans."""
    generator = np.random.default_rng(seed)
    if dtype == BOOL:
        return generator.random(shape) < 0.5
    if dtype in INTS:
        return generator.integers(0 if dtype.kind == "u" else -9, 10, shape).astype(dtype)
    numbers = np.asarray(generator.standard_normal(shape) * 2)
    if special:
        places = generator.random(shape) < 0.3
        numbers = np.where(places, generator.choice(SPECIAL, shape), numbers)
    return numbers.astype(dtype)


def in_order(array: NDArray[Any], order: tuple[int, ...]) -> Tensor:
    """A tensor of these values on ``cpu:0`` whose memory has the axes in the given order, the slowest first."""
    stored = np.ascontiguousarray(array.transpose(order))
    return Tensor.from_numpy(stored.transpose(np.argsort(order)) if order else stored.reshape(()), "cpu:0")


@st.composite
def arrays(draw: st.DrawFn, dtype: Any = None, shape: Any = None, special: bool = False) -> NDArray[Any]:
    """An array; `dtype` and `shape` may be strategies, and are any by default."""
    of = draw(dtype if isinstance(dtype, st.SearchStrategy) else dtypes() if dtype is None else st.just(dtype))
    extents = draw(shape if isinstance(shape, st.SearchStrategy) else shapes() if shape is None else st.just(shape))
    return values(extents, of, draw(st.integers(0, 2**32 - 1)), special)


@st.composite
def tensors(draw: st.DrawFn, dtype: Any = None, shape: Any = None, special: bool = False) -> Tensor:
    """A tensor on ``cpu:0`` in any memory order."""
    array = draw(arrays(dtype, shape, special))
    return in_order(array, tuple(draw(st.permutations(range(array.ndim)))))
