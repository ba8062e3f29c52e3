"""Schemes, shapes that go with them, and numbers on, between and beside the steps of a scale."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engine import BlockScale, QuantScheme, QuantStore, QuantValue, ScaleDtype

INTEGERS = [value for value in QuantValue if not value.is_float]
SYMMETRIC = [QuantValue.Q8S, QuantValue.Q4S, QuantValue.Q2S]
GLOBAL = (ScaleDtype.F16, ScaleDtype.UE4M3)  # dtypes of blocks beside a global scale


def levels(*, two: bool = True, dtypes: Sequence[ScaleDtype] = tuple(ScaleDtype), blocks: bool = True):
    """Dictionaries of `tensor` and `block`."""
    size = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
    found = [st.just({}), st.sampled_from(list(dtypes)).map(lambda dtype: {"tensor": dtype})]
    if blocks:
        found.append(st.builds(lambda s, d: {"block": BlockScale(s, d)}, size, st.sampled_from(list(dtypes))))
    pairs = [dtype for dtype in GLOBAL if dtype in dtypes]
    if blocks and two and pairs:
        both = st.builds(
            lambda s, d: {"tensor": ScaleDtype.F32, "block": BlockScale(s, d)}, size, st.sampled_from(pairs)
        )
        found.append(both)
    return st.one_of(*found)


@st.composite
def schemes(draw, values: Sequence[QuantValue] = tuple(QuantValue), **limits):
    return QuantScheme(draw(st.sampled_from(list(values))), QuantStore.native(), **draw(levels(**limits)))


@st.composite
def shapes(draw, scheme: QuantScheme):
    """Shapes that the scheme's block divides, of at most three axes and 64 elements or so."""
    if scheme.block is None:
        return tuple(draw(st.lists(st.integers(1, 4), min_size=0, max_size=3)))
    size = scheme.block.size
    others = draw(st.lists(st.integers(1, 2), min_size=0, max_size=3 - len(size)))
    return (*others, *(extent * draw(st.integers(1, 2)) for extent in size))


@st.composite
def numbers(draw, shape: tuple[int, ...], scheme: QuantScheme, zeros: bool = True):
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
    extents = scheme.extents(shape)
    firsts = tuple(slice(None, None, max(1, extent)) for extent in extents)
    if not zeros:
        x[firsts] = np.float32(step * high)
    elif draw(st.booleans()):
        powers = draw(hnp.arrays(np.int64, x[firsts].shape, elements=st.integers(-3, 0)))
        x[firsts] = np.float32(step * high) * np.exp2(powers).astype(np.float32)
    elif draw(st.booleans()) and x.size:
        x[tuple(slice(extent) for extent in extents)] = 0
    return x


@st.composite
def cases(draw, zeros: bool = True, **limits):
    """A scheme and numbers of a shape that goes with it."""
    scheme = draw(schemes(**limits))
    return scheme, draw(numbers(draw(shapes(scheme)), scheme, zeros))
