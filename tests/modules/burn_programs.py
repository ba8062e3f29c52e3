"""Runs the programs that Burn 0.23.0-pre.1 ran (``programs.jsonl.gz``) on our modules: one call after the other.

A call, a mapper, a group or a field of a call that is not understood is a
failure. `observed` tells of a module what Burn's states tell.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from engine import Tensor, dequantize, tensor
from modules import Flag, Module, ModuleVisitor, Param, ParamGroup, RunningState
from modules.tree import reparameterized_paths
from records import RecordValidationError

from .burn_mappers import (
    QUANTIZER,
    BeforeFork,
    BeforeMove,
    Parting,
    SetFlag,
    group_of,
    mapper_of,
    reparameterized,
    upstream_group,
)
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
    "materialize": set(),
    "apply_lora": {"rank", "alpha", "group", "factors"},
    "apply_qlora": {"rank", "alpha", "group", "factors", "quantizer_group"},
    "apply_reparameterization": {"group", "factors"},
    "quantize_weights": set(),
    "quantize_weights_group": {"group"},
}
RESULTS: Final = {"op", "panic", "error"}
# Programs


@dataclass
class Run:
    """A program on its way.

    Attributes:
        trees: nodes by name.
        module: the current module.
        inits: how often initialisers ran, of each tree that was built.
        group: the group that an expression means on a module.
        kept: the modules that the program keeps.
    """

    trees: Mapping[str, Any]
    module: Any
    inits: list[Mapping[int, int]]
    group: Callable[[Mapping[str, Any], Module], ParamGroup]
    kept: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, program: Mapping[str, Any], trees: Mapping[str, Any]) -> "Run":
        """A program at its start."""
        is_upstreams = {"M85", "M86"} & set(program["depends_on"])
        run = cls(trees, None, [], upstream_group if is_upstreams else group_of)
        run.module = run._tree(program["tree"], program["device"], 0, 0)
        return run

    def _tree(self, name: str, device: str, id_shift: int, salt: int) -> Any:
        tree = BurnTree(self.trees[f"{name}/{device}/{id_shift}/{salt}"], DEVICES[device])
        self.inits.append(tree.inits)
        return tree.value

    def call(self, call: Mapping[str, Any], tree: str, state: Mapping[str, Any] | None) -> None:
        """Apply a call; `tree` names the program's, `state` is what Burn observed afterwards."""
        op = call["op"]
        keys = CALLS[op] - ({"factors"} if "panic" in call else set())
        assert call.keys() - RESULTS == keys, f"the call is not understood: {call}"
        module = self.module
        match op:
            case "train" | "valid" | "no_grad" | "freeze" | "unfreeze" | "materialize":
                self.module = getattr(module, op)()
            case "set_require_grad":
                self.module = module.set_require_grad(call["value"])
            case "set_require_grad_group":
                self.module = module.set_require_grad_group(self.group(call["group"], module), call["value"])
            case "freeze_group" | "unfreeze_group":
                self.module = getattr(module, op)(self.group(call["group"], module))
            case "clone" | "keep_valid":
                self.kept.append(module.clone() if op == "clone" else module.valid())
            case "fork":
                self.module = module.map(BeforeFork()).fork(DEVICES[call["device"]])
            case "to_device":
                made = {item["path"] for item in (state or {}).get("items", ()) if item.get("init")}
                self.module = module.map(BeforeMove(made)).to_device(DEVICES[call["device"]])
            case "map":
                self.module = module.map(mapper_of(call["mapper"]))
            case "apply_lora" | "apply_qlora" | "apply_reparameterization":
                self.module = reparameterized(module, call, self.group)
            case "quantize_weights":
                self.module = module.quantize_weights(QUANTIZER)
            case "quantize_weights_group":
                self.module = module.quantize_weights_group(QUANTIZER, self.group(call["group"], module))
            case "set_flag":
                self.module = module.map(SetFlag(call["path"], call["value"]))
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
            record = into() if whole else self.module.into_record_group(self.group(call["group"], self.module))
            target = self._fresh(call["fresh"], tree)
            options = {name: call[name] for name in ("allow_partial", "allow_unused")}
            assert len(record) == call["record_len"]
        record = record.with_options(**options)
        result = target.try_load_record(record)
        if any(reason.startswith("tied to") for _, reason in result.mismatched):
            result = target.map(Parting()).try_load_record(record)
        if "error" not in call:
            self.module = result.unwrap()
        else:  # where a load is not refused here, its result is left aside (M33)
            assert result.module is not None or isinstance(result.error, RecordValidationError)

    def _fresh(self, fresh: Mapping[str, Any], tree: str) -> Any:
        keys = {"device", "id_shift", "salt", "calls"}
        assert fresh.keys() in (keys, keys | {"prepare", "factors"}), f"the tree is not understood: {fresh}"
        module = self._tree(tree, fresh["device"], fresh["id_shift"], fresh["salt"])
        for call in fresh["calls"]:
            module = module.map(mapper_of("touch")) if call == "touch" else getattr(module, call)()
        if "prepare" not in fresh:
            return module
        prepare = {"factors": fresh["factors"], **fresh["prepare"]}
        assert prepare.keys() - {"op"} == CALLS[prepare["op"]], f"the call is not understood: {prepare}"
        return reparameterized(module, prepare, self.group)


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
            item |= {"base": np.array(dense_of(base).numpy()), "containers": list(self._containers)}
            if base.is_quantized:
                item |= {"quantized": True, "base_q": base.tobytes().hex()}
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


def effective(module: Module) -> list[tuple[str, Tensor]]:
    """The path and the effective value of each parameter with a reparameterization."""
    return [(path, dense_of(module.at(path).val())) for path in reparameterized_paths(module)]


def dense_of(value: Tensor) -> Tensor:
    return dequantize(value) if value.is_quantized else value


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
