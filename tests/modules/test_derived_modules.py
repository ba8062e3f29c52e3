"""What hooks are asked and give, and the values that the methods of a module give: clones, moves, replacements."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from engine import Device, zeros
from modules import (
    Flag,
    FrozenModuleError,
    Module,
    ModuleError,
    ModuleMapper,
    ModuleVisitor,
    Param,
    PathError,
    RunningState,
    list_param_ids,
    skip,
)

from .small_modules import AUTODIFF, Block, Holder, LazyLinear, Linear, Stack, numbers, paths

# Hooks


def test_a_visitor_that_overrides_nothing_sees_nothing():
    """M12: all hooks do nothing by default; neither makes a value."""
    made: list[Device] = []
    LazyLinear(1, 1, made=made).visit(ModuleVisitor())
    LazyLinear(1, 1, made=made).map(ModuleMapper())

    assert not made


class Hook(ModuleMapper):
    """Gives the same for every parameter and flag."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def map_float(self, path: str, param: Param, /) -> Any:
        return self.result

    map_int = map_bool = map_flag = map_float


@pytest.mark.parametrize(("result", "named"), [(None, "NoneType"), (3, "int"), (zeros((1,), device="cpu:0"), "Tensor")])
def test_a_hook_that_gives_no_parameter_is_refused_with_its_path(result: Any, named: str):
    """DESIGN, hooks."""
    for module in (Holder(a=[Param(numbers(1))]), Holder(a=[RunningState(numbers(1))])):
        with pytest.raises(ModuleError, match=rf"map_float of 'a\.0' gave a {named}, not a Param"):
            module.map(Hook(result))
    with pytest.raises(ModuleError, match=rf"map_flag of 'on' gave a {named}, not a Flag"):
        Holder(on=Flag(True)).map(Hook(result))


def test_a_module_survives_a_hook_that_raises():
    """M20."""

    class Failing(ModuleMapper):
        def map_float(self, path: str, param: Param, /) -> Param:
            if path == "bias":
                raise KeyError(path)
            return param.map(lambda value: value + 1)

    module = Linear(2, 2)
    before = module.weight.val().numpy()
    with pytest.raises(KeyError):
        module.map(Failing())

    assert np.array_equal(module.weight.val().numpy(), before)


def test_a_mapped_module_shares_what_did_not_change():
    """Principle 1: a subtree without a changed leaf is the same object."""

    class OfHead(ModuleMapper):
        def map_float(self, path: str, param: Param, /) -> Param:
            return param.with_id(7) if path.startswith("head") else param

    module = Holder(stem=Linear(1, 1), head=Linear(1, 1))
    mapped = module.map(OfHead())

    assert mapped.stem is module.stem
    assert mapped.head is not module.head
    assert int(mapped.head.weight.id) == 7


# New modules


def test_a_clone_shares_parameters_and_has_running_states_of_its_own():
    """M26, M97: only the module that runs changes."""
    module = Block(2)
    clone = module.clone()
    clone.mean.update(lambda value: value + 1)

    assert clone is not module
    assert clone.linear.weight is module.linear.weight
    assert clone.mean.id == module.mean.id
    assert np.array_equal(module.mean.value().numpy(), [1, 2])
    assert np.array_equal(clone.mean.value().numpy(), [2, 3])


def test_copies_are_clones():
    """DESIGN: copy, deepcopy, and deepcopy of a list of the module's children."""
    module = Stack(2, ["cpu:0"])
    for copied in (copy.copy(module), copy.deepcopy(module)):
        assert type(copied) is Stack
        assert copied.head is module.head
        assert copied.blocks[0].mean is not module.blocks[0].mean
    blocks = copy.deepcopy(module.blocks)
    assert blocks[0].mean is not module.blocks[0].mean
    assert blocks[0].linear.weight is module.head
    with pytest.raises(FrozenModuleError):
        copy.copy(module).head = None


def test_pickling_names_save_file():
    """DESIGN: modules and what they hold."""
    for value in (Linear(1, 1), Param(numbers(1)), Holder(blocks=[Linear(1, 1)]).blocks, RunningState(numbers(1))):
        with pytest.raises(TypeError, match="save_file"):
            pickle.dumps(value)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(Flag(True))


def test_tied_places_stay_tied_through_clones_and_moves():
    """D8: one new object for one object, in all its places."""
    module = Stack(2, ["cpu:0", "cpu:1"])
    for derived in (module.clone(), module.fork("cpu:2"), module.to_device("cpu:2"), module.train(), module.valid()):
        assert derived.head is derived.blocks[0].linear.weight
        assert derived.blocks[1].linear.weight is not derived.head


def test_a_mapper_is_called_once_per_path_and_decides_about_ties():
    """D8: it is shown one object; the places stay tied exactly if it returns one object."""

    class Remembering(ModuleMapper):
        def __init__(self, once: bool) -> None:
            self.once = once
            self.shown: list[Param] = []
            self.made: dict[int, Param] = {}

        def map_float(self, path: str, param: Param, /) -> Param:
            self.shown.append(param)
            made = param.with_id(5)
            return self.made.setdefault(id(param), made) if self.once else made

    state = RunningState(numbers(1))
    param = Param(numbers(1))
    module = Holder(a=param, b=param, c=state, d=state)
    for once in (True, False):
        mapper = Remembering(once)
        mapped = module.map(mapper)

        assert len(mapper.shown) == 4
        assert mapper.shown[0] is mapper.shown[1] is param
        assert mapper.shown[2] is mapper.shown[3]
        assert (mapped.a is mapped.b) == once
        assert (mapped.c is mapped.d) == once


def test_moving_tied_layers_one_by_one_parts_them():
    """D8: nothing knows of the other place."""
    module = Stack(2, ["cpu:0"])
    moved = module.replace(blocks=[block.to_device("cpu:1") for block in module.blocks])

    assert moved.head is not moved.blocks[0].linear.weight
    assert list(map(str, moved.devices())) == ["cpu:1", "cpu:0"]


def test_replace_gives_a_module_with_other_fields_and_shares_the_rest():
    """DESIGN: the same type, the same order; what was given is checked as at construction."""
    module = Block(2)
    other = Linear(2, 2)
    replaced = module.replace(linear=other)

    assert type(replaced) is Block
    assert list(replaced.fields()) == list(module.fields())
    assert replaced.linear is other
    assert replaced.steps is module.steps
    assert replaced.mean is not module.mean
    assert module.linear is not other
    with pytest.raises(FrozenModuleError):
        replaced.linear = other
    with pytest.raises(ModuleError, match="an array"):
        module.replace(table=np.zeros(2))
    with pytest.raises(PathError, match="a.b"):
        module.replace(linear={"a.b": other})


def test_replace_of_an_unknown_field_names_the_fields():
    """PathError."""
    with pytest.raises(PathError, match="Linear has no field 'wieght'; its fields are d_input, d_output, weight, bias"):
        Linear(1, 1).replace(wieght=None)
    with pytest.raises(PathError, match="its fields are none"):
        Holder().replace(a=1)


def test_replace_does_not_run_the_constructor():
    """DESIGN: configuration that was computed from a replaced field stays."""

    class Doubled(Module):
        def __init__(self, size: int) -> None:
            self.size = size
            self.double = 2 * size

    assert Doubled(2).replace(size=5).fields() == {"size": 5, "double": 4}


def test_a_field_that_is_replaced_may_change_its_kind():
    """Configuration may become a child and the reverse; the order of fields decides the order of children."""
    module = Holder(a="relu", b=Flag(True), c=[1])
    replaced = module.replace(a=Flag(False), b=3, c=[Flag(True)]).replace(b=None)

    assert paths(replaced) == ["a", "c.0"]


def test_a_skipped_field_stays_skipped():
    """DESIGN: whatever it is given; a parameter cannot be hidden in it."""
    module = Holder(a=skip(Linear(1, 1)), b=Flag(True))
    replaced = module.replace(a=Linear(2, 2)).clone().replace(a=skip([Linear(3, 3)]))

    assert paths(replaced) == ["b"]
    assert replaced.a[0].d_input == 3
    with pytest.raises(ModuleError, match="a Param cannot be skipped"):
        module.replace(a=Param(numbers(1)))


def test_what_is_skipped_inside_a_container_stays_so():
    """M4: it reads unmarked, in every derived module; another list in its place is looked at anew."""
    hidden = Linear(1, 1)
    module = Holder(a=[skip(hidden), 3], b=(Flag(True), skip(hidden)), c={"x": skip(hidden)}, d=Flag(True))
    for derived in (module, module.clone(), module.replace(d=Flag(False)), module.valid().replace(d=Flag(True))):
        assert paths(derived) == ["b.0", "d"]
        assert derived.a == [hidden, 3]
        assert derived.b[1] is hidden
        assert derived.c == {"x": hidden}
    assert paths(module.replace(a=[Linear(1, 1, bias=False)])) == ["a.0.weight", "b.0", "d"]


def test_replace_splits_a_model_over_devices():
    """DESIGN's example: blocks are forked one by one."""
    module = Stack(2, ["cpu:0", "cpu:0", "cpu:0"])
    places = ["cpu:0", "cpu:1", "cpu:2"]
    split = module.replace(blocks=[block.fork(device) for block, device in zip(module.blocks, places, strict=True)])

    assert list(map(str, split.devices())) == places
    assert list(map(str, module.devices())) == ["cpu:0"]


def test_moves_keep_ids_flags_and_configuration():
    """M40, M44, M46: and the tensors' own autodiff association; lazy parameters stay lazy."""
    made: list[Device] = []
    module = Holder(a=Block(2, AUTODIFF), b=LazyLinear(1, 1, "cpu:0", made), c=3, on=Flag(False))
    for moved in (module.fork("cpu:1"), module.to_device(Device("cpu:1"))):
        assert list_param_ids(moved) == list_param_ids(module)
        assert str(moved.a.linear.weight.val().device) == "cpu:1+autodiff"
        assert str(moved.b.weight.device) == "cpu:1"
        assert str(moved.a.table.device) == "cpu:1+autodiff"
        assert moved.on is module.on
        assert moved.c == 3
        assert not made


def test_a_fork_restores_leaves():
    """M42: e is what it was, on the new device and on the same."""
    module = Linear(1, 1, AUTODIFF)
    for device in ("cpu:1", "cpu:0"):
        forked = module.fork(device)

        assert forked.weight.val().is_require_grad
        assert forked.weight is not module.weight
    assert module.to_device("cpu:0").weight is module.weight


def test_valid_is_a_snapshot_without_autodiff_and_flags_and_train_brings_both_back():
    """M51, M55, M58: every kind of child; the original stays."""
    module = Block(2, AUTODIFF)
    valid = module.valid()

    assert [str(device) for device in valid.devices()] == ["cpu:0"]
    assert not valid.training.is_enabled
    assert valid.training.configured
    assert not valid.table.device.is_autodiff
    assert valid.linear.weight.trainable
    assert module.linear.weight.val().is_require_grad
    trained = valid.train()
    assert trained.training.is_enabled
    assert trained.linear.weight.val().is_require_grad
    assert trained.table.device.is_autodiff
    assert trained.mean.value().device.is_autodiff
    assert not trained.table.is_require_grad


def test_train_and_valid_leave_lazy_parameters_lazy():
    """M63, D10: made later, they are what the snapshot asks for, and equal."""
    made: list[Device] = []
    module = LazyLinear(1, 1, "cpu:0", made)
    trained, valid = module.train(), module.train().valid()

    assert not made
    assert trained.weight.val().is_require_grad
    assert not valid.weight.val().device.is_autodiff
    assert not module.weight.val().device.is_autodiff
    assert len(made) == 1
