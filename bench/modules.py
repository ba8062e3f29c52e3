"""How long does it take to walk over a module of 10,000 parameters, and to build one?

Milliseconds: medians of 50 rounds. Blocks hold ten parameters each, in five modules below them. Beside the walks stands
a bare loop that calls the visitor's hook for a list of paths and parameters that were collected before.
"""

from collections.abc import Iterable

from engine import Tensor, zeros
from modules import Module, ModuleMapper, ModuleVisitor, Param

from .answers import check_same
from .report import Row, at_most
from .settings import Settings
from .timing import timed

_PER_BLOCK = 10


class Affine(Module):
    """Two parameters."""

    def __init__(self, value: Tensor) -> None:
        self.weight = Param(value)
        self.bias = Param(value)


class Block(Module):
    """Ten parameters, named as in a layer of a transformer."""

    def __init__(self, value: Tensor) -> None:
        self.norm = Affine(value)
        self.query = Affine(value)
        self.key = Affine(value)
        self.value = Affine(value)
        self.output = Affine(value)


class Stack(Module):
    """As many blocks as it takes."""

    def __init__(self, num_params: int) -> None:
        value = zeros((1,), device="cpu:0")
        self.blocks = [Block(value) for _ in range(num_params // _PER_BLOCK)]


class Collector(ModuleVisitor):
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.found: list[tuple[str, Param]] = []

    def visit_float(self, path: str, param: Param, /) -> None:
        self.found.append((path, param))


class Counter(ModuleVisitor):
    """Counts what it is shown."""

    def __init__(self) -> None:
        self.count = 0

    def visit_float(self, path: str, param: Param, /) -> None:
        self.count += 1


def collected(module: Module) -> list[tuple[str, Param]]:
    """Every parameter with its path."""
    visitor = Collector()
    module.visit(visitor)
    return visitor.found


def _call_each(pairs: list[tuple[str, Param]]) -> int:
    visitor = Counter()
    for path, param in pairs:
        visitor.visit_float(path, param)
    return visitor.count


def measure(settings: Settings) -> Iterable[Row]:
    """Walks, the bare loop, and construction."""
    settings.progress.expect(1)
    num_params = settings.size(10_000, 100)
    module = Stack(num_params)
    pairs = collected(module)
    counter, mapper = Counter(), ModuleMapper()
    module.visit(counter)
    check_same("modules, visits", counter.count, len(pairs), _call_each(pairs), num_params)
    check_same("modules, identity", collected(module.map(mapper)), pairs)

    visiting, mapping, building, bare = settings.interleaved(
        timed(lambda: module.visit(Counter())),
        timed(lambda: module.map(mapper)),
        timed(lambda: Stack(num_params)),
        timed(lambda: _call_each(pairs)),
        rounds=50,
    )
    parameters = f"{num_params:,} parameters"
    bound, goal = at_most(10), at_most(5)
    yield Row(what=f"visiting {parameters}", value=visiting.spread(1e-3), unit="ms", bound=bound, goal=goal)
    yield Row(what=f"mapping {parameters} to themselves", value=mapping.spread(1e-3), unit="ms", bound=bound, goal=goal)
    yield Row(what=f"building a module of {parameters}", value=building.spread(1e-3), unit="ms")
    yield Row(what=f"a bare loop that calls {num_params:,} hooks", value=bare.spread(1e-3), unit="ms")
