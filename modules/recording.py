"""Between modules and records: what a module records, and how a record loads into a module.

A load is checked whole before any data is read, and a module that does not
fit is left as it was (R29). Entries are found by path alone (R11). A tied
parameter is loaded once and put in all its places; an entry for one of them
serves all (D8).

What a layer draws is its own affair (see `modules.draws`); its record holds
the count of its Draws, unless it is 0, as the scalar ``draws/PATH``, and a
load restores it where it is there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import numpy as np

from engine import Device, QuantScheme, Tensor, dequantize
from engine.dtype import DType
from records import ModuleRecord, ParamId, RecordEntry, RecordError, RecordValidationError

from .draws import Draws
from .group import ParamGroup, check_group
from .loading_report import Loading, LoadReport, Mismatch
from .param import Param
from .running_state import RunningState
from .tree import Each, Leaf, Node, draws, leaves, rebuild

M = TypeVar("M", bound=Node)
T = TypeVar("T")

_HOST: Final = Device("cpu:0")
_HINTS: Final = 3  # prefixes in a message


@dataclass(frozen=True)
class LoadResult(Generic[M]):
    """What a load came to: the loaded module, or the error; and everything that did not fit, either way (R29).

    Attributes:
        module: the loaded module; None if the load was refused.
        error: why it was refused; None if it was not.
        missing: paths of the module that the record lacks.
        unused: paths of the record that the module lacks.
        mismatched: entries of another shape or kind than the module's.
        report: all of it, and what was loaded, for people; ``print(result)`` shows it.
    """

    module: M | None
    error: Exception | None = None
    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    mismatched: tuple[Mismatch, ...] = field(default=())
    report: LoadReport = field(default=LoadReport(), repr=False)

    def unwrap(self) -> M:
        """The loaded module.

        Raises:
            RecordError: the load was refused.
        """
        if self.module is None:
            raise self.error or RecordError("the load was refused")
        return self.module

    def __str__(self) -> str:
        if self.error is None or isinstance(self.error, RecordValidationError):
            return str(self.report)
        return f"it does not load: {self.error}"


def into_record(module: Node, group: ParamGroup | None = None) -> ModuleRecord:
    """Every parameter and running state of a module, or those that `group` has, in visit order, and counts (R2, R6).

    Lazy parameters that are recorded are made (R5), one by one, when their
    turn comes.
    """
    if group is not None:
        check_group("into_record_group", group)
    entries: list[tuple[str, RecordEntry]] = []
    saved: dict[int, RecordEntry] = {}
    for path, leaf in leaves(module):
        if isinstance(leaf, (Param, RunningState)) and (group is None or group.matches(leaf.id, path)):
            if id(leaf) not in saved:
                value = _known_at(path, leaf._save_form) if isinstance(leaf, Param) else leaf.value()
                saved[id(leaf)] = RecordEntry(value.without_autodiff(), leaf.id)
            entries.append((path, saved[id(leaf)]))
    counts = {
        _count_name(path): one.count
        for path, one in draws(module)
        if one.count and (group is None or group.matches_path(path))
    }
    return ModuleRecord(entries, scalars=counts)


def _count_name(path: str) -> str:
    """The scalar of a record that holds the count of the Draws at a path."""
    return f"draws/{path}"


def try_load(module: M, record: ModuleRecord) -> LoadResult[M]:
    """`module` with the record's values; the module itself stays as it is, whatever happens.

    Raises:
        TypeError: `record` is no ModuleRecord.
    """
    _check_record(record)
    try:
        plan = _Plan(module, record)
    except RecordError as raised:  # data that is compared, of entries for one tied parameter, cannot be read
        return LoadResult(None, raised)
    error: RecordError | None = plan.refusal()
    loaded: Any = None
    if error is None:
        try:
            loaded = rebuild(module, Each(plan.load), plan.counted)
        except RecordError as raised:
            error = raised
    report = plan.report()
    return LoadResult(loaded, error, report.missing, report.unused, report.mismatched, report)


def preview_load(module: Node, record: ModuleRecord) -> LoadReport:
    """What loading `record` into `module` would come to; nothing is loaded, and no initial value made.

    ``print(preview_load(model, record))``, or ``.text(None)`` for all of it.

    Raises:
        TypeError: `module` or `record` is none.
        RecordError: data that is compared, of several entries for one tied parameter, cannot be read.
    """
    if not isinstance(module, Node):
        raise TypeError(f"preview_load takes a module, not a {type(module).__qualname__}")
    _check_record(record)
    return _Plan(module, record).report()


def _check_record(record: Any) -> None:
    if not isinstance(record, ModuleRecord):
        raise TypeError(
            f"a module loads a ModuleRecord, not a {type(record).__qualname__}; "
            "open_record(file) or into_record() of a module gives one"
        )


class _Plan:
    """What of a record goes where in a module, found out without reading data."""

    def __init__(self, module: Node, record: ModuleRecord) -> None:
        self._record = record
        self._casts = record.options.dtype_policy == "CastToModule"
        self._entries: dict[int, tuple[RecordEntry, ParamId | None]] = {}
        self.missing: list[str] = []
        self.mismatched: list[Mismatch] = []
        self._loaded: list[Loading] = []
        self._turned: list[str] = []
        places: dict[int, tuple[Param | RunningState, list[str]]] = {}
        known: dict[str, None] = {}
        for path, leaf in leaves(module):
            if isinstance(leaf, (Param, RunningState)):
                places.setdefault(id(leaf), (leaf, []))[1].append(path)
                known[path] = None
        for leaf, paths in places.values():
            self._find(leaf, paths)
        self._counts: dict[int, int] = {}
        drawing: dict[int, list[str]] = {}
        for path, one in draws(module):
            drawing.setdefault(id(one), []).append(path)
        for key, at in drawing.items():
            self._find_count(key, at)
        self._is_foreign = bool(known) and record.kind != "module"
        missing = set(self.missing)
        self.missing = [path for path in known if path in missing]  # in visit order, which tied ones interrupt
        self.unused = sorted(path for path in record if path not in known)
        self._paths = tuple(known)

    def _find(self, leaf: Param | RunningState, paths: list[str]) -> None:
        """The entry for a leaf that stands at these paths."""
        kind = leaf.kind if isinstance(leaf, Param) else "float"
        found = {path: self._record[path].of_kind(kind) for path in paths if path in self._record}
        if not found:
            self.missing += paths
            return
        problems = [
            Mismatch(path, reason) for path, entry in found.items() if (reason := self._reason(path, leaf, entry))
        ]
        if not problems:
            problems = self._differing(found)
        self.mismatched += problems
        if not problems:
            ids = (entry.id for entry in found.values())
            self._entries[id(leaf)] = next(iter(found.values())), next((i for i in ids if i is not None), None)
            rest = tuple(path for path in paths if path not in found)
            self._loaded += [self._loading(path, leaf, entry, rest) for path, entry in found.items()]

    def _reason(self, path: str, leaf: Param | RunningState, entry: RecordEntry) -> str | None:
        """Why an entry does not fit a leaf; None if it does (R12, R13, R15 to R17)."""
        if isinstance(leaf, Param):
            shape, kind, dtype = _known_at(path, leaf._record_shape), leaf.kind, leaf.dtype
        else:
            value = leaf.value()
            shape, kind, dtype = value.shape, "float", value.dtype
        if entry.kind != kind:
            return f"the record has {entry.dtype}, the module {dtype}; kinds are not converted"
        if entry.shape != shape:
            if (*entry.shape[:-2], *entry.shape[-2:][::-1]) == shape:
                self._turned.append(path)
            return f"the record has shape {list(entry.shape)}, the module {list(shape)}"
        if self._casts and isinstance(dtype, QuantScheme):
            dtype = _known_at(path, leaf._record_dtype) if isinstance(leaf, Param) else dtype
            if entry.dtype != dtype:
                return f"the record has {entry.dtype}, the module {dtype}; a load does not quantize: do it afterwards"
        return None

    def _loading(self, path: str, leaf: Param | RunningState, entry: RecordEntry, tied: tuple[str, ...]) -> Loading:
        """What the report says of an entry that fits; `tied` are the leaf's places that have no entry."""
        of = leaf if isinstance(leaf, Param) else leaf.value()
        is_kept = not self._casts and not (isinstance(leaf, RunningState) and isinstance(entry.dtype, QuantScheme))
        dtype = entry.dtype if is_kept else of.dtype
        return Loading(path, entry.shape, str(entry.dtype), str(dtype), str(of.dtype), of.device.inner(), tied)

    def _differing(self, found: dict[str, RecordEntry]) -> list[Mismatch]:
        """What speaks against loading one tied parameter from the entries of several of its places (D8)."""
        first = next(iter(found))
        return [
            Mismatch(path, f"tied to {first} in the module, but the record has different values for the two")
            for path, entry in found.items()
            if path != first and not _same_data(found[first], entry)
        ]

    def _find_count(self, key: int, paths: list[str]) -> None:
        """The count for the Draws that stand at these paths, by their id in memory."""
        scalars = self._record.scalars
        found = [(path, scalars[name].value) for path in paths if (name := _count_name(path)) in scalars]
        problems = [
            Mismatch(_count_name(path), f"the record has {count!r}, which is no count of draws")
            for path, count in found
            if type(count) is not int or count < 0
        ] or [
            Mismatch(_count_name(path), f"tied to {found[0][0]} in the module, but the record has different counts")
            for path, count in found
            if count != found[0][1]
        ]
        self.mismatched += problems
        if found and not problems:
            self._counts[key] = int(found[0][1])

    def counted(self, one: Draws) -> Draws:
        """Draws of the loaded module's own, with the record's count; where it has none, with the one they had."""
        return one._derived(self._counts.get(id(one)))

    def refusal(self) -> RecordValidationError | None:
        """The one error that names everything that the record's options do not allow (R23 to R27)."""
        options = self._record.options
        mismatched = self.mismatched if options.validate else []
        missing = [] if options.allow_partial else self.missing
        unused = [] if options.allow_unused else self.unused
        is_foreign = self._is_foreign
        if not (mismatched or missing or unused or is_foreign):
            return None
        findings = [f"Burn stored it for its {self._record.kind}, not for a module"] if is_foreign else []
        findings += [f"{mismatch.path}: {mismatch.reason}" for mismatch in mismatched]
        findings += [f"{path}: missing from the record (allow_partial=True leaves it as it is)" for path in missing]
        findings += [f"{path}: unused, not in the module (allow_unused=True ignores it)" for path in unused]
        findings += self._hint_of_part()
        wrong = [mismatch.path for mismatch in mismatched]
        return RecordValidationError(findings, missing=missing, unused=unused, mismatched=wrong)

    def _hint_of_part(self) -> list[str]:
        """That the whole module stands under a prefix, as in the record of a training run; the shortest ones."""
        if not self.missing or self._loaded or self.mismatched:
            return []
        ends, unused = f".{self.missing[0]}", set(self.unused)
        starts = sorted((path.removesuffix(ends) for path in self.unused if path.endswith(ends)), key=len)
        found = [start for start in starts if all(f"{start}.{path}" in unused for path in self.missing)][:_HINTS]
        parts = " or ".join(f"record.part({start!r})" for start in found)
        return [f"all that is missing is below a prefix: load {parts}"] if found else []

    def report(self) -> LoadReport:
        """What goes where, and what does not."""
        refusal = self.refusal()
        return LoadReport(
            tuple(self._loaded),
            tuple(self.missing),
            tuple(self.unused),
            tuple(self.mismatched),
            tuple(self._turned),
            () if refusal is None else refusal.findings,
            self._paths,
        )

    def load(self, path: str, leaf: Leaf) -> Leaf:
        """The leaf with its entry's value, read straight onto the leaf's device; itself where it has none."""
        if id(leaf) not in self._entries:
            return leaf._derived(leaf.value()) if isinstance(leaf, RunningState) else leaf
        entry, id_ = self._entries[id(leaf)]
        if isinstance(leaf, Param):
            tensor = entry.read(leaf.device.inner())
            return leaf._loaded(id_, _cast(tensor, leaf.dtype) if self._casts else tensor)
        if isinstance(leaf, RunningState):
            value = leaf.value()
            tensor = entry.read(value.device.inner())
            tensor = _cast(tensor, value.dtype) if self._casts or tensor.is_quantized else tensor  # never quantized
            return leaf._derived(tensor.autodiff() if value.device.is_autodiff else tensor)
        raise AssertionError("only parameters and running states have entries")


def _known_at(path: str, call: Callable[[], T]) -> T:
    """What `call` gives; to an exception of an initialiser or mapper in it, the path is added as a note."""
    try:
        return call()
    except Exception as error:
        error.add_note(f"at {path}")
        raise


def _cast(tensor: Tensor, dtype: DType | QuantScheme) -> Tensor:
    """An entry's tensor in the dtype of what takes it; one of that scheme as it is (R14, R15)."""
    if isinstance(dtype, QuantScheme):
        return tensor
    return dequantize(tensor, dtype) if tensor.is_quantized else tensor.cast(dtype)


def _same_data(a: RecordEntry, b: RecordEntry) -> bool:
    """Whether two entries have the same dtype, shape and bits."""
    if a.source is b.source:
        return True
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if isinstance(a.dtype, QuantScheme):
        return a.read(_HOST).tobytes() == b.read(_HOST).tobytes()
    one, other = a.host(), b.host()
    bits = f"u{one.dtype.itemsize}"  # so that -0 is not 0 and a NaN is itself, without copies of the data
    return np.array_equal(one.view(bits), other.view(bits))
