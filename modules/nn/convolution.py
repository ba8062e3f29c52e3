"""Layers over images, [batch, channels, height, width]: convolution and pooling."""

from collections.abc import Sequence
from typing import Any, TypeAlias, final

from engine import Device, Seed, Tensor, ops
from modules.display import DisplaySettings
from modules.errors import ModuleError
from modules.module import Module
from modules.param import Param

from .initial import kaiming_uniform
from .settings import divisible, float_dtype, pair, size
from .shown import ONE_LINE

Pair: TypeAlias = int | tuple[int, int]


@final
class Conv2d(Module):
    """The cross-correlation of images with kernels, plus a bias; `engine.ops.conv2d` says more.

    Settings of two numbers are (vertical, horizontal); one number stands for both.

    Args:
        ch_in: channels of the input.
        ch_out: channels of the output.
        kernel_size: height and width of the kernels.
        stride: pixels from one window to the next.
        padding: zeros on each side.
        dilation: pixels from one kernel element to the next.
        groups: into how many groups the channels fall; each group of outputs sees one of inputs.
        bias: whether to add one.
        device: where it is.
        dtype: of the parameters, and of the input.
        seed: of the initial values, uniform in ±1/√(ch_in / groups · kernel height · kernel width).

    Attributes:
        weight: [ch_out, ch_in / groups, kernel height, kernel width].
        bias: [ch_out], or None.

    Raises:
        ModuleError: a setting is out of its range, or the dtype no float dtype.

    Source: Burn 0.23, ``nn::conv::Conv2d``.
    """

    weight: Param
    bias: Param | None

    def __init__(
        self,
        ch_in: int,
        ch_out: int,
        kernel_size: Pair,
        *,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        device: Device | str,
        dtype: Any = "float32",
        seed: int | Seed | None = None,
    ) -> None:
        ch_in, ch_out = size("Conv2d", "ch_in", ch_in), size("Conv2d", "ch_out", ch_out)
        groups, kernel = size("Conv2d", "groups", groups), pair("Conv2d", "kernel_size", kernel_size, 1)
        divisible("Conv2d", "ch_in", ch_in, "groups", groups)
        divisible("Conv2d", "ch_out", ch_out, "groups", groups)
        of, place, stream = float_dtype("Conv2d", dtype), Device(device), Seed.of(seed)
        shape = (ch_out, ch_in // groups, *kernel)
        fan_in = shape[1] * shape[2] * shape[3]
        self.weight = kaiming_uniform(shape, fan_in, of, place, stream)
        self.bias = kaiming_uniform((ch_out,), fan_in, of, place, stream) if bias else None
        self.stride = pair("Conv2d", "stride", stride, 1)
        self.kernel_size = kernel
        self.dilation = pair("Conv2d", "dilation", dilation, 1)
        self.groups = groups
        self.padding = pair("Conv2d", "padding", padding, 0)

    @property
    def ch_in(self) -> int:
        """Channels of the input."""
        return self.weight.shape[1] * self.groups

    @property
    def ch_out(self) -> int:
        """Channels of the output."""
        return self.weight.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """[batch, ch_in, height, width] to [batch, ch_out, height out, width out]; the extents as `ops.conv2d` says."""
        return ops.conv2d(
            x,
            self.weight.val(),
            None if self.bias is None else self.bias.val(),
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )

    def display_settings(self) -> DisplaySettings:
        """On one line, as Burn's (M102)."""
        return ONE_LINE

    def display_content(self) -> Sequence[tuple[str, Any]]:
        """The settings (M102)."""
        names = ("ch_in", "ch_out", "stride", "kernel_size", "dilation", "groups", "padding")
        return [(name, getattr(self, name)) for name in names]


@final
class MaxPool2d(Module):
    """The largest element of each window of an image. It has no parameters and no device.

    Settings of two numbers are (vertical, horizontal); one number stands for both.

    Args:
        kernel_size: height and width of the window.
        stride: pixels from one window to the next; by default as many as the window has.
        padding: pixels of −∞ on each side, at most half the window's extent.
        dilation: pixels from one window element to the next.

    Raises:
        ModuleError: a setting is out of its range.

    Source: Burn 0.23, ``nn::pool::MaxPool2d``.
    """

    def __init__(self, kernel_size: Pair, *, stride: Pair | None = None, padding: Pair = 0, dilation: Pair = 1) -> None:
        self.kernel_size = pair("MaxPool2d", "kernel_size", kernel_size, 1)
        self.stride = self.kernel_size if stride is None else pair("MaxPool2d", "stride", stride, 1)
        self.padding = pair("MaxPool2d", "padding", padding, 0)
        self.dilation = pair("MaxPool2d", "dilation", dilation, 1)
        if any(2 * pixels > extent for pixels, extent in zip(self.padding, self.kernel_size, strict=True)):
            raise ModuleError(
                f"MaxPool2d: padding is {self.padding}; it must be at most half of the window, {self.kernel_size}"
            )

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] to [batch, channels, height out, width out]; see `ops.max_pool2d`."""
        return ops.max_pool2d(x, self.kernel_size, stride=self.stride, padding=self.padding, dilation=self.dilation)

    def display_settings(self) -> DisplaySettings:
        """On one line, as Burn's (M102)."""
        return ONE_LINE
