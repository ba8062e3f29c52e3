"""Faults of record files, of the names in them, and of mappers; see `faults`."""

import time
from typing import Any

from engine import Tensor
from modules import Param
from records import KeyRemapper, ModuleRecord, RecordEntry
from records.burnpack import metadata, reader, writer
from records.burnpack.layout import HEADER_NBYTES
from records.entry import Contents

from .faults import Patch, fault

# Files


@fault("Y79 a file keeps no ids", "L54", "L55")
def _y79(patch: Patch) -> None:
    original = writer.write_burnpack

    def written(file: Any, entries: Any, *rest: Any, **options: Any) -> None:
        original(file, [(path, RecordEntry(entry.source)) for path, entry in entries], *rest, **options)

    patch.setattr("records.record.write_burnpack", written)


@fault("Y80 a file offers its entries in the order of their data", "L55")
def _y80(patch: Patch) -> None:
    original = reader.read_burnpack

    def read(*args: Any, **options: Any) -> Contents:
        found = original(*args, **options)
        return found._replace(entries=sorted(found.entries, key=lambda named: named[1].source._offset))  # pyright: ignore

    patch.setattr("records.opening.read_burnpack", read)
    patch.setattr("records.record.read_burnpack", read)


def _unaligned(metadata_nbytes: int) -> int:
    return HEADER_NBYTES + metadata_nbytes


@fault("X27 a reader takes the data section to start at 10 + n", "L55", "L66")
def _x27(patch: Patch) -> None:
    patch.setattr(reader, "data_start", _unaligned)


@fault("X27 reader and writer take the data section to start at 10 + n", "L65")
def _x27_both(patch: Patch) -> None:
    patch.setattr(reader, "data_start", _unaligned)
    patch.setattr(writer, "data_start", _unaligned)


@fault("X28 a tensor's length is not checked against shape and dtype", "L68")
def _x28(patch: Patch) -> None:
    patch.setattr(metadata, "_check_length", lambda tensor: None)


@fault("Y88 the digest of the header is not compared", "L67")
def _y88(patch: Patch) -> None:
    patch.setattr(reader, "_check_digests", lambda *args: None)


@fault("Y81 a file is read onto the first device and copied on", "L63")
def _y81(patch: Patch) -> None:
    original = RecordEntry.read
    patch.setattr(RecordEntry, "read", lambda self, device: original(self, "cpu:0").to_device(device))


@fault("Y82 a tensor is read as often as it has places", "L63")
def _y82(patch: Patch) -> None:
    original = RecordEntry.read

    def read(self: RecordEntry, device: Any) -> Tensor:
        original(self, device)
        return original(self, device)

    patch.setattr(RecordEntry, "read", read)


@fault("Y83 a file carries the time", "L64")
def _y83(patch: Patch) -> None:
    original = ModuleRecord._texts
    patch.setattr(ModuleRecord, "_texts", lambda self: {**original(self), "time": str(time.time_ns())})


# Mappers and names


@fault("Y84 a load mapper is forgotten after one load", "L70")
def _y84(patch: Patch) -> None:
    original = Param._loaded

    def loaded(self: Param, number: Any, tensor: Tensor) -> Param:
        made = original(self, number, tensor)
        made._mappers = made._mappers._replace(load=None)
        return made

    patch.setattr(Param, "_loaded", loaded)


@fault("Y85 a shape is compared with that of the value, not of the file", "L70")
def _y85(patch: Patch) -> None:
    patch.setattr(Param, "_record_shape", lambda self: self.shape)


@fault("Y89 a lazy parameter with mappers is made to learn its shape in files", "L70")
def _y89(patch: Patch) -> None:
    patch.setattr(Param, "_record_shape", lambda self: self._save_form().shape if self.mappers.save else self.shape)


@fault("Y86 renaming stops at the first rule that matches", "L70")
def _y86(patch: Patch) -> None:
    def renamed(self: KeyRemapper, path: str) -> str:
        found = (pattern.sub(replacement, path) for pattern, replacement in self._rules if pattern.search(path))
        return next(found, path)

    patch.setattr(KeyRemapper, "_renamed", renamed)


@fault("Y87 of names that become one the last wins", "L70")
def _y87(patch: Patch) -> None:
    def renamed(self: KeyRemapper, entries: Any) -> Any:
        return {self._renamed(path): entry for path, entry in entries.items()}

    patch.setattr(KeyRemapper, "__call__", renamed)
