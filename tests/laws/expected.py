"""What an implementation must report of a module it has just built, computed from the spec tree alone."""

from collections.abc import Mapping
from typing import Any

from .observations import Bits, FlagMeta, Meta, Skeleton, ValueMeta
from .spec_tree import (
    ConfigSpec,
    ConstantSpec,
    DictSpec,
    EnumSpec,
    FlagSpec,
    Leaf,
    Node,
    ParamSpec,
    RunningSpec,
    SequenceSpec,
    SkipSpec,
    StructSpec,
    TreeSpec,
    Value,
    children,
    is_configuration,
    leaves,
    present,
)


def meta(spec: TreeSpec, ids: Mapping[str, int]) -> Meta:
    """The meta of a fresh build whose leaves got these ids."""
    values = tuple(_leaf(path, node, ids[path]) for path, node in leaves(spec).items())
    return Meta(values, skeleton(spec.root), spec.ties)


def _leaf(path: str, node: Leaf, number: int) -> ValueMeta | FlagMeta:
    if isinstance(node, FlagSpec):
        return FlagMeta(path, number, node.enabled, node.enabled)
    value = node.value
    lazy = isinstance(node, ParamSpec) and node.lazy
    trainable = isinstance(node, ParamSpec) and node.wish and value.kind == "float"
    return ValueMeta(
        path=path,
        kind=value.kind,
        id=number,
        shape=value.shape,
        dtype=value.dtype,
        device=value.hardware,
        lazy=lazy,
        autodiff=value.autodiff,
        trainable=trainable,
        requires_grad=None if lazy else trainable and value.autodiff,
    )


def skeleton(node: Node, path: str = "", moved: Mapping[str, tuple[str, bool]] | None = None) -> Skeleton:
    """The tree as nested tuples: containers and the names in them, kinds of leaf, plain tensors, configuration.

    ``("struct", type, ((name, …), …))``, ``("enum", type, variant, …)``, ``("list", (…))``,
    ``("dict", ((key, …), …))``, ``("float",)``, ``("float", (NAME, …))`` where something is attached,
    ``("running",)``, ``("flag",)``, ``("none",)``, ``("config", …)``,
    ``("constant", dtype, shape, device, autodiff)``.

    Args:
        node: the root of a tree, or a part of it.
        path: where that part is.
        moved: device and autodiff flag of plain tensors by path, where they are no longer the spec's.
    """
    inner = present(node)
    if inner is not None and is_configuration(inner):
        return ("config", plain(inner))
    below = [(name, skeleton(child, f"{path}.{name}" if path else name, moved)) for name, _, child in children(inner)]
    match inner:
        case None:
            return ("none",)
        case ParamSpec():
            return (inner.value.kind, *below)
        case RunningSpec():
            return ("running",)
        case FlagSpec():
            return ("flag",)
        case ConstantSpec(value):
            where = (moved or {}).get(path, (value.hardware, value.autodiff))
            return ("constant", value.dtype, value.shape, *where)
        case StructSpec():
            return ("struct", inner.name, tuple(below))
        case EnumSpec():
            return ("enum", inner.name, inner.variant, below[0][1])
        case DictSpec():
            return ("dict", tuple(below))
        case SequenceSpec():
            return (inner.kind, tuple(made for _, made in below))
    raise TypeError(f"{inner!r} is no node of a spec tree")


def plain(node: Node) -> Any:
    """Configuration as nested tuples that tell containers apart, with the text of what they hold."""
    match present(node):
        case None:
            return "None"
        case ConfigSpec(value):
            return plain_value(value)
        case SkipSpec(held):
            return plain(held)
        case SequenceSpec(kind, items):
            return (kind, *map(plain, items))
        case DictSpec() as node_dict:
            return ("dict", *((name, plain(child)) for name, _, child in children(node_dict)))
        case ConstantSpec():
            return ("tensor",)
        case other:
            raise TypeError(f"{other!r} is no configuration")


def plain_value(value: Any) -> Any:
    """A number or string as its text, a tuple of them as ``("tuple", …)``."""
    return ("tuple", *map(plain_value, value)) if isinstance(value, tuple) else repr(value)


def bits(value: Value, run: int = 0) -> Bits:
    """The bits of a value; of a lazy parameter, as the run of that number of its initialiser makes them."""
    return Bits(value.dtype, value.shape, value.run(run))
