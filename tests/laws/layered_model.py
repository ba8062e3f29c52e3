"""The model of the rules, with layered models, placements and caches: it must pass every law; see `model_adapter`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from tests.parallel import by_memory_oracle

from . import layered_expected as expected
from . import layered_operations as op
from .layered import CAUSAL, REMEMBERING, LayeredSpec, LayerName, Placement, Signal, hardware, placement_of
from .layered_expected import Array, Misplaced
from .model_adapter import ModelAdapter as ModelOfTrees
from .model_adapter import RefusalError, Version, Weight
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
    """A layered model; wrapped if it has a placement."""

    layered: LayeredSpec
    caches: dict[str, Caches]
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
        """Its value."""
        bits = self.weight(path).bits()
        return np.frombuffer(bits.data, numpy_dtype(bits.dtype)).reshape(bits.shape)

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
        **dict.fromkeys(("parallel", "parallel.stages", "cache"), "native"),
    }

    def build(self, spec: TreeSpec | LayeredSpec) -> Version | Refused:
        if isinstance(spec, TreeSpec):
            return super().build(spec)
        made = super().build(spec.tree)
        return made if isinstance(made, Refused) else LayeredVersion(made.spec, made.leaves, made.cells, spec, {})

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
        made = super().done(target, operation)
        if isinstance(operation, (Fork, ToDevice)) and target.placement:
            moved = target.placement.all_on(hardware(operation.device))
            return replace(made, handle=replace(made.handle, placement=moved))
        return made

    def forward(self, target: LayeredVersion, signal: Signal, fail_at: LayerName | None) -> Signal:
        if target.placement is None:
            used = {device for values in target.there().values() for device in values.values()}
            if len(used | {value.hardware for value in signal.values().values()}) > 1:
                raise RefusalError("device_mismatch", f"on {', '.join(sorted(used))}")
        return self.run(target, signal, fail_at)

    def run(self, target: LayeredVersion, signal: Signal, fail_at: LayerName | None) -> Signal:
        """The forward, its copies counted."""
        made = expected.course(target.layered, signal, target.read, target.placement, fail_at)
        for way, (copies, nbytes) in made.crossings.items():
            count = self._crossings.setdefault(way, [0, 0])
            count[0] += copies
            count[1] += nbytes
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
