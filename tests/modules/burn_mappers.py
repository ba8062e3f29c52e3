"""What calls of Burn's recorded programs are given: groups, mappers, quantizers, reparameterizations (PROGRAMS.md).

What is not understood is a failure.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from engine import Calibration, QuantScheme, QuantStore, QuantValue, ScaleDtype, Tensor, dequantize, full, ones
from modules import (
    Flag,
    Lora,
    Module,
    ModuleMapper,
    Param,
    ParamGroup,
    QLora,
    Quantizer,
    Reparameterization,
    Reparameterizer,
)

from .burn_trees import DTYPES

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


def upstream_group(expression: Mapping[str, Any], module: Module) -> ParamGroup:
    """The group that an expression means upstream: `fuse` drops excludes, `exclude` takes a matcher (M85, M86)."""
    matcher, excludes = _matcher_and_excludes(expression, module)
    for other in excludes:
        matcher = matcher - other
    return matcher


def _matcher_and_excludes(expression: Mapping[str, Any], module: Module) -> tuple[ParamGroup, list[ParamGroup]]:
    [(kind, value)] = expression.items()
    if kind not in ("fuse", "exclude"):
        return group_of(expression, module), []
    (one, excludes), (other, _) = (_matcher_and_excludes(part, module) for part in value)
    return (one | other, []) if kind == "fuse" else (one, [*excludes, other])


# Quantizers and reparameterizations

QUANTIZER: Final = Quantizer(
    Calibration.MIN_MAX, QuantScheme(QuantValue.Q8S, QuantStore.native(), tensor=ScaleDtype.F32)
)


class LearnedScale(Reparameterization):
    """base · scale."""

    NAME = "learned_scale"

    def __init__(self, device: Any) -> None:
        self.scale = Param(ones((1,), device=device, dtype="float32"))
        self.enabled = Flag(True)

    def apply(self, base: Tensor, /) -> Tensor:
        return base * self.scale.val()


class LearnedScales(Reparameterizer):
    """A `LearnedScale` for each parameter of a group."""

    def __init__(self, group: ParamGroup) -> None:
        self._group = group

    def reparameterize(self, path: str, param: Param, /) -> tuple[Param, LearnedScale | None]:
        return param, LearnedScale(param.device) if self._group.matches(param.id, path) else None


def reparameterized(module: Any, call: Mapping[str, Any], group_of: Callable[..., ParamGroup]) -> Any:
    """The module after a call that reparameterizes it, its factors with the ids and values that the call lists."""
    group = group_of(call["group"], module)
    if call["op"] == "apply_reparameterization":
        made = module.apply_reparameterization(LearnedScales(group))
    else:
        lora = Lora(call["rank"], call["alpha"], param_group=group)
        if call["op"] == "apply_lora":
            made = module.apply_lora(lora)
        else:
            quantizer = QUANTIZER.set_param_group(group_of(call["quantizer_group"], module))
            made = module.apply_qlora(QLora(lora, quantizer))
    factors = {factor["path"]: factor for factor in call["factors"]}
    fixing = _Fixing(factors)
    fixed = made.map(fixing)
    assert fixing.found == list(factors), f"other factors: {fixing.found}"
    return fixed


class _Fixing(ModuleMapper):
    """Gives factors their recorded ids and values; how they train stays."""

    def __init__(self, factors: Mapping[str, Mapping[str, Any]]) -> None:
        self._factors = factors
        self._depth = 0
        self.found: list[str] = []

    def map_float(self, path: str, param: Param, /) -> Param:
        if not self._depth:
            return param
        factor = self._fixed(path, "float", {"path", "kind", "id", "shape", "values"})
        values = np.frombuffer(bytes.fromhex(factor["values"]), DTYPES["float"]).reshape(factor["shape"])
        assert values.shape == param.shape

        def fixed(base: Tensor) -> Tensor:
            value = Tensor.from_numpy(values, base.device)
            return value.set_require_grad(base.is_require_grad)

        return param.map(fixed).with_id(int(factor["id"]))

    def map_flag(self, path: str, flag: Flag, /) -> Flag:
        if not self._depth:
            return flag
        return flag.with_id(int(self._fixed(path, "flag", {"path", "kind", "id"})["id"]))

    def _fixed(self, path: str, kind: str, keys: set[str]) -> Mapping[str, Any]:
        factor = self._factors[path]
        assert factor["kind"] == kind, path
        assert factor.keys() == keys, path
        self.found.append(path)
        return factor

    def enter_module(self, name: str, container_type: str, /) -> None:
        self._depth += container_type == "Reparameterization"

    def exit_module(self, name: str, container_type: str, /) -> None:
        self._depth -= container_type == "Reparameterization"


# Mappers


def _replaced(param: Param, keep_grad: bool) -> Param:
    id_, base, mappers = param.consume()
    value = full(base.shape, 0.75, device=base.device, dtype="float32")
    return Param.initialized(id_, value.set_require_grad(keep_grad and base.is_require_grad), mappers)


def _plus_one_leaf(base: Tensor) -> Tensor:
    return (base.set_require_grad(False) + 1).set_require_grad(base.is_require_grad)


def _dense(param: Param, change: Callable[[Tensor], Tensor]) -> Param:
    return param if param.base().is_quantized else param.map(change)


def _touched(param: Param) -> Param:
    param.base()
    return param


def _shifted(leaf: Any) -> Any:
    return leaf.with_id((int(leaf.id) + _SHIFT) % 2**64)


FLOATS: Final[dict[str, Callable[[Param], Param]]] = {
    "touch": _touched,
    "add_one": lambda param: _dense(param, lambda base: base + 1),
    "add_one_leaf": lambda param: _dense(param, _plus_one_leaf),
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


class SetFlag(ModuleMapper):
    def __init__(self, path: str, value: bool) -> None:
        self._path, self._value = path, value

    def map_flag(self, path: str, flag: Flag, /) -> Flag:
        return flag.with_value(self._value) if path == self._path else flag


class BeforeMove(ModuleMapper):
    """Upstream's part before `to_device`: what it shows as made is read, what is tracked made a non-leaf (M47, D4)."""

    def __init__(self, made: set[str]) -> None:
        self._made = made

    def map_float(self, path: str, param: Param, /) -> Param:
        param = self.map_int(path, param)
        is_tracked = param.is_initialized and param.base().is_tracked
        return param.map(lambda base: base * 1) if is_tracked else param

    def map_int(self, path: str, param: Param, /) -> Param:
        return _touched(param) if path in self._made else param


class Parting(ModuleMapper):
    """Upstream's part of a load: tied parameters are loaded each from its own entry (D8)."""

    def map_float(self, path: str, param: Param, /) -> Param:
        return param.with_id(param.id)

    map_int = map_bool = map_float


class BeforeFork(ModuleMapper):
    """Upstream's part of `fork`: what is quantized is made dense (M42a)."""

    def map_float(self, path: str, param: Param, /) -> Param:
        is_quantized = param.is_initialized and param.base().is_quantized
        return param.map(dequantize) if is_quantized else param
