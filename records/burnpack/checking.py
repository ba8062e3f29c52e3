"""What opening a burnpack file does not look at: digest of the data, padding, alignment, unknown keys (D1, R93)."""

import hashlib
from collections.abc import Callable, Iterator

from records.errors import RecordFormatError
from records.finding import Finding, damage, note
from records.shown import shown
from records.storage import Limits, Storage

from . import digest, metadata
from .layout import ALIGNMENT, HEADER_NBYTES, data_start
from .reader import raw_metadata
from .wire import Flaw

_PIECE = 8 * 2**20


def check_burnpack(storage: Storage, limits: Limits, report: Callable[[int], object]) -> Iterator[Finding]:
    """What is wrong with the bytes of a file that can be opened, or unusual about them.

    Args:
        storage: the file.
        limits: those that it was opened with.
        report: is told of bytes as they are read.

    Raises:
        RecordFormatError: it cannot be opened.
    """
    try:
        raw = raw_metadata(storage, limits)
        header = metadata.decode(raw, limits)
        claimed = digest.claimed(header.texts, raw)
    except Flaw as flaw:
        raise RecordFormatError(f"{storage.name}: {flaw}") from None
    start = data_start(len(raw))
    for key in metadata.unknown_keys(raw, limits):
        yield note(f"the metadata has the unknown key {shown(key)}, which is ignored")
    for tensor in header.tensors:
        if tensor.start % ALIGNMENT:
            yield note(f"tensor {shown(tensor.name)} starts at offset {start + tensor.start}, not at a multiple of 256")
    if any(storage.read(HEADER_NBYTES + len(raw), start - HEADER_NBYTES - len(raw))):
        yield note("the bytes between metadata and data are not all zero")
    if claimed is None:
        yield note("it carries no digests, so damage to its numbers cannot be found")
        return
    sha = hashlib.sha256()
    for offset in range(start, storage.nbytes, _PIECE):
        piece = storage.read(offset, _PIECE)
        sha.update(piece)
        report(len(piece))
    if sha.hexdigest() != claimed[1]:
        yield damage(f"the data (from offset {start} on) does not have the digest that {digest.DATA_KEY} says")
