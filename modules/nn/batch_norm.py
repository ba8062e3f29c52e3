"""Batch normalisation, and the statistics that it keeps while a model is trained."""

from collections.abc import Sequence
from typing import Any, final

from engine import Device, ShapeError, Tensor, ones, ops, zeros
from modules.display import DisplaySettings
from modules.flag import Flag
from modules.module import Module
from modules.param import Param
from modules.running_state import RunningState

from .initial import constant_ones, constant_zeros
from .settings import float_dtype, fraction, positive, size
from .shown import ONE_LINE, training_if_off


@final
class BatchNorm(Module):
    """y = (x − mean) / √(var + epsilon) · gamma + beta, each feature with its own four numbers.

    In training mean and biased variance are those of the batch, and the
    running ones move towards them: running · (1 − momentum) + batch · momentum.
    Otherwise they are the running ones. It trains where its flag is on and
    the input's device is autodiff: `valid` and `freeze` stop it, `no_grad`
    does not. An input on a plain device is therefore treated as in evaluation,
    by a model in training too. Behind parameters on an autodiff device it is
    autodiff; a model that begins with this layer is given ``x.autodiff()``.

    Args:
        num_features: extent of axis 1.
        momentum: how far one batch moves the running statistics; from 0 to 1.
        epsilon: added to the variance; above 0.
        device: where it is.
        dtype: of the parameters and running states, and of the input.

    Attributes:
        gamma: [num_features], initially ones.
        beta: [num_features], initially zeros.
        training: the flag.
        running_mean: [num_features], initially zeros.
        running_var: [num_features], initially ones.

    Raises:
        ModuleError: a setting is out of its range, or the dtype no float dtype.

    Source: M98; Burn 0.23, ``nn::BatchNorm``; S. Ioffe, C. Szegedy, "Batch normalization" (2015).
    """

    gamma: Param
    beta: Param
    training: Flag
    running_mean: RunningState
    running_var: RunningState

    def __init__(
        self,
        num_features: int,
        *,
        momentum: float = 0.1,
        epsilon: float = 1e-5,
        device: Device | str,
        dtype: Any = "float32",
    ) -> None:
        shape = (size("BatchNorm", "num_features", num_features),)
        of, place = float_dtype("BatchNorm", dtype), Device(device)
        self.gamma = constant_ones(shape, of, place)
        self.beta = constant_zeros(shape, of, place)
        self.training = Flag(True)
        self.running_mean = RunningState(zeros(shape, device=place, dtype=of))
        self.running_var = RunningState(ones(shape, device=place, dtype=of))
        self.momentum = fraction("BatchNorm", "momentum", momentum)
        self.epsilon = positive("BatchNorm", "epsilon", epsilon)

    @property
    def num_features(self) -> int:
        """Extent of axis 1 of its inputs."""
        return self.gamma.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """[batch, num_features, …] to the same shape.

        Raises:
            ShapeError: x has another number of features on axis 1, or, in training, no elements of a feature.
        """
        if x.ndim < 2 or x.shape[1] != self.num_features:
            raise ShapeError(
                f"BatchNorm: x has shape {list(x.shape)}, the layer {self.num_features} features; x must be "
                f"[batch, {self.num_features}, …]"
            )
        if not (self.training.is_enabled and x.device.is_autodiff):
            return self._normalised(x, self.running_mean.value(), self.running_var.value())
        mean, var = ops.batch_statistics(x)
        y = self._normalised(x, mean, var)
        self._update(mean.without_autodiff(), var.without_autodiff())
        return y

    def _normalised(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return ops.batch_norm(x, mean, var, self.gamma.val(), self.beta.val(), self.epsilon)

    def _update(self, mean: Tensor, var: Tensor) -> None:
        """Move both running statistics as one step: the variance moves while the lock of the mean is held."""

        def moved(running: Tensor, batch: Tensor) -> Tensor:
            return running * (1 - self.momentum) + batch * self.momentum

        def both(running_mean: Tensor) -> Tensor:
            after = moved(running_mean, mean)
            self.running_var.update(lambda running_var: moved(running_var, var))
            return after

        self.running_mean.update(both)

    def display_settings(self) -> DisplaySettings:
        """On one line, as Burn's (M102)."""
        return ONE_LINE

    def display_content(self) -> Sequence[tuple[str, Any]]:
        """The settings, and the flag where it is off (M102)."""
        settings = [(name, getattr(self, name)) for name in ("num_features", "momentum", "epsilon")]
        return [*settings, *training_if_off(self.training)]
