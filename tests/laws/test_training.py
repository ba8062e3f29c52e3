"""Laws of whole trainings of layered models (L18, L118, L120): what comes of them depends on their inputs alone.

Gradients are clipped by norm, so that no step throws values out of the range
in which they mean something. The same laws over the layers and models that
people use are in `tests/modules/test_optimizers.py`, `test_optimizer_records.py`
and `tests/nn/test_saved_layers.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from . import operations as op
from .calls import applied, output
from .generators import pick
from .law import law
from .layered import Placement, Signal, hardware
from .layered_calls import ran, wrapped_by
from .layered_expected import crossed, values_of
from .layered_generators import HIDDEN as STATELESS
from .layered_generators import with_other_values
from .layered_gradients import pulled
from .layered_operations import GetPlacement, Unwrap
from .observations import Bits, ValueMeta
from .placement_generators import placements, placements_of, split_placements
from .protocol import Adapter, Handle
from .spec_tree import ParamSpec, Printed, leaves
from .training_generators import (
    HIDDEN,
    KEEPING,
    LIMIT,
    OPTIMIZERS,
    Training,
    on,
    tracking,
    trainings,
)
from .training_operations import Kept, LoadTraining, NewOptimizer, SaveTraining, SeeOptimizer, TrainStep

NAME: Final = "optimizer"
STEPS_MADE: Final = 3
SLOW: Final = 4
NEEDS: Final = ("parallel", "autodiff", "optimizers", "dropout", "batch_norm")


@dataclass(frozen=True, repr=False)
class Run(Printed):
    """A model, an optimizer to train it with, by its name in `OPTIMIZERS`, and another placement of the model."""

    training: Training
    optimizer: str
    other: Placement


@st.composite
def training_runs(draw: DrawFn, adapter: Adapter, placed: Any = None, hidden: tuple[str, ...] = HIDDEN) -> Run:
    """Every optimizer as often as the others."""
    training = draw(trainings(adapter.grammar, placements(adapter.grammar) if placed is None else placed, hidden))
    other = draw(placements_of(adapter.grammar, len(training.spec.placement.hidden)))
    other = replace(other, output=other.input) if training.spec.tied else other
    return Run(training, pick(draw, tuple(OPTIMIZERS)), tracking(other))


def with_optimizer(adapter: Adapter, module: Handle, optimizer: str) -> Handle:
    """The module, beside which there now is a new optimizer."""
    output(adapter, module, NewOptimizer(NAME, *OPTIMIZERS[optimizer]))
    return module


def stepped(adapter: Adapter, module: Handle, case: Training, number: int = 1, signal: Signal | None = None) -> Handle:
    """The module after so many steps."""
    for _ in range(number):
        step = TrainStep(NAME, case.signal if signal is None else signal, case.cotangents, LIMIT)
        module = applied(adapter, module, step)
    return module


@dataclass(frozen=True, repr=False)
class Reached(Printed):
    """What training came to: values by path, and what the optimizer keeps, by the path of the parameter."""

    values: dict[str, Bits]
    kept: dict[tuple[str, str], Bits]


def reached(adapter: Adapter, module: Handle) -> Reached:
    """What training came to."""
    entries: tuple[op.Entry, ...] = output(adapter, module, op.ToRecord()).entries
    paths = {entry.id: entry.path for entry in reversed(entries)}
    kept: tuple[Kept, ...] = output(adapter, module, SeeOptimizer(NAME))
    assert len({(one.id, one.name) for one in kept}) == len(kept)
    values = {entry.path: entry.bits for entry in entries}
    return Reached(values, {(paths[one.id], one.name): one.bits for one in kept})


# A function of its inputs


@law("L120", needs=NEEDS, slow=SLOW, run=lambda a: training_runs(a, split_placements(a.grammar)))
def test_training_a_split_model_is_training_the_plain_composition(adapter: Adapter, run: Run) -> None:
    """Bit for bit: values, running statistics and what the optimizer keeps, after each of three steps (P59, P60).

    Nothing but the signal and its gradients is copied.
    """
    case, spec = run.training, run.training.spec
    signal = on(case.home(adapter), case.signal)
    alone = with_optimizer(adapter, case.alone(adapter), run.optimizer)
    split = with_optimizer(adapter, wrapped_by(adapter, case.started(adapter), spec.placement), run.optimizer)
    before = after = reached(adapter, split)
    event(run.optimizer)
    for _ in range(STEPS_MADE):
        alone, split = stepped(adapter, alone, case, signal=signal), stepped(adapter, split, case)
        after = reached(adapter, split)
        assert after == reached(adapter, alone)
        assert output(adapter, split, GetPlacement()) == spec.placement.plain
        assert bool(after.kept) == (run.optimizer in KEEPING)
    event(f"changed: {after.values['stem.weight'] != before.values['stem.weight']}")


@law(
    "L120",
    needs=(*NEEDS, "transfer_log"),
    slow=SLOW,
    run=lambda a: training_runs(a, split_placements(a.grammar), STATELESS),
)
def test_a_step_copies_the_signal_and_its_gradients_and_nothing_else(adapter: Adapter, run: Run) -> None:
    """No parameter, no gradient of one, nothing that the optimizer keeps (P37, P60)."""
    case, spec = run.training, run.training.spec
    split = with_optimizer(adapter, wrapped_by(adapter, case.started(adapter), spec.placement), run.optimizer)
    frozen = {one.path for one in adapter.meta(split).values if isinstance(one, ValueMeta) and not one.trainable}

    def trains(path: str) -> bool:
        return path not in frozen

    expected = pulled(spec, case.signal, values_of(spec), case.cotangents, trains, spec.placement).crossings
    for _ in range(2):
        adapter.log()
        split = stepped(adapter, split, case)
        assert crossed(adapter.log()) == expected


# What may come between steps

Between = Callable[[Adapter, Handle, Run], Handle]


def _through_a_file(adapter: Adapter, module: Handle, run: Run) -> Handle:
    """Into a new build elsewhere, with a new optimizer, which go on in their place."""
    data = output(adapter, module, SaveTraining(NAME))
    fresh = run.training.started(adapter, with_other_values(run.training.spec).built_by(run.other))
    fresh = with_optimizer(adapter, wrapped_by(adapter, fresh, run.other), run.optimizer)
    return applied(adapter, fresh, LoadTraining(NAME, data))


def _rewrapped(adapter: Adapter, module: Handle, run: Run) -> Handle:
    placement = output(adapter, module, GetPlacement())
    return wrapped_by(adapter, applied(adapter, module, Unwrap()), placement)


def _reloaded(adapter: Adapter, module: Handle, run: Run) -> Handle:
    return applied(adapter, module, op.LoadRecord(output(adapter, module, op.ToRecord())))


def _looked_at(adapter: Adapter, module: Handle, run: Run) -> Handle:
    """A validation snapshot runs, and a record of all is made."""
    ran(adapter, applied(adapter, module, op.Valid()), run.training.signal.each(_plain))
    output(adapter, module, SaveTraining(NAME))
    return module


def _plain(value: Any) -> Any:
    return replace(value, device=value.hardware)


BETWEEN: Final[dict[str, Between]] = {
    "clone": lambda adapter, module, run: applied(adapter, module, op.Clone()),
    "map": lambda adapter, module, run: applied(adapter, module, op.Map()),
    "fork": lambda adapter, module, run: applied(adapter, module, op.Fork(run.other.output)),
    "record": _reloaded,
    "file": _through_a_file,
    "wrap": _rewrapped,
    "look": _looked_at,
}


@law(
    "L120",
    needs=(*NEEDS, "fork", "records", "map", "state.flags"),
    slow=SLOW,
    run=lambda a: training_runs(a),
    between=lambda a: st.lists(st.sampled_from(sorted(BETWEEN)), min_size=2, max_size=4),
)
def test_clones_forks_and_records_between_steps_change_no_bit(
    adapter: Adapter, run: Run, between: Sequence[str]
) -> None:
    """Training goes on in what came of them as it would have gone on in the model itself (P33, P53)."""
    case, spec = run.training, run.training.spec
    through = with_optimizer(adapter, wrapped_by(adapter, case.started(adapter), spec.placement), run.optimizer)
    straight = with_optimizer(adapter, wrapped_by(adapter, case.started(adapter), spec.placement), run.optimizer)
    event(run.optimizer)
    for name in between:
        event(name)
        straight = stepped(adapter, straight, case)
        through = BETWEEN[name](adapter, stepped(adapter, through, case), run)
        assert reached(adapter, through) == reached(adapter, straight)

    assert reached(adapter, stepped(adapter, through, case)) == reached(adapter, stepped(adapter, straight, case))


# Optimizer state


@law(
    "L18",
    needs=(*NEEDS, "records", "ids"),
    slow=SLOW,
    run=lambda a: training_runs(a),
    counts=lambda a: st.sampled_from([(k, n) for n in (3, 4, 2, 1) for k in range(n + 1)]),
)
def test_training_goes_on_from_a_file_in_a_fresh_build(adapter: Adapter, run: Run, counts: tuple[int, int]) -> None:
    """k steps, module and optimizer saved and loaded into a build elsewhere, n - k steps: as n steps (M34).

    State is found by the id that the load brings; it does not grow.
    """
    case, (k, n) = run.training, counts
    event(f"{run.optimizer} after {k} of {n}")
    straight = with_optimizer(adapter, wrapped_by(adapter, case.started(adapter), case.spec.placement), run.optimizer)
    stopped = with_optimizer(adapter, wrapped_by(adapter, case.started(adapter), case.spec.placement), run.optimizer)
    ids = adapter.meta(stopped).ids()

    resumed = _through_a_file(adapter, stepped(adapter, stopped, case, k), run)
    ended = reached(adapter, stepped(adapter, resumed, case, n - k))

    assert ended == reached(adapter, stepped(adapter, straight, case, n))
    of_resumed = adapter.meta(resumed).ids()
    held = [path for path, node in leaves(case.spec.tree).items() if isinstance(node, ParamSpec)]
    assert [of_resumed[path] for path in held] == [ids[path] for path in held]


# Saved and loaded elsewhere


@law("L118", needs=(*NEEDS, "records", "lazy", "state.flags"), slow=2, run=lambda a: training_runs(a))
def test_a_trained_model_that_is_loaded_elsewhere_gives_the_same_outputs(adapter: Adapter, run: Run) -> None:
    """Bit for bit, in training and in validation state, so that nothing that a layer goes by falls out of the record.

    Into a build with other values, by another placement, after two steps (R18 to R21).
    """
    case = run.training
    for one in case.spec.layers:
        event(f"layer: {one.step}")
    source = with_optimizer(adapter, wrapped_by(adapter, case.started(adapter), case.spec.placement), run.optimizer)
    source = stepped(adapter, source, case, 2)

    found = _through_a_file(adapter, source, run)

    last, plain = hardware(case.spec.placement.output), case.signal.each(_plain)
    for signal, switch in ((case.signal, op.Clone()), (plain, op.Valid()), (case.signal, op.Train())):
        one, other = (applied(adapter, module, switch) for module in (source, found))
        assert ran(adapter, other, signal).on(last) == ran(adapter, one, signal)
