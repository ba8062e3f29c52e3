"""The laws of differentiation that hold between operations, over expressions of any form.

What an expression's gradients must be is put together by hand: from the
gradients of single operations, each by itself on leaves of its own, from the
root down. So `backward` is held to the chain rule, not to itself.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import AutodiffError, Tensor, ops
from tests.engine.differentiable_inputs import plain
from tests.laws.law import inside

Array: TypeAlias = NDArray[Any]
Cut = Literal["detach", "set_require_grad", "without_autodiff"]
Kind = Literal["leaf", "untracked", "plain"]

OPERATIONS: Final[dict[str, Callable[..., Tensor]]] = {
    "tanh": ops.tanh,
    "sin": ops.sin,
    "sigmoid": ops.sigmoid,
    "softmax": ops.softmax,
    "cumsum": lambda x: ops.cumsum(x, 0),
    "transpose": ops.transpose,
    "add": ops.add,
    "subtract": ops.subtract,
    "multiply": ops.multiply,
    "matmul": ops.matmul,
    "maximum": ops.maximum,
}
UNARY: Final = ("tanh", "sin", "sigmoid", "softmax", "cumsum", "transpose")
BINARY: Final = ("add", "subtract", "multiply", "matmul", "maximum")
CUTS: Final[dict[Cut, Callable[[Tensor], Tensor]]] = {
    "detach": lambda x: x.detach(),
    "set_require_grad": lambda x: x.set_require_grad(False),
    "without_autodiff": lambda x: x.without_autodiff(),
}


@dataclass(frozen=True)
class Leaf:
    """An operand of the whole expression, by position."""

    at: int


@dataclass(frozen=True)
class Call:
    """An operation on parts of the expression; its result may be cut off from what comes before."""

    name: str
    parts: "tuple[Expression, ...]"
    cut: Cut | None = None


Expression: TypeAlias = Leaf | Call


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4, cuts: bool = False) -> Expression:
    """An expression of at most so many operations from the root to a leaf; leaves repeat."""
    if depth == 0 or (depth < 4 and draw(st.integers(0, 3)) == 0):
        return Leaf(draw(st.integers(0, 2)))
    name = draw(st.sampled_from(UNARY + BINARY))
    parts = tuple(draw(expressions(depth - 1, cuts)) for _ in range(1 if name in UNARY else 2))
    cut = draw(st.sampled_from(tuple(CUTS))) if cuts and depth < 4 and draw(st.integers(0, 4)) == 4 else None
    return Call(name, parts, cut)


def evaluated(expression: Expression, operands: Sequence[Tensor]) -> Tensor:
    """Its value; recorded where an operand is tracked."""
    if isinstance(expression, Leaf):
        return operands[expression.at]
    result = OPERATIONS[expression.name](*(evaluated(part, operands) for part in expression.parts))
    return CUTS[expression.cut](result) if expression.cut else result


def chained(expression: Expression, operands: Sequence[Array], cotangent: Array) -> Iterator[tuple[int, Array]]:
    """What each occurrence of a leaf adds to its gradient: the pull-backs of single operations, one after another."""
    if isinstance(expression, Leaf):
        yield expression.at, cotangent
        return
    if expression.cut:
        return
    constants = [Tensor.from_numpy(operand, "cpu:0") for operand in operands]
    values = [leaf(evaluated(part, constants).numpy()) for part in expression.parts]
    gradients = OPERATIONS[expression.name](*values).backward(Tensor.from_numpy(cotangent, "cpu:0"))
    for part, value in zip(expression.parts, values, strict=True):
        gradient = value.grad(gradients)
        assert gradient is not None
        yield from chained(part, operands, gradient.numpy())


def expected(expression: Expression, operands: Sequence[Array], cotangent: Array) -> dict[int, Array]:
    """The gradients by the leaves that it depends on."""
    found: dict[int, Array] = {}
    for at, part in chained(expression, operands, cotangent):
        found[at] = found[at] + part if at in found else part
    return found


def leaf(array: Array) -> Tensor:
    return Tensor.from_numpy(array, "cpu:0+autodiff").require_grad()


def as_kind(array: Array, kind: Kind) -> Tensor:
    if kind == "leaf":
        return leaf(array)
    return Tensor.from_numpy(array, "cpu:0+autodiff" if kind == "untracked" else "cpu:0")


def gradients(result: Tensor, leaves: Sequence[Tensor], cotangent: Array) -> dict[int, Array]:
    """Those of the leaves that have one, by position."""
    found = result.backward(Tensor.from_numpy(cotangent, "cpu:0"))
    by_position = {at: gradient.numpy() for at, x in enumerate(leaves) if (gradient := x.grad(found)) is not None}
    assert len(found) == len(by_position)
    return by_position


def assert_close(found: dict[int, Array], wanted: dict[int, Array]) -> None:
    """The same leaves, with gradients that are equal but for rounding."""
    assert found.keys() == wanted.keys()
    for at, gradient in found.items():
        size = np.abs(wanted[at]).max(initial=0)
        np.testing.assert_allclose(gradient, wanted[at], rtol=0, atol=1e-10 * size + 1e-12)


@st.composite
def numbers(draw: st.DrawFn) -> tuple[list[Array], Array]:
    """Three square operands of one shape, and a cotangent."""
    n, generator = draw(st.integers(1, 3)), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    first, second, third, cotangent = (plain(generator, (n, n), ()) for _ in range(4))
    return [first, second, third], cotangent


@inside("L108", "L109")
@given(expression=expressions(), drawn=numbers())
def test_the_gradient_of_a_composition_is_the_composition_of_pull_backs(
    expression: Expression, drawn: tuple[list[Array], Array]
) -> None:
    """L108, L109: along every way from the root to a leaf, and what arrives on several ways is added."""
    operands, cotangent = drawn
    leaves = [leaf(operand) for operand in operands]

    found = gradients(evaluated(expression, leaves), leaves, cotangent)

    assert_close(found, expected(expression, operands, cotangent))


@inside("L108")
@given(f=expressions(), g=expressions(), drawn=numbers())
def test_the_gradient_of_a_sum_is_the_sum_of_gradients(
    f: Expression, g: Expression, drawn: tuple[list[Array], Array]
) -> None:
    """L108: of f + g; `Gradients` add up likewise, and a leaf that one of them lacks has what the other has."""
    operands, cotangent = drawn
    leaves = [leaf(operand) for operand in operands]
    w = Tensor.from_numpy(cotangent, "cpu:0")

    together = gradients(evaluated(f, leaves) + evaluated(g, leaves), leaves, cotangent)
    added = evaluated(f, leaves).backward(w) + evaluated(g, leaves).backward(w)

    apart = {at: gradient.numpy() for at, x in enumerate(leaves) if (gradient := x.grad(added)) is not None}
    assert_close(together, apart)


@inside("L109")
@given(shared=expressions(depth=2), using=expressions(), drawn=numbers())
def test_a_shared_expression_is_the_same_one_written_out(
    shared: Expression, using: Expression, drawn: tuple[list[Array], Array]
) -> None:
    """L109: a value computed once and used in several places, or computed anew in each."""
    operands, cotangent = drawn
    leaves = [leaf(operand) for operand in operands]
    once = evaluated(shared, leaves)

    found = gradients(evaluated(using, [once, leaves[1], once]), leaves, cotangent)

    assert_close(found, expected(_with(using, {0: shared, 2: shared}), operands, cotangent))


def _with(expression: Expression, parts: dict[int, Expression]) -> Expression:
    """With other expressions in the places of leaves."""
    if isinstance(expression, Leaf):
        return parts.get(expression.at, expression)
    return Call(expression.name, tuple(_with(part, parts) for part in expression.parts), expression.cut)


@pytest.mark.parametrize("uses", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["add", "multiply", "matmul"])
def test_a_value_used_several_times_gets_the_sum_of_its_uses(name: str, uses: int) -> None:
    """L109: x + … + x is k times its gradient; x · … · x and x @ … @ x that of each place, added up."""
    generator = np.random.default_rng(0)
    x, cotangent = plain(generator, (3, 3), ()), plain(generator, (3, 3), ())
    combine = OPERATIONS[name]

    def folded(operands: Sequence[Tensor]) -> Tensor:
        total = operands[0]
        for operand in operands[1:]:
            total = combine(total, operand)
        return total

    same, apart = leaf(x), [leaf(x) for _ in range(uses)]
    found = gradients(folded([same] * uses), [same], cotangent)
    separate = gradients(folded(apart), apart, cotangent)

    assert_close(found, {0: np.sum(list(separate.values()), axis=0)})


@inside("L112")
@given(
    expression=expressions(cuts=True),
    kinds=st.lists(st.sampled_from(("leaf", "leaf", "untracked", "plain")), min_size=3, max_size=3),
    drawn=numbers(),
)
def test_a_gradient_stops_at_a_cut_and_at_what_is_not_tracked(
    expression: Expression, kinds: list[Kind], drawn: tuple[list[Array], Array]
) -> None:
    """L112, M70 to M74: leaves that are not reached are absent; a result that reaches none is not tracked."""
    operands, cotangent = drawn
    wanted = {at: part for at, part in expected(expression, operands, cotangent).items() if kinds[at] == "leaf"}
    tensors = [as_kind(operand, kind) for operand, kind in zip(operands, kinds, strict=True)]

    result = evaluated(expression, tensors)

    assert result.is_tracked == bool(wanted)
    if wanted:
        assert_close(gradients(result, tensors, cotangent), wanted)
    else:
        with pytest.raises(AutodiffError):
            result.backward(Tensor.from_numpy(cotangent, "cpu:0"))


@inside("L112")
@given(expression=expressions(cuts=True), drawn=numbers())
def test_nothing_is_recorded_on_a_plain_device(expression: Expression, drawn: tuple[list[Array], Array]) -> None:
    """L112: and the values are the same as where it is recorded, bit for bit."""
    operands, _ = drawn
    result = evaluated(expression, [as_kind(operand, "plain") for operand in operands])

    assert not result.is_tracked
    assert not result.device.is_autodiff
    assert result.tobytes() == evaluated(expression, [leaf(operand) for operand in operands]).tobytes()


def test_a_detached_leaf_is_another_leaf():
    """M71: it retains a gradient of its own, and the one it came from is not reached."""
    x = leaf(np.array([0.5, 1.5]))
    detached = x.detach()

    found = ops.sum(detached * x.set_require_grad(False)).backward()

    assert x.grad(found) is None
    gradient = detached.grad(found)
    assert gradient is not None
    assert gradient.numpy().tolist() == [0.5, 1.5]
