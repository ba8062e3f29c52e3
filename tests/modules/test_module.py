"""Modules: how they are made, what is refused with which words, and the values that their methods give."""

import inspect
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from engine import Device, Tensor, ones, zeros
from modules import (
    EnumModule,
    Flag,
    FrozenModuleError,
    Module,
    ModuleError,
    Param,
    PathError,
    RunningState,
    list_param_ids,
    skip,
)

from .small_modules import AUTODIFF, Block, Holder, LazyLinear, Linear, Stack, numbers, paths

# Construction


def test_fields_are_what_the_constructor_assigned_in_order_of_first_assignment():
    """M2: no call of super().__init__ is needed, and a second assignment keeps the place of the first."""

    class Two(Module):
        def __init__(self) -> None:
            self.b = 1
            self.a = Flag(True)
            self.b = Flag(False)

    assert list(Two().fields()) == ["b", "a"]
    assert paths(Two()) == ["b", "a"]


def test_a_module_is_called_as_its_forward():
    """DESIGN: with all arguments."""

    class Scale(Module):
        def forward(self, x: int, *, by: int = 2) -> int:
            return x * by

    assert Scale()(3) == 6
    assert Scale()(3, by=3) == 9


def test_assigning_after_construction_is_refused_and_names_replace():
    """Principle 1: also from forward, and as AttributeError."""

    class Counting(Module):
        def __init__(self) -> None:
            self.count = 0

        def forward(self) -> None:
            self.count = self.count + 1

    module = Counting()
    with pytest.raises(FrozenModuleError, match=r"Counting.count: a module is a value .* module.replace\(count=…\)"):
        module.count = 3
    with pytest.raises(FrozenModuleError):
        module()
    with pytest.raises(AttributeError):
        module.other = 3
    with pytest.raises(FrozenModuleError, match=r"Counting.count: .* cannot be deleted"):
        del module.count
    assert module.count == 0


def test_a_constructor_may_assign_read_and_delete():
    """It is frozen when the call of the class returns, not before; derived classes included."""

    class Base(Module):
        def __init__(self) -> None:
            self.a = 1

    class Derived(Base):
        def __init__(self) -> None:
            super().__init__()
            self.b = self.a + 1
            del self.a
            self.c = self.b

    assert Derived().fields() == {"b": 2, "c": 2}


def test_a_constructor_that_raises_leaves_nothing_behind():
    """Its error comes out as it is."""

    class Broken(Module):
        def __init__(self) -> None:
            self.a = 1
            raise KeyError("a")

    with pytest.raises(KeyError):
        Broken()


def test_an_abstract_module_cannot_be_made():
    """The metaclass derives from ABCMeta."""

    class Shape(Module):
        @abstractmethod
        def forward(self) -> None: ...

    class Round(Shape):
        def forward(self) -> None:
            return None

    with pytest.raises(TypeError, match="abstract"):
        Shape()
    assert Round().fields() == {}


def test_a_dataclass_can_be_a_module():
    """Its fields are the module's; comparing, hashing and showing stay the module's."""

    @dataclass
    class Scaled(Module):
        weight: Param
        factor: float = 2.0
        rest: list[Any] = field(default_factory=list)

    weight = Param(numbers(2))
    module = Scaled(weight)

    assert module.fields() == {"weight": weight, "factor": 2.0, "rest": []}
    assert paths(module) == ["weight"]
    assert module != Scaled(weight)
    assert len({module, Scaled(weight)}) == 2
    assert repr(module) == "Scaled(factor=2.0) on cpu:0, 2 params: weight float32 [2], rest empty list"
    with pytest.raises(FrozenModuleError):
        module.factor = 3.0
    assert module.replace(factor=3.0).factor == 3.0


def test_a_frozen_dataclass_can_be_a_module():
    """Its own freezing gives way to ours."""

    @dataclass(frozen=True)
    class Scaled(Module):
        factor: float

    with pytest.raises(FrozenModuleError, match="replace"):
        Scaled(1.0).factor = 2.0  # pyright: ignore[reportAttributeAccessIssue]
    assert Scaled(1.0).replace(factor=2.0).factor == 2.0


def test_slots_are_refused():
    """A module keeps its fields in its dictionary."""
    with pytest.raises(ModuleError, match="slots=True"):

        @dataclass(slots=True)
        class Slotted(Module):
            factor: float

    with pytest.raises(ModuleError, match="__slots__"):

        class Other(Module):
            __slots__ = ("a",)


def test_a_cached_property_is_no_field():
    """DESIGN: neither one that is read afterwards, nor one that the constructor reads."""

    class Cached(Module):
        def __init__(self, early: bool) -> None:
            self.weight = Param(numbers(2))
            if early:
                assert self.doubled.shape == (2,)

        @cached_property
        def doubled(self) -> Tensor:
            return self.weight.val() * 2

    for module in (Cached(True), Cached(False)):
        assert np.array_equal(module.doubled.numpy(), [2, 4])
        assert list(module.fields()) == ["weight"]
        assert np.array_equal(module.replace(weight=Param(numbers(2, start=5))).doubled.numpy(), [10, 12])


# What is refused


@pytest.mark.parametrize("name", ["a.b", "", "."])
def test_a_name_that_is_no_component_is_refused(name: str):
    """M10: for fields, and for keys at any depth."""
    with pytest.raises(PathError, match="cannot be part of a path"):
        Holder(**{name: Flag(True)})
    with pytest.raises(PathError, match=r"under 'a\.0' cannot be part of a path"):
        Holder(a=[{name: Flag(True)}])


def test_a_key_that_is_no_string_is_refused():
    """M10: the message names the key and where it is."""
    with pytest.raises(PathError, match="key 3 under 'heads' is no string"):
        Holder(heads={3: Flag(True)})


@pytest.mark.parametrize("name", ["map", "visit", "devices", "display", "display_content", "fields", "at", "train"])
def test_a_field_named_like_a_method_is_refused(name: str):
    """DESIGN: it would hide the method."""
    with pytest.raises(PathError, match=f"no field can be called '{name}'"):
        Holder(**{name: 1})


@pytest.mark.parametrize("name", ["_children", "_fields", "_skipped"])
def test_the_names_that_a_module_keeps_itself_in_are_refused(name: str):
    """Other private names are free."""
    with pytest.raises(PathError, match=name):
        Holder(**{name: 1})
    assert Holder(_mine=1).fields() == {"_mine": 1}


def test_a_module_that_holds_itself_is_refused():
    """M10: directly, in a container, or through a child that is given its parent."""

    class Child(Module):
        def __init__(self, parent: Module) -> None:
            self.parent = parent

    class Parent(Module):
        def __init__(self, how: str) -> None:
            self.inner = {"self": self, "list": [[self]], "child": None}[how]
            if how == "child":
                self.child = Child(self)

    for how, where in (("self", "inner"), ("list", r"inner\.0\.0"), ("child", "parent")):
        with pytest.raises(PathError, match=f"{where}: the Parent is still being constructed"):
            Parent(how)


def test_a_container_that_holds_itself_is_refused():
    """M10: with children or with configuration alone."""
    inner: list[Any] = [Flag(True)]
    inner.append(inner)
    with pytest.raises(PathError, match=r"a\.1: the list holds itself"):
        Holder(a=inner)
    plain: dict[str, Any] = {"x": 1}
    plain["y"] = [plain]
    with pytest.raises(PathError, match="holds itself"):
        Holder(a=plain)
    plain["y"] = plain
    with pytest.raises(PathError, match="a: the dict holds itself"):
        Holder(a=plain)


@pytest.mark.parametrize("held", [np.zeros(2), [np.zeros(2)], {"a": (1, np.zeros(2))}])
def test_an_array_is_refused_with_three_ways_out(held: Any):
    """DESIGN: it has no device; at any depth."""
    with pytest.raises(ModuleError, match=r"a: an array .* tensor\(…, device=…\) .* Param\(.*\) .* skip\(array\)"):
        Holder(a=held)


def test_an_array_that_is_skipped_is_configuration():
    """As the message says."""
    array = np.zeros(2)

    assert Holder(a=skip(array)).a is array


def test_numpy_numbers_are_configuration():
    """They are no arrays."""
    assert Holder(a=np.float32(2), b=np.int64(3)).fields() == {"a": np.float32(2), "b": 3}


@dataclass
class Settings:
    """A dataclass as configuration."""

    value: Any


@pytest.mark.parametrize(
    "child", [Param(zeros((1,), device="cpu:0")), zeros((1,), device="cpu:0"), Linear(1, 1), Flag(True)]
)
def test_a_set_or_dataclass_that_hides_a_child_is_refused(child: Any):
    """DESIGN: no walk would find it; also where it is held in a list inside."""
    for hiding in ({child}, frozenset([child]), Settings(child), Settings([{"a": child}]), [1, Settings((child,))]):
        with pytest.raises(
            ModuleError, match=f"a: .* holds a {type(child).__name__} would hide it; keep it in a field"
        ):
            Holder(a=hiding)


def test_a_set_or_dataclass_of_configuration_is_configuration():
    """Nothing is hidden."""
    module = Holder(a={1, 2}, b=Settings("x"), c=Settings)

    assert module.fields() == {"a": {1, 2}, "b": Settings("x"), "c": Settings}
    assert paths(module) == []


def test_a_parameter_cannot_be_skipped():
    """M4: at definition time."""
    for leaf in (Param(numbers(1)), Flag(True), RunningState(numbers(1))):
        with pytest.raises(ModuleError, match=f"a {type(leaf).__name__} cannot be skipped"):
            skip(leaf)


# Reading


def test_fields_are_all_that_was_set_and_cannot_be_changed():
    """DESIGN: configuration and skipped ones included."""
    inner = Linear(1, 1)
    module = Holder(a=1, b=skip(inner), c=None, d=[inner])

    assert module.fields() == {"a": 1, "b": inner, "c": None, "d": [inner]}
    with pytest.raises(TypeError):
        module.fields()["a"] = 2  # pyright: ignore[reportIndexIssue]


def test_at_gives_what_stands_at_a_path():
    """Parameters, flags, running states, constants, modules, containers and the module itself."""
    module = Stack(2, ["cpu:0", "cpu:0"])

    assert module.at("") is module
    assert module.at("head") is module.at("blocks.0.linear.weight") is module.head
    assert module.at("blocks") is module.blocks
    assert module.at("blocks.1.training") is module.blocks[1].training
    assert module.at("blocks.1.table") is module.blocks[1].table
    assert module.at("blocks.1.mean") is module.blocks[1].mean
    pair = Holder(pair=(Flag(True), 3))
    assert pair.at("pair") is pair.pair
    assert pair.at("pair.0") is pair.pair[0]


@pytest.mark.parametrize("path", ["blocks.2", "blocks.0.linear.wieght", "heads", "head.x", "blocks..0", "."])
def test_at_a_path_that_leads_nowhere_names_the_nearest_paths(path: str):
    """PathError; the suggestions are paths of the module."""
    module = Stack(2, ["cpu:0", "cpu:0"])
    with pytest.raises(PathError, match="there is nothing at .*; the nearest are '") as caught:
        module.at(path)

    assert all(module.at(near) is not None for near in str(caught.value).split("'")[3::2])


def test_at_finds_no_configuration_and_no_absent_optional():
    """M3, M9: nothing of the tree is there."""
    for path in ("size", "bias"):
        with pytest.raises(PathError, match="there is nothing"):
            Holder(size=3, bias=None, on=Flag(True)).at(path)
    with pytest.raises(PathError, match="the module has no paths"):
        Holder(size=3).at("size")


def test_devices_are_listed_once_in_traversal_order():
    """M36 to M39: constants count, flags do not; the handle first met is kept."""
    module = Holder(a=Flag(True), b=numbers(1, device="cpu:1"), c=Linear(1, 1, AUTODIFF), d=Linear(1, 1, "cpu:0"))

    assert list(map(str, module.devices())) == ["cpu:1", AUTODIFF]
    assert list(map(str, module.collect_devices(["cpu:0", "cpu:3", "cpu:3"]))) == ["cpu:0", "cpu:3", "cpu:3", "cpu:1"]
    assert Holder(a=Flag(True), b=3).devices() == []


def test_parameters_of_floats_and_running_states_are_counted():
    """M99, M100: rank 0 counts one; tied ones at each place; nothing is made."""
    made: list[Device] = []

    assert Linear(6, 4).num_params() == 28
    assert Block(2).num_params() == 8
    assert Stack(2, ["cpu:0"]).num_params() == 12
    assert Holder(a=Param(ones((), device="cpu:0")), b=Param(zeros((2, 0), device="cpu:0"))).num_params() == 1
    assert LazyLinear(3, 4, made=made).num_params() == 12
    assert not made


def test_modules_are_equal_and_hashed_by_identity():
    """DESIGN."""
    module = same = Linear(1, 1)

    assert module == same
    assert module != module.clone()
    assert {module: 1}[module] == 1


def test_ids_are_listed_in_visit_order_without_flags():
    """M77: running states included."""
    module = Block(2)

    assert list_param_ids(module) == [
        module.linear.weight.id, module.linear.bias.id, module.steps.id, module.mean.id
    ]  # fmt: skip


# Names and attributes of users' classes


def test_a_wrapper_that_forwards_attributes_is_frozen():
    """A user's ``__getattr__`` is not asked whether the module is constructed."""

    class Wrapper(Module):
        def __init__(self, inner: Module) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    wrapper = Wrapper(Linear(1, 1))

    assert wrapper.d_input == 1
    assert paths(wrapper) == ["inner.weight", "inner.bias"]
    with pytest.raises(FrozenModuleError):
        wrapper.inner = None
    assert Holder(a=wrapper).a is wrapper


PRIVATE = [name for name in dir(Module) if not name.startswith(("__", "_abc_"))]


@pytest.mark.parametrize("name", [name for name in PRIVATE if name.startswith("_")])
def test_a_private_name_of_the_base_class_is_refused_at_once(name: str):
    """As a field, a method, an annotation, in a mixin: it would take the place of ours."""
    with pytest.raises(PathError, match=f"no field can be called '{name}'"):
        Holder(**{name: 1})
    with pytest.raises(ModuleError, match=f"Mine: no class can define '{name}'"):
        type(Module)("Mine", (Holder,), {"__module__": __name__, name: lambda self: None})
    with pytest.raises(ModuleError, match=f"Mine: no class can define '{name}'"):
        type(Module)("Mine", (Module,), {"__module__": __name__, "__annotations__": {name: int}})
    mixin = type("Mixin", (), {name: 1})
    with pytest.raises(ModuleError, match=f"Mixin: no class can define '{name}'"):
        type(Module)("Mine", (mixin, Module), {"__module__": __name__})
    with pytest.raises(PathError, match=f"no field can be called '{name}'"):
        EnumModule(name, Flag(True))


def test_public_methods_of_the_base_class_can_be_overridden():
    """As Python has it."""

    class Mine(Module):
        def display_content(self) -> list[tuple[str, Any]]:
            return [("mine", 1)]

        def _own(self) -> int:
            return 1

    assert "mine: 1" in Mine().display()


def test_a_path_that_is_no_string_is_refused():
    """The message shows it."""
    with pytest.raises(PathError, match="not 3"):
        Holder(a=[Linear(1, 1)]).at(3)  # pyright: ignore[reportArgumentType]


def test_the_signature_of_a_class_is_that_of_its_constructor():
    """So `help` shows the arguments."""

    @dataclass
    class Pair(Module):
        a: int
        b: int = 2

    class Empty(Module):
        pass

    assert str(inspect.signature(Linear)) == "(d_input: int, d_output: int, device: str = 'cpu:0', bias: bool = True)"
    assert str(inspect.signature(Pair)) == "(a: int, b: int = 2)"
    assert str(inspect.signature(Empty)) == "()"
