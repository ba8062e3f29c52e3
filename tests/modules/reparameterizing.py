"""Reparameterizations that tests attach, written as a user would write them."""

from typing import Any

from engine import Tensor, ones, ops
from modules import Flag, Module, ModuleMapper, Param, ParamGroup, Reparameterization, Reparameterizer
from modules.tree import leaves

from .small_modules import Holder, numbers


class WeightNorm(Reparameterization):
    """base · (g / ‖base‖): a factor for each index of one axis (A46)."""

    NAME = "weight_norm"

    def __init__(self, weight: Tensor, axis: int) -> None:
        self.axis = axis
        self.g = Param(self.norm(weight))

    def norm(self, weight: Tensor) -> Tensor:
        others = tuple(axis for axis in range(weight.ndim) if axis != self.axis)
        return ops.sqrt(ops.sum(ops.square(weight), axis=others, keepdims=True))

    def apply(self, base: Tensor, /) -> Tensor:
        return base * (self.g.val() / self.norm(base))


class WeightNormed(Reparameterizer):
    """Weight normalisation of everything of rank 2 and more."""

    def __init__(self, axis: int = 0) -> None:
        self.axis = axis

    def reparameterize(self, path: str, param: Param, /) -> tuple[Param, WeightNorm | None]:
        if len(param.shape) < 2:
            return param, None
        return param, WeightNorm(param.base().set_require_grad(False), self.axis)


class LearnedScale(Reparameterization):
    """base · scale while its flag is on."""

    NAME = "learned_scale"

    def __init__(self, device: Any) -> None:
        self.scale = Param(ones((1,), device=device, dtype="float32"))
        self.enabled = Flag(True)

    def apply(self, base: Tensor, /) -> Tensor:
        return base * self.scale.val() if self.enabled.is_enabled else base


class LearnedScales(Reparameterizer):
    """A `LearnedScale` for each parameter of a group that has an axis."""

    def __init__(self, group: ParamGroup | None = None) -> None:
        self.group = ParamGroup.all() if group is None else group

    def reparameterize(self, path: str, param: Param, /) -> tuple[Param, LearnedScale | None]:
        has = self.group.matches(param.id, path) and param.shape
        return param, LearnedScale(param.device) if has else None


class Identity(Reparameterization):
    """The base; it holds parameters that it does not use."""

    NAME = "identity"

    def __init__(self, held: list[Param]) -> None:
        self.held = held

    def apply(self, base: Tensor, /) -> Tensor:
        return base


class Identities(Reparameterizer):
    """An `Identity` for each parameter, with so many parameters of its own."""

    def __init__(self, number: int) -> None:
        self.number = number

    def reparameterize(self, path: str, param: Param, /) -> tuple[Param, Identity | None]:
        return param, Identity([Param(numbers(2, device=str(param.device))) for _ in range(self.number)])


class By(Reparameterizer):
    """Answers with what a function gives."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def reparameterize(self, path: str, param: Param, /) -> Any:
        return self.answer(path, param)


class SetTo(ModuleMapper):
    """Gives parameters of floats new values, by path; how they train stays."""

    def __init__(self, values: dict[str, Tensor]) -> None:
        self.values = values

    def map_float(self, path: str, param: Param, /) -> Param:
        if path not in self.values:
            return param
        value = self.values[path]
        value = value.autodiff() if param.device.is_autodiff else value
        return param.map(lambda base: value.set_require_grad(base.is_require_grad))


def everything(module: Module) -> dict[str, tuple[Any, ...]]:
    """Id, bits and training state of each parameter and flag, by path; lazy ones are made."""
    found: dict[str, tuple[Any, ...]] = {}
    for path, leaf in leaves(module):
        if isinstance(leaf, Param):
            base = leaf.base()
            how = (str(base.dtype), base.shape, str(base.device), base.is_require_grad, base.is_tracked)
            found[path] = (int(leaf.id), base.tobytes(), leaf.trainable, *how)
        elif isinstance(leaf, Flag):
            found[path] = (int(leaf.id), leaf.is_enabled, leaf.configured)
    return found


def holding(**params: Any) -> Holder:
    """A module with a parameter for each tensor."""
    return Holder(**{name: Param(value) if isinstance(value, Tensor) else value for name, value in params.items()})
