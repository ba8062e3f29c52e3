"""Spec trees: a module described as plain data, for any implementation to build.

A `TreeSpec` says which fields a module has, which containers they stand in,
what each value is, and which places hold the same object. It knows no
implementation: what a law expects is computed from it here, by walks of a few
lines that never ask the module under test. A spec prints as the Python that
rebuilds it.

Words: a *place* is a node with its path, a *leaf* a place that visitors see
(parameters, flags, running states); plain tensors are places, not leaves.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from math import prod
from typing import Any, Final, Literal, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Kind: TypeAlias = Literal["float", "int", "bool", "flag"]
Layout: TypeAlias = Literal["dense", "transposed", "strided", "reversed", "offset"]
Ties: TypeAlias = tuple[tuple[str, ...], ...]

FLOATS: Final = ("float32", "float64", "float16", "bfloat16")
INTS: Final = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
BOOLS: Final = ("bool",)
LAYOUTS: Final[tuple[Layout, ...]] = ("dense", "transposed", "strided", "reversed", "offset")
ALWAYS: Final = 1 << 30  # initialiser runs that fail, for one that never gives a value


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def kind_of(dtype: str) -> Kind:
    """The hook that shows a parameter of this dtype; what is quantized counts as floats (R17)."""
    return "int" if dtype in INTS else "bool" if dtype in BOOLS else "float"


class Printed:
    """Prints as a call of its class, without the fields that have their default."""

    def __repr__(self) -> str:
        said = []
        for field in fields(self):  # pyright: ignore[reportArgumentType]
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default or type(value) is not type(field.default):
                said.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(said)})"


@dataclass(frozen=True, repr=False)
class Value(Printed):
    """What a tensor holds: dtype, shape, little-endian row-major bytes; and where and how it lies."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    device: str = "cpu:0"
    layout: Layout = "dense"

    @property
    def kind(self) -> Kind:
        return kind_of(self.dtype)

    @property
    def hardware(self) -> str:
        """The device without its autodiff flag."""
        return self.device.removesuffix("+autodiff")

    @property
    def autodiff(self) -> bool:
        return self.device.endswith("+autodiff")

    @property
    def size(self) -> int:
        return prod(self.shape)

    def numpy(self) -> NDArray[Any]:
        """The values as a NumPy array of this shape, C order."""
        return np.frombuffer(self.data, numpy_dtype(self.dtype)).reshape(self.shape)

    def run(self, number: int) -> bytes:
        """The bytes that the initialiser of a lazy parameter gives in its run of that number, from 0: each differs."""
        if self.dtype == "bool":
            return bytes((byte + number) % 2 for byte in self.data)
        width = numpy_dtype(self.dtype).itemsize
        return bytes((byte + number) % 256 if place % width == 0 else byte for place, byte in enumerate(self.data))


@dataclass(frozen=True, repr=False)
class ParamSpec(Printed):
    """A parameter. A lazy one counts its initialiser's runs; the first `fails` of them raise.

    `attached` is a reparameterization: its NAME, and what it holds (A5).
    """

    value: Value
    wish: bool = True
    lazy: bool = False
    fails: int = 0
    attached: "tuple[str, StructSpec] | None" = None


@dataclass(frozen=True, repr=False)
class FlagSpec(Printed):
    """A flag that is on or off."""

    enabled: bool


@dataclass(frozen=True, repr=False)
class RunningSpec(Printed):
    """A running state over a float tensor."""

    value: Value


@dataclass(frozen=True, repr=False)
class ConstantSpec(Printed):
    """A plain tensor: it moves and has a device, visitors do not see it."""

    value: Value


@dataclass(frozen=True, repr=False)
class ConfigSpec(Printed):
    """Configuration: a number, a string, or a tuple of them."""

    value: Any


@dataclass(frozen=True, repr=False)
class SkipSpec(Printed):
    """A field marked *skip*: configuration whatever it holds (M4)."""

    node: "Node"


@dataclass(frozen=True, repr=False)
class OptionalSpec(Printed):
    """An optional value; None is the absent one."""

    node: "Node | None" = None


@dataclass(frozen=True, repr=False)
class StructSpec(Printed):
    """A module with named fields, in order of declaration."""

    fields: "tuple[tuple[str, Node], ...]"
    name: str = "Block"


@dataclass(frozen=True, repr=False)
class SequenceSpec(Printed):
    """A list, a tuple or an array of fixed length."""

    kind: Literal["list", "tuple", "array"]
    items: "tuple[Node, ...]"


@dataclass(frozen=True, repr=False)
class DictSpec(Printed):
    """A dict, in order of insertion."""

    items: "tuple[tuple[str, Node], ...]"


@dataclass(frozen=True, repr=False)
class EnumSpec(Printed):
    """An enum module of one active variant, which holds one module."""

    variant: str
    node: StructSpec
    name: str = "Choice"


Node: TypeAlias = (
    ParamSpec
    | FlagSpec
    | RunningSpec
    | ConstantSpec
    | ConfigSpec
    | SkipSpec
    | OptionalSpec
    | StructSpec
    | SequenceSpec
    | DictSpec
    | EnumSpec
)
Leaf: TypeAlias = ParamSpec | FlagSpec | RunningSpec


@dataclass(frozen=True, repr=False)
class TreeSpec(Printed):
    """A module, and the sharing table: groups of paths that hold one object (D8), equal specs each."""

    root: StructSpec
    ties: Ties = ()


@dataclass(frozen=True)
class Enter:
    """A traversal enters a component."""

    name: str
    container: str


@dataclass(frozen=True)
class Exit:
    """A traversal leaves a component."""

    name: str
    container: str


@dataclass(frozen=True)
class Seen:
    """A traversal shows a leaf to the hook of its kind."""

    kind: Kind
    path: str


Event: TypeAlias = Enter | Exit | Seen

_CONTAINERS: Final = {"list": "Vec", "tuple": "Tuple", "array": "Array"}


def present(node: Node) -> Node | None:
    """What stands there: an optional adds nothing of its own, an absent one is None."""
    while isinstance(node, OptionalSpec):
        if node.node is None:
            return None
        node = node.node
    return node


def children(node: Node | None) -> list[tuple[str, str, Node]]:
    """(path component, container type, child) of each child, in order (M2, M6)."""
    match node:
        case StructSpec():
            return [(name, f"Struct:{node.name}", child) for name, child in node.fields]
        case SequenceSpec():
            return [(str(index), _CONTAINERS[node.kind], child) for index, child in enumerate(node.items)]
        case DictSpec():
            return [(key, "Dict", child) for key, child in node.items]
        case EnumSpec():
            return [(node.variant, f"Enum:{node.name}", node.node)]
        case ParamSpec(attached=(name, held)):
            return [(name, "Reparameterization", held)]
    return []


def is_configuration(node: Node) -> bool:
    """Whether nothing in it is a child (M3, M4): some configuration, and otherwise only None or configuration."""
    inner = present(node)
    if isinstance(inner, (SequenceSpec, DictSpec)):
        held = [child for _, _, child in children(inner) if present(child) is not None]
        return bool(held) and all(map(is_configuration, held))
    return isinstance(inner, (ConfigSpec, SkipSpec))


def walk(spec: TreeSpec) -> list[Event]:
    """What every traversal must show, in order (M2, M6 to M9, M14, A8)."""
    return list(_walk(spec.root, ()))


def _walk(node: Node | None, path: tuple[str, ...]) -> Iterator[Event]:
    if isinstance(node, (ParamSpec, RunningSpec, FlagSpec)):
        yield Seen("flag" if isinstance(node, FlagSpec) else node.value.kind, ".".join(path))
    for name, container, child in children(node):
        if not is_configuration(child):
            yield Enter(name, container)
            yield from _walk(present(child), (*path, name))
            yield Exit(name, container)


def places(spec: TreeSpec) -> dict[str, Node]:
    """Every child that is no configuration, by path, in order: leaves, plain tensors, modules, containers."""
    return dict(_places(spec.root, ()))


def _places(node: Node | None, path: tuple[str, ...]) -> Iterator[tuple[str, Node]]:
    for name, _, child in children(node):
        inner = present(child)
        if inner is not None and not is_configuration(inner):
            yield ".".join((*path, name)), inner
            yield from _places(inner, (*path, name))


def leaves(spec: TreeSpec) -> dict[str, Leaf]:
    """What visitors see, by path, in order."""
    return {path: n for path, n in places(spec).items() if isinstance(n, (ParamSpec, FlagSpec, RunningSpec))}


def tensors(spec: TreeSpec) -> dict[str, ParamSpec | RunningSpec | ConstantSpec]:
    """What has a device, by path, in order: parameters, running states, plain tensors."""
    return {path: n for path, n in places(spec).items() if isinstance(n, (ParamSpec, RunningSpec, ConstantSpec))}


def lazy_paths(spec: TreeSpec) -> list[str]:
    """Paths of lazy parameters, in order."""
    return [path for path, node in leaves(spec).items() if isinstance(node, ParamSpec) and node.lazy]


def tied_with(spec: TreeSpec, path: str) -> tuple[str, ...]:
    """All paths that hold the object at this one, itself included."""
    return next((group for group in spec.ties if path in group), (path,))


def devices(spec: TreeSpec, found: tuple[str, ...] = ()) -> tuple[str, ...]:
    """`found`, then each device of the tree that is not in it, by hardware (M36 to M39); without autodiff flags."""
    known = list(found)
    for node in tensors(spec).values():
        if node.value.hardware not in known:
            known.append(node.value.hardware)
    return tuple(known)


def num_params(spec: TreeSpec) -> int:
    """Elements of float parameters and running states, each path counted (M11, M99)."""
    seen = [node for node in leaves(spec).values() if not isinstance(node, FlagSpec)]
    return sum(node.value.size for node in seen if node.value.kind == "float")


# LoRA, the reparameterization that trees have

LORA: Final = "lora"


def lora(a: ParamSpec, b: ParamSpec, scale: float) -> tuple[str, StructSpec]:
    """What is attached to a matrix that has factors, [d_in, rank] and [rank, d_out] (A16, A18)."""
    return LORA, StructSpec((("a", a), ("b", b), ("scale", ConfigSpec(scale))), "LoraAdapter")


def attached_to(spec: TreeSpec) -> dict[str, tuple[str, StructSpec]]:
    """What is attached to parameters, by their paths, in order."""
    return {path: n.attached for path, n in leaves(spec).items() if isinstance(n, ParamSpec) and n.attached}


def attached_at(spec: TreeSpec, held: "Mapping[str, tuple[str, StructSpec] | None]") -> TreeSpec:
    """The tree with this attached to the parameters at these paths, or nothing; ties are left as they are."""
    return replace(spec, root=_attached_at(spec.root, "", held))


def without_attached(spec: TreeSpec) -> TreeSpec:
    """The tree with nothing attached."""
    held = attached_to(spec)
    below = tuple(f"{path}.{name}." for path, (name, _) in held.items())
    bare = attached_at(spec, dict.fromkeys(held))
    return replace(bare, ties=tuple(group for group in spec.ties if not group[0].startswith(below)))


def _attached_at(node: Any, path: str, held: "Mapping[str, tuple[str, StructSpec] | None]") -> Any:
    def of(child: Any, name: str) -> Any:
        return _attached_at(child, f"{path}.{name}" if path else name, held)

    match node:
        case ParamSpec():
            return replace(node, attached=held[path]) if path in held else node
        case StructSpec():
            return replace(node, fields=tuple((name, of(child, name)) for name, child in node.fields))
        case DictSpec():
            return replace(node, items=tuple((name, of(child, name)) for name, child in node.items))
        case SequenceSpec():
            return replace(node, items=tuple(of(child, str(at)) for at, child in enumerate(node.items)))
        case EnumSpec():
            return replace(node, node=of(node.node, node.variant))
        case OptionalSpec() if node.node is not None:
            return replace(node, node=_attached_at(node.node, path, held))
    return node
