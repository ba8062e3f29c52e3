"""Laws that hold for every operation, run over one table of them."""

import types
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.operations import CASES, TAKEN, Case, Free
from engine import DeviceMismatchError, DTypeError, Tensor, ops, tensor, transfer
from tests.engine.comparison import is_dense, same_bits
from tests.engine.strategies import BFLOAT16, DTYPES, FLOATS, in_order

each_case = pytest.mark.parametrize("case", CASES, ids=[f"{case.name}-{at}" for at, case in enumerate(CASES)])
several = [case for case in CASES if len(case.operands) > 1]
alike = [
    case for case in several if case.takes != "bools" and sum(isinstance(kind, Free) for kind in case.operands) > 1
]


def _main(case: Case) -> Any:
    return TAKEN[case.takes][0]


def test_the_table_has_every_public_operation_and_no_other():
    public = {
        name
        for name, value in vars(ops).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    # A function that hides the module it comes from is meant: ops.attention is the function.
    assert {case.name for case in CASES} == public


@each_case
def test_results_are_dense_read_only_and_of_the_stated_dtype(case):
    """DESIGN, principle 5 and Tensor: nothing is promoted silently, every result is immutable and dense."""
    for dtype in TAKEN[case.takes]:
        for result in case.results(case.tensors(dtype)):
            assert result.dtype == case.gives_dtype(dtype)
            assert result.device == case.tensors(dtype)[0].device
            assert not result._data.flags.writeable
            assert is_dense(result._data)


@each_case
def test_a_dtype_that_an_operation_does_not_take_is_refused_by_its_name(case):
    for dtype in DTYPES:
        if dtype not in TAKEN[case.takes]:
            with pytest.raises(DTypeError, match=rf"(?s){'mean' if case.name == 'batch_statistics' else case.name}"):
                case.results(case.tensors(dtype))


@pytest.mark.parametrize("case", several, ids=lambda case: case.name)
def test_operands_on_two_devices_are_refused_by_name_and_stay_as_they_were(case):
    """L33: DeviceMismatchError with the operation's own name and both devices, whichever operand is elsewhere."""
    for away in range(len(case.operands)):
        operands = case.tensors(_main(case))
        operands[away] = operands[away].to_device("cpu:1")
        before = [operand.tobytes() for operand in operands]
        with pytest.raises(DeviceMismatchError, match=rf"^{case.name}: .*cpu:0.*") as caught:
            case.call(*operands)
        assert "cpu:1" in str(caught.value)
        assert [operand.tobytes() for operand in operands] == before


@pytest.mark.parametrize("case", several, ids=lambda case: case.name)
def test_association_with_autodiff_alone_never_refuses_and_is_inherited(case):
    """L33, M72: an untracked autodiff operand beside plain ones gives an untracked autodiff result, of equal bits."""
    plain = case.results(case.tensors(_main(case)))
    for away in range(len(case.operands)):
        operands = case.tensors(_main(case))
        operands[away] = operands[away].autodiff()
        for result, expected in zip(case.results(operands), plain, strict=True):
            assert result.device.is_autodiff
            assert not result.is_tracked
            assert same_bits(result, expected)


@pytest.mark.parametrize("case", alike, ids=lambda case: case.name)
def test_operands_of_two_dtypes_are_refused(case):
    first, second = (np.dtype("float32"), np.dtype("float64"))
    free = [at for at, operand in enumerate(case.operands) if isinstance(operand, Free)]
    for other in free:
        operands = case.tensors(first)
        operands[other] = operands[other].cast(second)
        with pytest.raises(DTypeError, match=case.name):
            case.call(*operands)


@each_case
def test_what_is_no_tensor_is_a_type_error_that_names_the_way(case):
    """DESIGN, principle 5: an array as an operand names `tensor(…, device=…)`; so does a list, and a NumPy scalar."""
    for at in range(len(case.operands)):
        operands: list[Any] = case.tensors(_main(case))
        operands[at] = operands[at].numpy()
        with pytest.raises(TypeError):
            case.results(operands)
    operands = case.tensors(_main(case))
    operands[0] = operands[0].numpy()
    with pytest.raises(TypeError, match=r"tensor\(…, device=…\)"):
        case.results(operands)


@each_case
@given(data=st.data())
def test_bits_depend_on_values_and_memory_order_alone(case, data):
    """P40, D5: on copies of its operands, on another device, an operation gives the same bits in the same order."""
    dtype = data.draw(st.sampled_from(TAKEN[case.takes]))
    operands = [
        in_order(operand.numpy(), tuple(data.draw(st.permutations(range(operand.ndim)))))
        for operand in case.tensors(dtype, data.draw(st.integers(0, 1000)))
    ]
    moved = [transfer.copy([operand], "cpu:1")[0] for operand in operands]
    for here, there in zip(case.results(operands), case.results(moved), strict=True):
        assert same_bits(here, there)
        assert _significant_strides(here) == _significant_strides(there)
        assert is_dense(here._data)
        assert not np.shares_memory(here._data, there._data)


def _significant_strides(x: Tensor) -> list[int]:
    return [stride for stride, extent in zip(x._data.strides, x.shape, strict=True) if extent > 1 and x.size]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(rows=st.integers(1, 40), width=st.integers(1, 70), seed=st.integers(0, 100))
def test_a_product_with_its_own_transpose_has_the_bits_of_one_with_a_copy(dtype, rows, width, seed):
    """NumPy multiplies a matrix by its own transpose in another way; where operands lie may not change bits."""
    x = tensor(np.random.default_rng(seed).standard_normal((rows, width)).astype(dtype), device="cpu:0")
    copy = x.to_device("cpu:1").to_device("cpu:0")
    for product in (ops.matmul, ops.linear):
        assert same_bits(product(x, x.T), product(x, copy.T))
        assert same_bits(product(x.T, x), product(x.T, copy))
    batch, other = x.reshape(1, rows, width), copy.reshape(1, rows, width)
    assert same_bits(batch @ batch.T, batch @ other.T)
    assert same_bits(
        ops.attention(batch[None], batch[None], batch[None]), ops.attention(batch[None], other[None], x[None, None])
    )


@pytest.mark.parametrize("case", [case for case in CASES if case.takes != "bools"], ids=lambda case: case.name)
def test_halves_are_computed_in_float32_and_rounded_once(case):
    """DESIGN, principle 5: float16 and bfloat16 results are the float32 results of the same values, rounded."""
    for dtype in (np.dtype("float16"), BFLOAT16):
        operands = case.tensors(dtype)
        wide = [x.cast("float32") if x.dtype == dtype else x for x in operands]
        for result, expected in zip(case.results(operands), case.results(wide), strict=True):
            assert same_bits(result, expected.cast(dtype) if expected.dtype == np.float32 else expected)
