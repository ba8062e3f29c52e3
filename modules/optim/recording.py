"""States of an optimizer as a record, and back.

An entry ``<id>.moment_1`` is what is kept under that name for the parameter of
that id, which is the entry's id too; names are Burn's. The scalar
``<id>.time`` counts the parameter's steps, and ``states`` the parameters, so
that a record of no steps differs from one of no optimizer.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from engine.updates import state_dtype
from modules.module import Module
from modules.param import Param
from modules.tree import leaves
from records import ModuleRecord, ParamId, RecordEntry, RecordError, RecordValidationError

from .state import State

_STATES: Final = "states"
_TIME: Final = "time"


def into_record(states: Mapping[ParamId, State], counts: bool) -> ModuleRecord:
    """The record of states; `counts` says whether they count steps."""
    entries = [
        (f"{id}.{name}", RecordEntry(tensor, id)) for id, state in states.items() for name, tensor in state.kept.items()
    ]
    times = {f"{id}.{_TIME}": state.time for id, state in states.items()} if counts else {}
    return ModuleRecord(entries, scalars={_STATES: len(states), **times})


def states_of(
    record: ModuleRecord, module: Module, optimizer: str, kept: Sequence[str], counts: bool
) -> Mapping[ParamId, State]:
    """The states in a record, each on the device of its parameter, in visit order.

    Args:
        record: what `into_record` gave, perhaps by a file.
        module: has the parameters.
        optimizer: its name, for messages.
        kept: the names of what a state holds.
        counts: whether a state counts steps.

    Raises:
        RecordValidationError: the record does not fit; all findings at once.
        RecordError: its data cannot be read.
        TypeError: `record` is no ModuleRecord.
    """
    if not isinstance(record, ModuleRecord):
        raise TypeError(
            f"{optimizer} loads a ModuleRecord, not a {type(record).__qualname__}; open_record(file).part(…) gives one"
        )
    if not isinstance(module, Module):
        raise TypeError(f"{optimizer}.load_record takes a record and the Module, not a {type(module).__qualname__}")
    plan = _Plan(record, module, optimizer, kept, counts)
    plan.refuse()
    return plan.states()


class _Plan:
    """What of a record is whose state, found out without reading data."""

    def __init__(self, record: ModuleRecord, module: Module, optimizer: str, kept: Sequence[str], counts: bool) -> None:
        self._record: Final = record
        self._counts: Final = counts
        self._kept: Final = kept
        self._optimizer: Final = optimizer
        self._params: Final = {
            leaf.id: leaf for _, leaf in leaves(module) if isinstance(leaf, Param) and leaf.kind == "float"
        }
        self._found: Final[dict[ParamId, dict[str, RecordEntry]]] = {}
        self._unused: Final[dict[str, str]] = {}
        self._mismatched: Final[dict[str, str]] = {}
        self._missing: Final[dict[str, str]] = {}
        for path, entry in record.items():
            self._sort(path, entry)
        self._complete()

    def _sort(self, path: str, entry: RecordEntry) -> None:
        """Put an entry where it belongs."""
        head, _, name = path.rpartition(".")
        try:
            id_ = ParamId.parse(head)
        except RecordError:
            self._unused[path] = "no parameter's id and the name of a state"
            return
        param = self._params.get(id_)
        if name not in self._kept:
            self._unused[path] = f"{self._optimizer} keeps {' and '.join(self._kept) or 'nothing'}"
        elif param is None:
            self._unused[path] = (
                "no parameter of the module has this id; load the module's record first, or, where the parameter was "
                "replaced or removed, drop its state by with_options(allow_unused=True)"
            )
        elif (reason := self._reason(param, entry)) is not None:
            self._mismatched[path] = reason
        else:
            self._found.setdefault(id_, {})[name] = entry

    def _reason(self, param: Param, entry: RecordEntry) -> str | None:
        """Why an entry is no state of a parameter; None if it is one."""
        of = state_dtype(param.dtype)
        if entry.shape != param.shape:
            return f"the record has shape {list(entry.shape)}, the parameter {list(param.shape)}"
        if entry.dtype != of and (entry.kind != "float" or self._record.options.dtype_policy != "CastToModule"):
            return f"the record has {entry.dtype}; the state of this parameter is {of}"
        return None

    def _complete(self) -> None:
        """Note what states lack; one that is not whole is left out."""
        scalars = self._record.scalars
        if _STATES not in scalars:
            self._missing[_STATES] = "the record has no such number, which an optimizer's record has"
        elif int(scalars[_STATES]) != len({path.rpartition(".")[0] for path in self._record}):
            self._missing[_STATES] = f"the record should have the states of {int(scalars[_STATES])} parameters"
        for id_ in list(self._found):
            lacking = [f"{id_}.{name}" for name in self._kept if name not in self._found[id_]]
            lacking = [path for path in lacking if path not in self._mismatched]
            time = scalars.get(f"{id_}.{_TIME}")
            if self._counts and (time is None or time.kind not in ("Int", "UInt") or int(time) < 1):
                lacking.append(f"{id_}.{_TIME}")
            self._missing.update(dict.fromkeys(lacking, "missing from the record"))
            if lacking or len(self._found[id_]) != len(self._kept):
                del self._found[id_]

    def refuse(self) -> None:
        """Raise the one error that names everything that the record's options do not allow."""
        options = self._record.options
        mismatched = self._mismatched if options.validate else {}
        missing = {} if options.allow_partial else self._missing
        unused = {} if options.allow_unused else self._unused
        findings = [f"{path}: {reason}" for part in (mismatched, missing, unused) for path, reason in part.items()]
        if findings:
            raise RecordValidationError(
                findings, missing=list(missing), unused=sorted(unused), mismatched=list(mismatched)
            )

    def states(self) -> Mapping[ParamId, State]:
        """The states, read straight onto the parameters' devices."""
        made: dict[ParamId, State] = {}
        for id_, param in self._params.items():
            if id_ in self._found:
                entries, place, of = self._found[id_], param.device.inner(), state_dtype(param.dtype)
                time = int(self._record.scalars[f"{id_}.{_TIME}"]) if self._counts else 0
                made[id_] = State({name: entries[name].read(place).cast(of) for name in self._kept}, time)
        return made
