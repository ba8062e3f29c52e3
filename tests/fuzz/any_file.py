"""What must hold for any file: it is refused with a `RecordFormatError` that names it, or it is a record in every use.

`check` is what the fuzzer puts each of its inputs to, and what a test puts the
corpus to that is kept of it.
"""

import contextlib
import io
import math
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine import QuantScheme, Tensor, zeros
from modules import Module, Param
from records import ForeignDType, ModuleRecord, RecordEntry, RecordError, RecordFormatError, RecordIoError, open_record
from records.adapt import Step
from records.commands import inspecting, verifying

READERS: Final = {  # reader -> the name of a file for it
    "burnpack": "r.bpk",
    "mpk": "r.mpk",
    "mpk.gz": "r.mpk.gz",
    "safetensors": "r.safetensors",
    "index": "r.safetensors.index.json",
    "pytorch": "r.pt",
    "gguf": "r.gguf",
}
LIMITS: Final = {  # so that what an input may ask for is small
    "max_tensor_bytes": 2**22,
    "max_unpacked_bytes": 2**22,
    "max_metadata_bytes": 2**20,
    "max_tensors": 1000,
}
_HOST: Final = "cpu:0"
_DTYPES: Final = {"float": "float32", "int": "int64", "bool": "bool"}
_LOADED: Final = 8  # entries that are loaded into a module
_MAX_ELEMENTS: Final = 10_000


def check(data: bytes, reader: str, folder: Path, *, with_commands: bool = True) -> str:
    """Open bytes as a file, and use what is in it in every way; a warning is an error.

    Args:
        data: the file; of ``"index"`` what stands beside `shards`.
        reader: one of `READERS`; another may take the file, as what is in it decides.
        folder: an empty one, or the one of an earlier call.
        with_commands: whether to inspect and verify it too, which takes most of the time.

    Returns:
        ``"refused"``, ``"unreadable"`` if a tensor is refused when it is read, ``"read"``, and what was opened as.

    Raises:
        AssertionError: something does not hold. So does any other error that comes out of it.
    """
    with warnings.catch_warnings(action="error"):
        warnings.simplefilter("ignore", DeprecationWarning)  # of escapes in a pickle's names, from the standard library
        return _outcome(data, reader, folder, with_commands)


def _outcome(data: bytes, reader: str, folder: Path, with_commands: bool) -> str:
    file = folder / READERS[reader]
    file.unlink(missing_ok=True)  # a mapping of the one before stays as it is
    file.write_bytes(data)
    try:
        record = open_record(file, check_data=True, **LIMITS)
    except RecordFormatError as error:
        _check_message(error, folder)
        return "refused"
    except RecordIoError:
        if reader != "index" and b'"weight_map"' not in data:  # an index may lead to files that are not there
            raise
        return "refused"
    with record:
        read = {path: _read(entry, folder) for path, entry in record.items()}
        _check_load(record, read)
        _check_rewriting(record, read)
    if with_commands:
        _check_commands(file)
    outcome = "unreadable" if any(tensor is None for tensor in read.values()) else "read"
    return f"{outcome} {record.format} {len(record) and 'with tensors'}"


def _check_message(error: RecordError, folder: Path) -> None:
    """It is one line that says where."""
    text = str(error)
    assert str(folder) in text, f"the error does not name the file: {text}"
    assert len(text) < 2000, f"the error is long: {text:.200}"


def _read(entry: RecordEntry, folder: Path) -> Tensor | None:
    """The tensor, which is as it was announced; None where it is refused."""
    try:
        tensor = entry.read(_HOST)
    except RecordFormatError as error:
        _check_message(error, folder)
        return None
    assert not isinstance(entry.dtype, ForeignDType)
    assert (tensor.dtype, tensor.shape) == (entry.dtype, entry.shape)
    assert tensor.nbytes == entry.nbytes or isinstance(entry.dtype, QuantScheme)
    assert len(tensor.tobytes()) == entry.nbytes
    return tensor


class _Target(Module):
    """A module whose parameters are those of a record, with other values."""

    def __init__(self, entries: list[RecordEntry]) -> None:
        self.t = [Param(zeros(entry.shape, device=_HOST, dtype=_DTYPES[entry.kind])) for entry in entries]


def _numbered(paths: list[str]) -> Step:
    return lambda entries: {f"t.{index}": entries[path] for index, path in enumerate(paths)}


def _check_load(record: ModuleRecord, read: dict[str, Tensor | None]) -> None:
    """A module is loaded whole, or not at all (R29)."""
    paths = [path for path, entry in record.items() if math.prod(entry.shape) <= _MAX_ELEMENTS][:_LOADED]
    if not paths:
        return
    target = _Target([record[path] for path in paths])
    before = [param.val() for param in target.t]
    result = target.try_load_record(record.adapt(_numbered(paths)))
    assert all(param.val() is value for param, value in zip(target.t, before, strict=True))
    if result.module is None:
        assert isinstance(result.error, RecordError)
        is_readable = record.kind == "module" and all(read[path] is not None for path in paths)
        assert not is_readable, f"what can be read was not loaded: {result.error}"
        return
    for param, path in zip(result.module.t, paths, strict=True):
        tensor = read[path]
        assert tensor is not None
        assert param.val().shape == tensor.shape
        if record[path].kind == param.kind and param.val().dtype == tensor.dtype:
            assert param.val().tobytes() == tensor.tobytes()


def _check_rewriting(record: ModuleRecord, read: dict[str, Tensor | None]) -> None:
    """What was read is written, and reads the same again (L55)."""
    try:
        data = record.into_bytes()
    except RecordError:  # of names and numbers that burnpack does not have, or of tensors that are refused
        return
    again = ModuleRecord.from_bytes(data, check_data=True)
    assert sorted(again) == sorted(record)
    assert _numbers(again) == _numbers(record)
    for path, entry in again.items():
        tensor, now = read[path], entry.read(_HOST)
        assert tensor is not None
        assert (now.dtype, now.shape, now.tobytes()) == (tensor.dtype, tensor.shape, tensor.tobytes())
        assert entry.id == record[path].id


def _numbers(record: ModuleRecord) -> dict[str, Any]:
    return {name: (one.kind, np.array(one.value).tobytes()) for name, one in record.scalars.items()}


def _check_commands(file: Path) -> None:
    """The commands say something about it, in one line where they refuse."""
    with contextlib.redirect_stdout(io.StringIO()):
        for is_json in (False, True):
            verifying.verify(Namespace(files=[file], json=is_json))
            inspecting.inspect(Namespace(files=[file], json=is_json))
