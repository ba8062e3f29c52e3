"""Element types as a burnpack file names them (R68 to R70, R74), and what they are in memory."""

import reprlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from engine.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, DType
from records.entry import ForeignDType

_REPR: Final = reprlib.Repr()
_REPR.maxstring, _REPR.maxother = 200, 80


def shown(value: Any) -> str:
    """The repr of what a file holds, cut short where it is long."""
    return _REPR.repr(value)


class Flaw(Exception):
    """What is wrong with a file; whoever knows its name makes an error of it."""


class Wire(NamedTuple):
    """A plain element type: what the CBOR says, what the bytes are, what a tensor of it has."""

    cbor: str | dict[str, str]
    stored: DType
    loaded: DType


WireType: TypeAlias = Wire | ForeignDType


def _plain(name: str, dtype: DType) -> Wire:
    return Wire(name, dtype, dtype)


_PLAIN: Final = {
    "F64": _plain("F64", FLOAT64),
    "F32": _plain("F32", FLOAT32),
    "Flex32": _plain("Flex32", FLOAT32),  # stored as float32
    "F16": _plain("F16", FLOAT16),
    "BF16": _plain("BF16", BFLOAT16),
    **{f"I{bits}": _plain(f"I{bits}", np.dtype(f"int{bits}")) for bits in (64, 32, 16, 8)},
    **{f"U{bits}": _plain(f"U{bits}", np.dtype(f"uint{bits}")) for bits in (64, 32, 16, 8)},
}
_BOOLS: Final = {
    "Native": Wire({"Bool": "Native"}, np.dtype(np.uint8), BOOL),
    "U8": Wire({"Bool": "U8"}, np.dtype(np.uint8), BOOL),
    "U32": Wire({"Bool": "U32"}, np.dtype(np.uint32), BOOL),
}
_OF_DTYPE: Final = {wire.loaded: wire for name, wire in _PLAIN.items() if name != "Flex32"} | {BOOL: _BOOLS["Native"]}


def wire_of(dtype: DType | ForeignDType) -> Wire:
    """How a dtype is written.

    Raises:
        Flaw: burnpack has no name for it.
    """
    wire = None if isinstance(dtype, ForeignDType) else _OF_DTYPE.get(dtype)
    if wire is None:
        raise Flaw(f"a burnpack file has no dtype {dtype}")
    return wire


def decoded_wire(value: Any) -> WireType:
    """The element type that a descriptor's `dtype` names.

    Raises:
        Flaw: there is no such type, or it is written in another way.
    """
    if value == "Bool":  # Burn up to 0.20 (R74)
        return _BOOLS["Native"]
    if isinstance(value, str):
        if value not in _PLAIN:
            raise Flaw(f"dtype {shown(value)} is unknown; there are {', '.join(_PLAIN)}, Bool and QFloat")
        return _PLAIN[value]
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, detail),) = value.items()
        if name == "Bool":
            if not isinstance(detail, str) or detail not in _BOOLS:
                raise Flaw(f"the booleans are stored as {shown(detail)}; there are {', '.join(_BOOLS)}")
            return _BOOLS[detail]
        if name == "QFloat" and isinstance(detail, Mapping):
            return ForeignDType(f"QFloat({shown(detail.get('value'))})")
    raise Flaw(f"dtype {shown(value)} is neither a name nor a map of Bool or QFloat")
