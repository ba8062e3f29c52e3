"""One table of all differentiable operations, each with a strategy for what it is called with.

The laws of differentiation run over it (`test_gradients.py`,
`test_gradient_dtypes.py`). `NO_GRADIENT` names the operations that have none,
with the reason; a primitive of the engine that is in neither fails there.

To enter an operation, add an `Entry`: its public name, how it is called, and
`inputs(shapes, numbers…, settings…)` for what with. `shapes` draws one shape
for each operand; a function of `differentiable_inputs` chooses the numbers of
each (`plain`, `positive`, `distinct`, …; integers and booleans are constants
then); a setting is a function from the shapes to a strategy, and is passed to
the call by keyword. What these do not express is a composite of one's own
that gives `Inputs`. Where the operation has kinks, `inputs` keeps away from
them and `kinks` sits on them. One that broadcasts says with `full` what its
operands are at full shape. Several entries may have one name.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from hypothesis import strategies as st

from engine import Tensor, ops
from tests.engine.differentiable_inputs import (
    Entry,
    Inputs,
    Numbers,
    Setting,
    Shape,
    alike,
    at_full_shape,
    axes,
    axis,
    choice,
    distinct,
    elementwise,
    extents,
    inputs,
    mask,
    odd,
    plain,
    positions,
    positive,
    shifted,
    some_axes,
    tied,
)
from tests.engine.differentiable_structural import ENTRIES as STRUCTURAL
from tests.engine.strategies import FLOATS

NO_GRADIENT: Final = {
    **dict.fromkeys(["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"], "gives booleans"),
    **dict.fromkeys(["logical_and", "logical_or", "logical_not", "any", "all"], "of booleans"),
    **dict.fromkeys(["argmax", "argmin"], "gives positions"),
    "floor_divide": "constant wherever it has a derivative",
    "cached_attention": "writes to a cache, which holds values without history",
    **dict.fromkeys(["sgd", "adam", "sum_of_squares"], "of optimizers, which come after the gradients"),
}


def _unary(names: str, numbers: Numbers = plain, kinks: Numbers | None = None) -> list[Entry]:
    on_kinks = None if kinks is None else elementwise(kinks)
    return [Entry(name, getattr(ops, name), elementwise(numbers), on_kinks) for name in names.split()]


def _binary(names: str, first: Numbers, second: Numbers, kinks: Numbers | None = None) -> list[Entry]:
    on_kinks = None if kinks is None else elementwise(kinks, kinks)
    return [
        Entry(name, getattr(ops, name), elementwise(first, second), on_kinks, at_full_shape) for name in names.split()
    ]


def _beside_scalars(name: str, numbers: Numbers = plain, scalar: float = 1.25) -> list[Entry]:
    operation = getattr(ops, name)
    return [
        Entry(name, lambda x: operation(x, scalar), elementwise(numbers)),
        Entry(name, lambda x: operation(scalar, x), elementwise(numbers)),
    ]


def _reduction(names: str, numbers: Numbers, over: Setting, kinks: Numbers | None = None) -> list[Entry]:
    def drawn(chosen: Numbers) -> st.SearchStrategy[Inputs]:
        return inputs(alike(extents()), chosen, axis=over, keepdims=choice(False, True))

    on_kinks = None if kinks is None else drawn(kinks)
    return [Entry(name, getattr(ops, name), drawn(numbers), on_kinks) for name in names.split()]


def _bounds(shapes: Sequence[Shape]) -> st.SearchStrategy[float | None]:
    return st.sampled_from((None, -1.5, -0.5, 0.0, 0.5, 1.5))


def _clip(x: Tensor, low: float | None, high: float | None) -> Tensor:
    return ops.clip(x, low, high)


_along = partial(inputs, alike(extents(min_rank=1)))  # an axis that is there
_logits = st.tuples(extents(max_rank=2), st.integers(1, 4)).map(lambda drawn: ((*drawn[0], drawn[1]), drawn[0]))
_halves = st.tuples(extents(max_rank=2), st.sampled_from((0, 2, 6))).map(lambda drawn: ((*drawn[0], drawn[1]),))


def _examples(losses: Sequence[Shape]) -> st.SearchStrategy[str]:
    """A reduction; no mean of no examples."""
    return st.sampled_from(("none", "sum") if 0 in losses[-1] else ("none", "sum", "mean"))


def _log_of_sums(min_extent: int) -> st.SearchStrategy[Inputs]:
    shapes = alike(extents(min_rank=1, min_extent=min_extent))  # of no elements it is −∞, which has no difference
    return inputs(shapes, plain, axis=axis, keepdims=choice(False, True))


_ELEMENTWISE: Final = [
    *_unary("negative square exp sin cos tanh reciprocal erf sigmoid silu gelu softplus"),
    *_unary("log sqrt rsqrt", positive),
    *_unary("absolute relu", plain, tied),
    *_binary("add subtract multiply", plain, plain),
    *_binary("divide", plain, plain),
    *_binary("remainder", odd, plain),
    *_binary("power", positive, plain),
    *_binary("maximum minimum", plain, shifted, tied),
    *_beside_scalars("add"),
    *_beside_scalars("subtract"),
    *_beside_scalars("multiply"),
    *_beside_scalars("divide"),
    Entry("remainder", lambda x: ops.remainder(x, 1.25), elementwise(odd)),
    Entry("remainder", lambda x: ops.remainder(1.0625, x), elementwise(plain)),
    *_beside_scalars("power", positive),
    *_beside_scalars("maximum", shifted),
    *_beside_scalars("minimum", shifted),
    Entry("power", lambda x: ops.power(x, 3), elementwise(plain), elementwise(tied)),
    Entry("power", lambda x: ops.power(x, 0), elementwise(plain), elementwise(tied)),
    Entry("gelu", lambda x: ops.gelu(x, "tanh"), elementwise(plain)),
    Entry("swiglu", ops.swiglu, inputs(_halves, plain)),
    Entry("clip", _clip, elementwise(odd, low=_bounds, high=_bounds), elementwise(tied, low=_bounds, high=_bounds)),
    Entry("where", ops.where, elementwise(mask, plain, plain), full=at_full_shape),
    Entry("where", lambda condition, x: ops.where(condition, 0.25, x), elementwise(mask, plain)),
    Entry("where", lambda condition, x: ops.where(condition, x, 0.25), elementwise(mask, plain)),
    # A cast rounds: steps of 1/4 are exact in every dtype, and so is the difference.
    Entry("cast", ops.cast, elementwise(plain, dtype=choice(*FLOATS)), step=0.25),
]

_REDUCTIONS: Final = [
    *_reduction("sum", plain, axes),
    *_reduction("prod", plain, axes, tied),
    *_reduction("mean var", plain, some_axes),
    *_reduction("max min", distinct, some_axes, tied),
    Entry("cumsum", ops.cumsum, _along(plain, axis=axis)),
    Entry("softmax", ops.softmax, _along(plain, axis=axis)),
    Entry("log_softmax", ops.log_softmax, _along(plain, axis=axis)),
    Entry("logsumexp", ops.logsumexp, _log_of_sums(1), _log_of_sums(0)),
]

_LOSSES: Final = [
    Entry("cross_entropy", ops.cross_entropy, inputs(_logits, plain, positions, reduction=_examples)),
    Entry("mse", ops.mse, inputs(alike(extents(), 2), plain, plain, reduction=_examples)),
]

ENTRIES: Final[list[Entry]] = [*_ELEMENTWISE, *_REDUCTIONS, *_LOSSES, *STRUCTURAL]
NAMES: Final = [f"{entry.name}-{at}" for at, entry in enumerate(ENTRIES)]
