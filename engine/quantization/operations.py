"""Tensors quantized and dequantized, and their bytes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.device import Device
from engine.dtype import FLOAT32, FLOATS, as_dtype
from engine.errors import DeviceMismatchError, DTypeError, ShapeError
from engine.primitive import Operand, checked_operand, dequantized

from . import packing
from .calibration import Calibration, check_settings
from .quantized import Quantized, check_finite, quantized, with_scales
from .scheme import QuantScheme, check_part

if TYPE_CHECKING:
    from engine.tensor import Tensor


def quantize(
    x: "Tensor",
    scheme: QuantScheme,
    calibration: Calibration = Calibration.MIN_MAX,
    *,
    allow_nonfinite: bool = False,
) -> "Tensor":
    """x quantized on its own device: a tensor of its shape whose dtype is the scheme, untracked (Q33, Q34).

    Args:
        x: floats of any shape; computed with in float32 (Q26). What has no elements has one scale, as zeros
            have, or with blocks none (Q32).
        scheme: what is made of them.
        calibration: how scales are found.
        allow_nonfinite: whether NaN and infinities are quantized. NaN becomes 0 in the integer kinds, NaN in E4M3 and
            E5M2, and in E2M1, which has none, 6 · scale; infinities become the ends of the range (Q27, Q30). A block
            with NaN has the least scale, one with an infinity that or the largest. A magnitude above 1.7e38 counts as
            infinite there, finite input or not, since the whole range is then above float32's largest value (Q28).

    Raises:
        TypeError: x is no Tensor, `calibration` no Calibration, or `allow_nonfinite` no truth value.
        DTypeError: x is quantized already (Q31), or holds no floats; `scheme` is no QuantScheme, or cannot be computed,
            or not with this calibration (Q6, Q7, Q15).
        ShapeError: blocks do not divide the shape, or have more axes; the packed axis is beyond it (Q11, Q12, Q44).
        QuantizationError: x has NaN or infinities.
    """
    data, device = _floats("quantize", x), x.device
    check_settings("quantize", calibration, scheme, allow_nonfinite)
    with device:
        made = quantized(device.xp, data, scheme, calibration, allow_nonfinite=allow_nonfinite)
    return x._make(made, device)


def quantize_like(x: "Tensor", like: "Tensor") -> "Tensor":
    """x quantized with the scheme and the scales of another tensor, whatever its range; untracked.

    Args:
        x: floats.
        like: quantized, of x's shape and on its device.

    Raises:
        TypeError: x or `like` is no Tensor.
        DTypeError: x is quantized already or holds no floats, or `like` is not quantized.
        ShapeError: the shapes differ.
        DeviceMismatchError: the devices differ.
        QuantizationError: x has NaN or infinities.
    """
    data, device = _floats("quantize_like", x), x.device
    form = checked_operand("quantize_like", like)._data
    if not isinstance(form, Quantized):
        raise DTypeError(f"quantize_like: `like` has dtype {form.dtype}; it must be quantized")
    if form.shape != data.shape:
        raise ShapeError(f"quantize_like: x has shape {data.shape}, `like` {form.shape}; they must be the same")
    if like.device != device:
        raise DeviceMismatchError(
            f"quantize_like: x is on {device.inner()}, `like` on {like.device.inner()}; move one with to_device"
        )
    form.scheme.check()
    form.scheme.check_shape(form.shape)
    with device:
        check_finite(device.xp, data)
        return x._make(with_scales(device.xp, data, form.scheme, form.scales, form.factor, finite=True), device)


def dequantize(x: "Tensor", dtype: Any = FLOAT32) -> "Tensor":
    """The numbers of a quantized tensor: scale · value in float32, rounded to a float dtype; untracked (Q29).

    Args:
        x: quantized, in any memory order, which is kept.
        dtype: float32, float64, float16 or bfloat16.

    Raises:
        TypeError: x is no Tensor.
        DTypeError: x is not quantized, or `dtype` is no float dtype.
    """
    of = as_dtype(dtype)
    if not isinstance(checked_operand("dequantize", x)._data, Quantized):
        raise DTypeError(f"dequantize: the tensor is not quantized, its dtype is {x.dtype}; use cast")
    if of not in FLOATS:
        raise DTypeError(f"dequantize: to a float dtype, not {of}; cast the result")
    return dequantized(x, of)


def _floats(name: str, x: Any) -> Any:
    """The array of a dense tensor of floats.

    Raises:
        TypeError: x is no Tensor.
        DTypeError: x is quantized, or holds no floats.
    """
    data = checked_operand(name, x)._data
    if isinstance(data, Quantized):
        raise DTypeError(f"{name}: the tensor is quantized already, {data.scheme}; dequantize it first")
    if data.dtype not in FLOATS:
        raise DTypeError(f"{name}: takes floats, not a tensor of dtype {data.dtype}; cast it first")
    return data


# As bytes


def bytes_of(x: Operand) -> NDArray[np.uint8]:
    """All bytes of a quantized tensor, as files hold them: values, scales, global scale (Q41); from any device.

    They are a new array, read-only, of one axis.
    """
    data, device = x._data, x._device
    parts = data.parts
    if device.kind != "cpu":
        parts = device.backend.download(parts, device.index)
    made = packing.to_bytes(data.of_parts(parts))
    made.setflags(write=False)
    return made


def array_of_bytes(name: str, data: Any, shape: Sequence[int], scheme: QuantScheme, device: Device) -> Quantized:
    """The array of a quantized tensor, of what `bytes_of` gave, as an array of uint8 or bytes-like.

    Raises:
        TypeError: `data` is neither.
        DTypeError: `scheme` is no QuantScheme, or cannot be computed (Q6, Q7).
        ShapeError: another number of bytes, or not of one axis; a shape that the scheme is not for (Q44).
        QuantizationError: a scale is not positive and finite (Q47).
    """
    check_part(name, "scheme", scheme, QuantScheme)
    made = packing.from_bytes(_as_bytes(name, data), shape, scheme)
    if device.kind == "cpu":
        return made
    return made.of_parts([device.backend.upload(part, device.index) for part in made.parts])


def _as_bytes(name: str, data: Any) -> NDArray[np.uint8]:
    """Bytes as an array of one axis, over their memory.

    Raises:
        TypeError: `data` is neither bytes-like nor an array of uint8.
        ShapeError: it is an array of more axes, or none.
    """
    if not isinstance(data, np.ndarray):
        try:
            view = memoryview(data)
        except TypeError:
            kind = type(data).__qualname__
            raise TypeError(f"{name}: data is of type {kind}; it must be bytes, or a NumPy array of uint8") from None
        return np.frombuffer(view if view.c_contiguous else view.tobytes(), np.uint8)
    if data.dtype != np.uint8:
        raise TypeError(f"{name}: data is an array of {data.dtype}; it must be bytes, or a NumPy array of uint8")
    if data.ndim != 1:
        raise ShapeError(f"{name}: data has shape {data.shape}; it must have one axis")
    return data
