"""Faults of placements, split models, stages and caches; see `faults`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from engine import Buffer, Device, Tensor, decoding, uniform
from engine.cpu import CpuBackend
from modules import Draws, Flag, ModuleError, Param
from modules.parallel import (
    Cache,
    DistributedLayeredModel,
    LayerPlacement,
    LayerStage,
    PlacementError,
    check,
    fill,
    model,
    signal,
    stages,
)
from modules.tree import leaves

from .faults import Patch, fault

ATTENTION = import_module("engine.ops.attention")  # the package has a function of that name

# Placements


@fault("X35 even gives the remainder to the last devices", "L97")
def _x35(patch: Patch) -> None:
    def even(cls: Any, devices: Sequence[Any], number: int) -> LayerPlacement:
        used = list(devices)[: max(1, number)]
        share, extra = divmod(number, len(used))
        first = len(used) - extra
        return cls.from_stages([LayerStage(device, share + (place >= first)) for place, device in enumerate(used)])

    patch.setattr(LayerPlacement, "even", classmethod(even))


@fault("X35 by_memory fills each device up to the share", "L124")
def _x35_by_memory(patch: Patch) -> None:
    def level_places(capacities: Sequence[int], sizes: Sequence[int]) -> list[int] | None:
        share = fill._least_share(capacities, sizes)
        if share is None or not capacities:
            return None
        places: list[int] = []
        for device, limit in enumerate(fill._limits(capacities, share)):
            load = 0
            while len(places) < len(sizes) and load + sizes[len(places)] <= limit:
                load += sizes[len(places)]
                places.append(device)
        return places

    patch.setattr("modules.parallel.placement.level_places", level_places)


@fault("Z1 a stage of no layers at an end is forgotten", "L98")
def _z1(patch: Patch) -> None:
    original = LayerPlacement.from_stages.__func__

    def from_stages(cls: Any, given: Sequence[LayerStage]) -> LayerPlacement:
        return original(cls, [stage for stage in given if stage.num_hidden_layers] or given)

    patch.setattr(LayerPlacement, "from_stages", classmethod(from_stages))


@fault("Z2 a device that comes back has one stage", "L98", "L102")
def _z2(patch: Patch) -> None:
    def found(self: LayerPlacement) -> list[LayerStage]:
        return [LayerStage(device, self.hidden.count(device)) for device in dict.fromkeys(self.hidden)]

    patch.setattr(LayerPlacement, "stages", found)


@fault("Z3 the devices of a placement are those of its hidden layers, then the ends", "L98")
def _z3(patch: Patch) -> None:
    def devices(self: LayerPlacement) -> list[Device]:
        return list(dict.fromkeys((*self.hidden, self.input, self.output)))

    patch.setattr(LayerPlacement, "devices", devices)


@fault("Z4 the second of two neighbouring stages on one device is lost", "L98", "L103")
def _z4(patch: Patch) -> None:
    original = LayerPlacement.from_stages.__func__

    def from_stages(cls: Any, given: Sequence[LayerStage]) -> LayerPlacement:
        kept = [one for place, one in enumerate(given) if not place or one.device != given[place - 1].device]
        return original(cls, kept)

    patch.setattr(LayerPlacement, "from_stages", classmethod(from_stages))


# Wrapping


def _looking_at(patch: Patch, looks: Callable[[Any], bool]) -> None:
    """Let checks of layers look at some of their values only."""

    def first_elsewhere(layer: Any, device: Device) -> tuple[str, Any, Device] | None:
        for path, leaf in leaves(layer):
            if not isinstance(leaf, Flag) and looks(leaf):
                found = getattr(leaf, "device", None) or leaf.value().device
                if found != device:
                    return path, leaf, found
        return None

    patch.setattr(check, "first_elsewhere", first_elsewhere)


@fault("X36 only the first parameter of a layer is checked", "L96")
def _x36(patch: Patch) -> None:
    original = check.first_elsewhere

    def first_elsewhere(layer: Any, device: Device) -> tuple[str, Any, Device] | None:
        first = next((path for path, leaf in leaves(layer) if not isinstance(leaf, Flag)), None)
        found = original(layer, device)
        return found if found and found[0] == first else None

    patch.setattr(check, "first_elsewhere", first_elsewhere)


@fault("Z5 running states and constants are not checked", "L96")
def _z5(patch: Patch) -> None:
    _looking_at(patch, lambda leaf: isinstance(leaf, Param))


@fault("Z6 lazy parameters are not checked", "L96")
def _z6(patch: Patch) -> None:
    _looking_at(patch, lambda leaf: not isinstance(leaf, Param) or leaf.is_initialized)


@fault("Z7 the output layer is not checked", "L96")
def _z7(patch: Patch) -> None:
    original = check.check_placement

    def check_placement(layers: check.Layers, placement: LayerPlacement) -> None:
        original(layers._replace(output=layers.input), replace(placement, output=placement.input))

    patch.setattr(model, "check_placement", check_placement)


@fault("Z8 the autodiff flag of a device counts", "L96")
def _z8(patch: Patch) -> None:
    original = check.first_elsewhere

    def first_elsewhere(layer: Any, device: Device) -> tuple[str, Any, Device] | None:
        for path, leaf in leaves(layer):
            if isinstance(leaf, Param) and str(leaf.device) != str(device):
                return path, leaf, leaf.device
        return original(layer, device)

    patch.setattr(check, "first_elsewhere", first_elsewhere)


@fault("Z9 wrapping makes the values", "L95")
def _z9(patch: Patch) -> None:
    original = DistributedLayeredModel._freeze

    def freeze(self: Any, fields: Any, skipped: set[str]) -> None:
        for _, leaf in leaves(fields["model"]):
            if isinstance(leaf, Param):
                leaf.base()
        original(self, fields, skipped)

    patch.setattr(DistributedLayeredModel, "_freeze", freeze)


# As a module


@fault("X38 the wrapper's fork keeps the old placement", "L100")
def _x38(patch: Patch) -> None:
    original = DistributedLayeredModel._with_children

    def with_children(self: Any, children: Any, destination: Device | None) -> Any:
        made = original(self, children, destination)
        vars(made)["placement"] = self.placement
        return made

    patch.setattr(DistributedLayeredModel, "_with_children", with_children)


@fault("Z10 the placement follows the model after a map too", "L104")
def _z10(patch: Patch) -> None:
    original = DistributedLayeredModel._with_children

    def with_children(self: Any, children: Any, destination: Device | None) -> Any:
        try:
            return original(self, children, destination)
        except PlacementError:
            made = object.__new__(type(self))
            wrapped = self.model._with_children(children, destination)
            places = [wrapped_layer.devices() for _, wrapped_layer in check.layers_of(wrapped).named()]
            first, *hidden, last = (found[0] if found else self.placement.input for found in places)
            made._freeze({"model": wrapped, "placement": LayerPlacement(first, hidden, last)}, set())
            return made

    patch.setattr(DistributedLayeredModel, "_with_children", with_children)


@fault("Z11 the wrapper adds a component to paths", "L99", "L101")
def _z11(patch: Patch) -> None:
    original = DistributedLayeredModel._settle

    def settle(self: Any, fields: Any, children: Any, skipped: set[str]) -> None:
        original(self, fields, tuple((f"model_{name}", child) for name, child in children), skipped)

    patch.setattr(DistributedLayeredModel, "_settle", settle)


# Running


@fault("X37 a copy between devices is made by ndarray.copy", "L92")
def _x37(patch: Patch) -> None:
    def copy_between(self: Any, arrays: Any, source: int, destination: int) -> Any:
        return [array.copy() for array in arrays], "host"

    patch.setattr(CpuBackend, "copy_between", copy_between)


@fault("Z13 each place of a tensor in a signal is copied by itself", "L92", "L94")
def _z13(patch: Patch) -> None:
    def moved(value: Any, device: Device) -> Any:
        match value:
            case Tensor():
                return value.to_device(device)
            case list() | tuple():
                return type(value)([moved(item, device) for item in value])
            case dict():
                return {key: moved(item, device) for key, item in value.items()}
        return signal.moved(value, device)

    patch.setattr(model, "moved", moved)


@fault("Z14 the signal visits the input's device between layers", "L94", "L116")
def _z14(patch: Patch) -> None:
    original, home = signal.moved, Device.cpu(0)
    patch.setattr(model, "moved", lambda value, device: original(original(value, home), device))


@fault("Z15 the first hidden layer runs twice", "L92")
def _z15(patch: Patch) -> None:
    original = model.layers_of

    def layers_of(found: Any) -> Any:
        layers = original(found)
        return layers._replace(hidden=(*layers.hidden[:1], *layers.hidden[:-1]))

    patch.setattr(model, "layers_of", layers_of)


@fault("Z16 what a layer raises does not say where", "L104")
def _z16(patch: Patch) -> None:
    patch.setattr(model, "layer_name", lambda layer: "a layer")


@fault("Z17 what a layer raises has another type", "L104")
def _z17(patch: Patch) -> None:
    original = DistributedLayeredModel.forward

    def forward(self: Any, value: Any) -> Any:
        try:
            return original(self, value)
        except Exception as error:
            raise ModuleError("\n".join([str(error), *getattr(error, "__notes__", ())])) from error

    patch.setattr(DistributedLayeredModel, "forward", forward)


@fault("Z18 stages are not checked", "L102")
def _z18(patch: Patch) -> None:
    patch.setattr(stages, "_check", lambda *_: None)


@fault("Z19 hidden layers beyond those of the placement are dropped", "L102")
def _z19(patch: Patch) -> None:
    original = stages.staged

    def staged(sequence: Any, placement: LayerPlacement) -> Any:
        return original(replace(sequence, hidden=list(sequence.hidden)[: len(placement.hidden)]), placement)

    patch.setattr(model, "staged", staged)


# Draws


@fault("X43 one dropout generator per device", "L105")
def _x43(patch: Patch) -> None:
    generators: dict[Device, Draws] = {}

    def drawn(self: Draws, shape: Any, device: Any) -> Tensor:
        one = generators.setdefault(Device(device), Draws(1))
        return uniform(shape, seed=one._next(), device=device)

    patch.setattr(Draws, "uniform", drawn)


@fault("Z28 a derived module draws again from the beginning", "L105")
def _z28(patch: Patch) -> None:
    original = Draws._derived
    patch.setattr(Draws, "_derived", lambda self, count=None: original(self, count or 0))


# Decoding


@fault("X42 the position restarts at 0 in each cached step", "L114")
def _x42(patch: Patch) -> None:
    original = decoding.rope_array
    patch.setattr(decoding, "rope_array", lambda *arrays, offset, **settings: original(*arrays, offset=0, **settings))


@fault("Z20 a position sees the one behind it", "L115")
def _z20(patch: Patch) -> None:
    def hidden(xp: Any, mask: Any, causal: bool, queries: int, keys: int) -> Any:
        if not causal or queries == 1:
            return None
        return xp.arange(keys) > xp.arange(keys - queries, keys)[:, None] + 1

    patch.setattr(ATTENTION, "_hidden", hidden)


@fault("Z21 the mask of a step is that of a sequence from its beginning", "L114")
def _z21(patch: Patch) -> None:
    def hidden(xp: Any, mask: Any, causal: bool, queries: int, keys: int) -> Any:
        return xp.arange(keys) > xp.arange(queries)[:, None] if causal else None

    patch.setattr(ATTENTION, "_hidden", hidden)


@fault("Z22 a buffer forgets what it held when it grows", "L114")
def _z22(patch: Patch) -> None:
    original = Buffer.append

    def append(self: Buffer, values: Tensor) -> None:
        store = self._store
        original(self, values)
        if store is not None and store is not self._store:
            self._store[: len(store)] = 0

    patch.setattr(Buffer, "append", append)


def _handing(patch: Patch, changed: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
    """Let a step be given other caches than it was handed."""
    original = DistributedLayeredModel.forward_autoregressive_inference
    patch.setattr(
        DistributedLayeredModel,
        "forward_autoregressive_inference",
        lambda self, value, caches: original(self, value, changed(caches)),
    )


@fault("Z23 caches are handed to the layers in the opposite order", "L116")
def _z23(patch: Patch) -> None:
    _handing(patch, lambda caches: caches[::-1])


@fault("Z24 caches are not checked", "L117")
def _z24(patch: Patch) -> None:
    patch.setattr(DistributedLayeredModel, "_check_caches", lambda self, caches: None)


@fault("Z25 caches stay usable after a failure", "L117")
def _z25(patch: Patch) -> None:
    patch.setattr(Cache, "valid", property(lambda self: True, lambda self, value: None), raising=False)


@fault("Z26 all sequences have one cache", "L117")
def _z26(patch: Patch) -> None:
    made: dict[int, Any] = {}
    original = DistributedLayeredModel.new_autoregressive_cache

    def new(self: Any) -> Any:
        return made.setdefault(id(self.model), (original(self), self))[0]

    patch.setattr(DistributedLayeredModel, "new_autoregressive_cache", new)


@fault("Z27 a moved model takes the caches along", "L117")
def _z27(patch: Patch) -> None:
    original = DistributedLayeredModel._check_caches

    def check_caches(self: Any, caches: Any) -> None:
        for cache, device in zip(caches, self.placement.hidden, strict=False):
            for buffer in vars(cache).values():
                if isinstance(buffer, Buffer) and buffer.device is not None and buffer.device != device:
                    values = buffer.view().to_device(device)
                    buffer._device, buffer._store = device, np.moveaxis(values.numpy().copy(), buffer._axis, 0)
        original(self, caches)

    patch.setattr(DistributedLayeredModel, "_check_caches", check_caches)
