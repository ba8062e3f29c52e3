"""Faults of optimizers, of what records hold of trained models, and of symmetries; see `faults`."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine import Gradients, Tensor, ops
from modules import Module
from modules.optim import clipping, recording
from modules.optim.optimizer import Optimizer
from modules.optim.state import State
from records import ModuleRecord, ParamId

from .faults import Patch, fault


@fault("Y100 a loaded optimizer counts its steps from the beginning", "L18", "L120")
def _y100(patch: Patch) -> None:
    original = recording.states_of

    def states_of(record: ModuleRecord, module: Module, *names: Any) -> Mapping[ParamId, State]:
        return {number: State(state.kept) for number, state in original(record, module, *names).items()}

    patch.setattr(recording, "states_of", states_of)


@fault("Y101 the parameters of each device are clipped by themselves", "L120")
def _y101(patch: Patch) -> None:
    original = clipping.sums_of_squares

    def sums_of_squares(tensors: Sequence[Tensor]) -> list[float]:
        return original([one for one in tensors if one.device == tensors[0].device])

    patch.setattr(clipping, "sums_of_squares", sums_of_squares)


@fault("Y102 a step gathers the gradients on one device", "L120")
def _y102(patch: Patch) -> None:
    original = Optimizer.step

    def step(self: Optimizer, module: Module, gradients: Gradients) -> Module:
        return original(self, module, gradients.map(lambda g: g.to_device("cpu:0").to_device(g.device)))

    patch.setattr(Optimizer, "step", step)


@fault("Y103 a record has no counts of draws", "L118")
def _y103(patch: Patch) -> None:
    patch.setattr("modules.recording.draws", lambda module: iter(()))


@fault("Y104 a product is off by a little, however small it is", "L119")
def _y104(patch: Patch) -> None:
    original = ops.linear

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return original(x, weight, bias) + 2.0**-10

    patch.setattr(ops, "linear", linear)


@fault("Y105 the rows of a batch see each other", "L119")
def _y105(patch: Patch) -> None:
    original = ops.tanh
    patch.setattr(ops, "tanh", lambda x: original(x - ops.mean(x) * 2.0**-10) if x.size else original(x))
