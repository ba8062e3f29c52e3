"""A model whose layers run where a placement says, itself a module."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Self, TypeVar

from engine import Device
from modules.errors import ModuleError
from modules.module import Module
from modules.reserved import reserved_names

from .cache import Cache
from .check import Layers, check_placement, layer_name, layers_of
from .errors import Layer, PlacementError
from .layers import AutoregressiveLayer, LayerParallelism
from .placement import LayerPlacement
from .signal import moved
from .stages import StagedLayers, staged

M = TypeVar("M", bound=LayerParallelism)

_SEQUENCES = itertools.count()  # numbers the tuples of caches, so that a mixture of two is noticed


class DistributedLayeredModel(Module, Generic[M]):
    """A model and the placement of its layers; its forward copies the signal from device to device.

    The layers must be where the placement says: wrapping checks that, moves
    nothing and makes nothing (P24). As a module it is the model: paths, ids and
    records are the model's (P51). Only `fork` and `to_device` rewrite the
    placement, to one device (P53); after `map` the check is made again (D2).

    Args:
        model: the model, built by the placement.
        placement: where each layer runs.

    Raises:
        PlacementError: the number of hidden layers differs, or a layer is elsewhere.
        ModuleError: `model` is no LayerParallelism, or a layer of it no Module with a forward.

    Source: Burn 0.23, ``DistributedLayeredModel``.
    """

    model: M
    placement: LayerPlacement
    _layers: Layers
    _not_autoregressive: int | None  # the first hidden layer that is none

    def __init__(self, model: M, placement: LayerPlacement) -> None:
        self.model = model
        self.placement = placement

    def _freeze(self, fields: Mapping[str, Any], skipped: set[str]) -> None:
        if set(fields) != {"model", "placement"}:
            raise ModuleError(
                f"{type(self).__name__}: a DistributedLayeredModel has the fields model and placement only, not "
                f"{', '.join(fields) or 'none'}; keep what else is needed in the model"
            )
        model, placement = fields["model"], fields["placement"]
        if not isinstance(model, LayerParallelism):
            raise ModuleError(f"DistributedLayeredModel: {type(model).__qualname__} is no LayerParallelism")
        if not isinstance(placement, LayerPlacement):
            raise PlacementError(f"DistributedLayeredModel: {placement!r} is no LayerPlacement")
        layers = layers_of(model)
        check_placement(layers, placement)
        self._settle(dict(fields), model._children, skipped)
        plain = (index for index, layer in enumerate(layers.hidden) if not isinstance(layer, AutoregressiveLayer))
        vars(self).update(_layers=layers, _not_autoregressive=next(plain, None))

    @property
    def _container(self) -> str:
        return self.model._container

    @property
    def _shown(self) -> Module:
        return self.model

    def _with_children(self, children: Sequence[Any], destination: Device | None) -> Self:
        model = self.model._with_children(children, destination)
        placement = self.placement
        if destination is not None:
            placement = LayerPlacement(destination, [destination] * len(placement.hidden), destination)
        made = object.__new__(type(self))
        made._freeze({"model": model, "placement": placement}, set())
        return made

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; the model it wraps is .model")

    def into_inner(self) -> M:
        """Burn's name for ``model``."""
        return self.model

    def check(self) -> None:
        """Check again that every layer is where the placement says.

        Raises:
            PlacementError: one is not.
        """
        check_placement(layers_of(self.model), self.placement)

    def forward(self, input: Any, /) -> Any:
        """The model's output for an input on any device; the output stays on ``placement.output`` (P35).

        The signal is copied wherever the device changes, and nowhere else
        (P38). To an exception of a layer its name and device are added (P42).

        Args:
            input: what the input layer takes: any signal.
        """
        return self._run(input, [layer.forward for layer in self._layers.hidden])  # pyright: ignore[reportAttributeAccessIssue]

    def _run(self, input: Any, hidden: Sequence[Callable[[Any], Any]]) -> Any:
        """The output for an input, with what each hidden layer does to its signal."""
        placement = self.placement
        layer: Layer = "input"
        device = placement.input
        try:
            signal = self._layers.input.forward(moved(input, device))  # pyright: ignore[reportAttributeAccessIssue]
            for layer, device in enumerate(placement.hidden):
                signal = hidden[layer](moved(signal, device))
            layer, device = "output", placement.output
            return self._layers.output.forward(moved(signal, device))  # pyright: ignore[reportAttributeAccessIssue]
        except BaseException as error:
            error.add_note(f"in {layer_name(layer)}, on {device.inner()}")
            raise

    def into_stages(self) -> StagedLayers:
        """The layers, the hidden ones cut into the placement's stages (P47).

        Raises:
            PlacementError: the model's `into_layers` gives other layers than the placement has (P48).
        """
        return staged(self.model.into_layers(), self.placement)

    def new_autoregressive_cache(self) -> tuple[Cache, ...]:
        """An empty cache for each hidden layer, made by the layer; for one sequence (P66, P72).

        Raises:
            ModuleError: a hidden layer is not autoregressive.
        """
        caches = tuple(layer.new_autoregressive_cache() for layer in self._autoregressive_layers())
        sequence = next(_SEQUENCES)
        for index, cache in enumerate(caches):
            cache._made_for = sequence, index
        return caches

    def forward_autoregressive_inference(self, input: Any, cache: Sequence[Cache], /) -> Any:
        """The output for positions that follow those in `cache`, which is extended in place (P67).

        Args:
            input: the new positions, as `forward` takes them.
            cache: what `new_autoregressive_cache` of this model gave.

        Raises:
            ModuleError: the wrong number of caches, or one that a failed forward has left unusable (P68, P73).
            PlacementError: a cache lies on another device than its layer (P74).
        """
        layers = self._autoregressive_layers()
        self._check_caches(cache)
        pairs = zip(layers, cache, strict=True)
        hidden = [partial(_extending, layer.forward_autoregressive_inference, one) for layer, one in pairs]
        try:
            return self._run(input, hidden)
        except BaseException as error:
            for one in cache:
                one.valid = False
            error.add_note("the caches of this sequence are unusable now")
            raise

    def _autoregressive_layers(self) -> tuple[AutoregressiveLayer, ...]:
        index = self._not_autoregressive
        if index is not None:
            raise ModuleError(
                f"hidden layer {index}, a {type(self._layers.hidden[index]).__name__}, is not autoregressive: it lacks "
                "new_autoregressive_cache or forward_autoregressive_inference"
            )
        return self._layers.hidden  # pyright: ignore[reportReturnType]

    def _check_caches(self, cache: Sequence[Cache]) -> None:
        """Refuse caches before anything runs."""
        if len(cache) != len(self._layers.hidden):
            raise ModuleError(f"{len(cache)} caches for {len(self._layers.hidden)} hidden layers; each needs its own")
        if len({id(one) for one in cache}) != len(cache):
            raise ModuleError("one cache stands for two hidden layers; each needs its own")
        for index, (one, device) in enumerate(zip(cache, self.placement.hidden, strict=True)):
            if not isinstance(one, Cache):
                raise ModuleError(f"the cache of hidden layer {index} is a {type(one).__qualname__}, not a Cache")
            if not one.valid:
                raise ModuleError(
                    f"the cache of hidden layer {index} is unusable: a forward with it failed midway; start a new one"
                )
            made_for = one._made_for
            if made_for is not None and made_for[1] != index:
                raise ModuleError(f"the cache of hidden layer {index} was made for hidden layer {made_for[1]}")
            if made_for is not None and cache[0]._made_for is not None and made_for[0] != cache[0]._made_for[0]:
                raise ModuleError(f"the caches of hidden layers 0 and {index} belong to different sequences")
            found = one.device
            if found is not None and found is not device and found != device:
                raise PlacementError(
                    f"the cache of hidden layer {index} is on {found.inner()}, the layer on {device.inner()}; "
                    "caches do not move with a model, so start a new one",
                    layer=index,
                    expected=device.inner(),
                    found=found.inner(),
                )


def _extending(step: Callable[[Any, Cache], Any], cache: Cache, signal: Any) -> Any:
    """What a layer gives for new positions; its cache comes first so that it can be filled in beforehand."""
    return step(signal, cache)


DistributedLayeredModel._reserved = reserved_names(DistributedLayeredModel) - {"model", "placement"}
