"""Layers that normalise along the last axis. They draw nothing, so they take no seed."""

from typing import Any, final

from engine import Device, Tensor, ops
from modules.module import Module
from modules.param import Param

from .initial import constant_ones, constant_zeros
from .settings import float_dtype, positive, size


@final
class LayerNorm(Module):
    """y = (x − mean(x)) / √(var(x) + epsilon) · gamma + beta, with the biased variance.

    Args:
        d_model: extent of the last axis.
        epsilon: added to the variance; above 0.
        bias: whether to add beta.
        device: where it is.
        dtype: of the parameters, and of the input.

    Attributes:
        gamma: [d_model], initially ones.
        beta: [d_model], initially zeros, or None.

    Raises:
        ModuleError: a setting is out of its range, or the dtype no float dtype.

    Source: Burn 0.23, ``nn::LayerNorm``; J. L. Ba et al., "Layer normalization" (2016).
    """

    gamma: Param
    beta: Param | None

    def __init__(
        self,
        d_model: int,
        *,
        epsilon: float = 1e-5,
        bias: bool = True,
        device: Device | str,
        dtype: Any = "float32",
    ) -> None:
        self.d_model = size("LayerNorm", "d_model", d_model)
        self.epsilon = positive("LayerNorm", "epsilon", epsilon)
        of, place = float_dtype("LayerNorm", dtype), Device(device)
        self.gamma = constant_ones((self.d_model,), of, place)
        self.beta = constant_zeros((self.d_model,), of, place) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] to the same shape."""
        beta = self.beta
        return ops.layer_norm(x, self.gamma.val(), None if beta is None else beta.val(), self.epsilon)


@final
class RmsNorm(Module):
    """y = x / √(mean(x²) + epsilon) · gamma.

    Args:
        d_model: extent of the last axis.
        epsilon: added to the mean square; above 0.
        device: where it is.
        dtype: of the parameter, and of the input.

    Attributes:
        gamma: [d_model], initially ones.

    Raises:
        ModuleError: a setting is out of its range, or the dtype no float dtype.

    Source: Burn 0.23, ``nn::RmsNorm``; B. Zhang, R. Sennrich, "Root mean square layer normalization" (2019).
    """

    gamma: Param

    def __init__(self, d_model: int, *, epsilon: float = 1e-5, device: Device | str, dtype: Any = "float32") -> None:
        self.d_model = size("RmsNorm", "d_model", d_model)
        self.epsilon = positive("RmsNorm", "epsilon", epsilon)
        self.gamma = constant_ones((self.d_model,), float_dtype("RmsNorm", dtype), Device(device))

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] to the same shape."""
        return ops.rms_norm(x, self.gamma.val(), self.epsilon)
