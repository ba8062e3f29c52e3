"""Scalars of a record: single numbers and truth values that travel with the tensors, each of one of four kinds."""

import struct
from typing import Any, Final, Literal, TypeAlias, final

import numpy as np

from .errors import RecordError, RecordFormatError
from .shown import shown

ScalarKind: TypeAlias = Literal["Int", "UInt", "Float", "Bool"]

_RANGES: Final = {"Int": (-(2**63), 2**63 - 1), "UInt": (0, 2**64 - 1)}


@final
class Scalar:
    """A number of one kind: ``int(s)``, ``float(s)`` and ``bool(s)`` convert on request (R64, R67).

    ``int`` takes ``Int`` and ``UInt``; ``float`` takes these and ``Float``;
    ``bool`` takes ``Bool`` alone. Equality is of kind and bits, so a NaN equals itself.

    Args:
        kind: ``"Int"`` (signed 64 bits), ``"UInt"`` (unsigned 64 bits), ``"Float"`` (double), ``"Bool"``.
        value: of that kind and in its range.

    Raises:
        RecordFormatError: it is not.
    """

    __slots__ = ("kind", "value")

    kind: ScalarKind
    value: int | float | bool

    def __init__(self, kind: ScalarKind, value: int | float | bool) -> None:
        if kind == "Bool":
            fits = type(value) is bool
        elif kind == "Float":
            fits = type(value) is float
        elif kind in _RANGES:
            low, high = _RANGES[kind]
            fits = type(value) is int and low <= value <= high
        else:
            raise RecordFormatError(f"{shown(kind)} is no kind of scalar; there are Int, UInt, Float and Bool")
        if not fits:
            raise RecordFormatError(f"{shown(value)} is no scalar of kind {kind}")
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "value", value)

    @classmethod
    def of(cls, value: Any) -> "Scalar":
        """The scalar of a Python or NumPy number; an integer is ``Int`` where it fits, and ``UInt`` above.

        Raises:
            RecordFormatError: no number, or an integer that 64 bits do not hold.
        """
        if isinstance(value, Scalar):
            return value
        if isinstance(value, (bool, np.bool_)):
            return cls("Bool", bool(value))
        if isinstance(value, (float, np.floating)):
            return cls("Float", float(value))
        if isinstance(value, np.unsignedinteger):
            return cls("UInt", int(value))
        if isinstance(value, (int, np.integer)):
            return cls("Int" if int(value) <= _RANGES["Int"][1] else "UInt", int(value))
        raise RecordFormatError(f"{shown(value)} is no scalar; a record takes integers, floats and booleans")

    def __int__(self) -> int:
        return int(self._converted("an integer", "Int", "UInt"))

    def __index__(self) -> int:
        return int(self)

    def __float__(self) -> float:
        return float(self._converted("a float", "Float", "Int", "UInt"))

    def __bool__(self) -> bool:
        return bool(self._converted("a truth value", "Bool"))

    def _converted(self, to: str, *kinds: ScalarKind) -> int | float | bool:
        if self.kind not in kinds:
            raise RecordError(f"{self!r} does not convert to {to}; only {', '.join(kinds)} does (R67)")
        return self.value

    def _bits(self) -> object:
        return struct.pack("<d", self.value) if self.kind == "Float" else self.value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scalar):
            return NotImplemented
        return (self.kind, self._bits()) == (other.kind, other._bits())

    def __hash__(self) -> int:
        return hash((self.kind, self._bits()))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Scalar is a value; {name} cannot be assigned")

    def __reduce__(self) -> tuple[type["Scalar"], tuple[ScalarKind, int | float | bool]]:
        return Scalar, (self.kind, self.value)

    def __repr__(self) -> str:
        return f"Scalar({self.kind!r}, {self.value!r})"
