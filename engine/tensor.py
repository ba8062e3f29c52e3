"""Tensors: immutable arrays, each on one device.

Every operation gives a new tensor on the device of its operands, which must
all be on one device and, where they are combined, of one dtype: nothing moves
and nothing is promoted silently. The functions are in `engine.ops`; a Tensor
has operators and the few methods that read well.
"""

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from . import ops, transfer
from .device import Device
from .dtype import BFLOAT16, FLOATS, INTS, DType, as_dtype
from .errors import AutodiffError, DeviceError, DTypeError, ShapeError
from .gradients import Gradients, backward
from .graph import Leaf
from .ops.checks import checked_integers
from .primitive import Operand, dense, is_scheme
from .quantization.operations import array_of_bytes, bytes_of
from .quantization.scheme import QuantScheme


@final
class Tensor(Operand):
    """An immutable array on a device; made by `tensor`, `zeros`, `randn`, …, or by `from_numpy`.

    ``==`` compares elementwise; the hash is that of the object. Indexing
    always gives a Tensor. `float`, `int` and `bool` take a Tensor of one
    element. Arithmetic with an array is a ``TypeError``: an array has no device.
    """

    __slots__ = ()
    __array_ufunc__ = None  # so that `array + tensor` comes to us, and is refused

    def __init__(self) -> None:
        raise TypeError("make a Tensor with tensor(data, device=…), zeros, ones, full, arange, randn or from_numpy")

    @classmethod
    def from_numpy(cls, array: NDArray[Any], device: Device | str) -> "Tensor":
        """A copy of a NumPy array on a device, with its dtype, shape and, if it is dense, memory order.

        Raises:
            TypeError: `array` is no NumPy array.
            DTypeError: a tensor cannot have its dtype.
        """
        if not isinstance(array, (np.ndarray, np.generic)):
            raise TypeError(
                f"from_numpy: {type(array).__qualname__} is no NumPy array; tensor(…) takes lists and numbers"
            )
        dtype = as_dtype(array.dtype)
        with Device(device).host():
            copied = np.array(array, dtype=dtype, order="K", copy=True, subok=False).view(dtype)
        return cls.adopt(copied, device)

    @classmethod
    def adopt(cls, array: NDArray[Any], device: Device | str) -> "Tensor":
        """A tensor over a NumPy array that nobody will write to any more; on a CPU device without a copy.

        For readers of files, whose arrays are new or mapped (D11). An array
        with gaps in its memory is copied.

        Raises:
            DTypeError: a tensor cannot have its dtype.
        """
        place, dtype = Device(device), as_dtype(array.dtype)
        if array.dtype != dtype:
            raise DTypeError(f"adopt: dtype {array.dtype} is not in this machine's byte order")
        if place.kind != "cpu":
            return cls._make(place.backend.upload(array, place.index), place)
        with place:
            return cls._make(dense(np, array.view(dtype, np.ndarray)), place)

    @classmethod
    def from_quantized(
        cls,
        data: NDArray[np.uint8] | bytes | bytearray | memoryview,
        shape: Sequence[int],
        scheme: QuantScheme,
        device: Device | str,
    ) -> "Tensor":
        """A quantized tensor of the bytes that `tobytes` gives for such a one (Q41), copied.

        Args:
            data: the bytes, bytes-like or as an array of one axis.
            shape: the logical shape.
            scheme: what the bytes are of.

        Raises:
            TypeError: `data` is no bytes, or `shape` no sequence of integers.
            DTypeError: `scheme` is no QuantScheme, or nothing can be computed with it (Q6, Q7).
            ShapeError: another number of bytes, or a shape that the scheme is not for (Q44).
            QuantizationError: a scale is not positive and finite (Q47).
        """
        place, extents = Device(device), checked_integers("from_quantized", "shape", shape)
        if any(extent < 0 for extent in extents):
            raise ShapeError(f"from_quantized: shape {extents} has a negative extent")
        return cls._make(array_of_bytes("from_quantized", data, extents, scheme, place), place)

    # What it is

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of each axis; ``()`` for a single number."""
        return self._data.shape

    @property
    def dtype(self) -> DType:
        """Element type, a NumPy dtype; of a quantized tensor its `QuantScheme` (Q34)."""
        return self._data.dtype

    @property
    def device(self) -> Device:
        """Where it lies, with the tensor's own autodiff flag."""
        return self._device

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._data.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._data.size

    @property
    def nbytes(self) -> int:
        """Bytes of its elements; of a quantized tensor those of its values and scales in memory."""
        return self._data.nbytes

    @property
    def is_quantized(self) -> bool:
        """Whether it stores integers and scales in place of its elements."""
        return is_scheme(self._data.dtype)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("a Tensor of rank 0 has no length")
        return self.shape[0]

    # Its elements, on the host

    def numpy(self) -> NDArray[Any]:
        """A NumPy view of a tensor on a CPU device; it is read-only, and stays so whatever one sets.

        Raises:
            DeviceError: it is on another kind of device.
            DTypeError: it is quantized, and so has no array of its numbers.
        """
        if self.is_quantized:
            raise DTypeError(f"numpy: the tensor is quantized, {self.dtype}; dequantize() it first")
        if self._device.kind != "cpu":
            raise DeviceError(f"numpy: the tensor is on {self._device}; bring it to a CPU device first, with to_device")
        data = self._data
        buffer = data.view(np.uint16) if data.dtype == BFLOAT16 else data  # bfloat16 has no buffers of its own
        return np.asarray(memoryview(buffer).toreadonly()).view(data.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def tobytes(self) -> bytes:
        """Its elements as little-endian bytes, row-major, from any device; of a quantized tensor Q41's bytes."""
        if self.is_quantized:
            return bytes_of(self).tobytes()
        host = self._host()
        return host.astype(host.dtype.newbyteorder("<"), copy=False).tobytes()

    def _only(self, kind: type) -> Any:
        if self.size != 1:
            raise ShapeError(f"{kind.__name__}() takes a Tensor of one element; this one has shape {self.shape}")
        return self._host().item()

    def __float__(self) -> float:
        return float(self._only(float))

    def __int__(self) -> int:
        return int(self._only(int))

    def __bool__(self) -> bool:
        return bool(self._only(bool))

    def __index__(self) -> int:
        if self.dtype not in INTS:
            raise TypeError(f"a Tensor of dtype {self.dtype} is no index")
        return int(self)

    def __repr__(self) -> str:
        values = np.array2string(self._host(), separator=", ", prefix="Tensor(", threshold=64, edgeitems=3)
        return f"Tensor({values}, shape={self.shape}, dtype={self.dtype}, device={self._device})"

    # Where it is, and what it is of

    def to_device(self, device: Device | str) -> "Tensor":
        """This tensor on a device: itself if it is there already (D4), else a copy that `transfer` counts (M44)."""
        if device is self._device:
            return self
        return transfer.copy([self], device)[0]

    def cast(self, dtype: Any) -> "Tensor":
        """Its elements in another dtype; itself where it has that dtype. `ops.cast` says how they are converted."""
        return ops.cast(self, dtype)

    # What it is to autodiff: M70, M71

    @property
    def is_tracked(self) -> bool:
        """Whether it is part of a recorded graph."""
        return self._node is not None

    @property
    def is_require_grad(self) -> bool:
        """Whether it is a leaf that retains its gradient."""
        return isinstance(self._node, Leaf)

    def require_grad(self) -> "Tensor":
        """This value as a leaf that retains its gradient; a quantized one as it is (M70).

        Raises:
            AutodiffError: its device has no autodiff, it is no float tensor, or an operation made it.
        """
        if not self._device.is_autodiff:
            raise AutodiffError(
                f"require_grad: the tensor is on {self._device}, without autodiff; use autodiff() first"
            )
        return self.set_require_grad(True)

    def set_require_grad(self, require: bool) -> "Tensor":
        """This value as a new leaf that retains its gradient, or as an untracked one.

        On a device without autodiff it gives the tensor itself, and so does a quantized one (M60, M70).

        Raises:
            AutodiffError: `require`, and it is no float tensor, or an operation made it.
        """
        if self.is_quantized:
            return self
        if require and self.dtype not in FLOATS:
            raise AutodiffError(f"require_grad: a tensor of dtype {self.dtype} has no gradient")
        if not self._device.is_autodiff or require == self.is_require_grad == self.is_tracked:
            return self
        if require and self.is_tracked:
            raise AutodiffError("require_grad: the tensor was made by a recorded operation; detach() it first")
        return self._make(self._data, self._device, Leaf() if require else None)

    def detach(self) -> "Tensor":
        """This value without its history; a leaf stays one that retains its gradient (M71)."""
        return self._make(self._data, self._device, Leaf() if self.is_require_grad else None)

    def autodiff(self) -> "Tensor":
        """This value associated with autodiff, untracked unless it is tracked already (M71)."""
        return self if self._device.is_autodiff else self._make(self._data, self._device.autodiff())

    def without_autodiff(self) -> "Tensor":
        """This value without autodiff association and history (M71)."""
        return self._make(self._data, self._device.inner()) if self._device.is_autodiff else self

    def backward(self, cotangent: "Tensor | None" = None) -> Gradients:
        """The gradient of this tensor with respect to each leaf that it was computed from.

        The recorded values behind it are released on the way, so a graph gives
        its gradients once. The gradient of a leaf lies on the leaf's own device.

        Args:
            cotangent: the gradient at this tensor, of its shape, dtype and device; by default 1, of a tensor of
                one element.

        Raises:
            AutodiffError: it is not tracked, or an earlier `backward` released a part of its graph.
            ShapeError: it has several elements and no cotangent, or the cotangent's shape is another.
            DTypeError: the cotangent's dtype is another.
            DeviceMismatchError: the cotangent is on another device.
        """
        return backward(self, cotangent)

    def grad(self, gradients: Gradients) -> "Tensor | None":
        """Its gradient, plain and on its device; None unless it is a leaf that has one there (M73)."""
        return gradients._of(self)

    # Shape

    def reshape(self, *shape: int) -> "Tensor":
        """Its elements, row-major, in another shape; one extent may be -1. See `ops.reshape`."""
        return ops.reshape(self, *shape)

    def transpose(self, *axes: int) -> "Tensor":
        """Its axes in another order; without arguments reversed. A view."""
        return ops.transpose(self, *axes)

    @property
    def T(self) -> "Tensor":  # noqa: N802
        """Its last two axes exchanged; a view.

        Raises:
            ShapeError: it has fewer than two.
        """
        if self.ndim < 2:
            raise ShapeError(f"T exchanges the last two axes; this tensor has shape {self.shape}")
        return ops.swap_axes(self, -1, -2)

    def __getitem__(self, index: Any) -> "Tensor":
        return ops.index(self, index)

    def __iter__(self) -> "Iterator[Tensor]":
        return (self[position] for position in range(len(self)))

    # Operators

    def __add__(self, other: Any) -> "Tensor":
        return ops.add(self, other)

    def __radd__(self, other: Any) -> "Tensor":
        return ops.add(other, self)

    def __sub__(self, other: Any) -> "Tensor":
        return ops.subtract(self, other)

    def __rsub__(self, other: Any) -> "Tensor":
        return ops.subtract(other, self)

    def __mul__(self, other: Any) -> "Tensor":
        return ops.multiply(self, other)

    def __rmul__(self, other: Any) -> "Tensor":
        return ops.multiply(other, self)

    def __truediv__(self, other: Any) -> "Tensor":
        return ops.divide(self, other)

    def __rtruediv__(self, other: Any) -> "Tensor":
        return ops.divide(other, self)

    def __floordiv__(self, other: Any) -> "Tensor":
        return ops.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> "Tensor":
        return ops.floor_divide(other, self)

    def __mod__(self, other: Any) -> "Tensor":
        return ops.remainder(self, other)

    def __rmod__(self, other: Any) -> "Tensor":
        return ops.remainder(other, self)

    def __pow__(self, other: Any) -> "Tensor":
        return ops.power(self, other)

    def __rpow__(self, other: Any) -> "Tensor":
        return ops.power(other, self)

    def __matmul__(self, other: Any) -> "Tensor":
        return ops.matmul(self, other)

    def __rmatmul__(self, other: Any) -> "Tensor":
        return ops.matmul(other, self)

    def __neg__(self) -> "Tensor":
        return ops.negative(self)

    def __abs__(self) -> "Tensor":
        return ops.absolute(self)

    def __invert__(self) -> "Tensor":
        return ops.logical_not(self)

    def __and__(self, other: Any) -> "Tensor":
        return ops.logical_and(self, other)

    def __rand__(self, other: Any) -> "Tensor":
        return ops.logical_and(other, self)

    def __or__(self, other: Any) -> "Tensor":
        return ops.logical_or(self, other)

    def __ror__(self, other: Any) -> "Tensor":
        return ops.logical_or(other, self)

    def __eq__(self, other: Any) -> "Tensor":  # pyright: ignore[reportIncompatibleMethodOverride]
        return ops.equal(self, other)

    def __ne__(self, other: Any) -> "Tensor":  # pyright: ignore[reportIncompatibleMethodOverride]
        return ops.not_equal(self, other)

    def __lt__(self, other: Any) -> "Tensor":
        return ops.less(self, other)

    def __le__(self, other: Any) -> "Tensor":
        return ops.less_equal(self, other)

    def __gt__(self, other: Any) -> "Tensor":
        return ops.greater(self, other)

    def __ge__(self, other: Any) -> "Tensor":
        return ops.greater_equal(self, other)

    __hash__ = object.__hash__

    def __copy__(self) -> "Tensor":
        return self

    def __deepcopy__(self, memo: Any) -> "Tensor":
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a Tensor is not pickled; put it into a Module and use save_file")
