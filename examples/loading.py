"""Watching a checkpoint being loaded: a bar that moves as its tensors are read."""

from collections.abc import Iterator
from contextlib import contextmanager

from records import ModuleRecord
from records.commands.command_line import progress
from records.watched import Watched as Watched


@contextmanager
def shown(record: ModuleRecord, name: str) -> Iterator[ModuleRecord]:
    """The record, with a bar that moves as its tensors are read and is gone at the end.

    It is shown on a terminal's error stream, and not at all elsewhere.
    """
    with progress(f"loading {name}", sum(entry.nbytes for entry in record.values())) as report:
        yield record.adapt(Watched(report))
