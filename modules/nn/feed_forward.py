"""The feed-forward networks of transformers: plain, and gated."""

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, final

from engine import Device, Seed, Tensor, ops
from modules.module import Module

from .linear import Linear
from .settings import one_of, size

Activation: TypeAlias = Literal["gelu", "gelu_tanh", "relu", "silu"]

_ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "gelu": ops.gelu,
    "gelu_tanh": lambda x: ops.gelu(x, "tanh"),
    "relu": ops.relu,
    "silu": ops.silu,
}


@final
class FeedForward(Module):
    """y = linear_outer(activation(linear_inner(x))).

    Args:
        d_model: features of input and output.
        d_ff: features in between.
        activation: ``"gelu"``, ``"gelu_tanh"``, ``"relu"`` or ``"silu"``.
        bias: whether the linear layers have biases.
        device: where it is.
        dtype: of the parameters, and of the input.
        seed: of the initial values.

    Raises:
        ModuleError: a setting is out of its range.

    Source: A. Vaswani et al., "Attention is all you need" (2017), equation 2; Burn 0.23,
    ``nn::transformer::PositionWiseFeedForward``.
    """

    linear_inner: Linear
    linear_outer: Linear

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Activation = "gelu",
        bias: bool = True,
        device: Device | str,
        dtype: Any = "float32",
        seed: int | Seed | None = None,
    ) -> None:
        self.d_model = size("FeedForward", "d_model", d_model)
        self.d_ff = size("FeedForward", "d_ff", d_ff)
        self.activation = one_of("FeedForward", "activation", activation, tuple(_ACTIVATIONS))
        stream = Seed.of(seed)
        self.linear_inner = Linear(d_model, d_ff, bias=bias, device=device, dtype=dtype, seed=stream)
        self.linear_outer = Linear(d_ff, d_model, bias=bias, device=device, dtype=dtype, seed=stream)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] to the same shape."""
        return self.linear_outer.forward(_ACTIVATIONS[self.activation](self.linear_inner.forward(x)))


@final
class GatedFeedForward(Module):
    """y = down(activation(gate(x)) · up(x)); with ``"silu"`` it is called SwiGLU.

    One linear layer makes gate and up, in that order, as q, k and v are made
    in `MultiHeadAttention`.

    Args:
        d_model: features of input and output.
        d_ff: features in between.
        activation: as of `FeedForward`.
        bias: whether the linear layers have biases.
        device: where it is.
        dtype: of the parameters, and of the input.
        seed: of the initial values.

    Attributes:
        gate_up: Linear, d_model to 2 · d_ff.
        down: Linear, d_ff to d_model.

    Raises:
        ModuleError: a setting is out of its range.

    Source: N. Shazeer, "GLU variants improve transformer" (2020), equation 6.
    """

    gate_up: Linear
    down: Linear

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Activation = "silu",
        bias: bool = False,
        device: Device | str,
        dtype: Any = "float32",
        seed: int | Seed | None = None,
    ) -> None:
        self.d_model = size("GatedFeedForward", "d_model", d_model)
        self.d_ff = size("GatedFeedForward", "d_ff", d_ff)
        self.activation = one_of("GatedFeedForward", "activation", activation, tuple(_ACTIVATIONS))
        stream = Seed.of(seed)
        self.gate_up = Linear(d_model, 2 * self.d_ff, bias=bias, device=device, dtype=dtype, seed=stream)
        self.down = Linear(d_ff, d_model, bias=bias, device=device, dtype=dtype, seed=stream)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] to the same shape."""
        joined = self.gate_up.forward(x)
        if self.activation == "silu":
            return self.down.forward(ops.swiglu(joined))
        gate, up = ops.split(joined, (self.d_ff, self.d_ff), axis=-1)
        return self.down.forward(_ACTIVATIONS[self.activation](gate) * up)
