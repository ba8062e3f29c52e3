"""`LayerPlacement.by_memory`: as level as the order permits, None where nothing fits, the rules step by step."""

from fractions import Fraction
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from engine import Device, Memory
from modules.parallel import DeviceMemory, LayerMemory, LayerPlacement, OutputMemory, PlacementError
from tests.parallel import by_memory_oracle as oracle
from tests.parallel.strategies import MemoryProblem, flagged, problems, rounded_problems

MIB = 2**20
NONE_OF_UPSTREAM = MemoryProblem((2_389_555_094,), 2_133_818_045, (), 0, False)  # P23k: it fits, and upstream says None

# Capacities, input / hidden / output bytes, whether the output shares the input's device, where the layers go
# ("input hidden output", a letter per layer) or None, and the largest load ÷ capacity, rounded.
WORKED = [
    ((100, 200), 0, (10,) * 6, 0, False, "A AABBBB B", 0.2),
    ((100, 100), 60, (10,) * 4, 0, False, "A BBBB B", 0.6),
    ((40, 40), 10, (10,) * 4, 10, True, "A ABBB A", 0.75),
    ((100, 100), 20, (10,) * 4, 20, True, "A BBBB A", 0.4),
    ((100, 100), 20, (10,) * 4, 20, False, "A AABB B", 0.4),
    ((10, 10), 0, (8,) * 3, 0, False, None, None),
    ((100, 100, 100), 0, (10,) * 7, 0, False, "A AABBBCC C", 0.3),
    ((5, 100), 10, (10,) * 3, 10, False, "B BBB B", 0.5),
    ((0, 100), 0, (10,) * 2, 0, False, "A BB B", 0.2),
    ((100, 50, 100), 20, (30,) * 4, 40, False, "A AABC C", 0.8),
    ((100, 10, 100), 0, (40,) * 4, 0, False, "A AACC C", 0.8),
    ((60, 100), 40, (30,) * 3, 5, False, "A BBB B", 0.95),
    ((50, 60, 7), 0, (50, 0, 0), 0, False, "A BCC C", 0.833),
    ((1000, 1000, 1000), 10, (10,), 10, False, "A B C", 0.01),
    ((100, 100), 10, (), 10, False, "A  B", 0.1),
    ((100, 100), 10, (), 10, True, "A  A", 0.2),
    ((100,), 50, (50,), 0, False, "A A A", 1),
    ((100,), 50, (51,), 0, False, None, None),
    ((0,), 0, (0,), 0, False, "A A A", 0),
    ((300 * MIB, 400 * MIB), 100 * MIB, (14 * MIB,) * 30, 0, True, "A " + "A" * 9 + "B" * 21 + " A", 0.753),
]


def places(problem: MemoryProblem, placement: LayerPlacement) -> list[int]:
    """The index of each layer's device in the order in which the layers are laid, from distinct devices."""
    output = () if problem.shares_input else (placement.output,)
    return [device.index for device in (placement.input, *placement.hidden, *output)]


def worked(row: tuple) -> tuple[MemoryProblem, LayerPlacement | None]:
    """The problem and the answer of a row of the table."""
    problem, answer = MemoryProblem(*row[:5]), row[5]
    if answer is None:
        return problem, None
    first, hidden, last = ([Device.cpu("ABC".index(letter)) for letter in part] for part in answer.split(" "))
    return problem, LayerPlacement(first[0], hidden, last[0])


def assert_as_the_rules_say(problem: MemoryProblem) -> None:
    """The answer is that of the rules, run step by step by the oracle."""
    found = problem.solve()

    assert (None if found is None else places(problem, found)) == oracle.places(problem.capacities, problem.sizes)


@pytest.mark.parametrize("row", WORKED, ids=lambda row: f"{row[0]} {row[1]} {row[5]}")
def test_by_memory_is_the_table_of_the_rules(row):
    """P23a to P23j, L124: the examples worked out beside the rules, with the share that they take."""
    problem, placement = worked(row)

    found = problem.solve()

    assert found == placement
    if found is not None:
        ratio = oracle.fullest(problem.capacities, problem.sizes, places(problem, found))
        assert round(float(ratio), 3) == row[6]


@given(problem=problems())
@example(problem=MemoryProblem((2, 2), 1, (1,), 1, False))
def test_no_split_in_order_is_more_level_by_more_than_the_halving_leaves(problem):
    """L121, P23d, P23g, P23h: brute force over all splits, in exact fractions."""
    found = problem.solve()
    least = oracle.least_fullest(problem.capacities, problem.sizes)
    event(f"fits: {least is not None}")

    if found is not None:
        ratio = oracle.fullest(problem.capacities, problem.sizes, places(problem, found))
        assert ratio is not None, "a load passes its capacity"
        assert ratio - least < Fraction(1, 2**47)


@given(problem=problems())
@example(problem=NONE_OF_UPSTREAM)
@example(problem=MemoryProblem((2**31 + 1, 2**31 + 1), 2**31 + 1, (), 2**31 + 2, False))
def test_none_means_that_no_split_in_order_stays_within_the_capacities(problem):
    """L122, P23c, P23d, P23k: exactly; also where float64 rounds the last device's target below what is left."""
    least = oracle.least_fullest(problem.capacities, problem.sizes)

    assert (problem.solve() is None) == (least is None)


@given(
    head=st.integers(2**30, 2**37),
    slack=st.integers(0, 2**37),
    zeros=st.integers(0, 3),
    shares_input=st.booleans(),
    devices=st.integers(1, 3),
)
def test_layers_of_no_bytes_at_the_end_are_never_what_does_not_fit(head, slack, zeros, shares_input, devices):
    """L122, P23i, P23k: the last device takes them, whatever its rounded target."""
    problem = MemoryProblem((head + slack,) * devices, head, (0,) * zeros, 0, shares_input)

    assert problem.solve() is not None


@given(load=st.lists(st.integers(0, 2**40), min_size=1, max_size=5), shares_input=st.booleans())
def test_one_device_takes_all_layers_exactly_if_their_sum_is_not_above_its_capacity(load, shares_input):
    """L122: one byte above what there is, is too much."""
    first, hidden, output = load[0], tuple(load[1:-1]), load[-1] if len(load) > 1 else 0
    total = first + sum(hidden) + output

    assert MemoryProblem((total,), first, hidden, output, shares_input).solve() is not None
    if total:
        assert MemoryProblem((total - 1,), first, hidden, output, shares_input).solve() is None


@given(layers=st.lists(st.integers(0, 9), max_size=4), shares_input=st.booleans())
def test_without_a_device_there_is_no_placement(layers, shares_input):
    """L122, P23j: whatever the layers, there is an input layer to place."""
    assert LayerPlacement.by_memory([], LayerMemory(0, layers, OutputMemory(0, shares_input))) is None


@given(problem=problems())
def test_by_memory_keeps_order_and_roles(problem):
    """L123, P23a, P23b, P23f: indices never decrease, loads are within capacities, a shared output is the input's."""
    found = problem.solve()
    event(f"placed: {found is not None}")

    if found is not None:
        split = places(problem, found)
        assert all(one <= other for one, other in pairwise(split))
        assert len(found.hidden) == len(problem.hidden)
        assert oracle.fullest(problem.capacities, problem.sizes, split) is not None
        if problem.shares_input:
            assert found.output == found.input


def test_equal_layers_on_equal_devices_differ_by_at_most_one():
    """L123, P23h: at least as many layers as devices; the ends take no bytes, or as much as the others."""
    for width in range(1, 7):
        for number in range(width, 25):
            for ends in (0, 10):
                problem = MemoryProblem((1000,) * width, ends, (10,) * number, ends, shares_input=False)
                found = problem.solve()
                layers = found.hidden if ends == 0 else (found.input, *found.hidden, found.output)
                shares = [layers.count(device) for device in problem.names]
                assert max(shares) - min(shares) <= 1, problem


@given(problem=problems(), exponent=st.integers(0, 10))
def test_another_unit_of_bytes_gives_the_same_placement(problem, exponent):
    """L123: all sizes and capacities times a power of two."""
    assert problem.times(2**exponent).solve() == problem.solve()


@given(problem=problems(), data=st.data())
def test_a_device_that_is_listed_twice_has_its_two_runs_in_turn(problem, data):
    """L123, P23h: names play no part in the sizes of runs; flags of devices are kept."""
    names = [Device.cpu(data.draw(st.integers(0, 2))) for _ in problem.capacities]
    names = data.draw(flagged(names))
    distinct = problem.solve()

    found = problem.solve(names)

    if distinct is None:
        assert found is None
    else:
        devices = [names[device.index] for device in (distinct.input, *distinct.hidden, distinct.output)]
        assert [str(device) for device in (found.input, *found.hidden, found.output)] == [str(d) for d in devices]


@given(problem=problems())
@example(problem=NONE_OF_UPSTREAM)
@example(problem=MemoryProblem((11, 28, 20, 14, 28), 6, (16, 2, 7, 2, 3, 3), 9, False))
@example(problem=MemoryProblem((4, 7, 5), 2, (1, 0, 2, 0, 1, 2, 2), 1, True))
@example(problem=MemoryProblem((3312667, 3312667), 555503, (149525,), 620039, False))
@example(problem=MemoryProblem((2, 12, 2), 2, (0,), 8, False))  # a limit is not rounded up
@example(problem=MemoryProblem((77, 2, 14), 13, (4, 23), 9, False))
@example(problem=MemoryProblem((106394003993,) * 4, 23997515341, (23997515341, 0), 23997515341, False))  # P23m: product
def test_by_memory_is_the_rules_step_by_step(problem):
    """L124, P23a to P23f, P23i to P23n: element for element, also where several splits are equally level."""
    event(f"placed: {problem.solve() is not None}")

    assert_as_the_rules_say(problem)


@given(problem=rounded_problems())
@example(problem=MemoryProblem((2**60 - 1, 2**60 - 1), 2**60, (2**58 + 1,) * 3, 0, False))
@example(
    problem=MemoryProblem(
        (727503307337850, 3637516536689250), 162090014622735, (49617356679383,), 1008919499831197, False
    )
)
@example(
    problem=MemoryProblem(
        (864564382460753, 1729128764921506), 185772222083297, (85033484710387,), 456577928876976, False
    )
)
@example(problem=MemoryProblem((219766920791897632,) * 4, 0, (), 53319559900914994, False))
@example(problem=MemoryProblem((80140205504425498,) * 2, 14943925780789589, (), 0, False))
@example(
    problem=MemoryProblem((206741046899895558,) * 2, 40911607915097548, (40911607915097548,), 40911607915097548, False)
)
@example(problem=MemoryProblem((677232391554430385,), 0, (), 677232391554430385, False))  # its float is a little less
def test_by_memory_is_the_rules_step_by_step_where_every_step_rounds(problem):
    """L124, P23b, P23d, P23e, P23l to P23n: beyond 2**53, and where 47 or 49 halvings give another placement."""
    event(f"placed: {problem.solve() is not None}")

    assert_as_the_rules_say(problem)


# --- numbers ---


def test_the_worked_case_that_upstream_does_not_place_is_placed():
    """P23k: one device that has more than enough; upstream's rounded target leaves the output layer over."""
    problem = NONE_OF_UPSTREAM

    assert oracle.places(problem.capacities, problem.sizes, upstream=True) is None
    assert problem.solve() == LayerPlacement("cpu:0", [], "cpu:0")


def test_a_limit_never_passes_the_capacity_though_its_float_does():
    """P23l: 2**53 + 3 rounds up to 2**53 + 4, which is a byte more than there is."""
    capacity = 2**53 + 3

    assert int(float(capacity)) > capacity
    assert MemoryProblem((capacity,), capacity + 1, (), 0, False).solve() is None
    assert MemoryProblem((capacity,), capacity, (), 0, False).solve() == LayerPlacement("cpu:0", [], "cpu:0")


def test_sums_beyond_64_bits_are_exact():
    """P23l: three layers of 2**63 bytes wrap around to 2**63, and to 0 with a fourth; upstream panics or wraps."""
    half, most = 2**63, 2**64 - 1

    assert MemoryProblem((most,), half, (half, half), half, False).solve() is None
    assert MemoryProblem((most,) * 4, half, (half, half), half, False).solve() == LayerPlacement(
        "cpu:0", ["cpu:1", "cpu:2"], "cpu:3"
    )
    assert MemoryProblem((most,), most, (), 1, True).solve() is None


def test_integers_of_numpy_are_taken_and_do_not_wrap():
    """P23l, P23m: kept as Python's ints."""
    sizes = np.array([2**63, 2**63], dtype=np.uint64)
    memory = LayerMemory(sizes[0], sizes, OutputMemory.after_hidden(np.int8(100)))
    device = DeviceMemory("cpu:0", np.uint64(2**64 - 1))

    numbers = [memory.input, *memory.hidden, memory.output.nbytes, device.capacity]
    assert [type(number) for number in numbers] == [int] * 5
    assert LayerPlacement.by_memory([device], memory) is None


NO_SIZES = [-1, 2**64, 1.0, 10.5, "10", None, True, np.float32(3), np.bool_(True)]


@pytest.mark.parametrize("size", NO_SIZES, ids=repr)
def test_what_is_no_number_of_bytes_is_refused_with_its_place(size):
    """P23l: negative, no integer, or beyond 2**64 - 1."""
    zero = OutputMemory.after_hidden(0)
    calls = {
        "DeviceMemory: capacity": (lambda: DeviceMemory("cpu:0", size), None),
        "LayerMemory: input": (lambda: LayerMemory(size, [1], zero), "input"),
        "LayerMemory: hidden[1]": (lambda: LayerMemory(0, [1, size, size], zero), 1),
        "OutputMemory: nbytes is": (lambda: OutputMemory.after_hidden(size), "output"),
        "OutputMemory: nbytes": (lambda: OutputMemory.with_input(size), "output"),
    }
    for place, (call, layer) in calls.items():
        with pytest.raises(PlacementError) as refusal:
            call()
        assert place in str(refusal.value)
        assert repr(size) in str(refusal.value)
        assert refusal.value.layer == layer


def test_the_largest_sizes_and_capacities_are_taken():
    """P23l: 2**64 - 1 is the last."""
    most = 2**64 - 1
    memory = LayerMemory(most, [most], OutputMemory.after_hidden(most))

    found = LayerPlacement.by_memory([DeviceMemory(f"cpu:{index}", most) for index in range(3)], memory)
    assert found == LayerPlacement("cpu:0", ["cpu:1"], "cpu:2")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: LayerMemory(0, [], 5), ["output", "5", "after_hidden"]),
        (lambda: LayerMemory(0, 5, OutputMemory.after_hidden(0)), ["hidden", "5"]),
        (lambda: LayerMemory(0, "12", OutputMemory.after_hidden(0)), ["hidden", "'12'"]),
        (lambda: DeviceMemory("gpu:0", 1), ["DeviceMemory", "'gpu:0'"]),
        (
            lambda: LayerPlacement.by_memory([("cpu:0", 1)], LayerMemory(0, [], OutputMemory.after_hidden(0))),
            ["devices[0]"],
        ),
        (lambda: LayerPlacement.by_memory([DeviceMemory("cpu:0", 1)], 100), ["memory", "100", "LayerMemory"]),
        (lambda: DeviceMemory.of("cpu:0"), ["devices", "'cpu:0'"]),
        (lambda: DeviceMemory.of(["cpu:0", "gpu"]), ["devices[1]", "'gpu'"]),
        (lambda: DeviceMemory.of(["cpu:0"], reserve=-5), ["reserve", "-5"]),
    ],
)
def test_what_are_no_memories_is_refused_with_the_argument_and_its_value(call, words):
    """P23, P23l."""
    with pytest.raises(PlacementError) as refusal:
        call()

    assert all(word in str(refusal.value) for word in words)


def test_an_output_memory_says_where_the_output_layer_runs():
    """P23: the same bytes in the two places are two values."""
    after, shared = OutputMemory.after_hidden(7), OutputMemory.with_input(7)

    assert (after.nbytes, after.shares_input) == (7, False)
    assert (shared.nbytes, shared.shares_input) == (7, True)
    assert after != shared
    assert repr([after, shared]) == "[OutputMemory.after_hidden(7), OutputMemory.with_input(7)]"


# --- what devices have ---


@given(
    listed=st.lists(
        st.sampled_from([Device.cpu(0), Device.cpu(1), Device.cpu(2).autodiff(), Device.cuda(0), Device.cuda(1)])
    ),
    free=st.integers(0, 2**37),
    reserve=st.one_of(st.integers(0, 2**10), st.integers(0, 2**38)),
)
def test_no_byte_of_a_piece_of_hardware_is_promised_twice(listed, free, reserve):
    """CPU devices share the machine's free memory evenly, each GPU has its own, and the reserve stays free on each."""
    asked = []

    def memory(self):
        asked.append(self)
        return Memory(free + self.index * 1000 if self.kind == "cuda" else free, 2**40)

    with mock.patch.object(Device, "memory", memory):
        found = DeviceMemory.of(listed, reserve=reserve)

    assert [str(entry.device) for entry in found] == [str(device) for device in listed]
    for hardware, have in [("cpu", free), (Device.cuda(0), free), (Device.cuda(1), free + 1000)]:
        entries = [entry for entry in found if hardware in (entry.device.kind, entry.device)]
        usable = max(0, have - reserve)
        per_device = {entry.device: sum(e.capacity for e in entries if e.device == entry.device) for entry in entries}
        if entries:
            assert usable - len(entries) < sum(per_device.values()) <= usable
            assert max(per_device.values()) - min(per_device.values()) <= len(entries)
    assert len(asked) == len({"cpu" if device.kind == "cpu" else device for device in listed})


def test_cpu_devices_have_what_the_machine_has_free():
    """The engine is really asked: something, and no more than there is in all."""
    first, second = DeviceMemory.of(["cpu:0", "cpu:1"])

    assert 0 < first.capacity == second.capacity
    assert first.capacity + second.capacity <= Device.cpu(0).memory().total


def test_a_placement_by_what_devices_have_takes_a_model_that_fits():
    """P23: devices are asked, layers are told; nothing is worked out by hand."""
    found = LayerPlacement.by_memory(
        DeviceMemory.of(["cpu:0", "cpu:1"]), LayerMemory(100, [100] * 6, OutputMemory.after_hidden(100))
    )

    assert found == LayerPlacement("cpu:0", ["cpu:0"] * 3 + ["cpu:1"] * 3, "cpu:1")
