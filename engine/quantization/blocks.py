"""Blocks as axes of their own: how an array is seen so that one call computes with all its blocks.

A contiguous array of shape [d0, d1, …] with blocks of [b0, b1, …] is seen as
[d0 / b0, b0, d1 / b1, b1, …], and its grid of scales as [d0 / b0, 1, …], so
that they broadcast. Axes that need not be apart are one: blocks along the last
axis alone give [blocks, extent] whatever the rank, and the last extent is left out
where it is 1. What is computed in
several steps goes through it in parts that stay in the cache.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from engine.backend import Array

At: TypeAlias = tuple[slice, ...]

_PART: Final = 65_536  # elements: 256 KiB of float32, twice of which fit a cache of the second level
_WHOLE: Final = slice(None)


class Blocks(NamedTuple):
    """How the values and the grid of one array are seen: their shapes, of equal rank."""

    values: tuple[int, ...]
    grid: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int], extents: Sequence[int]) -> "Blocks":
        """The blocks of a contiguous array.

        Args:
            shape: of the array.
            extents: of a block along each axis; each divides its axis.
        """
        merged = [(1, 1)]
        for length, extent in zip(shape, extents, strict=True):
            count = length // extent if extent else 1
            before_count, before = merged[-1]
            if before == 1:
                merged[-1] = (before_count * count, extent)
            elif count == 1:
                merged[-1] = (before_count, before * extent)
            else:
                merged.append((count, extent))
        values = [extent for pair in merged for extent in pair]
        grid = [extent for count, _ in merged for extent in (count, 1)]
        if values[-1] == 1:  # NumPy's inner loop would run over it
            del values[-1], grid[-1]
        return cls(tuple(values), tuple(grid))

    @property
    def inside(self) -> tuple[int, ...]:
        """The axes within a block."""
        return tuple(range(1, len(self.values), 2))

    def parts(self, xp: Any) -> Iterator[tuple[At, At]]:
        """Pieces that stay in the cache, as indices of the values and of the grid; on a GPU one piece.

        Pieces are cut along one axis only; of blocks that are larger than a
        piece, several have the same place in the grid.
        """
        size = prod(self.values)
        if size == 0:
            return
        if xp is not np or size <= _PART:
            yield (_WHOLE,), (_WHOLE,)
            return
        fitting = (axis for axis, length in enumerate(self.values) if size <= 2 * _PART * length)
        axis = next(fitting, int(np.argmax(self.values)))  # the outermost one whose steps are small enough
        length = self.values[axis]
        step = max(1, _PART * length // size)
        for start in range(0, length, step):
            at = (_WHOLE,) * axis + (slice(start, start + step),)
            yield at, at if axis % 2 == 0 else (_WHOLE,)


def memory_axes(array: Array) -> tuple[int, ...]:
    """The order of the axes in which a dense array is contiguous."""
    if array.flags.c_contiguous:
        return tuple(range(array.ndim))
    return tuple(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))


def inverse(axes: Sequence[int]) -> tuple[int, ...]:
    """The order of the axes that undoes another."""
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))
