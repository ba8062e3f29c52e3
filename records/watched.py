"""Watching the data of a record being read."""

from collections.abc import Callable, Mapping
from typing import Any, final

from numpy.typing import NDArray

from engine import Device, Tensor

from .entry import EntryDType, RecordEntry, Source


@final
class Watched:
    """The step of `adapt` that leaves every entry as it is and calls `report` with its bytes once it has been read.

    It comes last, so that joined entries count as what they become.
    """

    def __init__(self, report: Callable[[int], object]) -> None:
        self._report = report

    def __call__(self, entries: Mapping[str, RecordEntry], /) -> dict[str, RecordEntry]:
        return {
            path: RecordEntry(_WatchedSource(entry.source, self._report), entry.id, form=entry.form)
            for path, entry in entries.items()
        }


@final
class _WatchedSource:
    """Another source that tells when it has been read."""

    def __init__(self, source: Source, report: Callable[[int], object]) -> None:
        self._source = source
        self._report = report

    @property
    def dtype(self) -> EntryDType:
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
