"""What becomes of reparameterized modules: moves, ties, records, `materialize`, and models that are split."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Device, ops, tensor, zeros
from modules import (
    SGD,
    Flag,
    ModuleMapper,
    Param,
    ParamGroup,
    Reparameterization,
    RunningState,
)
from modules.parallel import DistributedLayeredModel, LayerParallelism, LayerPlacement
from modules.tree import leaves
from tests.engine.strategies import values
from tests.laws.law import inside

from .reparameterizing import (
    By,
    Identities,
    LearnedScale,
    LearnedScales,
    SetTo,
    WeightNormed,
    everything,
    holding,
)
from .small_modules import AUTODIFF, Block, Holder, LazyLinear, Linear, Stack, modules, numbers, paths

SEEDS = st.integers(0, 2**32 - 1)


# Moving, cloning, ties


@pytest.mark.parametrize("move", ["fork", "to_device"])
def test_base_and_factors_move_together(move):
    """A9, M37: to one device, once each; both on it."""
    module = Holder(a=Linear(2, 2, "cpu:0"), b=Linear(2, 2, "cpu:1")).apply_reparameterization(LearnedScales())
    assert str(module.at("b.weight.learned_scale.scale").device) == "cpu:1"
    moved = getattr(module, move)("cpu:2")

    assert moved.devices() == [Device("cpu:2")]
    assert str(moved.a.weight.reparameterization.scale.device) == str(moved.a.weight.val().device) == "cpu:2"
    values_of = {path: one[:3] for path, one in everything(module).items()}
    assert {path: one[:3] for path, one in everything(moved).items()} == values_of


@inside("L91")
@given(made=modules(), calls=st.lists(st.sampled_from(["valid", "train", "fork", "clone", "map", "freeze", "load"])))
def test_no_method_changes_a_base_or_a_factor_or_detaches_it(made, calls):
    """L91, A25, A49: whatever is called, in any order; the module it was called on stays too."""
    module = made[0].apply_reparameterization(LearnedScales())
    before = {path: one[:2] for path, one in everything(module).items() if isinstance(one[1], bytes)}
    now: Any = module
    for call in calls:
        match call:
            case "fork":
                now = now.fork("cpu:1")
            case "map":
                now = now.map(ModuleMapper())
            case "load":
                now = now.load_record(now.into_record())
            case _:
                now = getattr(now, call)()
    for one in (module, now):
        assert {path: known[:2] for path, known in everything(one).items() if isinstance(known[1], bytes)} == before


def two_places(attached: Any) -> Holder:
    tied = Param(numbers(2, 2, device=AUTODIFF))
    return Holder(a=tied, b=tied, c=Param(numbers(2, 2))).apply_reparameterization(By(attached))


def test_places_that_get_the_same_pair_stay_tied_through_everything():
    """D8: one object in both, from the call that attaches to steps, moves and maps."""
    scale = LearnedScale(AUTODIFF)
    module = two_places(lambda path, param: (param, scale if path != "c" else None))

    def is_tied(one: Any) -> bool:
        return one.a is one.b and one.a.reparameterization.scale is one.b.reparameterization.scale

    assert is_tied(module)
    loss = ops.sum(module.a.val() + module.b.val())
    stepped = SGD(0.1).step(module, loss.backward())
    doubled = {}

    class Doubling(ModuleMapper):
        def map_float(self, path: str, param: Param, /) -> Param:
            return doubled.setdefault(id(param), param.map(lambda base: base.set_require_grad(False) * 2))

    kept = doubled
    for one in (stepped, module.valid(), module.fork("cpu:1"), module.map(Doubling()), module.materialize().clone()):
        assert one.a is one.b
    assert is_tied(stepped)
    assert is_tied(module.fork("cpu:1"))
    assert kept
    assert module.materialize().a.base().is_require_grad


def test_places_part_where_a_mapper_gives_their_factors_different_values():
    """D8: one object was shown for both; the base stays tied."""
    scale = LearnedScale("cpu:0")
    module = two_places(lambda path, param: (param, scale if path != "c" else None))
    scales = {f"{name}.learned_scale.scale": tensor([float(of)], device="cpu:0") for name, of in (("a", 3), ("b", 6))}
    parted = module.map(SetTo(scales))

    assert np.array_equal(parted.b.val().numpy(), 2 * parted.a.val().numpy())
    assert parted.a.base() is parted.b.base()


def test_places_that_get_different_ones_have_one_base_and_factors_of_their_own():
    """D8: the bare parameter stays tied below the reparameterizations, also where only one place has one."""
    for adapted_places in ("ab", "a"):
        module = two_places(
            lambda path, param, places=adapted_places: (param, LearnedScale(AUTODIFF) if path in places else None)
        )
        for one in (module, module.valid().train(), module.fork("cpu:1"), module.load_record(module.into_record())):
            bases = {id(leaf) for path, leaf in leaves(one) if path in ("a", "b")}
            assert len(bases) == 1
            factors = [leaf for path, leaf in leaves(one) if path.endswith(".scale")]
            assert len({id(leaf) for leaf in factors}) == len(factors) == len(adapted_places)
        assert "tied to a" in repr(module)
        folded = module.map(SetTo({"a.learned_scale.scale": tensor([2.0], device="cpu:0")})).materialize()
        assert np.array_equal(folded.a.base().numpy(), 2 * folded.b.base().numpy())


def test_a_derived_module_has_running_states_of_its_own_in_what_is_attached():
    """M97, D8: and tied ones stay tied."""

    class Counting(Reparameterization):
        NAME = "counting"

        def __init__(self) -> None:
            self.seen = RunningState(zeros((1,), device="cpu:0"))

        def apply(self, base: Any, /) -> Any:
            self.seen.update(lambda seen: seen + 1)
            return base

    counting = Counting()
    module = two_places(lambda path, param: (param, counting if path != "c" else None))
    clone = module.clone()
    module.a.val()
    module.b.val()

    assert float(module.a.reparameterization.seen.value()) == 2
    assert float(clone.a.reparameterization.seen.value()) == 0
    assert clone.a is clone.b
    assert module.clone().materialize().a is not None
    assert float(clone.a.reparameterization.seen.value()) == 0


# Records


@inside("L90")
@given(made=modules(), number=st.integers(0, 2))
def test_a_record_holds_base_and_factors_and_restores_both_to_the_bit(made, number):
    """A27, A28, L90: never the effective value; ids too, in a module that was prepared alike."""
    module = made[0].apply_reparameterization(Identities(number))
    other = made[0].apply_reparameterization(Identities(number))
    record = module.into_record()

    recorded = {path for path in paths(module) if not isinstance(module.at(path), Flag)}
    assert set(record) == recorded
    loaded = other.load_record(record)
    pairs = {path: one[:2] for path, one in everything(module).items()}
    assert {path: one[:2] for path, one in everything(loaded).items()} == pairs


@inside("L90")
def test_records_of_plain_and_adapted_modules_load_into_each_other_as_the_options_say():
    """A29 to A31, A48, L90."""
    plain = Linear(2, 2)
    adapted = plain.apply_reparameterization(LearnedScales(ParamGroup.from_path("weight")))
    adapted = adapted.map(SetTo({"weight.learned_scale.scale": tensor([2.0], device="cpu:0")}))
    full, only = adapted.into_record(), adapted.into_record_group(ParamGroup.from_predicate(".learned_scale."))

    result = plain.try_load_record(full)
    assert (result.module, result.unused) == (None, ("weight.learned_scale.scale",))
    base = plain.load_record(full.with_options(allow_unused=True)).weight.base()
    assert base.tobytes() == plain.weight.val().tobytes()
    result = adapted.try_load_record(plain.into_record())
    assert (result.module, result.missing) == (None, ("weight.learned_scale.scale",))
    partly = adapted.load_record(plain.into_record().with_options(allow_partial=True))
    assert everything(partly) == everything(adapted)

    assert list(only) == ["weight.learned_scale.scale"]
    fresh = plain.apply_reparameterization(LearnedScales(ParamGroup.from_path("weight")))
    restored = fresh.load_record(only.with_options(allow_partial=True))
    assert restored.weight.val().tobytes() == adapted.weight.val().tobytes()

    folded = adapted.materialize()
    assert list(folded.into_record()) == ["weight", "bias"]
    assert plain.load_record(folded.into_record()).weight.val().tobytes() == adapted.weight.val().tobytes()


# materialize


@inside("L89")
@given(seed=SEEDS, calls=st.lists(st.sampled_from(["freeze", "unfreeze", "valid", "train", "no_grad"]), max_size=3))
def test_materialize_keeps_the_function_to_the_bit_and_the_bases_settings(seed, calls):
    """A32, A35 to A37, L89: ids and trainability are the base's; a leaf of its own; twice is once."""
    weight = values((3, 2), np.dtype("float32"), seed)
    module: Any = holding(w=tensor(weight.tolist(), device=AUTODIFF, dtype="float32"))
    module = module.apply_reparameterization(WeightNormed())
    module = module.map(SetTo({"w.weight_norm.g": tensor([[2.0], [3.0], [0.5]], device="cpu:0")}))
    for call in calls:
        module = getattr(module, call)()
    folded = module.materialize()

    base, now = module.w.base(), folded.w.base()
    assert now.tobytes() == module.w.val().tobytes()
    assert (folded.w.id, folded.w.trainable) == (module.w.id, module.w.trainable)
    assert (now.is_require_grad, now.device.is_autodiff) == (base.is_require_grad, base.device.is_autodiff)
    assert now.is_tracked == now.is_require_grad
    assert folded.w.reparameterization is None
    assert folded.w.mappers is module.w.mappers
    assert everything(folded.materialize()) == everything(folded)
    x = tensor([[1.0, -2.0, 0.5]], device="cpu:0")
    assert (x @ module.w.val()).tobytes() == (x @ folded.w.val()).tobytes()
    if now.is_require_grad:
        assert module.w.grad(ops.sum(folded.w.val()).backward()) is None  # its history is left behind


def test_materialize_makes_no_parameter_that_has_nothing_attached():
    """A33, M25: it stays as it is, and lazy; running states are the new module's own (M97)."""
    made: list[Any] = []
    module = Holder(a=LazyLinear(2, 2, made=made), b=Linear(2, 2))
    adapted = module.apply_reparameterization(LearnedScales(ParamGroup.from_predicate("b.")))

    assert adapted.materialize().a.weight is module.a.weight
    block = Block(2)
    assert block.materialize().mean is not block.mean
    assert not made


# Split models


class Layers(LayerParallelism):
    """Three layers."""

    def __init__(self, devices: list[str]) -> None:
        self.first, *self.rest = (Linear(2, 2, device) for device in devices)

    def layer_input(self) -> Any:
        return self.first

    def layers_hidden(self) -> Any:
        return self.rest[:-1]

    def layer_output(self) -> Any:
        return self.rest[-1]


@inside("L91")
def test_a_split_model_is_reparameterized_layer_by_layer_where_it_runs():
    """P52, P63, L91: the placement stays; the same bits as in one piece; factors on their layer's device."""
    devices = ["cpu:0", "cpu:1", "cpu:2"]
    placement = LayerPlacement(devices[0], [devices[1]], devices[2])
    split = DistributedLayeredModel(Layers(devices), placement).apply_reparameterization(WeightNormed())
    whole = Layers(["cpu:0"] * 3).apply_reparameterization(WeightNormed())
    x = numbers(2, 2)

    assert split.placement == placement
    assert list(map(str, split.devices())) == devices
    y = whole.rest[1](whole.rest[0](whole.first(x)))
    assert split(x).numpy().tobytes() == y.numpy().tobytes()
    assert split.materialize()(x).numpy().tobytes() == y.numpy().tobytes()
    assert str(split.at("rest.0.weight.weight_norm.g").device) == "cpu:1"


def test_a_stack_with_ties_names_the_first_place():
    """DESIGN, repr: the tie is told below a reparameterization too."""
    adapted = Stack(2, ["cpu:0"]).apply_reparameterization(LearnedScales(ParamGroup.from_path("head")))

    assert "head: float32 [2, 2] + learned_scale (scale [1]) tied to blocks.0.linear.weight" in repr(adapted)
