"""The two SHA-256 digests that a burnpack file of ours carries in its metadata (D1).

`HEADER_KEY` is the digest of everything in front of the data section, with the
hexadecimal digits of both digests replaced by ``0``; `DATA_KEY` that of
everything from the data section on. Burn ignores both.
"""

import hashlib
import queue
import re
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from records.shown import shown

from .wire import Flaw

HEADER_KEY: Final = "layerloom.header"
DATA_KEY: Final = "layerloom.data"
BLANK: Final = "0" * 64

_DIGITS: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_IN_CBOR: Final = re.compile(rb"(?:\x70layerloom\.header|\x6elayerloom\.data)\x78\x40[0-9a-f]{64}")
_PIECES_WAITING: Final = 2


def claimed(texts: Mapping[str, str], raw: bytes) -> tuple[str, str] | None:
    """The digests of header and data that a file's metadata claims; None where it has neither.

    Args:
        texts: the metadata map.
        raw: the whole CBOR value.

    Raises:
        Flaw: one is there without the other, in another form, or not in the metadata map.
    """
    header, data = texts.get(HEADER_KEY), texts.get(DATA_KEY)
    if header is None and data is None:
        if _IN_CBOR.search(raw):  # as after one flipped bit in the key "metadata", which R93 would ignore
            raise Flaw("there are digests, but not in the metadata map")
        return None
    if header is None or data is None:
        raise Flaw(f"of the digests {HEADER_KEY} and {DATA_KEY} only one is there")
    for digits in (header, data):
        if _DIGITS.fullmatch(digits) is None:
            raise Flaw(f"{shown(digits)} is no SHA-256 digest")
    return header, data


def header_digest(header: bytes, digits: tuple[str, str]) -> tuple[str, tuple[int, int]]:
    """The digest of a header, and where in it the digits of both digests begin.

    Args:
        header: the bytes in front of the data section.
        digits: of the header's digest and of the data's, as they stand in it.

    Raises:
        Flaw: they do not stand in it exactly once, as texts behind their keys.
    """
    blanked, places = bytearray(header), []
    for key, value in zip((HEADER_KEY, DATA_KEY), digits, strict=True):
        pattern = bytes([0x60 + len(key)]) + key.encode() + b"\x78\x40" + value.encode()
        if header.count(pattern) != 1:
            raise Flaw(f"the digest {key} stands {header.count(pattern)} times in the header")
        place = header.index(pattern) + len(pattern) - len(value)
        blanked[place : place + len(value)] = BLANK.encode()
        places.append(place)
    return hashlib.sha256(blanked).hexdigest(), (places[0], places[1])


class DataDigest:
    """The SHA-256 of pieces that are fed one after the other, computed in a second thread.

    Leaving the ``with`` ends the thread; `hexdigest` waits for what was fed.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._pieces: queue.Queue[Any] = queue.Queue(_PIECES_WAITING)
        self._thread = threading.Thread(target=self._work, name="layerloom-digest", daemon=True)

    def _work(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self._hash.update(piece)
            del piece  # whose tensor would stay in memory until there is another
            self._pieces.task_done()

    def feed(self, piece: Any) -> None:
        """Add bytes that nobody will write to. Waits while the thread is behind."""
        self._pieces.put(piece)

    def settle(self) -> None:
        """Wait until nothing that was fed is held any more."""
        self._pieces.join()

    def hexdigest(self) -> str:
        """The digest of all that was fed; nothing can be fed after it."""
        self._end()
        return self._hash.hexdigest()

    def _end(self) -> None:
        if self._thread.is_alive():
            self._pieces.put(None)
            self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
