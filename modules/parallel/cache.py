"""Caches: what autoregressive layers remember of the positions they have seen.

A cache belongs to one sequence and one layer, and lies on that layer's device
(P69, P72). It is the one thing that a forward changes in place.
"""

import copy
from typing import Self

from engine import Buffer, Device


class Cache:
    """Base class of a layer's cache: a subclass keeps `Buffer`s as attributes, and its layer fills them.

    Attributes:
        length: number of positions seen; the layer advances it.
        valid: False once a forward that used it failed midway; it is then refused (P73).
    """

    _made_for: tuple[int, int] | None = None  # number of the sequence and index of the hidden layer

    def __init__(self) -> None:
        self.length = 0
        self.valid = True

    @property
    def device(self) -> Device | None:
        """Where its values are; None until something is stored."""
        for value in vars(self).values():
            if isinstance(value, Buffer) and value.device is not None:
                return value.device
        return None

    def __copy__(self) -> Self:
        """A cache with buffers of its own: two that shared them would overwrite each other's positions."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        state = "" if self.valid else ", unusable"
        return f"{type(self).__name__}({self.length} positions on {self.device or 'no device yet'}{state})"
