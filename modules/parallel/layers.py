"""What a layer is, and a model made of layers that run one after the other.

A *layer* is any Module with a ``forward`` of one argument; the input is already
on the layer's device, and the output is left there (P1). What passes from layer
to layer is the *signal* (see `modules.parallel.signal`).
"""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from modules.module import Module
from modules.reserved import reserved_names

from .cache import Cache


@runtime_checkable
class DistributedLayer(Protocol):
    """A Module that can be one layer of a split model; it need not inherit from anything else (P1)."""

    def forward(self, input: Any, /) -> Any:
        """The layer's output for a signal on its device."""
        ...


@runtime_checkable
class AutoregressiveLayer(DistributedLayer, Protocol):
    """A hidden layer that can go on from positions it has seen (P64)."""

    def new_autoregressive_cache(self) -> Cache:
        """An empty cache for one sequence."""
        ...

    def forward_autoregressive_inference(self, input: Any, cache: Any, /) -> Any:
        """The output for positions that follow those in `cache`, which is extended in place."""
        ...


@dataclass(frozen=True, eq=False)
class LayerSequence:
    """A model taken apart into its layers (P4).

    Attributes:
        input: the input layer.
        hidden: the hidden layers, in forward order.
        output: the output layer.
    """

    input: Module
    hidden: list[Module]
    output: Module


class LayerParallelism(Module):
    """Base class of a model that can be split: an input layer, hidden layers in order, an output layer.

    The three accessors give the model's own layers, the same ones at every
    call, and do no work (P2, P3). They need not be all of the model; what lies
    outside takes no part in a split forward (P10).

    Source: Burn 0.23, ``LayerParallelism``.
    """

    @abstractmethod
    def layer_input(self) -> Module:
        """The layer that takes the model's input and gives the first signal (P5)."""

    @abstractmethod
    def layers_hidden(self) -> Iterable[Module]:
        """The hidden layers in forward order; each takes and gives a signal. There may be none."""

    @abstractmethod
    def layer_output(self) -> Module:
        """The layer that takes the last signal and gives the model's output."""

    def into_layers(self) -> LayerSequence:
        """The model taken apart; override it where layers are wrapped or ordered for their owner (P4)."""
        return LayerSequence(self.layer_input(), list(self.layers_hidden()), self.layer_output())


LayerParallelism._reserved = reserved_names(LayerParallelism)
