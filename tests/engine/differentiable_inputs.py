"""What the laws of differentiation draw: the operands of an operation, and how its gradients are computed.

Numbers are small multiples of 1/16, which float16 and bfloat16 hold too, and
are drawn so that no derivative of theirs is by chance that of another: never
0 and 1, for which x · x, x + x and 2 x agree (spec/laws.md, section k).
Hypothesis draws shapes, memory orders and a seed; a failure shrinks to a
small shape.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from hypothesis import settings as profile
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import Tensor
from tests.engine.strategies import FLOATS

Shape: TypeAlias = tuple[int, ...]
Numbers: TypeAlias = Callable[[np.random.Generator, Shape, Sequence[Shape]], NDArray[Any]]
"""Numbers for an operand, from a generator, the operand's shape, and the shapes of all operands."""
Setting: TypeAlias = Callable[[Sequence[Shape]], st.SearchStrategy[Any]]
"""A strategy for a setting, from the shapes of all operands."""

_POOL: Final = np.array([0.5, -0.5, 0.75, -0.75, 1.25, -1.25, 1.5, -1.5, 2.5, -2.5, 3.0])


@dataclass(frozen=True)
class Inputs:
    """Operands and settings of one call.

    Args:
        arrays: the operands. Those of float64 are differentiated, the others (indices, masks) are constants.
        settings: given by keyword.
    """

    arrays: tuple[NDArray[Any], ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def floats(self) -> list[int]:
        """The positions of the operands that are differentiated."""
        return [at for at, array in enumerate(self.arrays) if array.dtype in FLOATS]

    def changed(self, arrays: Mapping[int, NDArray[Any]]) -> "Inputs":
        """With other arrays at some positions."""
        return Inputs(tuple(arrays.get(at, array) for at, array in enumerate(self.arrays)), self.settings)

    def cast(self, dtype: Any) -> "Inputs":
        """With the float operands in another dtype."""
        return self.changed({at: self.arrays[at].astype(dtype) for at in self.floats})

    def tensors(self, device: str = "cpu:0") -> list[Tensor]:
        """The operands on a device, none of them tracked."""
        return [Tensor.from_numpy(array, device) for array in self.arrays]


@dataclass(frozen=True)
class Entry:
    """A way to call a differentiable operation, and what to call it with.

    Args:
        name: the operation's, in `engine.ops`.
        call: takes the operands as Tensors, the settings by keyword, and gives a Tensor or a list or tuple of them.
            It is handed every operand, so a scalar or an omitted operand is a matter of the call.
        inputs: operands away from kinks, where central differences mean something.
        kinks: operands on kinks and ties, if the operation has any: for the laws that hold there too.
        full: the same inputs with every operand at its full shape, if the operation broadcasts (L110).
        step: of the central difference.
    """

    name: str
    call: Callable[..., Any]
    inputs: st.SearchStrategy[Inputs]
    kinks: st.SearchStrategy[Inputs] | None = None
    full: Callable[[Inputs], Inputs] | None = None
    step: float = 2.0**-17

    @property
    def anywhere(self) -> st.SearchStrategy[Inputs]:
        """Operands on kinks or away from them."""
        return self.inputs if self.kinks is None else st.one_of(self.inputs, self.kinks)

    def results(self, operands: Sequence[Tensor], settings: Mapping[str, Any]) -> list[Tensor]:
        """What the call gives, as a list."""
        given = self.call(*operands, **settings)
        return [given] if isinstance(given, Tensor) else list(given)

    def values(self, inputs: Inputs) -> list[NDArray[Any]]:
        """What the call gives for untracked operands, as arrays."""
        return [result.numpy() for result in self.results(inputs.tensors(), inputs.settings)]

    def gradients(self, inputs: Inputs, cotangents: Sequence[NDArray[Any]], device: str = "cpu:0") -> list[Tensor]:
        """The gradients of Σ ⟨cotangent, result⟩ by the float operands.

        Args:
            inputs: the operands; each float one becomes a leaf.
            cotangents: one for each result; they take its dtype.
            device: where.
        """
        operands = inputs.tensors(f"{device}+autodiff")
        leaves = {at: operands[at].require_grad() for at in inputs.floats}
        results = self.results([leaves.get(at, operand) for at, operand in enumerate(operands)], inputs.settings)
        found = [
            result.backward(Tensor.from_numpy(cotangent.astype(result.dtype), device))
            for result, cotangent in zip(results, cotangents, strict=True)
        ]
        total = found[0]
        for other in found[1:]:
            total = total + other
        gradients = [gradient for leaf in leaves.values() if (gradient := leaf.grad(total)) is not None]
        assert len(gradients) == len(leaves), "a float operand has no gradient"
        return gradients


def one_in(share: int) -> profile:
    """So many times fewer examples than the profile has: the laws run for each of more than a hundred entries."""
    return profile(max_examples=max(profile().max_examples // share, 10))


def pooled(generator: np.random.Generator, like: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Random numbers in the shapes of other arrays: directions and cotangents."""
    return [plain(generator, array.shape, ()) for array in like]


# Numbers


def plain(generator: np.random.Generator, shape: Shape, shapes: Sequence[Shape]) -> NDArray[Any]:
    """Any, of both signs; no two of them 1/8 apart."""
    return generator.choice(_POOL, shape)


def positive(generator: np.random.Generator, shape: Shape, shapes: Sequence[Shape]) -> NDArray[Any]:
    """Above 0."""
    return np.abs(plain(generator, shape, shapes))


def shifted(generator: np.random.Generator, shape: Shape, shapes: Sequence[Shape]) -> NDArray[Any]:
    """Such that none is equal to a `plain` one."""
    return plain(generator, shape, shapes) + 0.125


def odd(generator: np.random.Generator, shape: Shape, shapes: Sequence[Shape]) -> NDArray[Any]:
    """Odd multiples of 1/16: none is a multiple of a `plain` one."""
    return (2 * generator.integers(-24, 24, shape) + 1) / 16


def distinct(generator: np.random.Generator, shape: Shape, shapes: Sequence[Shape]) -> NDArray[Any]:
    """No two of them equal, none of them 0."""
    count = int(np.prod(shape))
    return ((2 * generator.permutation(count) - count + (count + 1) % 2) / 16).reshape(shape)


def tied(generator: np.random.Generator, shape: Shape, shapes: Sequence[Shape]) -> NDArray[Any]:
    """Many of them equal, many of them 0 of either sign."""
    return generator.choice([0.0, -0.0, 0.5, -0.5, 1.5], shape)


def mask(generator: np.random.Generator, shape: Shape, shapes: Sequence[Shape]) -> NDArray[Any]:
    """Booleans."""
    return np.asarray(generator.random(shape) < 0.6)


def positions(generator: np.random.Generator, shape: Shape, shapes: Sequence[Shape]) -> NDArray[Any]:
    """Integers from 0 up to, without, the last extent of the first operand."""
    return generator.integers(0, shapes[0][-1], shape)


# Shapes


@st.composite
def extents(draw: st.DrawFn, min_rank: int = 0, max_rank: int = 3, min_extent: int = 0) -> Shape:
    """A shape of extents up to 4; one of them is 0 in about one draw of eight, if it may be."""
    shape = draw(st.lists(st.integers(1, 4), min_size=min_rank, max_size=max_rank))
    if shape and min_extent == 0 and draw(st.integers(0, 7)) == 7:
        shape[draw(st.integers(0, len(shape) - 1))] = 0
    return tuple(shape)


@st.composite
def broadcastable(draw: st.DrawFn, count: int) -> tuple[Shape, ...]:
    """Shapes that broadcast: a common one with axes missing in front, or of extent 1."""
    common = draw(extents())
    return tuple(
        tuple(1 if draw(st.booleans()) and draw(st.booleans()) else extent for extent in common[missing:])
        for missing in draw(st.lists(st.sampled_from((0, 0, len(common), 1)), min_size=count, max_size=count))
    )


def alike(shape: st.SearchStrategy[Shape], count: int = 1) -> st.SearchStrategy[tuple[Shape, ...]]:
    """One shape for all operands."""
    return shape.map(lambda one: (one,) * count)


# Settings, of the first operand's shape


def axis(shapes: Sequence[Shape]) -> st.SearchStrategy[int]:
    """One axis, counted from the front or the end."""
    return st.integers(-len(shapes[0]), len(shapes[0]) - 1)


def axes(shapes: Sequence[Shape]) -> st.SearchStrategy[int | tuple[int, ...] | None]:
    """What a reduction takes: an axis, several in any order, none of them, or all."""
    rank = len(shapes[0])
    several = st.permutations(range(rank)).flatmap(lambda all_: st.integers(0, rank).map(lambda n: tuple(all_[:n])))
    return st.one_of(st.none(), several, axis(shapes)) if rank else st.sampled_from((None, ()))


def some_axes(shapes: Sequence[Shape]) -> st.SearchStrategy[int | tuple[int, ...] | None]:
    """The same of axes that have elements."""
    filled = tuple(at for at, extent in enumerate(shapes[0]) if extent)
    several = st.sets(st.sampled_from(filled)).map(tuple) if filled else st.just(())
    return axes(shapes) if len(filled) == len(shapes[0]) else several


def choice(*values: Any) -> Setting:
    """One of some values."""
    return lambda shapes: st.sampled_from(values)


@st.composite
def inputs(
    draw: st.DrawFn, shapes: st.SearchStrategy[tuple[Shape, ...]], *numbers: Numbers, **settings: Setting
) -> Inputs:
    """Operands in any memory order, and settings.

    Args:
        draw: hypothesis'.
        shapes: one for each operand.
        numbers: how those of each operand are chosen.
        settings: how each is drawn, from the shapes.
    """
    drawn = draw(shapes)
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    arrays = tuple(
        _in_order(np.asarray(choose(generator, shape, drawn)), generator if draw(st.booleans()) else None)
        for choose, shape in zip(numbers, drawn, strict=True)
    )
    return Inputs(arrays, {name: draw(setting(drawn)) for name, setting in settings.items()})


def _in_order(array: NDArray[Any], generator: np.random.Generator | None) -> NDArray[Any]:
    """The same array, its axes lying in memory in a random order."""
    if generator is None or array.ndim < 2:
        return array
    order = generator.permutation(array.ndim)
    if (order == range(array.ndim)).all():
        order = order[::-1]
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


def at_full_shape(given: Inputs) -> Inputs:
    """Every operand repeated to the shape of all together, as NumPy broadcasts: for `Entry.full`."""
    return Inputs(tuple(np.array(array) for array in np.broadcast_arrays(*given.arrays)), given.settings)


def elementwise(*numbers: Numbers, **settings: Setting) -> st.SearchStrategy[Inputs]:
    """Operands whose shapes broadcast (of a single one: any shape)."""
    shapes = broadcastable(len(numbers)) if len(numbers) > 1 else alike(extents())
    return inputs(shapes, *numbers, **settings)
