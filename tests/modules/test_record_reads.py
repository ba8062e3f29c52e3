"""What a load reads, how often and onto which device, and what it leaves alone as objects (L58, L60, L63).

Entries are given sources that count what is asked of them.
"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import Device, Tensor, transfer
from modules import Module, Param, RunningState
from modules.parallel import DistributedLayeredModel, LayerPlacement
from records import ModuleRecord, RecordEntry, RecordFormatError
from records.storage import Storage
from tests.laws import record_expected as expected
from tests.laws.engine_adapter import EngineAdapter, Version
from tests.laws.engine_build import tensor_of
from tests.laws.law import inside
from tests.laws.observations import Bits
from tests.laws.operations import Entry, LoadOptions, Record
from tests.laws.protocol import Refused
from tests.laws.record_engine import as_record, bits_of, with_options
from tests.laws.record_generators import Builds, Change, builds, changes, edited
from tests.laws.record_operations import Fitting
from tests.laws.spec_tree import TreeSpec, Value, leaves
from tests.parallel.small_models import Chain

ENGINE = EngineAdapter()
BUILDS = builds(ENGINE.grammar, min_devices=3)
EVERYTHING = LoadOptions(cast=False, allow_partial=True, allow_unused=True, validate=False)


class Counting:
    """A source of an entry that notes each read with its device, and each time it is compared as ``"host"``."""

    def __init__(self, path: str, tensor: Tensor, asked: list[tuple[str, str]], damaged: bool = False) -> None:
        self.path = path
        self.tensor = tensor
        self.asked = asked
        self.damaged = damaged
        self.dtype = tensor.dtype
        self.shape = tensor.shape
        self.nbytes = tensor.nbytes

    def _note(self, where: str) -> None:
        self.asked.append((self.path, where))
        if self.damaged:
            raise RecordFormatError(f"{self.path} is damaged")

    def host(self) -> NDArray[Any]:
        self._note("host")
        return self.tensor.numpy()

    def read(self, device: Device) -> Tensor:
        self._note(str(device))
        return Tensor.from_numpy(self.tensor.numpy(), device)


def built(spec: TreeSpec) -> Version:
    made = ENGINE.build(spec)
    assert not isinstance(made, Refused), made.message
    return made


def record_of(spec: TreeSpec) -> Record:
    return expected.record(spec, {path: number for number, path in enumerate(leaves(spec))})


def counted(record: Record, asked: list[tuple[str, str]], damaged: str | None = None) -> ModuleRecord:
    """The record, each entry of which notes what is asked of it."""
    entries: list[tuple[str, RecordEntry]] = []
    for path, entry in as_record(record).items():
        source = Counting(path, entry.read("cpu:0"), asked, path == damaged)
        entries.append((path, RecordEntry(source, entry.id)))
    return ModuleRecord(entries)


def device_of(module: Any, path: str) -> str:
    found = module.at(path)
    return str((found.value().device if isinstance(found, RunningState) else found.device).inner())


# Reading


@inside("L63")
@given(case=BUILDS)
def test_each_tensor_is_read_once_and_straight_onto_its_parameters_device(case: Builds) -> None:
    """The first of tied entries is read; to compare them each is looked at once more. Nothing is copied (R35, D8)."""
    module = built(case.target).module
    asked: list[tuple[str, str]] = []
    record = counted(record_of(case.source), asked)
    assert not asked

    with transfer.log() as log:
        loaded = module.load_record(record)

    reads = [(paths[0], device_of(module, paths[0])) for paths in expected.objects(case.target)]
    assert [one for one in asked if one[1] != "host"] == reads
    tied = {path for paths in expected.objects(case.target) if len(paths) > 1 for path in paths}
    assert {path for path, where in asked if where == "host"} == tied
    assert not log.copies
    assert [device_of(loaded, path) for path, _ in reads] == [device for _, device in reads]


@inside("L63")
@given(case=changes(ENGINE.grammar), cast=st.booleans())
def test_only_what_the_module_takes_is_read(case: Change, cast: bool) -> None:
    """Not what is unused or does not fit (R9, R41)."""
    spec = case.builds.target
    asked: list[tuple[str, str]] = []
    record = edited(record_of(case.builds.source), case.edits)
    options = LoadOptions(cast, allow_partial=True, allow_unused=True, validate=False)

    built(spec).module.load_record(with_options(counted(record, asked), options))

    taken = expected.taken(spec, record)
    firsts = {entry.path for entry in taken.values()}
    assert Counter(path for path, where in asked if where != "host") == Counter(firsts)
    tied = {path for paths in expected.objects(spec) if len(paths) > 1 for path in paths}
    assert {path for path, where in asked if where == "host"} <= tied


@inside("L63")
@given(case=BUILDS)
def test_opening_and_loading_a_file_views_each_tensor_of_the_module_once(case: Builds) -> None:
    """Opening views none (R41)."""
    viewed: list[int] = []
    array = Storage.array

    def viewing(self: Storage, what: str, offset: int, *rest: Any) -> Any:
        viewed.append(offset)
        return array(self, what, offset, *rest)

    alone = [paths[0] for paths in expected.objects(case.target) if len(paths) == 1]
    entries = tuple(entry for entry in record_of(case.source).entries if entry.path in alone)
    record = as_record(Record(entries))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Storage, "array", viewing)
        with ModuleRecord.from_bytes(record.into_bytes()) as opened:
            assert not viewed
            built(case.target).module.load_record(with_options(opened, EVERYTHING))

    assert len(viewed) == len(alone)
    assert len(set(viewed)) >= len([entry for entry in entries if entry.bits.data])


class LazyScale(Module):
    """A layer of one lazy parameter, whose initial value is never made."""

    def __init__(self, device: Device) -> None:
        def init(device: Device, require_grad: bool) -> Tensor:
            raise AssertionError("an initial value was made")

        self.weight = Param.lazy(init, (2, 3), "float32", device)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.val()


DEVICES = st.sampled_from([Device.cpu(index) for index in range(4)])


@inside("L63")
@given(input=DEVICES, hidden=st.lists(DEVICES, max_size=5), output=DEVICES)
def test_a_split_model_reads_each_weight_onto_its_own_layers_device(
    input: Device, hidden: list[Device], output: Device
) -> None:
    """Nothing is assembled on one device, and no initial value is made (R21, R35, P52)."""
    placement = LayerPlacement(input, hidden, output)
    chain = Chain(LazyScale(input), [LazyScale(device) for device in hidden], LazyScale(output))
    model = DistributedLayeredModel(chain, placement)
    there = {"stem.weight": input, **{f"blocks.{n}.weight": d for n, d in enumerate(hidden)}, "head.weight": output}
    value = Bits("float32", (2, 3), bytes(24))
    asked: list[tuple[str, str]] = []

    with transfer.log() as log:
        loaded = model.load_record(counted(Record(tuple(Entry(path, value) for path in there)), asked))

    assert sorted(asked) == sorted((path, str(device)) for path, device in there.items())
    assert not log.copies
    assert loaded.placement == placement
    assert {path: loaded.at(path).device for path in there} == there


# Failures


@inside("L58")
@given(case=changes(ENGINE.grammar, least=1))
def test_a_refused_load_reads_nothing_and_leaves_the_record_as_it_was(case: Change) -> None:
    """All is checked before any data is read; but tied entries are compared (R29, D8)."""
    spec = case.builds.target
    record = edited(record_of(case.builds.source), case.edits)
    fits = expected.fitting(spec, record) == Fitting()
    event(f"fits: {fits}")
    asked: list[tuple[str, str]] = []
    counting = counted(record, asked)
    options, before = counting.options, dict(counting.items())

    result = built(spec).module.try_load_record(counting)

    assert (result.module is None) == (result.error is not None) == (not fits)
    assert fits or not [where for _, where in asked if where != "host"]
    assert (counting.options, dict(counting.items())) == (options, before)


@inside("L58")
@given(case=BUILDS, place=st.integers(0, 6))
def test_data_that_cannot_be_read_leaves_every_object_where_it_was(case: Builds, place: int) -> None:
    """Whichever entry it is: no parameter object, running state or value of the receiver is another one (R29, R104)."""
    version = built(case.target)
    module = version.module
    record = record_of(case.source)
    damaged = record.entries[place % len(record.entries)].path
    held = {path: module.at(path) for path in leaves(case.target)}
    values = {path: one.value() for path, one in held.items() if isinstance(one, RunningState)}
    values |= {path: one.base() for path, one in held.items() if isinstance(one, Param) and one.is_initialized}

    result = module.try_load_record(counted(record, [], damaged))

    assert result.module is None
    assert isinstance(result.error, RecordFormatError)
    assert all(module.at(path) is one for path, one in held.items())
    for path, value in values.items():
        now = held[path]
        assert (now.value() if isinstance(now, RunningState) else now.base()) is value
    assert not any(version.built.runs.values())


# Casts


@inside("L60")
@given(case=BUILDS)
def test_cast_to_module_is_the_engines_own_cast(case: Builds) -> None:
    """To the last bit, NaNs too (R14)."""
    module = built(case.target).module
    record = record_of(case.source)

    loaded = module.load_record(with_options(as_record(record), LoadOptions(cast=True)))

    for entry in record.entries:
        before, after = module.at(entry.path), loaded.at(entry.path)
        dtype = before.value().dtype if isinstance(before, RunningState) else before.dtype
        value = tensor_of(Value(entry.bits.dtype, entry.bits.shape, entry.bits.data))
        tensor = after.value() if isinstance(after, RunningState) else after.base()
        assert bits_of(tensor) == bits_of(value.cast(dtype))
