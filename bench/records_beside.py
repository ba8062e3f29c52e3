"""The second half of `bench.records`: the same tensors by safetensors and by PyTorch, in the same rounds as ours.

Theirs run in an interpreter that has both packages, ours in this one; each
reads and writes its own format, PyTorch by mapping the file. Ours fills a
Module, theirs a dict. All flush what they save to disk.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from records import ModuleRecord

from .answers import check_same
from .beside.client import Beside, BesideError
from .machine import blas_threads
from .report import Row
from .settings import Settings
from .timing import Spread, Timing, timed

_SCRIPT: Final = "records_with_torch"
_OTHERS: Final[Mapping[str, str]] = {"safetensors": "safetensors", "torch": "PyTorch"}
_PACKAGES: Final = ("torch", "safetensors")


class Ours(NamedTuple):
    """What we do to a burnpack file.

    Attributes:
        open: opens it.
        load: fills a Module from it.
        use: the same, and reads every byte once.
        save: writes a record.
        save_undigested: writes it without digests, which the other formats do not have.
        target: the path that is written, removed before each time.
    """

    open: Callable[[], Any]
    load: Callable[[], Any]
    use: Callable[[], Any]
    save: Callable[[], Any]
    save_undigested: Callable[[], Any]
    target: Path


class Task(NamedTuple):
    """One thing that all do.

    Attributes:
        do: what they are asked.
        ours: what we do, by what a row calls it; the first is what theirs is called.
        is_rate: whether it is a rate of bytes.
        rounds: how many are measured.
    """

    do: str
    ours: Mapping[str, str]
    is_rate: bool
    rounds: int


_TASKS: Final = (
    Task("open", {"opening": "open"}, False, 10),
    Task("load", {"loading": "load"}, True, 10),
    Task("use", {"loading and using once": "use"}, True, 10),
    Task("save", {"saving": "save", "saving without digests": "save_undigested"}, True, 5),
)
_PEAKS: Final[Mapping[str, str]] = {"use": "memory that loading takes", "save": "memory that saving takes"}


def rows(
    settings: Settings, folder: Path, record: ModuleRecord, arrays: Mapping[str, NDArray[Any]], ours: Ours
) -> Iterator[Row]:
    """A row for each of them and each thing done, then ours beside each; or one that says why there is none.

    Args:
        folder: where their files go.
        record: what is saved.
        arrays: its values by name.
        ours: what we do.

    Raises:
        AnswerError: they load other bits than ours.
    """
    python = settings.beside or Path(sys.executable)
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if settings.beside is None and missing:
        why = f"not measured: {missing[0]} is not installed here; --beside names an interpreter that has it"
        yield _nothing(why)
        return
    file = folder / "beside.safetensors"
    record.save(file)
    try:
        with Beside(python, _SCRIPT, file, blas_threads()) as process:
            yield from _compared(settings, process, arrays, ours)
        for what, named in _PEAKS.items():
            for by, name in _OTHERS.items():
                with Beside(python, _SCRIPT, file, blas_threads()) as process:
                    taken = process.ask("peak", by=by, what=what)["bytes"]
                yield _memory(f"{named} at its peak, {name}", taken, arrays)
    except BesideError as error:
        yield _nothing(f"not measured: {error}")


def _nothing(why: str) -> Row:
    return Row(what="loading and saving beside safetensors and PyTorch", value=None, unit="GB/s", note=why)


def _memory(what: str, nbytes: int, arrays: Mapping[str, NDArray[Any]]) -> Row:
    value, all_nbytes = nbytes / 1e6, sum(array.nbytes for array in arrays.values())
    return Row(
        what=what,
        value=Spread(value, value, value),
        unit="MB",
        ratio=Spread(*[nbytes / all_nbytes] * 3),
        to="the tensors",
    )


def _compared(settings: Settings, process: Beside, arrays: Mapping[str, NDArray[Any]], ours: Ours) -> Iterator[Row]:
    digest = hashlib.sha256()
    for _, array in sorted(arrays.items()):
        digest.update(array.reshape(-1).view("uint8").data)
    check_same(
        "records, what is loaded", digest.hexdigest(), *(process.ask("digest", by=by)["digest"] for by in _OTHERS)
    )
    nbytes = sum(array.nbytes for array in arrays.values())
    settings.progress.expect(len(_TASKS))
    for task in _TASKS:
        before = (lambda: ours.target.unlink(missing_ok=True)) if task.do == "save" else None
        timings = settings.interleaved(
            *(timed(getattr(ours, name), before=before) for name in task.ours.values()),
            *(process.reading(task.do, by=by) for by in _OTHERS),
            rounds=task.rounds,
        )
        mine = dict(zip(task.ours, timings[: len(task.ours)], strict=True))
        others = dict(zip(_OTHERS, timings[len(task.ours) :], strict=True))
        for by, its in others.items():
            note = f"beside {process.version}" if task is _TASKS[0] and by == next(iter(_OTHERS)) else ""
            yield _row(f"{next(iter(task.ours))} by {_OTHERS[by]}", task, its, nbytes, note=note)
        for what, timing in mine.items():
            for by, its in others.items():
                ratio = its.over(timing) if task.is_rate else timing.over(its)
                yield _row(f"{what} beside {_OTHERS[by]}", task, timing, nbytes, ratio=ratio, to=_OTHERS[by])


def _row(what: str, task: Task, timing: Timing, nbytes: int, **more: Any) -> Row:
    value = timing.rate(nbytes / 1e9) if task.is_rate else timing.spread(1e-3)
    return Row(what=what, value=value, unit="GB/s" if task.is_rate else "ms", **more)
