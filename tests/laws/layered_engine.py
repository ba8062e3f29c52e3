"""The engine behind the laws' protocol: its modules, and layered models split over its devices. By public API alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from engine import Device, EngineError
from modules import Module, ModuleMapper, Param
from modules.parallel import (
    Cache,
    DeviceMemory,
    DistributedLayeredModel,
    LayerMemory,
    LayerParallelism,
    LayerPlacement,
    LayerStage,
    OutputMemory,
    PlacementError,
)

from . import engine_adapter
from . import engine_training as training
from . import layered_operations as op
from . import training_operations as train
from .engine_adapter import Version
from .engine_gradients import reported
from .layered import LayeredSpec, Placement, placement_of
from .layered_build import LayeredBuilt, LayerFailed, observed, over, signal_of
from .observations import Meta
from .operations import Op
from .protocol import Done, Level, Refused
from .spec_tree import TreeSpec

_OWN: Final = (
    *(op.Wrap, op.Unwrap, op.GetPlacement, op.Forward, op.MoveByMap, op.IntoStages, op.RunStages),
    *(op.NewCache, op.SeeCache, op.Decode),
    *train.TRAINING,
)


def _placement(placement: Placement) -> LayerPlacement:
    return LayerPlacement(placement.input, list(placement.hidden), placement.output)


def _data(placement: LayerPlacement) -> Placement:
    return placement_of(str(d.inner()) for d in (placement.input, *placement.hidden, placement.output))


def _stages(stages: Sequence[LayerStage]) -> tuple[tuple[str, int], ...]:
    return tuple((str(stage.device.inner()), stage.num_hidden_layers) for stage in stages)


class _Moving(ModuleMapper):
    """Moves one parameter."""

    def __init__(self, path: str, device: str) -> None:
        self.path = path
        self.device = device

    def map_float(self, path: str, param: Param, /) -> Param:
        return param.map(lambda value: value.to_device(self.device)) if path == self.path else param


# The adapter


class EngineAdapter(engine_adapter.EngineAdapter):
    """Layerloom's own modules, and models split over its devices."""

    capabilities: Mapping[str, Level] = {
        **engine_adapter.EngineAdapter.capabilities,
        **dict.fromkeys(("parallel", "parallel.stages", "cache", "dropout", "batch_norm"), "native"),
    }

    def build(self, spec: TreeSpec | LayeredSpec) -> Version | Refused:
        if isinstance(spec, TreeSpec):
            return super().build(spec)
        built = LayeredBuilt(spec)
        return Version(built.module(), built)

    def apply(self, target: Version, operation: Op) -> Done | Refused:
        if not isinstance(operation, _OWN) or not isinstance(target.built, LayeredBuilt):
            return super().apply(target, operation)
        target.built.fail_at = getattr(operation, "fail_at", None)
        try:
            module, output = self._split(target.module, target.built, operation)
        except LayerFailed as error:
            return Refused("layer", _said(error))
        except PlacementError as error:
            return Refused("placement", _said(error))
        except EngineError as error:
            return replace(engine_adapter._refused(error), message=_said(error))
        finally:
            target.built.fail_at = None
        return Done(Version(module, target.built), output)

    def _split(self, module: Any, built: LayeredBuilt, operation: Op) -> tuple[Module, Any]:
        match operation:
            case op.Wrap(placement):
                return DistributedLayeredModel(module, _placement(placement)), None
            case op.Unwrap():
                return module.into_inner(), None
            case op.GetPlacement():
                return module, _data(module.placement) if isinstance(module, DistributedLayeredModel) else None
            case op.Forward(signal):
                return module, observed(_forward(module, signal_of(signal)))
            case op.MoveByMap(path, device):
                return module.map(_Moving(path, device)), None
            case op.IntoStages():
                return module, _taken(module)
            case op.RunStages(signal):
                return module, observed(_by_hand(module, signal_of(signal)))
            case op.NewCache(name):
                built.caches[name] = _new_caches(module)
                return module, _seen(built.caches[name])
            case op.SeeCache(name):
                return module, _seen(built.caches[name])
            case op.Decode(piece, name, handed):
                caches = built.caches[name]
                chosen = caches if handed is None else tuple(caches[number] for number in handed)
                return module, observed(_decode(module, signal_of(piece), chosen))
        return _trained(module, built, operation)

    def meta(self, target: Version) -> Meta:
        if not isinstance(target.module, DistributedLayeredModel):
            return super().meta(target)
        inside = super().meta(Version(target.module.model, target.built))
        return replace(super().meta(target), skeleton=inside.skeleton, ties=inside.ties)

    def answer(self, question: op.Question) -> Any:
        """The answer to a question about placements, or a refusal."""
        try:
            return self._answer(question)
        except PlacementError as error:
            return Refused("placement", str(error))

    def _answer(self, question: op.Question) -> Any:
        match question:
            case op.Even(devices, number):
                return _data(LayerPlacement.even(devices, number))
            case op.FromStages(stages):
                return _data(LayerPlacement.from_stages([LayerStage(*stage) for stage in stages]))
            case op.StagesOf(placement):
                return _stages(_placement(placement).stages())
            case op.DevicesOf(placement):
                return tuple(str(device.inner()) for device in _placement(placement).devices())
            case op.Equal(one, other):
                first, second = _placement(one), _placement(other)
                return first == second, hash(first) == hash(second)
            case op.ByMemory(devices, first, hidden, output, shares_input):
                memory = LayerMemory(first, hidden, OutputMemory(output, shares_input))
                found = LayerPlacement.by_memory([DeviceMemory(*device) for device in devices], memory)
                return None if found is None else _data(found)
        raise NotImplementedError(f"{question!r} is not offered")


def _said(error: BaseException) -> str:
    """The message, with what was noted on the way."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def _trained(module: Any, built: LayeredBuilt, operation: Op) -> tuple[Module, Any]:
    """What an operation of training gives, and its output."""
    match operation:
        case train.NewOptimizer(name):
            built.optimizers[name] = training.new_optimizer(operation)
            return module, None
        case train.SeeOptimizer(name):
            return module, training.seen(built.optimizers[name])
        case train.SaveTraining(name):
            return module, training.saved(module, built.optimizers[name])
        case train.LoadTraining(name, data):
            return training.loaded(module, built.optimizers[name], data), None
        case train.RunBackward(signal, cotangents):
            gradients = training.gradients_of(_forward(module, signal_of(signal)), cotangents)
            return module, reported(module, gradients)
        case train.TrainStep(name, signal):
            output = _forward(module, signal_of(signal))
            return training.stepped(module, output, built.optimizers[name], operation), None
    raise NotImplementedError(f"{operation!r} is not offered; see capabilities")


def _layers(model: LayerParallelism) -> list[Any]:
    return [model.layer_input(), *model.layers_hidden(), model.layer_output()]


def _forward(module: Any, signal: Any) -> Any:
    if isinstance(module, DistributedLayeredModel):
        return module(signal)
    for layer in _layers(module):
        signal = layer(signal)
    return signal


def _taken(module: DistributedLayeredModel[Any]) -> op.Taken:
    staged = module.into_stages()
    stages = tuple((str(held.device.inner()), tuple(layer.label for layer in held.layers)) for held in staged.stages)
    return op.Taken(staged.input.label, stages, staged.output.label)


def _by_hand(module: DistributedLayeredModel[Any], signal: Any) -> Any:
    """Input layer, stages and output layer one after the other, the signal moved before each."""
    staged = module.into_stages()

    def on(device: Device) -> Any:
        return over(signal, lambda tensor: tensor.to_device(device))

    signal = staged.input(on(module.placement.input))
    for stage in staged.stages:
        signal = on(stage.device)
        for layer in stage.layers:
            signal = layer(signal)
    return staged.output(on(module.placement.output))


def _new_caches(module: Any) -> tuple[Cache, ...]:
    if isinstance(module, DistributedLayeredModel):
        return module.new_autoregressive_cache()
    return tuple(layer.new_autoregressive_cache() for layer in module.layers_hidden())


def _seen(caches: Sequence[Cache]) -> tuple[op.CacheMeta, ...]:
    return tuple(op.CacheMeta(one.length, str(one.device) if one.device else None, one.valid) for one in caches)


def _decode(module: Any, signal: Any, caches: Sequence[Cache]) -> Any:
    if isinstance(module, DistributedLayeredModel):
        return module.forward_autoregressive_inference(signal, caches)
    first, *hidden, last = _layers(module)
    signal = first(signal)
    for layer, cache in zip(hidden, caches, strict=True):
        signal = layer.forward_autoregressive_inference(signal, cache)
    return last(signal)
