"""Quantized parameters in records: recorded as they are, loaded as they are, cast only when asked. R3, R15 to R19."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import BlockScale, QuantScheme, QuantStore, QuantValue, ScaleDtype, Tensor, dequantize, quantize, transfer
from modules import Param, ParamGroup, RunningState
from records import ModuleRecord, ParamId, RecordEntry, RecordFormatError, RecordValidationError, open_record
from tests.engine.strategies import values
from tests.laws.law import inside
from tests.records import burnpack_oracle as oracle
from tests.records.quantized_items import quantized_items

from .small_modules import AUTODIFF, Holder

Q8 = QuantScheme(QuantValue.Q8S, QuantStore.native())
Q4_COLUMNS = QuantScheme(QuantValue.Q4S, QuantStore.packed_u32(1), block=BlockScale((2, 1), ScaleDtype.F16))
DEVICES = ("cpu:0", "cpu:1", AUTODIFF, "cpu:2+autodiff")
FLOATS = ("float32", "float16", "bfloat16", "float64")


def dense(shape: tuple[int, ...], device: str = "cpu:0", dtype: str = "float32", seed: int = 0) -> Tensor:
    return Tensor.from_numpy(values(shape, np.dtype(dtype), seed), device)


def never(*_: Any) -> Tensor:
    raise AssertionError("a load has run an initialiser")


def target(way: str, shape: tuple[int, ...], device: str, trainable: bool) -> Param:
    """A parameter of another build: dense, quantized by another scheme, or not made yet."""
    if way == "lazy":
        return Param.lazy(never, shape, "float32", device, trainable)
    value = dense(shape, device, way if way in FLOATS else "float32", 1)
    value = quantize(value, QuantScheme()) if way == "quantized" else value
    return Param(value).set_require_grad(trainable)


def by_file(record: ModuleRecord, load: Callable[[ModuleRecord], Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        record.save(Path(folder) / "r.bpk")
        with open_record(Path(folder) / "r.bpk") as opened:
            return load(opened)


@inside("L54")
@given(
    item=quantized_items(),
    way=st.sampled_from(["lazy", "quantized", *FLOATS]),
    device=st.sampled_from(DEVICES),
    trainable=st.booleans(),
    in_file=st.booleans(),
)
def test_a_quantized_parameter_is_restored_bit_for_bit_in_another_build(item, way, device, trainable, in_file):
    """L54, R15, R18, M34: scheme, bytes and id are the source's; device and trainability the target's."""
    way = "lazy" if way == "quantized" and 0 in item.shape else way
    source = Holder(q=Param.initialized(item.id or 7, item.tensor), bias=Param(dense((2,))))
    other = Holder(q=target(way, item.shape, device, trainable), bias=Param(dense((2,), device, seed=3)))
    record = source.into_record()
    entry = record["q"]
    assert (entry.dtype, entry.id, entry.host().tobytes()) == (item.tensor.dtype, item.id or 7, item.data)

    loaded = by_file(record, other.load_record) if in_file else other.load_record(record)

    value = loaded.q.val()
    assert (value.dtype, value.shape, value.tobytes()) == (item.tensor.dtype, item.shape, item.data)
    assert (loaded.q.id, str(value.device), loaded.q.trainable) == (item.id or 7, device, trainable)
    assert not value.is_require_grad
    assert loaded.bias.val().tobytes() == source.bias.val().tobytes()
    assert loaded.into_record().into_bytes() == record.into_bytes()
    assert loaded.load_record(record).into_record().into_bytes() == record.into_bytes()


@inside("L60")
@given(item=quantized_items(), dtype=st.sampled_from(FLOATS), device=st.sampled_from(DEVICES), lazy=st.booleans())
def test_cast_to_module_dequantizes_into_a_dense_parameter(item, dtype, device, lazy):
    """L60, R15: the engine's own numbers, in the dtype that the parameter has or will have."""
    param = Param.lazy(never, item.shape, dtype, device) if lazy else Param(dense(item.shape, device, dtype))
    record = ModuleRecord([("q", item.entry)]).cast_to_module_dtype()

    loaded = Holder(q=param).load_record(record).q

    assert loaded.val().tobytes() == dequantize(item.tensor, dtype).tobytes()
    assert (str(loaded.dtype), str(loaded.device), loaded.trainable) == (dtype, device, True)
    assert loaded.val().is_require_grad == ("autodiff" in device)


@inside("L60")
@given(item=quantized_items(least=1), scheme=st.sampled_from([Q8, QuantScheme()]), validate=st.booleans())
def test_cast_to_module_keeps_a_scheme_and_never_quantizes(item, scheme, validate):
    """L60, R15, R16: of the same scheme the same bits, of another or of a dense dtype an error that names the path."""
    held = quantize(dense(item.shape, seed=2), scheme)
    module = Holder(q=Param(held))
    for given_ in (item.entry, RecordEntry(held), RecordEntry(dense(item.shape))):
        record = ModuleRecord([("q", given_)]).cast_to_module_dtype().with_options(validate=validate)
        result = module.try_load_record(record)
        if given_.dtype == scheme:
            assert result.unwrap().q.val().tobytes() == given_.read("cpu:0").tobytes()
            continue
        assert [mismatch.path for mismatch in result.mismatched] == ["q"]
        if validate:
            assert isinstance(result.error, RecordValidationError)
            assert f"q: the record has {given_.dtype}, the module {scheme}" in str(result.error)
        else:
            assert result.unwrap().q.val() is held


@inside("L60")
@given(item=quantized_items(), cast=st.booleans())
def test_a_quantized_entry_counts_as_float(item, cast):
    """L60, R17: kinds never mix, whatever the policy."""
    record = ModuleRecord([("q", item.entry)]).with_options(dtype_policy="CastToModule" if cast else "FromRecord")
    for dtype in ("int64", "uint8", "bool"):
        module = Holder(q=Param(Tensor.from_numpy(np.zeros(item.shape, dtype), "cpu:0")))
        result = module.try_load_record(record)
        assert [mismatch.path for mismatch in result.mismatched] == ["q"]
        assert "kinds are not converted" in str(result.error)


@inside("L54", "L70")
@given(item=quantized_items(ranks=(2, 2)), device=st.sampled_from(DEVICES), kept=st.booleans())
def test_mappers_turn_a_quantized_parameter_with_its_blocks(item, device, kept):
    """L54, L70, Q13, R13: stored as in the file, turned in memory; the same scheme is told in file orientation."""
    turn = {"load": lambda tensor: tensor.T, "save": lambda tensor: tensor.T}
    record = ModuleRecord([("q", RecordEntry(item.tensor, ParamId(3)))])
    value = item.tensor.T.to_device(device) if kept else dense(item.shape[::-1], device)
    module = Holder(q=Param.initialized(5, value).with_mappers(**turn))

    loaded = module.load_record(record.cast_to_module_dtype() if kept else record)

    assert loaded.q.val().dtype == item.tensor.T.dtype
    assert loaded.q.val().tobytes() == item.tensor.T.tobytes()
    assert loaded.into_record().into_bytes() == record.into_bytes()


@given(item=quantized_items(), cast=st.booleans())
def test_a_running_state_takes_the_numbers(item, cast):
    """R19, Q50: running states are never quantized here."""
    record = ModuleRecord([("r", item.entry)]).with_options(dtype_policy="CastToModule" if cast else "FromRecord")
    state = RunningState(dense(item.shape, AUTODIFF), 4)

    loaded = Holder(r=state).load_record(record).r

    assert loaded.value().tobytes() == dequantize(item.tensor).tobytes()
    assert (loaded.id, str(loaded.value().device)) == (4, AUTODIFF)
    assert not loaded.value().is_require_grad


@inside("L58")
def test_a_scale_that_is_none_loads_nothing():
    """L58, R104: the receiver is as it was, and nothing lazy was made."""
    scheme = {"value": "Q8S", "store": "Native", "mode": "Symmetric", "tensor": None, "block": None}
    for at in range(3):
        data = [b"\1\2\0\0\x80" + (b"\xff" if i == at else b"\x3f") for i in range(3)]
        dtype = oracle.quantized(scheme)
        stored = [oracle.Stored(f"p{i}", dtype, (2,), one, i) for i, one in enumerate(data)]
        module = Holder(**{f"p{i}": Param.lazy(never, (2,), "float32", "cpu:0") for i in range(3)})
        result = module.try_load_record(ModuleRecord.from_bytes(oracle.burnpack(stored)))
        assert result.module is None
        assert isinstance(result.error, RecordFormatError)
        assert f"tensor 'p{at}'" in str(result.error)
        assert not any(getattr(module, f"p{i}").is_initialized for i in range(3))


@inside("L63")
def test_quantized_parameters_of_a_split_module_are_read_onto_their_devices(tmp_path):
    """L63, R35: nothing is copied between devices."""
    weights = {f"w{i}": quantize(dense((4, 8), seed=i), Q4_COLUMNS) for i in range(3)}
    Holder(**{name: Param(weight) for name, weight in weights.items()}).save_file(tmp_path / "r")
    module = Holder(**{name: Param(dense((4, 8), f"cpu:{i}")) for i, name in enumerate(weights)})
    with open_record(tmp_path / "r") as record, transfer.log() as log:
        loaded = module.load_record(record)
    assert log.copies == 0
    for i, (name, weight) in enumerate(weights.items()):
        value = getattr(loaded, name).val()
        assert (str(value.device), value.tobytes()) == (f"cpu:{i}", weight.tobytes())


def test_tied_quantized_parameters_take_one_entry_and_refuse_two_different_ones():
    """D8: compared by their bytes."""
    one, other = (quantize(dense((2, 4), seed=seed), Q8) for seed in (1, 2))
    param = Param(dense((2, 4)))
    tied = Holder(a=param, b=param)
    again = quantize(dense((2, 4), seed=1), Q8)
    loaded = tied.load_record(ModuleRecord([("a", RecordEntry(one, ParamId(1))), ("b", RecordEntry(again))]))
    assert loaded.a is loaded.b
    assert loaded.a.val().tobytes() == one.tobytes()
    result = tied.try_load_record(ModuleRecord([("a", RecordEntry(one)), ("b", RecordEntry(other))]))
    assert [mismatch.path for mismatch in result.mismatched] == ["b"]


def test_a_groups_record_holds_the_quantized_parameters_that_it_matches():
    """R6, R32."""
    module = Holder(a=Param(quantize(dense((2, 4)), Q8)), b=Param(dense((3,))))
    record = module.into_record_group(ParamGroup.from_path("a"))
    assert list(record) == ["a"]
    fresh = Holder(a=Param(dense((2, 4), seed=5)), b=Param(dense((3,), seed=6)))
    loaded = fresh.load_record(ModuleRecord.from_bytes(record.into_bytes()).with_options(allow_partial=True))
    assert loaded.a.val().tobytes() == module.a.val().tobytes()
    assert loaded.b is fresh.b


@pytest.mark.parametrize("scheme", [Q8, Q4_COLUMNS])
def test_a_module_saves_to_the_same_bytes_with_its_quantized_parameters_elsewhere(scheme, tmp_path):
    """R48: wherever they lie."""
    module = Holder(a=Param(quantize(dense((4, 8)), scheme)), b=Param(dense((3,))))
    module.save_file(tmp_path / "one")
    module.fork("cpu:3").save_file(tmp_path / "two")
    assert (tmp_path / "one.bpk").read_bytes() == (tmp_path / "two.bpk").read_bytes()
