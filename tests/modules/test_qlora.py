"""QLoRA: adapters over quantized weights."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import (
    BlockScale,
    Calibration,
    DTypeError,
    QuantScheme,
    QuantStore,
    QuantValue,
    Tensor,
    dequantize,
    ops,
    quantize,
)
from modules import SGD, Lora, ModuleError, Param, ParamGroup, QLora, Quantizer, QuantizerError
from modules.parallel import DistributedLayeredModel, LayerPlacement
from modules.tree import leaves
from tests.engine.strategies import values
from tests.laws.law import inside

from .burn_files import ADAPTED, entries_of, text_of, two_of
from .reparameterizing import SetTo, everything, holding
from .small_modules import AUTODIFF, Holder, LazyLinear, Linear, modules, numbers, paths
from .test_reparameterized_modules import Layers

SEEDS = st.integers(0, 2**32 - 1)
Q8 = QuantScheme(QuantValue.Q8S, QuantStore.native())
BLOCKS = QuantScheme(QuantValue.Q4S, QuantStore.packed_u32(), block=BlockScale((2,)))


def qlora(scheme: QuantScheme = Q8, quantized: ParamGroup | None = None, **settings: Any) -> QLora:
    lora = Lora(**{"rank": 2, "alpha": 4.0, "seed": 1, **settings})
    return QLora(lora, Quantizer(Calibration.MIN_MAX, scheme, quantized))


def adapted(shape: tuple[int, int], seed: int, scheme: QuantScheme = Q8) -> Holder:
    """A quantized matrix with an adapter whose b is not zero."""
    weight = Tensor.from_numpy(values(shape, np.dtype("float32"), seed), AUTODIFF)
    b = Tensor.from_numpy(values((2, shape[1]), np.dtype("float32"), seed + 1), "cpu:0")
    return holding(w=weight).apply_qlora(qlora(scheme)).map(SetTo({"w.lora.b": b}))


@given(made=modules(), data=st.data())
def test_each_group_decides_for_itself(made, data):
    """A39 to A41: quantized by one, adapters on matrices by the other; every base is frozen."""
    module = made[0]
    floats = {path: leaf for path, leaf in leaves(module) if isinstance(leaf, Param) and leaf.kind == "float"}
    quantized = {path for path in floats if data.draw(st.booleans())}
    targets = {path for path in floats if data.draw(st.booleans())}
    quantizer = Quantizer(Calibration.MIN_MAX, Q8, ParamGroup.from_paths(quantized), allow_nonfinite=True)
    result = module.apply_qlora(QLora(Lora(2, 1.0, param_group=ParamGroup.from_paths(targets)), quantizer))

    factors = [path for path in paths(result) if ".lora." in path]
    assert factors == [
        f"{path}.lora.{name}"
        for path, leaf in floats.items()
        if path in targets and len(leaf.shape) == 2
        for name in "ab"
    ]
    for path, before in floats.items():
        param = result.at(path)
        assert param.base().is_quantized == (path in quantized)
        assert (param.id, param.trainable, param.base().is_tracked) == (before.id, False, False)
    assert not any(result.at(path).base().is_quantized for path in factors)


@given(shape=st.tuples(st.integers(1, 4), st.integers(1, 4)), seed=SEEDS)
def test_values_and_gradients_are_those_of_lora_over_the_dequantized_base(shape, seed):
    """A42: to the bit; gradients reach the factors only."""
    module = adapted(shape, seed)
    base = dequantize(module.w.base())
    plain = holding(w=base.autodiff()).apply_lora(Lora(2, 4.0, seed=1))
    plain = plain.map(SetTo({"w.lora.b": module.at("w.lora.b").base().without_autodiff()}))
    g = Tensor.from_numpy(values(shape, np.dtype("float32"), seed + 2), "cpu:0")

    assert module.w.val().tobytes() == plain.w.val().tobytes()
    mine, others = (ops.sum(one.w.val() * g).backward() for one in (module, plain))
    assert module.w.grad(mine) is None
    assert len(mine) == 2
    for name in "ab":
        found, expected = module.at(f"w.lora.{name}").grad(mine), plain.at(f"w.lora.{name}").grad(others)
        assert found.numpy().tobytes() == expected.numpy().tobytes()
    stepped = SGD(0.1).step(module, mine)
    assert stepped.w.base() is module.w.base()


@pytest.mark.parametrize("factors", ["float32", "float16", "bfloat16", "float64"])
def test_a_quantized_base_is_dequantized_straight_to_the_factors_dtype(factors):
    """A17, A18: float32 unless it is set, whatever the weight was."""
    weight = numbers(2, 2).cast("float16")
    assert str(holding(w=weight).apply_qlora(qlora()).w.val().dtype) == "float32"
    module = holding(w=weight).apply_qlora(qlora(dtype=factors))

    assert str(module.w.val().dtype) == str(module.at("w.lora.a").dtype) == factors
    assert module.w.val().tobytes() == dequantize(module.w.base(), factors).tobytes()


@inside("L91")
def test_no_method_makes_a_quantized_base_dense():
    """A9, A25, A49, M42a, L91: it moves whole and stays attached."""
    module = adapted((2, 4), 3, BLOCKS)
    known = {path: one[:2] for path, one in everything(module).items()}
    for one in (
        module.valid(),
        module.valid().train(),
        module.fork("cpu:1"),
        module.to_device("cpu:1"),
        module.clone(),
        module.freeze().unfreeze(),
        module.load_record(module.into_record()),
    ):
        assert {path: found[:2] for path, found in everything(one).items()} == known
        assert one.w.dtype == BLOCKS
        assert one.w.val().tobytes() == module.w.val().tobytes()
    assert list(map(str, module.fork("cpu:1").devices())) == ["cpu:1+autodiff"]


@inside("L89")
def test_materialize_gives_dense_weights_with_the_loss_in_them():
    """A34, A44, L89: of the effective dtype, frozen, with nothing attached."""
    module = Holder(layer=Linear(4, 2)).apply_qlora(qlora(dtype="float64"))
    folded = module.materialize()

    assert str(folded.layer.weight.dtype) == "float64"
    assert folded.layer.weight.base().tobytes() == module.layer.weight.val().tobytes()
    assert folded.layer.bias.base().is_quantized  # it had nothing attached (A33)
    assert not folded.layer.weight.trainable
    assert folded.layer.weight.reparameterization is None
    assert folded.layer.weight.id == module.layer.weight.id


@inside("L90")
def test_a_record_restores_base_and_factors_and_the_adapters_alone_go_over_any_base():
    """A30, A43, L90: values, scales, scheme, factors, ids."""
    plain = Holder(layer=Linear(4, 2))
    trained = plain.apply_qlora(qlora(BLOCKS)).map(SetTo({"layer.weight.lora.b": numbers(2, 2)}))
    other = plain.apply_qlora(qlora(BLOCKS, seed=9))
    assert everything(other) != everything(trained)
    assert everything(other.load_record(trained.into_record())) == everything(trained)

    only = trained.into_record_group(ParamGroup.from_predicate(".lora."))
    assert list(only) == ["layer.weight.lora.a", "layer.weight.lora.b"]
    assert everything(other.load_record(only.with_options(allow_partial=True))) == everything(trained)


def test_what_cannot_be_quantized_is_refused_whole_and_what_is_not_matched_stays_lazy():
    """A45, Q53, Q58: the error lists all; a second one is refused first (A4)."""
    made: list[Any] = []
    module = Holder(a=Linear(2, 3), b=Linear(2, 5), lazy=LazyLinear(2, 2, made=made))
    rest = ParamGroup.all() - ParamGroup.from_predicate("lazy")
    with pytest.raises(QuantizerError) as caught:
        module.apply_qlora(qlora(BLOCKS, rest, param_group=rest))
    assert [finding.split(":")[0] for finding in caught.value.findings] == ["a.weight", "a.bias", "b.weight", "b.bias"]

    result = module.apply_qlora(qlora(Q8, rest, param_group=rest))
    assert not made
    assert not result.lazy.weight.is_initialized
    with pytest.raises(ModuleError, match=r"^apply_qlora: a\.weight has a reparameterization"):
        result.apply_qlora(qlora(BLOCKS, rest))
    with pytest.raises(TypeError, match="QLora takes"):
        QLora(Lora(1, 1.0), Lora(1, 1.0))  # pyright: ignore[reportArgumentType]


def test_a_qlora_may_be_asked_as_any_reparameterizer():
    """A2, A39: about one parameter, or with a weight that is quantized already."""
    module = Linear(2, 2)
    base, adapter = qlora().reparameterize("weight", module.weight)
    assert base.base().tobytes() == quantize(module.weight.base(), Q8).tobytes()
    assert adapter is not None
    again = module.quantize_weights(Quantizer(Calibration.MIN_MAX, Q8)).apply_reparameterization(qlora())
    assert again.weight.base().tobytes() == base.base().tobytes()
    assert again.weight.val().tobytes() == module.apply_qlora(qlora()).weight.val().tobytes()


def test_a_tied_matrix_is_quantized_and_adapted_once():
    """D8: also where the two groups answer differently for its places."""
    tied = Param(numbers(2, 2))
    both = Holder(a=tied, b=tied).apply_qlora(qlora())
    assert both.a is both.b
    parted = Holder(a=tied, b=tied).apply_qlora(qlora(quantized=ParamGroup.from_path("a")))

    assert parted.a.base().is_quantized
    assert not parted.b.base().is_quantized
    assert parted.a.reparameterization is not parted.b.reparameterization


def test_a_split_model_is_adapted_where_it_runs_with_the_bits_of_the_whole_one():
    """P63, L91: quantized and adapted on each layer's device, before it is wrapped or after."""
    devices = ["cpu:0", "cpu:1", "cpu:2"]
    placement = LayerPlacement(devices[0], [devices[1]], devices[2])
    set_to = {f"{path}.weight.lora.b": numbers(2, 2) for path in ("first", "rest.0", "rest.1")}
    whole = Layers(["cpu:0"] * 3).apply_qlora(qlora()).map(SetTo(set_to))
    x = numbers(2, 2)
    y = whole.rest[1](whole.rest[0](whole.first(x))).numpy().tobytes()

    per_device = {
        f"{path}.weight.lora.b": numbers(2, 2, device=device)
        for path, device in zip(("first", "rest.0", "rest.1"), devices, strict=True)
    }
    wrapped = DistributedLayeredModel(Layers(devices), placement).apply_qlora(qlora())
    after = DistributedLayeredModel(Layers(devices).apply_qlora(qlora()), placement)
    for one in (wrapped, after):
        assert one.placement == placement
        assert one.map(SetTo(per_device))(x).numpy().tobytes() == y


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_model_in_half_precision_needs_factors_of_its_dtype(dtype):
    """A17, A18: those beside quantized weights are float32 unless `Lora` says otherwise."""
    module = Holder(a=Param(numbers(4, 2).cast(dtype)))
    x = numbers(3, 4).cast(dtype)

    assert (x @ module.apply_qlora(qlora(dtype=dtype)).a.val()).dtype == dtype
    with pytest.raises(DTypeError, match=f"{dtype} and float32"):
        x @ module.apply_qlora(qlora()).a.val()


def test_materialize_leaves_what_is_quantized_and_has_no_adapter_quantized():
    """A33, A34: the same parameter; what had one is dense."""
    module = Linear(2, 2).apply_qlora(qlora())
    folded = module.materialize()

    assert not folded.weight.base().is_quantized
    assert folded.bias is module.bias
    assert folded.bias.base().is_quantized


@pytest.mark.golden
def test_effective_values_and_the_materialized_module_are_burns_but_for_the_order_of_a_product():
    """A42, A44: ``qlora.bpk``, ``lora_effective.json`` and ``qlora_materialized.bpk``."""
    module, recorded = two_of("qlora", 2.0), text_of("lora_effective.json")["qlora"]
    folded = entries_of("qlora_materialized")

    assert recorded.keys() == set(ADAPTED)
    for path in ADAPTED:
        assert module.at(path).base().is_quantized
        value, expected = module.at(path).val(), np.frombuffer(bytes.fromhex(recorded[path]), np.float32)
        assert np.allclose(value.numpy().reshape(-1), expected, rtol=1e-6, atol=1e-7)
        assert folded[path]["data"] == recorded[path]
        assert module.materialize().at(path).base().tobytes() == value.tobytes()
    assert module.num_params() == text_of("qlora.json")["num_params"]
