"""What a file holds, and what libraries say about it, as a message shows it: cut short, since it may be anything."""

import reprlib
from typing import Any, Final

_MAX_LENGTH: Final = 400
_REPR: Final = reprlib.Repr()
_REPR.maxstring, _REPR.maxother, _REPR.maxlist, _REPR.maxlevel = 200, 80, 16, 3


def shown(value: Any) -> str:
    """The repr of what a file holds."""
    return _cut(_REPR.repr(value))


def said(error: BaseException) -> str:
    """What an error of a library says, which may quote the file."""
    return _cut(str(error))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
