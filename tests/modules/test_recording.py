"""Modules and records: what is recorded, what a load does, and what it says when it does not fit (R2 to R37)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Device, Tensor, tensor, transfer, zeros
from modules import Array, EnumModule, Flag, Mismatch, Module, ModuleMapper, Param, ParamGroup, RunningState, skip
from records import (
    ModuleRecord,
    ParamId,
    RecordEntry,
    RecordError,
    RecordFormatError,
    RecordIoError,
    RecordValidationError,
    open_record,
)

from .small_modules import AUTODIFF, Block, Holder, LazyLinear, Linear, Stack, numbers


def record_of(**tensors: Tensor) -> ModuleRecord:
    """A record without ids."""
    return ModuleRecord((path, RecordEntry(tensor)) for path, tensor in tensors.items())


def bits(module: Module, path: str) -> bytes:
    leaf = module.at(path)
    return (leaf.value() if isinstance(leaf, RunningState) else leaf.val()).tobytes()


# Recording


def test_a_record_lists_parameters_and_running_states_in_visit_order():
    """R2: not flags, constants, configuration or skipped fields."""
    module = Holder(
        blocks=[Block(2)], pair=(Param(numbers(1)), 3), heads=Array([Param(numbers(1)), None]),
        named={"x": Param(numbers(1))}, hidden=skip(Linear(1, 1)), table=numbers(2),
    )  # fmt: skip
    record = module.into_record()

    assert list(record) == [
        "blocks.0.linear.weight", "blocks.0.linear.bias", "blocks.0.steps", "blocks.0.mean", "pair.0", "heads.0",
        "named.x",
    ]  # fmt: skip
    entry = record["blocks.0.linear.weight"]
    assert entry.id == module.blocks[0].linear.weight.id
    assert (entry.shape, str(entry.dtype)) == ((2, 2), "float32")
    assert np.array_equal(entry.host(), [[1, 2], [3, 4]])


def test_recording_makes_lazy_parameters_and_a_group_only_its_own():
    """R5, R6."""
    made: list[Device] = []
    module = Holder(a=LazyLinear(1, 1, "cpu:0", made), b=LazyLinear(1, 1, "cpu:1", made))

    assert list(module.into_record_group(ParamGroup.from_predicate("b."))) == ["b.weight"]
    assert list(map(str, made)) == ["cpu:1"]
    assert list(module.into_record()) == ["a.weight", "b.weight"]
    assert len(made) == 2


def test_what_is_recorded_does_not_change_with_the_module():
    """R1: a running state is recorded as it was."""
    module = Block(2)
    record = module.into_record()
    module.mean.update(lambda value: value * 100)

    assert np.array_equal(record["mean"].host(), [1, 2])


# Loading


def test_a_load_takes_values_and_ids_and_leaves_the_rest():
    """R9 to R20, M34: flags, constants, trainability and a running state's id stay; entries are found by path."""
    source, target = Block(2).to_device("cpu:1"), Block(2, AUTODIFF)
    source = source.replace(
        training=Flag(False), linear=Linear(2, 2, "cpu:1").replace(weight=Param(numbers(2, 2, start=5)))
    )
    source.mean.update(lambda value: value + 5)
    loaded = target.load_record(source.into_record())

    assert np.array_equal(loaded.linear.weight.val().numpy(), [[5, 6], [7, 8]])
    assert loaded.linear.weight.id == source.linear.weight.id
    assert loaded.linear.weight.val().is_require_grad
    assert str(loaded.linear.weight.device) == AUTODIFF
    assert np.array_equal(loaded.mean.value().numpy(), [6, 7])
    assert loaded.mean.id == target.mean.id
    assert loaded.mean.value().device.is_autodiff
    assert loaded.training is target.training
    assert loaded.table is target.table
    assert loaded.steps.id == source.steps.id
    assert not loaded.steps.trainable


def test_a_load_never_runs_an_initialiser():
    """R21: what is missing stays lazy."""
    made: list[Device] = []
    module = Holder(a=LazyLinear(1, 2, "cpu:0", made), b=LazyLinear(1, 2, "cpu:1", made))
    record = ModuleRecord([("a.weight", RecordEntry(numbers(1, 2)))]).with_options(allow_partial=True)
    loaded = module.load_record(record)

    assert loaded.a.weight.is_initialized
    assert not loaded.b.weight.is_initialized
    assert not module.a.weight.is_initialized
    assert loaded.b.weight is module.b.weight
    assert not made


def test_each_tensor_goes_straight_to_its_own_device():
    """R35: one copy each where it is elsewhere, none where it is there."""
    module = Holder(a=LazyLinear(1, 2, "cpu:1"), b=LazyLinear(1, 2, "cpu:2"), c=LazyLinear(1, 2, "cpu:0"))
    record = ModuleRecord((f"{name}.weight", RecordEntry(numbers(1, 2))) for name in "abc")
    with transfer.log() as log:
        loaded = module.load_record(record)

    assert [str(device) for device in loaded.devices()] == ["cpu:1", "cpu:2", "cpu:0"]
    assert {(str(source), str(target)): count.copies for (source, target, _), count in log.items()} == {
        ("cpu:0", "cpu:1"): 1, ("cpu:0", "cpu:2"): 1,
    }  # fmt: skip


def test_an_entry_without_an_id_leaves_the_parameter_its_own():
    """D9, R40."""
    module = Holder(w=Param(numbers(2)))

    assert module.load_record(record_of(w=numbers(2, start=9))).w.id == module.w.id


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_the_policy_decides_about_the_dtype(dtype: str):
    """R14: FromRecord takes the entry's, CastToModule keeps the parameter's, a lazy one's as it is declared."""
    made: list[Device] = []
    for module in (Holder(w=Param(numbers(2))), Holder(w=RunningState(numbers(2)))):
        record = record_of(w=numbers(2).cast(dtype))
        taken, cast = module.load_record(record).w, module.load_record(record.cast_to_module_dtype()).w
        values = [leaf.value() if isinstance(leaf, RunningState) else leaf.val() for leaf in (taken, cast)]
        assert [str(value.dtype) for value in values] == [dtype, "float32"]
    lazy = LazyLinear(1, 2, made=made).load_record(record_of(weight=numbers(1, 2).cast(dtype)).cast_to_module_dtype())
    assert str(lazy.weight.dtype) == "float32"
    assert not made


@pytest.mark.parametrize(
    ("target", "entry"), [("float32", "int64"), ("float32", "bool"), ("int64", "float32"), ("bool", "uint8")]
)
@pytest.mark.parametrize("policy", ["FromRecord", "CastToModule"])
def test_kinds_are_not_converted(target: str, entry: str, policy: Any):
    """R17: floats, integers and booleans must agree; the error names both dtypes."""
    module = Holder(w=Param(zeros((2,), device="cpu:0", dtype=target)))
    record = record_of(w=zeros((2,), device="cpu:0", dtype=entry)).with_options(dtype_policy=policy)
    result = module.try_load_record(record)

    assert result.mismatched == (
        Mismatch("w", f"the record has {entry}, the module {target}; kinds are not converted"),
    )


def test_everything_that_does_not_fit_is_told_at_once():
    """R27: and the module is as it was (R29)."""
    module = Holder(a=Linear(2, 2), b=Linear(2, 2))
    record = record_of(**{"a.weight": numbers(3, 2), "a.bias": numbers(2), "c": numbers(1), "B": numbers(1)})
    result = module.try_load_record(record)

    assert result.module is None
    assert result.missing == ("b.weight", "b.bias")
    assert result.unused == ("B", "c")
    assert result.mismatched == (Mismatch("a.weight", "the record has shape [3, 2], the module [2, 2]"),)
    assert isinstance(result.error, RecordValidationError)
    assert result.error.findings == (
        "a.weight: the record has shape [3, 2], the module [2, 2]",
        "b.weight: missing from the record (allow_partial=True leaves it as it is)",
        "b.bias: missing from the record (allow_partial=True leaves it as it is)",
        "B: unused, not in the module (allow_unused=True ignores it)",
        "c: unused, not in the module (allow_unused=True ignores it)",
    )
    assert (result.error.missing, result.error.unused, result.error.mismatched) == (
        ("b.weight", "b.bias"), ("B", "c"), ("a.weight",),
    )  # fmt: skip
    with pytest.raises(RecordValidationError, match="a.weight: the record has shape"):
        module.load_record(record)
    assert np.array_equal(module.a.bias.val().numpy(), [1, 2])


@pytest.mark.parametrize("allow_partial", [False, True])
@pytest.mark.parametrize("allow_unused", [False, True])
@pytest.mark.parametrize("validate", [False, True])
def test_each_part_is_an_error_only_under_its_own_option(allow_partial: bool, allow_unused: bool, validate: bool):
    """R23 to R26: what fits is loaded, the rest keeps its value; the result tells all in any case."""
    module = Holder(fits=Param(numbers(2)), other=Param(numbers(2)), absent=Param(numbers(2)))
    record = record_of(fits=numbers(2, start=7), other=numbers(3), unknown=numbers(1)).with_options(
        allow_partial=allow_partial, allow_unused=allow_unused, validate=validate
    )
    result = module.try_load_record(record)
    lists = (result.missing, result.unused, [mismatch.path for mismatch in result.mismatched])

    assert lists == (("absent",), ("unknown",), ["other"])
    if allow_partial and allow_unused and not validate:
        loaded = result.unwrap()
        assert result.error is None
        assert np.array_equal(loaded.fits.val().numpy(), [7, 8])
        assert loaded.other is module.other
        assert loaded.absent is module.absent
    else:
        assert isinstance(result.error, RecordValidationError)
        refused = result.error
        assert (refused.missing == (), refused.unused == (), refused.mismatched == ()) == (
            allow_partial, allow_unused, not validate,
        )  # fmt: skip
        with pytest.raises(RecordValidationError):
            result.unwrap()


def test_a_rank_is_part_of_a_shape():
    """R12."""
    assert Holder(w=Param(numbers(4))).try_load_record(record_of(w=numbers(1, 4))).mismatched


def test_another_variant_is_missing():
    """M7."""

    class Act(EnumModule): ...

    result = Act("On", Param(numbers(1))).try_load_record(Act("Off", Param(numbers(1))).into_record())

    assert (result.missing, result.unused) == (("On",), ("Off",))


def test_a_module_that_is_under_a_prefix_is_found_there(tmp_path: Path):
    """As in the file of a training run; of another module nothing is said."""
    module = Holder(a=Linear(2, 2), b=Linear(2, 2))
    run = module.into_record().under("model") | Linear(2, 2).into_record().under("other")
    run.save(tmp_path / "run.bpk")
    one = "record.part('model')"
    several = "record.part('other') or record.part('model.a') or record.part('model.b')"
    for hint, target in ((one, module), (several, Linear(2, 2))):
        with pytest.raises(RecordValidationError) as raised:
            target.load_file(tmp_path / "run.bpk")
        assert raised.value.findings[-1] == f"all that is missing is below a prefix: load {hint}"
    with open_record(tmp_path / "run.bpk") as record:
        assert module.try_load_record(record.part("model")).error is None
        for prefix in ("other", "model.a", "model.b"):
            assert Linear(2, 2).try_load_record(record.part(prefix)).error is None
    other, half = Holder(weight=Param(numbers(1)), gamma=Param(numbers(1))), Holder(model=module, weight=numbers(2, 2))
    for target in (other, half.replace(weight=Param(half.weight))):
        with pytest.raises(RecordValidationError) as raised:
            target.load_file(tmp_path / "run.bpk")
        assert ".part(" not in str(raised.value)


def test_an_empty_record_fits_a_module_without_parameters_only():
    """R28: scalars of a record play no part."""
    empty = ModuleRecord(scalars={"step": 3})

    assert Holder(on=Flag(True)).load_record(empty).on.is_enabled
    assert Holder(w=Param(numbers(1))).try_load_record(empty).missing == ("w",)


def test_loading_twice_is_loading_once_and_recording_gives_the_record_back():
    """R31: order by the module, bits and ids."""
    source, module = Block(2), Block(2)
    record = source.into_record()
    reordered = ModuleRecord(reversed(list(record.items())))
    once = module.load_record(reordered)
    twice = once.load_record(reordered)
    for loaded in (once, twice):
        back = loaded.into_record()
        assert list(back) == list(record)
        assert all(back[path].host().tobytes() == record[path].host().tobytes() for path in record)
        assert all(back[path].id == record[path].id for path in record if path != "mean")


def test_a_group_record_loads_into_the_part_that_it_has():
    """R32."""
    source, module = Stack(2, ["cpu:0"]), Stack(2, ["cpu:0"])
    record = source.into_record_group(ParamGroup.from_predicate("bias")).with_options(allow_partial=True)
    loaded = module.load_record(record)

    assert loaded.blocks[0].linear.bias.id == source.blocks[0].linear.bias.id
    assert loaded.head is module.head


# Mappers


def turned(param: Param) -> Param:
    """A parameter that is stored transposed."""
    return param.with_mappers(load=lambda value: value.T, save=lambda value: value.T)


def test_a_shape_mapped_parameter_is_compared_in_the_form_of_the_file():
    """R13, M33: initialised or lazy, and again after a load."""
    lazy = LazyLinear(2, 3).weight.with_mappers(init=lambda value: value.T)
    record = record_of(w=numbers(2, 3))
    for param in (turned(lazy), turned(Param(numbers(3, 2)))):
        module = Holder(w=param)
        loaded = module.load_record(record).load_record(record)

        assert loaded.w.shape == (3, 2)
        assert np.array_equal(loaded.w.val().numpy(), numbers(2, 3).numpy().T)
        assert np.array_equal(loaded.into_record()["w"].host(), numbers(2, 3).numpy())
        assert module.try_load_record(record_of(w=numbers(3, 2))).mismatched == (
            Mismatch("w", "the record has shape [3, 2], the module [2, 3]"),
        )


def test_a_record_has_the_save_form_and_a_load_undoes_it():
    """R3, M32: dtype and values, on the parameter's device."""
    param = Param(numbers(2, device=AUTODIFF)).with_mappers(
        save=lambda value: (value * 2).cast("float16"), load=lambda value: value.cast("float32") / 2
    )
    module = Holder(w=param)
    record = module.into_record()
    loaded = module.load_record(record)

    assert str(record["w"].dtype) == "float16"
    assert np.array_equal(record["w"].host(), [2, 4])
    assert np.array_equal(loaded.w.val().numpy(), [1, 2])
    assert loaded.w.val().is_require_grad
    assert loaded.w.mappers == param.mappers


def test_a_load_mapper_that_gives_no_tensor_is_named():
    """ModuleError."""
    module = Holder(w=Param(numbers(2)).with_mappers(load=lambda value: None))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="the load mapper gave a NoneType, not a Tensor"):
        module.load_record(record_of(w=numbers(2)))


# Tied parameters


def test_tied_places_are_recorded_each_and_loaded_as_one():
    """D8: equal bytes are one entry, and the first id wins."""
    module = Stack(2, ["cpu:0"])
    weight, other = numbers(2, 2, start=7), numbers(2, 2, start=7)
    record = module.into_record()
    assert record["head"].host().tobytes() == record["blocks.0.linear.weight"].host().tobytes()
    entries = dict(record.items())
    entries["head"] = RecordEntry(other, ParamId(8))
    entries["blocks.0.linear.weight"] = RecordEntry(weight, ParamId(9))
    loaded = module.load_record(ModuleRecord(entries.items()))

    assert loaded.head is loaded.blocks[0].linear.weight
    assert int(loaded.head.id) == 9
    assert np.array_equal(loaded.head.val().numpy(), [[7, 8], [9, 10]])


@pytest.mark.parametrize("there", ["head", "blocks.0.linear.weight"])
def test_an_entry_for_one_place_serves_all(there: str):
    """D8: nothing is missing then; without one, every place is."""
    module = Stack(2, ["cpu:0"])
    entries = {path: entry for path, entry in module.into_record().items() if "weight" not in path and path != "head"}
    assert module.try_load_record(ModuleRecord(entries.items())).missing == ("blocks.0.linear.weight", "head")
    entries[there] = RecordEntry(numbers(2, 2, start=7))
    loaded = module.load_record(ModuleRecord(entries.items()))

    assert loaded.head is loaded.blocks[0].linear.weight
    assert np.array_equal(loaded.head.val().numpy(), [[7, 8], [9, 10]])


@pytest.mark.parametrize(
    "other", [numbers(2, 2, start=2), numbers(2, 2).cast("float64"), numbers(2, 2) * float("nan"), numbers(2, 2) * 0.0]
)
def test_different_values_for_tied_places_are_a_mismatch_that_names_both(other: Tensor):
    """D8: to the last bit."""
    module = Stack(2, ["cpu:0"])
    entries = dict(module.into_record().items())
    entries["head"] = RecordEntry(other)
    entries["blocks.0.linear.weight"] = RecordEntry(numbers(2, 2) if other.numpy().any() else other * -1.0)
    result = module.try_load_record(ModuleRecord(entries.items()))

    assert [mismatch.path for mismatch in result.mismatched] == ["head"]
    assert "tied to blocks.0.linear.weight" in result.mismatched[0].reason


def test_a_nan_is_equal_to_itself_in_tied_places():
    """D8: bytes are compared, not numbers."""
    module = Stack(2, ["cpu:0"])
    nan = numbers(2, 2) * float("nan")
    entries = dict(module.into_record().items())
    entries["head"], entries["blocks.0.linear.weight"] = RecordEntry(nan), RecordEntry(nan + 0.0)

    assert module.load_record(ModuleRecord(entries.items())).head.val().numpy().size == 4


# Files


def test_a_module_is_saved_and_loaded(tmp_path: Path):
    """R36, R38: the extension is added; the same module comes back, to the bit."""
    module = Block(2)
    module.save_file(tmp_path / "block")
    loaded = Block(2).load_file(tmp_path / "block")

    assert [file.name for file in tmp_path.iterdir()] == ["block.bpk"]
    for path in module.into_record():
        assert bits(loaded, path) == bits(module, path)
    assert loaded.linear.weight.id == module.linear.weight.id


def test_a_file_that_cannot_be_loaded_gives_its_error(tmp_path: Path):
    """R37: missing, no record, of another module; try_load_file returns it and load_file raises it."""
    Linear(2, 3).save_file(tmp_path / "other")
    (tmp_path / "text.bpk").write_text("no record")
    for name, error in (("absent", RecordIoError), ("text", RecordFormatError), ("other", RecordValidationError)):
        result = Linear(2, 2).try_load_file(tmp_path / name)
        assert result.module is None
        assert isinstance(result.error, error)
        with pytest.raises(error):
            result.unwrap()
        with pytest.raises(error):
            Linear(2, 2).load_file(str(tmp_path / name))


class Damaged:
    """The source of an entry whose data cannot be read."""

    dtype = np.dtype("float32")
    shape = (2, 2)
    nbytes = 16

    def host(self) -> Any:
        raise RecordFormatError("the file is damaged")

    def read(self, device: Device) -> Tensor:
        raise RecordFormatError("the file is damaged")


def test_data_that_cannot_be_read_is_an_error_and_no_module():
    """R29, R104: nothing of the new module escapes; also where tied entries must be compared."""
    damaged = RecordEntry(Damaged())
    module = Holder(a=Param(numbers(2, 2)), b=Param(numbers(2, 2)))
    result = module.try_load_record(ModuleRecord([("a", RecordEntry(numbers(2, 2))), ("b", damaged)]))
    assert (result.module, str(result.error)) == (None, "the file is damaged")

    weight = Param(numbers(2, 2))
    tied = Holder(a=weight, b=weight)
    result = tied.try_load_record(ModuleRecord([("a", RecordEntry(numbers(2, 2))), ("b", damaged)]))
    assert (result.module, str(result.error)) == (None, "the file is damaged")
    with pytest.raises(RecordError):
        result.unwrap()


def test_a_loaded_module_outlives_its_file(tmp_path: Path):
    """R41, D11: closing the record and removing the file change nothing."""
    Linear(2, 3).save_file(tmp_path / "linear.bpk")
    with open_record(tmp_path / "linear.bpk") as record:
        loaded = Linear(2, 3).load_record(record)
    (tmp_path / "linear.bpk").unlink()

    assert np.array_equal(loaded.weight.val().numpy(), numbers(2, 3).numpy())
    with pytest.raises(RecordIoError):
        Linear(2, 3).load_record(record)


# Where an exception came from


class Broken(Module):
    """A parameter whose initialiser raises."""

    def __init__(self) -> None:
        def init(device: Device, require_grad: bool) -> Tensor:
            raise KeyError("vocabulary")

        self.weight = Param.lazy(init, (1,), "float32", "cpu:0")


def test_an_exception_of_an_initialiser_or_mapper_is_noted_with_the_path():
    """Its type stays; whoever reads it sees which parameter it was."""

    def refuse(value: Tensor) -> Tensor:
        raise KeyError("mapper")

    class Make(ModuleMapper):
        def map_float(self, path: str, param: Param, /) -> Param:
            return param.map(lambda value: value)

    lazy = Holder(blocks=[Linear(1, 1), Broken()])
    loading = Holder(blocks=[None, Holder(weight=Param(numbers(1)).with_mappers(load=refuse))])
    saving = Holder(blocks=[None, Holder(weight=Param(numbers(1)).with_mappers(save=refuse))])
    record = record_of(**{"blocks.1.weight": numbers(1)})
    attempts = [
        lazy.into_record,
        lambda: lazy.map(Make()),
        lambda: loading.load_record(record),
        lambda: saving.load_record(record),
        saving.into_record,
    ]
    for attempt in attempts:
        with pytest.raises(KeyError) as raised:
            attempt()
        assert raised.value.__notes__ == ["at blocks.1.weight"]


def test_what_is_no_record_or_group_is_named_with_the_way_out():
    """A dict of tensors is a likely mistake."""
    for load in (Linear(1, 1).load_record, Linear(1, 1).try_load_record):
        with pytest.raises(TypeError, match=r"ModuleRecord, not a dict; open_record\(file\)"):
            load({})  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="ParamGroup, not 'weight'"):
        Linear(1, 1).into_record_group("weight")  # pyright: ignore[reportArgumentType]


def test_the_first_id_among_the_entries_of_a_tied_parameter_wins() -> None:
    """D8, D9: entries without one do not count."""

    class Tied(Module):
        def __init__(self) -> None:
            self.a = Param(tensor([1.0], device="cpu:0"))
            self.b = self.a

    value = tensor([5.0], device="cpu:1")
    record = ModuleRecord([("a", RecordEntry(value)), ("b", RecordEntry(value, ParamId(7)))])
    loaded = Tied().load_record(record)
    assert loaded.a is loaded.b
    assert int(loaded.a.id) == 7
