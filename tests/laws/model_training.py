"""Optimizers of the model of the rules, and what a step of training makes of its leaves; see `model_adapter`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np

from .burnpack_file import parsed, written
from .layered_expected import Array
from .model_leaves import Leaf, RefusalError, Weight
from .model_records import Leaves, load, to_record
from .observations import Bits, Gradient
from .operations import Entry, Record
from .record_operations import STRICT
from .training_operations import Kept

ByLeaf: TypeAlias = dict[int, Array]
"""Gradients of leaves, by the id of the object."""

_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "SGD": {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
    "Adam": {"lr": 1e-3, "betas": (0.9, 0.999), "epsilon": 1e-8, "weight_decay": 0.0},
    "AdamW": {"lr": 1e-3, "betas": (0.9, 0.999), "epsilon": 1e-8, "weight_decay": 1e-2},
}


@dataclass
class Optimizer:
    """SGD, Adam or AdamW. `kept` is what it keeps, by the id of a parameter; `times` counts a parameter's steps."""

    kind: str
    settings: Mapping[str, Any]
    kept: dict[int, dict[str, Array]] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)

    def updated(self, number: int, p: Array, g: Array) -> Array:
        """The new value of the parameter of an id."""
        of: Any = {**_DEFAULTS[self.kind], **self.settings}
        decay, lr = of["weight_decay"], of["lr"]
        if self.kind == "AdamW":
            p = p - lr * decay * p
        elif decay:
            g = g + decay * p
        return np.asarray(p - lr * (self.momentum if self.kind == "SGD" else self.adam)(number, g, of), p.dtype)

    def momentum(self, number: int, g: Array, of: Any) -> Array:
        """The direction of stochastic gradient descent."""
        if not of["momentum"]:
            return g
        before = self.kept.get(number, {"velocity": np.zeros_like(g)})["velocity"]
        velocity = np.asarray(of["momentum"] * before + g, g.dtype)
        self.kept[number] = {"velocity": velocity}
        return g + of["momentum"] * velocity if of["nesterov"] else velocity

    def adam(self, number: int, g: Array, of: Any) -> Array:
        """The direction of Adam."""
        zeros = np.zeros_like(g)
        before = self.kept.get(number, {"moment_1": zeros, "moment_2": zeros})
        time = self.times[number] = self.times.get(number, 0) + 1
        first, second = of["betas"]
        moment_1 = np.asarray(first * before["moment_1"] + (1 - first) * g, g.dtype)
        moment_2 = np.asarray(second * before["moment_2"] + (1 - second) * g * g, g.dtype)
        self.kept[number] = {"moment_1": moment_1, "moment_2": moment_2}
        return moment_1 / (1 - first**time) / (np.sqrt(moment_2 / (1 - second**time)) + of["epsilon"])

    def seen(self) -> tuple[Kept, ...]:
        """All that it keeps."""
        return tuple(Kept(number, name, _bits(a)) for number, kept in self.kept.items() for name, a in kept.items())


def _bits(array: Array) -> Bits:
    return Bits(str(array.dtype), array.shape, array.tobytes())


# Gradients


def trains(leaf: Leaf) -> bool:
    """Whether it is a parameter that requires a gradient, once it has a value."""
    return isinstance(leaf, Weight) and leaf.role == "param" and leaf.tracking == "L"


def by_leaf(leaves: Leaves, gradients: Mapping[str, Array]) -> ByLeaf:
    """The gradient of each leaf: the sum of those of its places."""
    found: ByLeaf = {}
    for path, g in gradients.items():
        number = id(leaves[path])
        found[number] = found[number] + g if number in found else g
    return found


def reported(leaves: Leaves, gradients: ByLeaf) -> tuple[Gradient, ...]:
    """The gradients as data, in order of visit."""
    return tuple(
        Gradient(path, _bits(np.asarray(gradients[id(leaf)])), leaf.device)
        for path, leaf in leaves.items()
        if isinstance(leaf, Weight) and id(leaf) in gradients
    )


def clipped(gradients: ByLeaf, limit: float) -> ByLeaf:
    """All scaled by one factor if their norm exceeds the limit."""
    norm = math.sqrt(math.fsum(float(np.sum(np.square(g, dtype=np.float64))) for g in gradients.values()))
    if norm <= limit:
        return gradients
    return {number: np.asarray(g * (limit / norm), g.dtype) for number, g in gradients.items()}


def stepped(leaf: Leaf, gradients: ByLeaf, optimizer: Optimizer) -> Leaf:
    """A leaf after a step: another value if it has a gradient."""
    if not isinstance(leaf, Weight) or id(leaf) not in gradients:
        return leaf
    bits = leaf.bits()
    value = np.frombuffer(bits.data, bits.dtype).reshape(bits.shape)
    return leaf.with_bits(_bits(optimizer.updated(leaf.id, value, gradients[id(leaf)])))


# Files

_COUNT: Final = "int64"


def saved(leaves: Leaves, draws: Mapping[str, int], optimizer: Optimizer) -> bytes:
    """A file of the leaves, the counts of draws, and what an optimizer keeps."""
    entries = [replace(entry, path=f"model.{entry.path}") for entry in to_record(leaves).entries]
    entries += [Entry(f"draws.{path}", _counted(count)) for path, count in draws.items()]
    entries += [Entry(f"optimizer.{kept.id}.{kept.name}", kept.bits) for kept in optimizer.seen()]
    entries += [Entry(f"times.{number}", _counted(count)) for number, count in optimizer.times.items()]
    return written(Record(tuple(entries)))


def loaded(leaves: Leaves, optimizer: Optimizer, data: bytes) -> tuple[Leaves, dict[str, int]]:
    """The leaves with the values of such a file, and the counts of draws; the optimizer takes its part."""
    parts: dict[str, dict[str, Entry]] = {"model": {}, "draws": {}, "optimizer": {}, "times": {}}
    for entry in parsed(data).entries:
        part, _, path = entry.path.partition(".")
        parts[part][path] = replace(entry, path=path)
    made, _ = load(leaves, Record(tuple(parts["model"].values())), STRICT)
    numbers = {leaf.id for leaf in made.values()}
    optimizer.kept, optimizer.times = {}, {int(n): _count(entry) for n, entry in parts["times"].items()}
    for path, entry in parts["optimizer"].items():
        number, _, name = path.partition(".")
        if int(number) not in numbers:
            raise RefusalError("record_unused", f"no parameter has the id {number}")
        array = np.frombuffer(entry.bits.data, entry.bits.dtype).reshape(entry.bits.shape)
        optimizer.kept.setdefault(int(number), {})[name] = array
    return made, {path: _count(entry) for path, entry in parts["draws"].items()}


def _counted(count: int) -> Bits:
    return _bits(np.asarray(count, _COUNT))


def _count(entry: Entry) -> int:
    return int(np.frombuffer(entry.bits.data, _COUNT)[0])
