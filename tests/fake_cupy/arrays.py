"""The array: a NumPy view of a block, computed at once, and the checks that a kernel's operands go through.

It is no NumPy array, does not become one by itself, and mixes with none.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from . import copies
from .faults import CUDARuntimeError, Fault, PerformanceWarning
from .machine import Machine, Touch, current
from .memory import Block, MemoryPointer
from .streams import Device, get_current_stream, on_device

BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
UNCHECKED: Final = frozenset({"matmul", "dot", "tensordot", "sort", "argsort"})  # CuPy does not look where these lie
NO_BFLOAT16: Final = frozenset({"where", "logical_not", "logical_xor"})  # CuPy computes it in float32, without a word
VIEWS: Final = frozenset(
    "getitem transpose swapaxes moveaxis reshape ravel squeeze expand_dims view as_strided broadcast_to".split()  # noqa: SIM905
)
ROUNDED: Final = frozenset(
    "cumsum divide exp log matmul mean reciprocal sqrt sum tanh".split()  # noqa: SIM905
)  # a GPU may round these otherwise than a CPU: other functions, other orders of sums
USED: Final[set[tuple[str, str, str]]] = set()  # of each call: the kernel's name, its arrays' dtypes, its keywords
_KINDS: Final = frozenset("biufc")


class Flags:
    """What an array says of its memory; it has no flag for writing."""

    def __init__(self, flags: Any) -> None:
        self.c_contiguous: bool = flags.c_contiguous
        self.f_contiguous: bool = flags.f_contiguous
        self.owndata: bool = flags.owndata


class ndarray:  # noqa: N801
    """An array on a device."""

    __slots__ = ("__weakref__", "_np", "base", "data")
    __array_priority__ = 100
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    _np: NDArray[Any]

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: MemoryPointer | None = None,
        strides: Sequence[int] | None = None,
        order: str = "C",
    ) -> None:
        of = checked_dtype(dtype)
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        if memptr is None:
            machine = current()
            queue = machine.current_queue()
            memory = machine.memories[machine.device]
            memptr = MemoryPointer(memory.allocate(int(np.prod(extents)) * of.itemsize, queue, queue.timeline), 0)
        self.data = memptr
        self.base: ndarray | None = None
        block = memptr.mem.block
        if block is None:
            self._np = np.empty(extents, of)
        elif strides is None:
            self._np = np.ndarray(extents, of, block.data, memptr.offset, order=order)  # pyright: ignore
        else:
            self._np = np.ndarray(extents, of, block.data, memptr.offset, strides)

    # What it is

    shape = property(lambda self: self._np.shape)
    dtype = property(lambda self: self._np.dtype)
    strides = property(lambda self: self._np.strides)
    ndim = property(lambda self: self._np.ndim)
    size = property(lambda self: self._np.size)
    nbytes = property(lambda self: self._np.nbytes)
    itemsize = property(lambda self: self._np.itemsize)
    flags = property(lambda self: Flags(self._np.flags))

    @property
    def device(self) -> Device:
        return Device(self.data.device_id)

    def __len__(self) -> int:
        return len(self._np)

    def __iter__(self) -> Iterator["ndarray"]:
        return (self[position] for position in range(len(self)))

    # What it refuses

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise Fault(f"NumPy's {function.__name__} was called with a CuPy array; use the array module of its device")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, np.ndarray) for value in inputs):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        if method == "__call__" and len(inputs) == 2 and isinstance(inputs[0], np.generic):
            return kernel(ufunc.__name__, ufunc)(*inputs, **kwargs)
        raise Fault(f"NumPy's {ufunc.__name__} was called with a CuPy array; use the array module of its device")

    def _decides(self) -> Any:
        raise Fault("a value on the device decides what the host does: a hidden wait; write int(…) or item()")

    __bool__ = __index__ = _decides

    # Its elements on the host

    def get(
        self, stream: Any = None, order: str = "C", out: NDArray[Any] | None = None, blocking: bool = True
    ) -> NDArray[Any]:
        """A copy on the host; by default on the current stream of the *current* device."""
        machine, stream = current(), stream or get_current_stream()
        host = np.empty(self.shape, self.dtype, order) if out is None else out  # pyright: ignore
        if host.dtype != self.dtype:
            raise TypeError(f"{host.dtype} array cannot be obtained from {self.dtype} array")
        if host.shape != self.shape:
            raise ValueError(f"Shape mismatch. Expected shape: {self.shape}, actual shape: {host.shape}")
        lying = self
        with on_device(machine, self.data.device_id, stream) as queue:
            if not _contiguous_alike(self._np, host):
                with stream:
                    lying = kernel("ascontiguousarray", np.array)(self, order="C" if host.flags.c_contiguous else "F")
            if self.size:
                copies.down(machine, host.ctypes.data, lying.data.ptr, self.nbytes, queue, self.data.device_id)
            if blocking:
                with machine.on(queue) as clock:
                    machine.advance(clock)
        return host

    def set(self, arr: NDArray[Any], stream: Any = None) -> None:
        """Fill from a host array of the same dtype and shape."""
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if (self.dtype, self.shape) != (arr.dtype, arr.shape):
            raise ValueError(f"{arr.dtype} {arr.shape} array cannot be set to {self.dtype} {self.shape} array")
        if not (self._np.flags.c_contiguous or self._np.flags.f_contiguous):
            raise RuntimeError("Cannot set to non-contiguous array")
        host = np.asarray(arr, order="C" if self._np.flags.c_contiguous else "F")
        machine = current()
        with on_device(machine, self.data.device_id, stream or get_current_stream()) as queue:
            copies.up(machine, self.data.ptr, host.ctypes.data, self.nbytes, queue, self.data.device_id)

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def item(self, *args: Any) -> Any:
        return self.get().item(*args)

    def tolist(self) -> Any:
        return self.get().tolist()

    # Its elements on the device

    def __getitem__(self, index: Any) -> "ndarray":
        parts = index if isinstance(index, tuple) else (index,)
        for part in parts:
            if isinstance(part, np.ndarray) or (isinstance(part, ndarray) and part.dtype == np.bool_):
                raise Fault(f"index of {type(part).__module__}: it is on the host, or hides a wait for the device")
        whole = parts if any(part is ... for part in parts) else (*parts, ...)
        return kernel("getitem", lambda array, *at: array[at])(self, *whole)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, np.ndarray):
            raise ValueError("Non-scalar `numpy.ndarray` cannot be used for assignment")

        operands: list[ndarray] = []
        parts = index if isinstance(index, tuple) else (index,)
        gathers = any(isinstance(part, ndarray) for part in parts)
        target = self if gathers else self[parts]
        self._np[tuple(_plain(part, operands, "setitem") for part in parts)] = _plain(value, operands, "setitem")
        launch("setitem", operands, [target])

    def fill(self, value: Any) -> None:
        self[...] = value

    def astype(self, dtype: Any, order: str = "K", copy: bool = True) -> "ndarray":
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        return kernel("astype", lambda array: array.astype(checked_dtype(dtype), order))(self)

    def copy(self, order: str = "C") -> "ndarray":
        return kernel("copy", lambda array: array.copy(order))(self)

    def __repr__(self) -> str:
        return f"<cuda:{self.data.device_id} array, shape {self.shape}, dtype {self.dtype}>"


def checked_dtype(dtype: Any) -> np.dtype[Any]:
    """A dtype that kernels exist for.

    Raises:
        ValueError: there are none.
    """
    of = np.dtype(dtype)
    if of.kind not in _KINDS and of != BFLOAT16:
        raise ValueError(f"Unsupported dtype {of}")
    return of


def _contiguous_alike(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return bool((a.flags.c_contiguous and b.flags.c_contiguous) or (a.flags.f_contiguous and b.flags.f_contiguous))


def fresh(value: NDArray[Any]) -> ndarray:
    """A new array on the current device with the shape, dtype and, if it is dense, memory order of another."""
    checked_dtype(value.dtype)
    return ndarray(value.shape, value.dtype, strides=np.empty_like(value, order="K").strides)


def _bounds(array: ndarray, block: Block) -> tuple[int, int]:
    low, high = byte_bounds(array._np)
    start = block.data.ctypes.data
    return low - start, high - start


def launch(name: str, reads: Sequence[ndarray], writes: Sequence[ndarray]) -> None:
    """Put a kernel on the current stream; its values are computed by whoever calls this.

    Raises:
        Fault: an operand lies on another device, is still in use elsewhere, or was never written.
    """
    machine = current()
    for operand in (*reads, *writes):
        if operand.data.device_id != machine.device:
            _remote(machine, name, operand)
    touches = []
    for operands, writing in ((reads, False), (writes, True)):
        for operand in operands:
            block = operand.data.mem.block
            if block is not None and operand.size:
                touches.append(Touch(block, *_bounds(operand, block), writing))
    stamp = machine.issue(machine.current_queue(), name, touches)
    for operand in reads:
        if not all(part.all() for part in _written(operand)):
            raise Fault(f"'{stamp.what}' reads memory of cuda:{operand.data.device_id} that nobody wrote")
    for operand in writes:
        for part in _written(operand):
            part[...] = True


def _written(array: ndarray) -> Iterator[NDArray[np.bool_]]:
    """Which bytes of its elements were written: one array for each byte of an element, or one for all."""
    block = array.data.mem.block
    if block is None or not array.size:
        return
    low, high = _bounds(array, block)
    if array._np.flags.c_contiguous or array._np.flags.f_contiguous:
        yield block.written[low:high]
        return
    start = array._np.__array_interface__["data"][0] - block.data.ctypes.data
    for byte in range(array.itemsize):
        yield np.ndarray(array.shape, np.bool_, block.written, start + byte, array.strides)  # pyright: ignore


def _remote(machine: Machine, name: str, operand: ndarray) -> None:
    """A kernel with an operand that lies elsewhere."""
    where, here = operand.data.device_id, machine.device
    if machine.remote == "fault":
        raise Fault(f"{name} runs on cuda:{here} and touches an array on cuda:{where}")
    if name in UNCHECKED:
        if (here, where) not in machine.enabled:
            machine.sticky = 700
            raise CUDARuntimeError(700)
    elif (here, where) in machine.peers:
        machine.enabled.add((here, where))
        warnings.warn(f"The device where the array resides ({where}) is different", PerformanceWarning, stacklevel=4)
    else:
        raise ValueError(f"Array device must be same as the current device: array device = {where} while {here}")


def kernel(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A NumPy function as one of the device's: it takes its arrays and scalars, and gives its arrays.

    What the function gives as a view of an operand is a view here, without a
    kernel; everything else is allocated on the current device.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        operands: list[ndarray] = []
        plain = [_plain(value, operands, name) for value in args]
        reads = len(operands)
        USED.add((name, "".join(operand.dtype.char for operand in operands), " ".join(kwargs)))
        named = {key: _plain(value, operands, name) for key, value in kwargs.items()}
        given = kwargs.get("out")
        outs = [value for value in (given if isinstance(given, tuple) else (given,)) if isinstance(value, ndarray)]
        if name in NO_BFLOAT16 and any(operand.dtype == BFLOAT16 for operand in operands):
            raise Fault(f"{name} has no kernel for bfloat16; CuPy computes it in float32, and gives that")
        if name == "matmul" and any(a.dtype == BFLOAT16 and a.ndim > 2 for a in operands[:reads]):
            raise TypeError("matmul of bfloat16 has no kernel for more than two dimensions")
        with np.errstate(all="ignore"):
            result = function(*plain, **named)
        if current().inexact and name in ROUNDED and not outs and np.dtype(result.dtype).kind == "f":
            result = np.nextafter(result, np.asarray(np.inf, result.dtype))
        if name == "matmul" and {operand.dtype for operand in operands} == {BFLOAT16}:
            result = result.astype(BFLOAT16)  # NumPy gives float32
        if name in VIEWS and isinstance(result, np.ndarray) and not result.size:
            return _view(operands[0], result, 0)
        made: list[ndarray] = []
        converted = _converted(result, operands, outs, made)
        if made or outs:
            sources = [operand for operand in operands if not any(operand is out for out in outs)]
            sources += [out for out in outs if any(out is operand for operand in operands[:reads])]
            launch(name, sources, [*made, *outs])
        return converted

    call.__name__ = call.__qualname__ = name
    return call


def _plain(value: Any, operands: list[ndarray], name: str) -> Any:
    """What NumPy computes with; the arrays of the device are collected."""
    if isinstance(value, ndarray):
        operands.append(value)
        return value._np
    if isinstance(value, np.ndarray):
        raise TypeError(f"{name}: Unsupported type {type(value)}")
    if isinstance(value, list | tuple):
        return type(value)(_plain(part, operands, name) for part in value)
    return value


def _converted(result: Any, operands: list[ndarray], outs: list[ndarray], made: list[ndarray]) -> Any:
    """A result of NumPy's as one of the device's; what had to be allocated is added to `made`."""
    if isinstance(result, list | tuple):
        return [_converted(part, operands, outs, made) for part in result]
    if isinstance(result, (np.generic, bool)):
        result = np.asarray(result)
    if not isinstance(result, np.ndarray):
        return result
    for out in outs:
        if result is out._np:
            return out
    for operand in operands:
        block = operand.data.mem.block
        if block is not None and result.size and np.may_share_memory(result, block.data):
            return _view(operand, result, result.__array_interface__["data"][0] - block.data.ctypes.data)
    array = fresh(result)
    array._np[...] = result
    made.append(array)
    return array


def _view(operand: ndarray, result: NDArray[Any], offset: int) -> ndarray:
    """An array over the memory of another."""
    view = ndarray.__new__(ndarray)
    view.data = MemoryPointer(operand.data.mem, offset)
    view.base = operand if operand.base is None else operand.base
    view._np = result
    return view
