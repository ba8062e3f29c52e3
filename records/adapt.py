"""The steps of `ModuleRecord.adapt`: other names, transposed weights, one parameter out of several entries.

A step takes the entries that the one before left and gives others over the
same data: nothing is read, and what a step does to an entry happens when it is applied.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, SupportsIndex, cast, final

import numpy as np
from numpy.typing import NDArray

from engine import Device, QuantScheme, Tensor
from engine.dtype import DType

from .entry import EntryDType, ForeignDType, RecordEntry, Source, TensorSource, nbytes_of
from .errors import RecordError, RecordFormatError

_HOST: Final = Device("cpu:0")
_RULES: Final = "rules are pairs of texts, [(expression, replacement), …]"


class Step(Protocol):
    """One step of `adapt`."""

    def __call__(self, entries: Mapping[str, RecordEntry], /) -> dict[str, RecordEntry]:
        """The entries that the next step sees, in order."""
        ...


@final
class KeyRemapper:
    r"""Renames entries by regular expressions, in order, each over the result of the one before (R34).

    ``KeyRemapper([(r"^blk\.(\d+)\.attn_q\.", r"layers.\1.query.")])``

    Args:
        rules: pairs of an expression and its replacement, or a mapping of
            them, as for ``re.sub``: all matches are replaced; ``\1`` and
            ``\g<name>`` are groups.

    Raises:
        RecordError: a rule is no pair of texts, an expression is none, or its replacement names a group that it lacks.
    """

    def __init__(self, rules: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
        if isinstance(rules, str) or not isinstance(rules, Iterable):
            raise RecordError(f"KeyRemapper: {rules!r} is no list of rules; {_RULES}")
        self._rules: list[tuple[re.Pattern[str], str]] = []
        for rule in cast("Iterable[Any]", rules.items() if isinstance(rules, Mapping) else rules):
            if not isinstance(rule, (tuple, list)) or len(rule) != 2 or not all(isinstance(one, str) for one in rule):
                raise RecordError(f"KeyRemapper: {rule!r} is no rule; {_RULES}")
            pattern, replacement = rule
            self._rules.append((compiled("KeyRemapper", pattern), replacement))
            self._check_groups(*self._rules[-1])

    @staticmethod
    def _check_groups(pattern: re.Pattern[str], replacement: str) -> None:
        try:
            pattern.sub(replacement, "")  # the replacement is looked at whether or not there is a match
        except (re.error, IndexError) as error:
            raise RecordError(f"KeyRemapper: {replacement!r} replaces no {pattern.pattern!r}: {error}") from None

    def _renamed(self, path: str) -> str:
        for pattern, replacement in self._rules:
            path = pattern.sub(replacement, path)
        return path

    def __call__(self, entries: Mapping[str, RecordEntry], /) -> dict[str, RecordEntry]:
        """The entries under their new paths.

        Raises:
            RecordFormatError: two paths become one; both are named.
        """
        renamed: dict[str, RecordEntry] = {}
        origin: dict[str, str] = {}
        for path, entry in entries.items():
            target = self._renamed(path)
            if target in renamed:
                raise RecordFormatError(f"KeyRemapper: {origin[target]!r} and {path!r} both become {target!r}")
            renamed[target] = entry
            origin[target] = path
        return renamed


@final
class Transpose:
    """Swaps the last two axes of each entry whose path an expression is found in; a view, no copy.

    Those of a quantized entry's blocks and packing are swapped with them (Q13).

    Args:
        pattern: as for ``re.search``.

    Raises:
        RecordError: it is no regular expression.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = compiled("Transpose", pattern)

    def __call__(self, entries: Mapping[str, RecordEntry], /) -> dict[str, RecordEntry]:
        """The entries, the matching ones transposed.

        Raises:
            RecordFormatError: one of them has fewer than two axes.
        """
        return {
            path: self._transposed(path, entry) if self._pattern.search(path) else entry
            for path, entry in entries.items()
        }

    def _transposed(self, path: str, entry: RecordEntry) -> RecordEntry:
        if len(entry.shape) < 2:
            raise RecordFormatError(
                f"Transpose: {path!r} has shape {entry.shape}, and only two axes or more can be swapped; "
                f"{self._pattern.pattern!r} matches it"
            )
        return RecordEntry(_TransposedSource(entry.source), entry.id, form=entry.form)


@final
class Join:
    """Makes one entry of several, along an axis; it stands where the first of them stood and has no id.

    The joined array is allocated once, when it is applied, and filled source by source.

    Args:
        target: its path; literal.
        sources: the paths of what is joined, in order; literal.
        axis: along which, in the shapes that the steps before left; may count from the end.

    Raises:
        RecordError: no source, or one twice; a path is no text, or the axis no integer.
    """

    def __init__(self, target: str, sources: Sequence[str], axis: int) -> None:
        given = () if isinstance(sources, str) or not isinstance(sources, Iterable) else tuple(sources)
        if not given or not all(isinstance(path, str) for path in given) or len(set(given)) < len(given):
            raise RecordError(f"Join: {target!r} is made of {sources!r}; give a list of different paths")
        if not isinstance(target, str):
            raise RecordError(f"Join: the target is {target!r}; it is a path")
        if not isinstance(axis, SupportsIndex):
            raise RecordError(f"Join: {target!r} along axis {axis!r}; an axis is an integer")
        self._target = target
        self._sources = given
        self._axis = axis.__index__()

    def __call__(self, entries: Mapping[str, RecordEntry], /) -> dict[str, RecordEntry]:
        """The entries with the sources replaced by the target.

        Raises:
            RecordFormatError: the target exists, a source is missing, or the sources cannot be joined.
        """
        if self._target in entries:
            raise RecordFormatError(f"Join: {self._target!r} exists already")
        for path in self._sources:
            if path not in entries:
                raise RecordFormatError(f"Join: {path!r}, a source of {self._target!r}, is missing")
        joined = RecordEntry(_JoinedSource(self._target, {path: entries[path] for path in self._sources}, self._axis))
        result: dict[str, RecordEntry] = {}
        for path, entry in entries.items():
            if path == self._sources[0]:
                result[self._target] = joined
            elif path not in self._sources:
                result[path] = entry
        return result


@final
class _TransposedSource:
    """Another source with its last two axes exchanged."""

    __slots__ = ("_source",)

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def dtype(self) -> EntryDType:
        dtype = self._source.dtype
        if not isinstance(dtype, QuantScheme):
            return dtype
        *rest, rows, columns = range(len(self._source.shape))
        return dtype.permuted((*rest, columns, rows))

    @property
    def shape(self) -> tuple[int, ...]:
        *rest, rows, columns = self._source.shape
        return (*rest, columns, rows)

    @property
    def nbytes(self) -> int:
        return self._source.nbytes

    def host(self) -> NDArray[Any]:
        if isinstance(self._source.dtype, QuantScheme):
            return TensorSource(self.read(_HOST)).host()
        return self._source.host().swapaxes(-1, -2)

    def read(self, device: Device) -> Tensor:
        return self._source.read(device).T


@final
class _JoinedSource:
    """Several sources put together along an axis."""

    __slots__ = ("_axis", "_dtype", "_parts", "shape")

    def __init__(self, target: str, entries: Mapping[str, RecordEntry], axis: int) -> None:
        first_path, first = next(iter(entries.items()))
        rank = len(first.shape)
        if not -rank <= axis < rank:
            raise RecordFormatError(f"Join: {target!r} along axis {axis}, but {first_path!r} has shape {first.shape}")
        self._axis = axis % rank
        for path, entry in entries.items():
            if isinstance(entry.dtype, (ForeignDType, QuantScheme)) or entry.dtype != first.dtype:
                raise RecordFormatError(
                    f"Join: {target!r} of {first_path!r} ({first.dtype}) and {path!r} ({entry.dtype}); "
                    "only entries of one dtype, and no quantized ones, can be joined"
                )
            if len(entry.shape) != rank or self._others(entry.shape) != self._others(first.shape):
                raise RecordFormatError(
                    f"Join: {target!r} along axis {axis} of {first_path!r}, shape {first.shape}, "
                    f"and {path!r}, shape {entry.shape}; the other extents differ"
                )
            self._dtype = entry.dtype
        self._parts = [entry.source for entry in entries.values()]
        extent = sum(entry.shape[self._axis] for entry in entries.values())
        self.shape = (*first.shape[: self._axis], extent, *first.shape[self._axis + 1 :])

    def _others(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[: self._axis] + shape[self._axis + 1 :]

    @property
    def dtype(self) -> DType:
        return self._dtype

    @property
    def nbytes(self) -> int:
        return nbytes_of(self._dtype, self.shape)

    def host(self) -> NDArray[Any]:
        joined = np.empty(self.shape, self._dtype)
        along_axis = joined.swapaxes(0, self._axis)
        filled = 0
        for part in self._parts:
            extent = part.shape[self._axis]
            along_axis[filled : filled + extent] = part.host().swapaxes(0, self._axis)
            filled += extent
        joined.setflags(write=False)
        return joined

    def read(self, device: Device) -> Tensor:
        return Tensor.adopt(self.host(), device)


def compiled(step: str, pattern: str) -> re.Pattern[str]:
    """The regular expression of a step.

    Raises:
        RecordError: it is none; the step is named.
    """
    if not isinstance(pattern, str):
        raise RecordError(f"{step}: {pattern!r} is no regular expression: it is no text")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise RecordError(f"{step}: {pattern!r} is no regular expression: {error}") from None
