"""Runs the programs that Burn 0.23.0-pre.1 ran (``programs.jsonl.gz``) on our modules: one call after the other.

A call, a mapper, a group or a field of a call that is not understood is a
failure. `observed` tells of a module what Burn's states tell.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from engine import Tensor, full, tensor
from modules import Flag, Module, ModuleMapper, ModuleVisitor, Param, ParamGroup, RunningState
from records import RecordValidationError

from .burn_trees import DTYPES, BurnTree

DEVICES: Final = {"plain": "cpu:0", "autodiff": "cpu:0+autodiff"}
CALLS: Final = {  # fields of a call besides its name; what they may have beyond these is in RESULTS
    **{op: set() for op in ("train", "valid", "no_grad", "freeze", "unfreeze", "clone", "keep_valid", "reload")},
    "set_require_grad": {"value"},
    "set_require_grad_group": {"group", "value"},
    "freeze_group": {"group"},
    "unfreeze_group": {"group"},
    "fork": {"device"},
    "to_device": {"device"},
    "map": {"mapper"},
    "set_flag": {"path", "value"},
    "read": {"path"},
    "running_update": {"path", "numbers"},
    "running_sync": {"path", "value"},
    "load_into_fresh": {"allow_partial", "allow_unused", "fresh", "record_len"},
    "load_group_into_fresh": {"allow_partial", "allow_unused", "fresh", "record_len", "group"},
}
RESULTS: Final = {"op", "panic", "error"}
_GROUPS: Final = {
    "path": ParamGroup.from_path,
    "paths": ParamGroup.from_paths,
    "predicate": ParamGroup.from_predicate,
    "predicates": ParamGroup.from_predicates,
    "any_predicates": ParamGroup.from_any_predicates,
    "regex": ParamGroup.from_regex,
    "regexes": ParamGroup.from_regexes,
    "any_regexes": ParamGroup.from_any_regexes,
}
_SHIFT: Final = 1_000_000


def group_of(expression: Mapping[str, Any], module: Module | None = None) -> ParamGroup:
    """The group that a recorded expression means; `module` is the one that it is used on."""
    [(kind, value)] = expression.items()
    match kind:
        case "all":
            return ParamGroup.all()
        case "ids":
            return ParamGroup.from_ids(int(number) for number in value)
        case "ids_from_module":
            assert module is not None
            return ParamGroup.ids_from_module(module)
        case "fuse" | "exclude":
            one, other = (group_of(part, module) for part in value)
            return one.fuse(other) if kind == "fuse" else one.exclude(other)
    return _GROUPS[kind](value)


# Mappers


def _replaced(param: Param, keep_grad: bool) -> Param:
    id_, base, mappers = param.consume()
    value = full(base.shape, 0.75, device=base.device, dtype=base.dtype)
    return Param.initialized(id_, value.set_require_grad(keep_grad and base.is_require_grad), mappers)


def _plus_one_leaf(base: Tensor) -> Tensor:
    return (base.set_require_grad(False) + 1).set_require_grad(base.is_require_grad)


def _touched(param: Param) -> Param:
    param.base()
    return param


def _shifted(leaf: Any) -> Any:
    return leaf.with_id((int(leaf.id) + _SHIFT) % 2**64)


FLOATS: Final[dict[str, Callable[[Param], Param]]] = {
    "touch": _touched,
    "add_one": lambda param: param.map(lambda base: base + 1),
    "add_one_leaf": lambda param: param.map(_plus_one_leaf),
    "replace": lambda param: _replaced(param, keep_grad=False),
    "replace_keep_grad": lambda param: _replaced(param, keep_grad=True),
    "shift_ids": _shifted,
}
OTHERS: Final[dict[str, dict[str, Callable[[Any], Any]]]] = {
    "identity": {},
    "touch": {"int": _touched},
    "negate_flags": {"flag": lambda flag: flag.map(lambda value: not value)},
    "shift_ids": {"int": _shifted, "bool": _shifted, "flag": _shifted},
}


class Mapper(ModuleMapper):
    """Applies to each kind of leaf what is given for it."""

    def __init__(self, hooks: Mapping[str, Callable[[Any], Any]]) -> None:
        self._hooks = hooks

    def _map(self, kind: str, leaf: Any) -> Any:
        return self._hooks[kind](leaf) if kind in self._hooks else leaf

    def map_float(self, path: str, param: Param, /) -> Param:
        return self._map("float", param)

    def map_int(self, path: str, param: Param, /) -> Param:
        return self._map("int", param)

    def map_bool(self, path: str, param: Param, /) -> Param:
        return self._map("bool", param)

    def map_flag(self, path: str, flag: Flag, /) -> Flag:
        return self._map("flag", flag)


def mapper_of(name: str) -> Mapper:
    """The mapper of this name."""
    hooks = dict(OTHERS.get(name, {}))
    if name in FLOATS:
        hooks["float"] = FLOATS[name]
    assert hooks or name == "identity", f"the mapper is not understood: {name}"
    return Mapper(hooks)


class _SetFlag(ModuleMapper):
    def __init__(self, path: str, value: bool) -> None:
        self._path, self._value = path, value

    def map_flag(self, path: str, flag: Flag, /) -> Flag:
        return flag.with_value(self._value) if path == self._path else flag


class _BeforeMove(ModuleMapper):
    """Upstream's part before `to_device`: what it shows as made is read, what is tracked made a non-leaf (M47, D4)."""

    def __init__(self, made: set[str]) -> None:
        self._made = made

    def map_float(self, path: str, param: Param, /) -> Param:
        param = self.map_int(path, param)
        is_tracked = param.is_initialized and param.base().is_tracked
        return param.map(lambda base: base * 1) if is_tracked else param

    def map_int(self, path: str, param: Param, /) -> Param:
        return _touched(param) if path in self._made else param


# Programs


@dataclass
class Run:
    """A program on its way.

    Attributes:
        trees: nodes by name.
        module: the current module.
        inits: how often initialisers ran, of each tree that was built.
        kept: the modules that the program keeps.
    """

    trees: Mapping[str, Any]
    module: Any
    inits: list[Mapping[int, int]]
    kept: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, program: Mapping[str, Any], trees: Mapping[str, Any]) -> "Run":
        """A program at its start."""
        run = cls(trees, None, [])
        run.module = run._tree(program["tree"], program["device"], 0, 0)
        return run

    def _tree(self, name: str, device: str, id_shift: int, salt: int) -> Any:
        tree = BurnTree(self.trees[f"{name}/{device}/{id_shift}/{salt}"], DEVICES[device])
        self.inits.append(tree.inits)
        return tree.value

    def call(self, call: Mapping[str, Any], tree: str, state: Mapping[str, Any] | None) -> None:
        """Apply a call; `tree` names the program's, `state` is what Burn observed afterwards."""
        op = call["op"]
        assert call.keys() - RESULTS == CALLS[op], f"the call is not understood: {call}"
        module = self.module
        match op:
            case "train" | "valid" | "no_grad" | "freeze" | "unfreeze":
                self.module = getattr(module, op)()
            case "set_require_grad":
                self.module = module.set_require_grad(call["value"])
            case "set_require_grad_group":
                self.module = module.set_require_grad_group(group_of(call["group"], module), call["value"])
            case "freeze_group" | "unfreeze_group":
                self.module = getattr(module, op)(group_of(call["group"], module))
            case "clone" | "keep_valid":
                self.kept.append(module.clone() if op == "clone" else module.valid())
            case "fork":
                self.module = module.fork(DEVICES[call["device"]])
            case "to_device":
                made = {item["path"] for item in (state or {}).get("items", ()) if item.get("init")}
                self.module = module.map(_BeforeMove(made)).to_device(DEVICES[call["device"]])
            case "map":
                self.module = module.map(mapper_of(call["mapper"]))
            case "set_flag":
                self.module = module.map(_SetFlag(call["path"], call["value"]))
            case "read":
                _value_at(module, call["path"])
            case "running_update":
                self._update(module.at(call["path"]), call["numbers"])
            case "running_sync":
                pass  # nothing is ever pending (M94)
            case _:
                self._load(call, tree)

    def _update(self, state: Any, numbers: list[float]) -> None:
        if isinstance(state, RunningState):
            update = tensor(numbers[: state.value().shape[0]], device=state.value().device, dtype="float32")
            state.update(lambda value: update)

    def _load(self, call: Mapping[str, Any], tree: str) -> None:
        if call["op"] == "reload":
            record, target, options = self.module.into_record(), self.module, {}
        else:
            whole = call["op"] == "load_into_fresh"
            into = self.module.into_record
            record = into() if whole else self.module.into_record_group(group_of(call["group"], self.module))
            target = self._fresh(call["fresh"], tree)
            options = {name: call[name] for name in ("allow_partial", "allow_unused")}
            assert len(record) == call["record_len"]
        result = target.try_load_record(record.with_options(**options))
        if "error" not in call:
            self.module = result.unwrap()
        else:  # where a load is not refused here, its result is left aside (M33)
            assert result.module is not None or isinstance(result.error, RecordValidationError)

    def _fresh(self, fresh: Mapping[str, Any], tree: str) -> Any:
        assert fresh.keys() == {"device", "id_shift", "salt", "calls"}, f"the tree is not understood: {fresh}"
        module = self._tree(tree, fresh["device"], fresh["id_shift"], fresh["salt"])
        for call in fresh["calls"]:
            module = module.map(mapper_of("touch")) if call == "touch" else getattr(module, call)()
        return module


def _value_at(module: Module, path: str) -> Tensor:
    leaf = module.at(path)
    return leaf.value() if isinstance(leaf, RunningState) else leaf.base()


# States


class _Items(ModuleVisitor):
    """What Burn's states tell of each parameter, running state and flag; with values if `deep`."""

    def __init__(self, deep: bool) -> None:
        self.items: list[dict[str, Any]] = []
        self._deep = deep
        self._containers: list[str] = []

    def _param(self, path: str, param: Param, /) -> None:
        item: dict[str, Any] = {"path": path, "id": str(int(param.id)), "kind": param.kind}
        if self._deep:
            base = param.base()
            item |= {"base": np.array(base.numpy()), "containers": list(self._containers)}
        else:
            item["init"] = param.is_initialized
        item |= {"shape": list(param.shape), "ad": param.device.is_autodiff}
        if param.kind == "float" and not param.is_initialized:
            item["wish"] = param.trainable
        elif param.kind == "float":
            base = param.base()
            item |= {
                "e": base.is_require_grad,
                "tracked": base.is_tracked,
                "a": param.trainable,
                "q": base.is_quantized,
            }
        self.items.append(item)

    visit_float = visit_int = visit_bool = _param

    def visit_flag(self, path: str, flag: Flag, /) -> None:
        item = {"path": path, "id": str(int(flag.id)), "kind": "flag", "f": flag.is_enabled, "fa": flag.configured}
        self.items.append(item | ({"containers": list(self._containers)} if self._deep else {}))

    def enter_module(self, name: str, container_type: str, /) -> None:
        self._containers.append(container_type)

    def exit_module(self, name: str, container_type: str, /) -> None:
        self._containers.pop()


def observed(module: Module, constants: list[str], deep: bool = False) -> dict[str, Any]:
    """A module's state as Burn records states; makes nothing unless `deep`.

    Args:
        module: any.
        constants: the paths of its plain tensors.
        deep: with values, which are made.
    """
    items = _Items(deep)
    module.visit(items)
    return {
        "num_params": module.num_params(),
        "devices": [device.is_autodiff for device in module.devices()],
        "items": items.items,
        "constants": [
            {"path": path, "ad": module.at(path).device.is_autodiff, "e": module.at(path).is_require_grad}
            for path in constants
        ],
    }


def as_it_will_be(item: dict[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter that is lazy here and was made upstream, as it will be when it is made (M63, M47)."""
    if item.get("init", True) or not recorded.get("init", True):
        return item
    will = {name: value for name, value in item.items() if name != "wish"} | {"init": True}
    if item["kind"] == "float":
        trains = item["wish"] and item["ad"]
        will |= {"a": item["wish"], "e": trains, "tracked": trains, "q": False}
        if sorted(item["shape"]) == sorted(recorded["shape"]):
            will["shape"] = recorded["shape"]  # a shape-mapped one
    return will


def array_of(item: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The recorded values of an item of a deep state."""
    if item["kind"] == "float":
        flat = np.frombuffer(bytes.fromhex(item["base"]), DTYPES["float"])
    else:
        flat = np.array(item["base"], DTYPES[item["kind"]])
    return flat.reshape(item["shape"])
