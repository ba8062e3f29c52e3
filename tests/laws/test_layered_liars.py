"""Adapters that lie about split models: each fails the law that it breaks, which the model itself passes."""

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import Phase, settings

from . import layered_operations as op
from .layered_model import LayeredVersion, ModelAdapter
from .observations import TransferLog
from .operations import Op, ToDevice
from .protocol import Done
from .suite import OUTSIDE

pytestmark = pytest.mark.suite

FEW: Final = settings(
    max_examples=60, derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate]
)


class Accepting(ModelAdapter):
    """Takes every placement."""

    def done(self, target: Any, operation: Op) -> Done:
        if isinstance(operation, op.Wrap):
            return Done(replace(target, placement=operation.placement.plain))
        return super().done(target, operation)


class Thrifty(ModelAdapter):
    """Tells of one copy less than it made."""

    def log(self) -> TransferLog:
        told = super().log()
        return (replace(told[0], copies=told[0].copies - 1), *told[1:]) if told else told


class Staying(ModelAdapter):
    """Says that a model that was moved is where it was."""

    def done(self, target: Any, operation: Op) -> Done:
        made = super().done(target, operation)
        if isinstance(operation, ToDevice) and isinstance(target, LayeredVersion):
            return Done(replace(made.handle, placement=target.placement))
        return made


class Forgetful(ModelAdapter):
    """Begins anew with every piece of a sequence."""

    def decode(self, target: Any, piece: Any, caches: Any, handed: Any, fail_at: Any) -> Any:
        caches.seen.clear()
        return super().decode(target, piece, caches, handed, fail_at)


class Mixing(ModelAdapter):
    """Takes a model apart without looking at what comes out."""

    def taken(self, target: LayeredVersion) -> op.Taken:
        return super().taken(replace(target, layered=replace(target.layered, apart="as they are")))


def fails(number: str, adapter: ModelAdapter) -> bool:
    """Whether a law of that number fails."""
    for law in OUTSIDE:
        if number in law.numbers:
            try:
                law.put_to(adapter, FEW)
            except (Exception, pytest.fail.Exception):
                return True
    return False


@pytest.mark.parametrize(
    ("liar", "number"),
    [(Accepting, "L96"), (Thrifty, "L94"), (Staying, "L100"), (Forgetful, "L114"), (Mixing, "L102")],
)
def test_a_lie_about_split_models_is_noticed(liar: type[ModelAdapter], number: str) -> None:
    assert fails(number, liar())
