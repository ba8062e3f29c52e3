"""Running states: the one child that changes (M93 to M97)."""

import copy
import threading

import numpy as np
import pytest

from engine import Tensor, zeros
from modules import Module, ModuleError, ModuleMapper, ModuleVisitor, Param, RunningState
from records import ModuleRecord

from .small_modules import AUTODIFF, numbers


class Norm(Module):
    """A mean, held twice."""

    def __init__(self, device: str = "cpu:0") -> None:
        self.mean = RunningState(numbers(2, device=device))
        self.same = self.mean


def test_an_update_shows_at_once():
    """M94: it gives the new value, and gets the one before."""
    state = RunningState(numbers(2))
    given: list[Tensor] = []

    def update(value: Tensor) -> Tensor:
        given.append(value)
        return value * 2

    before = state.value()
    after = state.update(update)

    assert given[0] is before
    assert after is state.value()
    assert np.array_equal(after.numpy(), [2, 4])
    assert np.array_equal(before.numpy(), [1, 2])


def test_it_is_never_trainable():
    """M96: neither at first nor after an update, nor through a mapper."""
    leaf = numbers(2, device=AUTODIFF).require_grad()
    state = RunningState(leaf)
    state.update(lambda value: leaf)

    assert not state.value().is_require_grad
    assert state.value().device.is_autodiff


def test_updates_of_threads_take_turns():
    """M94: none is lost."""
    state = RunningState(zeros((1,), device="cpu:0", dtype="float64"))

    def add() -> None:
        for _ in range(200):
            state.update(lambda value: value + 1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert float(state.value()) == 800


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda value: 3, "gave a int, not a Tensor"),
        (lambda value: numbers(3), r"\(3,\).*it holds \(\(2,\)"),
        (lambda value: value.cast("float64"), "float64.*it holds"),
        (lambda value: value.to_device("cpu:1"), "cpu:1.*it holds"),
    ],
)
def test_an_update_that_does_not_fit_is_refused_and_changes_nothing(result, words: str):
    """ModuleError, naming both."""
    state = RunningState(numbers(2))
    with pytest.raises(ModuleError, match=words):
        state.update(result)

    assert np.array_equal(state.value().numpy(), [1, 2])


def test_an_update_that_raises_changes_nothing_and_holds_no_lock():
    """The next one succeeds, from another thread too."""
    state = RunningState(numbers(2))

    def failing(value: Tensor) -> Tensor:
        raise KeyError("x")

    with pytest.raises(KeyError):
        state.update(failing)
    thread = threading.Thread(target=lambda: state.update(lambda value: value + 1))
    thread.start()
    thread.join(10)

    assert np.array_equal(state.value().numpy(), [2, 3])


def test_it_holds_floats():
    """M93."""
    for value in (zeros((1,), device="cpu:0", dtype="int64"), [1.0]):
        with pytest.raises(ModuleError, match="a running state holds a Tensor of floats"):
            RunningState(value)  # pyright: ignore[reportArgumentType]


def test_visitors_and_mappers_see_a_parameter():
    """M95: of its id and value, made, not trainable, without mappers; of the answer only the value counts."""
    module = Norm()
    shown: list[Param] = []

    class Doubling(ModuleMapper):
        def map_float(self, path: str, param: Param, /) -> Param:
            shown.append(param)
            return param.map(lambda value: value * 2).with_id(5).with_mappers(save=lambda value: value)

    class Showing(ModuleVisitor):
        def visit_float(self, path: str, param: Param, /) -> None:
            shown.append(param)

    module.visit(Showing())
    mapped = module.map(Doubling())

    assert [param.id for param in shown] == [module.mean.id] * 4
    assert not any(param.trainable for param in shown)
    assert mapped.mean.id == module.mean.id
    assert np.array_equal(mapped.mean.value().numpy(), [2, 4])
    assert np.array_equal(module.mean.value().numpy(), [1, 2])


def test_every_derived_module_has_its_own():
    """M97: over the same value; only the module that runs changes. Tied ones stay tied (D8)."""
    module = Norm()
    derived = [
        module.clone(), module.fork("cpu:0"), module.to_device("cpu:0"), module.train(), module.valid(),
        module.map(ModuleMapper()), module.replace(), module.load_record(module.into_record()),
        module.load_record(ModuleRecord().with_options(allow_partial=True)),
    ]  # fmt: skip
    for other in derived:
        assert other.mean is other.same
        assert other.mean is not module.mean
        assert other.mean.id == module.mean.id
        other.mean.update(lambda value: value + 1)
    module.mean.update(lambda value: value * 10)

    assert all(np.array_equal(other.mean.value().numpy(), [2, 3]) for other in derived)
    assert np.array_equal(module.mean.value().numpy(), [10, 20])


def test_a_copy_is_a_state_of_its_own():
    """As a clone of the module would have it."""
    state = RunningState(numbers(2))
    for copied in (copy.copy(state), copy.deepcopy(state)):
        assert copied.id == state.id
        copied.update(lambda value: value + 1)
    assert np.array_equal(state.value().numpy(), [1, 2])


def test_its_value_follows_moves_train_and_valid():
    """M43, M58."""
    module = Norm(AUTODIFF)

    assert str(module.valid().mean.value().device) == "cpu:0"
    assert str(module.valid().train().mean.value().device) == AUTODIFF
    assert str(module.fork("cpu:1").mean.value().device) == "cpu:1+autodiff"
    assert "RunningState(float32 [2] on cpu:0+autodiff, id " in repr(module.mean)
