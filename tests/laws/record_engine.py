"""Records and files of the engine behind the laws' protocol, by its public API."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine import Device, Tensor
from modules import LoadResult, Module, ModuleMapper, Param
from records import KeyRemapper, ModuleRecord, ParamId, RecordEntry, open_record

from . import operations as op
from . import record_operations as rec
from .engine_build import tensor_of
from .engine_quantization import dtype_name, quantized_of
from .engine_view import Recorder
from .observations import Bits
from .schemes import is_scheme
from .spec_tree import Value


def result(module: Module, operation: op.Op) -> tuple[Module, Any]:
    """What an operation on records or files gives, and its output.

    Raises:
        EngineError: it is refused.
    """
    match operation:
        case op.LoadRecord(record, options):
            return _loaded(module.try_load_record(with_options(as_record(record), options)))
        case rec.Save(_, record, in_memory):
            return module, _saved(module, record, in_memory)
        case rec.Load(data, _, options, in_memory):
            return _loaded(_from_file(module, data, options, in_memory))
        case rec.Open(data, _, in_memory):
            if in_memory:
                return module, as_data(ModuleRecord.from_bytes(data))
            with _file(data) as file, open_record(file) as record:
                return module, as_data(record)
        case rec.Rename(record, rules):
            return module, as_data(as_record(record).adapt(KeyRemapper(rules)))
        case rec.Turn(paths):
            return module.map(_Turning(module, paths)), None
    raise NotImplementedError(f"{operation!r} is not offered; see capabilities")


def _loaded(result: LoadResult[Module]) -> tuple[Module, rec.Fitting]:
    fitting = rec.Fitting(result.missing, result.unused, tuple(mismatch.path for mismatch in result.mismatched))
    return result.unwrap(), fitting


# Files


@contextmanager
def _file(data: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.bpk"
        file.write_bytes(data)
        yield file


def _saved(module: Module, record: op.Record | None, in_memory: bool) -> bytes:
    if in_memory:
        return (module.into_record() if record is None else as_record(record)).into_bytes()
    with tempfile.TemporaryDirectory() as folder:
        if record is None:
            module.save_file(Path(folder) / "record")
        else:
            as_record(record).save(Path(folder) / "record")
        return (Path(folder) / "record.bpk").read_bytes()


def _from_file(module: Module, data: bytes, options: op.LoadOptions, in_memory: bool) -> LoadResult[Module]:
    if in_memory:
        return module.try_load_record(with_options(ModuleRecord.from_bytes(data), options))
    with _file(data) as file:
        if options == op.LoadOptions():
            return module.try_load_file(file)
        with open_record(file) as record:
            return module.try_load_record(with_options(record, options))


# Records


def bits_of(tensor: Tensor) -> Bits:
    """A tensor as data."""
    return Bits(dtype_name(tensor.dtype), tensor.shape, tensor.tobytes())


def as_data(record: ModuleRecord) -> op.Record:
    """A record as data."""
    entries: list[op.Entry] = []
    for path, entry in record.items():
        bits = bits_of(entry.read(Device("cpu:0")))
        entries.append(op.Entry(path, bits, None if entry.id is None else int(entry.id)))
    return op.Record(tuple(entries))


def as_record(record: op.Record) -> ModuleRecord:
    """The record in memory that data stands for."""
    return ModuleRecord((entry.path, _entry(entry)) for entry in record.entries)


def _entry(entry: op.Entry) -> RecordEntry:
    bits = entry.bits
    value = quantized_of(bits) if is_scheme(bits.dtype) else tensor_of(Value(bits.dtype, bits.shape, bits.data))
    return RecordEntry(value, None if entry.id is None else ParamId(entry.id))


def with_options(record: ModuleRecord, options: op.LoadOptions) -> ModuleRecord:
    """A record that is loaded as the options say."""
    return record.with_options(
        dtype_policy="CastToModule" if options.cast else "FromRecord",
        allow_partial=options.allow_partial,
        allow_unused=options.allow_unused,
        validate=options.validate,
    )


# Mappers


class _Turning(ModuleMapper):
    """Gives each parameter object at some paths mappers that exchange its last two axes."""

    def __init__(self, module: Module, paths: tuple[str, ...]) -> None:
        recorder = Recorder()
        module.visit(recorder)
        self.chosen = {id(leaf) for path, leaf in recorder.shown if path in paths}
        self.turned: dict[int, Param] = {}

    def map_float(self, path: str, param: Param, /) -> Param:
        if id(param) not in self.chosen or len(param.shape) < 2:
            return param
        if id(param) not in self.turned:
            self.turned[id(param)] = param.with_mappers(load=_exchanged, save=_exchanged, init=_exchanged)
        return self.turned[id(param)]

    map_int = map_bool = map_float


def _exchanged(value: Tensor) -> Tensor:
    return value.T
