"""No operation mixes devices, and association with autodiff alone never refuses (L33; M72; principle 3).

Over the table of all operations, each with any devices, flags and position of
the operand that is elsewhere; `test_every_op` checks that the table is whole.
"""

import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.operations import CASES, Case
from engine import DeviceMismatchError, Tensor, ones
from tests.laws.law import inside

SEVERAL: Final = [case for case in CASES if len(case.operands) > 1]
DTYPE: Final = {"floats": "float32", "numbers": "int32", "bools": "bool", "all": "float32"}
DEVICES: Final = ("cpu:0", "cpu:1", "cpu:2", "cpu:3")
OPERATORS: Final = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "power": operator.pow,
    "matmul": operator.matmul,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
several = pytest.mark.parametrize("case", SEVERAL, ids=lambda case: case.name)


def placed(case: Case, places: Sequence[str]) -> list[Tensor]:
    """The operands of a case, each on its place, with the flag of that."""
    tensors = case.tensors(np.dtype(DTYPE[case.takes]))
    return [Tensor.from_numpy(tensor.numpy(), place) for tensor, place in zip(tensors, places, strict=True)]


def flags(data: Any, count: int) -> list[str]:
    """Whether each operand is associated with autodiff."""
    return data.draw(st.lists(st.sampled_from(("", "+autodiff")), min_size=count, max_size=count))


@inside("L33")
@several
@given(data=st.data())
def test_operands_on_two_devices_are_refused(case: Case, data: Any) -> None:
    """By the operation's own name, with both devices; the operands stay what they were."""
    count = len(case.operands)
    here, there = data.draw(st.permutations(DEVICES))[:2]
    odd = data.draw(st.integers(0, count - 1))
    places = [(there if index == odd else here) + flag for index, flag in enumerate(flags(data, count))]
    tensors = placed(case, places)
    before = [(tensor.tobytes(), str(tensor.device), tensor.is_tracked) for tensor in tensors]

    with pytest.raises(DeviceMismatchError) as refused:
        case.call(*tensors)

    said = str(refused.value)
    assert said.startswith(("take:", "index:") if case.name == "index" else f"{case.name}:")
    assert here in said
    assert there in said
    assert [(tensor.tobytes(), str(tensor.device), tensor.is_tracked) for tensor in tensors] == before


@inside("L33")
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_refuse_two_devices_like_the_functions(name: str) -> None:
    """With the function's name."""
    a, b = ones((2, 2), device="cpu:0"), ones((2, 2), device="cpu:1")

    with pytest.raises(DeviceMismatchError, match=rf"^{name}: .*cpu:0.*cpu:1"):
        OPERATORS[name](a, b)


@inside("L33")
@several
@given(data=st.data())
def test_association_alone_never_refuses(case: Case, data: Any) -> None:
    """Plain and autodiff tensors of one hardware mix; the result is autodiff if one of them is (M72)."""
    place = data.draw(st.sampled_from(DEVICES))
    chosen = flags(data, len(case.operands))
    plain = case.results(placed(case, [place] * len(chosen)))

    results = case.results(placed(case, [place + flag for flag in chosen]))

    assert [result.tobytes() for result in results] == [result.tobytes() for result in plain]
    assert {str(result.device) for result in results} == {place + ("+autodiff" if any(chosen) else "")}
