"""The gradients and steps of training of the model of the rules; see `model_adapter`.

The loss is the sum of all elements of some leaves, so the gradient of each is
ones, as often as it is used, at the leaf of the graph that it is or was moved
from (M42, M73).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from .model_leaves import Leaf, RefusalError, Switch, Weight, sum_of
from .observations import Bits, Gradient
from .spec_tree import numpy_dtype


def uses_of(leaves: Mapping[str, Leaf], used: Sequence[str]) -> Counter[int]:
    """How often each leaf of the graph is used, by its identity; makes what is lazy.

    Raises:
        RefusalError: none of them is tracked.
    """
    uses: Counter[int] = Counter()
    for path in used:
        leaf = leaves[path]
        if isinstance(leaf, Weight):
            leaf.bits()
            uses[id(leaf.node)] += leaf.tracking in ("L", "N")
    if not uses.total():
        raise RefusalError("autodiff", "nothing that the loss uses requires a gradient")
    return uses


def gradients(leaves: Mapping[str, Leaf], uses: Counter[int]) -> tuple[Gradient, ...]:
    """The gradient of each leaf that has one."""
    found: list[Gradient] = []
    for path, leaf in leaves.items():
        if isinstance(leaf, Weight) and _trains(leaf, uses):
            shape, dtype = leaf.bits().shape, leaf.dtype
            data = np.full(shape, uses[id(leaf.node)], numpy_dtype(dtype)).tobytes()
            found.append(Gradient(path, Bits(dtype, shape, data), leaf.device))
    return tuple(found)


def stepped(leaf: Leaf, uses: Counter[int], number: int) -> Leaf:
    """The leaf after so many steps: if it has a gradient, a value of its own, larger by their number.

    No law that is put to this says by how much an optimizer changes a value.
    """
    if isinstance(leaf, Switch) or not _trains(leaf, uses):
        return leaf
    return leaf.with_bits(sum_of(leaf.bits(), number))


def _trains(leaf: Weight, uses: Counter[int]) -> bool:
    return not leaf.lazy and leaf.tracking == "L" and uses[id(leaf.node)] > 0
