"""What looks like configuration and would hide children is refused, and nothing else is (M4, DESIGN: Module)."""

import functools
import io
import itertools
import logging
import threading
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from modules import Module, ModuleError

from .small_modules import Holder, Linear


class Bag:
    """An object that can be iterated and keeps its items to itself."""

    def __init__(self, *items: Any) -> None:
        self._items = list(items)

    def __iter__(self) -> Any:
        raise AssertionError("nobody reads it")


class Slotted:
    """An object without a ``__dict__``."""

    __slots__ = ("item", "unset")

    def __init__(self, item: Any) -> None:
        self.item = item


class Stream:
    """An iterator whose items can be seen."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        raise AssertionError("nobody reads it")


HIDING: list[Callable[[Any], Any]] = [
    lambda child: deque([child]),
    lambda child: MappingProxyType({"a": child}),
    lambda child: {"a": child}.values(),
    lambda child: {"a": child}.items(),
    lambda child: {child: 1}.keys(),
    lambda child: {child: 1},
    lambda child: UserList([child]),
    lambda child: UserDict({"a": child}),
    lambda child: ChainMap({"a": child}),
    lambda child: SimpleNamespace(a=child),
    lambda child: SimpleNamespace(a=SimpleNamespace(b=[child])),
    lambda child: Bag(child),
    lambda child: Slotted([child]),
    lambda child: Stream(child),
    lambda child: [1, deque([{"a": child}])],
]


@pytest.mark.parametrize("hiding", HIDING)
def test_whatever_else_holds_a_child_is_refused(hiding: Callable[[Any], Any]) -> None:
    """No walk would find it: in a container of another type, and in an object's attributes."""
    with pytest.raises(ModuleError, match="a: .*holds? a Linear would hide it|a key"):
        Holder(a=hiding(Linear(1, 1)))


@pytest.mark.parametrize("closed", [lambda c: (x for x in c), lambda c: map(id, c), iter, reversed, zip, enumerate])
def test_an_iterator_is_refused_and_not_consumed(closed: Callable[[Any], Any]) -> None:
    """Whoever looked for children in it would use it up."""
    iterator = closed([1, 2])

    with pytest.raises(ModuleError, match=r"a: a \w+ is used up .* keep list"):
        Holder(a=iterator)
    with pytest.raises(ModuleError, match=r"is used up"):
        Holder(a=[iterator])
    assert len(list(iterator)) == 2


def test_objects_without_children_are_configuration() -> None:
    """Types, functions, methods, files, locks, loggers, counters and objects of all kinds."""
    settings: list[Any] = [
        *(int, Module, len, test_objects_without_children_are_configuration, logging, "text", b"bytes", range(3)),
        *(Linear(1, 1).forward, functools.partial(len), lambda x: x, io.BytesIO(b"x"), threading.Lock()),
        *(logging.getLogger("x"), itertools.count(), itertools, slice(1), Bag(1, "a"), Slotted(2), Stream(3)),
        *(SimpleNamespace(a=1, b=[2]), deque([1, 2]), UserDict(a=1), MappingProxyType({"a": 1}), {"a": 1}.keys()),
        *(memoryview(b"x"), object(), Exception("x"), {1: "x", (2, 3): "y"}, logging.INFO, Bag([object()])),
    ]
    for value in settings:
        assert Holder(a=value).a is value


def test_an_object_that_only_leads_to_a_module_is_configuration() -> None:
    """Beyond an object's own attributes, half a program may follow."""
    trainer = Bag(Bag(Linear(1, 1)))

    assert Holder(a=trainer).a is trainer
