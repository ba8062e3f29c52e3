"""Training state against a table: the first state machine of the suite (L34; L10, L20, L25, L35 and L44 for free).

Any calls, on any version of a module, each beside the row of `training_state`
that says what it does. All versions are kept; the last ones are looked at again
after every step, all of them at the end. Versions are picked by their distance
from the newest.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

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

from . import operations as op
from .calls import built, observed, output, read, runs
from .generators import Pool, devices, trees
from .group_expressions import Group, IdsAt, Paths
from .law import law
from .model_leaves import sum_of
from .observations import Bits, ValueMeta
from .protocol import Adapter, Done, Grammar, Handle, RefusalKind, Refused
from .record_generators import Builds, other_builds
from .schemes import Scheme, is_scheme
from .spec_tree import LORA, FlagSpec, Printed, RunningSpec, attached_to, lazy_paths, leaves
from .test_lazy import with_params
from .training_state import RefusalExpected, State, ValueState, start

STEPS: Final = 30
WATCHED: Final = 6


@dataclass(frozen=True, repr=False)
class Chosen(Printed):
    """A group: leaf number k of the tree is in it if bit k of `mask` is set; by paths or by ids."""

    mask: int
    by_ids: bool = False

    def group(self, paths: list[str]) -> Group:
        """The group, of a tree whose leaves have these paths."""
        some = tuple(path for place, path in enumerate(paths) if self.mask >> place & 1)
        return IdsAt(some) if self.by_ids else Paths(some)


BACK: Final = st.integers(0, 3)
PLACE: Final = st.integers(0, 3)
WHICH: Final = st.integers(0, 6)
GROUP: Final = st.none() | st.builds(Chosen, st.integers(1, 127), st.booleans())
EITHER: Final = st.booleans()
SCHEME: Final = st.sampled_from(
    (Scheme("Q8S"), Scheme("Q4F", "PackedU32"), Scheme("Q8F", whole="F16"), Scheme("Q4S", blocks=(1,), each="F16"))
)
OPTIONS: Final = op.LoadOptions(allow_partial=True, allow_unused=True)
"""Versions have other factors than the build that was recorded."""


@st.composite
def two_builds(draw: st.DrawFn, grammar: Grammar, remakes: bool = False) -> Builds:
    """A module, mostly of autodiff tensors that train, often with a running state and others; another build of it.

    One that is to be remade has factors.
    """
    others = (("adapted",),) if remakes else ((), ("running", "int"), ("running", "constant", "bool"))
    holding = draw(st.sampled_from(others))
    modes = ("autodiff", "mixed", "plain", "autodiff", "mixed") if grammar.autodiff else ("plain",)
    pool = Pool(draw(devices(grammar)), draw(st.sampled_from(modes)))
    target = draw(trees(grammar, holding=holding, pool=pool))
    if draw(EITHER):
        target = with_params(target, lambda param: replace(param, wish=True, lazy=False))
    elif draw(EITHER):
        target = with_params(target, lambda param: replace(param, wish=True))
    return Builds(draw(other_builds(target, grammar)), target)


def outcome(step: Callable[[], State]) -> State | RefusalKind:
    """What a step of the table gives, or the kind of refusal that must come instead."""
    try:
        return step()
    except RefusalExpected as refusal:
        return refusal.kind


class TrainingMachine(RuleBasedStateMachine):
    """Calls of an adapter, each beside the row of the table."""

    adapter: Adapter

    def __init__(self) -> None:
        super().__init__()
        self.versions: list[tuple[Handle, State]] = []

    @initialize(data=st.data())
    def build(self, data: Any) -> None:
        """A module, and a record of another build of it. Half of them are also quantized, adapted and materialized."""
        self.remakes = data.draw(EITHER)
        both = data.draw(two_builds(self.adapter.grammar, self.remakes))
        self.spec = both.target
        self.record = output(self.adapter, built(self.adapter, both.source), op.ToRecord())
        handle = built(self.adapter, self.spec)
        self.versions.append((handle, start(self.spec, self.adapter.meta(handle).ids())))
        self.flags = [path for path, node in leaves(self.spec).items() if isinstance(node, FlagSpec)]
        self.running = [path for path, node in leaves(self.spec).items() if isinstance(node, RunningSpec)]
        self.lazy = lazy_paths(self.spec)

    # Rules

    @rule(back=BACK)
    def train(self, back: int) -> None:
        self.call(back, op.Train())

    @rule(back=BACK)
    def valid(self, back: int) -> None:
        self.call(back, op.Valid())

    @rule(back=BACK, value=EITHER, group=GROUP)
    def set_require_grad(self, back: int, value: bool, group: Chosen | None) -> None:
        self.call(back, op.SetRequireGrad(value, self.group(back, group)))

    @rule(back=BACK)
    def no_grad(self, back: int) -> None:
        self.call(back, op.NoGrad())

    @rule(back=BACK, group=GROUP)
    def freeze(self, back: int, group: Chosen | None) -> None:
        self.call(back, op.Freeze(self.group(back, group)))

    @rule(back=BACK, group=GROUP)
    def unfreeze(self, back: int, group: Chosen | None) -> None:
        self.call(back, op.Unfreeze(self.group(back, group)))

    @rule(back=BACK, place=PLACE, autodiff=EITHER)
    def fork(self, back: int, place: int, autodiff: bool) -> None:
        self.call(back, op.Fork(self.device(place, autodiff)))

    @rule(back=BACK, place=PLACE, autodiff=EITHER)
    def to_device(self, back: int, place: int, autodiff: bool) -> None:
        self.call(back, op.ToDevice(self.device(place, autodiff)))

    @rule(back=BACK)
    def clone(self, back: int) -> None:
        self.call(back, op.Clone())

    @rule(back=BACK)
    def map_identity(self, back: int) -> None:
        self.call(back, op.Map())

    @precondition(lambda self: self.flags)
    @rule(back=BACK, which=WHICH, value=EITHER)
    def map_flag(self, back: int, which: int, value: bool) -> None:
        path = self.flags[which % len(self.flags)]
        self.call(back, op.Map(((op.SetFlag(path, value),),)))

    @rule(back=BACK)
    def load_record(self, back: int) -> None:
        self.call(back, op.LoadRecord(self.record, OPTIONS))

    @precondition(lambda self: self.remakes and "quantize" in self.adapter.capabilities)
    @rule(back=BACK, scheme=SCHEME, group=GROUP)
    def quantize_weights(self, back: int, scheme: Scheme, group: Chosen | None) -> None:
        self.call(back, op.Quantize(scheme, "MinMax", self.group(back, group), allow_nonfinite=True))

    @precondition(lambda self: self.remakes and "lora" in self.adapter.capabilities)
    @rule(back=BACK, rank=st.integers(1, 2), group=GROUP)
    def apply_lora(self, back: int, rank: int, group: Chosen | None) -> None:
        """The factors are what they are; all else is the table's."""
        handle, state = self.version(back)
        operation = op.ApplyLora(rank, 1.0, group=self.group(back, group))
        answer = self.adapter.apply(handle, operation)
        factors: dict[str, tuple[int, Bits]] = {}
        if not isinstance(answer, Refused):
            ids = self.adapter.meta(answer.handle).ids()
            paths = (f"{path}.{LORA}.{name}" for path in state.matrices(operation.group) for name in "ab")
            factors = {path: (ids[path], read(self.adapter, answer.handle, path)) for path in paths}
        self.check(operation, answer, lambda: state.adapted(operation.group, 1.0 / rank, factors))

    @precondition(lambda self: self.remakes and "reparam" in self.adapter.capabilities)
    @rule(back=BACK)
    def materialize(self, back: int) -> None:
        """Values are those that layers saw before; factors that a load gave two dtypes have none."""
        handle, state = self.version(back)
        values: dict[str, Bits] = {}
        event(f"Materialize: {bool(attached_to(state.spec))}")
        for path in attached_to(state.spec):
            answer = self.adapter.apply(handle, op.Effective(path))
            state.made(path)
            if isinstance(answer, Refused):
                assert answer.kind == "dtype"
                return
            values[path] = answer.output
        self.check(op.Materialize(), self.adapter.apply(handle, op.Materialize()), lambda: state.materialized(values))

    @precondition(lambda self: self.lazy)
    @rule(back=BACK, which=WHICH)
    def read(self, back: int, which: int) -> None:
        handle, state = self.version(back)
        path = self.lazy[which % len(self.lazy)]
        output(self.adapter, handle, op.Force(path))
        state.made(path)

    @precondition(lambda self: self.running)
    @rule(back=BACK, which=WHICH, amount=st.integers(1, 3))
    def update(self, back: int, which: int, amount: int) -> None:
        handle, state = self.version(back)
        path = self.running[which % len(self.running)]
        output(self.adapter, handle, op.Update(path, amount))
        leaf = state.leaves[path]
        assert isinstance(leaf, ValueState)
        changed = state.updated(path, sum_of(leaf.bits, amount))
        self.versions = [(one, changed if one is handle else other) for one, other in self.versions]

    # What the rules share

    def version(self, back: int) -> tuple[Handle, State]:
        """The version that many before the newest."""
        return self.versions[max(0, len(self.versions) - 1 - back)]

    def device(self, place: int, autodiff: bool) -> str:
        """A device of the grammar; the flag must not matter (M44)."""
        devices = self.adapter.grammar.devices
        return devices[place % len(devices)] + "+autodiff" * (autodiff and self.adapter.grammar.autodiff)

    def group(self, back: int, chosen: Chosen | None) -> Group | None:
        return None if chosen is None else chosen.group(list(self.version(back)[1].ids()))

    def call(self, back: int, operation: op.Op) -> None:
        """Make a call, and the step of the table; errors are part of the table."""
        handle, state = self.version(back)
        self.check(operation, self.adapter.apply(handle, operation), lambda: state.after(operation))

    def check(self, operation: op.Op, answer: Done | Refused, step: Callable[[], State]) -> None:
        """Compare what came of a call with a step of the table."""
        expected = outcome(step)
        if not isinstance(expected, State):
            event(f"{type(operation).__name__} refused")
            assert isinstance(answer, Refused), f"{operation!r} must be refused"
            assert answer.kind == expected
            return
        assert not isinstance(answer, Refused), f"{operation!r} was refused: {answer.message}"
        self.versions.append((answer.handle, expected))

    @invariant()
    def every_version_is_what_the_table_says(self) -> None:
        """The whole of what can be seen, in one comparison (L10, L25, L34)."""
        for handle, state in self.versions[-WATCHED:]:
            assert observed(self.adapter, handle, self.spec) == state.observation()

    def teardown(self) -> None:
        for handle, state in self.versions[:-WATCHED]:
            assert observed(self.adapter, handle, self.spec) == state.observation()

    @invariant()
    def nothing_is_made_twice(self) -> None:
        """(L20)."""
        if self.versions:
            assert set(runs(self.adapter, self.versions[-1][0], self.spec).values()) <= {0, 1}

    @invariant()
    def only_floats_on_autodiff_devices_require_gradients(self) -> None:
        """(L35)."""
        for handle, _ in self.versions[-1:]:
            for value in self.adapter.meta(handle).values:
                if isinstance(value, ValueMeta) and value.requires_grad:
                    assert (value.kind, value.autodiff, value.trainable) == ("float", True, True)
                    assert not is_scheme(value.dtype)


@law("L34", needs=("state.params", "state.flags", "groups", "fork", "map", "records", "lazy", "running", "autodiff"))
def test_any_calls_do_what_the_table_says(adapter: Adapter, profile: settings) -> None:
    """On any version, in any order (M50, M51, M112); in runs of 30 steps, which find more than shorter ones."""
    machine = type("TrainingState", (TrainingMachine,), {"adapter": adapter})
    number = max(min(100, profile.max_examples), profile.max_examples // 2)

    run_state_machine_as_test(machine, settings=settings(profile, max_examples=number, stateful_step_count=STEPS))
