"""Dropout: elements left out at random while a model is trained."""

from collections.abc import Sequence
from typing import Any, final

from engine import Seed, Tensor
from modules.display import DisplaySettings
from modules.draws import Draws
from modules.flag import Flag
from modules.module import Module

from .settings import fraction
from .shown import ONE_LINE, training_if_off


@final
class Dropout(Module):
    """In training y = x · m / (1 − prob), with m = 0 for each element with probability `prob`, else 1; otherwise y = x.

    It trains where its flag is on and the input's device is autodiff: `valid`
    and `freeze` stop it, `no_grad` does not. The same elements are left out
    on every device (see `modules.draws`). It has no parameters and no device.

    An input on a plain device is therefore let through as in evaluation, by a
    model in training too. Behind parameters on an autodiff device it is
    autodiff; a model that begins with this layer is given ``x.autodiff()``.

    Args:
        prob: the probability, from 0 to below 1.
        seed: of what is left out.

    Attributes:
        training: the flag.
        draws: the random numbers, one draw for each call that leaves elements out.

    Raises:
        ModuleError: `prob` is out of its range.

    Source: M69; Burn 0.23, ``nn::Dropout``; N. Srivastava et al., "Dropout" (2014), section 10, for the scaling.
    """

    training: Flag
    draws: Draws

    def __init__(self, prob: float, *, seed: int | Seed | None = None) -> None:
        self.prob = fraction("Dropout", "prob", prob, below_one=True)
        self.training = Flag(True)
        self.draws = Draws(seed)

    def forward(self, x: Tensor) -> Tensor:
        """Floats of any shape, to the same shape."""
        if not self.training.is_enabled or not x.device.is_autodiff or self.prob == 0:
            return x
        kept = self.draws.uniform(x.shape, x.device.inner()) >= self.prob
        return x * (kept.cast(x.dtype) * (1 / (1 - self.prob)))

    def display_settings(self) -> DisplaySettings:
        """On one line, as Burn's (M102)."""
        return ONE_LINE

    def display_content(self) -> Sequence[tuple[str, Any]]:
        """The probability, and the flag where it is off (M102)."""
        return [("prob", self.prob), *training_if_off(self.training)]
