"""Signals: which trees move, what is copied, and what comes back unchanged."""

from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine import Device, Tensor, tensor, transfer, zeros
from modules import Flag, Module, ModuleError, Param, RunningState
from modules.parallel.signal import moved

HERE, THERE = Device("cpu:0"), Device("cpu:1")

Pair = namedtuple("Pair", "left right")


class Held(Module):
    """A signal that is a module: hidden state with what is passed along."""

    def __init__(self, state: Tensor, mask: Tensor | None, depth: int) -> None:
        self.state = state
        self.mask = mask
        self.depth = depth
        self.scale = Param(zeros((2,), device=state.device))
        self.mean = RunningState(zeros((1,), device=state.device))
        self.flag = Flag(True)


def test_every_tensor_of_a_tree_arrives_and_the_tree_keeps_its_form() -> None:
    """P6: tensors, tuples, lists, dicts, None and configuration, in one another."""
    x = tensor([1.0, 2.0], device=HERE)
    signal = {"x": x, "rest": [None, (x + 1, 3), Pair(x, "text")], "ids": tensor([1, 2], device=HERE)}

    there = moved(signal, THERE)

    assert there["x"].device == there["ids"].device == THERE
    assert there["rest"][0] is None
    assert there["rest"][1][1] == 3
    assert isinstance(there["rest"][1], tuple)
    assert isinstance(there["rest"][2], Pair)
    assert there["rest"][2].right == "text"
    assert signal["x"].device == HERE


def test_a_tensor_that_stands_twice_is_copied_once_and_is_still_one() -> None:
    """D7, L94: in a list, a dict and a module alike."""
    x = tensor([1.0, 2.0, 3.0], device=HERE)

    with transfer.log() as log:
        there = moved([x, {"again": x}, Held(x, x, 1)], THERE)

    assert there[0] is there[1]["again"] is there[2].state is there[2].mask
    scale_and_mean = (2 + 1) * 4
    assert log[HERE, THERE, "host"] == (3, x.nbytes + scale_and_mean)


def test_a_module_in_a_signal_moves_whole() -> None:
    """P6: parameters, running states and constants; flags and configuration stay."""
    held = Held(tensor([1.0], device=HERE), None, 7)

    there = moved((held, None), THERE)[0]

    assert there.devices() == [THERE]
    assert there.mask is None
    assert there.depth == 7
    assert there.at("scale").id == held.at("scale").id
    assert held.devices() == [HERE]


def test_what_is_there_already_is_given_back_as_it_is() -> None:
    """D4: no copy, no new object."""
    x = tensor([1.0], device=HERE)
    signals = [x, [x, None], (x,), {"x": x}, Held(x, None, 0), None, 5]

    with transfer.log() as log:
        assert all(moved(signal, HERE) is signal for signal in signals)

    assert log.copies == 0


def test_what_would_hide_tensors_is_refused() -> None:
    """DESIGN, Module: an array, or a set or dataclass that holds tensors, in a signal likewise."""

    @dataclass
    class Hidden:
        x: Tensor

    x = tensor([1.0], device=HERE)
    for signal in (np.ones(2), [np.ones(2)], Hidden(x), {"a": {x}}):
        with pytest.raises(ModuleError, match="signal"):
            moved(signal, THERE)


def test_a_signal_has_words_of_its_own_for_what_cannot_move() -> None:
    """No field, and nothing that a module's message offers."""
    x = tensor([1.0], device=HERE)
    with pytest.raises(ModuleError, match=r"signal: an array has no device; pass tensor\(array, device=…\)"):
        moved([np.ones(2)], THERE)
    with pytest.raises(ModuleError, match=r"signal: a generator .* pass list"):
        moved((x for _ in range(2)), THERE)
    for held in (deque([x]), SimpleNamespace(a=x), UserDict(a=x), MappingProxyType({"a": x}), {x: 1}.keys(), {x: 1}):
        with pytest.raises(ModuleError, match=r"signal: a \w+ that holds a Tensor|signal: .* Tensor"):
            moved(held, THERE)


def test_lists_tuples_and_dicts_of_other_types_keep_their_type() -> None:
    """P6: what a dict does for missing keys, and attributes, included."""

    class Items(list):
        label = ""

    class Labelled(tuple):
        def __new__(cls, label: str, *items: Any) -> Any:
            made = super().__new__(cls, items)
            made.label = label  # pyright: ignore[reportAttributeAccessIssue]
            return made

    x = tensor([1.0], device=HERE)
    items = Items([x, 1])
    items.label = "mine"
    signal = [items, Labelled("mine", x), OrderedDict(a=x), defaultdict(list, a=x), Pair(x, 1)]

    there = moved(signal, THERE)

    assert [type(one) for one in there] == [type(one) for one in signal]
    assert there[0].label == there[1].label == "mine"
    assert there[3]["missing"] == []
    for one in (there[0][0], there[1][0], there[2]["a"], there[3]["a"], there[4].left):
        assert one.device == THERE
    for one in (items[0], signal[1][0], signal[2]["a"]):
        assert one is x


def test_a_container_or_module_that_stands_twice_is_still_one() -> None:
    """D8: as a tensor is."""
    x = tensor([1.0], device=HERE)
    for shared in ([x], {"a": x}, (x,), Held(x, None, 1)):
        one, other = moved([shared, shared], THERE)
        assert one is other
        assert one is not shared


def test_a_signal_that_holds_itself_is_refused() -> None:
    """It has no end."""
    signal: list[Any] = [tensor([1.0], device=HERE)]
    signal.append((signal,))

    with pytest.raises(ModuleError, match="signal: the list holds itself"):
        moved(signal, THERE)


def test_a_signal_that_nests_deeper_than_python_calls_and_a_tensor_as_a_key_are_refused() -> None:
    """P6, by names of their own."""
    deep: Any = tensor([1.0], device="cpu:0")
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ModuleError, match="nest too deep"):
        moved(deep, Device("cpu:1"))
    with pytest.raises(ModuleError, match="a Tensor is a key of a dict"):
        moved({tensor([1.0], device="cpu:0"): 1}, Device("cpu:1"))
