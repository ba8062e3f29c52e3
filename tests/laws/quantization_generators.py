"""Strategies for schemes, shapes that go with them, and numbers on, between and beside the steps of a scale."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis.strategies import DrawFn
from numpy.typing import NDArray

from tests.engine import quantization_oracle as oracle

from .schemes import SCALES, VALUES, Scheme

KINDS: Final = tuple(VALUES)
INTEGERS: Final = tuple(name for name, kind in VALUES.items() if not kind.is_float)
SYMMETRIC: Final = ("Q8S", "Q4S", "Q2S")
EVERY_SCALE: Final = tuple(SCALES)
GLOBAL: Final = ("F16", "UE4M3")
"""Dtypes of block scales beside a global scale (Q7)."""

_SIZES: Final = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(lambda drawn: _without_ones(tuple(drawn)))


def _without_ones(size: tuple[int, ...]) -> tuple[int, ...]:
    """Q8: the first of several extents is not 1."""
    return size if len(size) == 1 or size[0] > 1 else _without_ones(size[1:])


@st.composite
def schemes(
    draw: DrawFn,
    kinds: Sequence[str] = KINDS,
    *,
    two: bool = True,
    scales: Sequence[str] = EVERY_SCALE,
    blocks: bool = True,
    packed: bool = False,
) -> Scheme:
    """Schemes that can be computed, of every combination of levels; packed along the last axis, if at all."""
    kind = draw(st.sampled_from(tuple(kinds)))
    stored = draw(st.sampled_from(("Native", "PackedU32", "PackedNative"))) if packed else "Native"
    both = two and blocks and any(name in scales for name in GLOBAL)
    levels = ("none", "tensor", *(("block",) if blocks else ()), *(("both",) if both else ()))
    match draw(st.sampled_from(levels)):
        case "tensor":
            return Scheme(kind, stored, whole=draw(st.sampled_from(tuple(scales))))
        case "block":
            return Scheme(kind, stored, blocks=draw(_SIZES), each=draw(st.sampled_from(tuple(scales))))
        case "both":
            each = draw(st.sampled_from([name for name in GLOBAL if name in scales]))
            return Scheme(kind, stored, 0, "F32", draw(_SIZES), each)
    return Scheme(kind, stored)


@st.composite
def shapes(draw: DrawFn, scheme: Any) -> tuple[int, ...]:
    """Shapes that the scheme's block divides, of at most three axes and 64 elements or so."""
    if scheme.block is None:
        return tuple(draw(st.lists(st.integers(1, 4), min_size=0, max_size=3)))
    size = scheme.block.size
    others = draw(st.lists(st.integers(1, 2), min_size=0, max_size=3 - len(size)))
    return (*others, *(extent * draw(st.integers(1, 2)) for extent in size))


@st.composite
def numbers(draw: DrawFn, shape: tuple[int, ...], scheme: Any, zeros: bool = True) -> NDArray[np.float32]:
    """Float32 numbers: k · s, (k + 1/2) · s and their neighbours for a scale s, of any magnitude, zeros among them.

    The first element of a block may be the largest magnitude that the scale s,
    or s times a power of two, is found from, so that ties are met, and block
    scales beside a global one are exact. Without zeros it is that of s, and
    everything is in the normal range.
    """
    high = scheme.value.high
    exponents = st.one_of(st.integers(-30, 30), st.integers(-145, -120)) if zeros else st.integers(-30, 30)
    step = np.float32(draw(st.sampled_from([1, 3, 5, 7])) * 2.0 ** draw(exponents))
    halves = draw(hnp.arrays(np.int64, shape, elements=st.integers(-2 * min(high, 200), 2 * min(high, 200))))
    beside = draw(hnp.arrays(np.int64, shape, elements=st.sampled_from([0, 0, 0, 1, -1])))
    x = np.asarray(halves.astype(np.float32) * (step / 2), np.float32)
    beyond = np.where(beside > 0, np.float32(np.inf), np.float32(-np.inf))
    x = np.where(beside == 0, x, np.nextafter(x, beyond))
    x = np.asarray(x, np.float32).reshape(shape)
    extents = oracle.block_extents(scheme, shape)
    firsts = tuple(slice(None, None, extent) for extent in extents)
    if not zeros:
        x[firsts] = np.float32(step * high)
    elif draw(st.booleans()):
        powers = draw(hnp.arrays(np.int64, x[firsts].shape, elements=st.integers(-3, 0)))
        x[firsts] = np.float32(step * high) * np.exp2(powers).astype(np.float32)
    elif draw(st.booleans()) and x.size:
        x[tuple(slice(extent) for extent in extents)] = 0
    return x


class Case(NamedTuple):
    """A scheme, and numbers of a shape that goes with it."""

    scheme: Scheme
    x: NDArray[np.float32]


@st.composite
def cases(draw: DrawFn, kinds: Sequence[str] = KINDS, zeros: bool = True, **limits: Any) -> Case:
    """A scheme and numbers for it."""
    scheme = draw(schemes(kinds, **limits))
    return Case(scheme, draw(numbers(draw(shapes(scheme)), scheme, zeros)))


@st.composite
def pairs_of_blocks(draw: DrawFn) -> tuple[Scheme, NDArray[np.float32], NDArray[np.float32], tuple[int, ...]]:
    """A scheme of blocks alone, two tensors of two blocks along each axis, and the place of one block."""
    size = draw(_SIZES)
    scheme = Scheme(draw(st.sampled_from(KINDS)), blocks=size, each=draw(st.sampled_from(EVERY_SCALE)))
    shape = tuple(2 * extent for extent in size)
    x, other = (draw(numbers(shape, scheme)) for _ in range(2))
    return scheme, x, other, tuple(draw(st.integers(0, 1)) for _ in shape)
