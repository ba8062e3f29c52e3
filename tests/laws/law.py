"""What makes a function a law: its numbers, the capabilities it needs, and how its cases are drawn.

`law` turns a body into a hypothesis test of the implementation under test, and
keeps the parts, so that the same law can be put to a lying implementation
(`test_planted_faults`). A body takes the adapter, then what is drawn::

    @law("L1", needs=("map",), spec=lambda adapter: trees(adapter.grammar))
    def test_the_identity_map_changes_nothing(adapter, spec): ...

`inside` marks a law of the engine's own tests, which look at what no adapter
shows: identity of objects, shared memory, threads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any, Final, TypeAlias, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from .protocol import Adapter
from .subject import subject

Draw: TypeAlias = Callable[[Adapter], SearchStrategy[Any]]
Test = TypeVar("Test", bound=Callable[..., None])


@dataclass(frozen=True)
class Law:
    """A law as it was written, to be put to any adapter.

    The body of a state machine draws for itself, by the settings that it takes
    as ``profile``.

    Args:
        numbers: of the law, ``L1``.
        needs: capabilities without which it does not apply.
        body: takes the adapter (a law from inside: nothing), then a case.
        draws: what a case is drawn from, by argument name.
        each: a further argument and its values, or several and their values together; each is a test of its own.
        suppress: health checks of hypothesis that it may fail.
        slow: how many times fewer examples it is tried on in a run of the suite than the profile says.
    """

    numbers: tuple[str, ...]
    needs: tuple[str, ...]
    body: Callable[..., None]
    draws: Mapping[str, Draw] = field(default_factory=dict)
    each: tuple[str | Sequence[str], Sequence[Any]] | None = None
    suppress: tuple[HealthCheck, ...] = ()
    inside: bool = False
    slow: int = 1

    def missing(self, adapter: Adapter) -> list[str]:
        """Capabilities that it needs and the adapter does not offer."""
        return [name for name in self.needs if name not in adapter.capabilities]

    def test(self, adapter: Adapter, profile: settings | None = None) -> Callable[..., None]:
        """The law as a test function whose cases come from the adapter's grammar."""
        if not self.draws or self.missing(adapter):
            states = profile is not None and "profile" in signature(self.body).parameters
            return partial(self.body, profile=profile) if states else self.body
        drawn = given(**{name: draw(adapter) for name, draw in self.draws.items()})(self.body)
        if profile is None and not self.suppress and self.slow == 1:
            return drawn
        chosen = profile or settings()
        checks = tuple({*chosen.suppress_health_check, *self.suppress})
        examples = chosen.max_examples if profile else max(1, chosen.max_examples // self.slow)
        return settings(chosen, max_examples=examples, suppress_health_check=checks)(drawn)

    def put_to(self, adapter: Adapter, profile: settings) -> None:
        """Run the law on an adapter with the settings of a profile; raises what the law raises."""
        names, cases = self.each or ((), [()])
        for case in cases:
            parameter = {names: case} if isinstance(names, str) else dict(zip(names, case, strict=True))
            if self.inside:
                self.body(**parameter)
            else:
                self.test(adapter, profile)(adapter, **parameter)


LAWS: Final[list[Law]] = []


def law(
    *numbers: str,
    needs: Sequence[str] = (),
    each: tuple[str, Sequence[Any]] | None = None,
    suppress: Sequence[HealthCheck] = (),
    slow: int = 1,
    **draws: Draw,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a law of a body: a test of the implementation under test, see `Law`."""

    def made(body: Callable[..., None]) -> Callable[..., None]:
        stated = Law(numbers, tuple(needs), body, draws, each, tuple(suppress), slow=slow)
        LAWS.append(stated)
        test = pytest.mark.law(*numbers, needs=stated.needs)(stated.test(subject()))
        return pytest.mark.parametrize(*each)(test) if each else test

    return made


def inside(*numbers: str) -> Callable[[Test], Test]:
    """Make a law of a test of the engine's own, which takes no adapter, and nothing but what it is parametrized by."""

    def made(test: Test) -> Test:
        marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
        LAWS.append(Law(numbers, (), test, each=_together(marks), inside=True))
        return pytest.mark.inside(pytest.mark.law(*numbers)(test))

    return made


def _together(marks: Sequence[pytest.Mark]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """The arguments of all parametrizations of a test, and each combination of their values."""
    names: tuple[str, ...] = ()
    cases: list[tuple[Any, ...]] = [()]
    for mark in marks:
        own, values = mark.args
        own = tuple(own.replace(",", " ").split()) if isinstance(own, str) else tuple(own)
        names += own
        cases = [(*case, *(value if len(own) > 1 else (value,))) for case in cases for value in values]
    return names, cases
