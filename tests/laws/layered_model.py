"""The model of the rules, with layered models, placements and caches: it must pass every law; see `model_adapter`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np

from tests.parallel import by_memory_oracle

from . import layered_expected as expected
from . import layered_operations as op
from . import model_training as training
from . import training_operations as train
from .layered import CAUSAL, DROP, REMEMBERING, LayeredSpec, LayerName, Placement, Signal, hardware, placement_of
from .layered_expected import Array, Crossings, Misplaced
from .layered_gradients import PullBack, pulled
from .model_adapter import ModelAdapter as ModelOfTrees
from .model_attaching import effective
from .model_leaves import RefusalError, Switch, Weight, array_of
from .model_version import Version
from .observations import Bits
from .operations import Fork, Op, ToDevice
from .protocol import Done, Level, Refused
from .spec_tree import TreeSpec, numpy_dtype


@dataclass
class Caches:
    """The caches of one sequence, a layer each. They keep no values: the model runs what they have seen again."""

    layers: list[op.CacheMeta]
    seen: list[Signal] = field(default_factory=list)


@dataclass(frozen=True)
class LayeredVersion(Version):
    """A layered model; wrapped if it has a placement. `draws` counts those of each layer that leaves elements out."""

    layered: LayeredSpec
    caches: dict[str, Caches]
    optimizers: dict[str, training.Optimizer]
    draws: dict[str, int]
    placement: Placement | None = None

    def there(self) -> dict[LayerName, dict[str, str]]:
        """For each layer the device of each value in it."""
        held = self.layered.there
        return {
            name: {inner: self.weight(f"{path}.{inner}").device for inner in held[name]}
            for name, path in self.layered.paths.items()
        }

    def weight(self, path: str) -> Weight:
        """The parameter, running state or constant at a path."""
        leaf = self.leaves[path]
        assert isinstance(leaf, Weight)
        return leaf

    def read(self, path: str) -> Array:
        """What layers compute with; what is quantized in the model's dtype (Q35)."""
        return array_of(effective(self, path), self.layered.dtype if self.weight(path).quantized else None)

    def checked(self) -> "LayeredVersion":
        """This, if every layer is where the placement says (P25 to P29, D2)."""
        if self.placement and (wrong := expected.misplaced(self.there(), self.placement)):
            raise RefusalError("placement", _said(wrong))
        return self


def _said(wrong: Misplaced) -> str:
    return " ".join(wrong.said)


class ModelAdapter(ModelOfTrees):
    """The rules, run, of trees and of layers."""

    capabilities: Mapping[str, Level] = {
        **ModelOfTrees.capabilities,
        **dict.fromkeys(("parallel", "parallel.stages", "cache", "dropout", "batch_norm"), "native"),
    }

    def build(self, spec: TreeSpec | LayeredSpec) -> Version | Refused:
        if isinstance(spec, TreeSpec):
            return super().build(spec)
        made = super().build(spec.tree)
        return made if isinstance(made, Refused) else _version(made, spec)

    def done(self, target: Version, operation: Op) -> Done:
        if not isinstance(target, LayeredVersion):
            return super().done(target, operation)
        match operation:
            case op.Wrap(placement):
                return Done(replace(target, placement=placement.plain).checked())
            case op.Unwrap():
                return Done(replace(target, placement=None))
            case op.GetPlacement():
                return Done(target, target.placement)
            case op.Forward(signal, fail_at):
                return Done(target, self.forward(target, signal, fail_at))
            case op.RunStages(signal):
                self.taken(target)
                return Done(target, self.forward(target, signal, None))
            case op.IntoStages():
                return Done(target, self.taken(target))
            case op.MoveByMap(path, device):
                moved = replace(target.weight(path), device=hardware(device))
                return Done(replace(target, leaves={**target.leaves, path: moved}).checked())
            case op.NewCache(name):
                target.caches[name] = Caches([self.empty(target, n) for n in range(len(target.layered.layers) - 2)])
                return Done(target, tuple(target.caches[name].layers))
            case op.SeeCache(name):
                return Done(target, tuple(target.caches[name].layers))
            case op.Decode(piece, name, handed, fail_at):
                return Done(target, self.decode(target, piece, target.caches[name], handed, fail_at))
            case _ if isinstance(operation, train.TRAINING):
                return self.trained(target, operation)
        made = super().done(target, operation)
        if made.handle is not target:
            made = replace(made, handle=replace(made.handle, draws=dict(target.draws)))
        if isinstance(operation, (Fork, ToDevice)) and target.placement:
            moved = target.placement.all_on(hardware(operation.device))
            return replace(made, handle=replace(made.handle, placement=moved))
        return made

    def forward(self, target: LayeredVersion, signal: Signal, fail_at: LayerName | None) -> Signal:
        self.check_devices(target, signal)
        return self.run(target, signal, fail_at)

    def check_devices(self, target: LayeredVersion, signal: Signal) -> None:
        """In a bare model nothing moves."""
        if target.placement is None:
            used = {device for values in target.there().values() for device in values.values()}
            if len(used | {value.hardware for value in signal.values().values()}) > 1:
                raise RefusalError("device_mismatch", f"on {', '.join(sorted(used))}")

    def copied(self, crossings: Crossings) -> None:
        """Add copies to the log."""
        for way, (copies, nbytes) in crossings.items():
            count = self._crossings.setdefault(way, [0, 0])
            count[0] += copies
            count[1] += nbytes

    def run(self, target: LayeredVersion, signal: Signal, fail_at: LayerName | None) -> Signal:
        """The forward, its copies counted."""
        trains = all(value.autodiff for value in signal.values().values())
        live = partial(_lived, target, trains)
        made = expected.course(target.layered, signal, target.read, target.placement, fail_at, live)
        self.copied(made.crossings)
        if fail_at is not None:
            devices = dict(
                zip(target.layered.names, (target.placement or target.layered.placement).layers, strict=True)
            )
            raise RefusalError("layer", f"layer {fail_at} on {devices[fail_at]}")
        return made.output

    def taken(self, target: LayeredVersion) -> op.Taken:
        assert target.placement is not None
        made = expected.taken_apart(target.layered, target.there(), target.placement)
        if isinstance(made, Misplaced):
            raise RefusalError("placement", _said(made))
        return made

    # Caches

    def empty(self, target: LayeredVersion, number: int) -> op.CacheMeta:
        if target.layered.layers[number + 1].step not in CAUSAL:
            raise RefusalError("other", f"hidden layer {number} is not autoregressive")
        return op.CacheMeta(0, None, True)

    def decode(
        self,
        target: LayeredVersion,
        piece: Signal,
        caches: Caches,
        handed: Sequence[int] | None,
        fail_at: LayerName | None,
    ) -> Signal:
        spec = target.layered
        devices = target.placement.hidden if target.placement else spec.placement.plain.hidden
        self.check_caches(caches, handed, devices)
        path, positions = _positions(spec, piece)
        ran = spec.names.index(fail_at) - 1 if fail_at is not None else len(devices)
        for number, (cache, device) in enumerate(zip(caches.layers, devices, strict=True)):
            if number < ran:
                stores = spec.layers[number + 1].step in REMEMBERING
                length, at = cache.length + positions, device if stores else None
                caches.layers[number] = op.CacheMeta(length, at, fail_at is None)
            else:
                caches.layers[number] = replace(cache, valid=False)
        caches.seen.append(piece)
        out = self.run(target, piece, fail_at)
        whole = expected.course(spec, _joined(caches.seen, path), target.read).output.values()[path]
        last = whole.numpy()[len(whole.numpy()) - positions :]
        value = replace(out.values()[path], shape=last.shape, data=last.tobytes())
        return out.with_values({**out.values(), path: value})

    def check_caches(self, caches: Caches, handed: Sequence[int] | None, devices: Sequence[str]) -> None:
        """P68, P73, P74."""
        numbers = range(len(caches.layers)) if handed is None else handed
        if len({*numbers}) != len(numbers) or len(numbers) != len(devices):
            raise RefusalError("other", f"{len(numbers)} caches for {len(devices)} hidden layers")
        for number, device in zip(numbers, devices, strict=True):
            cache = caches.layers[number]
            if not cache.valid:
                raise RefusalError("other", f"the cache of layer {number} is unusable")
            if cache.device not in (None, device):
                raise RefusalError("placement", f"the cache of layer {number} is on {cache.device}, not on {device}")

    # Training

    def trained(self, target: LayeredVersion, operation: Op) -> Done:
        match operation:
            case train.NewOptimizer(name, kind, settings):
                target.optimizers[name] = training.Optimizer(kind, dict(settings))
            case train.SeeOptimizer(name):
                return Done(target, target.optimizers[name].seen())
            case train.SaveTraining(name):
                return Done(target, training.saved(target.leaves, target.draws, target.optimizers[name]))
            case train.LoadTraining(name, data):
                leaves, draws = training.loaded(target.leaves, target.optimizers[name], data)
                return Done(replace(target, leaves=leaves, draws={**target.draws, **draws}))
            case train.RunBackward(signal, cotangents):
                return Done(target, training.reported(target.leaves, self.gradients(target, signal, cotangents)))
            case train.TrainStep(name, signal, cotangents, limit):
                found = training.clipped(self.gradients(target, signal, cotangents), limit)
                made = target.each(lambda leaf: training.stepped(leaf, found, target.optimizers[name]))
                return Done(replace(made, draws=dict(target.draws)))  # pyright: ignore[reportCallIssue]
        return Done(target)

    def gradients(self, target: LayeredVersion, signal: Signal, cotangents: train.Cotangents) -> training.ByLeaf:
        """Those of a loss, by leaf; the copies of both passes are counted."""
        self.check_devices(target, signal)
        live = partial(_live, target, all(value.autodiff for value in signal.values().values()))

        def trains(path: str) -> bool:
            return training.trains(target.leaves[path])

        made = pulled(target.layered, signal, target.read, cotangents, trains, target.placement, live)
        self.copied(made.crossings)
        if not made.gradients:
            raise RefusalError("autodiff", "nothing that the loss uses requires a gradient")
        return training.by_leaf(target.leaves, made.gradients)

    # Questions

    def answer(self, question: op.Question) -> Any:
        """The answer to a question about placements."""
        match question:
            case op.Even((), _) | op.FromStages(()):
                return Refused("placement", "there is no device")
            case op.Even(devices, number):
                share, more = divmod(number, len(devices))
                counts = [share + (place < more) for place in range(len(devices))]
                used = [(d, n) for d, n in zip(devices, counts, strict=True) if n] or [(devices[0], 0)]
                return self.answer(op.FromStages(tuple(used)))
            case op.FromStages(stages):
                return Placement(stages[0][0], tuple(d for d, n in stages for _ in range(n)), stages[-1][0]).plain
            case op.StagesOf(placement):
                return tuple(expected.stages(placement.hidden))
            case op.DevicesOf(placement):
                return tuple(dict.fromkeys(placement.plain.layers))
            case op.Equal(one, other):
                return one.plain == other.plain, hash(one.plain) == hash(other.plain)
            case op.ByMemory(devices, first, hidden, output, shares_input):
                sizes = (first + output, *hidden) if shares_input else (first, *hidden, output)
                places = by_memory_oracle.places([capacity for _, capacity in devices], sizes)
                names = None if places is None else [devices[place][0] for place in places]
                return names and placement_of((*names, names[0]) if shares_input else tuple(names))
        raise NotImplementedError(f"{question!r} is not offered")


def _version(made: Version, spec: LayeredSpec) -> LayeredVersion:
    """A fresh build."""
    return LayeredVersion(**vars(made), layered=spec, caches={}, optimizers={}, draws={})


def _live(target: LayeredVersion, autodiff: bool, path: str, x: Array) -> tuple[Array, PullBack]:
    """What a layer with state makes of a tensor, and how a gradient is pulled back through it."""
    if target.layered.layers[list(target.layered.paths.values()).index(path)].step == DROP:
        ones = np.ones_like(x)
        kept = _lived(target, autodiff, path, ones)
        return (x if kept is ones else np.asarray(x * kept, x.dtype)), lambda g: (np.asarray(g * kept, x.dtype), {})
    names = ("gamma", "running_mean", "running_var")
    gamma, mean, var = (target.read(f"{path}.norm.{name}") for name in names)
    trains = _trains(target, autodiff, f"{path}.norm")
    y = _lived(target, autodiff, path, x)
    if trains and y is not x:
        mean, var = x.mean(axis=0), x.var(axis=0)

    def pull(g: Array) -> tuple[Array, dict[str, Array]]:
        root = 1 / np.sqrt(var + target.layered.setting(f"{path}.norm", "epsilon"))
        normal, inner = (x - mean) * root, g * gamma
        back = inner - inner.mean(axis=0) - normal * (inner * normal).mean(axis=0) if trains else inner
        held = {"norm.gamma": (g * normal).sum(axis=0), "norm.beta": g.sum(axis=0)}
        return np.asarray(back * root, x.dtype), {name: np.asarray(one, x.dtype) for name, one in held.items()}

    return y, pull


def _lived(target: LayeredVersion, autodiff: bool, path: str, x: Array) -> Array:
    """What a layer with state makes of a tensor of the model's dtype."""
    number = list(target.layered.paths.values()).index(path)
    if x.dtype != numpy_dtype(target.layered.dtype):
        return x
    if target.layered.layers[number].step == DROP:
        return _left(target, f"{path}.dropout", number, x) if _trains(target, autodiff, f"{path}.dropout") else x
    width = target.read(f"{path}.norm.gamma").shape[0]
    return _normalised(target, autodiff, f"{path}.norm", x) if x.ndim == 2 and x.shape[1] == width else x


def _trains(target: LayeredVersion, autodiff: bool, path: str) -> bool:
    """Whether a layer is in training: its flag is on, and what it is given is autodiff (M69, M98)."""
    flag = target.leaves[f"{path}.training"]
    return autodiff and isinstance(flag, Switch) and flag.enabled


def _left(target: LayeredVersion, path: str, number: int, x: Array) -> Array:
    """What dropout leaves of a tensor: its seed, its place among the layers and its count of draws say what."""
    prob = target.layered.setting(path, "prob")
    count = target.draws.get(path, 0)
    if prob:
        target.draws[path] = count + 1
    numbers = np.random.default_rng((target.layered.seed, number, count)).random(x.shape)
    return np.asarray(x * (numbers >= prob) / (1 - prob), x.dtype)


def _normalised(target: LayeredVersion, autodiff: bool, path: str, x: Array) -> Array:
    """What batch norm makes of a tensor; in training its running statistics move, in this very version (M98)."""
    mean, var = target.read(f"{path}.running_mean"), target.read(f"{path}.running_var")
    if _trains(target, autodiff, path):
        momentum = target.layered.setting(path, "momentum")
        running, (mean, var) = (mean, var), (x.mean(axis=0), x.var(axis=0))
        for name, before, batch in zip(("running_mean", "running_var"), running, (mean, var), strict=True):
            moved = np.asarray(before * (1 - momentum) + batch * momentum, x.dtype)
            bits = Bits(str(x.dtype), moved.shape, moved.tobytes())
            object.__setattr__(target.weight(f"{path}.{name}"), "held", bits)
    scaled = (x - mean) / np.sqrt(var + target.layered.setting(path, "epsilon"))
    return np.asarray(scaled * target.read(f"{path}.gamma") + target.read(f"{path}.beta"), x.dtype)


def _positions(spec: LayeredSpec, piece: Signal) -> tuple[str, int]:
    """Where the tensor is that the model works on, and its extent along axis 0."""
    dtype: Final = "int64" if spec.layers[0].step == "embed" else spec.dtype
    path, value = next((path, value) for path, value in piece.values().items() if value.dtype == dtype)
    return path, value.shape[0]


def _joined(pieces: Sequence[Signal], path: str) -> Signal:
    """The pieces one behind the other; what stands beside them is the last one's."""
    rows = np.concatenate([piece.values()[path].numpy() for piece in pieces])
    last = pieces[-1].values()
    return pieces[-1].with_values({**last, path: replace(last[path], shape=rows.shape, data=rows.tobytes())})
