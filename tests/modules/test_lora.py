"""LoRA: who gets an adapter, who trains, what is computed and what is recorded."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Seed, Tensor, ops, tensor
from modules import SGD, Lora, LoraAdapter, ModuleError, Param, ParamGroup
from modules.tree import leaves
from tests.engine.strategies import FLOATS, values
from tests.laws.law import inside

from .burn_files import ADAPTED, text_of, two_of
from .reparameterizing import SetTo, everything, holding
from .small_modules import AUTODIFF, Block, Holder, Linear, numbers, paths

SEEDS = st.integers(0, 2**32 - 1)
EXTENTS = st.integers(1, 4)


def random(shape: tuple[int, ...], seed: int, device: str = AUTODIFF, dtype: Any = "float32") -> Tensor:
    return Tensor.from_numpy(values(shape, np.dtype(dtype), seed), device)


def adapted(d_in: int, d_out: int, rank: int, alpha: float, seed: int, device: str = AUTODIFF) -> Holder:
    """A matrix with an adapter whose b is not zero."""
    module = holding(w=random((d_in, d_out), seed, device)).apply_lora(Lora(rank, alpha, seed=seed))
    return module.map(SetTo({"w.lora.b": random((rank, d_out), seed + 1, "cpu:0")}))


# Who gets one, and who trains


def test_the_group_is_matched_by_the_whole_path_and_flags_stay():
    """A14, A15: integers, booleans and flags are left alone."""
    block = Holder(block=Block(2, AUTODIFF)).train()
    result = block.apply_lora(Lora(1, 1.0, param_group=ParamGroup.from_path("block.linear.weight")))

    assert isinstance(result.block.linear.weight.reparameterization, LoraAdapter)
    assert result.block.linear.bias.reparameterization is None
    assert not result.block.linear.bias.trainable
    assert result.block.training.is_enabled
    assert result.block.training.configured
    assert result.block.steps is block.block.steps


def test_factors_are_on_the_bases_device_with_fresh_ids_and_train_where_it_is_autodiff():
    """A16: a is normal, b zero; configured to train; leaves if the base is an autodiff tensor."""
    module = Holder(a=Linear(30, 20, "cpu:1"), b=Linear(30, 20, AUTODIFF)).apply_lora(Lora(25, 5.0, seed=1))
    for name, device, is_leaf in (("a", "cpu:1", False), ("b", AUTODIFF, True)):
        a, b = module.at(f"{name}.weight.lora.a"), module.at(f"{name}.weight.lora.b")
        assert (a.shape, b.shape) == ((30, 25), (25, 20))
        assert str(a.device) == str(b.device) == device
        assert a.trainable
        assert b.trainable
        assert a.base().is_require_grad == b.base().is_require_grad == is_leaf
        assert not b.base().numpy().any()
        spread = a.base().numpy()
        assert abs(spread.mean()) < 5 / 25 / np.sqrt(spread.size)
        assert abs(spread.std() * 25 - 1) < 5 / np.sqrt(2 * spread.size)
    ids = [leaf.id for _, leaf in leaves(module)]
    assert len(set(ids)) == len(ids)
    std = holding(w=numbers(50, 2)).apply_lora(Lora(20, 1.0, init_std=3.0, seed=1)).at("w.lora.a").base().numpy().std()
    assert abs(std / 3 - 1) < 5 / np.sqrt(2 * 50 * 20)
    assert not holding(w=numbers(5, 2)).apply_lora(Lora(2, 1.0, init_std=0.0)).at("w.lora.a").base().numpy().any()


def test_a_seed_and_a_path_give_the_same_factors_each_time_and_others_others():
    """A13, DESIGN engine: wherever the model lies; without a seed they differ."""
    module, lora = Holder(a=Linear(3, 2), b=Linear(3, 2)), Lora(2, 1.0, seed=7)

    def first(one: Any) -> list[bytes]:
        return [one.at(f"{name}.weight.lora.a").base().tobytes() for name in "ab"]

    once = first(module.apply_lora(lora))
    assert first(module.apply_lora(lora)) == first(module.fork("cpu:1").apply_lora(Lora(2, 1.0, seed=7))) == once
    assert once[0] != once[1]
    assert first(module.apply_lora(Lora(2, 1.0, seed=8))) != once
    assert first(module.apply_lora(Lora(2, 1.0))) != first(module.apply_lora(Lora(2, 1.0)))
    stream = Seed(7)
    assert first(module.apply_lora(Lora(2, 1.0, seed=stream))) == once
    assert first(module.apply_lora(Lora(2, 1.0, seed=stream))) != once


def test_a_tied_matrix_gets_one_adapter_and_parts_where_the_group_has_one_place():
    """D8: asked once per object and group answer; the base stays tied."""
    tied = Param(numbers(2, 2))
    both = Holder(a=tied, b=tied).apply_lora(Lora(1, 1.0))
    assert both.a is both.b
    one = Holder(a=tied, b=tied).apply_lora(Lora(1, 1.0, param_group=ParamGroup.from_path("b")))

    assert one.a.reparameterization is None
    assert one.b.reparameterization is not None
    assert [leaf for path, leaf in leaves(one) if path == "b"] == [one.a]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank is 0"),
        ({"rank": -1}, "rank is -1"),
        ({"rank": True}, "rank is True"),
        ({"rank": 1.5}, "rank is 1.5"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"alpha": float("inf")}, "alpha is inf"),
        ({"rank": np.float32(2)}, r"rank is np\.float32\(2\.0\); it must be an integer"),
        ({"rank": np.int64(0)}, r"rank is np\.int64\(0\)"),
        ({"alpha": "1"}, "alpha is '1'"),
        ({"alpha": True}, "alpha is True"),
        ({"alpha": np.float32("nan")}, r"alpha is np\.float32\(nan\); it must be a finite number"),
        ({"alpha": 10**400}, "alpha is beyond every float; it must be a finite number"),
        ({"init_std": -(10**5000)}, "init_std is beyond every float"),  # more digits than Python writes
        ({"init_std": -0.5}, "init_std is -0.5"),
        ({"init_std": float("inf")}, "init_std is inf"),
        ({"dtype": "int32"}, "dtype is int32"),
    ],
)
def test_settings_that_make_no_sense_are_refused_when_they_are_made(settings, message):
    """A21."""
    with pytest.raises(ModuleError, match=message):
        Lora(**{"rank": 1, "alpha": 1.0, **settings})


@given(rank=st.integers(1, 5), alpha=st.integers(1, 64), std=st.sampled_from([0.5, 2.0]), data=st.data())
def test_numbers_of_numpy_are_taken_as_those_of_python(rank, alpha, std, data):
    """A14 to A16: the settings and all that comes of them are the same."""
    integers, numbers_of = [np.int8, np.int64, np.uint16], [np.int64, np.uint8, np.float16, np.float32, np.float64]
    plain = Lora(rank, alpha, init_std=std, seed=1)
    given_ = Lora(
        data.draw(st.sampled_from(integers))(rank),
        data.draw(st.sampled_from(numbers_of))(alpha),
        init_std=data.draw(st.sampled_from(numbers_of[2:]))(std),
        seed=1,
    )
    assert repr(given_) == repr(plain)
    one, other = (Linear(3, 2).apply_lora(lora).at("weight") for lora in (plain, given_))
    adapters = one.reparameterization, other.reparameterization
    assert adapters[0].scale == adapters[1].scale == alpha / rank
    assert adapters[0].a.base().tobytes() == adapters[1].a.base().tobytes()


def test_settings_cannot_be_changed_and_groups_must_be_groups():
    """A21: a field that is changed later could not be checked."""
    with pytest.raises(AttributeError):
        Lora(1, 1.0).rank = 0  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="ParamGroup"):
        Lora(1, 1.0, param_group="weight")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="apply_lora takes"):
        Linear(2, 2).apply_lora("weight")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ModuleError, match=r"^apply_lora: weight has a reparameterization already"):
        Linear(2, 2).apply_lora(Lora(1, 1.0)).apply_lora(Lora(1, 1.0))


# What is computed


def test_the_worked_example():
    """Section 4 of the rules: effective value, gradients of both factors, none of the frozen base."""
    module = holding(w=tensor([[1.0, 2.0], [3.0, 4.0]], device=AUTODIFF)).apply_lora(Lora(1, 2.0))
    set_to = {
        "w.lora.a": tensor([[1.0], [-1.0]], device="cpu:0"),
        "w.lora.b": tensor([[0.5, 0.25]], device="cpu:0"),
    }
    module = module.map(SetTo(set_to))
    assert module.w.val().numpy().tolist() == [[2.0, 2.5], [2.0, 3.5]]

    gradients = ops.sum(tensor([[1.0, 1.0]], device="cpu:0") @ module.w.val()).backward()
    a, b = module.at("w.lora.a").grad(gradients), module.at("w.lora.b").grad(gradients)
    assert a.numpy().tolist() == [[1.5], [1.5]]
    assert b.numpy().tolist() == [[0.0, 0.0]]
    assert module.w.grad(gradients) is None
    assert len(gradients) == 2


@inside("L87")
@given(shape=st.tuples(EXTENTS, EXTENTS), rank=st.integers(1, 6), alpha=st.sampled_from([-2.0, 0.5, 3.0]), seed=SEEDS)
def test_gradients_reach_the_factors_only_and_a_step_changes_no_base_bit(shape, rank, alpha, seed):
    """L87, A10, A49: scale · G · bT and scale · aT · G for the gradient G of the weight."""
    module = adapted(*shape, rank, alpha, seed)
    g = random(shape, seed + 3, "cpu:0")
    gradients = ops.sum(module.w.val() * g).backward()
    a, b = (module.at(f"w.lora.{name}").base().numpy().astype(float) for name in "ab")
    upstream = g.numpy().astype(float)

    found_a, found_b = (module.at(f"w.lora.{name}").grad(gradients).numpy() for name in "ab")
    assert np.allclose(found_a, alpha / rank * upstream @ b.T, rtol=1e-4, atol=1e-4)
    assert np.allclose(found_b, alpha / rank * a.T @ upstream, rtol=1e-4, atol=1e-4)
    assert module.w.grad(gradients) is None
    stepped = SGD(0.1).step(module, gradients)
    assert stepped.w.base() is module.w.base()
    assert np.allclose(stepped.at("w.lora.a").base().numpy(), a - 0.1 * found_a, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("of", FLOATS)
@pytest.mark.parametrize("factors", [None, *FLOATS])
def test_factors_and_value_have_the_dtype_that_is_set_or_the_bases(of, factors):
    """A17, A18: a base of another dtype is cast for the sum; base and record keep theirs."""
    module = holding(w=random((3, 2), 1, dtype=of)).apply_lora(Lora(2, 1.0, dtype=factors))
    expected = of if factors is None else factors

    assert module.at("w.lora.a").dtype == module.at("w.lora.b").dtype == module.w.val().dtype == expected
    assert module.w.base().dtype == module.w.dtype == of
    assert module.w.val().numpy().tobytes() == (module.w.base().cast(expected) + 0.0).numpy().tobytes()


@pytest.mark.golden
def test_effective_values_and_the_materialized_module_are_burns_but_for_the_order_of_a_product():
    """A18, A32: ``lora.bpk``, ``lora_effective.json`` and ``lora_materialized.bpk``."""
    module, folded = two_of("lora", 2.0), two_of("lora_materialized", 2.0)
    recorded = text_of("lora_effective.json")["lora"]

    assert recorded.keys() == set(ADAPTED)
    for path in ADAPTED:
        value, expected = module.at(path).val(), np.frombuffer(bytes.fromhex(recorded[path]), np.float32)
        assert np.allclose(value.numpy().reshape(-1), expected, rtol=1e-6, atol=1e-7)
        assert folded.at(path).base().tobytes() == expected.tobytes()
        assert module.materialize().at(path).base().tobytes() == value.tobytes()
    assert module.num_params() == text_of("lora.json")["num_params"]
    assert module.materialize().num_params() == text_of("lora_materialized.json")["num_params"]


# Switches and records


def test_unfreezing_enables_the_bases_too_unless_a_group_leaves_them_out():
    """A22, A23: which turns LoRA into full training; freezing afterwards freezes the factors."""
    module = Holder(a=Linear(2, 2, AUTODIFF)).apply_lora(Lora(1, 1.0))
    bases = ParamGroup.ids_from_module(Holder(a=Linear(1, 1))) | ParamGroup.from_paths(["a.weight", "a.bias"])

    def training(one: Any) -> list[str]:
        return [path for path, leaf in leaves(one) if leaf.trainable and leaf.base().is_require_grad]

    factors = ["a.weight.lora.a", "a.weight.lora.b"]
    assert training(module) == factors
    assert training(module.unfreeze()) == training(module.set_require_grad(True)) == paths(module)
    assert training(module.freeze()) == []
    assert training(module.freeze().unfreeze_group(ParamGroup.all().exclude(bases))) == factors
    assert training(module.valid()) == []
    assert training(module.valid().train()) == factors


@inside("L90")
def test_adapters_alone_are_recorded_and_loaded_over_a_base():
    """A28, A30: ids too; the scale comes from the settings."""
    plain = Holder(a=Linear(3, 2), b=Linear(2, 2))
    trained = plain.apply_lora(Lora(2, 1.0, seed=1)).map(SetTo({"a.weight.lora.b": numbers(2, 2)}))
    only = trained.into_record_group(ParamGroup.from_predicate(".lora."))
    assert list(only) == [f"{name}.weight.lora.{factor}" for name in "ab" for factor in "ab"]

    other = plain.apply_lora(Lora(2, 8.0)).load_record(only.with_options(allow_partial=True))
    assert everything(other) == everything(trained)
    base, change = plain.a.weight.val().numpy(), trained.a.weight.val().numpy() - plain.a.weight.val().numpy()
    assert np.allclose(other.a.weight.val().numpy(), base + 8 * change, rtol=1e-5)
    refused = plain.apply_lora(Lora(3, 1.0)).try_load_record(only.with_options(allow_partial=True))
    assert [mismatch.path for mismatch in refused.mismatched] == list(only)
