"""Tensors of numbers that are written out, as nested lists have them."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .device import Device
from .dtype import BOOL, FLOAT32, FLOAT64, FLOATS, INT64, INTS, DType, as_dtype, kind_of
from .errors import DTypeError, ShapeError
from .ops.casting import cast_array
from .tensor import Tensor

_WHOLE: Final = (int, np.integer, np.bool_)
_FLAT: Final = (str, bytes, bytearray, memoryview, range)  # sequences whose parts need no look


def tensor(data: Any, *, device: Device | str, dtype: Any = None) -> Tensor:
    """A tensor of the numbers in `data`, copied.

    Args:
        data: a number, nested lists or tuples of numbers of one shape, or a NumPy array.
        device: where it is made; on an autodiff device the tensor is associated with autodiff.
        dtype: the element type; by default that of a NumPy array, else float32 for
            floats, int64 for integers, bool for booleans.

    Raises:
        TypeError: `data` is a Tensor, or holds one.
        DTypeError: the elements are no numbers, or do not fit `dtype`.
        ShapeError: nested lists of different lengths.
    """
    if isinstance(data, Tensor):
        raise TypeError("tensor: data is a Tensor already; to_device moves it, cast changes its dtype")
    kinds = _leaf_types((data,))
    if Tensor in kinds:
        raise TypeError(
            "tensor: data has Tensors among its parts; join them with ops.stack or ops.concatenate, "
            "after to_device where they lie on several devices"
        )
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ShapeError(f"tensor: the nested lists have no common shape ({error})") from None
    if not isinstance(data, np.ndarray) and kinds and all(issubclass(kind, _WHOLE) for kind in kinds):
        array = _kept_whole(data, array, None if dtype is None else as_dtype(dtype))
    if dtype is not None:
        return Tensor.adopt(_converted(array, as_dtype(dtype)), device)
    if not isinstance(data, (np.ndarray, np.generic)):
        array = _converted(array, _default_dtype(array))
    return Tensor.from_numpy(array, device)


def _leaf_types(parts: Sequence[Any], depth: int = 0) -> set[type]:
    """The types of what nested sequences hold in the end; of an array that of its elements."""
    kinds = set(map(type, parts))
    nested = {kind for kind in kinds if issubclass(kind, Sequence) and not issubclass(kind, _FLAT)}
    leaves = kinds - nested - {np.ndarray}
    if len(leaves) < len(kinds) and depth < 65:  # deeper ones NumPy refuses, and so those that hold themselves
        for part in parts:
            if isinstance(part, np.ndarray):
                leaves.add(part.dtype.type)
            elif type(part) in nested:
                leaves |= _leaf_types(part, depth + 1)
    return leaves


def _kept_whole(data: Any, array: NDArray[Any], dtype: DType | None) -> NDArray[Any]:
    """Integers as integers, where NumPy made floats or objects of them because no dtype of its own holds them all.

    Raises:
        DTypeError: they do not fit.
    """
    if array.size == 0 or array.dtype in INTS or array.dtype == BOOL:
        return array
    whole = np.array(data, dtype=object)
    of = INT64 if dtype is None or dtype == BOOL else dtype
    low, high = int(whole.min()), int(whole.max())
    limits = np.finfo(FLOAT64) if of in FLOATS else np.iinfo(of)
    if not int(limits.min) <= low <= high <= int(limits.max):
        raise DTypeError(f"tensor: the integers from {low} to {high} do not fit {of}; give a dtype that holds them")
    return whole.astype(FLOAT64 if of in FLOATS else of)


def _default_dtype(array: NDArray[Any]) -> DType:
    """float32, int64 or bool, by what nested lists of numbers hold."""
    if array.size == 0 and array.dtype == np.float64:
        return FLOAT32
    return {"float": FLOAT32, "int": INT64, "bool": BOOL}[kind_of(as_dtype(array.dtype))]


def _converted(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """A copy in another dtype; only a conversion that keeps the kind of the numbers, or makes integers floats."""
    source = as_dtype(array.dtype)
    order = ("bool", "int", "float")
    if array.size and order.index(kind_of(source)) > order.index(kind_of(dtype)):
        raise DTypeError(f"tensor: {source} numbers do not become {dtype} silently; convert them, or use cast")
    if dtype in INTS and source in INTS and array.size:
        limits = np.iinfo(dtype)
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise DTypeError(f"tensor: numbers from {low} to {high} do not fit {dtype}")
    return cast_array(np, array, dtype)
