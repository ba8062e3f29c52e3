"""How layers read their settings: each is checked here once, and refused with one message that names it."""

import operator
from math import isfinite
from typing import Any

from engine import as_dtype
from engine.dtype import FLOATS, DType
from modules.errors import ModuleError


def size(layer: str, name: str, value: Any) -> int:
    """A number of features, heads or rows.

    Raises:
        ModuleError: it is no integer of 1 or more.
    """
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ModuleError(f"{layer}: {name} is {value!r}; it must be an integer of 1 or more")
    return number


def positive(layer: str, name: str, value: Any) -> float:
    """A finite number above 0.

    Raises:
        ModuleError: it is none.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not isfinite(value) or value <= 0:
        raise ModuleError(f"{layer}: {name} is {value!r}; it must be a finite number above 0")
    return float(value)


def fraction(layer: str, name: str, value: Any, below_one: bool = False) -> float:
    """A number from 0 to 1.

    Raises:
        ModuleError: it is none, or it is 1 and must lie below.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1 or (below_one and value == 1):
        end = "below 1" if below_one else "1"
        raise ModuleError(f"{layer}: {name} is {value!r}; it must be a number from 0 to {end}")
    return float(value)


def pair(layer: str, name: str, value: Any, least: int) -> tuple[int, int]:
    """Two integers, for height and width, given as two or as one for both.

    Raises:
        ModuleError: they are none, or one is below `least`.
    """
    try:
        both = tuple(operator.index(one) for one in (value if isinstance(value, (tuple, list)) else (value, value)))
    except TypeError:
        both = ()
    if len(both) != 2 or min(both) < least:
        raise ModuleError(f"{layer}: {name} is {value!r}; it must be one or two integers of {least} or more")
    return both[0], both[1]


def one_of(layer: str, name: str, value: Any, choices: tuple[str, ...]) -> Any:
    """A choice by name.

    Raises:
        ModuleError: there is no such choice.
    """
    if value not in choices:
        raise ModuleError(f"{layer}: {name} is {value!r}; there are {', '.join(map(repr, choices))}")
    return value


def divisible(layer: str, name: str, value: int, by: str, divisor: int) -> None:
    """Refuse a size that another one does not divide.

    Raises:
        ModuleError: it does not.
    """
    if value % divisor:
        raise ModuleError(f"{layer}: {name} is {value}, which {by}, {divisor}, does not divide")


def float_dtype(layer: str, dtype: Any) -> DType:
    """The dtype of a layer's parameters.

    Raises:
        DTypeError: there is no such dtype.
        ModuleError: it is no float dtype.
    """
    of = as_dtype(dtype)
    if of not in FLOATS:
        raise ModuleError(f"{layer}: dtype is {of}; its parameters are floats: {', '.join(sorted(map(str, FLOATS)))}")
    return of
