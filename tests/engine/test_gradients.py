"""The laws of differentiation that each operation obeys by itself, over one table of all that are differentiable."""

from collections.abc import Sequence
from importlib import import_module
from itertools import combinations
from pkgutil import walk_packages
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import engine
from bench.operations import CASES
from engine import Tensor
from engine.primitive import Primitive
from tests.engine.differentiable import ENTRIES, NAMES, NO_GRADIENT
from tests.engine.differentiable_inputs import Entry, Inputs, one_in, pooled
from tests.laws.law import inside

each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=NAMES)
seeds = st.integers(0, 2**32 - 1)


def inner(a: Sequence[NDArray[Any]], b: Sequence[NDArray[Any]]) -> tuple[float, float]:
    """Σ ⟨a, b⟩ over pairs of arrays, and the sum of the sizes of what is added."""
    products = [x * y.astype(np.float64) for x, y in zip(a, b, strict=True)]
    return sum(float(part.sum()) for part in products), sum(float(np.abs(part).sum()) for part in products)


def arrays(gradients: Sequence[Tensor]) -> list[NDArray[Any]]:
    return [gradient.numpy() for gradient in gradients]


def close(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """Equal but for roundings, of the largest element or of the cotangents; NaNs and infinities in the same places."""
    size = np.abs(expected[np.isfinite(expected)]).max(initial=4)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=2**10 * np.finfo(np.float64).eps * size)


@inside("L106")
@each_entry
@one_in(5)
@given(data=st.data(), seed=seeds)
def test_gradients_agree_with_central_differences(entry: Entry, data: st.DataObject, seed: int) -> None:
    """L106: along a random direction v, for a random cotangent w, ⟨w, J v⟩ = ⟨Jᵀ w, v⟩ within 1e−6."""
    at = data.draw(entry.inputs)
    floats = [at.arrays[position] for position in at.floats]
    generator = np.random.default_rng(seed)
    direction = pooled(generator, floats)
    ahead, behind = (
        entry.values(
            at.changed({position: x + step * v for position, x, v in zip(at.floats, floats, direction, strict=True)})
        )
        for step in (entry.step, -entry.step)
    )
    cotangents = pooled(generator, ahead)
    slopes = [
        (a.astype(np.float64) - b.astype(np.float64)) / (2 * entry.step) for a, b in zip(ahead, behind, strict=True)
    ]
    expected, size = inner(cotangents, slopes)
    found, other = inner(arrays(entry.gradients(at, cotangents)), direction)

    rounding = 1e-9 * inner(cotangents, ahead)[1]  # of the difference, where the slope is next to nothing
    assert abs(found - expected) <= 1e-6 * max(size, other) + rounding


@inside("L107")
@each_entry
@one_in(20)
@given(data=st.data(), seed=seeds, power=st.integers(-4, 4), sign=st.sampled_from((-1, 1)))
def test_gradients_are_linear_in_the_cotangent(
    entry: Entry, data: st.DataObject, seed: int, power: int, sign: int
) -> None:
    """L107: additive, and homogeneous; for a power of two without a rounding (but for the sign of 0)."""
    at = data.draw(entry.anywhere)
    like, generator = entry.values(at), np.random.default_rng(seed)
    first, second, factor = pooled(generator, like), pooled(generator, like), sign * 2.0**power

    def pulled(cotangents: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        return arrays(entry.gradients(at, cotangents))

    parts = zip(
        pulled(first),
        pulled(second),
        pulled([w * factor for w in first]),
        pulled([w + v for w, v in zip(first, second, strict=True)]),
        strict=True,
    )
    for of_first, of_second, of_multiple, of_sum in parts:
        np.testing.assert_array_equal(of_multiple, of_first * factor)
        close(of_sum, of_first + of_second)


@inside("L109")
@each_entry
@one_in(20)
@given(data=st.data(), seed=seeds)
def test_an_operand_that_stands_twice_gets_the_sum(entry: Entry, data: st.DataObject, seed: int) -> None:
    """L109: for every pair of operands that can be one tensor."""
    at = data.draw(entry.anywhere)
    generator = np.random.default_rng(seed)
    for i, j in combinations(at.floats, 2):
        if at.arrays[i].shape != at.arrays[j].shape:
            continue
        apart = at.changed({j: at.arrays[i]})
        once = Entry(entry.name, _one_tensor_at(entry, i, j), entry.inputs)
        with np.errstate(all="ignore"):  # what stands in both places may be for one of them alone: a variance below 0
            cotangents = pooled(generator, entry.values(apart))
            separate = dict(zip(at.floats, arrays(entry.gradients(apart, cotangents)), strict=True))
            together = arrays(once.gradients(_without(apart, j), cotangents))
            remaining = [position for position in at.floats if position != j]
            for position, found in zip(remaining, together, strict=True):
                close(found, separate[position] + separate[j] if position == i else separate[position])


def _without(inputs: Inputs, j: int) -> Inputs:
    return Inputs(inputs.arrays[:j] + inputs.arrays[j + 1 :], inputs.settings)


def _one_tensor_at(entry: Entry, i: int, j: int) -> Any:
    """The entry's call, which takes one operand less: that at `i` stands at `j` too; i < j."""
    return lambda *operands, **settings: entry.call(*operands[:j], operands[i], *operands[j:], **settings)


@inside("L110")
@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.full], ids=lambda entry: entry.name)
@one_in(4)
@given(data=st.data(), seed=seeds)
def test_broadcasting_is_undone(entry: Entry, data: st.DataObject, seed: int) -> None:
    """L110: a gradient is that of the operand at full shape, summed over the axes along which it was repeated."""
    at = data.draw(entry.anywhere)
    assert entry.full is not None
    full = entry.full(at)
    cotangents = pooled(np.random.default_rng(seed), entry.values(at))
    pairs = zip(entry.gradients(at, cotangents), entry.gradients(full, cotangents), strict=True)
    for position, (found, repeated) in zip(at.floats, pairs, strict=True):
        shape, whole = at.arrays[position].shape, repeated.numpy()
        aligned = (1,) * (whole.ndim - len(shape)) + shape
        axes = tuple(axis for axis, extent in enumerate(aligned) if extent == 1)
        assert found.shape == shape
        close(found.numpy(), whole.sum(axis=axes, keepdims=True).reshape(shape))


def primitives() -> dict[str, Primitive]:
    """Every primitive of the engine, by the module and the name it stands at, perhaps in a table."""
    found: dict[str, Primitive] = {}
    modules = {module.name for module in walk_packages(engine.__path__, "engine.")}
    for module in modules - {"engine.cuda"}:  # which needs CuPy
        for name, value in vars(import_module(module)).items():
            parts = value.items() if isinstance(value, dict) else [("", value)]
            found |= {f"{module}.{name}.{key}": part for key, part in parts if isinstance(part, Primitive)}
    return found


def test_a_primitive_without_gradient_is_listed_with_the_reason():
    without = {primitive.name for primitive in primitives().values() if primitive.vjp is None}
    assert without == set(NO_GRADIENT)
    assert not without & {entry.name for entry in ENTRIES}


@settings(max_examples=1, database=None)
@given(data=st.data())
def test_every_primitive_with_a_gradient_is_in_the_table(data: st.DataObject) -> None:
    """By what the entries record, so that neither of two primitives of one name is forgotten."""
    recorded: set[int] = set()
    original = Primitive._recorded

    def remembered(self: Primitive, *arguments: Any) -> Any:
        recorded.add(id(self))
        return original(self, *arguments)

    with mock.patch.object(Primitive, "_recorded", remembered):
        for entry in ENTRIES:
            at = data.draw(entry.inputs)
            entry.gradients(at, entry.values(at))
    assert {at for at, value in primitives().items() if value.vjp and id(value) not in recorded} == set()


def test_every_operation_is_in_the_table_or_without_gradient():
    """An operation of several primitives is entered by its own name, as the table of all operations has it."""
    names = {entry.name for entry in ENTRIES}
    assert {case.name for case in CASES} - names - set(NO_GRADIENT) == set()
    assert names <= {case.name for case in CASES}
