"""The element types a tensor can have, and the three kinds they fall into.

A *kind* is ``float``, ``int`` or ``bool``: it decides which hook a parameter
is shown to, and whether it can have a gradient. bfloat16 comes from
ml-dtypes; NumPy counts it as kind ``V``, so nothing here or elsewhere asks
``dtype.kind``.
"""

from typing import Any, Final, Literal, TypeAlias

import ml_dtypes
import numpy as np

from .errors import DTypeError

Kind: TypeAlias = Literal["float", "int", "bool"]
DType: TypeAlias = np.dtype[Any]

FLOAT16: Final = np.dtype(np.float16)
FLOAT32: Final = np.dtype(np.float32)
FLOAT64: Final = np.dtype(np.float64)
BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
INT64: Final = np.dtype(np.int64)
BOOL: Final = np.dtype(np.bool_)

FLOATS: Final = frozenset({FLOAT64, FLOAT32, FLOAT16, BFLOAT16})
INTS: Final = frozenset(
    np.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
)
DTYPES: Final = FLOATS | INTS | {BOOL}
HALVES: Final = frozenset({FLOAT16, BFLOAT16})  # products and reductions of these compute in float32

_KINDS: Final[dict[DType, Kind]] = {
    **dict.fromkeys(FLOATS, "float"),
    **dict.fromkeys(INTS, "int"),
    BOOL: "bool",
}
_ONE: Final[dict[DType, DType]] = {dtype: dtype for dtype in DTYPES}  # NumPy has two int64 that differ in nothing


def as_dtype(spec: Any) -> DType:
    """The NumPy dtype that `spec` names, in the machine's byte order: of equal dtypes always the same object.

    Args:
        spec: whatever ``numpy.dtype()`` takes, ``"bfloat16"`` included.

    Raises:
        DTypeError: NumPy does not know it, or a tensor cannot have it.
    """
    try:
        dtype = np.dtype(spec)
    except (TypeError, ValueError, SyntaxError) as error:
        raise DTypeError(f"{spec!r} is no dtype ({error})") from None
    dtype = _ONE.get(dtype.newbyteorder("="))
    if spec is None or dtype is None:
        raise DTypeError(f"a tensor cannot have dtype {spec!r}; it can have {', '.join(sorted(map(str, DTYPES)))}")
    return dtype


def kind_of(dtype: Any) -> Kind:
    """``"float"``, ``"int"`` or ``"bool"``; the scheme of a quantized tensor counts as float (R17)."""
    return _KINDS[dtype] if isinstance(dtype, np.dtype) else "float"
