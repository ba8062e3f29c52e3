"""Small split models for the tests of this folder."""

from collections.abc import Callable, Sequence
from typing import Any

from engine import Buffer, Device, Tensor, ops, tensor
from modules import Module, Param
from modules.parallel import Cache, LayerParallelism, LayerPlacement


class Scale(Module):
    """Multiplies by a parameter of shape [width]."""

    def __init__(self, width: int, device: Device | str, value: float = 2.0) -> None:
        self.weight = Param(tensor([value] * width, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.val()


class Apply(Module):
    """A layer without tensors that applies a function; it may be anywhere."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def forward(self, signal: Any) -> Any:
        return self.function(signal)


class Chain(LayerParallelism):
    """Any layers, one after the other."""

    def __init__(self, input: Module, hidden: Sequence[Module], output: Module) -> None:
        self.head = output
        self.blocks = list(hidden)
        self.stem = input

    def layer_input(self) -> Module:
        return self.stem

    def layers_hidden(self) -> Sequence[Module]:
        return self.blocks

    def layer_output(self) -> Module:
        return self.head


def chain(placement: LayerPlacement, width: int = 3) -> Chain:
    """A chain of `Scale` layers built by a placement."""
    hidden = [Scale(width, device, 1.0 + index) for index, device in enumerate(placement.hidden)]
    return Chain(Scale(width, placement.input), hidden, Scale(width, placement.output, 0.5))


class Positions(Cache):
    """What a `RunningSum` has seen, along axis 0."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Buffer(0)


class RunningSum(Module):
    """At each position the sum of the positions so far, times a weight; autoregressive."""

    def __init__(self, width: int, device: Device | str) -> None:
        self.weight = Param(tensor([1.5] * width, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return ops.cumsum(x, axis=0) * self.weight.val()

    def new_autoregressive_cache(self) -> Positions:
        return Positions()

    def forward_autoregressive_inference(self, input: Tensor, cache: Positions, /) -> Tensor:
        cache.seen.append(input)
        cache.length += input.shape[0]
        return self.forward(cache.seen.view())[cache.length - input.shape[0] :]
