"""How results are compared with what float64 says they should be."""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine import Tensor


def exact(x: Tensor) -> NDArray[Any]:
    """The values of a tensor on a CPU device as float64, which holds them all but large integers."""
    return np.asarray(x.numpy().astype(np.float64))


def eps(dtype: Any) -> float:
    """Distance of 1 to the next number of a float dtype."""
    return float(ml_dtypes.finfo(dtype).eps)


def assert_within(
    result: Tensor, expected: ArrayLike, dtype: Any, *, ulps: float = 1.0, scale: ArrayLike = 0.0, tiny: float = 0.0
) -> None:
    """`result` has this dtype, the shape of `expected`, and its values within `ulps` · eps · max(|expected|, scale).

    NaNs and infinities are in the same places; what the dtype cannot hold is
    infinite. Where a number is subnormal its spacing is allowed instead.
    """
    wanted = np.asarray(expected, dtype=np.float64)
    assert result.dtype == dtype
    assert result.shape == wanted.shape
    info = ml_dtypes.finfo(dtype)
    found, largest = exact(result), float(info.max) * (1 + float(info.eps) / 4)
    wanted = np.where(np.abs(wanted) > largest, np.copysign(np.inf, wanted), wanted)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~finite], wanted[~finite])
    sizes = np.maximum(np.abs(wanted), scale)[finite]
    allowed = ulps * np.maximum(float(info.eps) * sizes, float(info.smallest_subnormal))
    over = np.abs(found[finite] - wanted[finite]) > allowed + tiny
    assert not over.any(), (
        f"{over.sum()} of {over.size} differ: {found[finite][over][:5]}, not {wanted[finite][over][:5]}"
    )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bytes, NaNs included."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def is_dense(array: NDArray[Any]) -> bool:
    """Whether an array's memory has no gaps: its elements lie on the first `size` places from its lowest address."""
    if array.size == 0:
        return True
    places = np.zeros(array.shape, dtype=np.int64)
    for axis, stride in enumerate(array.strides):
        steps = np.arange(array.shape[axis]) * stride
        places += steps.reshape(-1, *(1,) * (array.ndim - axis - 1))
    return sorted(places.ravel().tolist()) == [place * array.itemsize for place in range(array.size)]
