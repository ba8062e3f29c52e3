"""Copies between devices: every one goes through `copy`, and an open `log` counts it.

Nothing moves unless the code says so. A copy keeps the memory order of what
it copies (D5), goes by a *route* (``host`` between CPU devices, ``upload``,
``download``, ``peer`` or ``staged`` between GPUs), and is counted, with its
bytes, per source, destination and route. Making a tensor from an array,
``numpy()`` and reading a file are no copies between devices. The gradient of a
copy is the copy back.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from .backend import Array, Route
from .device import Device
from .graph import Step
from .primitive import Operand, is_scheme

T = TypeVar("T", bound=Operand)


class Count(NamedTuple):
    """How much went one way."""

    copies: int
    nbytes: int


class TransferLog(Mapping[tuple[Device, Device, Route], Count]):
    """What this thread copied while the log was open: ``log[source, destination, route]``."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Device, Device, Route], Count] = {}

    @property
    def copies(self) -> int:
        """Number of tensors copied."""
        return sum(count.copies for count in self._counts.values())

    @property
    def nbytes(self) -> int:
        """Bytes copied."""
        return sum(count.nbytes for count in self._counts.values())

    def __getitem__(self, way: tuple[Device, Device, Route]) -> Count:
        return self._counts[way]

    def __iter__(self) -> Iterator[tuple[Device, Device, Route]]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        if not self._counts:
            return "no copies between devices"
        return "\n".join(
            f"{source} -> {destination} ({route}): {count.copies} {'copy' if count.copies == 1 else 'copies'}, "
            f"{count.nbytes:,} bytes"
            for (source, destination, route), count in self._counts.items()
        )

    def _add(self, way: tuple[Device, Device, Route], copies: int, nbytes: int) -> None:
        before = self._counts.get(way, Count(0, 0))
        self._counts[way] = Count(before.copies + copies, before.nbytes + nbytes)


class _OpenLogs(threading.local):
    def __init__(self) -> None:
        self.logs: list[TransferLog] = []


_open = _OpenLogs()


@contextmanager
def log() -> Iterator[TransferLog]:
    """A log of the copies that this thread makes inside the ``with``; nested logs each see theirs."""
    opened = TransferLog()
    _open.logs.append(opened)
    try:
        yield opened
    finally:
        _open.logs = [other for other in _open.logs if other is not opened]


def copy(tensors: Iterable[T], device: Device | str) -> list[T]:
    """The tensors on a device, in the order given.

    One that is there already is given back as it is (D4); one that stands
    twice is copied once and is still one tensor (D7). Each keeps its own
    autodiff association (M44); the copy of a tracked one is recorded, and its
    gradient is the copy back, which the logs that are open then count (P37).

    Args:
        tensors: of any devices, shapes and dtypes.
        device: where they go.

    Raises:
        TypeError: `tensors` is one Tensor, or holds something else.
        DeviceError: `device`, or one that a tensor is on, cannot be used.
    """
    if isinstance(tensors, Operand) or not isinstance(tensors, Iterable):
        raise TypeError(
            f"copy: takes a list of Tensors, not one {type(tensors).__qualname__}; to_device moves a Tensor"
        )
    given = list(tensors)
    destination = Device(device)
    waiting: dict[Device, dict[int, T]] = {}
    for position, tensor in enumerate(given):
        if not isinstance(tensor, Operand):
            raise TypeError(f"copy: item {position} is a {type(tensor).__qualname__}, not a Tensor")
        if tensor._device != destination:
            waiting.setdefault(tensor._device.inner(), {})[id(tensor)] = tensor
    arrived: dict[int, T] = {}
    for source, batch in waiting.items():
        arrays, route = _copied([tensor._data for tensor in batch.values()], source, destination)
        way = (source, destination.inner(), route)
        for opened in _open.logs:
            opened._add(way, len(arrays), sum(array.nbytes for array in arrays))
        for tensor, array in zip(batch.values(), arrays, strict=True):
            place = destination.autodiff() if tensor._device.is_autodiff else destination.inner()
            step = None if tensor._node is None else Step("copy", (tensor._node,), _back_to(source))
            arrived[id(tensor)] = type(tensor)._make(array, place, step)
    return [arrived.get(id(tensor), tensor) for tensor in given]


def _back_to(source: Device) -> Callable[[Operand], list[Operand]]:
    """The pull-back of a copy from `source`."""
    return lambda gradient: copy([gradient], source)


def _copied(data: Sequence[Array], source: Device, destination: Device) -> tuple[list[Array], Route]:
    """Copies of arrays, of quantized ones with all their parts (Q34)."""
    parts = [array.parts if is_scheme(array.dtype) else (array,) for array in data]
    copies, route = _copy_arrays([part for several in parts for part in several], source, destination)
    made, arrived = [], iter(copies)
    for array, several in zip(data, parts, strict=True):
        copied = [next(arrived) for _ in several]
        made.append(array.of_parts(copied) if is_scheme(array.dtype) else copied[0])
    return made, route


def _copy_arrays(arrays: Sequence[Array], source: Device, destination: Device) -> tuple[list[Array], Route]:
    if source.kind == destination.kind:
        return source.backend.copy_between(arrays, source.index, destination.index)
    if destination.kind == "cpu":
        return source.backend.download(arrays, source.index), "download"
    return [destination.backend.upload(array, destination.index) for array in arrays], "upload"
