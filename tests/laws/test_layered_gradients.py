"""What the laws of training go by is right: gradients by finite differences, and what the generators draw."""

from collections import Counter
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

from tests.independent_draws import drawn, share

from .layered import BATCH, DROP, STEPS, Signal
from .layered_expected import Array, Reader, course, values_of
from .layered_generators import HIDDEN
from .layered_gradients import HOLDS, pulled
from .layered_model import ModelAdapter
from .operations import Freeze, SetRequireGrad
from .placement_generators import placements, split_placements
from .spec_tree import ParamSpec, leaves
from .test_split_gradients import by_place
from .test_training import Run, training_runs
from .training_generators import KEEPING, OPTIMIZERS, Training, losses, turned_losses

pytestmark = pytest.mark.suite

ADAPTER: Final = ModelAdapter()
GRAMMAR: Final = ADAPTER.grammar
STEP: Final = 2.0**-16


@cache
def some_losses() -> list[Training]:
    return drawn(losses(GRAMMAR, placements(GRAMMAR), HIDDEN, "float64"), 200)


@cache
def some_runs() -> list[Run]:
    return drawn(training_runs(ADAPTER))


def loss(case: Training, signal: Signal, read: Reader) -> float:
    """The sum of the output's tensors times their cotangents."""
    made = course(case.spec, signal, read).output.values()
    return sum(float(np.sum(made[path].numpy() * value.numpy())) for path, value in case.cotangents)


def moved(read: Reader, path: str, direction: Array) -> Reader:
    """The values, that at one path moved by a step."""
    return lambda name: read(name) + STEP * direction if name == path else read(name)


def test_gradients_are_slopes() -> None:
    """Of each value by itself, along a rough direction: by central differences (L106's measure)."""
    checked: Counter[str] = Counter()
    for case in some_losses():
        read = values_of(case.spec)
        made = pulled(case.spec, case.signal, read, case.cotangents, lambda path: True)
        steps = dict(zip(case.spec.paths.values(), (layer.step for layer in case.spec.layers), strict=True))
        for path, gradient in made.gradients.items():
            direction = np.cos(np.arange(gradient.size, dtype=np.float64) * 3 + 1).reshape(gradient.shape)
            ahead, behind = (loss(case, case.signal, moved(read, path, sign * direction)) for sign in (1, -1))
            slope = (ahead - behind) / (2 * STEP)
            assert abs(slope - float(np.sum(gradient * direction))) <= 1e-6 * made.peak
            checked[steps[path.rpartition(".")[0]]] += 1

    assert {step for step, count in checked.items() if count >= 5} == HOLDS.keys() - {BATCH}


def test_what_is_tied_has_the_sum_of_its_places() -> None:
    """At each of its paths."""
    tied = [case for case in some_losses() if case.spec.tied and case.frozen is None]
    for case in tied:
        made = pulled(case.spec, case.signal, values_of(case.spec), case.cotangents, lambda path: True)
        found = by_place(made.gradients, ADAPTER.meta(case.started(ADAPTER)))
        total = sum(made.gradients[f"{name}.weight"] for name in ("stem", "head") if f"{name}.weight" in made.gradients)
        assert np.array_equal(found["stem.weight"], total)
        assert np.array_equal(found["head.weight"], total)
    assert len(tied) >= 5


def facts(case: Training) -> dict[str, Any]:
    """What the laws need to see."""
    frozen = getattr(case.frozen, "group", None)
    held = [path for path, node in leaves(case.spec.tree).items() if isinstance(node, ParamSpec)]
    return {
        "partly frozen": frozen is not None and not {*held} <= {*frozen.paths},
        "switched": isinstance(case.frozen, SetRequireGrad),
        "frozen": isinstance(case.frozen, Freeze),
        "not frozen": case.frozen is None,
        "tied": case.spec.tied,
        "layers": len(case.spec.layers) > 3,
        "several tensors": len(case.signal.values()) > 1,
        "lazy": any(node.lazy for node in leaves(case.spec.tree).values() if isinstance(node, ParamSpec)),
    }


def test_losses_are_of_partly_frozen_models_of_several_layers() -> None:
    for found in (drawn(losses(GRAMMAR, split_placements(GRAMMAR)), 200), [run.training for run in some_runs()]):
        shares = {name: share(found, lambda case, name=name: facts(case)[name]) for name in facts(found[0])}
        assert min(shares.values()) > 0.1, shares


def test_every_layer_and_every_optimizer_is_trained() -> None:
    """Laws, section m: for every layer type there is."""
    steps = Counter(step for run in some_runs() for step in {layer.step for layer in run.training.spec.layers})
    kinds = Counter(run.optimizer for run in some_runs())

    assert {*STEPS, DROP, BATCH} <= steps.keys()
    assert min(steps.values()) > 0.05 * len(some_runs()), steps
    assert kinds.keys() == OPTIMIZERS.keys()
    assert {*KEEPING} < kinds.keys()
    assert min(kinds.values()) > 0.1 * len(some_runs()), kinds
    assert share(some_runs(), lambda run: run.other.plain != run.training.spec.placement.plain) > 0.7


def test_what_is_turned_has_changes_of_device_behind_a_sum() -> None:
    """So that a copy that loses the order of memory changes a gradient."""
    found = drawn(turned_losses(GRAMMAR), 100)

    assert share(found, lambda case: all(value.layout == "transposed" for _, value in case.cotangents)) == 1
    assert share(found, lambda case: len({*case.spec.placement.plain.layers}) > 1) == 1
