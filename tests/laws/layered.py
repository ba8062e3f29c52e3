"""Layered models, placements and signals, described as plain data.

A `LayeredSpec` is a model made of an input layer, hidden layers and an output
layer, each of a family whose forward is defined (`STEPS`), together with the
placement that it is built by. As a module it is a spec tree (`tree`), so what
is said of trees can be said of it. A `Signal` is what is handed to a model: a
tree of tensors, some of which may stand in several places. What comes out of a
model, and how it crosses devices, is computed in `layered_expected`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

from .spec_tree import (
    ConfigSpec,
    ConstantSpec,
    DictSpec,
    Node,
    ParamSpec,
    Printed,
    SequenceSpec,
    StructSpec,
    Ties,
    TreeSpec,
    Value,
    children,
    numpy_dtype,
    tensors,
)

LayerName: TypeAlias = Literal["input", "output"] | int
Apart: TypeAlias = Literal["as they are", "swapped", "dropped", "repeated", "added"]

STEPS: Final[Mapping[str, str]] = {
    "identity": "x",
    "scale": "x · weight, a number; for tensors of any shape",
    "affine": "tanh(x · weight + bias), along the last axis",
    "norm": "x / √(mean(x²) + 1) · weight, along the last axis",
    "shift": "x + state − table, a running state and a constant, along the last axis",
    "prefix": "the running sum of x along axis 0, times weight, a number",
    "centre": "x − the mean of all its elements",
    "double": "x twice, one behind the other along axis 0",
    "position": "x + the row of weight for its position along axis 0; of rank 2",
    "attend": "softmax(h hᵀ) · x · weight with h = tanh(x), each row over those before it and itself; of rank 2",
    "embed": "the rows of weight that int64 ids name",
    "project": "x · weightᵀ, along the last axis",
}
"""What a layer does to each tensor of a signal that has the model's dtype and a shape that the step is for.

Everything else in the signal passes unchanged.
"""

DROP: Final = "drop"
"""In training some of the elements of x are 0, each with the layer's probability p, the others x / (1 − p); else x.

It is in training where the flag ``dropout.training`` is on and x is autodiff.
What is left out differs from call to call, so it is none of the `STEPS`: only
the laws of draws, and of layers with state, have it.
"""

BATCH: Final = "batch"
"""(x − mean) / √(var + epsilon) · gamma + beta along axis 0, for x of rank 2 with so many columns.

In training, where the flag ``norm.training`` is on and x is autodiff, mean and
var are those of x, and move the running ones; else they are the running ones
(M98). So it is none of the `STEPS` either.
"""

CAUSAL: Final = ("identity", "scale", "affine", "norm", "shift", "prefix", "position", "attend")
"""Steps that see only earlier positions along axis 0: their layers are autoregressive."""

REMEMBERING: Final = ("prefix", "attend")
"""Those whose caches store values."""

ROWS: Final = 12
"""Rows of the weight of ``embed``, ``project`` and ``position``."""


def hardware(device: str) -> str:
    """The device without its autodiff flag, which plays no part in placements (P13)."""
    return device.removesuffix("+autodiff")


@dataclass(frozen=True, repr=False)
class Placement(Printed):
    """Where each layer runs: names of devices, perhaps with the autodiff flag."""

    input: str
    hidden: tuple[str, ...]
    output: str

    @property
    def layers(self) -> tuple[str, ...]:
        """The device of each layer, in forward order."""
        return self.input, *self.hidden, self.output

    @property
    def plain(self) -> "Placement":
        """Without autodiff flags: placements are compared by hardware."""
        return placement_of(map(hardware, self.layers))

    def all_on(self, device: str) -> "Placement":
        """As many layers, all on one device (P53)."""
        return Placement(device, (device,) * len(self.hidden), device)


def placement_of(devices: "Iterator[str] | tuple[str, ...]") -> Placement:
    """The placement with these devices of its layers, in forward order."""
    first, *hidden, last = devices
    return Placement(first, tuple(hidden), last)


@dataclass(frozen=True, repr=False)
class LayerSpec(Printed):
    """A layer: its step, and what it holds, in order. Values get their device from the placement."""

    step: str
    fields: tuple[tuple[str, Node], ...] = ()


@dataclass(frozen=True, repr=False)
class LayeredSpec(Printed):
    """A model that can be split.

    Args:
        layers: the input layer, the hidden layers in forward order, the output layer.
        placement: where each is built.
        dtype: of its float parameters.
        container: what the hidden layers stand in.
        backwards: whether the output layer is declared first, the input layer last.
        tied: whether the output layer's weight is the input layer's.
        extra: the device of a parameter outside the layers (P10); None if there is none.
        apart: what `into_layers` does with the hidden layers (P48).
        strays: (path, device) of values that are built where the placement does not say.
        seed: of what the layers leave out whose step is `DROP`.
    """

    layers: tuple[LayerSpec, ...]
    placement: Placement
    dtype: str = "float32"
    container: Literal["list", "tuple", "dict"] = "list"
    backwards: bool = False
    tied: bool = False
    extra: str | None = None
    apart: Apart = "as they are"
    strays: tuple[tuple[str, str], ...] = ()
    seed: int = 0

    @cached_property
    def names(self) -> tuple[LayerName, ...]:
        """What the layers are called, in forward order."""
        return "input", *range(len(self.layers) - 2), "output"

    @cached_property
    def paths(self) -> dict[LayerName, str]:
        """The path of each layer, in forward order. Keys of a dict are in the order opposite to sorting."""
        keys = [f"k{99 - number}" if self.container == "dict" else number for number in range(len(self.layers) - 2)]
        return dict(zip(self.names, ("stem", *(f"blocks.{key}" for key in keys), "head"), strict=True))

    @cached_property
    def tree(self) -> TreeSpec:
        """The model as a spec tree: layers are structs that hold their name and their fields."""
        layers = self._structs()
        hidden = {path.split(".")[-1]: node for path, node in layers.items() if path.startswith("blocks.")}
        blocks: Node = SequenceSpec("list", tuple(hidden.values()))
        if self.container == "dict":
            blocks = DictSpec(tuple(hidden.items()))
        elif self.container == "tuple":
            blocks = SequenceSpec("tuple", tuple(hidden.values()))
        fields: list[tuple[str, Node]] = [("stem", layers["stem"]), ("blocks", blocks), ("head", layers["head"])]
        if self.extra is not None:
            zero = bytes(numpy_dtype(self.dtype).itemsize)
            fields.insert(2, ("extra", ParamSpec(Value(self.dtype, (1,), zero, self.extra))))
        tied = ("head.weight", "stem.weight") if self.backwards else ("stem.weight", "head.weight")
        ordered = fields[::-1] if self.backwards else fields
        return TreeSpec(StructSpec(tuple(ordered), "Layered"), (tied,) if self.tied else ())

    def _structs(self) -> dict[str, StructSpec]:
        """Each layer by its path, its values where they are."""
        strays = dict(self.strays)
        if self.tied:
            strays["head.weight"] = strays.get("stem.weight", self.placement.input)
        made: dict[str, StructSpec] = {}
        for (name, path), layer, device in zip(self.paths.items(), self.layers, self.placement.layers, strict=True):
            fields = ((field, _on(node, device, strays, f"{path}.{field}")) for field, node in layer.fields)
            made[path] = StructSpec((("label", ConfigSpec(name)), *fields), "Layer")
        return made

    @cached_property
    def there(self) -> dict[LayerName, dict[str, str]]:
        """For each layer, in forward order, the device of each value by its path inside the layer; no flags."""
        held = {path: node.value.hardware for path, node in tensors(self.tree).items()}
        return {
            name: {at.removeprefix(f"{path}."): device for at, device in held.items() if at.startswith(f"{path}.")}
            for name, path in self.paths.items()
        }

    def setting(self, path: str, name: str) -> float:
        """A number among the configuration of the module at a path inside a layer."""
        layer, _, inner = path.rpartition(".")
        fields = dict(self.layers[list(self.paths.values()).index(layer)].fields)
        module = fields[inner]
        assert isinstance(module, StructSpec)
        held = dict(module.fields)[name]
        assert isinstance(held, ConfigSpec)
        return held.value

    def built_by(self, placement: Placement) -> "LayeredSpec":
        """The same layers, built by another placement."""
        return replace(self, placement=placement)


def _on(node: Node, device: str, strays: Mapping[str, str], path: str) -> Node:
    """A leaf on a device, or where it strays to; a module, or what is attached, with all of its leaves there."""
    if isinstance(node, StructSpec):
        fields = ((name, _on(child, device, strays, f"{path}.{name}")) for name, child in node.fields)
        return replace(node, fields=tuple(fields))
    if not isinstance(value := getattr(node, "value", None), Value):
        return node
    made: Any = replace(node, value=replace(value, device=strays.get(path, device)))  # pyright: ignore
    if isinstance(node, ParamSpec) and node.attached is not None:
        name, held = node.attached
        made = replace(made, attached=(name, _on(held, device, strays, f"{path}.{name}")))
    return made


# Signals


@dataclass(frozen=True, repr=False)
class Signal(Printed):
    """A tree of tensors, None and configuration; `ties` are the groups of paths that hold one tensor."""

    node: Node
    ties: Ties = ()

    def values(self) -> dict[str, Value]:
        """Each distinct tensor, by the first path that holds it, in order."""
        later = {path for group in self.ties for path in group[1:]}
        return {
            path: node.value for path, node in nodes(self.node) if isinstance(node, ConstantSpec) and path not in later
        }

    def with_values(self, values: Mapping[str, Value]) -> "Signal":
        """The same tree over other tensors, given by the same paths."""
        first = {path: group[0] for group in self.ties for path in group}
        return Signal(_rebuilt(self.node, "", lambda path: ConstantSpec(values[first.get(path, path)])), self.ties)

    def each(self, change: Callable[[Value], Value]) -> "Signal":
        """The same tree with each distinct tensor changed."""
        return self.with_values({path: change(value) for path, value in self.values().items()})

    def on(self, device: str) -> "Signal":
        """All of it on one device."""
        return self.each(lambda value: replace(value, device=device))


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def nodes(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Every node of a tree with its path, the root first."""
    yield path, node
    for name, _, child in children(node):
        yield from nodes(child, _joined(path, name))


def _rebuilt(node: Node, path: str, made: Callable[[str], Node]) -> Node:
    named = tuple((name, _rebuilt(child, _joined(path, name), made)) for name, _, child in children(node))
    match node:
        case ConstantSpec():
            return made(path)
        case SequenceSpec():
            return replace(node, items=tuple(child for _, child in named))
        case DictSpec():
            return replace(node, items=named)
        case StructSpec():
            return replace(node, fields=named)
    return node
