"""Signals: which trees move, what is copied, and what comes back unchanged."""

from collections import namedtuple
from dataclasses import dataclass

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
