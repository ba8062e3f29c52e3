"""Settings of optimizers: attributes that may be assigned between steps, each checked when it is given."""

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar, final, overload

from modules.errors import ModuleError

T = TypeVar("T")

Values: TypeAlias = Mapping[str, Any]
"""The value of each setting of an optimizer, by name."""


class Configured(Protocol):
    """What has settings."""

    _settings: Values

    def _configure(self, changes: Values) -> None:
        """Take over new values of settings, or raise and keep the old ones."""
        ...


@final
class Setting(Generic[T]):
    """A setting of an optimizer, an attribute of its class.

    Args:
        check: ``check(what, value)`` gives the value to keep, or raises a `ModuleError` that begins with `what`.
    """

    def __init__(self, check: Callable[[str, Any], T]) -> None:
        self.check: Final = check
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, optimizer: None, owner: type) -> Self: ...
    @overload
    def __get__(self, optimizer: Configured, owner: type) -> T: ...
    def __get__(self, optimizer: Configured | None, owner: type) -> Self | T:
        return self if optimizer is None else optimizer._settings[self._name]

    def __set__(self, optimizer: Configured, value: T) -> None:
        optimizer._configure({self._name: value})


def number(what: str, value: Any) -> float:
    """A finite number of 0 or more.

    Raises:
        ModuleError: it is none.
    """
    found = _finite(value)
    if found is None or found < 0:
        raise ModuleError(f"{what} is {value!r}; it must be a finite number of 0 or more")
    return found


def above_zero(what: str, value: Any) -> float:
    """A finite number above 0.

    Raises:
        ModuleError: it is none.
    """
    found = _finite(value)
    if found is None or found <= 0:
        raise ModuleError(f"{what} is {value!r}; it must be a finite number above 0")
    return found


def truth(what: str, value: Any) -> bool:
    """True or False.

    Raises:
        ModuleError: it is neither.
    """
    if not isinstance(value, bool):
        raise ModuleError(f"{what} is {value!r}; it must be True or False")
    return value


def betas(what: str, value: Any) -> tuple[float, float]:
    """Two numbers from 0 up to, without, 1.

    Raises:
        ModuleError: they are none.
    """
    found = [_finite(one) for one in value] if isinstance(value, (tuple, list)) else []
    match found:
        case [float(first), float(second)] if 0 <= first < 1 and 0 <= second < 1:
            return first, second
    raise ModuleError(f"{what} is {value!r}; it must be two numbers from 0 up to, without, 1")


def _finite(value: Any) -> float | None:
    """A real number that is finite, as a float; None for anything else."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
