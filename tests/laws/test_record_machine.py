"""Modules, records and files against dicts: the second state machine of the suite (L54 to L60).

Two builds of one module, and versions made of them, are recorded, saved,
loaded, copied and renumbered in any order; records are edited, files cut and
altered. What each version holds is kept as a dict of values and ids by path.
Versions are picked by their distance from the newest.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from . import record_expected as expected
from .burnpack_file import stored
from .calls import applied, built, output, read
from .law import law
from .observations import Bits
from .operations import Clone, Force, Fork, LoadOptions, LoadRecord, Map, Record, ReplaceId, ToRecord
from .programs import IDS
from .protocol import Adapter, Handle, Refused
from .record_generators import OPTIONS, builds, edit, edited
from .record_operations import STRICT, Fitting, Load, Save
from .spec_tree import ParamSpec, TreeSpec, lazy_paths, tied_with

STEPS: Final = 30
BACK: Final = st.integers(0, 3)


@dataclass(frozen=True)
class Version:
    """A module and its dicts: the value that each path has or will have, and its id.

    `pending` are the paths whose values the first build's initialisers make;
    of those the family's `unmade` still has, no version has a value.
    """

    handle: Handle
    spec: TreeSpec
    values: dict[str, Bits]
    ids: dict[str, int]
    pending: frozenset[str]
    unmade: set[str]

    def lazy(self) -> set[str]:
        """Paths without a value yet."""
        return set(self.pending & self.unmade)

    def made(self, paths: Any) -> None:
        """The values at these paths exist from now on, in every version that waits for them."""
        for path in paths:
            if path in self.pending:
                self.unmade.difference_update(tied_with(self.spec, path))

    def record(self) -> Record:
        """The record that it must have."""
        ids = self.ids
        return Record(tuple(replace(e, bits=self.values[e.path]) for e in expected.record(self.spec, ids).entries))


@dataclass(frozen=True)
class File:
    """A record, or the bytes of a file, and the record that it holds; None if it must be refused."""

    data: bytes | None
    record: Record | None


def _is_value(bits: Bits) -> bool:
    """Whether these are bytes of their dtype (R75)."""
    return bits.dtype != "bool" or set(bits.data) <= {0, 1}


class RecordMachine(RuleBasedStateMachine):
    """Calls of an adapter, each beside what it does to dicts."""

    adapter: Adapter

    def __init__(self) -> None:
        super().__init__()
        self.versions: list[Version] = []
        self.files: list[File] = []

    def version(self, back: int) -> Version:
        return self.versions[max(0, len(self.versions) - 1 - back)]

    def file(self, back: int) -> File:
        return self.files[max(0, len(self.files) - 1 - back)]

    def add(self, version: Version, handle: Handle, **changes: Any) -> None:
        self.versions.append(replace(version, handle=handle, **changes))

    @initialize(data=st.data())
    def build(self, data: Any) -> None:
        both = data.draw(builds(self.adapter.grammar))
        for spec in (both.source, both.target):
            module = built(self.adapter, spec)
            ids = self.adapter.meta(module).ids()
            values = {entry.path: entry.bits for entry in expected.record(spec, ids).entries}
            lazy = lazy_paths(spec)
            self.versions.append(Version(module, spec, values, ids, frozenset(lazy), set(lazy)))
        self.record(1, "record")

    # Modules

    @rule(back=BACK, device=st.none() | st.integers(0, 3))
    def clone_or_fork(self, back: int, device: int | None) -> None:
        version, devices = self.version(back), self.adapter.grammar.devices
        copying = Clone() if device is None else Fork(devices[device % len(devices)])
        self.add(version, applied(self.adapter, version.handle, copying))

    @rule(back=BACK, number=st.sampled_from((0, 2**64 - 1)) | IDS, data=st.data())
    def replace_id(self, back: int, number: int, data: Any) -> None:
        version = self.version(back)
        alone = [path for path, *others in expected.objects(version.spec) if not others]
        paths = [path for path in alone if isinstance(expected.recorded(version.spec)[path], ParamSpec)]
        if paths:
            path = data.draw(st.sampled_from(paths))
            handle = applied(self.adapter, version.handle, Map(((ReplaceId(path, number),),)))
            self.add(version, handle, ids=version.ids | {path: number})

    @precondition(lambda self: self.versions[-1].lazy())
    @rule(data=st.data())
    def force(self, data: Any) -> None:
        path = data.draw(st.sampled_from(sorted(self.versions[-1].lazy())))
        applied(self.adapter, self.versions[-1].handle, Force(path))
        self.versions[-1].made([path])

    # Records and files

    @rule(back=BACK, way=st.sampled_from(("record", "bytes", "bytes", "file")))
    def record(self, back: int, way: str) -> None:
        version = self.version(back)
        if way == "record":
            record = output(self.adapter, version.handle, ToRecord())
            assert record == version.record()
            self.files.append(File(None, record))
        else:
            data = output(self.adapter, version.handle, Save("burnpack", in_memory=way == "bytes"))
            self.files.append(File(data, expected.in_file_order(version.record())))
        version.made(version.pending)

    @rule(back=BACK, data=st.data(), as_file=st.booleans())
    def edit(self, back: int, data: Any, as_file: bool) -> None:
        record = self.file(back).record
        if record is not None:
            change = data.draw(st.composite(edit)(self.versions[0].spec, self.adapter.grammar))
            record = edited(record, (change,))
            handle = self.versions[0].handle
            written = output(self.adapter, handle, Save("burnpack", record, in_memory=True)) if as_file else None
            self.files.append(File(written, record))

    @precondition(lambda self: any(file.data for file in self.files))
    @rule(back=BACK, part=st.integers(0, 999))
    def cut(self, back: int, part: int) -> None:
        """A file whose end is missing."""
        data = self.file(back).data
        if data is not None and (self.file(back).record or Record(())).entries:
            self.files.append(File(data[: len(data) * part // 1000], None))

    @precondition(lambda self: any(file.data for file in self.files))
    @rule(back=BACK, data=st.data(), mask=st.integers(1, 255))
    def alter(self, back: int, data: Any, mask: int) -> None:
        """A byte of a tensor's data becomes another one: its value does, or it is no value any more."""
        file = self.file(back)
        places = {} if file.data is None or file.record is None else stored(file.data)
        paths = [path for path, at in places.items() if at.end > at.start]
        if paths and file.data is not None and file.record is not None:
            path = data.draw(st.sampled_from(paths))
            at = places[path].start
            altered = file.data[:at] + bytes([file.data[at] ^ mask]) + file.data[at + 1 :]
            bits = Bits(places[path].dtype, places[path].shape, altered[at : places[path].end])
            entries = [replace(entry, bits=bits) if entry.path == path else entry for entry in file.record.entries]
            self.files.append(File(altered, Record(tuple(entries))))

    # Loading

    @rule(back=BACK, at=BACK, in_memory=st.sampled_from((True, True, True, False)))
    def load(self, back: int, at: int, in_memory: bool) -> None:
        self.load_with_options(back, at, STRICT, False, in_memory)

    @rule(back=BACK, at=BACK, options=st.sampled_from(OPTIONS[1:]), cast=st.booleans(), in_memory=st.just(True))
    def load_with_options(self, back: int, at: int, options: LoadOptions, cast: bool, in_memory: bool) -> None:
        version, file, options = self.version(back), self.file(at), replace(options, cast=cast)
        operation = LoadRecord(file.record or Record(()), options)
        if file.data is not None:
            operation = Load(file.data, "burnpack", options, in_memory)
        answer = self.adapter.apply(version.handle, operation)
        if file.record is None:
            assert isinstance(answer, Refused)
            assert answer.kind == "record_format"
            return
        errors = expected.allowed(expected.fitting(version.spec, file.record), options)
        entries = expected.taken(version.spec, file.record)
        event("loaded" if not isinstance(answer, Refused) else f"refused: {answer.kind}")
        damaged = {entry.path for entry in file.record.entries if not _is_value(entry.bits)}
        if isinstance(answer, Refused) and damaged and (errors == Fitting() or answer.kind == "record_format"):
            assert answer.kind == "record_format"
            return
        if isinstance(answer, Refused):
            lists = Fitting(answer.missing, answer.unused, tuple(sorted(answer.mismatched)))
            assert (answer.kind, lists) == (expected.kind_of_refusal(errors), errors)
            return
        assert errors == Fitting()
        assert not damaged & {entry.path for entry in entries.values()}
        self.add_loaded(version, answer.handle, entries, cast)

    def add_loaded(self, version: Version, handle: Handle, entries: dict[str, Any], cast: bool) -> None:
        values = dict(version.values)
        for path, entry in entries.items():
            own = version.values[path].dtype
            values[path] = read(self.adapter, handle, path) if cast and own != entry.bits.dtype else entry.bits
            if cast and own != entry.bits.dtype:
                assert expected.same_number(values[path], expected.cast(entry.bits, own), entry.bits)
        ids = {
            path: entry.id
            for path, entry in entries.items()
            if entry.id is not None and isinstance(expected.recorded(version.spec)[path], ParamSpec)
        }
        pending = version.pending - entries.keys()
        self.add(version, handle, values=values, ids=version.ids | ids, pending=pending)

    # Comparing

    @invariant()
    def every_version_is_its_dict(self) -> None:
        for version in (*self.versions[:2], *self.versions[2:][-3:]):
            meta = self.adapter.meta(version.handle)
            lazy = meta.lazy()
            assert (lazy, meta.ids()) == (version.lazy(), version.ids)
            assert {path: read(self.adapter, version.handle, path) for path in version.values if path not in lazy} == {
                path: bits for path, bits in version.values.items() if path not in lazy
            }


@law(
    "L54",
    "L55",
    "L56",
    "L57",
    "L58",
    "L60",
    needs=("records", "records.options", "ids", "lazy", "format.burnpack", "fork"),
)
def test_modules_records_and_files_agree_with_dicts(adapter: Adapter, profile: settings) -> None:
    """Runs of 30 steps: few long ones find more than many short ones. Every version is compared after every step."""
    machine = type("Records", (RecordMachine,), {"adapter": adapter})
    runs = max(10, profile.max_examples // 2)

    run_state_machine_as_test(machine, settings=settings(profile, max_examples=runs, stateful_step_count=STEPS))
