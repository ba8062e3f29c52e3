"""Where in a file of PyTorch things lie: the records of a zip archive, or what follows the pickles of the old form.

Since 1.6 a file is a zip archive of records that are not compressed: the
pickle ``NAME/data.pkl``, and ``NAME/data/KEY`` for each storage. Before, it was
five pickles one behind the other, and the storages behind them.
"""

import io
import struct
import zipfile
from collections.abc import Iterator
from typing import Final, final

from records.burnpack.wire import Flaw
from records.shown import said, shown
from records.storage import Extent, Limits, Storage

_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")  # of a zip record: magic, lengths of its name and its extra field
_LOCAL_MAGIC: Final = b"PK\x03\x04"
_ENTRY_NBYTES: Final = 256  # of a zip directory, for each record, at most on average


@final
class Window(io.RawIOBase):
    """The first `end` bytes of a file as a stream; one read gives no more than `max_read` bytes."""

    def __init__(self, storage: Storage, end: int, max_read: int) -> None:
        self._view = storage.view("its structure")
        self._position = 0
        self._end = min(end, storage.nbytes)
        self._max_read = max_read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0, /) -> int:
        base = {0: 0, 1: self._position, 2: self._end}[whence]
        if base + offset < 0:
            raise OSError(f"no offset {base + offset}")
        self._position = base + offset
        return self._position

    def read(self, count: int | None = -1, /) -> bytes:
        left = max(0, self._end - self._position)
        count = left if count is None or count < 0 else min(count, left)
        if count > self._max_read:
            raise Flaw(f"offset {self._position}: {count} bytes at once, the limit is {self._max_read}")
        data = bytes(self._view[self._position : self._position + count])
        self._position += len(data)
        return data

    def readline(self, size: int | None = -1, /) -> bytes:
        """The bytes up to the next line feed."""
        parts: list[bytes] = []
        while part := self.read(min(256, max(0, self._end - self._position))):
            line, feed, rest = part.partition(b"\n")
            parts += [line, feed]
            if feed:
                self._position -= len(rest)
                break
        return b"".join(parts)


@final
class Archive:
    """The records of a zip archive that PyTorch wrote.

    Args:
        storage: the file.
        limits: `max_tensors` and `max_metadata_bytes` bound its directory.

    Raises:
        Flaw: it is no such archive.
    """

    def __init__(self, storage: Storage, limits: Limits) -> None:
        self._storage = storage
        most = min(limits.max_metadata_bytes, _ENTRY_NBYTES * (limits.max_tensors + 64))
        window = Window(storage, storage.nbytes, max(most, 2**17))
        try:
            with zipfile.ZipFile(window) as opened:
                infos = opened.infolist()
        except (zipfile.BadZipFile, ValueError, OSError, struct.error, NotImplementedError, OverflowError) as error:
            raise Flaw(f"no file of PyTorch: damaged zip archive: {said(error)}") from None
        self._infos = {info.filename: info for info in infos}
        if len(self._infos) < len(infos):
            raise Flaw("the zip archive has two records of one name")
        pickles = [name for name in self._infos if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1:
            raise Flaw(f"a zip archive with {len(pickles)} records NAME/data.pkl; a file of PyTorch has one")
        self._folder = pickles[0].removesuffix("data.pkl")
        self._check_byte_order()

    def _check_byte_order(self) -> None:
        if f"{self._folder}byteorder" in self._infos:
            order = self.record("byteorder")
            found = self._storage.read(order.start, min(order.end - order.start, 16))
            if found != b"little":
                raise Flaw(f"its byte order is {shown(found)}; only files of little-endian machines can be read")

    @property
    def pickle(self) -> Extent:
        """Where the pickle lies."""
        return self.record("data.pkl")

    def storage_of(self, key: str) -> Extent:
        """Where a storage lies."""
        return self.record(f"data/{key}")

    def record(self, name: str) -> Extent:
        """Where a record of the archive's folder lies.

        Raises:
            Flaw: it is missing, compressed, or not in the file.
        """
        info = self._infos.get(self._folder + name)
        if info is None:
            raise Flaw(f"the archive has no record {shown(self._folder + name)}")
        return self._place(info)

    def _place(self, info: zipfile.ZipInfo) -> Extent:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
            raise Flaw(f"record {shown(info.filename)} is compressed or encrypted, as PyTorch writes none")
        header = self._storage.read(info.header_offset, _LOCAL_HEADER.size) if info.header_offset >= 0 else b""
        if len(header) < _LOCAL_HEADER.size or not header.startswith(_LOCAL_MAGIC):
            raise Flaw(f"offset {info.header_offset}: record {shown(info.filename)} does not begin here")
        _, name_nbytes, extra_nbytes = _LOCAL_HEADER.unpack(header)
        start = info.header_offset + _LOCAL_HEADER.size + name_nbytes + extra_nbytes
        if start + info.file_size > self._storage.nbytes:
            raise Flaw(
                f"record {shown(info.filename)} ends at offset {start + info.file_size}, "
                f"the file at {self._storage.nbytes}"
            )
        return Extent(start, start + info.file_size)

    def checksums(self) -> Iterator[tuple[str, Extent, int | None]]:
        """Each record's name, place and CRC-32; None where PyTorch was told to compute none."""
        for name, info in self._infos.items():
            yield name, self._place(info), info.CRC if info.CRC or not info.file_size else None
