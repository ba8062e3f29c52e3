"""Random numbers that depend on a key alone: not on the device, on who draws first, or on what was drawn before.

A *seed* is a stream of *keys*. Whatever will draw numbers takes its key when
it is made, and draws with it when it needs them: an initialiser takes one
when its layer is constructed, and draws when the parameter is first read.
Numbers are made on the host by a counter-based generator and sent to the
device.
"""

import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, final

import numpy as np
from ml_dtypes import finfo

from .creation import checked_shape
from .device import Device
from .dtype import FLOAT32, FLOAT64, FLOATS, as_dtype
from .errors import DTypeError
from .ops.checks import checked_number
from .tensor import Tensor

_WORD: Final = 2**64


@final
@dataclass(frozen=True, slots=True)
class Key:
    """A place in the stream of a seed, with which any number of values is drawn; the same values each time.

    Args:
        seed: of the stream, from 0 to 2⁶⁴ − 1.
        index: of the key in it.
        part: which independent sequence of the key; see `at`.

    Source: J. K. Salmon and others, "Parallel random numbers: as easy as 1, 2, 3" (2011), Philox 4×64-10: `seed` and
    `index` are its key, `part` the highest word of its counter, so that no two sequences overlap.
    """

    seed: int
    index: int
    part: int = 0

    def at(self, part: int) -> "Key":
        """The key of another sequence, independent of this one; for what draws again and again, by counting."""
        return replace(self, part=_checked_word("part", part))

    def generator(self) -> np.random.Generator:
        """A NumPy generator at the start of the key's sequence."""
        key = np.array([self.seed, self.index], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=self.part << 192))


@final
class Seed:
    """A stream of keys, the same for the same number. Threads that share it get different keys.

    Args:
        value: from 0 to 2⁶⁴ − 1.

    Raises:
        ValueError: it is out of that range.
        TypeError: it is no integer.
    """

    __slots__ = ("_lock", "_next", "value")

    def __init__(self, value: int) -> None:
        self.value: Final = _checked_word("seed", value)
        self._next = 0
        self._lock = threading.Lock()

    @classmethod
    def of(cls, seed: "SeedLike") -> "Seed":
        """The stream that an argument `seed` means: the Seed, a new one of the integer, or one of the system's entropy.

        Raises:
            ValueError: an integer out of range.
            TypeError: it is none of these.
        """
        if isinstance(seed, Seed):
            return seed
        return cls(secrets.randbits(64) if seed is None else seed)

    def key(self) -> Key:
        """The next key of the stream."""
        with self._lock:
            index = self._next
            self._next += 1
        return Key(self.value, index)

    def __repr__(self) -> str:
        return f"Seed({self.value})"


SeedLike: TypeAlias = int | Seed | None


def key_of(seed: SeedLike | Key) -> Key:
    """The key that an argument `seed` means: a Key itself, or the next one of `Seed.of(seed)`."""
    return seed if isinstance(seed, Key) else Seed.of(seed).key()


def randn(shape: Sequence[int], *, seed: SeedLike | Key, device: Device | str, dtype: Any = FLOAT32) -> Tensor:
    """Independent numbers of the normal distribution with mean 0 and variance 1, the same on every device.

    Args:
        shape: of the result.
        seed: an integer, a Seed (its next key is taken), a Key, or None for entropy of the system.
        dtype: a float one; float16 and bfloat16 are float32's numbers, rounded.

    Raises:
        DTypeError: `dtype` is no float dtype.
        ShapeError: `shape` is none.
    """
    of, extents = _float_dtype("randn", dtype), checked_shape("randn", shape)
    drawn = FLOAT64 if of == FLOAT64 else FLOAT32
    generator = key_of(seed).generator()
    with Device(device).host():
        numbers = generator.standard_normal(extents, dtype=drawn)
    return Tensor.adopt(numbers, device).cast(of)


def uniform(
    shape: Sequence[int],
    low: float = 0.0,
    high: float = 1.0,
    *,
    seed: SeedLike | Key,
    device: Device | str,
    dtype: Any = FLOAT32,
) -> Tensor:
    """Independent numbers spread evenly from `low` up to `high`, which rounding may reach; the same on every device.

    Args:
        shape: of the result.
        low, high: finite, in this order.
        seed: an integer, a Seed (its next key is taken), a Key, or None for entropy of the system.
        dtype: a float one; float16 and bfloat16 are float32's numbers, rounded.

    Raises:
        TypeError: a bound is no number.
        ValueError: the bounds are not finite in `dtype`, or in the wrong order.
        DTypeError: `dtype` is no float dtype.
        ShapeError: `shape` is none.
    """
    of, extents = _float_dtype("uniform", dtype), checked_shape("uniform", shape)
    low, high = checked_number("uniform", "low", low), checked_number("uniform", "high", high)
    largest = float(finfo(of).max)
    if not -largest <= low <= high <= largest:
        raise ValueError(f"uniform: from {low} to {high}; the bounds must be finite in {of} and in order")
    drawn = FLOAT64 if of == FLOAT64 else FLOAT32
    generator = key_of(seed).generator()
    with Device(device).host():
        numbers = np.asarray(generator.random(extents, dtype=drawn))
        if high - low <= float(finfo(drawn).max):
            numbers *= high - low
            numbers += low
        else:  # their distance is beyond the dtype, so they lie on two sides of 0 and no part of a mean overflows
            numbers = np.asarray(low * (1 - numbers) + high * numbers)
    return Tensor.adopt(numbers, device).cast(of)


def _float_dtype(name: str, dtype: Any) -> Any:
    of = as_dtype(dtype)
    if of not in FLOATS:
        raise DTypeError(f"{name}: takes a float dtype, not {of}")
    return of


def _checked_word(name: str, value: int) -> int:
    number = value.__index__() if hasattr(value, "__index__") and not isinstance(value, bool) else None
    if number is None:
        raise TypeError(f"{name} is {value!r}; it must be an integer")
    if not 0 <= number < _WORD:
        raise ValueError(f"{name} is {number}; it must be from 0 to 2**64 - 1")
    return number
