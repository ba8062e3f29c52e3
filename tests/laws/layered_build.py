"""Layered models of the engine from their specs, and signals to it and back, by its public API."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from engine import Buffer, Seed, Tensor, ops
from modules import Flag, Module
from modules.nn import BatchNorm, Dropout
from modules.optim.optimizer import Optimizer
from modules.parallel import Cache, LayerParallelism, LayerSequence

from .engine_build import Built
from .layered import BATCH, CAUSAL, DROP, ROWS, LayeredSpec, LayerName, LayerSpec, Signal
from .layered_expected import hidden_apart
from .spec_tree import (
    ConfigSpec,
    ConstantSpec,
    DictSpec,
    Node,
    OptionalSpec,
    SequenceSpec,
    StructSpec,
    TreeSpec,
    Value,
)


class LayerFailed(Exception):
    """What a layer raises on purpose."""


# Steps

Past: TypeAlias = "Seen | None"


class Seen(Cache):
    """The rows that a layer has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = Buffer(0)

    def all_rows(self, new: Tensor) -> Tensor:
        """Those seen before and the new ones."""
        self.rows.append(new)
        return self.rows.view()


def _scale(layer: Any, x: Tensor, past: Past) -> Tensor:
    return x * layer.weight.val()


def _affine(layer: Any, x: Tensor, past: Past) -> Tensor:
    weight = layer.weight.val()
    return ops.tanh(ops.linear(x, weight, layer.bias.val())) if x.shape[-1:] == weight.shape[-1:] else x


def _norm(layer: Any, x: Tensor, past: Past) -> Tensor:
    weight = layer.weight.val()
    return ops.rms_norm(x, weight, 1.0) if x.shape[-1:] == weight.shape else x


def _shift(layer: Any, x: Tensor, past: Past) -> Tensor:
    return x + layer.state.value() - layer.table if x.shape[-1:] == layer.table.shape else x


def _prefix(layer: Any, x: Tensor, past: Past) -> Tensor:
    if not x.ndim:
        return x
    if past is None:
        return ops.cumsum(x, axis=0) * layer.weight.val()
    return (ops.cumsum(past.all_rows(x), axis=0) * layer.weight.val())[past.length :]


def _centre(layer: Any, x: Tensor, past: Past) -> Tensor:
    return x - ops.mean(x) if x.size else x


def _double(layer: Any, x: Tensor, past: Past) -> Tensor:
    return ops.concatenate([x, x], 0) if x.ndim else x


def _position(layer: Any, x: Tensor, past: Past) -> Tensor:
    weight, start = layer.weight.val(), past.length if past else 0
    fits = x.ndim == 2 and x.shape[1] == weight.shape[1] and start + x.shape[0] <= ROWS
    return x + weight[start : start + x.shape[0]] if fits else x


def _attend(layer: Any, x: Tensor, past: Past) -> Tensor:
    if x.ndim != 2:
        return x
    rows = past.all_rows(x) if past else x
    h, values = (one.reshape(1, *one.shape) for one in (ops.tanh(rows), rows))
    queries = h[:, h.shape[1] - x.shape[0] :]
    return ops.attention(queries, h, values, causal=True, scale=1.0).reshape(*x.shape) * layer.weight.val()


def _project(layer: Any, x: Tensor, past: Past) -> Tensor:
    weight = layer.weight.val()
    return ops.linear(x, weight.T) if x.shape[-1:] == weight.shape[-1:] else x


def _batch(layer: Any, x: Tensor, past: Past) -> Tensor:
    return layer.norm(x) if x.ndim == 2 and x.shape[1] == layer.norm.num_features else x


_STEPS: Final[Mapping[str, Callable[[Any, Tensor, Past], Tensor]]] = {
    "identity": lambda layer, x, past: x,
    "scale": _scale,
    "affine": _affine,
    "norm": _norm,
    "shift": _shift,
    "prefix": _prefix,
    "centre": _centre,
    "double": _double,
    "position": _position,
    "attend": _attend,
    "project": _project,
    DROP: lambda layer, x, past: layer.dropout(x),
    BATCH: _batch,
}


def _run(layer: Any, spec: LayerSpec, dtype: str, signal: Any, past: Past) -> Any:
    """What a layer makes of a signal."""
    if spec.step == "embed":
        return over(signal, lambda x: ops.embedding(layer.weight.val(), x) if x.dtype == "int64" else x)
    return over(signal, lambda x: _STEPS[spec.step](layer, x, past) if x.dtype == dtype else x)


def _positions(signal: Any, dtype: str) -> int:
    """The extent of axis 0 of the tensor that the model works on."""
    found: list[Tensor] = []
    over(signal, lambda x: found.append(x) if x.dtype == dtype else None)
    return found[0].shape[0]


# Signals


def over(signal: Any, change: Callable[[Tensor], Any]) -> Any:
    """The signal with each distinct tensor changed, once."""
    made: dict[int, Any] = {}

    def each(part: Any) -> Any:
        match part:
            case Tensor():
                if id(part) not in made:
                    made[id(part)] = change(part)
                return made[id(part)]
            case Module():
                return part.replace(**{name: each(value) for name, value in part.fields().items()})
            case Mapping():
                return {key: each(value) for key, value in part.items()}
            case tuple():
                return tuple(map(each, part))
            case str():
                return part
            case Sequence():
                return list(map(each, part))
        return part

    return each(signal)


def signal_of(signal: Signal) -> Any:
    """A signal as the engine's layers take it."""
    return Built(TreeSpec(StructSpec(()), signal.ties)).node(signal.node, "")


def observed(signal: Any) -> Signal:
    """A signal of the engine as data: devices without autodiff flags, layouts as if dense."""
    paths: dict[int, list[str]] = {}

    def each(part: Any, path: str) -> Node:
        match part:
            case Tensor():
                paths.setdefault(id(part), []).append(path)
                return ConstantSpec(Value(str(part.dtype), part.shape, part.tobytes(), str(part.device.inner())))
            case None:
                return OptionalSpec(None)
            case Module():
                return StructSpec(named(part.fields(), path), type(part).__name__)
            case Mapping():
                return DictSpec(named(part, path))
            case Sequence() if not isinstance(part, str):
                items = named({str(place): item for place, item in enumerate(part)}, path)
                return SequenceSpec("tuple" if isinstance(part, tuple) else "list", tuple(item for _, item in items))
        return ConfigSpec(part)

    def named(parts: Mapping[str, Any], path: str) -> tuple[tuple[str, Node], ...]:
        return tuple((name, each(part, f"{path}.{name}" if path else name)) for name, part in parts.items())

    node = each(signal, "")
    return Signal(node, tuple(tuple(found) for found in paths.values() if len(found) > 1))


# Models


class LayeredBuilt(Built):
    """What all versions of a layered model share outside of it: caches and optimizers, and which layer is to raise."""

    def __init__(self, spec: LayeredSpec) -> None:
        super().__init__(spec.tree)
        self.layered = spec
        self.caches: dict[str, tuple[Cache, ...]] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.fail_at: LayerName | None = None
        self.numbers = {path: number for number, path in enumerate(spec.paths.values())}
        self.seed = Seed(spec.seed)

    def node(self, node: Node, path: str) -> Any:
        if isinstance(node, StructSpec) and (not path or path in self.numbers):
            made = [(name, self.node(child, f"{path}.{name}" if path else name)) for name, child in node.fields]
            return (self.layer_class(path) if path else self.model_class())(made)
        if isinstance(node, StructSpec) and node.name == "Dropout":
            fields: Any = dict(node.fields)
            flag = Flag(fields["training"].enabled)
            return Dropout(fields["prob"].value, seed=self.seed).replace(training=flag)
        if isinstance(node, StructSpec) and node.name == "BatchNorm":
            made = {name: self.node(child, f"{path}.{name}") for name, child in node.fields}
            gamma, settings = made["gamma"], {name: made[name] for name in ("momentum", "epsilon")}
            norm = BatchNorm(gamma.shape[0], **settings, device=gamma.device, dtype=gamma.dtype)
            return norm.replace(**{name: leaf for name, leaf in made.items() if name not in settings})
        return super().node(node, path)

    def layer_class(self, path: str) -> type[Module]:
        """A module that does what a layer of the spec does."""
        spec, dtype = self.layered.layers[self.numbers[path]], self.layered.dtype
        name = self.layered.names[self.numbers[path]]

        def forward(layer: Module, signal: Any) -> Any:
            if self.fail_at == name:
                raise LayerFailed("on purpose")
            return _run(layer, spec, dtype, signal, None)

        def forward_autoregressive_inference(layer: Module, signal: Any, cache: Seen) -> Any:
            if self.fail_at == name:
                raise LayerFailed("on purpose")
            made = _run(layer, spec, dtype, signal, cache)
            cache.length += _positions(signal, dtype)
            return made

        methods: dict[str, Any] = {"forward": forward}
        if spec.step in CAUSAL:
            methods["new_autoregressive_cache"] = lambda layer: Seen()
            methods["forward_autoregressive_inference"] = forward_autoregressive_inference
        return type(Module)("Layer", (_Fields,), methods)

    def model_class(self) -> type[LayerParallelism]:
        """A model of the spec's layers."""
        spec = self.layered

        class Layered(LayerParallelism, _Fields):
            def layer_input(self) -> Module:
                return self.at("stem")

            def layers_hidden(self) -> Iterator[Module]:
                return (self.at(path) for name, path in spec.paths.items() if isinstance(name, int))

            def layer_output(self) -> Module:
                return self.at("head")

            def into_layers(self) -> LayerSequence:
                hidden = list(self.layers_hidden())
                return LayerSequence(self.layer_input(), [hidden[n] for n in hidden_apart(spec)], self.layer_output())

        return Layered


class _Fields(Module):
    """A module with the fields that it is given."""

    def __init__(self, fields: Sequence[tuple[str, Any]]) -> None:
        for name, value in fields:
            setattr(self, name, value)
