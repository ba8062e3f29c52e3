"""Opening a record file of any format; what is in it decides which."""

from typing import Final

from .burnpack import read_burnpack
from .burnpack.layout import MAGIC
from .entry import Contents
from .errors import RecordFormatError
from .files import FilePath, existing_file
from .gguf_file import read_gguf
from .inflated import GZIP_MAGIC, Inflated
from .named_mpk import read_named_mpk
from .named_mpk.reader import START_NBYTES, begins_named_mpk
from .pytorch import LEGACY_MAGICS, ZIP_MAGIC, read_pytorch
from .record import Closable, ModuleRecord
from .safetensors_file import read_safetensors
from .safetensors_index import begins_index, read_index
from .storage import LIMITS, Limits, Storage

_GGUF_MAGIC: Final = b"GGUF"
_TOLD_BY: Final = max(map(len, LEGACY_MAGICS))  # no format needs more to be told, but named MessagePack


def open_record(
    file: FilePath,
    check_data: bool = False,
    *,
    max_metadata_bytes: int = LIMITS.max_metadata_bytes,
    max_tensors: int = LIMITS.max_tensors,
    max_tensor_bytes: int = LIMITS.max_tensor_bytes,
    max_depth: int = LIMITS.max_depth,
    max_file_bytes: int = LIMITS.max_file_bytes,
    max_unpacked_bytes: int = LIMITS.max_unpacked_bytes,
) -> ModuleRecord:
    """The record in a file: burnpack, safetensors, GGUF, named MessagePack, PyTorch. Only the header is read (R41).

    Of safetensors files that are one model, open the index, ``*.safetensors.index.json``.

    A tensor is read when its entry is. On CPU devices the tensors of burnpack
    and GGUF files that are not quantized share the mapped file, read-only,
    also after it is closed (D11). So replace the file by renaming another over
    it, as `save` does, and never rewrite it in place or cut it short: tensors
    that were read would change, or reading them would end the process.
    Quantized tensors stay so, and have memory of their own; those of GGUF,
    and those of Burn that have a zero point, become float32.

    Named MessagePack, which Burn 0.8 to 0.21 wrote, is told by what is in it,
    also inside gzip (N24). It has no header, so the whole file is gone through
    once, without keeping its tensors.

    Of a file that ``torch.save`` wrote, nothing that is pickled is run: the few
    constructors that a state dict needs are understood, and any other name in
    it is refused. The tensors of one share the mapped file as well.

    ``with open_record(…) as record:`` closes the file.

    Args:
        file: its path; ``.bpk`` is appended to a name without extension that is not there as given, or is a
            directory there while the file with ``.bpk`` exists (R39).
        check_data: whether to read a burnpack file whole, and compare it with the digest that it may carry (D1).
        max_metadata_bytes: the header's size, at most (R76).
        max_tensors: how many tensors, at most (R77).
        max_tensor_bytes: the size of one tensor, at most (R78).
        max_depth: how deep the header's values nest, at most (R79).
        max_file_bytes: the file's size, at most (R80).
        max_unpacked_bytes: what a gzip file unfolds to, at most.

    Raises:
        RecordIoError: the file is missing or the system refuses to open it.
        RecordFormatError: it is no record, or a damaged one; the message names the file and the offset or tensor.
        RecordError: the format needs a package that is not installed, or a limit is no whole number.
    """
    limits = Limits(
        max_metadata_bytes=max_metadata_bytes,
        max_tensors=max_tensors,
        max_tensor_bytes=max_tensor_bytes,
        max_depth=max_depth,
        max_file_bytes=max_file_bytes,
        max_unpacked_bytes=max_unpacked_bytes,
    )
    path = existing_file(file)
    storage = Storage.map(path, limits)
    try:
        return ModuleRecord.of_file(*_contents(storage, limits, check_data))
    except BaseException:
        storage.close()
        raise


def _contents(storage: Storage, limits: Limits, check_data: bool) -> tuple[Contents, Closable, str]:
    """What is in a file, what closes it, and what its format is called."""
    start = bytes(storage.view("the header")[:_TOLD_BY])
    if start.startswith((ZIP_MAGIC, *LEGACY_MAGICS)):
        return read_pytorch(storage, limits), storage, "PyTorch"
    if start[:4] == _GGUF_MAGIC:
        return read_gguf(storage, limits), storage, "GGUF"
    if start[:4] in (MAGIC, MAGIC[::-1]):
        return read_burnpack(storage, limits, check_data=check_data), storage, "burnpack"
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= storage.nbytes:
        storage.close()
        return *read_safetensors(storage.name, limits), "safetensors"
    if begins_index(storage.name, storage.read(0, START_NBYTES)):
        contents, shards = read_index(storage, limits)
        storage.close()
        return contents, shards, "safetensors"
    store = Inflated(storage, limits) if start[:2] == GZIP_MAGIC else storage
    start = store.read(0, START_NBYTES)
    if begins_named_mpk(start):
        return read_named_mpk(store, limits), storage, "named MessagePack"
    raise RecordFormatError(
        f"{storage.name}: offset 0{'' if store is storage else ' inside gzip'}: {start[:8]!r} begins no record; "
        "burnpack, safetensors, GGUF, named MessagePack and PyTorch files can be opened"
    )
