"""What opening a file of PyTorch does not look at: the checksums of its archive."""

import zlib
from collections.abc import Callable, Iterator
from typing import Final

from records.burnpack.wire import Flaw
from records.errors import RecordFormatError
from records.finding import Finding, damage, note
from records.shown import shown
from records.storage import Limits, Storage

from .archive import Archive
from .reader import ZIP_MAGIC

_PIECE: Final = 8 * 2**20


def check_pytorch(storage: Storage, limits: Limits, report: Callable[[int], object]) -> Iterator[Finding]:
    """What is wrong with the bytes of a file that can be opened, or unusual about them.

    Args:
        storage: the file.
        limits: those that it was opened with.
        report: is told of bytes as they are read.

    Raises:
        RecordFormatError: it cannot be opened.
    """
    if storage.read(0, len(ZIP_MAGIC)) != ZIP_MAGIC:
        yield note("files of PyTorch before 1.6 carry no checksums, so damage to its numbers cannot be found")
        return
    unchecked = 0
    try:
        for name, extent, expected in Archive(storage, limits).checksums():
            if expected is None:
                unchecked += 1
                continue
            found = 0
            for offset in range(extent.start, extent.end, _PIECE):
                piece = storage.read(offset, min(_PIECE, extent.end - offset))
                found = zlib.crc32(piece, found)
                report(len(piece))
            if found != expected:
                yield damage(
                    f"record {shown(name)} (from offset {extent.start} on) does not have the CRC-32 of the archive"
                )
    except Flaw as flaw:
        raise RecordFormatError(f"{storage.name}: {flaw}") from None
    if unchecked:
        yield note(f"{unchecked} of its records carry no checksum, so damage to them cannot be found")
