"""Flags: booleans that a module owns, with an id and a path, so that groups can select them."""

from collections.abc import Callable
from typing import Any, Self, final

from records import ParamId


@final
class Flag:
    """A boolean with an id, such as a layer's ``training`` (M64). It has no device, no gradient, and is in no record.

    Args:
        value: its value, now and as configured.
        id: by default a fresh one.
    """

    __slots__ = ("__weakref__", "_configured", "_enabled", "_id")

    def __init__(self, value: bool, id: ParamId | int | None = None) -> None:
        self._id = ParamId.new() if id is None else ParamId(id)
        self._enabled = bool(value)
        self._configured = bool(value)

    @property
    def id(self) -> ParamId:
        """Its identity."""
        return self._id

    @property
    def is_enabled(self) -> bool:
        """Its value now (M65)."""
        return self._enabled

    @property
    def configured(self) -> bool:
        """The value that `Module.train` gives it back (M65)."""
        return self._configured

    def with_value(self, value: bool) -> Self:
        """The flag with another value, now and as configured (M65)."""
        return type(self)(value, self._id)

    def map(self, f: Callable[[bool], bool]) -> Self:
        """The flag with ``f(value)`` as its value now; what is configured stays (M65)."""
        made = type(self)(self._configured, self._id)
        made._enabled = bool(f(self._enabled))
        return made

    def with_id(self, id: ParamId | int) -> Self:
        """The flag under another id."""
        made = type(self)(self._configured, id)
        made._enabled = self._enabled
        return made

    def __repr__(self) -> str:
        return "enabled" if self._enabled else "disabled"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a Flag is not pickled; a module is built anew and loads its record")
