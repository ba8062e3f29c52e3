"""Watching a checkpoint being loaded: a step of `adapt` that reports each tensor that is read, and a bar for it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from numpy.typing import NDArray

from engine import Device, Tensor
from engine.dtype import DType
from examples.packages import library
from records import ForeignDType, ModuleRecord, RecordEntry
from records.entry import Source


@final
class Watched:
    """The step that leaves every entry as it is and calls `report` with its bytes once it has been read.

    It comes last, so that joined entries count as what they become.
    """

    def __init__(self, report: Callable[[int], object]) -> None:
        self._report = report

    def __call__(self, entries: Mapping[str, RecordEntry], /) -> dict[str, RecordEntry]:
        return {path: RecordEntry(_WatchedSource(e.source, self._report), e.id) for path, e in entries.items()}


@final
class _WatchedSource:
    """Another source that tells when it has been read."""

    def __init__(self, source: Source, report: Callable[[int], object]) -> None:
        self._source = source
        self._report = report

    @property
    def dtype(self) -> DType | ForeignDType:
        return self._source.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._source.shape

    @property
    def nbytes(self) -> int:
        return self._source.nbytes

    def host(self) -> NDArray[Any]:
        array = self._source.host()
        self._report(self.nbytes)
        return array

    def read(self, device: Device) -> Tensor:
        tensor = self._source.read(device)
        self._report(self.nbytes)
        return tensor


@contextmanager
def shown(record: ModuleRecord, name: str) -> Iterator[ModuleRecord]:
    """The record, with a bar that moves as its tensors are read and is gone at the end.

    It is shown on a terminal's error stream, and not at all elsewhere.
    """
    progress = library("rich.progress")
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
    )
    console = library("rich.console").Console(stderr=True)
    with progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"loading {name}", total=sum(entry.nbytes for entry in record.values()))
        yield record.adapt(Watched(lambda nbytes: bar.advance(task, nbytes)))
