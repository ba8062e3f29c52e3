"""Ids of parameters: 64 random bits, written as 13 characters of base32."""

import base64
import re
import secrets
from typing import Final, Self, final

from .errors import RecordFormatError
from .shown import shown

_TEXT: Final = re.compile(r"[0-9a-vA-V]*", re.ASCII)
_NBYTES_OF_LENGTH: Final = {0: 0, 2: 1, 4: 2, 5: 3, 7: 4, 8: 5, 10: 6, 12: 7, 13: 8}  # base32 without padding


@final
class ParamId(int):
    """An unsigned 64-bit number that stays with a parameter: ``int(i)`` is the number, ``str(i)`` its text (M22).

    Args:
        value: from 0 to 2**64 - 1.

    Raises:
        RecordFormatError: `value` is no integer of that range.
    """

    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
            raise RecordFormatError(f"{shown(value)} is no parameter id; ids are integers from 0 to 2**64 - 1")
        return super().__new__(cls, value)

    @classmethod
    def new(cls) -> Self:
        """A fresh id. The system's entropy decides it, so no seed, thread or fork ever repeats one."""
        return cls(secrets.randbits(64))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The id that a text means: 13 characters, or fewer for 0 to 7 bytes, which zero bytes fill up.

        Raises:
            RecordFormatError: other characters or lengths, filling bits that are not zero, or a UUID.

        Source: M22; UUIDs, which Burn hashes, have no 64-bit value (N7).
        """
        nbytes = _NBYTES_OF_LENGTH.get(len(text))
        if nbytes is None or _TEXT.fullmatch(text) is None:
            raise RecordFormatError(f"{shown(text)} is no parameter id; ids are 13 characters of 0-9 and a-v")
        data = base64.b32hexdecode(text + "=" * (-len(text) % 8), casefold=True)
        if _encoded(data) != text.lower():
            raise RecordFormatError(f"{shown(text)} is no parameter id; bits beyond its {nbytes} bytes are set")
        return cls(int.from_bytes(data, "little"))

    def __str__(self) -> str:
        return _encoded(self.to_bytes(8, "little"))

    def __repr__(self) -> str:
        return f"ParamId({int(self)})"

    def __reduce__(self) -> tuple[type["ParamId"], tuple[int]]:
        return ParamId, (int(self),)


def _encoded(data: bytes) -> str:
    return base64.b32hexencode(data).decode().rstrip("=").lower()
