"""What the item of a file is made of: parameters by path, numbers, and the places that hold no state (N3, N4, N9, N13).

An *outline* is the item with its parameters and numbers replaced by what
stands there. It is JSON, so a record carries it as metadata, and a file that
is written again has its vectors, enums and fields without state in their places.
"""

from typing import Any, Final, Literal, NamedTuple, TypeAlias, final

import numpy as np

from records.burnpack.wire import Flaw
from records.scalar import Scalar
from records.shown import shown

from .tree import Blob, Numbers, Tree

Outline: TypeAlias = Any
Kind: TypeAlias = Literal["module", "optimizer", "scheduler"]

PARAMETER: Final = "parameter"  # what an outline has in place of {"id", "param"},
TENSOR: Final = "tensor"  # of a tensor without an id,
NUMBER: Final = "number"  # and of a number or truth value
KIND_KEY: Final = "burn.kind"  # metadata of a record that was read from such a file: what kind it is of,
OUTLINE_KEY: Final = "burn.item"  # and its outline

WHOLE: Final = "item"  # the name of a scalar that is the whole item

_TENSOR_KEYS: Final = ({"bytes", "shape", "dtype"}, {"value", "shape"})
_MAX_RANK_NAME: Final = 8


class Place(NamedTuple):
    """A tensor: where, with which id, and the map that it is."""

    path: str
    id: str | None
    tensor: dict[str, Tree]


@final
class Item:
    """The item of a file, taken apart.

    Raises:
        Flaw: something stands where only modules, parameters and numbers do; the message names the path.
    """

    def __init__(self, tree: Tree) -> None:
        self.places: list[Place] = []
        self.scalars: dict[str, Scalar] = {}
        self.outline: Outline = self._outlined(tree, "")
        self.kind: Kind = "module"
        if _is_number(tree):
            self.kind = "scheduler"
        elif isinstance(tree, dict) and tree and all(map(_is_optimizer_state, tree.values())):
            self.kind = "optimizer"

    def _outlined(self, tree: Tree, path: str) -> Outline:
        if tree is None:
            return None
        if is_parameter(tree):
            self.places.append(Place(path, tree["id"], tree["param"]))
            return PARAMETER
        if is_tensor(tree):
            self.places.append(Place(path, None, tree))
            return TENSOR
        if _is_number(tree):
            self.scalars[path or WHOLE] = _scalar(path, tree)
            return NUMBER
        if isinstance(tree, dict):
            return {key: self._outlined(value, _below(path, key)) for key, value in tree.items()}
        if isinstance(tree, list):
            return [self._outlined(value, _below(path, str(index))) for index, value in enumerate(tree)]
        raise Flaw(f"{shown(path)}: {_named(tree)} stands where a module, a parameter or nil does")


def is_parameter(tree: Tree) -> bool:
    """Whether it is ``{"id": text, "param": tensor}``; a module may have fields of these names (N4)."""
    return (
        isinstance(tree, dict)
        and tree.keys() == {"id", "param"}
        and isinstance(tree["id"], str)
        and is_tensor(tree["param"])
    )


def is_tensor(tree: Tree) -> bool:
    """Whether it is a tensor, not a module with fields of such names (N5, N6)."""
    if not isinstance(tree, dict) or tree.keys() not in _TENSOR_KEYS:
        return False
    data, shape = tree["bytes" if "bytes" in tree else "value"], tree["shape"]
    if not _is_array(data) or not _is_array(shape) or (_is_empty(data) and _is_empty(shape)):  # two vectors: a module
        return False
    return "value" in tree or isinstance(tree["dtype"], (str, dict))


def _is_array(tree: Tree) -> bool:
    return isinstance(tree, (Blob, Numbers)) or _is_empty(tree)


def _is_empty(tree: Tree) -> bool:
    return isinstance(tree, list) and not tree


def _is_number(tree: Tree) -> bool:
    return type(tree) in (bool, int, float, np.float32)


def _is_optimizer_state(tree: Tree) -> bool:
    """Whether it is ``{"V1": {"RankD": …}}``, what an optimizer's record has for each id (N13)."""
    if not isinstance(tree, dict) or tree.keys() != {"V1"} or not isinstance(tree["V1"], dict):
        return False
    names = list(tree["V1"])
    return len(names) == 1 and names[0] in {f"Rank{rank}" for rank in range(_MAX_RANK_NAME + 1)}


def _scalar(path: str, number: Any) -> Scalar:
    try:
        return Scalar.of(number)
    except ValueError as error:
        raise Flaw(f"{shown(path)}: {error}") from None


def _below(path: str, key: str) -> str:
    if not key or "." in key:
        raise Flaw(f"{shown(path)}: {shown(key)} is no name of a field; names are not empty and have no dot")
    return f"{path}.{key}" if path else key


def _named(tree: Tree) -> str:
    if isinstance(tree, Blob):
        return f"a binary of {tree.nbytes} bytes"
    return f"an array of {tree.count} numbers" if isinstance(tree, Numbers) else f"the text {shown(tree)}"
