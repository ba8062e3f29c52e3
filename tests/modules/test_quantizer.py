"""The quantizer: which parameters of a module it quantizes, what stays of them, what it refuses and reports."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import (
    BlockScale,
    Calibration,
    DTypeError,
    QuantizationError,
    QuantScheme,
    QuantStore,
    QuantValue,
    ScaleDtype,
    ShapeError,
    Tensor,
    dequantize,
    ops,
    quantize,
    tensor,
    zeros,
)
from modules import Lora, ModuleMapper, Param, ParamGroup, Quantizer, QuantizerError, RunningState
from modules.parallel import DistributedLayeredModel, LayerPlacement
from modules.tree import leaves
from tests.engine.quantization_strategies import schemes, shapes
from tests.engine.strategies import values
from tests.laws.law import inside

from .burn_files import entries_of, tensor_of
from .reparameterizing import everything, holding
from .small_modules import Block, Holder, LazyLinear, Linear, modules, numbers, paths
from .test_reparameterized_modules import Layers

Q8 = QuantScheme(QuantValue.Q8S, QuantStore.native())
Q4_BLOCKS = QuantScheme(QuantValue.Q4S, QuantStore.packed_u32(), block=BlockScale((4,)))
MIN_MAX = Calibration.MIN_MAX


def quantizer(scheme: QuantScheme = Q8, group: ParamGroup | None = None, **settings: Any) -> Quantizer:
    return Quantizer(MIN_MAX, scheme, group, **settings)


def floats_of(module: Any) -> dict[str, Param]:
    return {path: leaf for path, leaf in leaves(module) if isinstance(leaf, Param) and leaf.kind == "float"}


# What is quantized, and what stays


@inside("L83")
@given(made=modules(), data=st.data())
def test_exactly_the_floats_of_the_group_are_quantized_and_nothing_else_is_made(made, data):
    """Q49 to Q51, Q53, Q54: by path; ids, configured trainability and counts stay; nothing else is touched."""
    module = made[0]
    floats = floats_of(module)
    chosen = {path for path in floats if data.draw(st.booleans())}
    shared = {path for path, leaf in floats.items() if any(leaf is floats[other] for other in chosen)}
    lazy = {path for path, leaf in floats.items() if not leaf.is_initialized}
    result = module.quantize_weights(quantizer(group=ParamGroup.from_paths(chosen), allow_nonfinite=True))
    now = {path for path in lazy - shared if module.at(path).is_initialized}

    assert {path for path, leaf in floats_of(result).items() if leaf.base().is_quantized} == chosen
    assert result.num_params() == module.num_params()
    assert paths(result) == paths(module)
    for path, leaf in leaves(result):
        before = dict(leaves(module))[path]
        if path in chosen:
            assert (leaf.id, leaf.trainable, leaf.shape) == (before.id, before.trainable, before.shape)
            assert leaf.mappers is before.mappers
            assert not leaf.base().is_require_grad
            assert leaf.base().tobytes() == quantize(before.base(), Q8, allow_nonfinite=True).tobytes()
            assert str(leaf.device) == str(before.device)
        elif not isinstance(leaf, RunningState):
            assert leaf is before
    assert all(any(shares_value(floats[path], floats[other]) for other in chosen) for path in now)


def shares_value(one: Param, other: Param) -> bool:
    """Whether two versions have the value that one initialiser made, as clones of one lazy parameter do."""
    return one.base().tobytes() == other.base().tobytes()


def test_running_states_integers_flags_and_constants_are_never_quantized():
    """Q49, Q50, M96: every rank of floats is, biases too."""
    block = Block(2)
    result = block.quantize_weights(quantizer())

    assert result.linear.weight.base().is_quantized
    assert result.linear.bias.base().is_quantized
    assert not result.mean.value().is_quantized
    assert result.mean is not block.mean
    assert result.steps is block.steps
    assert result.table is block.table
    assert result.training is block.training


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3), (0, 2)])
def test_every_rank_is_quantized(shape):
    """Q50, Q32."""
    result = holding(w=zeros(shape, device="cpu:0")).quantize_weights(quantizer())

    assert result.w.dtype == Q8
    assert result.w.shape == shape


@inside("L83")
def test_each_is_quantized_on_its_own_device():
    """Q57: split or not, the same bits."""
    devices = ["cpu:0", "cpu:1", "cpu:2"]
    placement = LayerPlacement(devices[0], [devices[1]], devices[2])
    split = DistributedLayeredModel(Layers(devices), placement).quantize_weights(quantizer())
    whole = Layers(["cpu:0"] * 3).quantize_weights(quantizer())
    x = numbers(2, 2)

    assert list(map(str, split.devices())) == devices
    assert split.placement == placement
    assert split(x).numpy().tobytes() == whole.rest[1](whole.rest[0](whole.first(x))).numpy().tobytes()


@given(scheme=schemes(), data=st.data())
def test_values_are_those_of_quantize_for_every_scheme(scheme, data):
    """Q48, Q56: the static form, by the quantizer's calibration and scheme."""
    shape = data.draw(shapes(scheme))
    value = Tensor.from_numpy(values(shape, np.dtype("float32"), data.draw(st.integers(0, 99))), "cpu:0")
    found = holding(w=value).quantize_weights(quantizer(scheme)).w

    assert found.dtype == scheme
    assert found.base().tobytes() == quantize(value, scheme).tobytes()
    assert found.val() is found.base()


def test_the_calibration_is_the_quantizers():
    """Q48, Q76."""
    scheme = QuantScheme(QuantValue.Q2S, QuantStore.native())
    module = holding(w=tensor([-0.9, -0.3, 0.0, 0.6], device="cpu:0"))
    found = module.quantize_weights(Quantizer(Calibration.ABS_MEAN, scheme)).w.base()

    assert found.tobytes()[:4] == bytes([0xFF, 0xFF, 0, 1])


def test_layers_need_not_know():
    """Q35, Q55: a forward dequantizes, close to the one before."""
    module = Linear(3, 2)
    result = module.quantize_weights(quantizer())
    x = numbers(2, 3)

    exact = x @ dequantize(result.weight.base()) + dequantize(result.bias.base())
    assert result(x).numpy().tobytes() == exact.numpy().tobytes()
    assert np.allclose(result(x).numpy(), module(x).numpy(), rtol=0.02)


def test_what_is_quantized_already_is_left_as_it_is():
    """Q31."""
    once = Linear(4, 4).quantize_weights(quantizer(group=ParamGroup.from_predicate("weight")))
    twice = once.quantize_weights(quantizer(Q4_BLOCKS))

    assert twice.weight is once.weight
    assert twice.bias.dtype == Q4_BLOCKS


def test_attached_factors_are_quantized_when_the_group_has_them():
    """Q50: like any other parameter; the value is computed from what they stand for."""
    module = holding(w=numbers(2, 2)).apply_lora(Lora(1, 1.0, seed=1))
    result = module.quantize_weights(quantizer(group=ParamGroup.from_predicate(".lora.")))

    assert [leaf.base().is_quantized for _, leaf in leaves(result)] == [False, True, True]
    a, b = (dequantize(result.at(f"w.lora.{name}").base()) for name in "ab")
    assert result.w.val().tobytes() == (module.w.base() + a @ b).tobytes()


def test_a_group_form_leaves_the_quantizer_as_it_is():
    """Q52: the group given takes the place of the quantizer's own."""
    mine = quantizer(group=ParamGroup.from_path("bias"))
    result = Linear(2, 2).quantize_weights_group(mine, ParamGroup.from_path("weight"))

    assert result.weight.base().is_quantized
    assert not result.bias.base().is_quantized
    assert not Linear(2, 2).quantize_weights(mine).weight.base().is_quantized
    assert mine.set_param_group(ParamGroup.all()).concerns("weight", Linear(2, 2).weight)
    assert not mine.concerns("weight", Linear(2, 2).weight)
    with pytest.raises(TypeError, match="ParamGroup"):
        Linear(2, 2).quantize_weights_group(mine, "weight")  # pyright: ignore[reportArgumentType]


def test_tied_places_are_quantized_once_and_part_where_the_group_has_one():
    """D8."""
    tied = Param(numbers(2, 2))
    module = Holder(a=tied, b=tied)
    both, one = (
        module.quantize_weights(quantizer()),
        module.quantize_weights(quantizer(group=ParamGroup.from_path("b"))),
    )

    assert both.a is both.b
    assert one.a is tied
    assert one.b.base().is_quantized


def test_a_mapper_is_shown_the_quantized_tensor():
    """Q51: a save mapper turns it, with its blocks and packed axis; a load brings it back."""
    turned = Param(numbers(2, 4)).with_mappers(load=lambda value: value.T, save=lambda value: value.T)
    module = Holder(w=turned).quantize_weights(quantizer(Q4_BLOCKS))
    entry = module.into_record()["w"]

    assert entry.shape == (4, 2)
    assert entry.dtype == Q4_BLOCKS.permuted((1, 0))
    loaded = module.load_record(module.into_record())
    assert everything(loaded) == everything(module)


# What is refused


def test_settings_that_cannot_be_computed_are_refused_when_the_quantizer_is_made():
    """Q6, Q7, Q15."""
    two_level = QuantScheme(tensor=ScaleDtype.F32, block=BlockScale((4,), ScaleDtype.UE4M3))
    for calibration, scheme in (
        (MIN_MAX, QuantScheme(mode="Lookup")),
        (MIN_MAX, QuantScheme(tensor=ScaleDtype.F32, block=BlockScale((4,), ScaleDtype.F32))),
        (Calibration.ABS_MEAN, two_level),
    ):
        with pytest.raises(DTypeError):
            Quantizer(calibration, scheme)
    with pytest.raises(
        TypeError, match=r"Quantizer: calibration is .*; it must be a Calibration \(MIN_MAX, ABS_MEAN\)"
    ):
        Quantizer(Q8, MIN_MAX)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="Quantizer: scheme is 'q8'; it must be a QuantScheme"):
        Quantizer(MIN_MAX, "q8")  # pyright: ignore[reportArgumentType]
    for neither in ("yes", 1, None):
        with pytest.raises(TypeError, match=f"Quantizer: allow_nonfinite is {neither!r}; it must be True or False"):
            Quantizer(MIN_MAX, Q8, allow_nonfinite=neither)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="Quantizer"):
        Linear(2, 2).quantize_weights(Q8)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="ParamGroup"):
        Quantizer(MIN_MAX, Q8, "weight")  # pyright: ignore[reportArgumentType]


@inside("L82")
def test_one_error_lists_every_parameter_that_cannot_be_quantized_and_nothing_is_done():
    """Q11, Q28, Q58: axis and extent, or how many are not finite, with the path."""
    bad = tensor([[1.0, float("nan")], [float("inf"), 2.0]], device="cpu:0")
    module = Holder(good=Linear(4, 4), odd=Linear(4, 6), bad=Param(bad), again=Linear(4, 6).weight)
    before = everything(module)
    blocks = QuantScheme(QuantValue.Q8S, QuantStore.native(), block=BlockScale((4,)))
    with pytest.raises(QuantizerError) as caught:
        module.quantize_weights(quantizer(blocks))

    findings = caught.value.findings
    assert [finding.split(":")[0] for finding in findings] == ["odd.weight", "odd.bias", "bad", "again"]
    assert "axis 1 of shape (4, 6) has extent 6, which a block of extent 4 does not divide" in findings[0]
    assert all(finding in str(caught.value) for finding in findings)
    assert everything(module) == before
    tied = module.odd.weight
    with pytest.raises(QuantizerError) as caught:
        Holder(a=tied, b=tied).quantize_weights(quantizer(blocks))
    assert [finding.split(":")[0] for finding in caught.value.findings] == ["a"]
    with pytest.raises(QuantizerError, match="2 of 4 elements"):
        module.quantize_weights(quantizer())
    assert isinstance(caught.value, QuantizationError)
    assert isinstance(caught.value, ShapeError)
    assert module.quantize_weights(quantizer(allow_nonfinite=True)).bad.base().is_quantized


def test_an_initialiser_that_fails_is_named_and_does_not_pass_for_a_finding():
    """D6: the path is added as a note."""

    def init(device: Any, require_grad: bool) -> Any:
        raise ShapeError("no memory of it")

    module = Holder(a=Linear(2, 2), w=Param.lazy(init, (2, 2), "float32", "cpu:0"))
    with pytest.raises(ShapeError, match="no memory of it") as caught:
        module.quantize_weights(quantizer())
    assert caught.value.__notes__ == ["at w"]


# The report


def test_a_report_tells_of_each_parameter_what_becomes_of_it_and_leaves_the_module_as_it_is():
    """Per parameter: scheme, bytes before and after, largest and mean error; what is skipped, and why."""
    made: list[Any] = []
    module = Holder(
        block=Block(2),
        lazy=LazyLinear(2, 2, made=made),
        done=Linear(4, 4).quantize_weights(quantizer()).weight,
        odd=Param(tensor([1.0, float("nan")], device="cpu:0")),
    )
    before = everything(Holder(block=module.block))
    group = ParamGroup.all() - ParamGroup.from_predicate("bias") - ParamGroup.from_predicate("lazy")
    report = quantizer(group=group).report(module)
    one = report.parameters["block.linear.weight"]
    exact = module.block.linear.weight.base()
    errors = np.abs(dequantize(quantize(exact, Q8)).numpy() - exact.numpy())

    assert list(report.parameters) == [path for path in paths(module) if not path.endswith("training")]
    assert (one.scheme, one.nbytes_before, one.nbytes_after, one.nbytes_in_file) == (Q8, 16, 8, 8)
    assert one.largest_error == pytest.approx(errors.max())
    assert one.mean_error == pytest.approx(errors.mean())
    skipped = {path: found.skipped for path, found in report.parameters.items() if found.skipped}
    assert skipped.keys() == report.parameters.keys() - {"block.linear.weight"}
    assert skipped["block.linear.bias"] == skipped["lazy.weight"] == "not of the group"
    assert skipped["block.steps"] == "int64, no floats"
    assert skipped["block.mean"] == "a running state"
    assert skipped["done"] == f"quantized already, {Q8}"
    assert "1 of 2 elements" in str(skipped["odd"])
    assert not made
    assert everything(Holder(block=module.block)) == before
    text = str(report)
    assert all(path in text and str(reason) in text for path, reason in skipped.items())
    assert text.splitlines()[1].split() == [
        "block.linear.weight",
        "(Q8S,",
        "Native)",
        "16",
        "8",
        "8",
        "0.0157",
        "0.00787",
    ]


def test_a_report_counts_bytes_in_files_packed_and_a_tied_parameter_once():
    """Q38, Q43: in memory a byte a value; in files as the store packs them."""
    tied = Param(numbers(4, 8))
    report = quantizer(Q4_BLOCKS).report(Holder(a=tied, b=tied))

    assert report.parameters["a"] is report.parameters["b"]
    assert (report.parameters["a"].nbytes_after, report.parameters["a"].nbytes_in_file) == (64, 48)
    assert str(report).splitlines()[-1].split() == ["1", "parameters", "128", "64", "48"]
    empty = quantizer().report(Holder(w=Param(zeros((0,), device="cpu:0"))))
    assert empty.parameters["w"].largest_error == 0


def test_a_report_says_in_a_line_that_there_is_nothing_to_quantize():
    """And still what is left as it is; what is no module is refused as by `quantize_weights`."""
    assert str(quantizer().report(Holder(w=None))) == f"nothing to quantize to {Q8}"
    others = quantizer(group=ParamGroup.from_path("weight")).report(Holder(a=Linear(2, 2)))
    assert str(others).splitlines() == [
        f"nothing to quantize to {Q8}",
        "",
        "left as they are:",
        "  a.weight: not of the group",
        "  a.bias: not of the group",
    ]
    for no_module in (3, None, Param(numbers(2))):
        with pytest.raises(TypeError, match=f"report takes a module, not {re.escape(repr(no_module)[:20])}"):
            quantizer().report(no_module)  # pyright: ignore[reportArgumentType]


@given(scheme=schemes(values=[QuantValue.Q8S, QuantValue.Q4F]), data=st.data())
def test_reported_errors_are_those_of_what_quantizing_gives(scheme, data):
    """The report and `quantize_weights` agree, in every dtype."""
    shape = data.draw(shapes(scheme))
    dtype = data.draw(st.sampled_from(["float32", "float64", "float16", "bfloat16"]))
    array = values(shape, np.dtype("float32"), data.draw(st.integers(0, 99)))
    module = holding(w=Tensor.from_numpy(array, "cpu:0").cast(dtype))
    one = quantizer(scheme).report(module).parameters["w"]
    after = dequantize(module.quantize_weights(quantizer(scheme)).w.base(), "float64").numpy()
    errors = np.abs(after - module.w.base().cast("float64").numpy())

    assert one.largest_error == pytest.approx(errors.max(), rel=1e-5, abs=1e-7)
    assert one.mean_error == pytest.approx(errors.mean(), rel=1e-5, abs=1e-7)


# Records of quantized modules


def test_a_record_restores_a_quantized_module_to_the_bit():
    """A43, R15, Q34: values, scales, scheme and ids, into a module that was quantized alike or not at all."""
    module = Linear(4, 4).quantize_weights(quantizer(Q4_BLOCKS))
    record = module.into_record()

    for target in (
        Linear(4, 4),
        Linear(4, 4).quantize_weights(quantizer(Q4_BLOCKS)),
        Linear(4, 4).quantize_weights(quantizer()),
    ):
        loaded = target.load_record(record)
        assert {path: one[:2] for path, one in everything(loaded).items()} == {
            path: one[:2] for path, one in everything(module).items()
        }
        assert loaded.weight.dtype == Q4_BLOCKS


def test_casting_to_the_module_dequantizes_keeps_or_refuses():
    """R15, R16: it dequantizes into dense and keeps the same scheme; another, or dense onto quantized, is refused."""
    dense = Linear(4, 4)
    module = dense.quantize_weights(quantizer(Q4_BLOCKS))
    other = dense.quantize_weights(quantizer())
    record = module.into_record().with_options(dtype_policy="CastToModule")

    into_dense = dense.load_record(record)
    assert into_dense.weight.base().tobytes() == dequantize(module.weight.base()).tobytes()
    assert module.load_record(record).weight.base().tobytes() == module.weight.base().tobytes()
    for source in (record, dense.into_record().with_options(dtype_policy="CastToModule")):
        result = other.try_load_record(source)
        assert [mismatch.path for mismatch in result.mismatched] == ["weight", "bias"]
        assert "a load does not quantize" in str(result.error)


def test_a_running_state_takes_what_a_quantized_entry_stands_for():
    """M96: it is never quantized itself."""
    weight = holding(mean=numbers(4)).quantize_weights(quantizer())
    loaded = Holder(mean=RunningState(zeros((4,), device="cpu:0"))).load_record(weight.into_record())

    assert loaded.mean.value().tobytes() == dequantize(weight.mean.base()).tobytes()


def test_entries_for_tied_places_are_compared_by_their_bytes():
    """D8: quantized ones too."""
    tied = Param(numbers(2, 2))
    module, apart = Holder(a=tied, b=tied), Holder(a=Param(numbers(2, 2)), b=Param(numbers(2, 2, start=7)))
    same = Holder(a=Param(numbers(2, 2)), b=Param(numbers(2, 2))).quantize_weights(quantizer()).into_record()

    loaded = module.load_record(same)
    assert loaded.a is loaded.b
    assert loaded.a.base().is_quantized
    refused = module.try_load_record(apart.quantize_weights(quantizer()).into_record())
    assert [mismatch.path for mismatch in refused.mismatched] == ["b"]


@pytest.mark.golden
@pytest.mark.parametrize("name", ["quantized_col", "quantized_col_block"])
def test_a_save_mapper_turns_a_quantized_weight_as_burns_does(name):
    """Q13, Q41, Q51: scheme and bytes in the file, of the value in memory."""
    entry = entries_of(name)["weight"]
    in_memory = tensor_of({**entry, **entry["in_memory"]})
    param = Param.initialized(entry["param_id"], in_memory).with_mappers(save=lambda value: value.T)
    saved = Holder(weight=param).into_record()["weight"]

    assert saved.dtype == tensor_of(entry).dtype
    assert saved.read("cpu:0").tobytes().hex() == entry["data"]


def test_a_map_is_shown_quantized_values_and_may_make_them_dense():
    """M42a, Q34: `Param.map(dequantize)` undoes it but for the error."""

    class Dense(ModuleMapper):
        def map_float(self, path: str, param: Param, /) -> Param:
            return param.map(dequantize)

    module = Linear(2, 2)
    back = module.quantize_weights(quantizer()).map(Dense())
    assert not back.weight.base().is_quantized
    assert float(ops.max(ops.absolute(back.weight.base() - module.weight.base()))) < 0.02
