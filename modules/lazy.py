"""Values that are made when somebody first asks: the cell that all versions of a lazy parameter share.

A parameter can be cloned, moved and switched before its value exists. All
these versions hold one *cell*; whichever is read first runs the initialiser,
on its own device, and the others take over that value (M24, M47, D3). An
initialiser succeeds at most once; one that raised runs again for the next
reader (D6). All run under one lock, so that two threads whose initialisers
read each other's parameters never wait for each other.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from engine import Device, DeviceMismatchError, DTypeError, ShapeError, Tensor, as_dtype
from engine.dtype import DType

from .errors import ModuleError

Initializer: TypeAlias = Callable[[Device, bool], Tensor]
"""``init(device, require_grad)``: a new value on that device."""

INITIALIZING: Final = threading.RLock()
"""Held while an initialiser runs, and while a version takes over a cell's value."""


class Cell:
    """One value, made at the first `value_for`.

    Args:
        init: makes the value; it must be of `shape` and `dtype`, on the device it was given.
        shape: the declared shape.
        dtype: the declared dtype.
    """

    __slots__ = ("_init", "_running", "dtype", "shape", "value")

    def __init__(self, init: Initializer, shape: Sequence[int], dtype: Any) -> None:
        self._init: Initializer | None = init
        self._running = False
        self.shape: Final = tuple(shape)
        self.dtype: Final[DType] = as_dtype(dtype)
        self.value: Tensor | None = None  # plain and without history

    def value_for(self, device: Device, require_grad: bool) -> Tensor:
        """The value, made on `device` if nobody has made it yet; call with `INITIALIZING` held.

        Raises:
            ModuleError: the initialiser reads its own parameter, or gives no Tensor.
            ShapeError: it gives another shape than declared.
            DTypeError: it gives another dtype than declared.
            DeviceMismatchError: it gives a value on another device than it was told.
        """
        if self.value is not None:
            return self.value
        if self._running or self._init is None:
            raise ModuleError("an initialiser reads the parameter that it is initialising")
        self._running = True
        try:
            made = self._init(device, require_grad)
            self._check(made, device)
            self.value = made.without_autodiff()
            self._init = None
        finally:
            self._running = False
        return self.value

    def mapped(self, mapper: Callable[[Tensor], Tensor]) -> "Cell":
        """A cell whose value is `mapper` of this one's (M32); its declared shape is the one before (M33)."""
        return _MappedCell(self, mapper)

    def _check(self, made: object, device: Device) -> None:
        if not isinstance(made, Tensor):
            raise ModuleError(f"the initialiser gave a {type(made).__qualname__}, not a Tensor")
        if made.shape != self.shape:
            raise ShapeError(f"the initialiser gave shape {made.shape}; the parameter is declared with {self.shape}")
        if made.dtype != self.dtype:
            raise DTypeError(f"the initialiser gave dtype {made.dtype}; the parameter is declared with {self.dtype}")
        if made.device != device:
            raise DeviceMismatchError(f"the initialiser gave a value on {made.device}; it was told to use {device}")


class _MappedCell(Cell):
    """A cell whose initialiser is another cell's value, mapped. The mapper may change shape and dtype."""

    __slots__ = ()

    def __init__(self, source: Cell, mapper: Callable[[Tensor], Tensor]) -> None:
        def init(device: Device, require_grad: bool) -> Tensor:
            value = source.value_for(device, require_grad).to_device(device)
            return mapper(value.autodiff() if device.is_autodiff else value)

        super().__init__(init, source.shape, source.dtype)

    def _check(self, made: object, device: Device) -> None:
        if not isinstance(made, Tensor):
            raise ModuleError(f"the init mapper gave a {type(made).__qualname__}, not a Tensor")
        if made.device != device:
            raise DeviceMismatchError(f"the init mapper gave a value on {made.device}; it was given one on {device}")
