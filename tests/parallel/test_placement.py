"""Placements and stages as values: `even`, `from_stages`, `stages`, `devices`, equality, what is refused."""

import copy
import dataclasses
import pickle
from itertools import pairwise

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from engine import Device, EngineError
from modules.errors import FrozenModuleError, GroupError, ModuleError, PathError
from modules.parallel import DeviceMemory, LayerMemory, LayerPlacement, LayerStage, OutputMemory, PlacementError
from tests.parallel.strategies import (
    POOL,
    Edit,
    distinct_devices,
    edits,
    flagged,
    free_placements,
    placements,
    stage_lists,
)

A, B, C = (Device.cpu(index) for index in range(3))


def listed(placement: LayerPlacement) -> list[tuple[str, int]]:
    """The hardware of each layer in forward order, as plain values."""
    return [(d.kind, d.index) for d in (placement.input, *placement.hidden, placement.output)]


def texts(placement: LayerPlacement) -> list[str]:
    """The device of each layer, flag included."""
    return [str(device) for device in (placement.input, *placement.hidden, placement.output)]


# --- even ---


def test_even_shares_differ_by_at_most_one_and_the_first_are_the_longest():
    """L97, P17, P18, P80: every layer placed, in order; no device without a layer unless there is none to place."""
    for number in range(65):
        for width in range(1, 9):
            devices = [Device.cpu(index) for index in range(width)]

            placement = LayerPlacement.even(devices, number)

            shares = [placement.hidden.count(device) for device in devices]
            assert placement.hidden == tuple(d for d, share in zip(devices, shares, strict=True) for _ in range(share))
            assert sum(shares) == number
            assert shares == sorted(shares, reverse=True)
            used = [share for share in shares if share]
            assert len(used) == min(number, width)
            assert max(used, default=0) - min(used, default=0) <= 1
            assert placement.input == devices[0]
            assert placement.output == (placement.hidden or (devices[0],))[-1]


@pytest.mark.parametrize(
    ("devices", "number", "hidden", "ends"),
    [
        ([A, B], 4, [A, A, B, B], (A, B)),
        ([A, B], 3, [A, A, B], (A, B)),
        ([A, B, C], 8, [A, A, A, B, B, B, C, C], (A, C)),
        ([A, B, C], 1, [A], (A, A)),
        ([A, B, C], 2, [A, B], (A, B)),
        ([A, B], 0, [], (A, A)),
        ([A, A], 4, [A, A, A, A], (A, A)),
        ([A, B, A], 5, [A, A, B, B, A], (A, A)),
    ],
)
def test_even_is_the_table_of_the_rules(devices, number, hidden, ends):
    """P17 to P19, and the first table of P23."""
    assert LayerPlacement.even(devices, number) == LayerPlacement(ends[0], hidden, ends[1])


def test_a_device_listed_twice_in_even_is_one_stage():
    """P19, P21: [A, A] with four layers has one stage of four."""
    assert LayerPlacement.even([A, A], 4).stages() == [LayerStage(A, 4)]


# --- stages ---


@pytest.mark.parametrize(
    ("stages", "placement", "runs", "devices"),
    [
        ([(A, 2), (B, 1)], LayerPlacement(A, [A, A, B], B), [(A, 2), (B, 1)], [A, B]),
        ([(A, 0), (B, 3), (C, 0)], LayerPlacement(A, [B, B, B], C), [(B, 3)], [A, B, C]),
        ([(A, 1), (B, 0), (C, 1)], LayerPlacement(A, [A, C], C), [(A, 1), (C, 1)], [A, C]),
        ([(A, 1), (A, 2)], LayerPlacement(A, [A, A, A], A), [(A, 3)], [A]),
        ([(A, 1), (B, 1), (A, 1)], LayerPlacement(A, [A, B, A], A), [(A, 1), (B, 1), (A, 1)], [A, B]),
    ],
)
def test_from_stages_is_the_table_of_the_rules(stages, placement, runs, devices):
    """P14, P16, P20, P21, and the second table of P23."""
    found = LayerPlacement.from_stages([LayerStage(device, number) for device, number in stages])

    assert found == placement
    assert found.stages() == [LayerStage(device, number) for device, number in runs]
    assert found.devices() == devices


@given(stages=stage_lists())
def test_a_placement_of_stages_is_each_device_as_often_as_its_stage_says(stages):
    """L98, P14, P16: hidden layers by counting off, the input on the first device, the output on the last."""
    placement = LayerPlacement.from_stages(stages)

    upto = 0
    for stage in stages:
        assert set(placement.hidden[upto : upto + stage.num_hidden_layers]) <= {stage.device}
        upto += stage.num_hidden_layers
    assert len(placement.hidden) == upto
    assert (placement.input, placement.output) == (stages[0].device, stages[-1].device)


@given(placement=placements())
def test_stages_are_the_longest_runs_and_concatenated_they_are_the_hidden_layers(placement):
    """L98, P21, P81: neighbours differ, none is empty, and nothing is lost or reordered."""
    stages = placement.stages()
    event(f"{len(stages)} stages")

    assert all(one.device != other.device for one, other in pairwise(stages))
    assert all(stage.num_hidden_layers > 0 for stage in stages)
    assert [stage.device for stage in stages for _ in range(stage.num_hidden_layers)] == list(placement.hidden)


@given(placement=placements())
def test_from_stages_of_stages_restores_the_hidden_layers_and_the_ends_where_they_join(placement):
    """L98, P22: the ends only if they are on the devices of the first and the last hidden layer."""
    if not placement.hidden:
        assert placement.stages() == []
        return
    again = LayerPlacement.from_stages(placement.stages())
    joined = (placement.input, placement.output) == (placement.hidden[0], placement.hidden[-1])
    event(f"ends join: {joined}")

    assert again.hidden == placement.hidden
    assert (again == placement) == joined


@given(stages=stage_lists(), device=st.sampled_from(POOL), data=st.data())
def test_stages_of_no_layers_move_only_the_ends(stages, device, data):
    """L98, P16: in front the input, at the end the output, in between nothing."""
    placement, empty = LayerPlacement.from_stages(stages), LayerStage(device, 0)

    in_front = LayerPlacement.from_stages([empty, *stages])
    at_end = LayerPlacement.from_stages([*stages, empty])

    assert in_front == dataclasses.replace(placement, input=device)
    assert at_end == dataclasses.replace(placement, output=device)
    if len(stages) > 1:
        between = data.draw(st.integers(1, len(stages) - 1))
        assert LayerPlacement.from_stages([*stages[:between], empty, *stages[between:]]) == placement


@given(stages=stage_lists(), data=st.data())
def test_cutting_a_stage_in_two_on_its_device_changes_nothing(stages, data):
    """L103, P21, P22: the placement, its stages and its devices are the same."""
    cut = data.draw(st.integers(0, len(stages) - 1))
    device, number = stages[cut].device, stages[cut].num_hidden_layers
    part = data.draw(st.integers(0, number))
    placement = LayerPlacement.from_stages(stages)

    finer = [*stages[:cut], LayerStage(device, part), LayerStage(device, number - part), *stages[cut + 1 :]]
    again = LayerPlacement.from_stages(finer)

    assert again == placement
    assert again.stages() == placement.stages()
    assert again.devices() == placement.devices()


@given(placement=placements())
def test_devices_are_those_of_the_layers_each_once_in_order_of_first_use(placement):
    """L98, P20."""
    devices = placement.devices()
    layers = [placement.input, *placement.hidden, placement.output]

    assert len(devices) == len(set(devices))
    assert set(devices) == set(layers)
    assert [layers.index(device) for device in devices] == sorted(layers.index(device) for device in devices)


@given(devices=distinct_devices().flatmap(lambda found: flagged([*found, *found])))
def test_plain_and_autodiff_devices_of_one_card_are_one_stage_and_one_device(devices):
    """P13, P20, P21: the flag plays no part, and the device first met is the one reported."""
    half = len(devices) // 2
    alternating = [device for pair in zip(devices[:half], devices[half:], strict=True) for device in pair]
    placement = LayerPlacement(alternating[0], alternating, alternating[-1])

    assert [str(stage.device) for stage in placement.stages()] == [str(device) for device in devices[:half]]
    assert [stage.num_hidden_layers for stage in placement.stages()] == [2] * half
    assert [str(device) for device in placement.devices()] == [str(device) for device in devices[:half]]


# --- values ---


@given(one=placements(), other=placements())
def test_placements_are_equal_exactly_if_the_hardware_of_each_layer_is(one, other):
    """L98, P12, P13; equal ones have equal hashes."""
    for first, second in [(one, other), (one, copy.deepcopy(one))]:
        assert (first == second) == (listed(first) == listed(second))
        assert (first != second) == (listed(first) != listed(second))
        if first == second:
            assert hash(first) == hash(second)
    assert one != texts(one)


@given(placement=placements(), data=st.data())
def test_the_autodiff_flag_is_kept_but_plays_no_part_in_equality(placement, data):
    """L98, P13."""
    devices = data.draw(flagged([placement.input, *placement.hidden, placement.output]))
    other = LayerPlacement(devices[0], devices[1:-1], devices[-1])

    assert other == placement
    assert hash(other) == hash(placement)
    assert texts(other) == [str(device) for device in devices]
    assert LayerPlacement.from_stages(other.stages() or [LayerStage(A, 0)]).hidden == placement.hidden


@given(placement=free_placements(), data=st.data())
def test_an_edit_of_any_one_layer_gives_another_placement(placement, data):
    """L98, P12: input, output and each hidden layer are compared, and their number."""
    edit = data.draw(edits(placement))
    event(edit.kind)

    assert edit.apply(placement) != placement


@given(placement=placements(), data=st.data())
def test_a_placement_takes_devices_or_their_texts_in_any_sequence(placement, data):
    """P12: what comes back are devices, and a tuple."""
    devices = data.draw(flagged([placement.input, *placement.hidden, placement.output]))
    sequence = data.draw(st.sampled_from([list, tuple, iter]))
    words = [str(device) for device in devices]

    found = LayerPlacement(words[0], sequence(words[1:-1]), words[-1])

    assert texts(found) == words
    assert isinstance(found.hidden, tuple)
    assert all(isinstance(device, Device) for device in (found.input, *found.hidden, found.output))


@given(placement=placements(), data=st.data())
def test_the_repr_of_a_placement_rebuilds_it_with_its_flags(placement, data):
    """P12: it is Python, and short where many layers follow each other on one device."""
    devices = data.draw(flagged([placement.input, *placement.hidden, placement.output]))
    flagged_one = LayerPlacement(devices[0], devices[1:-1], devices[-1])

    again = eval(repr(flagged_one), {"LayerPlacement": LayerPlacement})

    assert texts(again) == texts(flagged_one)


def test_the_repr_of_a_long_placement_fits_a_line():
    """P12: runs are products."""
    placement = LayerPlacement.even(["cpu:0", "cpu:1+autodiff"], 30)

    assert repr(placement) == (
        "LayerPlacement(input='cpu:0', hidden=('cpu:0',) * 15 + ('cpu:1+autodiff',) * 15, output='cpu:1+autodiff')"
    )
    assert (
        repr(LayerPlacement(A, [A, B], B)) == "LayerPlacement(input='cpu:0', hidden=('cpu:0', 'cpu:1'), output='cpu:1')"
    )
    assert repr(placement.stages()) == "[LayerStage('cpu:0', 15), LayerStage('cpu:1+autodiff', 15)]"


VALUES = [
    LayerPlacement(A, [A, B], B),
    LayerStage(A, 2),
    LayerMemory(1, [2, 2], OutputMemory.after_hidden(3)),
    OutputMemory.with_input(4),
    DeviceMemory(A, 5),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_each_of_the_five_is_a_frozen_value_that_copies_to_an_equal_one(value):
    """P12: dataclasses; nothing can be assigned, and a copy, a pickled one and the repr's are equal."""
    for field in dataclasses.fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, getattr(value, field.name))
    names = {type(one).__name__: type(one) for one in VALUES}

    for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value)), eval(repr(value), names)):
        assert again == value
        assert hash(again) == hash(value)
    assert dataclasses.replace(value) == value


def test_later_changes_of_what_a_placement_was_made_of_have_no_effect():
    """P12, P24: it keeps a tuple of its own."""
    hidden, stages, sizes = [A, B], [LayerStage(A, 1), LayerStage(B, 1)], [1, 2]
    made = [LayerPlacement(A, hidden, B), LayerPlacement.from_stages(stages)]
    memory = LayerMemory(0, sizes, OutputMemory.after_hidden(0))
    for given_list in (hidden, stages, sizes):
        given_list.clear()

    assert made == [LayerPlacement(A, [A, B], B)] * 2
    assert memory.hidden == (1, 2)


# --- refusals ---


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: LayerPlacement.from_stages([]), ["from_stages", "at least one"]),
        (lambda: LayerPlacement.even([], 0), ["even", "0", "at least one"]),
        (lambda: LayerPlacement.even([], 3), ["even", "3", "at least one"]),
        (lambda: LayerPlacement.even([A], -1), ["even", "num_hidden_layers", "-1"]),
        (lambda: LayerPlacement.even([A], 2.0), ["even", "num_hidden_layers", "2.0"]),
        (lambda: LayerPlacement.even([A, "gpu:0"], 1), ["even", "devices[1]", "'gpu:0'"]),
        (lambda: LayerPlacement.even("cpu:0", 1), ["even", "devices", "'cpu:0'"]),
        (lambda: LayerPlacement.from_stages([LayerStage(A, 1), (B, 2)]), ["stages[1]", "LayerStage"]),
        (lambda: LayerPlacement.from_stages(LayerStage(A, 1)), ["stages", "LayerStage('cpu:0', 1)"]),
        (lambda: LayerStage(A, -2), ["LayerStage", "num_hidden_layers", "-2"]),
        (lambda: LayerStage(A, True), ["LayerStage", "num_hidden_layers", "True"]),
        (lambda: LayerStage(A, "3"), ["LayerStage", "num_hidden_layers", "'3'"]),
        (lambda: LayerStage(3, 1), ["LayerStage", "device", "3"]),
        (lambda: LayerPlacement(A, "cpu:0", A), ["hidden", "'cpu:0'"]),
        (lambda: LayerPlacement(A, {A, B}, A), ["hidden", "sequence"]),
        (lambda: LayerPlacement(A, {"cpu:0": 1}, A), ["hidden", "sequence"]),
        (lambda: LayerPlacement(A, A, A), ["hidden", "sequence"]),
        (lambda: LayerPlacement(A, None, A), ["hidden", "None"]),
    ],
)
def test_what_is_no_placement_is_refused_with_the_argument_and_its_value(call, words):
    """P11, P12, P15, P18."""
    with pytest.raises(PlacementError) as refusal:
        call()

    assert all(word in str(refusal.value) for word in words)


@pytest.mark.parametrize(
    ("devices", "layer"),
    [(["gpu", A, A, A], "input"), ([A, A, None, A], 1), ([A, "cpu:x", 7, A], 0), ([A, A, A, "cuda"], "output")],
)
def test_a_layer_without_a_device_is_named(devices, layer):
    """P12: `layer` is the first hidden layer that has none, or the end that has none."""
    with pytest.raises(PlacementError) as refusal:
        LayerPlacement(devices[0], devices[1:-1], devices[-1])

    wrong = devices[{"input": 0, "output": -1}.get(layer, layer if isinstance(layer, str) else layer + 1)]
    assert refusal.value.layer == layer
    assert repr(wrong) in str(refusal.value)


def test_a_placement_error_carries_what_it_is_told_and_is_a_value_error_of_modules():
    """DESIGN, Errors: each field is None unless given, and all survive pickling."""
    bare = PlacementError("no")
    full = PlacementError("no", layer=3, path="linear.weight", expected=A, found=B)

    assert (bare.layer, bare.path, bare.expected, bare.found) == (None, None, None, None)
    assert isinstance(bare, ModuleError | ValueError)
    again = pickle.loads(pickle.dumps(full))
    assert (str(again), again.layer, again.path, again.expected, again.found) == ("no", 3, "linear.weight", A, B)


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (ModuleError, (EngineError, ValueError)),
        (PathError, (ModuleError,)),
        (GroupError, (ModuleError,)),
        (FrozenModuleError, (ModuleError, AttributeError)),
        (PlacementError, (ModuleError,)),
    ],
)
def test_each_error_of_modules_is_also_what_a_user_of_python_would_catch(error, bases):
    """DESIGN, Errors."""
    assert all(issubclass(error, base) for base in bases)


def test_edits_do_what_they_say():
    """The edits that laws of refusals are made of."""
    placement = LayerPlacement(A, [A, B], C)

    assert Edit("change", 0, B).apply(placement) == LayerPlacement(B, [A, B], C)
    assert Edit("change", 3, B).apply(placement) == LayerPlacement(A, [A, B], B)
    assert Edit("swap", 2).apply(placement) == LayerPlacement(A, [A, C], B)
    assert Edit("drop", 0).apply(placement) == LayerPlacement(A, [B], C)
    assert Edit("add", 2, A).apply(placement) == LayerPlacement(A, [A, B, A], C)
