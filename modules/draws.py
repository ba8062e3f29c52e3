"""Draws: the random numbers that a layer uses while it runs, such as which elements a dropout leaves out.

They are the layer's own: the n-th draw of a layer gives the same numbers on
every device, whatever other layers draw, so that they follow the layer
wherever it is placed (L105).
"""

import threading
from collections.abc import Sequence
from typing import Any, Self, final

from engine import Device, Key, Seed, Tensor, randn, uniform
from engine.dtype import FLOAT32


@final
class Draws:
    """What a layer that draws holds: a sequence of draws, and the count of those made so far.

    It is kept in a field of the layer. Walks do not show it, and it has no
    device. Every derived module has its own, which goes on from the count that
    this one had. A record holds the count (see `modules.recording`).

    Args:
        seed: an integer, a Seed (its next key is taken), or None for entropy of the system.

    Raises:
        ValueError: an integer that is not from 0 to 2⁶⁴ − 1.
        TypeError: `seed` is none of these.
    """

    __slots__ = ("__weakref__", "_count", "_key", "_lock")

    def __init__(self, seed: int | Seed | None) -> None:
        self._set(Seed.of(seed).key(), 0)

    def _set(self, key: Key, count: int) -> Self:
        self._key = key
        self._count = count
        self._lock = threading.Lock()
        return self

    @property
    def count(self) -> int:
        """How many draws were made."""
        return self._count

    def uniform(self, shape: Sequence[int], device: Device | str, dtype: Any = FLOAT32) -> Tensor:
        """The next draw: independent numbers spread evenly from 0 up to 1; made on the host, then sent to the device.

        Threads that share a layer get draws of their own.

        Raises:
            DTypeError: `dtype` is no float dtype.
            ShapeError: `shape` is none.
        """
        return uniform(shape, seed=self._next(), device=device, dtype=dtype)

    def normal(self, shape: Sequence[int], device: Device | str, dtype: Any = FLOAT32) -> Tensor:
        """The next draw, as `uniform`, of the normal distribution with mean 0 and variance 1.

        Raises:
            DTypeError: `dtype` is no float dtype.
            ShapeError: `shape` is none.
        """
        return randn(shape, seed=self._next(), device=device, dtype=dtype)

    def _next(self) -> Key:
        """The key of the next draw, which nobody else gets."""
        with self._lock:
            number = self._count
            self._count += 1
        return self._key.at(number)

    def _derived(self, count: int | None = None) -> Self:
        """Draws of its own with the same numbers, from this one's count on, or from another."""
        return type(self).__new__(type(self))._set(self._key, self._count if count is None else count)

    def __repr__(self) -> str:
        return f"Draws({self._count} so far)"

    def __copy__(self) -> Self:
        return self._derived()

    def __deepcopy__(self, memo: Any) -> Self:
        return self._derived()

    def __reduce__(self) -> Any:
        raise TypeError("a Draws is not pickled; put it into a Module and use save_file")
