"""How an operation is made: an array function with a name, and the checks that all operations share.

An *operand* is what an operation reads and makes: an array, the device it
lies on, and the node that remembers how a tracked one came about. `Tensor` is
the operand that users see. A *primitive* is one entry of the engine's table
of operations: it computes with the array module of its operands' device, so
NumPy and CuPy share every line, and it refuses operands of two devices or two
dtypes before any array is touched.

Every operand is *dense*: its array fills its memory without gaps, in some
order of the axes. A copy between devices can therefore keep the memory order,
and with it every bit of what is computed next (D5, P40). The operations that
could leave gaps (slices, broadcasts) copy.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import numpy as np

from .backend import Array
from .device import Device
from .dtype import BOOL, FLOAT32, HALVES, INTS, DType
from .errors import DeviceMismatchError, DTypeError, ShapeError
from .graph import Node


class Operand:
    """An array on a device. `_node` is None unless the value is part of a recorded graph."""

    __slots__ = ("__weakref__", "_data", "_device", "_node")

    _data: Array
    _device: Device
    _node: Node | None

    @classmethod
    def _make(cls, data: Array, device: Device, node: Node | None = None) -> Self:
        """An operand over an array that nobody else will write to; NumPy's are made read-only."""
        made = cls.__new__(cls)
        if device.kind == "cpu":
            data.setflags(write=False)
        made._data = data
        made._device = device
        made._node = node
        return made


class Primitive:
    """One operation on arrays, called with operands.

    Args:
        name: what error messages call it.
        forward: ``forward(xp, *arrays, **settings)``, the array of the result.
        mixed: whether the operands may differ in dtype (it then checks its own).
        wide: whether float16 and bfloat16 operands are computed in float32, the result rounded once.
    """

    __slots__ = ("forward", "mixed", "name", "wide")

    def __init__(self, name: str, forward: Callable[..., Array], *, mixed: bool = False, wide: bool = False) -> None:
        self.name: Final = name
        self.forward: Final = forward
        self.mixed: Final = mixed
        self.wide: Final = wide

    def __call__(self, *operands: Any, **settings: Any) -> Any:
        """The result, on the operands' device; autodiff when one of them is (M72).

        Args:
            operands: at least one Operand; the others Operands, or scalars that `scalar` made.

        Raises:
            DeviceMismatchError: the operands lie on different devices.
            DTypeError: the operands differ in dtype.
            ShapeError: the operands' shapes do not go together.
        """
        arrays = []
        like = device = dtype = None
        for operand in operands:
            if isinstance(operand, Operand):
                array = operand._data
                if device is None:
                    like, device, dtype = operand, operand._device, array.dtype
                else:
                    if operand._device is not device:
                        device = self._common_device(operands)
                    if array.dtype != dtype and not self.mixed:
                        self._refuse_dtypes(operands)
                arrays.append(array)
            elif isinstance(operand, np.generic):
                arrays.append(operand)
            else:
                raise not_a_tensor(self.name, operand)
        if like is None or device is None:
            raise TypeError(f"{self.name}: no operand is a Tensor; make one with tensor(…, device=…)")
        try:
            if device.kind == "cpu":
                data = self._compute(np, arrays, settings, dtype)
                if data.__class__ is not np.ndarray:
                    data = np.asarray(data)
            else:
                with device:
                    data = self._compute(device.xp, arrays, settings, dtype)
        except ValueError as error:
            if isinstance(error, ShapeError):
                raise
            shapes = ", ".join(str(array.shape) for array in arrays)
            raise ShapeError(f"{self.name}: shapes {shapes} do not go together ({error})") from error
        return like._make(data, device)

    def _compute(self, xp: Any, arrays: list[Array], settings: dict[str, Any], dtype: DType | None) -> Array:
        if self.wide and dtype is not FLOAT32 and dtype in HALVES:
            return self.forward(xp, *(widened(array) for array in arrays), **settings).astype(dtype)
        return self.forward(xp, *arrays, **settings)

    def _common_device(self, operands: Sequence[Any]) -> Device:
        """The device of all operands, with the autodiff flag if one has it."""
        devices = [operand._device for operand in operands if isinstance(operand, Operand)]
        for position, device in enumerate(devices):
            if device != devices[0]:
                raise DeviceMismatchError(
                    f"{self.name}: operand 0 is on {devices[0].inner()}, operand {position} on {device.inner()}; "
                    "copy one to the other's device first, with to_device"
                )
        return next((device for device in devices if device.is_autodiff), devices[0])

    def _refuse_dtypes(self, operands: Sequence[Any]) -> None:
        dtypes = " and ".join(str(operand._data.dtype) for operand in operands if isinstance(operand, Operand))
        raise DTypeError(f"{self.name}: operands have dtypes {dtypes}; nothing is promoted silently, so cast one")


def widened(array: Array) -> Array:
    """float16 and bfloat16 as float32; anything else as it is."""
    return array.astype(FLOAT32) if array.dtype in HALVES else array


def scalar(name: str, value: Any, like: Operand) -> np.generic:
    """A Python or NumPy scalar in the dtype of the operand beside it.

    Raises:
        TypeError: `value` is no scalar.
        DTypeError: a float beside integers, any number beside booleans, or an integer out of range.
    """
    dtype = like._data.dtype
    if not isinstance(value, (bool, int, float, np.generic)) or isinstance(value, np.complexfloating):
        raise not_a_tensor(name, value)
    is_bool = isinstance(value, (bool, np.bool_))
    is_int = isinstance(value, (int, np.integer)) and not is_bool
    if (dtype is BOOL and not is_bool) or (dtype in INTS and not is_int):
        raise DTypeError(f"{name}: scalar {value!r} beside a tensor of dtype {dtype}; cast the tensor first")
    try:
        return dtype.type(value)
    except OverflowError:
        raise DTypeError(f"{name}: {value!r} does not fit dtype {dtype} of the tensor beside it") from None


def not_a_tensor(name: str, value: object) -> TypeError:
    """The error for an operand that is neither a Tensor nor a scalar."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return TypeError(f"{name}: operand is a {kind}, not a Tensor; make one with tensor(…, device=…)")


def dense(xp: Any, array: Array) -> Array:
    """`array` itself where its memory has no gaps (in any order of the axes), else a contiguous copy of it."""
    flags = array.flags
    if flags.c_contiguous or flags.f_contiguous:
        return array
    extent = array.itemsize
    for stride, length in sorted((s, n) for s, n in zip(array.strides, array.shape, strict=True) if n != 1):
        if stride != extent:
            return xp.array(array, order="C", copy=True)
        extent *= length
    return array
