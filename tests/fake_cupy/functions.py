"""The functions of `cupy` and `cupyx`: NumPy's, each as a kernel, those alone that CuPy 14.2 has.

A function that the engine's operations need and that is not here is added to
the table, once it is known that CuPy has it (tests/cuda compares the two
where CuPy is installed). Of those that wait for the device, to learn the
shape of their result, only the one that the engine needs is here.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from . import copies
from .arrays import checked_dtype, fresh, kernel, launch, ndarray
from .machine import current
from .memory import MemoryPool
from .streams import get_current_stream

FUNCTIONS: Final = """
    abs absolute add all amax amin any arange arccos arcsin arctan arctan2 argmax argmin argsort atleast_1d
    atleast_2d bincount bitwise_and bitwise_or bitwise_xor broadcast_arrays broadcast_to cbrt ceil clip concatenate
    copysign cos cosh cumprod cumsum diag diagonal diff divide dot einsum equal exp exp2 expand_dims expm1 eye flip
    floor floor_divide fmax fmin fmod full full_like greater greater_equal hstack hypot inner invert isfinite isinf
    isnan left_shift less less_equal linspace log log10 log1p log2 logaddexp logical_and logical_not logical_or
    logical_xor matmul max maximum mean min minimum moveaxis multiply nan_to_num negative not_equal ones ones_like
    outer pad positive power prod ravel reciprocal remainder repeat reshape right_shift rint roll round searchsorted
    sign signbit sin sinh sort split sqrt square squeeze stack std subtract sum swapaxes take_along_axis tan tanh
    tensordot tile trace transpose tri tril triu true_divide trunc var vstack where zeros zeros_like
"""
METHODS: Final = """
    all any argmax argmin argsort clip cumsum diagonal dot flatten max mean min prod ravel repeat reshape round squeeze
    std sum swapaxes transpose var view
"""
NAMES: Final = """
    bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128
    dtype finfo iinfo can_cast promote_types newaxis pi e inf nan
"""
_OPERATORS: Final = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "pow": np.power,
    "matmul": np.matmul,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
}

_COMPARISONS: Final = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def asarray(obj: Any, dtype: Any = None, order: str | None = None) -> ndarray:
    """The array itself where it is one of the current device; else a copy."""
    if isinstance(obj, ndarray) and obj.data.device_id == current().device and dtype in (None, obj.dtype):
        return obj
    return array(obj, dtype, order=order or "K")


def array(obj: Any, dtype: Any = None, copy: bool = True, order: str = "K") -> ndarray:
    """A copy on the current device, of an array there or of numbers on the host."""
    if isinstance(obj, ndarray):
        if not copy:
            return asarray(obj, dtype, order)
        return kernel("array", lambda a: np.array(a, dtype=dtype, order=order, copy=True))(obj)  # pyright: ignore
    if isinstance(obj, list | tuple) and any(isinstance(part, ndarray) for part in obj):
        return kernel("array", lambda *parts: np.array(parts, dtype=dtype))(*obj)
    host = np.array(obj, dtype=dtype, order=order)  # pyright: ignore
    made = fresh(host)
    machine = current()
    if isinstance(obj, np.ndarray) and obj.size and machine.pinned.find(obj.ctypes.data, obj.nbytes):
        queue = machine.current_queue()  # sent as it is: it must not change before the stream has passed
        copies.up(machine, made.data.ptr, obj.ctypes.data, obj.nbytes, queue, machine.device)
    else:
        made._np[...] = host
        launch("array", [], [made])
    return made


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Memory that nobody has written."""
    return ndarray(shape, dtype, order=order)


def empty_like(a: ndarray, dtype: Any = None) -> ndarray:
    """Memory that nobody has written, laid out as another array."""
    return fresh(np.empty_like(a._np, dtype=dtype))


def take(a: ndarray, indices: Any, axis: int | None = None, out: Any = None) -> ndarray:
    """Elements by position; an index out of range wraps around without a word."""
    return kernel("take", lambda x, at: np.take(x, at, axis=axis, mode="wrap"))(a, indices)


def copyto(dst: ndarray, src: Any, casting: str = "same_kind", where: ndarray | None = None) -> None:
    """Assign all elements, or those where a condition holds."""
    if where is None:
        dst[...] = src
    else:

        def assign(dst: Any, src: Any, where: Any, out: Any) -> None:
            np.copyto(dst, src, casting=casting, where=where)  # pyright: ignore

        kernel("copyto", assign)(dst, src, where, out=dst)


def flatnonzero(a: ndarray) -> ndarray:
    """The places of what is not 0; the host waits, to learn how many there are."""
    places = kernel("flatnonzero", np.flatnonzero)(a)
    get_current_stream().synchronize()
    return places


def may_share_memory(a: ndarray, b: ndarray) -> bool:
    """Whether the bounds of two arrays overlap; known without asking the device."""
    return np.may_share_memory(a._np, b._np)


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Any:
    """A copy on the host."""
    return a.get(stream, order, out, blocking) if isinstance(a, ndarray) else np.asarray(a)


def alloc_pinned_memory(size: int) -> Any:
    """Page-locked memory, for `numpy.frombuffer`."""
    return empty_pinned(size, np.uint8)


def empty_pinned(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """A NumPy array over page-locked memory."""
    current().check("hostAlloc")
    of = checked_dtype(dtype)
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    lying = current().pinned.allocate(int(np.prod(extents)) * of.itemsize).view(of)
    return lying.reshape(extents, order=order)  # pyright: ignore


def zeros_pinned(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """A NumPy array of zeros over page-locked memory."""
    made = empty_pinned(shape, dtype, order)
    made.fill(0)
    return made


def functions() -> dict[str, Any]:
    """What `cupy` has at its top, by name."""
    own: list[Callable[..., Any]] = [array, asarray, asnumpy, copyto, empty, empty_like, flatnonzero, take]
    found: dict[str, Any] = {name: kernel(name, getattr(np, name)) for name in FUNCTIONS.split()}
    found |= {name: getattr(np, name) for name in NAMES.split()}
    found |= {function.__name__: function for function in [*own, may_share_memory]}
    as_strided = kernel("as_strided", np.lib.stride_tricks.as_strided)
    found["lib"] = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=as_strided))
    found["ascontiguousarray"] = lambda a, dtype=None: kernel("ascontiguousarray", np.ascontiguousarray)(a, dtype)
    found["get_default_memory_pool"] = lambda: MemoryPool(current())
    found["ndarray"] = ndarray
    return found


def _method(name: str) -> Callable[..., Any]:
    return kernel(name, lambda array, *args, **kwargs: getattr(array, name)(*args, **kwargs))


def _give_operators() -> None:
    """Give the array its methods and operators: each is a kernel."""
    for name in METHODS.split():
        setattr(ndarray, name, _method(name))
    for name, ufunc in _OPERATORS.items():
        call = kernel(ufunc.__name__, ufunc)
        setattr(ndarray, f"__{name}__", lambda self, other, call=call: call(self, other))
        setattr(ndarray, f"__r{name}__", lambda self, other, call=call: call(other, self))
        if name != "matmul":
            setattr(ndarray, f"__i{name}__", lambda self, other, call=call: call(self, other, out=self))
    for name, ufunc in _COMPARISONS.items():
        setattr(ndarray, f"__{name}__", kernel(ufunc.__name__, ufunc))
    for name, ufunc in (("neg", np.negative), ("pos", np.positive), ("abs", np.absolute), ("invert", np.invert)):
        setattr(ndarray, f"__{name}__", kernel(ufunc.__name__, ufunc))
    ndarray.T = property(lambda self: self.transpose())  # pyright: ignore[reportAttributeAccessIssue]


_give_operators()
