"""Stochastic gradient descent."""

from typing import ClassVar, final

from engine import Tensor
from engine.updates import sgd_update

from .optimizer import Groups, Optimizer
from .setting import Setting, Values, number, truth
from .state import State


@final
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if asked for; all settings may be assigned between steps.

    With g the gradient plus `weight_decay` · p: v ← `momentum` · v + g, p ← p − `lr` · v; with Nesterov's momentum
    p ← p − `lr` · (g + `momentum` · v). What is kept is the velocity v, in float32 for float16 and bfloat16.

    Args:
        lr: the rate, 0 or more.
        momentum: 0 or more; without it nothing is kept.
        nesterov: takes a momentum.
        weight_decay: 0 or more.
        groups: pairs of a ParamGroup and the settings of its parameters, ``(group, {"lr": 0.01})``; the first
            match wins; ``group.paths(module)`` tells what a group has.

    Raises:
        ModuleError: a setting is none of these, or a group's.

    Source: ``torch.optim.SGD``, whose formulas and defaults these are.
    """

    __slots__ = ()
    KEPT: ClassVar = ("velocity",)

    lr = Setting(number)
    momentum = Setting(number)
    nesterov = Setting(truth)
    weight_decay = Setting(number)

    def __init__(
        self,
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        groups: Groups = (),
    ) -> None:
        super().__init__(groups, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)

    def _conflict(self, settings: Values) -> str | None:
        if settings["nesterov"] and not settings["momentum"]:
            return "nesterov is True and momentum is 0; Nesterov's momentum takes a momentum"
        return None

    def _keeps(self, settings: Values) -> bool:
        return settings["momentum"] != 0

    def _updated(self, value: Tensor, gradient: Tensor, state: State, settings: Values) -> tuple[Tensor, State]:
        new_value, velocity = sgd_update(value, gradient, state.kept.get("velocity"), **settings)
        return new_value, State({} if velocity is None else {"velocity": velocity})
