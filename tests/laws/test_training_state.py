"""Laws of training state (L34 to L40, L44). L34 as a state machine is in `test_training_machine`.

Here it is the table of sequences of the rules, row by row; the others are its
corollaries, kept because they name the fault.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from . import operations as op
from .calls import all_bits, applied, built, observed, output, runs
from .generators import Pool, devices, pick, trees
from .group_expressions import IdsAt, Paths, by_ids, matched
from .law import law
from .observations import FlagMeta, Meta, ValueMeta
from .programs import MOVES, REMAKING, SCHEMES, SWITCHES, Program, offered, operation, programs
from .protocol import Adapter, Grammar, Handle, Refused
from .record_generators import Builds, builds
from .schemes import Scheme, is_scheme
from .spec_tree import FlagSpec, ParamSpec, RunningSpec, StructSpec, TreeSpec, Value, leaves
from .subject import subject
from .training_state import RefusalExpected, State, start

# The table of sequences

ON: Final = op.SetRequireGrad(True)
PART: Final = IdsAt(("weight", "training"))
CALLS: Final[dict[str, op.Op]] = {
    "valid": op.Valid(),
    "train": op.Train(),
    "no_grad": op.NoGrad(),
    "freeze": op.Freeze(),
    "unfreeze": op.Unfreeze(),
    "rg(True)": ON,
    "fork": op.Fork(),
    "to_device": op.ToDevice(),
    "map": op.Map(),
    "unfreeze_group": op.Unfreeze(PART),
    "set_require_grad_group": op.SetRequireGrad(True, PART),
}
SEQUENCES: Final = (
    # calls; e, a, ad of the weight and f, fa of the flag, begun on an autodiff device and on a plain one; then e, a of
    # the bias, where they are others
    ("", "TTTTT", "FTFTT", ""),
    ("valid", "FTFFT", "FTFFT", ""),
    ("valid valid", "FTFFT", "FTFFT", ""),
    ("valid train", "TTTTT", "TTTTT", ""),
    ("no_grad", "FFTTT", "FFFTT", ""),
    ("no_grad train", "FFTTT", "FFTTT", ""),
    ("no_grad valid", "FFFFT", "FFFFT", ""),
    ("no_grad valid train", "FFTTT", "FFTTT", ""),
    ("no_grad unfreeze", "TTTTT", "FTFTT", ""),
    ("freeze", "FFTFF", "FFFFF", ""),
    ("freeze train", "FFTFF", "FFTFF", ""),
    ("freeze valid", "FFFFF", "FFFFF", ""),
    ("freeze valid train", "FFTFF", "FFTFF", ""),
    ("freeze rg(True)", "TTTFF", "FTFFF", ""),
    ("freeze valid rg(True)", "FTFFF", "FTFFF", ""),
    ("freeze valid rg(True) train", "TTTFF", "TTTFF", ""),
    ("freeze unfreeze", "TTTTT", "FTFTT", ""),
    ("valid freeze", "FFFFF", "FFFFF", ""),
    ("valid freeze train", "FFTFF", "FFTFF", ""),
    ("valid unfreeze", "FTFTT", "FTFTT", ""),
    ("valid unfreeze train", "TTTTT", "TTTTT", ""),
    ("freeze valid unfreeze", "FTFTT", "FTFTT", ""),
    ("valid no_grad train", "FFTTT", "FFTTT", ""),
    ("valid fork train", "TTTTT", "TTTTT", ""),
    ("valid to_device train", "TTTTT", "TTTTT", ""),
    ("valid map train", "TTTTT", "TTTTT", ""),
    ("valid train fork", "TTTTT", "TTTTT", ""),
    ("unfreeze no_grad", "FFTTT", "FFFTT", ""),
    ("freeze valid unfreeze_group train", "TTTTT", "TTTTT", "FF"),
    ("freeze valid set_require_grad_group train", "TTTFF", "TTTFF", "FF"),
)
REFUSED_SEQUENCES: Final = (
    "to_device rg(True)",
    "to_device unfreeze",
    "to_device train",
    "to_device map unfreeze",
    "to_device to_device train",
    "to_device unfreeze_group",
    "to_device set_require_grad_group",
    "freeze unfreeze to_device train",
    "valid train to_device rg(True)",
)
"""The last call of each asks what a recorded move made to train."""


def small(device: str) -> TreeSpec:
    """Two parameters and a flag."""
    weight, bias = (ParamSpec(Value("float32", (1,), data, device)) for data in (b"\x00\x00\x80\x3f", bytes(4)))
    return TreeSpec(StructSpec((("weight", weight), ("bias", bias), ("training", FlagSpec(True))), "Layer"))


def as_told(meta: Meta, sequence: tuple[str, str, str, str]) -> tuple[str, str]:
    """The letters that a row of the table has: of weight and flag, and of the bias if it says something of that."""
    weight, bias, flag = meta.values
    assert isinstance(weight, ValueMeta)
    assert isinstance(bias, ValueMeta)
    assert isinstance(flag, FlagMeta)
    said = weight.requires_grad, weight.trainable, weight.autodiff, flag.enabled, flag.configured
    of_bias = (bias.requires_grad, bias.trainable) if sequence[3] else ()
    return "".join("FT"[bool(bit)] for bit in said), "".join("FT"[bool(bit)] for bit in of_bias)


def calls_of(sequence: str, device: str) -> list[op.Op]:
    """The calls of a row; moves go to a device."""
    calls = (CALLS[name] for name in sequence.split())
    return [replace(call, device=device) if isinstance(call, MOVES) else call for call in calls]


@law("L34", needs=("state.params", "state.flags", "groups", "fork", "map"), each=("sequence", SEQUENCES))
def test_sequences_of_calls_do_what_the_table_says(adapter: Adapter, sequence: tuple[str, str, str, str]) -> None:
    """The table of M51's sequences, from a module on an autodiff device and from one on a plain device."""
    first, last = adapter.grammar.devices[0], adapter.grammar.devices[-1]
    for device, told in ((f"{first}+autodiff", sequence[1]), (first, sequence[2])):
        module = built(adapter, small(device))
        for call in calls_of(sequence[0], last):
            module = applied(adapter, module, call)
        assert as_told(adapter.meta(module), sequence) == (told, sequence[3])


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_the_table_of_states_gives_the_table_of_sequences(sequence: tuple[str, str, str, str]) -> None:
    """The model that L34 compares with obeys the rules itself (M51)."""
    for device, told in (("cpu:0+autodiff", sequence[1]), ("cpu:0", sequence[2])):
        spec = small(device)
        state: State = start(spec, {path: number for number, path in enumerate(leaves(spec))})
        for call in calls_of(sequence[0], "cpu:1"):
            state = state.after(call)
        assert as_told(state.meta(), sequence) == (told, sequence[3])


@law("L34", needs=("state.params", "groups", "fork", "map", "autodiff"), each=("sequence", REFUSED_SEQUENCES))
def test_sequences_that_ask_a_moved_value_to_train_are_refused(adapter: Adapter, sequence: str) -> None:
    """At their last call, and the module is what it was before that (M49, M51)."""
    spec = small(f"{adapter.grammar.devices[0]}+autodiff")
    *before, last = calls_of(sequence, adapter.grammar.devices[-1])
    module = built(adapter, spec)
    for call in before:
        module = applied(adapter, module, call)
    moved = observed(adapter, module, spec)
    answer = adapter.apply(module, last)

    assert isinstance(answer, Refused)
    assert answer.kind == "autodiff"
    assert observed(adapter, module, spec) == moved


@pytest.mark.parametrize("sequence", REFUSED_SEQUENCES)
def test_the_table_of_states_refuses_them_too(sequence: str) -> None:
    """The model that L34 compares with obeys the rules itself (M49)."""
    spec = small("cpu:0+autodiff")
    state: State = start(spec, {path: number for number, path in enumerate(leaves(spec))})
    *before, last = calls_of(sequence, "cpu:1")
    for call in before:
        state = state.after(call)
    with pytest.raises(RefusalExpected) as refusal:
        state.after(last)
    assert refusal.value.kind == "autodiff"


# States that are reached

REACHING: Final = (op.Clone, op.Map, *MOVES, *SWITCHES)


def reaching(adapter: Adapter) -> Any:
    """A short program, for the state that it ends in."""
    return programs(adapter, REACHING, max_steps=4, adds=False)


def reached(adapter: Adapter, program: Program) -> Handle:
    """The newest version of a program; what is refused is left out."""
    versions = [built(adapter, program.spec)]
    for back, step in program.steps:
        answer = adapter.apply(versions[max(0, len(versions) - 1 - back)], step)
        if not isinstance(answer, Refused):
            versions.append(answer.handle)
    return versions[-1]


def params(meta: Meta) -> Iterator[ValueMeta]:
    return (value for value in meta.values if isinstance(value, ValueMeta))


def flags(meta: Meta) -> Iterator[FlagMeta]:
    return (value for value in meta.values if isinstance(value, FlagMeta))


@law("L35", needs=("state.params", "state.flags"), program=lambda a: programs(a, (*REACHING, *REMAKING), adds=False))
def test_only_floats_on_autodiff_devices_require_gradients(adapter: Adapter, program: Program) -> None:
    """In every version, whatever is asked for: integers, booleans, running states never (M35, M50, M96).

    What is quantized does not either, though it may be configured to (M60, Q33).
    """
    running = {path for path, node in leaves(program.spec).items() if isinstance(node, RunningSpec)}
    versions = [built(adapter, program.spec)]
    for back, step in program.steps:
        answer = adapter.apply(versions[max(0, len(versions) - 1 - back)], step)
        versions += [] if isinstance(answer, Refused) else [answer.handle]
    for version in versions:
        for value in params(adapter.meta(version)):
            assert value.autodiff or not value.requires_grad
            assert not (is_scheme(value.dtype) and value.requires_grad)
            if value.path in running or value.kind != "float":
                assert not value.trainable
                assert not value.requires_grad


PROJECTIONS: Final = (*SWITCHES, op.Fork, op.ToDevice, op.Quantize, op.Materialize)


@law(
    "L36",
    needs=("state.params", "state.flags", "fork"),
    each=("kind", offered(subject(), PROJECTIONS)),
    program=reaching,
    data=lambda a: st.data(),
)
def test_twice_is_once(adapter: Adapter, kind: type[op.Op], program: Program, data: Any) -> None:
    """Of every switch, whole or of a group, every move, and more, from any state (M55, M114, Q31, A35)."""
    module = reached(adapter, program)
    call = data.draw(operation(kind, program.spec, adapter.grammar, adds=False))
    answer = adapter.apply(module, call)
    event("refused" if isinstance(answer, Refused) else "done")
    if not isinstance(answer, Refused):
        once = answer.handle
        assert observed(adapter, applied(adapter, once, call), program.spec) == observed(adapter, once, program.spec)


@law("L37", needs=("state.params", "state.flags"), program=reaching)
def test_valid_and_train_give_back_what_is_configured(adapter: Adapter, program: Program) -> None:
    """From any state: `a` and `fa` are as before, `e` is `a` and `f` is `fa`, and all is autodiff (M56, M115).

    Flags that are off stay off, and frozen parameters frozen.
    """
    module = reached(adapter, program)
    before = adapter.meta(module)
    snapshot = applied(adapter, module, op.Valid())
    after = adapter.meta(applied(adapter, snapshot, op.Train()))

    assert not any(value.autodiff or value.requires_grad for value in params(adapter.meta(snapshot)))
    assert not any(flag.enabled for flag in flags(adapter.meta(snapshot)))
    assert [(value.path, value.trainable) for value in params(after)] == [
        (value.path, value.trainable) for value in params(before)
    ]
    assert [(flag.path, flag.configured) for flag in flags(after)] == [
        (flag.path, flag.configured) for flag in flags(before)
    ]
    assert all(value.autodiff for value in params(after))
    assert all(value.requires_grad == value.trainable for value in params(after.settled()))
    assert all(flag.enabled == flag.configured for flag in flags(after))


# Two calls

SETTING: Final = (op.SetRequireGrad, op.NoGrad, op.Freeze, op.Unfreeze)


@st.composite
def two_switches(draw: DrawFn, adapter: Adapter) -> tuple[TreeSpec, op.Op, op.Op]:
    spec = draw(trees(adapter.grammar))
    first, second = (draw(operation(pick(draw, SETTING), spec, adapter.grammar)) for _ in range(2))
    return spec, first, second


@law("L38", needs=("state.params", "state.flags", "groups"), case=two_switches)
def test_the_last_switch_wins(adapter: Adapter, case: tuple[TreeSpec, op.Op, op.Op]) -> None:
    """Each bit that it writes is as if it were alone, all others are as the first left them (M52 to M54)."""
    spec, first, second = case
    module = built(adapter, spec)
    alone = adapter.meta(applied(adapter, module, second))
    halfway = applied(adapter, module, first)
    before, both = adapter.meta(halfway), adapter.meta(applied(adapter, halfway, second))
    concerned = matched(getattr(second, "group", None), before.ids())
    writes_flags = isinstance(second, (op.Freeze, op.Unfreeze))

    for was, lone, value in zip(before.values, alone.values, both.values, strict=True):
        written = value.path in concerned and (writes_flags or isinstance(value, ValueMeta))
        assert value == (lone if written else was)


@law("L38", needs=("state.params", "state.flags"), program=reaching)
def test_no_grad_is_set_require_grad_false(adapter: Adapter, program: Program) -> None:
    """From any state; it writes no flag (M53)."""
    module = reached(adapter, program)
    after = observed(adapter, applied(adapter, module, op.NoGrad()), program.spec)

    assert after == observed(adapter, applied(adapter, module, op.SetRequireGrad(False)), program.spec)
    assert list(flags(after.meta)) == list(flags(adapter.meta(module)))


KEEPING: Final = (op.Clone, op.Map, op.Fork, op.LoadRecord, op.Quantize)
"""What commutes with every switch; `to_device` only with those that ask for no gradient."""


@st.composite
def two_that_commute(draw: DrawFn, adapter: Adapter) -> tuple[Builds, op.Op | None, op.Op]:
    """Two builds of a module, a call that keeps training state (None loads the other's record), and a switch."""
    both = draw(builds(adapter.grammar))
    kind = pick(draw, offered(adapter, (*KEEPING, op.Map, op.ToDevice, op.LoadRecord)))
    switches = (op.Valid, op.NoGrad, op.Freeze) if kind is op.ToDevice else SWITCHES
    switch = draw(operation(pick(draw, switches), both.target, adapter.grammar))
    if kind is op.LoadRecord:
        group = getattr(switch, "group", None)
        if group is not None and by_ids([group]):  # a load changes ids (M90)
            switch = replace(switch, group=None)
        return both, None, switch
    call = op.Map() if kind is op.Map else draw(operation(kind, both.target, adapter.grammar))
    if isinstance(call, op.Quantize):
        call = replace(call, scheme=pick(draw, (SCHEMES[0], SCHEMES[1])), allow_nonfinite=True)  # refused for none
    return both, call, switch


@law("L39", needs=("state.params", "state.flags", "fork", "map", "records"), case=two_that_commute)
def test_moves_maps_and_loads_commute_with_switches(adapter: Adapter, case: tuple[Builds, op.Op | None, op.Op]) -> None:
    """Whichever comes first, the module is the same (M57); quantization too (Q51).

    `to_device` makes values that are no leaves, so with it only switches that
    ask for no gradient.
    """
    both, keeps, switch = case
    record = output(adapter, built(adapter, both.source), op.ToRecord())
    call = keeps or op.LoadRecord(record)
    module = built(adapter, both.target)
    event(f"{type(call).__name__}, {type(switch).__name__}")

    one = applied(adapter, applied(adapter, module, call), switch)
    other = applied(adapter, applied(adapter, module, switch), call)

    assert observed(adapter, one, both.target) == observed(adapter, other, both.target)


# What switches leave alone


def without_training(meta: Meta) -> Meta:
    """The meta without what switches write."""

    def blank(value: ValueMeta | FlagMeta) -> ValueMeta | FlagMeta:
        if isinstance(value, FlagMeta):
            return replace(value, enabled=False, configured=False)
        return replace(value, autodiff=False, trainable=False, requires_grad=None)

    def plain(skeleton: Any) -> Any:
        if not isinstance(skeleton, tuple):
            return skeleton
        if skeleton[:1] == ("constant",):
            return skeleton[:-1]
        return tuple(map(plain, skeleton))

    return Meta(tuple(map(blank, meta.values)), plain(meta.skeleton))


@law(
    "L40",
    needs=("state.params", "state.flags"),
    program=lambda a: programs(a, SWITCHES, adds=False),
    quantized=lambda a: st.sampled_from((None, None, *SCHEMES[: 2 * ("quantize" in a.capabilities)])),
)
def test_switches_touch_no_value(adapter: Adapter, program: Program, quantized: Scheme | None) -> None:
    """Bits, quantized ones too, ids, order, skeleton, shapes and devices stay, and nothing lazy is made (M63)."""
    spec = program.spec
    module = built(adapter, spec)
    if quantized is not None:
        some = Paths(tuple(leaves(spec))[::2])
        module = applied(adapter, module, op.Quantize(quantized, "MinMax", some, allow_nonfinite=True))
    before, ran = adapter.meta(module), runs(adapter, module, spec)
    switched = module
    for _, step in program.steps:
        switched = applied(adapter, switched, step)

    assert without_training(adapter.meta(switched)) == without_training(before)
    assert runs(adapter, switched, spec) == ran
    assert all_bits(adapter, switched, spec) == all_bits(adapter, module, spec)


# Values that a recorded operation made


@st.composite
def moved_away(draw: DrawFn, grammar: Grammar) -> tuple[TreeSpec, str]:
    """A tree of autodiff tensors on one device or two, and another device."""
    *places, elsewhere = draw(devices(grammar, 2))
    spec = draw(trees(grammar, pool=Pool(tuple(places), "autodiff"), min_devices=min(2, len(places))))
    return spec, elsewhere


RAISING: Final = (op.Train, op.Unfreeze, op.SetRequireGrad)


@law(
    "L44",
    needs=("state.params", "state.flags", "groups", "autodiff"),
    each=("kind", RAISING),
    case=lambda a: moved_away(a.grammar),
    data=lambda a: st.data(),
)
def test_a_moved_value_cannot_train_and_nothing_is_done_halfway(
    adapter: Adapter, kind: type[op.Op], case: tuple[TreeSpec, str], data: Any
) -> None:
    """After `to_device` a switch that asks it for gradients is refused, and names its path (M49).

    The module, all of its leaves, is what it was. With switches that do not
    ask, the value becomes an untracked leaf.
    """
    spec, elsewhere = case
    call = op.SetRequireGrad(True) if kind is op.SetRequireGrad else kind()
    if kind is not op.Train:
        call = replace(call, group=getattr(data.draw(operation(kind, spec, adapter.grammar)), "group", None))
    source = built(adapter, spec)
    module = applied(adapter, source, op.ToDevice(elsewhere))
    before, of_source = observed(adapter, module, spec), observed(adapter, source, spec)
    nodes = leaves(spec)
    recorded = {
        value.path
        for value in params(before.meta)
        if not value.lazy and value.trainable and isinstance(nodes[value.path], ParamSpec)
    }
    refused = recorded.intersection(matched(getattr(call, "group", None), before.meta.ids()))

    answer = adapter.apply(module, call)

    event("refused" if refused else "done")
    assert isinstance(answer, Refused) == bool(refused)
    if isinstance(answer, Refused):
        assert answer.kind == "autodiff"
        assert any(path in answer.message for path in refused)
    assert observed(adapter, module, spec) == before
    assert observed(adapter, source, spec) == of_source
    cut = applied(adapter, module, op.NoGrad())
    freed = applied(adapter, cut, op.Unfreeze())
    assert {value.path for value in params(adapter.meta(freed)) if value.requires_grad} >= recorded
