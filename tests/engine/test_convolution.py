"""Convolution and pooling against loops over every output, channel and kernel element."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ShapeError, ops, zeros
from tests.engine.comparison import assert_within, exact
from tests.engine.strategies import FLOATS, HALVES, dtypes, tensors

CPU = "cpu:0"


def out_extent(extent: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (extent + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def sees(at: tuple[int, int], kernel: tuple[int, int], stride: Any, padding: Any, dilation: Any) -> list[Any]:
    """Which pixels an output sees: pairs of a place in the kernel and one in the image, outside of it included."""
    return [
        ((i, j), tuple(o * s - p + d * k for o, s, p, d, k in zip(at, stride, padding, dilation, (i, j), strict=True)))
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]


def inside(place: Any, shape: Any) -> bool:
    return all(0 <= at < extent for at, extent in zip(place, shape, strict=True))


@st.composite
def settings_of(draw: st.DrawFn) -> dict[str, tuple[int, int]]:
    both = lambda low, high: (draw(st.integers(low, high)), draw(st.integers(low, high)))  # noqa: E731
    return {"stride": both(1, 3), "padding": both(0, 2), "dilation": both(1, 2)}


@given(settings=settings_of(), data=st.data())
def test_a_convolution_is_the_sum_over_its_windows(settings, data):
    groups, per_in, per_out = (data.draw(st.integers(1, 2)) for _ in range(3))
    batch, kernel = data.draw(st.integers(0, 2)), (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)))
    image = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    dtype = data.draw(dtypes(*FLOATS))
    x = data.draw(tensors(dtype=dtype, shape=st.just((batch, groups * per_in, *image))))
    w = data.draw(tensors(dtype=dtype, shape=st.just((groups * per_out, per_in, *kernel))))
    b = data.draw(tensors(dtype=dtype, shape=st.just((groups * per_out,))))
    per_axis = zip(image, kernel, settings["stride"], settings["padding"], settings["dilation"], strict=True)
    out = tuple(out_extent(*each) for each in per_axis)
    if min(out) < 1:
        with pytest.raises(ShapeError, match="conv2d"):
            ops.conv2d(x, w, b, groups=groups, **settings)
        return
    expected = np.zeros((batch, groups * per_out, *out))
    scale = np.zeros(expected.shape)
    for n, o, *at in np.ndindex(expected.shape):
        expected[n, o, *at] = exact(b)[o]
        scale[n, o, *at] = abs(exact(b)[o])
        for place, pixel in sees(tuple(at), kernel, **settings):
            if inside(pixel, image):
                for c in range(per_in):
                    term = exact(x)[n, o // per_out * per_in + c, *pixel] * exact(w)[o, c, *place]
                    expected[n, o, *at] += term
                    scale[n, o, *at] += abs(term)
    result = ops.conv2d(x, w, b, groups=groups, **settings)
    ulps = 1 if dtype in HALVES else 4
    assert_within(result, expected, dtype, ulps=ulps, scale=scale)
    plain = expected - exact(b)[:, None, None]
    assert_within(ops.conv2d(x, w, groups=groups, **settings), plain, dtype, ulps=ulps, scale=scale)


@given(settings=settings_of(), data=st.data())
def test_pooling_takes_the_largest_of_each_window(settings, data):
    kernel = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)))
    settings["padding"] = tuple(min(p, k // 2) for p, k in zip(settings["padding"], kernel, strict=True))
    image = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    shape = (data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2)), *image)
    x = data.draw(tensors(dtype=dtypes(*FLOATS), shape=st.just(shape), special=True))
    stride = data.draw(st.none() | st.just(settings["stride"]))
    per_axis = zip(image, kernel, stride or kernel, settings["padding"], settings["dilation"], strict=True)
    out = tuple(out_extent(*each) for each in per_axis)
    if min(out) < 1:
        with pytest.raises(ShapeError, match="max_pool2d"):
            ops.max_pool2d(x, kernel, **{**settings, "stride": stride})
        return
    result = ops.max_pool2d(x, kernel, **{**settings, "stride": stride})
    expected = np.full((*shape[:2], *out), -np.inf)
    for n, c, *at in np.ndindex(expected.shape):
        seen = sees(tuple(at), kernel, **{**settings, "stride": stride or kernel})
        numbers = [exact(x)[n, c, *pixel] for _, pixel in seen if inside(pixel, image)]
        expected[n, c, *at] = np.nan if np.isnan(numbers).any() else max(numbers, default=-np.inf)
    assert_within(result, expected, x.dtype, ulps=0)


def test_one_number_stands_for_both_axes():
    x, w = zeros((1, 1, 6, 6), device=CPU), zeros((1, 1, 2, 2), device=CPU)
    assert (
        ops.conv2d(x, w, stride=2, padding=1, dilation=2).shape
        == ops.conv2d(x, w, stride=(2, 2), padding=(1, 1), dilation=(2, 2)).shape
        == (1, 1, 3, 3)
    )
    assert ops.max_pool2d(x, 3).shape == ops.max_pool2d(x, (3, 3), stride=(3, 3)).shape == (1, 1, 2, 2)


def test_what_does_not_fit_is_named():
    x, w = zeros((1, 4, 5, 5), device=CPU), zeros((6, 2, 3, 3), device=CPU)
    for call, message in (
        (lambda: ops.conv2d(x, w), "conv2d: x .* 1 groups"),
        (lambda: ops.conv2d(x, w, groups=4), "conv2d: x .* 4 groups"),
        (lambda: ops.conv2d(x, w, groups=0), "conv2d: x .* 0 groups"),
        (lambda: ops.conv2d(x[0], w, groups=2), "conv2d: x"),
        (lambda: ops.conv2d(x, w[0], groups=2), "conv2d: x"),
        (lambda: ops.conv2d(x, zeros((0, 2, 3, 3), device=CPU), groups=2), "conv2d: x"),
        (lambda: ops.conv2d(x, w, zeros((1,), device=CPU), groups=2), "conv2d: bias has shape"),
        (lambda: ops.conv2d(x, w, groups=2, stride=0), "conv2d: stride is 0"),
        (lambda: ops.conv2d(x, w, groups=2, padding=-1), "conv2d: padding is -1"),
        (lambda: ops.conv2d(x, w, groups=2, dilation=(1, 0)), "conv2d: dilation is"),
        (lambda: ops.conv2d(x, w, groups=2, stride=(1, 1, 1)), "conv2d: stride is"),
        (lambda: ops.conv2d(x, w, groups=2, dilation=3), "conv2d: no window"),
        (lambda: ops.max_pool2d(x, 6), "max_pool2d: no window"),
        (lambda: ops.max_pool2d(x, 0), "max_pool2d: kernel_size is 0"),
        (lambda: ops.max_pool2d(x, 3, padding=2), "max_pool2d: padding .* more than half"),
        (lambda: ops.max_pool2d(x[0], 2), "max_pool2d: x has shape"),
    ):
        with pytest.raises(ShapeError, match=message):
            call()
