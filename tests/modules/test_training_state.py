"""Training state: what train, valid, freezing, gradient switches and moves make of what a module holds (M50 to M63).

Places that hold one object are in `test_training_ties.py`.
"""

from typing import Any, Final

import pytest

from engine import AutodiffError, Device, zeros
from modules import Flag, Module, Param, ParamGroup

from .small_modules import AUTODIFF, Block, Holder, LazyLinear, numbers, paths
from .training_states import CALLS, CELLS, ERROR, GROUP_CALLS, STATES, State, after, leaf_in, state_of

REFUSED: Final = ("train", "unfreeze", "set_require_grad(True)")

# The table of sequences


SEQUENCES: Final = [
    # calls, then e a ad f fa, and where it differs the same of what was made on a plain device
    ("", "TTTTT", "FTFTT"),
    ("valid", "FTFFT", None),
    ("valid, valid", "FTFFT", None),
    ("valid, train", "TTTTT", None),
    ("no_grad", "FFTTT", "FFFTT"),
    ("no_grad, train", "FFTTT", None),
    ("no_grad, valid", "FFFFT", None),
    ("no_grad, valid, train", "FFTTT", None),
    ("no_grad, unfreeze", "TTTTT", "FTFTT"),
    ("freeze", "FFTFF", "FFFFF"),
    ("freeze, train", "FFTFF", None),
    ("freeze, valid", "FFFFF", None),
    ("freeze, valid, train", "FFTFF", None),
    ("freeze, set_require_grad(True)", "TTTFF", "FTFFF"),
    ("freeze, valid, set_require_grad(True)", "FTFFF", None),
    ("freeze, valid, set_require_grad(True), train", "TTTFF", None),
    ("freeze, unfreeze", "TTTTT", "FTFTT"),
    ("valid, freeze", "FFFFF", None),
    ("valid, freeze, train", "FFTFF", None),
    ("valid, unfreeze", "FTFTT", None),
    ("valid, unfreeze, train", "TTTTT", None),
    ("freeze, valid, unfreeze", "FTFTT", None),
    ("valid, no_grad, train", "FFTTT", None),
    ("valid, fork elsewhere, train", "TTTTT", None),
    ("valid, to_device elsewhere, train", "TTTTT", None),
    ("valid, map, train", "TTTTT", None),
    ("valid, train, fork elsewhere", "TTTTT", None),
    ("unfreeze, no_grad", "FFTTT", "FFFTT"),
]


def layer(device: str, made: list[Device] | None) -> Any:
    """A parameter and a flag; the parameter made from a tensor, or lazy and noting in `made` where it is made."""
    weight = Param(numbers(2, device=device)) if made is None else LazyLinear(2, 1, device, made).weight
    return Holder(weight=weight, training=Flag(True))


def run(module: Module, calls: str) -> Any:
    """The module after calls, named as in `CALLS`."""
    for call in filter(None, calls.split(", ")):
        module = CALLS[call](module)
    return module


def letters(*facts: bool) -> str:
    return "".join("T" if fact else "F" for fact in facts)


@pytest.mark.parametrize("lazy", [False, True], ids=["made", "lazy"])
@pytest.mark.parametrize("start", [AUTODIFF, "cpu:0"])
@pytest.mark.parametrize(("calls", "autodiff", "plain"), SEQUENCES)
def test_each_sequence_of_calls_ends_in_the_state_of_the_table(
    calls: str, autodiff: str, plain: str | None, start: str, lazy: bool
):
    """M51, the table of section 6; a lazy parameter is made by none of them and comes to the same (M63, D10)."""
    made: list[Device] = []
    before = layer(start, made if lazy else None)
    module = run(before, calls)
    weight, flag = module.weight, module.training
    expected = autodiff if start == AUTODIFF or plain is None else plain

    assert not made
    assert weight.is_initialized != lazy
    a, ad = letters(weight.trainable), letters(weight.device.is_autodiff)
    assert a + ad == expected[1:3]
    value = weight.val()
    e, ad = letters(value.is_require_grad), letters(value.device.is_autodiff)
    assert e + a + ad + letters(flag.is_enabled, flag.configured) == expected
    assert value.is_tracked == value.is_require_grad
    assert state_of(before.weight) == State("L" if start == AUTODIFF else "P", True)
    assert state_of(before.training) == State("T", True)


GROUP_SEQUENCES: Final = [
    # weight e a, bias e a, flag f fa
    ("unfreeze", "TT FF TT"),
    ("set_require_grad(True)", "TT FF FF"),
]


@pytest.mark.parametrize("start", [AUTODIFF, "cpu:0"])
@pytest.mark.parametrize(("call", "expected"), GROUP_SEQUENCES)
def test_a_group_of_a_frozen_snapshot_trains_again(call: str, expected: str, start: str):
    """M52, the last two rows of the table: a group of the ids of the weight and the flag."""
    weight, bias = Param(numbers(2, device=start)), Param(numbers(1, device=start))
    module = Holder(weight=weight, bias=bias, training=Flag(True))
    group = ParamGroup.from_ids([module.weight.id, module.training.id])
    trained = GROUP_CALLS[call](module.freeze().valid(), group).train()

    pairs = [(p.val().is_require_grad, p.trainable) for p in (trained.weight, trained.bias)]
    pairs.append((trained.training.is_enabled, trained.training.configured))
    assert " ".join(letters(*pair) for pair in pairs) == expected


# Each call, on each state


@pytest.mark.parametrize("call", CELLS)
@pytest.mark.parametrize("state", STATES, ids=lambda s: f"{s.value}-{letters(s.configured)}")
def test_each_call_does_to_each_state_what_the_model_says(call: str, state: State):
    """M51, M49, and the model of the laws: no value is changed, no id, nothing of the module before."""
    before = Holder(leaf=leaf_in(state))
    expected = after(call, state)
    if expected.value == ERROR:
        with pytest.raises(AutodiffError):
            CALLS[call](before)
    else:
        leaf = CALLS[call](before).leaf
        assert state_of(leaf) == expected
        assert leaf.id == before.leaf.id
        if isinstance(leaf, Param):
            assert leaf.val().tobytes() == before.leaf.val().tobytes()
            assert leaf.mappers == before.leaf.mappers
        if expected == state and call != "load_record" and not call.startswith("fork"):
            assert leaf is before.leaf or call == "to_device elsewhere"
    assert state_of(before.leaf) == state


@pytest.mark.parametrize("call", GROUP_CALLS)
@pytest.mark.parametrize("state", STATES, ids=lambda s: f"{s.value}-{letters(s.configured)}")
def test_a_group_form_does_the_same_to_what_matches_and_nothing_to_the_rest(call: str, state: State):
    """M52, M91, M113: by path or by id; the rest is the same object, and recorded ones there do no harm."""
    before = Holder(first=leaf_in(state, 1), second=leaf_in(state, 2))
    expected = after(call, state)
    for group in (ParamGroup.from_path("first"), ParamGroup.from_ids([1])):
        if expected.value == ERROR:
            with pytest.raises(AutodiffError):
                GROUP_CALLS[call](before, group)
        else:
            module = GROUP_CALLS[call](before, group)
            assert state_of(module.first) == expected
            assert module.second is before.second
    assert GROUP_CALLS[call](before, ParamGroup.from_path("neither")).first is before.first


@pytest.mark.parametrize("device", ["cpu:0", AUTODIFF])
@pytest.mark.parametrize("call", [name for name in CALLS if not name.endswith("elsewhere")])
def test_only_association_and_flags_of_other_children_change(call: str, device: str):
    """M35, M58, M95, M96: integers, running states and constants never train; `train` and `valid` associate them."""
    before = Holder(steps=Param(zeros((2,), device=device, dtype="int64")), block=Block(2, device))
    module = CALLS[call](before)
    autodiff = {"train": True, "valid": False}.get(call, device == AUTODIFF)

    for tensor in (
        module.steps.val(), module.block.steps.val(), module.block.mean.value(), module.block.table,
    ):  # fmt: skip
        assert tensor.device.is_autodiff == autodiff
        assert not tensor.is_tracked
    assert not module.steps.trainable
    assert module.block.mean is not before.block.mean
    assert module.block.mean.id == before.block.mean.id
    if call != "load_record" and autodiff == (device == AUTODIFF):
        assert module.steps is before.steps
        assert module.block.table is before.block.table
        assert module.block.mean.value() is before.block.mean.value()


def test_a_group_that_matches_a_running_state_or_an_integer_changes_nothing_of_it():
    """M91, M95, M96."""
    before = Block(2, AUTODIFF)
    for call in GROUP_CALLS.values():
        module = call(before, ParamGroup.from_paths(["mean", "steps"]))
        assert module.steps is before.steps
        assert module.mean.value() is before.mean.value()
        assert module.linear is before.linear
        assert module.training is before.training


def test_no_grad_and_groups_of_everything_are_the_whole_forms():
    """M53, M113."""
    for call, form in GROUP_CALLS.items():
        whole, of_group = CALLS[call](Block(2, AUTODIFF)), form(Block(2, AUTODIFF), ParamGroup.all())
        for path in paths(whole):
            if path != "mean":
                assert state_of(whole.at(path)) == state_of(of_group.at(path))


# Refusals


def recorded(made: list[Device]) -> Any:
    """Two parameters that were moved, one frozen before that, a lazy one, and a flag that is off."""
    linear = Holder(weight=Param(numbers(2, device=AUTODIFF)), bias=Param(numbers(2, device=AUTODIFF)))
    frozen = Holder(weight=Param(numbers(2, device=AUTODIFF))).to_device("cpu:1")
    frozen = Holder(weight=Param.initialized(5, frozen.weight.val()))
    moved = linear.to_device("cpu:1")
    return Holder(
        on=Flag(False), lazy=LazyLinear(1, 1, "cpu:1+autodiff", made), linear=moved, frozen=frozen, tied=moved.weight
    )


@pytest.mark.parametrize("call", REFUSED)
def test_a_call_that_would_train_what_was_recorded_is_refused_with_all_paths(call: str):
    """M49, L44: in visit order, before anything is made or changed; `train` leaves out what is not configured to."""
    made: list[Device] = []
    module = recorded(made)
    named = ["linear.weight", "linear.bias", "tied"] if call == "train" else [
        "linear.weight", "linear.bias", "frozen.weight", "tied"]  # fmt: skip
    kept = {path: module.at(path) for path in paths(module)}
    method = call.partition("(")[0]
    with pytest.raises(AutodiffError, match=rf"^{method}: {', '.join(named)} were moved by to_device.*fork"):
        CALLS[call](module)

    assert not made
    assert not module.on.is_enabled
    assert all(module.at(path) is leaf for path, leaf in kept.items())
    assert [state_of(module.at(path)).value for path in ("linear.weight", "frozen.weight")] == ["N", "N"]


@pytest.mark.parametrize("call", ["unfreeze", "set_require_grad(True)"])
def test_a_group_form_is_refused_for_what_it_matches_only(call: str):
    """M49, M52: and tells the name of the method."""
    module = recorded([])
    method = call.partition("(")[0]
    with pytest.raises(AutodiffError, match=rf"^{method}_group: linear\.bias was moved by to_device"):
        GROUP_CALLS[call](module, ParamGroup.from_regex("bias|lazy"))

    assert GROUP_CALLS[call](module, ParamGroup.from_predicate("lazy")).lazy.weight.val().is_require_grad


def test_a_refusal_of_a_large_module_stays_short():
    """M49: twenty paths, and how many more."""
    module = Holder(blocks=[Holder(a=Param(numbers(1, device=AUTODIFF))) for _ in range(25)]).to_device("cpu:1")
    with pytest.raises(AutodiffError, match=r"blocks\.19\.a and 5 more were moved"):
        module.train()


def test_a_moved_module_trains_again_after_no_grad_and_as_a_fork():
    """M42, M49, M70: both cut what was recorded."""
    module = Holder(weight=Param(numbers(2, device=AUTODIFF)))
    moved = module.to_device("cpu:1")

    assert state_of(moved.no_grad().unfreeze().weight) == State("L", True)
    assert state_of(module.fork("cpu:1").train().weight) == State("L", True)
    assert state_of(moved.valid().train().weight) == State("L", True)
    assert state_of(moved.fork("cpu:2").train().weight) == State("L", True)


@pytest.mark.parametrize("method", ["freeze_group", "unfreeze_group", "set_require_grad_group"])
def test_a_group_is_asked_for_by_name(method: str):
    """A path alone is a likely mistake."""
    arguments = (True,) if method == "set_require_grad_group" else ()
    with pytest.raises(TypeError, match=f"{method} takes a ParamGroup, not 'blocks'"):
        getattr(Holder(), method)("blocks", *arguments)


# Lazy parameters and clones


@pytest.mark.parametrize("other_first", [False, True])
@pytest.mark.parametrize(
    "call", ["set_require_grad(False)", "freeze", "valid", "fork elsewhere", "to_device elsewhere"]
)
def test_a_switch_of_one_version_of_a_lazy_parameter_is_not_seen_by_another(call: str, other_first: bool):
    """M26, M27, M47, M63: whoever is read first; both see the one value that was made."""
    made: list[Device] = []
    module = layer(AUTODIFF, made)
    clone, derived = module.clone(), CALLS[call](module)
    expected = after(call, State("L", True))
    if call == "to_device elsewhere":
        expected = State("L", True)  # D3: still lazy, so a leaf of its own

    first, second = (derived, clone) if not other_first else (clone, derived)
    values = [first.weight.val(), second.weight.val(), module.weight.val()]
    assert state_of(clone.weight) == state_of(module.weight) == State("L", True)
    assert state_of(derived.weight) == expected
    assert made == [first.weight.device]
    assert len({value.tobytes() for value in values}) == 1


def test_to_device_of_a_value_that_another_version_made_is_recorded():
    """D3: lazy means that the shared cell has no value, whichever version would make it."""
    module = layer(AUTODIFF, [])
    before = module.to_device("cpu:1")
    module.no_grad().weight.val()
    afterwards = module.to_device("cpu:1")

    assert state_of(before.weight) == State("L", True)
    assert state_of(afterwards.weight) == State("N", True)


def test_a_moved_lazy_module_can_be_switched_and_trained():
    """M46, M49, D3: it was not recorded."""
    for call in REFUSED:
        made: list[Device] = []
        moved = CALLS[call](layer(AUTODIFF, made).to_device("cpu:1"))

        assert not made
        assert state_of(moved.weight) == State("L", True)
        assert str(moved.weight.val().device) == "cpu:1+autodiff"


def test_what_is_loaded_takes_the_wish_of_the_version_that_is_loaded():
    """M27, M34: not that of another clone."""
    module = layer(AUTODIFF, [])
    frozen = module.freeze()
    record = layer("cpu:0", None).replace(weight=Param(zeros((2, 1), device="cpu:0"))).into_record()

    assert state_of(frozen.load_record(record).weight) == State("U", False)
    assert state_of(module.load_record(record).weight) == State("L", True)
