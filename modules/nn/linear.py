"""The linear layer."""

from typing import Any, final

from engine import Device, Seed, Tensor, ops
from modules.module import Module
from modules.param import Param

from .initial import kaiming_uniform
from .settings import float_dtype, size


@final
class Linear(Module):
    """y = x · weight + bias.

    Checkpoints of PyTorch, safetensors and GGUF hold the weight as
    [d_output, d_input]: load them through the step `records.Transpose`.

    Args:
        d_input: features of the input.
        d_output: features of the output.
        bias: whether to add one.
        device: where it is.
        dtype: of the parameters, and of the input.
        seed: of the initial values, uniform in ±1/√d_input.

    Attributes:
        weight: [d_input, d_output].
        bias: [d_output], or None.

    Raises:
        ModuleError: a size is below 1, or the dtype no float dtype.

    Source: Burn 0.23, ``nn::Linear``.
    """

    weight: Param
    bias: Param | None

    def __init__(
        self,
        d_input: int,
        d_output: int,
        *,
        bias: bool = True,
        device: Device | str,
        dtype: Any = "float32",
        seed: int | Seed | None = None,
    ) -> None:
        self.d_input = size("Linear", "d_input", d_input)
        self.d_output = size("Linear", "d_output", d_output)
        of, place, stream = float_dtype("Linear", dtype), Device(device), Seed.of(seed)
        self.weight = kaiming_uniform((d_input, d_output), d_input, of, place, stream)
        self.bias = kaiming_uniform((d_output,), d_input, of, place, stream) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_input] to [..., d_output]."""
        bias = self.bias
        return ops.linear(x, self.weight.val(), None if bias is None else bias.val())
