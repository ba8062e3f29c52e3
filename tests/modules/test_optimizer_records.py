"""An optimizer's record: training goes on from a file as if it had not stopped; what does not fit is refused whole."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Seed
from examples.mlp import Mlp
from modules import SGD, Adam, AdamW, Param
from modules.parallel import DistributedLayeredModel, LayerPlacement
from records import ModuleRecord, RecordEntry, RecordIoError, RecordValidationError, open_record
from tests.laws.law import inside

from .optimizing import OPTIMIZERS, STATEFUL, Three, gradients_of, states, values
from .small_modules import Holder, numbers
from .test_optimizers import split, trained

each = pytest.mark.parametrize("name", OPTIMIZERS)
each_stateful = pytest.mark.parametrize("name", STATEFUL)


def stepped(name: str) -> tuple[Any, Three]:
    """An optimizer that made a step for two parameters, and the module."""
    optimizer, module = OPTIMIZERS[name](), Three()
    return optimizer, optimizer.step(module, gradients_of(module, "weight", "bias"))


@inside("L18")
@each
@given(stop=st.integers(0, 4), devices=st.sampled_from([["cpu:0"], ["cpu:0", "cpu:1"], ["cpu:2", "cpu:1", "cpu:0"]]))
def test_training_goes_on_from_a_record_bit_for_bit(name, stop, devices):
    """k steps, one record of both, a fresh build on other devices, 4 − k steps: as 4 steps; the state does not grow."""
    reference_optimizer = OPTIMIZERS[name]()
    reference = steps_from(split(["cpu:0", "cpu:1"]), reference_optimizer, 0, 4)

    optimizer = OPTIMIZERS[name]()
    model = steps_from(split(["cpu:0", "cpu:1"]), optimizer, 0, stop)
    record = model.into_record().under("model") | optimizer.into_record().under("optimizer")
    data = record.with_scalars(step=stop).into_bytes()

    found, again = ModuleRecord.from_bytes(data), OPTIMIZERS[name]()
    fresh = split(devices, seed=9).load_record(found.part("model"))
    again.load_record(found.part("optimizer"), fresh)
    fresh = steps_from(fresh, again, int(found.scalars["step"]), 4)

    assert values(fresh) == values(reference)
    count = len(values(fresh)) if name in STATEFUL else 0
    assert again.into_record().scalars["states"].value == count
    on_their_parameters = {
        (state_id, tensor.device) for state_id, state in again._states.items() for tensor in state.kept.values()
    }
    assert on_their_parameters == {(param.id, param.device) for param in map(fresh.at, values(fresh)) if count}


def steps_from(model: Any, optimizer: Any, first: int, last: int) -> Any:
    """The steps of `trained` from one to another, each with its own data."""
    for step in range(first, last):
        model = trained(model, optimizer, steps=1, first=step)
    return model


@each_stateful
def test_entries_are_named_by_ids_and_burn_s_names(name, tmp_path):
    """And have the parameters' ids; a file gives back what was saved."""
    optimizer, module = stepped(name)
    record = optimizer.into_record()
    ids = module.weight.id, module.bias.id
    kept = {"momentum": ["velocity"], "nesterov": ["velocity"]}.get(name, ["moment_1", "moment_2"])
    assert list(record) == [f"{id_}.{one}" for id_ in ids for one in kept]
    assert [entry.id for entry in record.values()] == [id_ for id_ in ids for _ in kept]
    times = {} if "velocity" in kept else {f"{id_}.time": 1 for id_ in ids}
    assert {scalar: value.value for scalar, value in record.scalars.items()} == {"states": 2, **times}

    record.save(tmp_path / "optimizer.bpk")
    again = OPTIMIZERS[name]()
    with open_record(tmp_path / "optimizer.bpk") as found:
        again.load_record(found, module)
    assert states(again) == states(optimizer)
    assert list(again.into_record()) == list(record)


@each
def test_an_optimizer_that_made_no_step_has_a_record_too(name):
    """It loads, and takes away what was there."""
    optimizer, module = stepped(name)
    optimizer.load_record(OPTIMIZERS[name]().into_record(), module)
    assert states(optimizer) == {"states": 0}


def refused(optimizer: Any, record: ModuleRecord, module: Any) -> RecordValidationError:
    """The error of a load, which left the optimizer as it was."""
    before = states(optimizer)
    with pytest.raises(RecordValidationError) as raised:
        optimizer.load_record(record, module)
    assert states(optimizer) == before
    return raised.value


@each_stateful
def test_a_record_that_does_not_fit_is_refused_with_all_findings(name):
    """Ids that the module lacks, other names, other shapes and dtypes; under options it is loaded as far as it fits."""
    optimizer, module = stepped(name)
    record, kept = optimizer.into_record(), optimizer.KEPT[0]
    first, second = f"{module.weight.id}.{kept}", f"{module.bias.id}.{kept}"

    error = refused(optimizer, record, Three())
    assert error.unused == tuple(sorted(record))
    assert "load the module's record first" in str(error)
    optimizer.load_record(record.with_options(allow_unused=True), Three())
    assert states(optimizer) == {"states": 0}

    entries: dict[str, RecordEntry] = dict(record)
    entries[first] = RecordEntry(numbers(3))
    entries[second] = RecordEntry(numbers(2).cast("float64"))
    entries["weight.velocity"] = RecordEntry(numbers(2))
    entries[f"{module.bias.id}.other"] = RecordEntry(numbers(2))
    wrong = ModuleRecord(entries, scalars=record.scalars)
    optimizer = OPTIMIZERS[name]()
    error = refused(optimizer, wrong, module)
    assert set(error.mismatched) == {first, second}
    assert error.unused == tuple(sorted([f"{module.bias.id}.other", "weight.velocity"]))
    assert "the record has shape [3], the parameter [2, 2]" in str(error)
    assert "the record has float64; the state of this parameter is float32" in str(error)

    options = {"allow_unused": True, "allow_partial": True, "validate": False}
    optimizer.load_record(wrong.with_options(dtype_policy="CastToModule", **options), module)
    assert set(optimizer._states) == {module.bias.id}
    assert optimizer._states[module.bias.id].kept[kept].dtype == "float32"


def test_a_state_that_is_not_whole_is_missing_something():
    """A moment, or how many steps there were; under allow_partial the parameter begins anew."""
    optimizer, module = stepped("adam")
    record = optimizer.into_record()
    lacking, time = f"{module.weight.id}.moment_2", f"{module.bias.id}.time"
    entries = {path: entry for path, entry in record.items() if path != lacking}
    scalars = {name: value for name, value in record.scalars.items() if name != time}
    partial = ModuleRecord(entries, scalars=scalars)
    error = refused(optimizer, partial, module)
    assert set(error.missing) == {lacking, time}
    optimizer.load_record(partial.with_options(allow_partial=True), module)
    assert states(optimizer) == {"states": 0}
    for wrong in (0, -1, 1.5, True):
        error = refused(optimizer, ModuleRecord(record, scalars={**record.scalars, time: wrong}), module)
        assert error.missing == (time,)


def test_a_part_that_is_not_there_is_no_record_of_no_steps():
    """As after a typing mistake in its prefix; nor is a module's record an optimizer's."""
    optimizer, module = stepped("adam")
    error = refused(optimizer, optimizer.into_record().under("optimizer").part("optimiser"), module)
    assert error.missing == ("states",)
    assert "states" in refused(optimizer, module.into_record(), module).missing
    fewer = ModuleRecord(list(optimizer.into_record().items())[:2], scalars=optimizer.into_record().scalars)
    assert "should have the states of 2 parameters" in str(refused(optimizer, fewer, module))


def test_the_state_of_another_kind_of_optimizer_is_refused():
    """A velocity is no moment. Adam and AdamW keep the same."""
    optimizer, module = stepped("momentum")
    error = refused(Adam(), optimizer.into_record(), module)
    assert "Adam keeps moment_1 and moment_2" in str(error)
    adam, module = stepped("adam")
    other = AdamW()
    other.load_record(adam.into_record(), module)
    assert states(other) == states(adam)


@each_stateful
@given(gone=st.sampled_from(["weight", "bias"]), is_replaced=st.booleans())
def test_the_state_of_a_parameter_that_is_gone_is_named_and_can_be_dropped(name, gone, is_replaced):
    """L18: it stays in the record; the message says how to drop it, and training goes on as without it."""
    optimizer, module = stepped(name)
    new = Param(module.at(gone).val().detach()) if is_replaced else None
    module = module.replace(**{gone: new})
    stays = "bias" if gone == "weight" else "weight"
    record = optimizer.into_record()

    fresh = OPTIMIZERS[name]()
    error = refused(fresh, record, module)
    assert {path.rpartition(".")[2] for path in error.unused} == set(optimizer.KEPT)
    assert "replaced or removed, drop its state by with_options(allow_unused=True)" in str(error)

    fresh.load_record(record.with_options(allow_unused=True), module)
    assert set(fresh._states) == {module.at(stays).id}
    gradients = gradients_of(module, stays)
    assert values(fresh.step(module, gradients)) == values(optimizer.step(module, gradients))
    again = OPTIMIZERS[name]()
    again.load_record(fresh.into_record(), module)
    assert states(again) == states(fresh)


def test_a_record_shares_the_tensors_and_a_later_step_does_not_change_it():
    """A record is a value."""
    optimizer, module = stepped("adam")
    record, before = optimizer.into_record(), states(optimizer)
    optimizer.step(module, gradients_of(module, "weight"))
    assert {path: (entry.id, entry.host().tobytes()) for path, entry in record.items()} == {
        path: value for path, value in before.items() if isinstance(value, tuple)
    }


def test_data_that_cannot_be_read_leaves_the_optimizer_as_it_was(tmp_path):
    """A file that was closed."""
    optimizer, module = stepped("adam")
    optimizer.into_record().save(tmp_path / "closed.bpk")
    with open_record(tmp_path / "closed.bpk") as record:
        pass
    before = states(optimizer)
    with pytest.raises(RecordIoError):
        optimizer.load_record(record, module)
    assert states(optimizer) == before


def test_other_arguments_are_refused_by_what_they_are():
    optimizer, module = stepped("adam")
    with pytest.raises(TypeError, match="Adam loads a ModuleRecord, not a Three"):
        optimizer.load_record(module, optimizer.into_record())
    with pytest.raises(TypeError, match="takes a record and the Module, not a NoneType"):
        optimizer.load_record(optimizer.into_record(), None)


def test_the_state_of_a_half_is_float32_and_saved_so():
    """Both ways."""
    optimizer, module = Adam(), Three(dtype="bfloat16")
    module = optimizer.step(module, gradients_of(module, "weight"))
    again = Adam()
    again.load_record(ModuleRecord.from_bytes(optimizer.into_record().into_bytes()), module)
    assert states(again) == states(optimizer)
    assert {str(entry.dtype) for entry in again.into_record().values()} == {"float32"}


def test_tied_parameters_have_one_state_in_a_record():
    param = Param(numbers(2, device="cpu:0+autodiff"))
    module, optimizer = Holder(a=param, b=param), SGD(0.1, momentum=0.9)
    module = optimizer.step(module, gradients_of(module, "a"))
    again = SGD(0.1, momentum=0.9)
    again.load_record(optimizer.into_record(), module)
    assert list(again.into_record()) == [f"{param.id}.velocity"]


def test_a_fresh_build_of_a_split_model_takes_the_ids_from_its_record():
    """Without it, the message says to load it first (R18)."""
    placement = LayerPlacement.even(["cpu:0+autodiff", "cpu:1+autodiff"], 2)
    optimizer = Adam()
    trained(split(["cpu:0"]), optimizer, steps=1)
    other = DistributedLayeredModel(Mlp(placement, Seed(1)), placement)
    assert "load the module's record first" in str(refused(Adam(), optimizer.into_record(), other))
