"""Laws of split models that look inside: the models that people write, identity, raising initialisers, lying models.

The same laws over generated layers, through an adapter, are in `tests/laws/test_parallel.py`.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from engine import Device, Seed, Tensor, randn, transfer, zeros
from examples.mlp import Mlp
from modules import Module, Param
from modules.parallel import DistributedLayeredModel, LayerPlacement, LayerSequence, LayerStage, PlacementError
from modules.tree import leaves
from tests.laws.law import inside
from tests.parallel.small_models import Chain, Scale, chain
from tests.parallel.strategies import POOL, placements, split_placements, stage_lists


def on_one(placement: LayerPlacement, device: Device) -> LayerPlacement:
    return LayerPlacement(device, [device] * len(placement.hidden), device)


def composed(model: Any, signal: Tensor) -> Tensor:
    """The plain composition of a model's layers; nothing is moved."""
    for layer in (model.layer_input(), *model.layers_hidden(), model.layer_output()):
        signal = layer(signal)
    return signal


@inside("L92", "L94")
@given(placement=placements(), rows=st.integers(0, 3), turned=st.booleans(), here=st.sampled_from(POOL))
def test_the_smallest_split_model_gives_the_bits_of_the_unsplit_one(
    placement: LayerPlacement, rows: int, turned: bool, here: Device
) -> None:
    """The residual network of the README, for every placement; its input lies in either order (P38, P40, P41)."""
    home = POOL[0]
    x = randn((rows, 4), seed=1, device=home) if not turned else randn((4, rows), seed=1, device=home).T
    expected = composed(Mlp(on_one(placement, home), Seed(0)), x)
    model = DistributedLayeredModel(Mlp(placement, Seed(0)), placement)
    given_x = x.to_device(here)
    event(f"stages: {min(len(placement.stages()), 3)}")

    with transfer.log() as log:
        found = model(given_x)

    assert found.tobytes() == expected.tobytes()
    assert found.device == placement.output
    path = (here, placement.input, *placement.hidden, placement.output)
    assert log.copies == sum(one != other for one, other in pairwise(path))
    assert given_x.device == here
    assert given_x.tobytes() == x.tobytes()


TWO_OR_MORE = stage_lists().map(lambda stages: stages if len(stages) > 1 else stages * 2)


@inside("L92", "L103")
@given(stages=TWO_OR_MORE, device=st.sampled_from(POOL), data=st.data())
def test_a_stage_of_no_layers_in_between_changes_no_bit_and_no_copy(
    stages: list[LayerStage], device: Device, data: st.DataObject
) -> None:
    """It leaves no trace (P16)."""
    at = data.draw(st.integers(1, len(stages) - 1))
    x = randn((2, 4), seed=1, device=POOL[0])
    found = []
    for one in (stages, [*stages[:at], LayerStage(device, 0), *stages[at:]]):
        placement = LayerPlacement.from_stages(one)
        model = DistributedLayeredModel(Mlp(placement, Seed(0)), placement)
        with transfer.log() as log:
            found.append((model(x).tobytes(), dict(log)))

    assert found[0] == found[1]


def raising(device: Device, require_grad: bool) -> Tensor:
    raise AssertionError("nothing may make this value")


class Lazy(Module):
    """A layer whose parameter cannot be made."""

    def __init__(self, device: Device) -> None:
        self.weight = Param.lazy(raising, (2,), "float32", device)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.val()


@inside("L95")
@given(placement=placements())
def test_wrapping_keeps_the_objects_and_runs_no_initialiser(placement: LayerPlacement) -> None:
    """The model is the one given, and so is each parameter, also behind each accessor and back out (P24, P34)."""
    model = Chain(Lazy(placement.input), [Lazy(device) for device in placement.hidden], Lazy(placement.output))
    before = [leaf for _, leaf in leaves(model)]

    wrapped = DistributedLayeredModel(model, placement)
    wrapped.check()
    staged = wrapped.into_stages()

    assert wrapped.model is wrapped.into_inner() is model
    assert all(one is other for one, (_, other) in zip(before, leaves(wrapped), strict=True))
    parts = [staged.input, *(layer for stage in staged.stages for layer in stage.layers), staged.output]
    assert all(a is b for a, b in zip(parts, (model.stem, *model.blocks, model.head), strict=True))
    assert not any(leaf.is_initialized for leaf in before)


@inside("L95")
@given(placement=split_placements())
def test_what_a_caller_does_to_its_lists_later_has_no_effect(placement: LayerPlacement) -> None:
    """(P24)."""
    hidden = list(placement.hidden)
    made = LayerPlacement(placement.input, hidden, placement.output)
    wrapped = DistributedLayeredModel(chain(made), made)

    hidden.append(Device.cpu(9))
    hidden[0] = Device.cpu(9)

    assert wrapped.placement == placement
    wrapped.check()


class Lying(Chain):
    """A model whose `into_layers` gives what it is told to."""

    def __init__(self, placement: LayerPlacement, told: Callable[[Chain], LayerSequence]) -> None:
        made = chain(placement)
        super().__init__(made.stem, list(made.blocks), made.head)
        self.told = told

    def into_layers(self) -> LayerSequence:
        return self.told(self)


A, B, C = POOL[:3]


LIES: list[tuple[Callable[[Chain], LayerSequence], Any, str]] = [
    (lambda m: LayerSequence(m.stem, m.blocks[::-1], m.head), 0, "stage 0.*layer 0.*cpu:0.*cpu:1"),
    (lambda m: LayerSequence(m.stem, [m.blocks[1], *m.blocks[1:]], m.head), 0, "stage 0.*layer 0.*cpu:0.*cpu:1"),
    (lambda m: LayerSequence(m.stem, m.blocks[:2], m.head), None, "2.*3"),
    (lambda m: LayerSequence(m.stem, [*m.blocks, m.blocks[2]], m.head), None, "4.*3"),
    (lambda m: LayerSequence(m.stem, [], m.head), None, "0.*3"),
    (lambda m: LayerSequence(m.head, list(m.blocks), m.head), "input", "input layer.*cpu:0.*cpu:2"),
    (lambda m: LayerSequence(m.stem, list(m.blocks), m.stem), "output", "output layer.*cpu:2.*cpu:0"),
    (lambda m: LayerSequence(m.stem, list(m.blocks), Scale(3, B)), "output", "output layer.*cpu:2.*cpu:1"),
]


@inside("L102")
@pytest.mark.parametrize("lie", LIES)
def test_a_lying_into_layers_is_refused(lie: tuple[Any, Any, str]) -> None:
    """With the stage and the layer and both devices, or with both numbers (P48)."""
    told, layer, words = lie
    placement = LayerPlacement(A, [A, B, B], C)
    wrapped = DistributedLayeredModel(Lying(placement, told), placement)

    with pytest.raises(PlacementError, match=words) as refused:
        wrapped.into_stages()

    assert refused.value.layer == layer
    assert wrapped(zeros((3,), device=A)).device == C


@inside("L102")
def test_into_layers_may_give_other_objects_that_are_where_they_belong() -> None:
    """It is how an owner hands out layers that it keeps in another form (P4)."""
    placement = LayerPlacement(A, [A, B], C)
    others = [Scale(3, A, 5.0), Scale(3, B, 6.0)]
    model = Lying(placement, lambda m: LayerSequence(m.stem, iter(others), m.head))  # pyright: ignore

    staged = DistributedLayeredModel(model, placement).into_stages()

    assert [stage.layers for stage in staged.stages] == [[others[0]], [others[1]]]


class Counting(Chain):
    """A model that gives its hidden layers as an iterator, and counts how often it is asked."""

    def __init__(self, placement: LayerPlacement, asked: list[int]) -> None:
        made = chain(placement)
        super().__init__(made.stem, list(made.blocks), made.head)
        self.asked = asked

    def layers_hidden(self) -> Iterable[Module]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.asked[0] += 1
        return iter(self.blocks)


@inside("L95")
@given(placement=placements())
def test_accessors_are_asked_when_the_model_is_wrapped_and_not_in_a_forward(placement: LayerPlacement) -> None:
    """An iterator will do; a forward reads the placement and does nothing else (P3, P36)."""
    asked = [0]
    wrapped = DistributedLayeredModel(Counting(placement, asked), placement)
    once = asked[0]

    for _ in range(3):
        wrapped(zeros((3,), device=A))

    assert asked[0] == once
