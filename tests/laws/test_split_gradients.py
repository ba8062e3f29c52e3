"""Laws of the gradients of split models (L93, L111): placements change none of their bits, and each comes home."""

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import event
from hypothesis import strategies as st

from .law import law
from .layered_calls import wrapped_by
from .layered_expected import crossed, values_of
from .layered_generators import HIDDEN
from .layered_gradients import Grads, near, pulled
from .observations import Gradient, Meta, ValueMeta
from .placement_generators import placements, split_placements
from .protocol import Adapter, Done, Refused
from .spec_tree import numpy_dtype
from .training_generators import Training, losses, on, trainings, turned_losses
from .training_operations import RunBackward


def split_losses(adapter: Adapter) -> Any:
    """Split models with losses; one in four over an input that lies in memory as sums feel it."""
    placed = split_placements(adapter.grammar)
    each = losses(adapter.grammar, placed)
    return st.one_of(each, each, trainings(adapter.grammar, placed), turned_losses(adapter.grammar))


@law("L93", needs=("parallel", "autodiff", "state.params", "dropout", "batch_norm"), case=split_losses)
def test_the_gradients_of_a_split_model_are_those_of_the_plain_composition(adapter: Adapter, case: Training) -> None:
    """Bit for bit, whatever is frozen; each plain, on its parameter's device (P37, P59)."""
    split = wrapped_by(adapter, case.started(adapter), case.spec.placement)
    signal = on(case.home(adapter), case.signal)
    expected = adapter.apply(case.alone(adapter), RunBackward(signal, case.cotangents))

    found = adapter.apply(split, RunBackward(case.signal, case.cotangents))

    if isinstance(expected, Refused):
        event("nothing trains")
        assert isinstance(found, Refused)
        assert found.kind == expected.kind == "autodiff"
        return
    assert isinstance(found, Done)
    assert [(one.path, one.bits) for one in found.output] == [(one.path, one.bits) for one in expected.output]
    places = {value.path: value for value in adapter.meta(split).values if isinstance(value, ValueMeta)}
    event(f"gradients: {min(len(found.output), 4)}; frozen: {case.frozen is not None}")
    for one in found.output:
        assert places[one.path].requires_grad
        assert (one.device, one.autodiff) == (places[one.path].device, False)


def by_place(gradients: Grads, meta: Meta) -> Grads:
    """The gradient that is found at each path: at those of a tied parameter, the sum of theirs."""
    first = {path: group[0] for group in meta.ties for path in group}
    summed: Counter[str] = Counter()
    for path, gradient in gradients.items():
        summed[first.get(path, path)] += gradient  # pyright: ignore[reportArgumentType]
    paths = (value.path for value in meta.values)
    return {path: np.asarray(summed[first.get(path, path)]) for path in paths if first.get(path, path) in summed}


def _array(gradient: Gradient) -> Any:
    return np.frombuffer(gradient.bits.data, numpy_dtype(gradient.bits.dtype)).reshape(gradient.bits.shape)


@law(
    "L93",
    "L111",
    needs=("parallel", "autodiff", "state.params", "transfer_log"),
    case=lambda a: losses(a.grammar, placements(a.grammar), HIDDEN, "float64"),
)
def test_gradients_are_those_of_the_layers_formulas_and_come_back_as_the_signal_went(
    adapter: Adapter, case: Training
) -> None:
    """As NumPy computes them, layer by layer, for what is used and not frozen, and for nothing else (P37, M73).

    At each change of device each tensor that carries a gradient is copied once forth and its gradient once back.
    """
    split = wrapped_by(adapter, case.started(adapter), case.spec.placement)
    meta = adapter.meta(split)
    frozen = {value.path for value in meta.values if isinstance(value, ValueMeta) and not value.trainable}
    made = pulled(
        case.spec,
        case.signal,
        values_of(case.spec),
        case.cotangents,
        lambda path: path not in frozen,
        case.spec.placement,
    )
    expected = by_place(made.gradients, meta)
    adapter.log()

    answer = adapter.apply(split, RunBackward(case.signal, case.cotangents))

    assert crossed(adapter.log()) == made.crossings
    event(f"gradients: {min(len(expected), 4)}; copies: {min(sum(n for n, _ in made.crossings.values()), 6)}")
    if isinstance(answer, Refused):
        assert not expected
        assert answer.kind == "autodiff"
        return
    assert [one.path for one in answer.output] == list(expected)
    for one in answer.output:
        assert near(_array(one), expected[one.path], made.peak)
