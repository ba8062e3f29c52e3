"""Draws from a strategy, each by itself: for tests that say how often something occurs in what a generator gives.

Hypothesis begins with small cases, varies each one that it has drawn a few
times, and mixes in constants of whatever modules are loaded. That suits laws.
A share over 500 such draws, though, is as uncertain as one over eighty, and
moves with what else is collected.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.strategies import SearchStrategy

DRAWS: Final = 500
T = TypeVar("T")


class IndependentDraws(HypothesisProvider):
    """Hypothesis's own numbers, but for constants. Cases of another backend than its own it does not vary."""

    def _maybe_draw_constant(self, *args: Any, **settings: Any) -> None:
        return None


AVAILABLE_PROVIDERS["independent"] = f"{__name__}.IndependentDraws"


def drawn(strategy: SearchStrategy[T], number: int = DRAWS) -> list[T]:
    """So many draws, the same each time."""
    found: list[T] = []

    @settings(
        max_examples=number,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        backend="independent",
        suppress_health_check=[HealthCheck.too_slow],  # some look at what they draw by brute force
    )
    @given(strategy)
    def collect(value: T) -> None:
        found.append(value)

    collect()
    assert len(found) >= number
    return found


def share(found: Sequence[T], holds: Callable[[T], Any]) -> float:
    """The part of what was drawn for which something holds."""
    return sum(bool(holds(value)) for value in found) / len(found)
