"""Faults of training state, of gradients, and of layers that behave otherwise in training; see `faults`."""

from typing import Any

from engine import Gradients, Tensor, ops
from modules import Module, ModuleMapper, Param, ParamGroup, module, training_state
from modules.nn import BatchNorm, Dropout
from modules.optim.optimizer import Optimizer
from modules.training_state import FREEZE, TRAIN, VALID
from modules.tree import Each, Leaf, leaves

from .faults import Patch, fault

# Training state


@fault("X13 fork forgets to cut", "L30", "L34")
def _x13(patch: Patch) -> None:
    original = Param._moved
    patch.setattr(Param, "_moved", lambda self, device, cut: original(self, device, False))


@fault("X15 valid clears what is configured", "L34", "L37")
def _x15(patch: Patch) -> None:
    valid = VALID._replace(param=lambda param: param._associated(autodiff=False).set_require_grad(False))
    patch.setattr(module, "VALID", valid)


@fault("X16 train sets flags on", "L34", "L37")
def _x16(patch: Patch) -> None:
    patch.setattr(module, "TRAIN", TRAIN._replace(flag=lambda flag: (True, flag.configured)))


@fault("X17 no_grad also clears flags", "L34", "L38")
def _x17(patch: Patch) -> None:
    patch.setattr(Module, "no_grad", lambda self: self.freeze())


@fault("X18 set_require_grad is ignored on a plain device", "L34", "L50")
def _x18(patch: Patch) -> None:
    original = Param.set_require_grad

    def switched(self: Param, require: bool) -> Param:
        return original(self, require) if self.device.is_autodiff else self

    patch.setattr(Param, "set_require_grad", switched)


@fault("Y25 integers can be configured to train", "L34", "L35")
def _y25(patch: Patch) -> None:
    original = Param.set_require_grad

    def switched(self: Param, require: bool) -> Param:
        if self.kind == "float":
            return original(self, require)
        value, cell = self._now()
        return self._new()._set(self._id, value, cell, self._device, require, self._mappers)

    patch.setattr(Param, "set_require_grad", switched)


@fault("Y26 freezing what is frozen turns its flags on", "L34", "L36")
def _y26(patch: Patch) -> None:
    patch.setattr(module, "FREEZE", FREEZE._replace(flag=lambda flag: (not flag.configured,) * 2))


@fault("Y27 a load forgets that a parameter is frozen", "L34", "L39")
def _y27(patch: Patch) -> None:
    original = Param._loaded

    def loaded(self: Param, number: Any, tensor: Tensor) -> Param:
        return original(self, number, tensor).set_require_grad(self.kind == "float")

    patch.setattr(Param, "_loaded", loaded)


@fault("Y28 a map of nothing unfreezes", "L34", "L39")
def _y28(patch: Patch) -> None:
    original = Module.map

    def mapped(self: Module, mapper: ModuleMapper) -> Module:
        made = original(self, mapper)
        return made.set_require_grad(True) if not any(_recorded(made)) else made

    patch.setattr(Module, "map", mapped)


def _recorded(tree: Module) -> list[bool]:
    return [leaf._is_recorded for _, leaf in leaves(tree) if isinstance(leaf, Param)]


@fault("Y29 a switch makes what is lazy", "L19", "L34", "L40")
def _y29(patch: Patch) -> None:
    original = training_state.switched

    def switched(tree: Any, *args: Any) -> Any:
        for _, leaf in leaves(tree):
            if isinstance(leaf, Param):
                leaf.base()
        return original(tree, *args)

    patch.setattr(module, "switched", switched)


@fault("Y30 a switch cuts off without a word what cannot train", "L34", "L44")
def _y30(patch: Patch) -> None:
    original = Tensor.set_require_grad

    def set_require_grad(self: Tensor, require: bool) -> Tensor:
        cut = original(self, False) if self.is_tracked and not self.is_require_grad else self
        return original(cut, require)

    patch.setattr(Param, "_is_recorded", property(lambda self: False))
    patch.setattr(Tensor, "set_require_grad", set_require_grad)


@fault("Y31 the refusal of what cannot train does not say where", "L44")
def _y31(patch: Patch) -> None:
    patch.setattr(training_state, "_refusal", lambda name, paths: f"{name}: a value cannot train")


@fault("Y32 a group changes a tied parameter in all its places", "L34", "L50")
def _y32(patch: Patch) -> None:
    original = training_state.switched

    def switched(tree: Any, switch: Any, group: ParamGroup | None = None) -> Any:
        if group is not None:
            found = {id(leaf): group for path, leaf in leaves(tree) if group.matches(_id(leaf), path)}
            same = [path for path, leaf in leaves(tree) if id(leaf) in found]
            group = ParamGroup.from_paths(same)
        return original(tree, switch, group)

    patch.setattr(module, "switched", switched)


def _id(leaf: Leaf) -> Any:
    return getattr(leaf, "id", 0)


@fault("Y33 each place of a switched parameter gets one of its own", "L12", "L34")
def _y33(patch: Patch) -> None:
    original = Each.leaf

    def leaf(self: Each, path: str, one: Leaf) -> Leaf:
        self._made.clear()
        return original(self, path, one)

    patch.setattr(Each, "leaf", leaf)


# Gradients


@fault("Y34 what has no gradient has one of zeros", "L30", "L42")
def _y34(patch: Patch) -> None:
    original = Param.grad

    def grad(self: Param, gradients: Gradients) -> Tensor | None:
        found = original(self, gradients)
        return self.base().without_autodiff() * 0 if found is None and self.kind == "float" else found

    patch.setattr(Param, "grad", grad)


@fault("Y35 a second use of a parameter is forgotten", "L42")
def _y35(patch: Patch) -> None:
    patch.setattr("engine.gradients.ops.add", lambda one, other: other)


@fault("Y36 weights decay without a gradient too", "L43")
def _y36(patch: Patch) -> None:
    original = Optimizer.step

    class Decayed(ModuleMapper):
        def map_float(self, path: str, param: Param, /) -> Param:
            frozen = param.kind == "float" and not param.val().is_tracked
            return param.map(lambda value: value * 0.5) if frozen else param

    patch.setattr(Optimizer, "step", lambda self, tree, gradients: original(self, tree, gradients).map(Decayed()))


@fault("Y37 a step of training leaves what it updates frozen", "L43")
def _y37(patch: Patch) -> None:
    original = Optimizer.step
    patch.setattr(Optimizer, "step", lambda self, tree, gradients: original(self, tree, gradients).no_grad())


# Layers


@fault("X19 batch norm looks at autodiff only, not at its flag", "L41", "L43")
def _x19(patch: Patch) -> None:
    def forward(self: BatchNorm, x: Tensor) -> Tensor:
        mean, var = self.running_mean.value(), self.running_var.value()
        if x.device.is_autodiff:
            mean, var = ops.batch_statistics(x)
            self._update(mean.without_autodiff(), var.without_autodiff())
        return self._normalised(x, mean, var)

    patch.setattr(BatchNorm, "forward", forward)


@fault("Y38 batch norm moves its statistics by the unbiased variance", "L41")
def _y38(patch: Patch) -> None:
    original = BatchNorm._update

    def update(self: BatchNorm, mean: Tensor, var: Tensor) -> None:
        original(self, mean, var * 1.5)

    patch.setattr(BatchNorm, "_update", update)


@fault("Y39 dropout looks at its flag only", "L41")
def _y39(patch: Patch) -> None:
    original = Dropout.forward
    patch.setattr(Dropout, "forward", lambda self, x: original(self, x.autodiff()))


@fault("Y40 dropout does not scale what it leaves", "L41")
def _y40(patch: Patch) -> None:
    original = Dropout.forward

    def forward(self: Dropout, x: Tensor) -> Tensor:
        y = original(self, x)
        return y if y is x else y * (1 - self.prob)

    patch.setattr(Dropout, "forward", forward)
