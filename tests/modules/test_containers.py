"""Read-only containers of children, and what makes a value a child or configuration (M3, M4, M6)."""

from collections import OrderedDict, namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from modules import Array, Flag, FrozenModuleError, Module, ModuleVisitor, Param, skip

from .small_modules import Linear, numbers


class Holder(Module):
    """One value, as its field."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Entered(ModuleVisitor):
    """What is entered, with its container type."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def enter_module(self, name: str, container_type: str, /) -> None:
        self.seen.append((name, container_type))


def entered(value: Any) -> list[tuple[str, str]]:
    """The components below the field, and the field itself if it is a child."""
    visitor = Entered()
    Holder(value).visit(visitor)
    return visitor.seen


FLAG = Flag(True)
Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ([FLAG, FLAG], [("0", "Vec"), ("1", "Vec")]),
        (Array([FLAG]), [("0", "Array")]),
        ((FLAG, None), [("0", "Tuple"), ("1", "Tuple")]),
        (tuple([FLAG] * 11), [(str(index), "Tuple") for index in range(11)]),
        ({"b": FLAG, "a": FLAG}, [("b", "Dict"), ("a", "Dict")]),
        (Point(FLAG, FLAG), [("0", "Tuple"), ("1", "Tuple")]),
        (OrderedDict(x=FLAG), [("x", "Dict")]),
        ([[FLAG]], [("0", "Vec"), ("0", "Vec")]),
        ([None], [("0", "Vec")]),
        ([], []),
        ((), []),
        ({}, []),
        (None, []),
    ],
)
def test_containers_of_children_are_entered(value: Any, names: list[tuple[str, str]]):
    """M6, M9: empty ones and absent optionals are children too."""
    assert entered(value) == [("value", "Struct:Holder"), *names]


@pytest.mark.parametrize(
    "value",
    [3, "relu", [1, 2], (1, None), {"a": 1}, {3: "x"}, [["a"], [2]], Array([1, 2]), [Array([1])], range(3)],
)
def test_configuration_is_kept_as_it_is(value: Any):
    """M3: the very object, never entered; also lists, tuples and dicts of nothing but configuration and None."""
    assert entered(value) == []
    assert Holder(value).value is value
    assert Holder(value).clone().value is value


@pytest.mark.parametrize("value", [[FLAG, 3], (FLAG, 3), {"0": FLAG, "1": 3}, Array([FLAG, 3])])
def test_configuration_inside_a_container_keeps_its_place_and_is_not_entered(value: Any):
    """DESIGN."""
    assert [name for name, _ in entered(value)] == ["value", "0"]
    held = Holder(value).to_device("cpu:1").value
    assert (held["1"] if isinstance(held, Mapping) else held[1]) == 3


def test_an_empty_list_beside_configuration_is_a_child():
    """DESIGN: an empty list is a container, so the one around it is."""
    assert entered([[], 3]) == [("value", "Struct:Holder"), ("0", "Vec")]


def test_skipped_items_read_as_themselves():
    """M4: in a container of children and in one of configuration."""
    hidden = Linear(1, 1)
    for value in ([skip(hidden), FLAG], [skip(hidden), 3], (skip(hidden), FLAG), {"x": skip(hidden), "y": FLAG}):
        held = Holder(value).value
        assert (held["x"] if isinstance(held, Mapping) else held[0]) is hidden
        assert all(name != "weight" for name, _ in entered(value))
    assert Holder(Array([skip(hidden), 3])).value[0] is hidden
    assert entered(Array([skip(hidden), 3])) == []


def test_the_list_that_was_given_is_copied():
    """A module is a value: what happens to that list afterwards does not matter."""
    blocks = [FLAG]
    module = Holder(blocks)
    blocks.append(Flag(False))

    assert module.value == [FLAG]


def test_a_list_of_children_is_a_sequence():
    """DESIGN: +, slices, == with lists."""
    one, two = Linear(1, 1), Linear(2, 2)
    items = Holder([one, two]).value

    assert isinstance(items, Sequence)
    assert len(items) == 2
    assert items[0] is one
    assert items[-1] is two
    assert items[:1] == [one]
    assert type(items[:]) is list
    assert items + [None] == [one, two, None]  # noqa: RUF005
    assert [None] + items == [None, one, two]  # noqa: RUF005
    assert items == [one, two]
    assert [one, two] == items
    assert items != [one]
    assert items != [two, one]
    assert items != (one, two)
    assert items == Holder([one, two]).value
    assert one in items
    assert list(reversed(items)) == [two, one]
    assert items.index(two) == 1
    assert {items: 1}[items] == 1


def test_lists_of_tensors_are_compared_by_identity():
    """A tensor's own == is elementwise."""
    one = numbers(2)

    assert Holder([one]).value == [one]
    assert Holder([one]).value != [numbers(2)]
    assert Holder({"a": one}).value == {"a": one}
    assert Holder({"a": one}).value != {"a": numbers(2)}


def test_a_dict_of_children_is_a_mapping():
    """DESIGN: in the order in which it was filled."""
    one = Linear(1, 1)
    items = Holder({"b": one, "a": None}).value

    assert isinstance(items, Mapping)
    assert list(items) == ["b", "a"]
    assert items["b"] is one
    assert "a" in items
    assert items.get("c") is None
    assert dict(items) == {"b": one, "a": None} == items
    assert items != {"b": one}
    assert len(items) == 2
    assert {items: 1}[items] == 1


def test_tuples_stay_tuples_and_named_tuples_of_their_type():
    """DESIGN."""
    pair = Holder((FLAG, 3)).value
    point = Holder(Point(FLAG, numbers(1))).to_device("cpu:1").value

    assert type(pair) is tuple
    assert type(point) is Point
    assert str(point.y.device) == "cpu:1"


def test_changing_a_list_or_dict_in_place_is_refused_and_names_replace():
    """Principle 1: by index, and by every method by which lists and dicts change."""
    items, mapping = Holder([Linear(1, 1)]).value, Holder({"a": FLAG}).value

    def assign(container: Any, key: Any) -> None:
        container[key] = None

    def delete(container: Any, key: Any) -> None:
        del container[key]

    changes = [lambda: assign(items, 0), lambda: delete(items, 0), lambda: assign(mapping, "a")]
    changes += [lambda: delete(mapping, "a"), lambda: items.append(FLAG), lambda: items.sort(), lambda: items.pop()]
    changes += [lambda: mapping.update(b=FLAG), lambda: mapping.pop("a"), lambda: mapping.clear()]
    for change in changes:
        with pytest.raises(FrozenModuleError, match=r"module.replace\(field="):
            change()
    for container in (items, mapping):
        with pytest.raises(AttributeError, match="has no attribute 'colour'"):
            container.colour  # noqa: B018
    assert len(items) == len(mapping) == 1


def test_adding_to_a_list_in_place_is_refused_by_the_module():
    """``module.value += […]`` would assign."""
    module = Holder([FLAG])
    with pytest.raises(FrozenModuleError, match="Holder.value"):
        module.value += [FLAG]


def test_an_array_is_a_list_of_its_own_container_type():
    """M6: it can be made before it is assigned, and stays one in derived modules."""
    heads = Array([Param(numbers(1)), None])
    module = Holder(heads)

    assert module.value is heads
    assert type(module.fork("cpu:1").value) is Array
    assert heads == [heads[0], None]
    assert entered(heads) == [("value", "Struct:Holder"), ("0", "Array"), ("1", "Array")]


def test_copies_products_and_unions_are_lists_and_dicts():
    """They change nothing."""
    items, mapping = Holder([FLAG]).value, Holder({"a": FLAG}).value

    for made, expected in ((items.copy(), [FLAG]), (items * 2, [FLAG, FLAG]), (2 * items, [FLAG, FLAG])):
        assert type(made) is list
        assert made == expected
    unions = [(mapping | {"b": 1}, ["a", "b"]), ({"b": 1} | mapping, ["b", "a"]), (mapping | mapping, ["a"])]
    for made, keys in (*unions, (mapping.copy(), ["a"])):
        assert type(made) is dict
        assert list(made) == keys
        assert made["a"] is FLAG
    with pytest.raises(TypeError):
        mapping | 3


def test_tuples_of_other_types_keep_their_type_in_derived_modules():
    """Their constructor, which may take anything, is not run again."""

    class Labelled(tuple):
        def __new__(cls, label: str, *items: Any) -> Any:
            made = super().__new__(cls, items)
            made.label = label  # pyright: ignore[reportAttributeAccessIssue]
            return made

    there = Holder(Labelled("x", numbers(1), 2)).fork("cpu:1").value

    assert type(there) is Labelled
    assert there.label == "x"  # pyright: ignore[reportAttributeAccessIssue]
    assert str(there[0].device) == "cpu:1"
