"""Element types as PyTorch names them, and those of its storages."""

from typing import Final, NamedTuple

import numpy as np

from engine.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, DType


class ElementType(NamedTuple):
    """What PyTorch's name of a dtype means; `dtype` is None where no tensor of ours can have it."""

    name: str
    itemsize: int
    dtype: DType | None


_PLAIN: Final[dict[str, DType]] = {
    "float64": FLOAT64, "float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16, "bool": BOOL,
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (64, 32, 16, 8)},
}  # fmt: skip
_FOREIGN: Final = {
    "complex128": 16, "complex64": 8, "complex32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1,
}  # fmt: skip
_TYPED: Final = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
}  # fmt: skip

DTYPES: Final = {  # PyTorch's name -> what it means
    **{f"torch.{name}": ElementType(name, dtype.itemsize, dtype) for name, dtype in _PLAIN.items()},
    **{f"torch.{name}": ElementType(name, itemsize, None) for name, itemsize in _FOREIGN.items()},
}
STORAGES: Final[dict[str, ElementType | None]] = {  # name of a storage's type -> of its elements; None: bytes
    **{
        f"{module}.{prefix}Storage": DTYPES[f"torch.{name}"]
        for module in ("torch", "torch.cuda")
        for prefix, name in _TYPED.items()
    },
    "torch.UntypedStorage": None,
    "torch.storage.UntypedStorage": None,
    "torch.storage._UntypedStorage": None,
}
