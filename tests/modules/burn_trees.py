"""Builds our modules out of the nodes in which Burn's golden data describes trees.

The nodes are those of ``tree.json`` and ``display.jsonl.gz``; each must have
exactly the fields that its kind has, so one that is not understood fails. The
mappers of a parameter are a transposition; its values are as in a file.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np

from engine import Device, Tensor, zeros
from modules import Array, DisplaySettings, EnumModule, Flag, Module, Param, RunningState, skip

DTYPES: Final = {"float": np.dtype("<f4"), "int": np.dtype("<i8"), "bool": np.dtype("?")}

_NODES: Final = {  # the key that tells a node's kind, and its other keys
    "struct": ("fields",),
    "enum": ("value", "variant"),
    "vec": (),
    "array": (),
    "tuple": (),
    "some": (),
    "none": (),
    "box": (),
    "config": ("text",),
    "skip": ("text",),
    "same_param_as": (),
    "tensor": ("shape", "values"),
    "running_state": (),
    "param": ("id",),
}
_OPTIONAL: Final = {
    "struct": {"custom_content", "custom_settings"},
    "tensor": {"values"},
    "param": {"shape", "values", "how", "value", "require_grad", "init_mapper", "load_mapper", "save_mapper"},
}
_PARAMS: Final = {  # what a parameter's node has besides kind and id, by kind and how it is made
    ("flag", None): {"value"},
    ("float", "from_tensor"): {"shape", "values", "how"},
    ("float", "initialized"): {"shape", "values", "how", "require_grad"},
    ("float", "lazy"): {"shape", "values", "how", "require_grad"},
    ("int", "initialized"): {"shape", "values", "how"},
    ("int", "lazy"): {"shape", "values", "how"},
    ("bool", "initialized"): {"shape", "values", "how"},
}


class Shown:
    """Configuration whose ``repr`` is a recorded text (M102)."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class Struct(Module):
    """A module of the golden data; its type is a subclass that `struct_type` makes."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        for name, value in fields.items():
            setattr(self, name, value)


@cache
def struct_type(name: str) -> type[Struct]:
    return type(name, (Struct,), {})


@cache
def enum_type(name: str) -> type[EnumModule]:
    return type(name, (EnumModule,), {})


def custom_type(name: str, settings: DisplaySettings, content: list[tuple[str, Any]]) -> type[Struct]:
    """A struct type with display settings and a summary of its own."""
    methods = {"display_settings": lambda self: settings, "display_content": lambda self: content}
    return type(name, (Struct,), methods)


class BurnTree:
    """One tree, built.

    Args:
        node: the root.
        device: the device that everything is made on.

    Attributes:
        value: what the root is in Python: mostly a module, in displays also a list, a parameter, ….
        inits: how often the initialiser of each id has run.
    """

    def __init__(self, node: Mapping[str, Any], device: Device | str) -> None:
        self._device = Device(device)
        self._params: dict[str, Param] = {}
        self.inits: Counter[int] = Counter()
        self.value = self._built(node, "")

    def _built(self, node: Mapping[str, Any], path: str) -> Any:
        match kind := _kind(node):
            case "struct":
                return self._struct(node, path)
            case "enum":
                variant = node["variant"]
                return enum_type(node["enum"])(variant, self._built(node["value"], _joined(path, variant)))
            case "vec" | "array" | "tuple":
                items = [self._built(item, _joined(path, str(index))) for index, item in enumerate(node[kind])]
                return {"vec": list, "array": Array, "tuple": tuple}[kind](items)
            case "some" | "box":
                return self._built(node[kind], path)
            case "none":
                return None
            case "config":
                return Shown(node["text"])
            case "skip":
                return skip(Shown(node["text"]))
            case "same_param_as":
                return self._params[node[kind]]
            case "tensor":
                if "values" not in node:
                    return zeros(node["shape"], device=self._device, dtype=DTYPES[node[kind]])
                return self._tensor(node[kind], node)
            case "running_state":
                state = node[kind]
                return RunningState(self._tensor("float", state), int(state["id"]))
            case "param":
                return self._param_of(node, path)
        raise AssertionError(f"the node is not understood: {node}")

    def _struct(self, node: Mapping[str, Any], path: str) -> Module:
        made = struct_type(node["struct"])
        if "custom_settings" in node or "custom_content" in node:
            content = [
                (name, Shown(held["text"]) if held.keys() == {"text"} else self._built(held, path))
                for name, held in node["custom_content"]
            ]
            made = custom_type(node["struct"], DisplaySettings(**node["custom_settings"]), content)
        return made({name: self._built(held, _joined(path, name)) for name, held in node["fields"]})

    def _param_of(self, node: Mapping[str, Any], path: str) -> Param | Flag:
        kind, id_ = node["param"], int(node["id"])
        if kind == "flag":
            return Flag(node["value"], id_)
        match node["how"]:
            case "from_tensor":
                made = Param(self._tensor(kind, node)).with_id(id_)
            case "initialized":
                value = self._tensor(kind, node).set_require_grad(node.get("require_grad", False))
                made = Param.initialized(id_, value)
            case _:
                made = self._lazy(kind, id_, node)
        for mapper in ("init", "load", "save"):
            if f"{mapper}_mapper" in node:
                assert node[f"{mapper}_mapper"] == "transpose", node
                made = made.with_mappers(**{mapper: lambda tensor: tensor.T})
        self._params[path] = made
        return made

    def _lazy(self, kind: str, id_: int, node: Mapping[str, Any]) -> Param:
        def init(device: Device, require_grad: bool) -> Tensor:
            self.inits[id_] += 1
            made = Tensor.from_numpy(_array(kind, node), device)
            return made.set_require_grad(True) if require_grad else made

        return Param.lazy(init, node["shape"], DTYPES[kind], self._device, node.get("require_grad", False), id_)

    def _tensor(self, kind: str, node: Mapping[str, Any]) -> Tensor:
        return Tensor.from_numpy(_array(kind, node), self._device)


def _kind(node: Mapping[str, Any]) -> str:
    """The kind of a node, whose keys must be those of the kind."""
    kinds = [kind for kind in _NODES if kind in node]
    assert kinds, f"the node is not understood: {node}"
    kind = kinds[0]
    unknown = node.keys() - {kind, *_NODES[kind]} - _OPTIONAL.get(kind, set())
    missing = set(_NODES[kind]) - node.keys() - _OPTIONAL.get(kind, set())
    assert not unknown | missing, f"the node is not understood: {node}"
    if kind == "param":
        expected = _PARAMS[node["param"], node.get("how")]
        assert node.keys() - {"param", "id", "init_mapper", "load_mapper", "save_mapper"} == expected, node
    return kind


def _array(kind: str, node: Mapping[str, Any]) -> np.ndarray:
    values = node["values"]
    flat = np.frombuffer(bytes.fromhex(values), DTYPES["float"]) if kind == "float" else np.array(values, DTYPES[kind])
    return flat.reshape(node["shape"])


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
