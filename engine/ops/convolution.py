"""Convolution and pooling over images, [batch, channels, height, width].

Both look at the same *windows*: for each output position the patch of the
padded image that it sees, a view without a copy. A convolution is then one
matrix product per group. Gradients go through the places of the window, one
by one: the pixels that one place sees, over all outputs, are a slice.
"""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.backend import Array
from engine.dtype import FLOATS
from engine.errors import ShapeError
from engine.primitive import Primitive, Pull, checked_operand

from .checks import check_shape, checked_integer, pair
from .products import matmul_array

if TYPE_CHECKING:
    from engine.tensor import Tensor

Pair: TypeAlias = tuple[int, int]


def _windows(
    xp: Any, name: str, x: Array, size: Pair, stride: Pair, padding: Pair, dilation: Pair, fill: float
) -> Array:
    """What each output sees: a view, not to be written, [batch, channels, out height, out width, height, width]."""
    batch, channels, height, width = x.shape
    if padding != (0, 0):
        (above, left), inner = padding, x
        height, width = height + 2 * above, width + 2 * left
        x = xp.full((batch, channels, height, width), fill, dtype=x.dtype)
        x[:, :, above : height - above, left : width - left] = inner
    out = tuple(
        (extent - d * (s - 1) - 1) // step + 1
        for extent, s, step, d in zip((height, width), size, stride, dilation, strict=True)
    )
    if min(out) < 1:
        raise ShapeError(
            f"{name}: no window {size} with dilation {dilation} fits into a padded image {(height, width)}"
        )
    steps = x.strides[2] * stride[0], x.strides[3] * stride[1], x.strides[2] * dilation[0], x.strides[3] * dilation[1]
    return xp.lib.stride_tricks.as_strided(x, (batch, channels, *out, *size), (*x.strides[:2], *steps))


def _places(
    image: Pair, out: Pair, size: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> Iterator[tuple[Pair, tuple[Any, ...], tuple[Any, ...]]]:
    """Each place of the window, row-major; the pixels inside the image that it sees; the outputs that see them."""
    for row in range(size[0]):
        pixels, outputs = _seen(image[0], out[0], stride[0], row * dilation[0] - padding[0])
        for column in range(size[1]):
            across, beside = _seen(image[1], out[1], stride[1], column * dilation[1] - padding[1])
            yield (row, column), (..., pixels, across), (..., outputs, beside)


def _seen(extent: int, out: int, stride: int, shift: int) -> tuple[slice, slice]:
    """Along one axis the pixels output · stride + shift that there are, and the outputs of which they are."""
    first = max(-(shift // stride), 0)
    end = max(min(out, (extent - 1 - shift) // stride + 1), first)
    begin = first * stride + shift
    return slice(begin, begin + (end - first) * stride, stride), slice(first, end)


def _columns(
    xp: Any, x: Array, shape: tuple[int, ...], stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> tuple[Array, tuple[int, int, int]]:
    """What the kernels see, [groups, in · height · width, batch · outputs], and (batch, out height, out width)."""
    _, inputs, height, width = shape
    patches = _windows(xp, "conv2d", x, (height, width), stride, padding, dilation, 0)
    batch, _, out_height, out_width = patches.shape[:4]
    patches = patches.reshape(batch, groups, inputs, out_height, out_width, height, width)
    columns = patches.transpose(1, 2, 5, 6, 0, 3, 4).reshape(groups, inputs * height * width, -1)
    return columns, (batch, out_height, out_width)


def _conv2d_array(
    xp: Any, x: Array, weight: Array, *bias: Array, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Array:
    columns, out = _columns(xp, x, weight.shape, stride, padding, dilation, groups)
    y = xp.matmul(_by_groups(weight, groups), columns).reshape(len(weight), *out)
    if bias:
        y += bias[0].reshape(-1, 1, 1, 1)
    return y.transpose(1, 0, 2, 3)


def _by_groups(array: Array, groups: int) -> Array:
    """A row per output channel: [groups, out / groups, all that is left]."""
    return array.reshape(groups, len(array) // groups, -1)


def _conv2d_vjp(
    xp: Any, y: Array, x: Array, weight: Array, *bias: Array, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> tuple[Pull, ...]:
    (batch, channels, height, width), shape = x.shape, weight.shape

    def to_x(g: Array) -> Array:
        rows = _by_groups(weight, groups)
        seen = matmul_array(xp, rows.swapaxes(-1, -2), _by_groups(g.transpose(1, 0, 2, 3), groups))
        seen = seen.reshape(channels, *shape[2:], batch, *g.shape[2:])
        whole = xp.zeros((channels, batch, height, width), dtype=g.dtype)
        for (row, column), pixels, outputs in _places(
            (height, width), g.shape[2:], shape[2:], stride, padding, dilation
        ):
            whole[pixels] += seen[:, row, column][outputs]
        return whole.transpose(1, 0, 2, 3)

    def to_weight(g: Array) -> Array:
        columns, _ = _columns(xp, x, shape, stride, padding, dilation, groups)  # anew: they are many times x
        return matmul_array(xp, _by_groups(g.transpose(1, 0, 2, 3), groups), columns.swapaxes(-1, -2)).reshape(shape)

    return to_x, to_weight, *(lambda g: g.sum(axis=(0, 2, 3)) for _ in bias)


def _max_pool2d_array(xp: Any, x: Array, size: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Array:
    windows = _windows(xp, "max_pool2d", x, size, stride, padding, dilation, -xp.inf)
    y = windows[..., 0, 0].copy()  # place by place: a reduction over axes so short takes five times as long
    for row, column in product(range(size[0]), range(size[1])):
        xp.maximum(y, windows[..., row, column], out=y)
    return y


def _max_pool2d_vjp(
    xp: Any, y: Array, x: Array, size: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Pull]:
    def to_x(g: Array) -> Array:
        whole, nothing = xp.zeros(x.shape, dtype=g.dtype), g.dtype.type(0)
        is_left = xp.ones(y.shape, dtype=bool)  # whether no place before this one had the largest element
        for _, pixels, outputs in _places(x.shape[2:], y.shape[2:], size, stride, padding, dilation):
            here = x[pixels]
            largest = ((here == y[outputs]) | (here != here)) & is_left[outputs]
            is_left[outputs] &= ~largest
            whole[pixels] += xp.where(largest, g[outputs], nothing)
        return whole

    return (to_x,)


_CONV2D = Primitive("conv2d", _conv2d_array, takes=FLOATS, wide=True, vjp=_conv2d_vjp)
_MAX_POOL2D = Primitive("max_pool2d", _max_pool2d_array, takes=FLOATS, wide=True, vjp=_max_pool2d_vjp)


def conv2d(
    x: "Tensor",
    weight: "Tensor",
    bias: "Tensor | None" = None,
    *,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> "Tensor":
    """The cross-correlation of images with kernels, as deep-learning libraries call convolution.

    Args:
        x: floats, shape [batch, in, height, width].
        weight: shape [out, in / groups, kernel height, kernel width].
        bias: shape [out], or None.
        stride: pixels from one window to the next; one number or (vertical, horizontal), as the next two.
        padding: zeros on each side.
        dilation: pixels from one kernel element to the next.
        groups: into how many groups the channels fall; each group of outputs sees one of inputs.

    Returns:
        Shape [batch, out, out height, out width], with
        out height = ⌊(height + 2 · padding − dilation · (kernel height − 1) − 1) / stride⌋ + 1.

    Raises:
        ShapeError: the shapes do not go together, or no window fits.
    """
    groups = checked_integer("conv2d", "groups", groups)
    shape, kernel = checked_operand("conv2d", x)._data.shape, checked_operand("conv2d", weight)._data.shape
    if (
        len(shape) != 4
        or len(kernel) != 4
        or groups < 1
        or kernel[0] % groups
        or shape[1] != kernel[1] * groups
        or 0 in kernel
    ):
        raise ShapeError(
            f"conv2d: x {shape} and weight {kernel} must be [batch, in, height, width] and "
            f"[out, in / groups, height, width], with {groups} groups that divide the channels"
        )
    settings = {
        "stride": pair("conv2d", "stride", stride, 1),
        "padding": pair("conv2d", "padding", padding, 0),
        "dilation": pair("conv2d", "dilation", dilation, 1),
        "groups": groups,
    }
    if bias is None:
        return _CONV2D(x, weight, **settings)
    check_shape("conv2d", "bias", bias, kernel[:1])
    return _CONV2D(x, weight, bias, **settings)


def max_pool2d(
    x: "Tensor",
    kernel_size: int | Pair,
    *,
    stride: int | Pair | None = None,
    padding: int | Pair = 0,
    dilation: int | Pair = 1,
) -> "Tensor":
    """The largest element of each window; NaN if it holds one.

    Of equal ones the first, row by row, takes the gradient.

    Args:
        x: floats, shape [batch, channels, height, width].
        kernel_size: of the window; one number or (height, width), as the next three.
        stride: pixels from one window to the next; by default as many as the window has.
        padding: pixels of −∞ on each side, at most half the window's extent.
        dilation: pixels from one window element to the next.

    Returns:
        Shape [batch, channels, out height, out width]; the extents as for `conv2d`.

    Raises:
        ShapeError: x has another rank, or no window fits.
    """
    shape = checked_operand("max_pool2d", x)._data.shape
    if len(shape) != 4:
        raise ShapeError(f"max_pool2d: x has shape {shape}; it must be [batch, channels, height, width]")
    size = pair("max_pool2d", "kernel_size", kernel_size, 1)
    margin = pair("max_pool2d", "padding", padding, 0)
    if any(2 * pixels > extent for pixels, extent in zip(margin, size, strict=True)):
        raise ShapeError(f"max_pool2d: padding {margin} is more than half of the window {size}")
    return _MAX_POOL2D(
        x,
        size=size,
        stride=size if stride is None else pair("max_pool2d", "stride", stride, 1),
        padding=margin,
        dilation=pair("max_pool2d", "dilation", dilation, 1),
    )
