"""Element types as a burnpack file names them (R68, R69, R74), and what they are in memory; schemes are beside it."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from engine import QuantScheme, ShapeError
from engine.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, DType
from records.entry import EntryDType, StoredForm, nbytes_of
from records.shown import shown


class Flaw(Exception):
    """What is wrong with a file; whoever knows its name makes an error of it."""


class Wire(NamedTuple):
    """A plain element type: what the CBOR says, what the bytes are, what a tensor of it has.

    `form` is what entries keep of it where the tensor's dtype does not tell.
    """

    cbor: str | dict[str, str]
    stored: DType
    loaded: DType
    form: StoredForm | None = None


WireType: TypeAlias = Wire | QuantScheme


def _plain(name: str, dtype: DType) -> Wire:
    return Wire(name, dtype, dtype)


_PLAIN: Final = {
    "F64": _plain("F64", FLOAT64),
    "F32": _plain("F32", FLOAT32),
    "Flex32": Wire("Flex32", FLOAT32, FLOAT32, "Flex32"),
    "F16": _plain("F16", FLOAT16),
    "BF16": _plain("BF16", BFLOAT16),
    **{f"I{bits}": _plain(f"I{bits}", np.dtype(f"int{bits}")) for bits in (64, 32, 16, 8)},
    **{f"U{bits}": _plain(f"U{bits}", np.dtype(f"uint{bits}")) for bits in (64, 32, 16, 8)},
}
_BOOLS: Final = {
    "Native": Wire({"Bool": "Native"}, np.dtype(np.uint8), BOOL),
    "U8": Wire({"Bool": "U8"}, np.dtype(np.uint8), BOOL, "Bool(U8)"),
    "U32": Wire({"Bool": "U32"}, np.dtype(np.uint32), BOOL, "Bool(U32)"),
}
_WIRES: Final = {(wire.loaded, wire.form): wire for wire in (*_PLAIN.values(), *_BOOLS.values())}


def wire_of(dtype: EntryDType, form: StoredForm | None) -> WireType:
    """How a dtype is written, in the form that an entry keeps.

    Raises:
        Flaw: burnpack has no name for it.
    """
    if isinstance(dtype, QuantScheme):
        return dtype
    wire = _WIRES.get((dtype, form))  # pyright: ignore[reportArgumentType, reportCallIssue]
    if wire is None:
        raise Flaw(f"a burnpack file has no dtype {dtype}{'' if form is None else f' in the form {form}'}")
    return wire


def stored_nbytes(wire: WireType, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor in a file.

    Raises:
        Flaw: the scheme is not for tensors of this shape (Q44).
    """
    if isinstance(wire, Wire):
        return nbytes_of(wire.stored, shape)
    try:
        return wire.nbytes(shape)
    except ShapeError as error:
        raise Flaw(str(error)) from None


def decoded_wire(value: Any) -> Wire:
    """The plain element type that a descriptor's `dtype` names.

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
    raise Flaw(f"dtype {shown(value)} is neither a name nor a map of Bool or QFloat")
