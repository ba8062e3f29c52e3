"""The split model against a placement and bits: the third state machine of the suite (L92 to L101, L116, L117).

A model is wrapped, unwrapped, moved, loaded, trained, run and decoded with, in
any order, and each step's copies are predicted. All of the last versions are
looked at again after every step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from .calls import applied, built, output, read
from .law import law
from .layered import REMEMBERING, ROWS, LayeredSpec, LayerName, Placement, Signal, placement_of
from .layered_expected import CLOSE, Crossings, close, course, crossed, misplaced
from .layered_generators import Decoding, decodings, with_other_values, without_lazy
from .layered_gradients import Pulled, pulled
from .layered_operations import CacheMeta, Decode, Forward, GetPlacement, NewCache, SeeCache, Unwrap, Wrap
from .model_training import Optimizer, clipped
from .operations import CollectDevices, Fork, LoadRecord, ToDevice, ToRecord, Train, Valid
from .protocol import Adapter, Done, Handle, Refused
from .spec_tree import ParamSpec, RunningSpec, numpy_dtype, tensors, tied_with
from .training_generators import LIMIT, OPTIMIZERS, cotangents_of
from .training_operations import NewOptimizer, TrainStep

KEPT: Final = 6
BACK: Final = st.integers(0, 3)
PLACES: Final = st.integers(0, 3)
NAMES: Final = ("a", "b")
FAILS: Final = st.sampled_from((False,) * 7 + (True,))
STEPS: Final = 30


@dataclass(frozen=True)
class State:
    """What a version is: its values by path, the devices of these, and its placement if it is wrapped."""

    spec: LayeredSpec
    bits: Mapping[str, Any]
    places: Mapping[str, str]
    placement: Placement | None = None

    @cached_property
    def key(self) -> Any:
        """Equal for versions of equal values."""
        return tuple(self.bits.values())

    def read(self, path: str) -> Any:
        """A value as NumPy has it."""
        bits = self.bits[path]
        return np.frombuffer(bits.data, numpy_dtype(bits.dtype)).reshape(bits.shape)

    def there(self) -> dict[LayerName, dict[str, str]]:
        """For each layer the device of each value in it."""
        return {
            name: {inner: self.places[f"{self.spec.paths[name]}.{inner}"] for inner in held}
            for name, held in self.spec.there.items()
        }

    def fitting(self, otherwise: str) -> Placement:
        """The placement by which this is accepted; layers that hold nothing go anywhere."""
        return placement_of(next(iter(values.values()), otherwise) for values in self.there().values())

    def moved(self, device: str) -> "State":
        placement = self.placement and self.placement.all_on(device)
        return replace(self, places=dict.fromkeys(self.places, device), placement=placement)

    def copies(self, device: str) -> Crossings:
        """What a move of all of it copies: each distinct tensor once."""
        made: dict[tuple[str, str], tuple[int, int]] = {}
        for path, at in self.places.items():
            if at != device and path == tied_with(self.spec.tree, path)[0]:
                copies, nbytes = made.get((at, device), (0, 0))
                made[at, device] = copies + 1, nbytes + len(self.bits[path].data)
        return made


@dataclass
class Sequence:
    """What the caches of a name have seen: positions, each by a version of some values; and whether they are usable."""

    seen: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    devices: tuple[str, ...] = ()
    valid: bool = True

    def fits(self, state: State) -> bool:
        """Whether what they store is on the devices of a version's layers."""
        return not self.seen or self.stored(state, self.devices) == self.stored(state, hidden_of(state))

    def extend(self, position: int, state: State, failed: bool) -> None:
        """A version has run a position."""
        self.seen.append(position)
        self.values.append(state.key)
        self.devices = hidden_of(state)
        self.valid = not (failed and self.devices)

    def caches(self, state: State) -> tuple[CacheMeta, ...]:
        """What is to be seen of them."""
        return tuple(CacheMeta(len(self.seen), device, self.valid) for device in self.stored(state, self.devices))

    def stored(self, state: State, devices: tuple[str, ...]) -> tuple[str | None, ...]:
        """Of these devices those of layers whose caches store values."""
        steps = [layer.step for layer in state.spec.layers[1:-1]]
        return tuple(d if step in REMEMBERING else None for d, step in zip(devices, steps, strict=True))


def hidden_of(state: State) -> tuple[str, ...]:
    """The devices of the hidden layers of a version that is wrapped."""
    assert state.placement is not None
    return state.placement.hidden


def check_step(before: State, after: State, expected: Pulled, optimizer: str) -> None:
    """What has no gradient is as it was; what has one is what NumPy makes of it.

    The direction of Adam, which divides by a gradient, may be that of a rounding
    where the gradient is none else; so only its length is looked at.
    """
    kind, settings = OPTIMIZERS[optimizer]
    paths = list(before.bits)
    first = {path: tied_with(before.spec.tree, path)[0] for path in paths}
    summed: dict[int, Any] = {}
    for path, gradient in expected.gradients.items():
        number = paths.index(first[path])
        summed[number] = summed.get(number, 0) + gradient
    gradients = clipped(summed, LIMIT)
    for path in paths:
        number, value, found = paths.index(first[path]), before.read(path), after.read(path)
        if number not in gradients:
            assert after.bits[path] == before.bits[path]
        elif kind == "SGD":
            new = Optimizer(kind, dict(settings)).updated(number, value, gradients[number])
            assert np.all(np.abs(found - new) <= CLOSE * max(expected.peak, *np.abs(value).flat, 1.0))
        else:
            most = dict(settings)["lr"] * (1 + dict(settings)["weight_decay"] * np.abs(value))
            assert np.all(np.abs(found - value) <= most * (1 + CLOSE))


class SplitMachine(RuleBasedStateMachine):
    """Calls of an self.adapter, each beside what it does to a `State`."""

    adapter: Adapter

    def __init__(self) -> None:
        super().__init__()
        self.versions: list[tuple[Handle, State]] = []
        self.outputs: dict[Any, Signal] = {}
        self.trained: dict[Any, Mapping[str, Any]] = {}
        self.sequences: dict[str, Sequence] = {}

    @initialize(data=st.data())
    def build(self, data: Any) -> None:
        """Two versions of one model, with other values."""
        case: Decoding = data.draw(decodings(self.adapter.grammar, dtype="float64"))
        spec = without_lazy(case.spec)
        self.case = replace(case, spec=spec)
        self.positions = sum(case.lengths)
        self.cotangents = cotangents_of(spec, case.whole, 0)
        first = built(self.adapter, spec)
        other = output(self.adapter, built(self.adapter, with_other_values(spec)), ToRecord())
        for handle in (applied(self.adapter, first, LoadRecord(other)), first):
            bits = {path: read(self.adapter, handle, path) for path in tensors(spec.tree)}
            places = {path: node.value.hardware for path, node in tensors(spec.tree).items()}
            self.versions.append((handle, State(spec, bits, places)))
        self.adapter.log()

    # Rules

    @rule(back=BACK, place=PLACES, at=st.integers(0, 9), right=st.sampled_from((True, True, False)))
    def wrap(self, back: int, place: int, at: int, right: bool) -> None:
        """With the placement that fits, or with one layer of it elsewhere (L95, L96)."""
        (handle, state), device = self.version(back), self.device(place)
        handle = applied(self.adapter, handle, Unwrap()) if state.placement else handle
        devices = list(state.fitting(device).layers)
        if not right:
            devices[at % len(devices)] = device
        placement = placement_of(devices)
        wrong = misplaced(state.there(), placement)
        answer = self.adapter.apply(handle, Wrap(placement))
        event(f"wrap: {'refused' if wrong else 'done'}")
        assert isinstance(answer, Refused) == (wrong is not None)
        if not isinstance(answer, Refused):
            self.add(answer.handle, replace(state, placement=placement))
        assert self.adapter.log() == ()

    @rule(back=BACK)
    def unwrap(self, back: int) -> None:
        """(L95)."""
        handle, state = self.version(back)
        if state.placement:
            self.add(applied(self.adapter, handle, Unwrap()), replace(state, placement=None))
        assert self.adapter.log() == ()

    @rule(back=BACK, place=PLACES, kind=st.sampled_from((Fork, ToDevice)))
    def move(self, back: int, place: int, kind: Any) -> None:
        """(L31, L100)."""
        (handle, state), device = self.version(back), self.device(place)
        self.add(applied(self.adapter, handle, kind(device)), state.moved(device))
        assert crossed(self.adapter.log()) == state.copies(device)

    @rule(back=BACK, source=BACK)
    def load(self, back: int, source: int) -> None:
        """The values of another version, however that is placed (L101)."""
        handle, state = self.version(back)
        giver, given = self.version(source)
        record = output(self.adapter, giver, ToRecord())
        self.adapter.log()
        recorded = {
            path: given.bits[path]
            for path, node in tensors(state.spec.tree).items()
            if isinstance(node, (ParamSpec, RunningSpec))
        }
        assert {entry.path: entry.bits for entry in record.entries} == recorded
        self.add(applied(self.adapter, handle, LoadRecord(record)), replace(state, bits={**state.bits, **recorded}))
        self.adapter.log()

    @rule(back=BACK, place=PLACES)
    def forward(self, back: int, place: int) -> None:
        """(L92, L94)."""
        device = self.device(place)
        handle, state = self.wrapped(back, device)
        signal = self.case.whole.on(device)
        expected = course(state.spec, signal, state.read, state.placement)

        found = output(self.adapter, handle, Forward(signal))

        assert crossed(self.adapter.log()) == expected.crossings
        self.compare(found, expected.output, expected.peak, ("forward", state.key))

    @rule(back=BACK, place=PLACES, optimizer=st.sampled_from(tuple(OPTIMIZERS)))
    def train(self, back: int, place: int, optimizer: str) -> None:
        """A step of training, and a validation snapshot of what it gives (L93, L94, L120).

        It copies the signal and its gradients, and changes what has a gradient, by as much as NumPy says.
        """
        device = self.device(place)
        handle, state = self.wrapped(back, device)
        signal = self.case.whole.on(device)
        expected = pulled(state.spec, signal, state.read, self.cotangents, lambda path: True, state.placement)
        training = applied(self.adapter, handle, Train())
        output(self.adapter, training, NewOptimizer("new", *OPTIMIZERS[optimizer]))
        self.adapter.log()

        answer = self.adapter.apply(training, TrainStep("new", signal, self.cotangents, LIMIT))

        event(f"train: {optimizer if expected.gradients else 'refused'}")
        assert crossed(self.adapter.log()) == expected.crossings
        assert isinstance(answer, Done) == bool(expected.gradients)
        if isinstance(answer, Refused):
            assert answer.kind == "autodiff"
            return
        made = applied(self.adapter, answer.handle, Valid())
        after = replace(state, bits={path: read(self.adapter, made, path) for path in state.bits})
        check_step(state, after, expected, optimizer)
        assert self.trained.setdefault((optimizer, state.key), after.bits) == after.bits
        self.add(made, after)

    @rule(name=st.sampled_from(NAMES))
    def new_cache(self, name: str) -> None:
        """(L117)."""
        handle, state = self.version(0)
        caches = output(self.adapter, handle, NewCache(name))
        assert caches == (CacheMeta(0, None, True),) * (len(state.spec.layers) - 2)
        self.sequences[name] = Sequence()

    @precondition(lambda self: self.sequences)
    @rule(back=BACK, place=PLACES, name=st.sampled_from(NAMES), token=st.integers(0, 7), fails=FAILS)
    def decode(self, back: int, place: int, name: str, token: int, fails: bool) -> None:
        """One position more (L114, L116), unless the caches are elsewhere or unusable, or a layer raises (L117)."""
        device = self.device(place)
        handle, state = self.wrapped(back, device)
        name = name if name in self.sequences else next(iter(self.sequences))
        sequence, position = self.sequences[name], token % self.positions
        if len(sequence.seen) == ROWS:
            return
        refused = not sequence.valid or not sequence.fits(state)
        piece = self.case.piece(position, position + 1).on(device)
        fail_at = state.spec.names[token % len(state.spec.names)] if fails else None

        answer = self.adapter.apply(handle, Decode(piece, name, fail_at=fail_at))

        event(f"decode: {'refused' if refused else 'failed' if fails else 'done'}")
        assert isinstance(answer, Refused) == (refused or fails)
        if refused:
            assert answer.kind != "layer"
            assert self.adapter.log() == ()
            return
        expected = course(state.spec, piece, state.read, state.placement, fail_at)
        assert crossed(self.adapter.log()) == expected.crossings
        sequence.extend(position, state, fails)
        if fails:
            assert answer.kind == "layer"
            return
        assert output(self.adapter, handle, SeeCache(name)) == sequence.caches(state)
        if {*sequence.values} == {state.key}:
            whole = course(state.spec, self.tokens(sequence.seen, device), state.read, state.placement)
            self.compare(answer.output, self.last(whole.output), whole.peak, (*sequence.seen, state.key))

    # What the rules share

    def version(self, back: int) -> tuple[Handle, State]:
        """The version that many before the newest."""
        return self.versions[max(0, len(self.versions) - 1 - back)]

    def device(self, place: int) -> str:
        """A device of the grammar."""
        devices = self.adapter.grammar.devices
        return devices[place % len(devices)]

    def wrapped(self, back: int, device: str) -> tuple[Handle, State]:
        """That version, wrapped if it is not; layers that hold nothing run on the device."""
        handle, state = self.version(back)
        if state.placement is None:
            state = replace(state, placement=state.fitting(device))
            handle = applied(self.adapter, handle, Wrap(state.fitting(device)))
        return handle, state

    def add(self, handle: Handle, state: State) -> None:
        self.versions = [*self.versions[-KEPT + 1 :], (handle, state)]

    def tokens(self, positions: list[int], device: str) -> Signal:
        """The sequence of these positions of the drawn one."""
        values = self.case.whole.on(device).values()
        rows = values[self.case.path].numpy()[positions]
        value = replace(values[self.case.path], shape=rows.shape, data=rows.tobytes())
        return self.case.whole.with_values({**values, self.case.path: value})

    def last(self, signal: Signal) -> Signal:
        """The last position of an output."""
        values = signal.values()
        rows = values[self.case.path].numpy()[-1:]
        value = replace(values[self.case.path], shape=rows.shape, data=rows.tobytes())
        return signal.with_values({**values, self.case.path: value})

    def compare(self, found: Signal, expected: Signal, peak: float, key: Any) -> None:
        """Close to what NumPy computes, and to the bit what any version with these values gave before."""
        assert close(found, expected, peak)
        assert self.outputs.setdefault(key, found.on("")) == found.on("")

    @invariant()
    def every_version_is_what_it_was(self) -> None:
        """(L10, L99, L100)."""
        for handle, state in self.versions:
            assert output(self.adapter, handle, GetPlacement()) == state.placement
            assert output(self.adapter, handle, CollectDevices()) == tuple(dict.fromkeys(state.places.values()))
            assert {path: read(self.adapter, handle, path) for path in state.bits} == state.bits


@law(
    "L92",
    "L93",
    "L94",
    "L96",
    "L99",
    "L100",
    "L101",
    "L116",
    "L117",
    "L120",
    needs=("parallel", "cache", "fork", "records", "transfer_log", "state.flags", "autodiff", "optimizers"),
)
def test_the_split_model_is_a_placement_bits_and_copies(adapter: Adapter, profile: settings) -> None:
    """Whatever is done with it, in whatever order; in runs of 30 steps, which find more than shorter ones."""
    split = type("SplitModel", (SplitMachine,), {"adapter": adapter})
    runs = max(10, profile.max_examples // 2)

    run_state_machine_as_test(split, settings=settings(profile, max_examples=runs, stateful_step_count=STEPS))
