"""Operations that train layered models, as data; see `operations` and `layered_operations`."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from .layered import Signal
from .observations import Bits
from .operations import Op, Query
from .spec_tree import Printed, Value

Cotangents: TypeAlias = tuple[tuple[str, Value], ...]
"""For each distinct tensor of an output that has the model's dtype: its path, and a tensor of its shape.

The loss is the sum of all elements of those tensors, each times its cotangent's.
"""


@dataclass(frozen=True, repr=False)
class RunBackward(Query):
    """Output: the `Gradient` of each parameter that has one, in order, of the loss of a forward.

    Refused with kind ``autodiff`` where the loss uses nothing that requires a gradient.
    """

    needs: ClassVar = ("parallel", "autodiff")
    input: Signal
    cotangents: Cotangents


@dataclass(frozen=True, repr=False)
class NewOptimizer(Query):
    """Make an optimizer that keeps nothing yet, under a name that all versions of the module share.

    `settings` are the optimizer's, under its names.
    """

    needs: ClassVar = ("optimizers",)
    name: str
    kind: str
    settings: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, repr=False)
class TrainStep(Op):
    """The module after a step of the optimizer of a name: forward, backward, clipping by norm, update.

    The loss is that of `RunBackward`; `limit` is the largest norm of all gradients together.
    """

    needs: ClassVar = ("parallel", "autodiff", "optimizers")
    name: str
    input: Signal
    cotangents: Cotangents
    limit: float


@dataclass(frozen=True, repr=False)
class Kept(Printed):
    """A tensor that an optimizer keeps for the parameter of an id, under a name."""

    id: int
    name: str
    bits: Bits


@dataclass(frozen=True, repr=False)
class SeeOptimizer(Query):
    """Output: what the optimizer of a name keeps, a `Kept` each, parameters in the order of their first step."""

    needs: ClassVar = ("optimizers",)
    name: str


@dataclass(frozen=True, repr=False)
class SaveTraining(Query):
    """Output: the bytes of a file that holds the module's record and that of the optimizer of a name."""

    needs: ClassVar = ("optimizers", "records")
    name: str


@dataclass(frozen=True, repr=False)
class LoadTraining(Op):
    """The module with the values of such a file; the optimizer of the name takes what is kept there."""

    needs: ClassVar = ("optimizers", "records")
    name: str
    data: bytes


TRAINING: Final = (RunBackward, NewOptimizer, TrainStep, SeeOptimizer, SaveTraining, LoadTraining)
