"""Records and files of an adapter: loads by any way, which must succeed or must be refused."""

from .calls import applied, output
from .group_expressions import Paths
from .operations import LoadOptions, LoadRecord, Op, Record, ToRecord
from .protocol import Adapter, Handle, Refused
from .record_generators import Way
from .record_operations import STRICT, Load, Save


def recorded(adapter: Adapter, target: Handle, paths: tuple[str, ...] | None = None) -> Record:
    """A module's record, or that of some of its paths."""
    return output(adapter, target, ToRecord(None if paths is None else Paths(paths)))


def loading(
    adapter: Adapter, target: Handle, record: Record, way: Way, options: LoadOptions = STRICT
) -> LoadRecord | Load:
    """The operation that loads a record by a way; a file is written now."""
    if way.format is None:
        return LoadRecord(record, options)
    data = output(adapter, target, Save(way.format, record, way.in_memory))
    return Load(data, way.format, options, way.in_memory)


def loaded(adapter: Adapter, target: Handle, record: Record, way: Way, options: LoadOptions = STRICT) -> Handle:
    """The module with a record's values, which must fit."""
    return applied(adapter, target, loading(adapter, target, record, way, options))


def refused(adapter: Adapter, target: Handle, operation: Op) -> Refused:
    """The refusal of an operation that must be refused."""
    answer = adapter.apply(target, operation)
    assert isinstance(answer, Refused), f"{operation!r} was not refused"
    return answer
