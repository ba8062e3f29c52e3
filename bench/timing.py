"""How long things take: readings of the clock in interleaved rounds, and the arithmetic of them.

A *reading* is a function that gives seconds. In each *round* every reading is
taken once, in an order that turns by one place from round to round, so that
whatever changes on the machine meanwhile meets all of them alike. Ratios are
formed within a round; medians and quartiles are taken last. Garbage
collection stays on, as users have it.
"""

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from timeit import Timer
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from engine import Device

Reading: TypeAlias = Callable[[], float]


class Spread(NamedTuple):
    """The lower quartile, the median and the upper quartile of some numbers."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """The quartiles of one number or more, interpolated linearly between neighbours."""
        low, median, high = np.quantile(np.asarray(values, np.float64), (0.25, 0.5, 0.75))
        return cls(float(low), float(median), float(high))

    def scaled(self, factor: float) -> Self:
        """These numbers in another unit; `factor` is positive."""
        return type(self)(*(number * factor for number in self))


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that one thing took, a number for each round."""

    seconds: tuple[float, ...]

    def spread(self, unit: float = 1.0) -> Spread:
        """The quartiles, in units of so many seconds."""
        return Spread.of(self.seconds).scaled(1 / unit)

    def rate(self, amount: float) -> Spread:
        """The quartiles of `amount` per second, where each reading did so much."""
        return Spread.of([amount / seconds for seconds in self.seconds])

    def scaled(self, factor: float) -> Self:
        """The time of `factor` times as much, at the same speed."""
        return type(self)(tuple(seconds * factor for seconds in self.seconds))

    def over(self, other: "Timing") -> Spread:
        """The quartiles of this time as a multiple of another's, round by round."""
        return Spread.of([mine / its for mine, its in zip(self.seconds, other.seconds, strict=True)])


def fastest(timings: Mapping[str, Timing]) -> str:
    """The name of the one whose median is lowest."""
    return min(timings, key=lambda name: timings[name].spread().median)


def interleaved(
    *readings: Reading, rounds: int, warmup: int, told: Callable[[int, int], object] = lambda done, of: None
) -> list[Timing]:
    """What each reading gave in `rounds` rounds, after `warmup` rounds whose readings are forgotten.

    Args:
        rounds: how many, 1 or more.
        warmup: how many, 0 or more.
        told: after each round, how many are done, and of how many.
    """
    taken: list[list[float]] = [[] for _ in readings]
    gc.collect()
    for number in range(-warmup, rounds):
        for place in range(len(readings)):
            which = (place + number) % len(readings)
            seconds = readings[which]()
            if number >= 0:
                taken[which].append(seconds)
        told(number + warmup + 1, warmup + rounds)
    return [Timing(tuple(seconds)) for seconds in taken]


def timed(
    call: Callable[[], Any],
    *,
    devices: Sequence[Device] = (),
    repeat: int = 1,
    before: Callable[[], Any] | None = None,
) -> Reading:
    """A reading of the seconds that `call` takes, which lie above some microseconds.

    Args:
        devices: each is synchronised before the clock is read.
        repeat: how often it is called in one reading; the result is for one call.
        before: called first, and not timed.
    """

    def reading() -> float:
        if before is not None:
            before()
        for device in devices:
            device.synchronize()
        start = perf_counter()
        for _ in range(repeat):
            call()
        for device in devices:
            device.synchronize()
        return (perf_counter() - start) / repeat

    return reading


def statement(code: str, *, repeat: int, **names: Any) -> Reading:
    """A reading of the seconds that a statement takes, without the cost of a call around it.

    Args:
        code: Python source.
        repeat: how often it is run in one reading; the result is for one run.
        names: what the names in `code` mean.
    """
    timer = Timer(code, setup="gc.enable()", globals={"gc": gc, **names})
    return lambda: timer.timeit(repeat) / repeat


def repeats(reading: Reading, least_seconds: float) -> int:
    """How often something must be repeated for a reading to last `least_seconds`; 1 or more."""
    reading()
    return max(1, math.ceil(least_seconds / max(reading(), 1e-9)))
