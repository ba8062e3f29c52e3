"""Training of the engine's layered models behind the laws' protocol, by its public API."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import modules
from engine import Device, Gradients, Tensor, ops
from modules import Module, clip_norm
from records import ModuleRecord, ParamId

from . import training_operations as op
from .engine_build import tensor_of
from .record_engine import bits_of

_KINDS: Final = {name: getattr(modules, name) for name in ("SGD", "Adam", "AdamW")}
_HOME: Final = Device("cpu:0")


def new_optimizer(operation: op.NewOptimizer) -> Any:
    """An optimizer that keeps nothing yet."""
    return _KINDS[operation.kind](**dict(operation.settings))


def gradients_of(output: Any, cotangents: op.Cotangents) -> Gradients:
    """The gradients of the sum of an output's tensors, each times its cotangent.

    Raises:
        AutodiffError: none of them is tracked.
    """
    found = dict(_tensors(output, ""))
    pairs = [(found[path], _beside(found[path], path, cotangents)) for path, _ in cotangents]
    if len(pairs) == 1:
        ((y, cotangent),) = pairs
        return y.backward(cotangent)
    terms = [ops.sum(y * cotangent) for y, cotangent in pairs]
    loss = terms[0]
    for term in terms[1:]:
        loss = loss + term
    return loss.backward()


def _beside(y: Tensor, path: str, cotangents: op.Cotangents) -> Tensor:
    return tensor_of(replace(dict(cotangents)[path], device=str(y.device.inner())))


def _tensors(part: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of a signal with its path, as `layered_build.observed` names it."""
    parts: Mapping[str, Any] = {}
    match part:
        case Tensor():
            yield path, part
        case Module():
            parts = part.fields()
        case Mapping():
            parts = part
        case Sequence() if not isinstance(part, str):
            parts = {str(place): item for place, item in enumerate(part)}
    for name, item in parts.items():
        yield from _tensors(item, f"{path}.{name}" if path else name)


def stepped(module: Module, output: Any, optimizer: Any, operation: op.TrainStep) -> Module:
    """The module that gave an output, after a step of an optimizer."""
    gradients = gradients_of(output, operation.cotangents)
    return optimizer.step(module, clip_norm(gradients, operation.limit))


# Optimizers


def seen(optimizer: Any) -> tuple[op.Kept, ...]:
    """What an optimizer keeps."""
    found: list[op.Kept] = []
    for path, entry in optimizer.into_record().items():
        number, _, name = path.rpartition(".")
        found.append(op.Kept(int(ParamId.parse(number)), name, bits_of(entry.read(_HOME))))
    return tuple(found)


def saved(module: Module, optimizer: Any) -> bytes:
    """A file of both records."""
    return (module.into_record().under("model") | optimizer.into_record().under("optimizer")).into_bytes()


def loaded(module: Module, optimizer: Any, data: bytes) -> Module:
    """The module with its record's values; the optimizer loads its own."""
    record = ModuleRecord.from_bytes(data)
    made = module.load_record(record.part("model"))
    optimizer.load_record(record.part("optimizer"), made)
    return made
