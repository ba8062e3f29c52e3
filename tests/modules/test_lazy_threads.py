"""Lazy parameters under threads, and initialisers that read other parameters (L21, L26)."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from engine import Device, Tensor, tensor
from modules import Module, ModuleError, Param
from tests.laws.law import inside

THREADS: Final = 8
ROUNDS: Final = 50
WAIT: Final = 30.0  # seconds; a thread that is not back by then hangs

pytestmark = pytest.mark.timeout(240)


@contextmanager
def often_switching() -> Iterator[None]:
    """Threads take turns every microsecond, so that a window between two lines is found."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run the calls in a thread each, started at one barrier; what each gave, or the exception that it raised."""
    barrier = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        barrier.wait(WAIT)
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    with often_switching():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads), "a thread waits without end"
    return results


class Counting:
    """An initialiser that counts its runs, gives another value in each, and lets the first `fails` raise."""

    def __init__(self, fails: int = 0) -> None:
        self.runs = 0
        self.fails = fails

    def __call__(self, device: Device, require_grad: bool) -> Tensor:
        run = self.runs
        self.runs += 1
        if run < self.fails:
            raise OSError("the initialiser fails")
        return tensor([float(run), 1.0], device=device)


class Holder(Module):
    """One parameter."""

    def __init__(self, weight: Param) -> None:
        self.weight = weight


def family(init: Counting) -> list[Param]:
    """A lazy parameter and what was made of it: clones, other devices, other settings."""
    module = Holder(Param.lazy(init, (2,), "float32", "cpu:0+autodiff"))
    others = (module.clone(), module.to_device("cpu:1"), module.fork("cpu:2"), module.valid(), module.valid().train())
    params = [one.weight for one in (module, *others)]
    return [*params, module.weight.set_require_grad(False), module.weight.with_id(7)]


@inside("L21")
def test_eight_threads_that_read_a_lazy_parameter_see_one_value_made_once() -> None:
    """All on one parameter, or each on another version of it (M24, M118)."""
    for round_ in range(ROUNDS):
        init = Counting()
        versions = family(init) if round_ % 2 else family(init)[:1] * THREADS

        values = together([version.val for version in versions])

        assert [value.tobytes() for value in values] == [values[0].tobytes()] * THREADS
        assert init.runs == 1


DERIVED: Final[dict[str, Callable[[Any], Param]]] = {
    "set_require_grad": lambda module: module.weight.set_require_grad(False),
    "with_id": lambda module: module.weight.with_id(3),
    "with_mappers": lambda module: module.weight.with_mappers(save=abs),
    "clone": lambda module: module.clone().weight,
    "fork": lambda module: module.fork("cpu:1").weight,
    "to_device": lambda module: module.to_device("cpu:1").weight,
    "valid": lambda module: module.valid().weight,
}


@inside("L21")
@pytest.mark.parametrize("how", DERIVED)
def test_versions_made_while_a_value_is_being_made_have_that_value(how: str) -> None:
    """Six threads derive versions while two read the parameter (M24, M26)."""
    for _ in range(4 * ROUNDS):
        init = Counting()
        module = Holder(Param.lazy(init, (2,), "float32", "cpu:0+autodiff"))

        def derive(module: Holder = module) -> list[Param]:
            return [DERIVED[how](module) for _ in range(20)]

        results = together([*[derive] * (THREADS - 2), *[module.weight.val] * 2])

        versions = [version for result in results[:-2] for version in result]
        assert {version.val().tobytes() for version in versions} == {results[-1].tobytes()}
        assert init.runs == 1


@inside("L21")
def test_readers_of_an_initialiser_that_raises_get_its_error_or_a_value() -> None:
    """A later reader runs it again, until it has succeeded once; nobody waits without end (M24, D6)."""
    for round_ in range(ROUNDS):
        init = Counting(fails=round_ % 4)
        results = together([version.val for version in family(init)])

        errors = [result for result in results if isinstance(result, Exception)]
        assert [type(error) for error in errors] == [OSError] * init.fails
        assert {result.tobytes() for result in results if isinstance(result, Tensor)} == {
            tensor([float(init.fails), 1.0], device="cpu:0").tobytes()
        }
        assert init.runs == init.fails + 1


def chain(length: int) -> tuple[list[Param], list[int]]:
    """Lazy parameters each of which adds one to the next; and the order in which their initialisers ran."""
    params: list[Param] = []
    order: list[int] = []

    def initialiser(place: int) -> Callable[[Device, bool], Tensor]:
        def init(device: Device, require_grad: bool) -> Tensor:
            order.append(place)
            if place == length - 1:
                return tensor([1.0], device=device)
            return params[place + 1].val().to_device(device) + 1.0

        return init

    params += [Param.lazy(initialiser(place), (1,), "float32", f"cpu:{place % 2}") for place in range(length)]
    return params, order


@inside("L26")
@pytest.mark.parametrize("length", [1, 2, 3])
def test_an_initialiser_may_read_other_lazy_parameters(length: int) -> None:
    """Each runs once, whichever is read first (M24)."""
    for first in range(length):
        params, order = chain(length)
        params[first].val()
        assert order == list(range(first, length))

        assert [float(param.val()) for param in params] == [float(length - place) for place in range(length)]
        assert sorted(order) == list(range(length))


@inside("L26")
def test_threads_that_start_at_different_ends_of_a_chain_do_not_wait_for_each_other() -> None:
    """Rule M24."""
    for _ in range(ROUNDS):
        params, order = chain(3)
        values = together([params[index % 3].val for index in range(THREADS)])

        assert [float(value) for value in values] == [float(3 - index % 3) for index in range(THREADS)]
        assert sorted(order) == [0, 1, 2]


@inside("L26")
def test_an_initialiser_that_reads_its_own_parameter_is_an_error() -> None:
    """Not a hang, and the parameter stays lazy (DESIGN, Initialisers)."""
    held: list[Param] = []
    held.append(Param.lazy(lambda device, require_grad: held[0].val(), (1,), "float32", "cpu:0"))

    (error,) = together([held[0].val])

    assert isinstance(error, ModuleError)
    assert not held[0].is_initialized


@inside("L26")
def test_two_threads_whose_initialisers_read_each_others_parameter_get_errors() -> None:
    """They do not wait for each other (M24)."""
    for _ in range(ROUNDS):
        held: list[Param] = []
        held.append(Param.lazy(lambda device, _, held=held: held[1].val(), (1,), "float32", "cpu:0"))
        held.append(Param.lazy(lambda device, _, held=held: held[0].val(), (1,), "float32", "cpu:0"))

        errors = together([held[0].val, held[1].val])

        assert [type(error) for error in errors] == [ModuleError, ModuleError]
