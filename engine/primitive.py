"""How an operation is made: an array function with a name, and the checks that all operations share.

An *operand* is what an operation reads and makes: an array, the device it
lies on, and the node that remembers how a tracked one came about. `Tensor` is
the operand that users see. A *primitive* is one entry of the engine's table
of operations: it computes with the array module of its operands' device, so
NumPy and CuPy share every line, and it refuses operands of two devices or of
dtypes that it does not combine before any array is touched.

Every operand is *dense*: its array fills its memory without gaps, in some
order of the axes. A copy between devices can therefore keep the memory order,
and with it every bit of what is computed next (D5, P40). The operations that
could leave gaps (slices, broadcasts) copy.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import numpy as np

from .backend import Array
from .cpu import out_of_memory
from .device import Device
from .dtype import BOOL, DTYPES, FLOAT32, FLOATS, HALVES, INTS, DType
from .errors import DeviceMismatchError, DTypeError, EngineError, ShapeError
from .graph import Node

NUMBERS: Final = FLOATS | INTS
BOOLEANS: Final = frozenset({BOOL})

_CALLED: Final = {FLOATS: "floats", INTS: "integers", NUMBERS: "numbers", BOOLEANS: "booleans"}
_new: Final = object.__new__


class Operand:
    """An array on a device. `_node` is None unless the value is part of a recorded graph."""

    __slots__ = ("__weakref__", "_data", "_device", "_node")

    _data: Array
    _device: Device
    _node: Node | None

    @classmethod
    def _make(cls, data: Array, device: Device, node: Node | None = None) -> Self:
        """An operand over an array that nobody else will write to; NumPy's are made read-only."""
        if device.kind == "cpu":
            data.setflags(write=False)
        made = _new(cls)
        made._data = data
        made._device = device
        made._node = node
        return made

    def _host(self) -> np.ndarray[Any, Any]:
        """Its array in host memory; from a GPU a copy, for which this waits."""
        if self._device.kind == "cpu":
            return self._data
        return self._device.backend.download(self._data, self._device.index)


class Primitive:
    """One operation on arrays, called with operands.

    Args:
        name: what error messages call it.
        forward: ``forward(xp, *arrays, **settings)``, the array of the result.
        takes: the dtypes that the first operand may have, None for all. The others have the same, unless `mixed`.
        mixed: whether the operands may differ in dtype; the public function then checks the others.
        wide: whether float16 and bfloat16 operands are computed in float32; a float32 result is then rounded once.
        scalars: whether an operand may be a scalar that `scalar` made.
    """

    __slots__ = ("direct", "forward", "mixed", "name", "scalars", "takes")

    def __init__(
        self,
        name: str,
        forward: Callable[..., Array],
        *,
        takes: frozenset[DType] | None = None,
        mixed: bool = False,
        wide: bool = False,
        scalars: bool = False,
    ) -> None:
        self.name: Final = name
        self.forward: Final = forward
        self.takes: Final = DTYPES if takes is None else takes
        self.direct: Final = self.takes - HALVES if wide else self.takes  # what `forward` is given as it is
        self.mixed: Final = mixed
        self.scalars: Final = scalars

    def __call__(self, *operands: Any, **settings: Any) -> Any:
        """The result, on the operands' device; autodiff when one of them is (M72).

        Args:
            operands: at least one Operand; the others Operands, or scalars where the primitive takes them.

        Raises:
            TypeError: an operand is neither, or a setting is of another type.
            DeviceMismatchError: the operands lie on different devices.
            DTypeError: the operands differ in dtype, or have one that the operation does not take.
            ShapeError: the operands' shapes do not go together.
            DeviceError: the device has no memory for the result.
        """
        arrays = []
        like = device = dtype = None
        for operand in operands:
            if isinstance(operand, Operand):
                array = operand._data
                if like is None:
                    like, device, dtype = operand, operand._device, array.dtype
                else:
                    if operand._device is not device:
                        device = self._common_device(operands)
                    if array.dtype is not dtype and not self.mixed:
                        check_alike(self.name, *operands)
                arrays.append(array)
            elif self.scalars and isinstance(operand, np.generic):
                arrays.append(operand)
            else:
                raise not_a_tensor(self.name, operand)
        if like is None or device is None:
            raise TypeError(f"{self.name}: no operand is a Tensor; make one with tensor(…, device=…)")
        forward = self.forward if dtype in self.direct else self._indirect(dtype)
        try:
            if device.kind == "cpu":
                data = forward(np, *arrays, **settings) if settings else forward(np, *arrays)
                if data.__class__ is not np.ndarray:
                    data = np.asarray(data)
                data.setflags(False)  # pyright: ignore[reportCallIssue] by position: a keyword costs as much again
            else:
                with device:
                    data = forward(device.xp, *arrays, **settings)
        except ValueError as error:
            if isinstance(error, EngineError):
                raise
            raise self._refused_shapes(arrays, error) from error
        except (TypeError, OverflowError) as error:
            if isinstance(error, EngineError):
                raise
            raise self._refused_settings(settings, error) from error
        except MemoryError as error:
            shapes = ", ".join(str(array.shape) for array in arrays)
            raise out_of_memory(f"{self.name} of shapes {shapes}: {device}", error) from error
        made = _new(like.__class__)
        made._data = data
        made._device = device
        made._node = None
        return made

    def _indirect(self, dtype: DType | None) -> Callable[..., Array]:
        """`forward` for a dtype that it is not called with as it is.

        Raises:
            DTypeError: it does not take the dtype.
        """
        if dtype not in self.takes:
            way = "use // or cast to a float dtype" if self.name == "divide" else "cast it first"
            raise DTypeError(f"{self.name}: takes {_CALLED[self.takes]}, not a tensor of dtype {dtype}; {way}")

        def widely(xp: Any, *arrays: Array, **settings: Any) -> Array:
            data = self.forward(xp, *(widened(array) for array in arrays), **settings)
            return data.astype(dtype) if data.dtype == FLOAT32 else data

        return widely

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

    def _refused_shapes(self, arrays: Sequence[Array], error: ValueError) -> ShapeError:
        if len(arrays) == 1:
            return ShapeError(f"{self.name}: not for a tensor of shape {arrays[0].shape} ({error})")
        shapes = ", ".join(str(array.shape) for array in arrays)
        return ShapeError(f"{self.name}: shapes {shapes} do not go together ({error})")

    def _refused_settings(self, settings: dict[str, Any], error: TypeError | OverflowError) -> TypeError | ShapeError:
        given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        kind = TypeError if isinstance(error, TypeError) else ShapeError
        return kind(f"{self.name}: not with {given} ({error})" if given else f"{self.name}: {error}")


def checked_operand(name: str, value: Any) -> Operand:
    """`value`, a Tensor.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, Operand):
        raise not_a_tensor(name, value)
    return value


def check_alike(name: str, *operands: Any) -> None:
    """Refuse operands of two dtypes; scalars among them are let pass.

    Raises:
        TypeError: an operand is no Tensor.
        DTypeError: two dtypes.
    """
    dtypes = [checked_operand(name, value)._data.dtype for value in operands if not isinstance(value, np.generic)]
    if any(dtype != dtypes[0] for dtype in dtypes):
        raise DTypeError(
            f"{name}: operands have dtypes {' and '.join(map(str, dtypes))}; nothing is promoted silently, so cast one"
        )


def widened(array: Array) -> Array:
    """float16 and bfloat16 as float32; anything else as it is."""
    return array.astype(FLOAT32) if array.dtype in HALVES else array


def scalar(name: str, value: Any, like: Any) -> np.generic:
    """A Python or NumPy scalar in the dtype of the operand beside it; a float too large for that is infinite.

    Raises:
        TypeError: `value` is no scalar, or `like` no Tensor.
        DTypeError: a float beside integers, a number beside booleans, or an integer that does not fit.
    """
    dtype = checked_operand(name, like)._data.dtype
    if value.__class__ is not float:
        if isinstance(value, np.generic) and value.dtype in DTYPES:
            value = value.item()
        if not isinstance(value, (int, float)):
            raise not_a_tensor(name, value)
    is_float = dtype is FLOAT32 or dtype in FLOATS
    if not is_float and (isinstance(value, float) or (dtype in BOOLEANS and not isinstance(value, bool))):
        raise DTypeError(f"{name}: scalar {value!r} beside a tensor of dtype {dtype}; cast the tensor first")
    try:
        return dtype.type(float(value) if is_float else value)
    except OverflowError:
        raise DTypeError(f"{name}: {value!r} does not fit dtype {dtype} of the tensor beside it") from None


def not_a_tensor(name: str, value: object) -> TypeError:
    """The error for an operand that is neither a Tensor nor a scalar."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return TypeError(f"{name}: operand is a {kind}, not a Tensor; make one with tensor(…, device=…)")


def quiet() -> np.errstate:
    """A context without NumPy's warnings, for infinities and NaNs that are meant; CuPy never warns."""
    return np.errstate(all="ignore")


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
