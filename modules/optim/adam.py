"""Adam, and Adam with decoupled weight decay."""

from typing import ClassVar, final

from engine import Tensor
from engine.updates import adam_update

from .optimizer import Groups, Optimizer
from .setting import Setting, Values, betas, number
from .state import State


class _WithMoments(Optimizer):
    """What the two share."""

    __slots__ = ()
    KEPT: ClassVar = ("moment_1", "moment_2")
    COUNTS: ClassVar = True
    DECOUPLED: ClassVar[bool]

    lr = Setting(number)
    betas = Setting(betas)
    epsilon = Setting(number)
    weight_decay = Setting(number)

    def _updated(self, value: Tensor, gradient: Tensor, state: State, settings: Values) -> tuple[Tensor, State]:
        time = state.time + 1
        new_value, moment_1, moment_2 = adam_update(
            value,
            gradient,
            state.kept["moment_1"],
            state.kept["moment_2"],
            time=time,
            decoupled=self.DECOUPLED,
            **settings,
        )
        return new_value, State({"moment_1": moment_1, "moment_2": moment_2}, time)


@final
class Adam(_WithMoments):
    """Adam; all settings may be assigned between steps.

    m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g², p ← p − `lr` · m̂ / (√v̂ + `epsilon`), with g the gradient plus
    `weight_decay` · p, m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ). What is kept is m, v and the number t of a
    parameter's steps; m and v in float32 for float16 and bfloat16, which a change by 1 − β₂ would not reach.

    Args:
        lr: the rate, 0 or more.
        betas: β₁ and β₂, each from 0 up to, without, 1.
        epsilon: 0 or more; with 0, an element whose gradients were all 0 becomes NaN.
        weight_decay: 0 or more; it is part of the gradient, as in L2 regularization.
        groups: pairs of a ParamGroup and the settings of its parameters, ``(group, {"lr": 1e-4})``; the first
            match wins; ``group.paths(module)`` tells what a group has.

    Raises:
        ModuleError: a setting is none of these, or a group's.

    Source: D. Kingma, J. Ba, "Adam" (2015), algorithm 1; defaults of ``torch.optim.Adam``.
    """

    __slots__ = ()
    DECOUPLED: ClassVar = False

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        groups: Groups = (),
    ) -> None:
        super().__init__(groups, lr=lr, betas=betas, epsilon=epsilon, weight_decay=weight_decay)


@final
class AdamW(_WithMoments):
    """Adam with weight decay apart from the gradient; all settings may be assigned between steps.

    As `Adam`, with g the gradient alone, and p ← p − `lr` · `weight_decay` · p before each step.

    Args:
        lr: the rate, 0 or more.
        betas: β₁ and β₂, each from 0 up to, without, 1.
        epsilon: 0 or more; with 0, an element whose gradients were all 0 becomes NaN.
        weight_decay: 0 or more.
        groups: as of `Adam`.

    Raises:
        ModuleError: a setting is none of these, or a group's.

    Source: I. Loshchilov, F. Hutter, "Decoupled weight decay regularization" (2019), algorithm 2, whose weight decay
    is scaled by `lr` here; defaults of ``torch.optim.AdamW``.
    """

    __slots__ = ()
    DECOUPLED: ClassVar = True

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 1e-2,
        groups: Groups = (),
    ) -> None:
        super().__init__(groups, lr=lr, betas=betas, epsilon=epsilon, weight_decay=weight_decay)
