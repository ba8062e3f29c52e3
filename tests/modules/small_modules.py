"""Modules that the unit tests are written with, and trees of modules from the laws' generators."""

from dataclasses import replace
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from engine import Device, Tensor, tensor, zeros
from modules import Flag, Module, ModuleVisitor, Param, RunningState
from tests.laws.engine_adapter import EngineAdapter
from tests.laws.generators import trees
from tests.laws.protocol import Done, Refused

AUTODIFF: Final = "cpu:0+autodiff"


def numbers(*shape: int, device: str = "cpu:0", start: int = 1) -> Tensor:
    """A float32 tensor of consecutive numbers."""
    size = 1
    for extent in shape:
        size *= extent
    return tensor([float(start + i) for i in range(size)], device=device).reshape(*shape)


class Holder(Module):
    """Whatever it is given, as fields."""

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self, name, value)


class Linear(Module):
    """A product with a weight, and perhaps a bias."""

    def __init__(self, d_input: int, d_output: int, device: str = "cpu:0", bias: bool = True) -> None:
        self.d_input = d_input
        self.d_output = d_output
        self.weight = Param(numbers(d_input, d_output, device=device))
        self.bias = Param(numbers(d_output, device=device)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        product = x @ self.weight.val()
        return product if self.bias is None else product + self.bias.val()


class LazyLinear(Module):
    """A weight that is made at the first use; `made` lists where."""

    def __init__(self, d_input: int, d_output: int, device: str = "cpu:0", made: list[Device] | None = None) -> None:
        places = [] if made is None else made

        def init(device: Device, require_grad: bool) -> Tensor:
            places.append(device)
            return zeros((d_input, d_output), device=device)

        self.weight = Param.lazy(init, (d_input, d_output), "float32", device)


class Block(Module):
    """A layer with everything that is no parameter of floats."""

    def __init__(self, width: int, device: str = "cpu:0") -> None:
        self.linear = Linear(width, width, device)
        self.steps = Param(tensor([1, 2], device=device))
        self.training = Flag(True)
        self.mean = RunningState(numbers(width, device=device))
        self.table = numbers(width, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x) * self.table


class Stack(Module):
    """Blocks in a list, with the first one's weight tied to a head's."""

    def __init__(self, width: int, devices: list[str]) -> None:
        self.blocks = [Block(width, device) for device in devices]
        self.head = self.blocks[0].linear.weight

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x @ self.head.val()


def paths(module: Module) -> list[str]:
    """Paths of all parameters, running states and flags, in order."""
    seen: list[str] = []

    class Paths(ModuleVisitor):
        def visit_float(self, path: str, param: Any, /) -> None:
            seen.append(path)

        visit_int = visit_bool = visit_flag = visit_float

    module.visit(Paths())
    return seen


def modules(leaves: tuple[str, ...] | None = None) -> SearchStrategy[tuple[Module, dict[str, int]]]:
    """Modules from the laws' generators, nothing attached, each with the runs of its initialisers by path."""
    adapter = EngineAdapter()
    kinds = [kind for kind in adapter.grammar.leaves if kind != "adapted"] if leaves is None else leaves
    grammar = replace(adapter.grammar, leaves=tuple(kinds))

    def built(spec: Any) -> tuple[Module, dict[str, int]]:
        version = adapter.build(spec)
        assert not isinstance(version, (Done, Refused)), version
        return version.module, version.built.runs

    return trees(grammar).map(built)


TEXTUAL: Final = ("int", "bool", "flag", "running", "constant", "config", "empty")
"""Leaves whose texts have one line: all but what is skipped, which shows its `repr`."""

any_module: Final[SearchStrategy[tuple[Module, dict[str, int]]]] = st.deferred(lambda: modules(TEXTUAL))
