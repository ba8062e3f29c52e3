"""Reverse-mode differentiation: from one tensor back to the leaves that it was computed from.

`backward` walks the recorded steps from the newest to the oldest. Each has
then met the gradients of all that used it; it pulls their sum back to its
operands, and is released. The order is that in which the operations ran, so
splitting a model over devices, which only puts copies in between, changes no
bit of a gradient (P59).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast, final

from . import ops
from .errors import AutodiffError, DeviceMismatchError, DTypeError, ShapeError
from .graph import Leaf, Node, Step
from .primitive import Operand, quiet

if TYPE_CHECKING:
    from .tensor import Tensor


@final
class Gradients:
    """What `backward` found: the gradient of each leaf that was used. `Tensor.grad` and `Param.grad` read it.

    ``len`` is the number of leaves. Iteration gives the gradients, plain
    tensors on their leaves' devices, in the order in which the leaves were
    made. ``+`` adds those of two passes, and `map` scales them: the mean over
    two micro-batches is ``(one + other).map(lambda gradient: gradient * 0.5)``.
    """

    __slots__ = ("_by_leaf",)

    def __init__(self, by_leaf: "Mapping[Leaf, Tensor]") -> None:
        self._by_leaf: Final = {leaf: by_leaf[leaf] for leaf in sorted(by_leaf, key=_age)}

    def __len__(self) -> int:
        return len(self._by_leaf)

    def __iter__(self) -> "Iterator[Tensor]":
        return iter(self._by_leaf.values())

    def __add__(self, other: "Gradients") -> "Gradients":
        if not isinstance(other, Gradients):
            return NotImplemented
        summed = dict(self._by_leaf)
        for leaf, gradient in other._by_leaf.items():
            summed[leaf] = summed[leaf] + gradient if leaf in summed else gradient
        return Gradients(summed)

    def map(self, f: "Callable[[Tensor], Tensor]") -> "Gradients":
        """Gradients of the same leaves, each ``f`` of the one here.

        Raises:
            TypeError: `f` gives no Tensor.
            ShapeError, DTypeError, DeviceMismatchError: `f` changes a gradient's shape, dtype or device.
        """
        mapped: dict[Leaf, Tensor] = {}
        for leaf, gradient in self._by_leaf.items():
            new = f(gradient)
            _check_like("Gradients.map: the function's result", new, gradient)
            mapped[leaf] = new.without_autodiff()
        return Gradients(mapped)

    def _of(self, tensor: Operand) -> "Tensor | None":
        node = tensor._node
        return self._by_leaf.get(node) if isinstance(node, Leaf) else None

    def __repr__(self) -> str:
        return f"Gradients({len(self)} leaves, {sum(gradient.size for gradient in self):,} elements)"


def backward(tensor: Operand, cotangent: Operand | None) -> Gradients:
    """The gradients of a tensor's leaves; see `Tensor.backward`."""
    node = tensor._node
    if node is None:
        why = (
            "is not tracked: no operand of what made it requires a gradient; use train() on a module that valid() "
            "gave, unfreeze() on a frozen one, require_grad() on a tensor"
            if tensor._device.is_autodiff
            else "is on a device without autodiff, so nothing was recorded; use train() on the module that made it, "
            "autodiff() and require_grad() on a tensor"
        )
        raise AutodiffError(f"backward: the tensor of shape {tensor._data.shape} {why}")
    found: dict[Node, Any] = {node: _seed(tensor, cotangent)}
    steps = _steps_behind(node)
    with quiet():  # an infinite slope, as that of √x at 0, is an answer
        while steps:
            step = steps.pop()
            gradient = found.pop(step, None)
            parents, pull_back = step.take()
            if gradient is None:
                continue
            for parent, part in zip(parents, pull_back(gradient), strict=True):
                if parent is not None and part is not None:
                    before = found.get(parent)
                    found[parent] = part if before is None else ops.add(before, cast("Tensor", part))
    return Gradients(cast("dict[Leaf, Tensor]", found))


def _age(node: Node) -> int:
    return node.number


def _seed(tensor: Operand, cotangent: Operand | None) -> Operand:
    """The gradient that the walk begins with."""
    place = tensor._device.inner()
    if cotangent is not None:
        _check_like("backward: the cotangent", cotangent, tensor)
        return cotangent._make(cotangent._data, place)
    if tensor._data.size != 1:
        raise ShapeError(
            f"backward: a tensor of shape {tensor._data.shape} needs a cotangent of its shape; without one it must "
            "have one element, such as a loss"
        )
    with place:
        return tensor._make(place.xp.ones(tensor._data.shape, tensor._data.dtype), place)


def _check_like(what: str, given: Any, like: Operand) -> None:
    if not isinstance(given, Operand):
        raise TypeError(f"{what} is a {type(given).__qualname__}, not a Tensor")
    if given._data.shape != like._data.shape:
        raise ShapeError(f"{what} has shape {given._data.shape}; it must be {like._data.shape}")
    if given._data.dtype != like._data.dtype:
        raise DTypeError(f"{what} has dtype {given._data.dtype}; it must be {like._data.dtype}")
    if given._device != like._device:
        raise DeviceMismatchError(f"{what} is on {given._device.inner()}; it must be on {like._device.inner()}")


def _steps_behind(node: Node) -> list[Step]:
    """All steps that a node came from, itself included, oldest first.

    Raises:
        AutodiffError: one is released; nothing has been touched then.
    """
    found: set[Step] = set()
    waiting = [node]
    while waiting:
        step = waiting.pop()
        if not isinstance(step, Step) or step in found:
            continue
        if step.is_released:
            step.take()  # raises, naming the operation
        found.add(step)
        waiting.extend(parent for parent in step.parents if parent is not None)
    return sorted(found, key=_age)
