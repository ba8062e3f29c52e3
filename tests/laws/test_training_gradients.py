"""Laws of gradients and steps of training, of any module (L30, L42, L43).

The loss is the sum of all elements of some parameters, so that every gradient
is known: ones, as often as the parameter is used.
"""

from collections import Counter
from typing import Any, Final

import numpy as np
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from . import operations as op
from .calls import all_bits, applied, built, observed, read
from .generators import Pool, devices, pick, trees
from .group_expressions import Paths
from .group_generators import chosen
from .law import law
from .observations import Bits, Gradient, ValueMeta
from .programs import MOVES, Program, operation
from .protocol import Adapter, Grammar, Refused
from .spec_tree import ParamSpec, RunningSpec, TreeSpec, leaves, numpy_dtype, tied_with
from .test_training_state import params, reached


def floats(spec: TreeSpec) -> list[str]:
    """Paths of parameters and running states of floats."""
    held = ((path, node) for path, node in leaves(spec).items() if isinstance(node, (ParamSpec, RunningSpec)))
    return [path for path, node in held if node.value.kind == "float"]


@st.composite
def some_used(draw: DrawFn, spec: TreeSpec) -> tuple[str, ...]:
    """Some floats, in any order, some of them twice."""
    return tuple(draw(st.lists(st.sampled_from(floats(spec)), min_size=1, max_size=6)))


def expected(spec: TreeSpec, values: dict[str, ValueMeta], used: tuple[str, ...]) -> tuple[Gradient, ...]:
    """The gradients of a version's own parameters: a tied one's use counts at each of its places."""
    counts = Counter(tied_with(spec, path)[0] for path in used)
    found: list[Gradient] = []
    for path, value in values.items():
        if uses := counts[tied_with(spec, path)[0]]:
            data = np.full(value.shape, uses, numpy_dtype(value.dtype)).tobytes()
            found.append(Gradient(path, Bits(value.dtype, value.shape, data), value.device))
    return tuple(found)


# Moves


@st.composite
def used_after_a_move(draw: DrawFn, grammar: Grammar) -> tuple[TreeSpec, op.Op, tuple[str, ...]]:
    """A tree of autodiff tensors, a move that mostly changes devices, and what is used there."""
    elsewhere, *places = draw(devices(grammar, 2))
    spec = draw(trees(grammar, pool=Pool(tuple(places), "autodiff"), min_devices=min(2, len(places))))
    move = pick(draw, MOVES)(pick(draw, (elsewhere, elsewhere, places[0])))
    return spec, move, draw(some_used(spec))


@law("L30", needs=("autodiff", "fork"), case=lambda a: used_after_a_move(a.grammar))
def test_a_fork_keeps_its_gradients_and_a_moved_module_sends_them_back(adapter: Adapter, case: Any) -> None:
    """The gradients of a fork are the fork's, on its device, and none is the source's (M42).

    A value that `to_device` copied has none: its gradient is the source's, on
    the source's device (M41). One that stays where it is is one leaf, and has
    it in both (D4); one that was lazy is a leaf of its own (D3).
    """
    spec, move, used = case
    module = built(adapter, spec)
    before = adapter.meta(module)
    moved = adapter.meta(applied(adapter, module, move))
    trained = {value.path for value in params(before) if value.trainable}
    source = {value.path: value for value in params(before) if value.path in trained}
    there = {value.path: value for value in params(moved) if value.path in trained}
    both = {path for path, value in source.items() if value.device == there[path].device and not value.lazy}
    lazy = {path for path, value in source.items() if value.lazy}

    answer = adapter.apply(module, op.Backward(used, (move,)))

    if not trained.intersection(used):
        assert isinstance(answer, Refused)
        assert answer.kind == "autodiff"
        return
    assert not isinstance(answer, Refused), answer.message
    event(f"{type(move).__name__} of {'lazy ' * bool(lazy)}values")
    if isinstance(move, op.Fork):
        here: dict[str, ValueMeta] = {}
    else:
        here = {path: value for path, value in source.items() if path not in lazy}
        there = {path: value for path, value in there.items() if path in lazy | both}
    assert answer.output == (expected(spec, here, used), expected(spec, there, used))


# Whole modules


SWITCHED: Final = (op.SetRequireGrad, op.Freeze, op.Unfreeze, op.SetRequireGrad)


@st.composite
def partly_frozen(draw: DrawFn, adapter: Adapter) -> tuple[Program, tuple[str, ...]]:
    """A module of autodiff tensors on two devices, switches of some of its parameters, and what is used of it.

    No `to_device`: values are leaves, or not tracked.
    """
    pool = Pool(draw(devices(adapter.grammar, 2)), "autodiff")
    spec = draw(trees(adapter.grammar, pool=pool, min_devices=2))
    steps: list[tuple[int, op.Op]] = []
    for _ in range(draw(st.integers(0, 3))):
        group = Paths(chosen(draw, list(leaves(spec))))
        kind: Any = pick(draw, SWITCHED)
        switch = op.SetRequireGrad(draw(st.booleans()), group) if kind is op.SetRequireGrad else kind(group)
        other = pick(draw, (op.Clone(), op.Map(), draw(operation(op.Fork, spec, adapter.grammar))))
        steps += [(0, switch), *([(0, other)] if draw(st.booleans()) else [])]
    if draw(st.booleans()):
        steps += [(0, op.Valid()), (0, op.Train())]
    return Program(spec, tuple(steps)), draw(some_used(spec))


@law("L42", needs=("autodiff", "state.params", "state.flags", "fork"), case=partly_frozen)
def test_what_is_used_and_requires_a_gradient_has_one(adapter: Adapter, case: tuple[Program, tuple[str, ...]]) -> None:
    """Of its shape and dtype, plain, on its device; nothing else has one, not even zeros (M73).

    Where nothing that is used requires one, there is nothing to go back to.
    """
    program, used = case
    spec = program.spec
    module = reached(adapter, program)
    for path in used:
        read(adapter, module, path)
    meta = adapter.meta(module)
    training = {value.path: value for value in params(meta) if value.requires_grad}
    places = {path for group in meta.ties for path in group}
    event(f"used: {len(training.keys() & set(used))} of {len(training)} that train; ties: {bool(places)}")

    answer = adapter.apply(module, op.Backward(used))

    if not training.keys() & set(used):
        assert isinstance(answer, Refused)
        assert answer.kind == "autodiff"
        return
    assert not isinstance(answer, Refused), answer.message
    assert answer.output == (expected(TreeSpec(spec.root, meta.ties), training, used),)


OPTIMIZERS: Final[dict[str, tuple[tuple[str, float | bool], ...]]] = {
    "SGD": (("lr", 0.5), ("momentum", 0.9), ("weight_decay", 0.1)),
    "Adam": (("lr", 0.5), ("weight_decay", 0.1)),
    "AdamW": (("lr", 0.5), ("weight_decay", 0.1)),
}


@law(
    "L43",
    needs=("autodiff", "optimizers", "state.params", "state.flags", "fork"),
    each=("optimizer", tuple(OPTIMIZERS)),
    case=partly_frozen,
)
def test_a_step_of_training_changes_what_has_a_gradient_only(
    adapter: Adapter, optimizer: str, case: tuple[Program, tuple[str, ...]]
) -> None:
    """Two steps with weight decay change no bit of what is frozen or unused, nor of a snapshot taken before (M51, M55).

    Ids, devices and all training state are as they were: an updated parameter is a leaf (P60).
    """
    program, used = case
    spec = program.spec
    module = reached(adapter, program)
    before = all_bits(adapter, module, spec)
    meta = adapter.meta(module)
    training = {value.path for value in params(meta) if value.requires_grad and value.path in set(used)}
    training |= {path for group in meta.ties if training.intersection(group) for path in group}
    snapshot = applied(adapter, module, op.Valid())
    of_snapshot = observed(adapter, snapshot, spec)

    answer = adapter.apply(module, op.Step(optimizer, OPTIMIZERS[optimizer], used, 2))

    assert observed(adapter, snapshot, spec) == of_snapshot
    assert all_bits(adapter, module, spec) == before
    if not training:
        assert isinstance(answer, Refused)
        assert answer.kind == "autodiff"
        return
    objects = {tied_with(TreeSpec(spec.root, meta.ties), path)[0] for path in training}
    if isinstance(answer, Refused) and len({meta.ids()[path] for path in objects}) < len(objects):
        return  # an optimizer keeps its state by ids; two parameters may not share one
    assert not isinstance(answer, Refused), answer.message
    assert adapter.meta(answer.handle) == meta
    after = all_bits(adapter, answer.handle, spec)
    changed = {path for path in before if before[path] != after[path]}
    event(f"changed: {len(changed)} of {len(before)}")
    assert changed <= training
    assert {path for path in training if _moves(before[path])} <= changed


def _moves(bits: Bits) -> bool:
    """Whether steps must change a value: it has an element that is not lost in half a unit, nor held by its decay."""
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        array = np.frombuffer(bits.data, numpy_dtype(bits.dtype)).astype(np.float64)
    return bool((np.abs(array) < 8).any())
