"""Draws: numbers of a layer's own; every derived module takes their count along, a record holds it (DESIGN, Draws)."""

import copy
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Device, DTypeError, Seed, Tensor
from modules import (
    Draws,
    Module,
    ModuleError,
    ModuleMapper,
    ModuleVisitor,
    Param,
    ParamGroup,
    RunningState,
    display,
    list_param_ids,
    skip,
)
from modules.parallel import DistributedLayeredModel, LayerParallelism, LayerPlacement
from records import ModuleRecord

from .small_modules import AUTODIFF, Holder, numbers

PLACES: Final = ("cpu:0", "cpu:1", AUTODIFF)


def philox(seed: int, index: int, count: int) -> np.random.Generator:
    """What the n-th draw of the `index`-th key of a seed is made with: Philox, keyed by both, from the n-th part on."""
    key, counter = np.array([seed, index], "u8"), np.array([0, 0, 0, count], "u8")
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


class Layer(Module):
    """Draws, a weight to share, and draws in a list."""

    def __init__(self, seed: int = 5, device: str = "cpu:0") -> None:
        stream = Seed(seed)
        self.weight = Param(numbers(2, device=device))
        self.draws = Draws(stream)
        self.more = [Draws(stream), None, numbers(1, device=device)]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.draws.uniform(x.shape, x.device)


# The numbers


@given(
    seed=st.integers(0, 2**64 - 1),
    index=st.integers(0, 3),
    calls=st.lists(st.sampled_from(["uniform", "normal"]), min_size=1, max_size=4),
    shape=st.sampled_from([(), (0,), (3,), (2, 5)]),
    place=st.sampled_from(PLACES),
)
def test_the_nth_draw_depends_on_the_key_and_n_alone(seed, index, calls, shape, place):
    """The same on every device; both kinds of numbers count together (L105)."""
    stream = Seed(seed)
    draws = [Draws(stream) for _ in range(index + 1)][-1]
    for count, name in enumerate(calls):
        assert draws.count == count
        drawn = getattr(draws, name)(shape, place)

        generator = philox(seed, index, count)
        expected = generator.random(shape, "f4") if name == "uniform" else generator.standard_normal(shape, "f4")
        assert drawn.device == Device(place)
        assert drawn.device.is_autodiff == Device(place).is_autodiff
        assert not drawn.is_tracked
        assert drawn.numpy().tobytes() == np.asarray(expected).tobytes()
    assert draws.count == len(calls)


def test_seeds_are_those_of_layers():
    """DESIGN, Seed: two of one integer are equal, a stream gives each its own, None differs each time."""
    stream = Seed(3)
    one, other, shared, second = Draws(3), Draws(3), Draws(stream), Draws(stream)

    values = [
        draws.uniform((4,), "cpu:0").tobytes() for draws in (one, other, shared, second, Draws(None), Draws(None))
    ]

    assert values[0] == values[1] == values[2]
    assert len(set(values)) == 4
    with pytest.raises(TypeError, match="seed"):
        Draws("3")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="seed is -1"):
        Draws(-1)


def test_numbers_of_another_dtype_can_be_asked_for():
    """float64 has 53 bits of its own; no integers."""
    assert Draws(1).uniform((3,), "cpu:0", "float64").numpy().tobytes() == philox(1, 0, 0).random(3).tobytes()
    with pytest.raises(DTypeError, match="int64"):
        Draws(1).normal((3,), "cpu:0", "int64")


def test_threads_get_draws_of_their_own():
    """None is drawn twice, and all are counted."""
    draws, seen = Draws(1), []
    start = threading.Barrier(8)

    def draw() -> None:
        start.wait()
        seen.extend([draws.uniform((2,), "cpu:0").tobytes() for _ in range(25)])

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert draws.count == 200
    assert sorted(seen) == sorted(philox(1, 0, n).random(2, "f4").tobytes() for n in range(200))


# Derived modules

ALL: Final = ParamGroup.all()
DERIVED: Final[dict[str, Callable[[Module], Module]]] = {
    "clone": lambda m: m.clone(),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "fork": lambda m: m.fork("cpu:1"),
    "fork, nowhere else": lambda m: m.fork("cpu:0"),
    "to_device": lambda m: m.to_device("cpu:1"),
    "train": lambda m: m.fork("cpu:0").train(),
    "valid": lambda m: m.valid(),
    "map": lambda m: m.map(ModuleMapper()),
    "replace": lambda m: m.replace(),
    "replace another": lambda m: m.replace(weight=Param(numbers(2))),
    "load_record": lambda m: m.load_record(ModuleRecord().with_options(allow_partial=True)),
    "set_require_grad": lambda m: m.set_require_grad(True) if not _is_recorded(m) else m.no_grad(),
    "set_require_grad_group": lambda m: m.set_require_grad_group(ALL, False),
    "no_grad": lambda m: m.no_grad(),
    "freeze": lambda m: m.freeze(),
    "freeze_group": lambda m: m.freeze_group(ParamGroup.from_path("weight")),
    "unfreeze": lambda m: m.fork("cpu:0").unfreeze(),
    "unfreeze_group": lambda m: m.unfreeze_group(ParamGroup.from_path("nowhere")),
}


def _is_recorded(module: Module) -> bool:
    value = module.at("weight").val()
    return value.is_tracked and not value.is_require_grad


def held(module: Module) -> list[Draws]:
    return [module.at("draws"), module.at("more.0")]


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.one_of(st.integers(0, 1), st.sampled_from(sorted(DERIVED)))),
        min_size=1,
        max_size=12,
    ),
    start=st.sampled_from(["cpu:0", AUTODIFF]),
)
def test_each_version_draws_on_for_itself(steps, start):
    """DESIGN, Draws: a derived module takes the count along; then neither changes the other (L10, L105).

    The model is a count for each version and place.
    """
    versions = [(Layer(7, start), [0, 0])]
    for back, step in steps:
        module, counts = versions[max(0, len(versions) - 1 - back)]
        if isinstance(step, int):
            drawn = held(module)[step].uniform((3,), "cpu:0")
            assert drawn.tobytes() == philox(7, step, counts[step]).random(3, "f4").tobytes()
            counts[step] += 1
        else:
            versions.append((DERIVED[step](module), list(counts)))
        for made, expected in versions:
            assert [draws.count for draws in held(made)] == expected


@pytest.mark.parametrize("name", DERIVED)
def test_every_method_gives_draws_of_its_own(name: str):
    """D8: places that hold the same object stay tied, others stay apart; what stands beside them is shared as ever."""
    one = Draws(1)
    module = Holder(weight=Param(numbers(2)), draws=one, more=[Draws(2)], again={"tied": one}, rest=(numbers(1), one))

    made = DERIVED[name](module)

    first, second = held(made)
    assert first is made.at("again.tied")
    assert first is made.at("rest.1")
    assert first is not one
    assert first is not second
    first.uniform((1,), "cpu:0")
    assert (first.count, second.count, one.count) == (1, 0, 0)


def test_a_replaced_field_brings_its_own_draws():
    """DESIGN, replace: running states and Draws of the new module are its own, those that are handed in too."""
    module, other = Layer(), Draws(9)
    other.uniform((1,), "cpu:0")

    made = module.replace(draws=other)

    assert made.at("draws") is not other
    assert made.at("draws").count == 1
    assert made.at("draws").uniform((2,), "cpu:0").tobytes() == philox(9, 0, 1).random(2, "f4").tobytes()
    assert other.count == 1


class Pair(LayerParallelism):
    """Layers that draw."""

    def __init__(self, placement: LayerPlacement) -> None:
        stream = Seed(1)
        self.first = Drawing(stream, placement.input)
        self.hidden = [Drawing(stream, device) for device in placement.hidden]
        self.last = Drawing(stream, placement.output)

    def layer_input(self) -> Module:
        return self.first

    def layers_hidden(self) -> Any:
        return self.hidden

    def layer_output(self) -> Module:
        return self.last


class Drawing(Module):
    """Adds what it draws."""

    def __init__(self, seed: Seed, device: Device) -> None:
        self.draws = Draws(seed)
        self.weight = Param(numbers(1, device=str(device)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.val() + self.draws.normal(x.shape, x.device)


@pytest.mark.parametrize("name", [name for name in DERIVED if not name.startswith("replace")])
def test_a_wrapped_model_is_treated_as_the_model_is(name: str):
    """P51: the wrapper holds the model itself; what is derived from it has its own, and draws the same numbers on."""
    placement = LayerPlacement("cpu:0", ["cpu:1", "cpu:0"], "cpu:1")
    model = Pair(placement)
    split = DistributedLayeredModel(model, placement)
    x = numbers(3)
    split(x)
    assert [layer.draws.count for layer in (model.first, *model.hidden, model.last)] == [1, 1, 1, 1]

    if name in ("set_require_grad", "set_require_grad_group", "freeze_group"):
        made = split.freeze_group(ParamGroup.from_path("first.weight"))
    else:
        made = DERIVED[name](split)

    expected = [split(x).to_device("cpu:0").tobytes() for _ in range(2)]
    assert [made(x).to_device("cpu:0").tobytes() for _ in range(2)] == expected
    assert made.at("hidden.0.draws").count == split.at("hidden.0.draws").count == 3


# In the tree


class Everything(ModuleVisitor):
    """All that a visitor is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def visit_float(self, path: str, param: Param, /) -> None:
        self.told.append(path)

    def enter_module(self, name: str, container_type: str, /) -> None:
        self.told.append((name, container_type))


class EverythingMapped(ModuleMapper):
    """All that a mapper is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def map_float(self, path: str, param: Param, /) -> Param:
        self.told.append(path)
        return param

    def enter_module(self, name: str, container_type: str, /) -> None:
        self.told.append((name, container_type))


def test_walks_pass_draws_over():
    """DESIGN, Draws: they are not visited; neither walk enters them, and nothing is counted or moved."""
    module, visitor, mapper = Layer(), Everything(), EverythingMapped()

    module.visit(visitor)
    module.map(mapper)

    inside = [("weight", "Struct:Layer"), "weight", ("more", "Struct:Layer"), ("1", "Vec"), ("2", "Vec")]
    assert visitor.told == mapper.told == inside
    assert module.num_params() == 2
    assert list_param_ids(module) == [module.weight.id]
    assert ALL.paths(module) == ["weight"]
    assert Holder(draws=Draws(1)).devices() == []
    assert not ParamGroup.ids_from_module(Holder(draws=Draws(1))).matches_path("draws")


def test_they_are_found_by_name_and_by_path():
    """DESIGN: fields, at."""
    module = Layer()

    assert module.fields()["draws"] is module.draws is module.at("draws")
    assert module.at("more.0") is module.more[0]
    assert module.more[1:] == [None, module.more[2]]


def test_what_a_module_shows_of_them():
    """`display` is Burn's text, which has no such thing; `repr` tells the count."""
    module = Layer()
    module.draws.uniform((1,), "cpu:0")

    assert "draws" not in module.display()
    assert display(Holder(draws=Draws(1))) == "Holder"
    assert "draws: 1 so far" in repr(module)
    assert repr(module.draws) == "Draws(1 so far)"


@dataclass
class Hiding:
    draws: Draws


def test_where_they_would_be_lost_they_are_refused():
    """M3, M4: as other children, in an object that walks do not enter, or marked by skip; nor are they pickled."""
    with pytest.raises(ModuleError, match="a Hiding that holds a Draws would hide it"):
        Holder(hidden=Hiding(Draws(1)))
    with pytest.raises(ModuleError, match="a Draws cannot be skipped"):
        Holder(draws=skip(Draws(1)))
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(Draws(1))
    one = Draws(1)
    assert copy.copy(one) is not one
    assert copy.deepcopy([one])[0] is not one


def test_draws_beside_a_running_state_change_nothing_of_it():
    """M97: each derived module has both of its own."""
    module = Holder(state=RunningState(numbers(2)), draws=Draws(1))

    made = module.clone()
    made.at("state").update(lambda value: value + 1)
    made.at("draws").uniform((1,), "cpu:0")

    assert module.at("state").value().tobytes() == numbers(2).tobytes()
    assert module.at("draws").count == 0
