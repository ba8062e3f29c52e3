"""The recorded graph: what a tracked tensor remembers of where it came from.

A *node* hangs at each tracked tensor. A *leaf* was made by nobody and retains
its gradient. A *step* was made by an operation: it knows the nodes of the
operands and how a gradient is pulled back to them. Steps are numbered as they
are made, so that a walk from the newest to the oldest meets each one after
all that used it.
"""

import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias

from .errors import AutodiffError

if TYPE_CHECKING:
    from .primitive import Operand

PullBack: TypeAlias = "Callable[[Operand], Sequence[Operand | None]]"
"""From the gradient of a result, plain, those of the operands; None for one that has none."""

_number: Final = count()
_taking: Final = threading.Lock()


class Node:
    """What a tracked tensor came from. `number` grows in the order in which nodes are made, over all threads."""

    __slots__ = ("__weakref__", "number")

    def __init__(self) -> None:
        self.number: Final = next(_number)


class Leaf(Node):
    """A tracked tensor that no operation made: it retains its gradient."""

    __slots__ = ()


class Step(Node):
    """An operation that was recorded.

    Args:
        name: of the operation, for messages.
        parents: the node of each operand; None for one that is not tracked.
        pull_back: gives the gradient of each operand.
    """

    __slots__ = ("_pull_back", "name", "parents")

    def __init__(self, name: str, parents: tuple[Node | None, ...], pull_back: PullBack) -> None:
        super().__init__()
        self.name: Final = name
        self.parents = parents
        self._pull_back: PullBack | None = pull_back

    @property
    def is_released(self) -> bool:
        """Whether a backward pass took it; the values that it kept are gone."""
        return self._pull_back is None

    def take(self) -> "tuple[tuple[Node | None, ...], PullBack]":
        """Its parents and its pull-back, which it then no longer has.

        Raises:
            AutodiffError: it was taken before.
        """
        with _taking:  # of two threads, one gets it
            parents, pull_back = self.parents, self._pull_back
            self.parents, self._pull_back = (), None
        if pull_back is None:
            hint = "; a parameter moved by to_device is no leaf any more: use fork to go on training on another device"
            raise AutodiffError(
                f"backward: the graph behind {self.name} was released by an earlier backward(); compute it anew"
                f"{hint if self.name == 'copy' else ''}"
            )
        return parents, pull_back
