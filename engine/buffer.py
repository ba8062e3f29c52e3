"""The one writable object: rows of values that grow along an axis, as the caches of a decoder do."""

from typing import Any, NoReturn, final

from .backend import Array
from .device import Device
from .dtype import DType
from .errors import DeviceMismatchError, DTypeError, ShapeError
from .ops.checks import checked_integer
from .primitive import checked_operand, dequantized
from .tensor import Tensor


@final
class Buffer:
    """Values that grow along one axis of a tensor.

    The first `append` decides the device, the dtype and the other extents.
    The memory doubles when it is full, so appending costs as much as copying
    what is appended, in the long run. Histories are not stored. In memory the
    growing axis comes first: what is filled has no gaps, and what is appended
    lies behind all that was viewed before.

    Args:
        axis: which axis of the tensors grows; negative ones count from the last.

    Raises:
        TypeError: `axis` is no integer.
    """

    __slots__ = ("_axis", "_device", "_length", "_order", "_store")

    def __init__(self, axis: int) -> None:
        self._axis = checked_integer("Buffer", "axis", axis)
        self._length = 0
        self._device: Device | None = None
        self._store: Any = None  # [capacity, *other extents]
        self._order: tuple[int, ...] = ()  # takes the axes of the store to those of the tensors

    @property
    def length(self) -> int:
        """How far the axis is filled."""
        return self._length

    @property
    def device(self) -> Device | None:
        """Where the values lie; None before the first `append`."""
        return self._device

    @property
    def dtype(self) -> DType | None:
        """Their element type; None before the first `append`."""
        return None if self._store is None else self._store.dtype

    def append(self, values: Tensor) -> None:
        """Store values behind those that are there. Tensors viewed before keep theirs.

        Args:
            values: of any extent along the axis; otherwise as the first ones.

        Raises:
            TypeError: no Tensor.
            ShapeError: it has no such axis, or another extent differs.
            DTypeError: another dtype.
            DeviceMismatchError: another device.
        """
        data, place = dequantized(checked_operand("append", values))._data, values._device
        if place.kind == "cpu":
            self._extended(place, data)
        else:
            with place:
                self._extended(place, data)

    def _extended(self, place: Device, data: Array) -> Array:
        """Store an array of a device, which is the current one; gives the array of all values, not to be written to."""
        if self._device is None:
            self._begin(data, place.inner())
        axis, shape, held = self._axis, data.shape, self._store.shape
        fits = len(shape) == len(held) and shape[:axis] == held[1 : axis + 1] and shape[axis + 1 :] == held[axis + 1 :]
        if not fits or data.dtype != self._store.dtype or (place is not self._device and place != self._device):
            self._refuse(data, place.inner())
        start, end = self._length, self._length + shape[axis]
        if end > held[0]:
            grown = place.xp.empty((max(end, 2 * held[0]), *held[1:]), dtype=data.dtype)
            grown[:start] = self._store[:start]
            self._store = grown
        self._store[start:end].transpose(self._order)[...] = data
        self._length = end
        return self._store[:end].transpose(self._order)

    def view(self) -> Tensor:
        """All values so far, as one Tensor of the shape that joining them along the axis gives; nothing is copied.

        Raises:
            ShapeError: nothing was appended yet, so there is no shape.
        """
        if self._device is None:
            raise ShapeError("view: nothing was appended to the buffer yet")
        if self._device.kind == "cpu":
            return Tensor._make(self._store[: self._length].transpose(self._order), self._device)
        with self._device:
            return Tensor._make(self._store[: self._length].transpose(self._order), self._device)

    def _begin(self, data: Any, place: Device) -> None:
        if not -data.ndim <= self._axis < data.ndim:
            raise ShapeError(f"append: a tensor of shape {data.shape} has no axis {self._axis}")
        axis = self._axis % data.ndim
        others = (*data.shape[:axis], *data.shape[axis + 1 :])
        self._store = place.xp.empty((data.shape[axis], *others), dtype=data.dtype)
        self._order = (*range(1, axis + 1), 0, *range(axis + 1, data.ndim))
        self._axis, self._device = axis, place

    def _refuse(self, data: Array, place: Device) -> NoReturn:
        """Say why an array cannot be appended."""
        others = (*data.shape[: self._axis], *data.shape[self._axis + 1 :])
        if data.ndim != len(self._order) or others != self._store.shape[1:]:
            stored = (*self._store.shape[1 : self._axis + 1], "any", *self._store.shape[self._axis + 1 :])
            raise ShapeError(f"append: values of shape {data.shape}; the buffer holds [{', '.join(map(str, stored))}]")
        if data.dtype != self._store.dtype:
            raise DTypeError(f"append: values of dtype {data.dtype}; the buffer holds {self._store.dtype}")
        raise DeviceMismatchError(
            f"append: the buffer is on {self._device}, the values on {place}; copy them to its device first"
        )
