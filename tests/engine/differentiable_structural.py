"""The part of the table of differentiable operations that arranges, reads, multiplies, normalises and attends.

`differentiable.py` says what an entry is. Operands that stand in several
places of one call are entries here too: x xᵀ, attention of x to itself, a
tensor beside itself.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import Tensor, ops
from tests.engine.differentiable_inputs import (
    Entry,
    Inputs,
    Numbers,
    Setting,
    Shape,
    alike,
    axis,
    broadcastable,
    choice,
    distinct,
    extents,
    inputs,
    mask,
    plain,
    positive,
    tied,
)

Shapes = tuple[Shape, ...]
DrawnShapes = st.SearchStrategy[Shapes]

_three = extents(min_rank=3)
_batch = extents(max_rank=2)


def _shapes(given: Callable[..., Shapes], *parts: st.SearchStrategy[Any]) -> DrawnShapes:
    """Shapes that a function makes of drawn parts."""
    return st.tuples(*parts).map(lambda drawn: given(*drawn))


def _along(axis: int) -> Numbers:
    """Positions along an axis of the first operand; few, so that they repeat."""
    return lambda generator, shape, shapes: generator.integers(0, max(shapes[0][axis], 1), shape)


# Products


def _batches_at_full_shape(given: Inputs) -> Inputs:
    left, right = given.arrays
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return given.changed(
        {at: np.array(np.broadcast_to(array, (*batch, *array.shape[-2:]))) for at, array in enumerate((left, right))}
    )


_products = _shapes(lambda nkm, batches: ((*batches[0], *nkm[:2]), (*batches[1], *nkm[1:])), _three, broadcastable(2))
_vector_left = _shapes(lambda nkm, batch: (nkm[1:2], (*batch, *nkm[1:])), _three, _batch)
_vector_right = _shapes(lambda nkm, batch: ((*batch, *nkm[:2]), nkm[1:2]), _three, _batch)
_rows = _shapes(lambda nkm, batch: ((*batch, nkm[1]), nkm[1:], nkm[2:]), _three, _batch)
_square = _shapes(lambda batch, n: ((*batch, n, n),), _batch, st.integers(0, 4))

_PRODUCTS: Final = [
    Entry("matmul", ops.matmul, inputs(_products, plain, plain), full=_batches_at_full_shape),
    Entry("matmul", ops.matmul, inputs(_vector_left, plain, plain)),
    Entry("matmul", ops.matmul, inputs(_vector_right, plain, plain)),
    Entry("matmul", ops.matmul, inputs(alike(extents(1, 1), 2), plain, plain)),
    Entry("matmul", lambda x: ops.matmul(x, x.T), inputs(alike(extents(2)), plain)),
    Entry("matmul", lambda x: ops.matmul(x.T, x), inputs(alike(extents(2)), plain)),
    Entry("matmul", lambda x: ops.matmul(x, x), inputs(_square, plain)),
    Entry("matmul", lambda x: ops.matmul(x, x), inputs(alike(extents(1, 1)), plain)),
    Entry("linear", ops.linear, inputs(_rows, plain, plain, plain)),
    Entry("linear", ops.linear, inputs(_rows.map(lambda shapes: shapes[:2]), plain, plain)),
    Entry("linear", lambda x: ops.linear(x, x, x[0]), inputs(st.integers(1, 4).map(lambda n: ((n, n),)), plain)),
]


# Shape


def _reshaped(shapes: Sequence[Shape]) -> st.SearchStrategy[Shape]:
    (shape,) = shapes
    return st.sampled_from([shape[::-1], (1, *shape), (*shape, 1), (-1,) if shape else (1, 1)])


def _orders(shapes: Sequence[Shape]) -> st.SearchStrategy[tuple[int, ...]]:
    rank = len(shapes[0])
    whole = st.tuples(st.permutations(range(rank)), st.lists(st.booleans(), min_size=rank, max_size=rank))
    named = whole.map(lambda drawn: tuple(at - rank if flip else at for at, flip in zip(*drawn, strict=True)))
    return st.just(()) | named


def _larger(shapes: Sequence[Shape]) -> st.SearchStrategy[Shape]:
    """What the first operand broadcasts to: more axes in front, other extents where it has 1, even 0."""
    grown = [st.sampled_from((1, 3, 0)) if extent == 1 else st.just(extent) for extent in shapes[0]]
    return st.tuples(extents(max_rank=2), st.tuples(*grown)).map(lambda parts: (*parts[0], *parts[1]))


def _new_axis(shapes: Sequence[Shape]) -> st.SearchStrategy[int]:
    return st.integers(-len(shapes[0]) - 1, len(shapes[0]))


@st.composite
def _cut(draw: st.DrawFn, shapes: Sequence[Shape]) -> tuple[tuple[int, ...], int]:
    """Sizes that an axis is cut into, and the axis."""
    at = draw(axis(shapes))
    ends = sorted(draw(st.lists(st.integers(0, shapes[0][at]), max_size=2)))
    return tuple(np.diff([0, *ends, shapes[0][at]]).tolist()), at


@st.composite
def _places(draw: st.DrawFn, shapes: Sequence[Shape]) -> Any:
    """What may stand in brackets: integers, slices in both directions, None, an ellipsis."""
    parts: list[Any] = []
    for extent in shapes[0][: draw(st.integers(0, len(shapes[0])))]:
        whole = st.slices(extent)
        parts.append(draw(st.integers(-extent, extent - 1) | whole if extent else whole))
    for extra in draw(st.sampled_from([(), (None,), (...,), (None, None)])):
        parts.insert(draw(st.integers(0, len(parts))) if extra is None else len(parts), extra)
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


def _joined(place: Callable[[Shape, int], Shape]) -> DrawnShapes:
    """Three shapes that differ in one axis, put into a common rest by a function."""
    return _shapes(
        lambda rest, lengths: tuple(place(rest, length) for length in lengths),
        extents(2, 2),
        st.tuples(*[st.integers(0, 3)] * 3),
    )


def _concatenated(axis: int) -> Callable[..., Tensor]:
    return lambda *tensors: ops.concatenate(tensors, axis)


_SHAPE: Final = [
    Entry("reshape", lambda x, shape: ops.reshape(x, *shape), inputs(alike(extents()), plain, shape=_reshaped)),
    Entry("transpose", lambda x, order: ops.transpose(x, *order), inputs(alike(extents()), plain, order=_orders)),
    Entry("swap_axes", ops.swap_axes, inputs(alike(extents(1)), plain, first=axis, second=axis)),
    Entry("broadcast_to", ops.broadcast_to, inputs(alike(extents()), plain, shape=_larger)),
    Entry("tril", ops.tril, inputs(alike(extents(2)), plain, diagonal=choice(*range(-3, 4)))),
    Entry("concatenate", _concatenated(0), inputs(_joined(lambda rest, n: (n, *rest)), plain, plain, plain)),
    Entry("concatenate", _concatenated(1), inputs(_joined(lambda rest, n: (rest[0], n, rest[1])), plain, plain, plain)),
    Entry("concatenate", _concatenated(-1), inputs(_joined(lambda rest, n: (*rest, n)), plain, plain, plain)),
    Entry("concatenate", lambda x: ops.concatenate([x, x * 2, x], 0), inputs(alike(extents(1)), plain)),
    Entry(
        "stack", lambda *x, axis: ops.stack(x, axis), inputs(alike(extents(), 3), plain, plain, plain, axis=_new_axis)
    ),
    Entry("stack", lambda x, axis: ops.stack([x, x], axis), inputs(alike(extents()), plain, axis=_new_axis)),
    Entry("split", lambda x, cut: ops.split(x, *cut), inputs(alike(extents(1)), plain, cut=_cut)),
    Entry("index", ops.index, inputs(alike(extents()), plain, at=_places)),
]


# Positions


def _read(axis: int) -> DrawnShapes:
    """Of rank 2 or 3, with positions of any shape along an axis; none if there are no elements along it."""
    return _shapes(
        lambda shape, positions: (shape, positions if shape[axis] else (0, 2)), extents(2), extents(max_rank=2)
    )


def _beside(axis: int) -> DrawnShapes:
    """A shape, and twice one that differs along an axis."""

    def given(shape: Shape, extent: int) -> Shapes:
        other = list(shape)
        other[axis] = extent if shape[axis] else 0
        return shape, tuple(other), tuple(other)

    return _shapes(given, extents(2), st.integers(0, 6))


def _reading(axis: int) -> list[Entry]:
    gathered = _beside(axis).map(lambda shapes: shapes[:2])
    return [
        Entry("take", partial(ops.take, axis=axis), inputs(_read(axis), plain, _along(axis))),
        Entry("gather", partial(ops.gather, axis=axis), inputs(gathered, plain, _along(axis))),
        Entry("scatter_add", partial(ops.scatter_add, axis=axis), inputs(_beside(axis), plain, _along(axis), plain)),
    ]


def _added_to_itself(x: Tensor, indices: Tensor) -> Tensor:
    return ops.scatter_add(x, indices, x, 0)


_READING: Final = [
    *_reading(0),
    *_reading(1),
    *_reading(-1),
    Entry("scatter_add", _added_to_itself, inputs(alike(extents(1), 2), plain, _along(0))),
    Entry("index", ops.index, inputs(_read(0), plain, _along(0))),
    Entry(
        "embedding", ops.embedding, inputs(_read(0).map(lambda shapes: (shapes[0][:2], shapes[1])), plain, _along(0))
    ),
]


# Normalisation

_over_last = alike(extents(1)).map(lambda shapes: (shapes[0], shapes[0][-1:], shapes[0][-1:]))
_channels = alike(extents(2)).map(lambda shapes: (shapes[0], *(shapes[0][1:2],) * 4))
_filled = alike(extents(2, min_extent=1)).map(lambda shapes: (shapes[0], *(shapes[0][1:2],) * 2))
# Equal numbers have variance 0, where a small ε makes the function too steep for finite differences.
_epsilon: Setting = choice(0.015625, 0.5)


def _by_its_own_statistics(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    return ops.batch_norm(x, *ops.batch_statistics(x), gamma, beta, epsilon)


_NORMALIZATION: Final = [
    Entry("layer_norm", ops.layer_norm, inputs(_over_last, plain, plain, plain, epsilon=_epsilon)),
    Entry(
        "layer_norm", ops.layer_norm, inputs(_over_last.map(lambda shapes: shapes[:2]), plain, plain, epsilon=_epsilon)
    ),
    Entry("layer_norm", lambda x: ops.layer_norm(x, x, x, 0.5), inputs(alike(extents(1, 1)), plain)),
    Entry("rms_norm", ops.rms_norm, inputs(_over_last.map(lambda shapes: shapes[:2]), plain, plain, epsilon=_epsilon)),
    Entry("rms_norm", lambda x: ops.rms_norm(x, x), inputs(alike(extents(1, 1)), plain)),
    Entry("batch_norm", ops.batch_norm, inputs(_channels, plain, plain, positive, plain, plain, epsilon=_epsilon)),
    Entry("batch_norm", _by_its_own_statistics, inputs(_filled, plain, plain, plain, epsilon=_epsilon)),
    Entry("batch_statistics", ops.batch_statistics, inputs(_filled.map(lambda shapes: shapes[:1]), plain)),
]


# Windows

_both = lambda low, high: st.tuples(st.integers(low, high), st.integers(low, high))  # noqa: E731


@st.composite
def _windows(draw: st.DrawFn) -> tuple[tuple[int, int], tuple[int, int], dict[str, tuple[int, int]]]:
    """An image, a window that fits into it and never lies in the padding alone, and the settings."""
    size, settings = draw(_both(1, 3)), {"stride": draw(_both(1, 3)), "dilation": draw(_both(1, 2))}
    margin = draw(_both(0, 2))
    settings["padding"] = min(margin[0], size[0] // 2), min(margin[1], size[1] // 2)
    least = [
        max(dilation * (extent - 1) + 1 - 2 * pixels, dilation)
        for extent, dilation, pixels in zip(size, settings["dilation"], settings["padding"], strict=True)
    ]
    return (draw(st.integers(least[0], 5)), draw(st.integers(least[1], 5))), size, settings


def _fixed(settings: dict[str, Any]) -> dict[str, Setting]:
    return {name: choice(value) for name, value in settings.items()}


@st.composite
def _convolutions(draw: st.DrawFn, bias: bool) -> Inputs:
    image, size, settings = draw(_windows())
    groups, per_in, per_out = (draw(st.integers(1, 2)) for _ in range(3))
    shapes = (
        (draw(st.integers(0, 2)), groups * per_in, *image),
        (groups * per_out, per_in, *size),
        (groups * per_out,),
    )
    count = 3 if bias else 2
    return draw(inputs(st.just(shapes[:count]), *[plain] * count, **_fixed({**settings, "groups": groups})))


@st.composite
def _pools(draw: st.DrawFn, numbers: Numbers) -> Inputs:
    image, size, settings = draw(_windows())
    shape = (draw(st.integers(0, 2)), draw(st.integers(0, 2)), *image)
    return draw(inputs(st.just((shape,)), numbers, **_fixed({**settings, "kernel_size": size})))


_WINDOWS: Final = [
    Entry("conv2d", ops.conv2d, _convolutions(bias=True)),
    Entry("conv2d", ops.conv2d, _convolutions(bias=False)),
    Entry("max_pool2d", ops.max_pool2d, _pools(distinct), _pools(tied)),
]


# Attention


@st.composite
def _attended(draw: st.DrawFn, masked: bool) -> Inputs:
    """Queries, keys and values in groups of heads, and perhaps a mask that broadcasts."""
    batch, is_causal = draw(extents(max_rank=1)), draw(st.booleans())
    queries, d, d_v = draw(extents(3, 3))
    keys = queries + draw(st.integers(0, 2)) if is_causal else draw(st.integers(0, 4))
    groups, per_group = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    heads = groups * per_group
    shapes: list[Shape] = [(*batch, heads, queries, d), (*batch, groups, keys, d), (*batch, groups, keys, d_v)]
    if masked:
        whole = (*batch, heads, queries, keys)
        shapes.append(tuple(draw(st.sampled_from((1, extent))) for extent in whole[draw(st.integers(0, len(whole))) :]))
    numbers: list[Numbers] = [plain, plain, plain, mask]
    settings = {"causal": choice(is_causal), "scale": choice(None, 0.25)}
    return draw(inputs(st.just(tuple(shapes)), *numbers[: len(shapes)], **settings))


@st.composite
def _positions(draw: st.DrawFn, given: bool) -> Inputs:
    """Pairs to be turned, the tables, and positions: a number to begin with, or a tensor that broadcasts."""
    batch, (time, half) = draw(extents(max_rank=2)), draw(extents(2, 2))
    length = time + draw(st.integers(0, 2))
    shapes: list[Shape] = [(*batch, time, 2 * half), (length, half), (length, half)]
    settings: dict[str, Setting] = {"interleaved": choice(False, True)}
    if given:
        whole = (*batch, time)
        shapes.append(tuple(draw(st.sampled_from((1, extent))) for extent in whole[draw(st.integers(0, len(batch))) :]))
        if not length:
            shapes[-1] = (0,)
    else:
        settings["offset"] = choice(draw(st.integers(0, length - time)))
    numbers: list[Numbers] = [plain, plain, plain, _rows_of_a_table]
    return draw(inputs(st.just(tuple(shapes)), *numbers[: len(shapes)], **settings))


def _rows_of_a_table(generator: np.random.Generator, shape: Shape, shapes: Sequence[Shape]) -> NDArray[Any]:
    return generator.integers(0, max(shapes[1][0], 1), shape)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    return ops.rope(x, cos, sin, positions=positions, interleaved=interleaved)


_heads = alike(extents(3))

_ATTENTION: Final = [
    Entry("attention", ops.attention, _attended(masked=False)),
    Entry("attention", ops.attention, _attended(masked=True)),
    Entry("attention", lambda x: ops.attention(x, x, x, causal=True), inputs(_heads, plain)),
    Entry("attention", lambda x, v: ops.attention(x, x, v), inputs(alike(extents(3), 2), plain, plain)),
    Entry("attention", lambda q, x: ops.attention(q, x, x), inputs(alike(extents(3), 2), plain, plain)),
    Entry("attention", lambda x, k: ops.attention(x, k, x), inputs(alike(extents(3), 2), plain, plain)),
    Entry("rope", ops.rope, _positions(given=False)),
    Entry("rope", _turned, _positions(given=True)),
]

ENTRIES: Final[list[Entry]] = [*_PRODUCTS, *_SHAPE, *_READING, *_NORMALIZATION, *_WINDOWS, *_ATTENTION]
