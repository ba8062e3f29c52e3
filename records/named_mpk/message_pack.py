"""From MessagePack to a tree. The library `msgpack` does the parsing, value by value.

What it would make an object of each byte or number of is stepped over: a
binary, and an array of floats or truth values, whose places follow from its
length. Every count in the file is met by bytes that are there before anything
is made of it; depth, number of values and length of texts have limits.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final, NoReturn, final

import msgpack
import numpy as np
from numpy.typing import NDArray

from records.burnpack.wire import Flaw
from records.shown import said, shown
from records.storage import Limits

from .tree import Blob, Numbers, Store, Tree

MAX_DEPTH: Final = 256  # of any limit given, since the walks over a tree call themselves

_FIRST_READ: Final = 2**12
_READ: Final = 2**18
_CHUNK: Final = 2**16  # numbers looked at together
_VALUES_PER_TENSOR: Final = 20  # fields without state, containers: what a file may have besides tensors
_WIDTHS: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}  # bytes of a binary's length, by its first byte
_FLOATS: Final = {
    0xCA: np.dtype([("head", "u1"), ("number", ">f4")]),
    0xCB: np.dtype([("head", "u1"), ("number", ">f8")]),
}


def _kind(head: int) -> str:
    """What begins with a byte."""
    for kind, heads in {
        "nil": (0xC0,), "bool": (0xC2, 0xC3), "float": (0xCA, 0xCB), "blob": _WIDTHS,
        "int": (*range(0x80), *range(0xE0, 0x100), *range(0xCC, 0xD4)),
        "text": (*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB),
        "array": (*range(0x90, 0xA0), 0xDC, 0xDD),
        "map": (*range(0x80, 0x90), 0xDE, 0xDF),
    }.items():  # fmt: skip
        if head in heads:
            return kind
    return "extension"


_KINDS: Final = tuple(_kind(head) for head in range(256))


def read_message_pack(store: Store, limits: Limits) -> Tree:
    """The one value that the bytes are.

    Raises:
        Flaw: they are none, more than one, or beyond a limit.
    """
    return _Walk(store, limits).whole()


@final
class _Cursor:
    """A place in the bytes, and the library's parser for what comes there."""

    def __init__(self, store: Store, limits: Limits, offset: int = 0) -> None:
        self._store = store
        self._limits = limits
        self._go_to(offset)

    def _go_to(self, offset: int) -> None:
        self._base = self._fed = offset
        self._tail = b""
        self._reading = _FIRST_READ
        longest = self._limits.max_metadata_bytes
        self._unpacker: Any = msgpack.Unpacker(
            raw=False,
            read_size=_FIRST_READ,
            max_buffer_size=longest + 2 * _READ,
            max_str_len=longest,
            max_array_len=0,  # containers are entered one by one, never made as a whole
            max_map_len=0,
            max_ext_len=0,
        )

    @property
    def at(self) -> int:
        """Offset of the next value."""
        return self._base + self._unpacker.tell()

    def fail(self, what: str) -> NoReturn:
        raise Flaw(f"offset {self.at}: {what}")

    def _feed(self) -> None:
        data = self._store.read(self._fed, self._reading)
        if not data:
            raise Flaw(f"offset {self._fed}: the bytes end inside a value")
        self._unpacker.feed(data)
        self._tail = self._tail[-8:] + data
        self._fed += len(data)
        self._reading = min(2 * self._reading, _READ)

    def _parsed(self, parse: Callable[[], Any]) -> Any:
        while True:
            try:
                return parse()
            except msgpack.OutOfData:
                self._feed()
            except (msgpack.UnpackException, ValueError) as error:
                self.fail(f"no MessagePack value that a record has: {said(error)}")

    def head(self) -> int:
        """The first byte of the next value."""
        at = self.at
        if at == self._fed:
            self._feed()
        return self._tail[at - self._fed]

    def value(self) -> Any:
        """The next value, no container."""
        return self._parsed(self._unpacker.unpack)

    def map_length(self) -> int:
        """How many pairs come next."""
        return self._parsed(self._unpacker.read_map_header)

    def array_length(self) -> int:
        """How many values come next."""
        return self._parsed(self._unpacker.read_array_header)

    def blob(self) -> Blob:
        """The binary that comes next; it is not read, only its length."""
        head, at = self.head(), self.at
        start = at + 1 + _WIDTHS[head]
        while self._fed < start:
            self._feed()
        first = len(self._tail) - (self._fed - at) + 1
        nbytes = int.from_bytes(self._tail[first : first + _WIDTHS[head]], "big")
        self._skip(start + nbytes, "a binary")
        return Blob(self._store, start, nbytes)

    def _skip(self, end: int, what: str) -> None:
        """Go to the end of a value, which must be there."""
        if end > self._fed and not self._store.reaches(end):
            self.fail(f"{what} ends at offset {end}, behind the end of the bytes")
        self._go_to(end)

    def numbers(self, count: int) -> Numbers:
        """That many numbers of one form, or truth values."""
        head, at = self.head(), self.at
        if head in _FLOATS:
            return self._floats(head, at, count)
        if head in (0xC2, 0xC3):
            return self._bools(at, count)
        low = high = self.value()
        for chunk in self._integers(count - 1):
            low, high = min(low, min(chunk)), max(high, max(chunk))
        if low < -(2**63) or high >= 2**63:
            self.fail(f"integers from {low} to {high}, which 64 bits with a sign do not hold")

        def read() -> NDArray[Any]:
            made = np.empty(count, np.int64)
            filled = 0
            for chunk in _Cursor(self._store, self._limits, at)._integers(count):
                made[filled : filled + len(chunk)] = chunk
                filled += len(chunk)
            return made

        return Numbers("int", count, low, high, read)

    def _integers(self, count: int) -> Any:
        """That many integers, in lists."""
        while count:
            chunk: list[Any] = []
            try:
                chunk = list(islice(self._unpacker, min(count, _CHUNK)))
            except (msgpack.UnpackException, ValueError) as error:
                self.fail(f"no MessagePack integer: {said(error)}")
            if not chunk:
                self._feed()
                continue
            if set(map(type, chunk)) != {int}:
                self.fail("an array of integers holds something else too")
            count -= len(chunk)
            yield chunk

    def _floats(self, head: int, at: int, count: int) -> Numbers:
        dtype = _FLOATS[head]
        for first, items in self._items(dtype, at, count):
            if (items["head"] != head).any():
                raise Flaw(f"offset {at + first * dtype.itemsize}: an array of floats holds something else too")
        store = self._store

        def read() -> NDArray[Any]:
            number = dtype["number"].newbyteorder("=")
            made = np.empty(count, number)
            for first in range(0, count, _CHUNK):
                length = min(_CHUNK, count - first)
                items = store.array("an array", at + first * dtype.itemsize, dtype, (length,))
                made[first : first + length] = items["number"]
            return made

        return Numbers("float32" if head == 0xCA else "float64", count, 0, 0, read)

    def _bools(self, at: int, count: int) -> Numbers:
        byte = np.dtype(np.uint8)
        for first, items in self._items(byte, at, count):
            if ((items != 0xC2) & (items != 0xC3)).any():
                raise Flaw(f"offset {at + first}: an array of truth values holds something else too")
        store = self._store
        return Numbers("bool", count, 0, 0, lambda: store.array("an array", at, byte, (count,)) == 0xC3)

    def _items(self, dtype: Any, at: int, count: int) -> Any:
        """Items of one length, in chunks, with the number of the first of each; afterwards the cursor is behind."""
        for first in range(0, count, _CHUNK):
            length = min(_CHUNK, count - first)
            start = at + first * dtype.itemsize
            if not self._store.reaches(start + length * dtype.itemsize):
                raise Flaw(f"offset {start}: an array of {count} items ends behind the end of the bytes")
            yield first, self._store.array("an array", start, dtype, (length,))
        self._go_to(at + count * dtype.itemsize)


@final
class _Walk:
    """The tree, from the top down; it knows the keys on the way to where it is."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._cursor = _Cursor(store, limits)
        self._max_depth = min(limits.max_depth, MAX_DEPTH)
        self._values_left = _VALUES_PER_TENSOR * limits.max_tensors + 100
        self._text_left = limits.max_metadata_bytes
        self._keys: list[str] = []

    def whole(self) -> Tree:
        try:
            tree = self._value(0)
        except Flaw as flaw:
            raise Flaw(f"at {shown('.'.join(self._keys))}: {flaw}" if self._keys else str(flaw)) from None
        if self._store.reaches(self._cursor.at + 1):
            self._cursor.fail("bytes are left after the value")
        return tree

    def _value(self, depth: int) -> Tree:
        self._values_left -= 1
        if self._values_left < 0:
            self._cursor.fail("more values than a record of the most tensors has; give max_tensors to raise it")
        kind = _KINDS[self._cursor.head()]
        if kind == "map":
            return self._map(depth + 1)
        if kind == "array":
            return self._array(depth + 1)
        if kind == "blob":
            return self._cursor.blob()
        if kind == "text":
            return self._text()
        if kind == "extension":
            self._cursor.fail("an extension type, which no record has")
        if self._cursor.head() == 0xCA:
            return np.float32(self._cursor.value())
        return self._cursor.value()

    def _text(self) -> str:
        text = self._cursor.value()
        self._text_left -= len(text)
        if self._text_left < 0:
            self._cursor.fail("more text than the limit; give max_metadata_bytes to raise it")
        return text

    def _check_depth(self, depth: int) -> None:
        if depth > self._max_depth:
            self._cursor.fail(f"values nest deeper than {self._max_depth}; max_depth is the limit, at most {MAX_DEPTH}")

    def _map(self, depth: int) -> dict[str, Tree]:
        self._check_depth(depth)
        made: dict[str, Tree] = {}
        for _ in range(self._cursor.map_length()):
            if _KINDS[self._cursor.head()] != "text":
                self._cursor.fail("a key is no text")
            key = self._text()
            if key in made:
                self._cursor.fail(f"the key {shown(key)} is there twice")
            self._keys.append(key)
            made[key] = self._value(depth)
            self._keys.pop()
        return made

    def _array(self, depth: int) -> list[Tree] | Numbers:
        self._check_depth(depth)
        length = self._cursor.array_length()
        if length and _KINDS[self._cursor.head()] in ("int", "float", "bool"):
            return self._cursor.numbers(length)
        made: list[Tree] = []
        for index in range(length):
            self._keys.append(str(index))
            made.append(self._value(depth))
            self._keys.pop()
        return made
