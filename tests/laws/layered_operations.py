"""Operations on layered models, and questions about placements, as data; see `operations`."""

from dataclasses import dataclass
from typing import ClassVar

from .layered import LayerName, Placement, Signal
from .operations import Op, Query
from .spec_tree import Printed

# Operations


@dataclass(frozen=True, repr=False)
class Wrap(Op):
    """The model wrapped with a placement. Refused with kind ``placement`` where its layers are elsewhere."""

    needs: ClassVar = ("parallel",)
    placement: Placement


@dataclass(frozen=True, repr=False)
class Unwrap(Op):
    """The model inside."""

    needs: ClassVar = ("parallel",)


@dataclass(frozen=True, repr=False)
class GetPlacement(Query):
    """Output: the Placement of a wrapped model, without autodiff flags; None of a bare one."""

    needs: ClassVar = ("parallel",)


@dataclass(frozen=True, repr=False)
class Forward(Query):
    """Output: the Signal that comes out, without autodiff flags and with dense layouts.

    Of a bare model it is the plain composition of its layers, and nothing is
    moved. The layer at `fail_at` raises in place of its forward; the refusal
    is of kind ``layer``.
    """

    needs: ClassVar = ("parallel",)
    input: Signal
    fail_at: LayerName | None = None


@dataclass(frozen=True, repr=False)
class MoveByMap(Op):
    """The model mapped by a mapper that moves the float parameter at a path to a device."""

    needs: ClassVar = ("parallel", "map")
    path: str
    device: str


@dataclass(frozen=True)
class Taken:
    """A model taken apart: the names of its layers, those of the hidden ones per stage, with the stage's device."""

    input: LayerName
    stages: tuple[tuple[str, tuple[LayerName, ...]], ...]
    output: LayerName


@dataclass(frozen=True, repr=False)
class IntoStages(Query):
    """Output: what a wrapped model comes to when it is taken apart, a `Taken`."""

    needs: ClassVar = ("parallel", "parallel.stages")


@dataclass(frozen=True, repr=False)
class RunStages(Query):
    """Output: as `Forward`, but a wrapped model is taken apart, and the caller runs its parts in turn.

    The caller moves the signal to the input layer's device, at each border of
    stages, and to the output layer's device.
    """

    needs: ClassVar = ("parallel", "parallel.stages")
    input: Signal


@dataclass(frozen=True)
class CacheMeta:
    """What can be seen of a layer's cache: positions, device (None while it stores nothing), whether it is usable."""

    length: int
    device: str | None
    valid: bool


@dataclass(frozen=True, repr=False)
class NewCache(Query):
    """Make empty caches, one for each hidden layer, under a name that all versions of the module share.

    Output: their `CacheMeta`, in order of layers.
    """

    needs: ClassVar = ("parallel", "cache")
    name: str


@dataclass(frozen=True, repr=False)
class SeeCache(Query):
    """Output: the `CacheMeta` of the caches of a name, in order of layers."""

    needs: ClassVar = ("parallel", "cache")
    name: str


@dataclass(frozen=True, repr=False)
class Decode(Query):
    """Run the positions that follow those in the caches of a name. Output and `fail_at`: as of `Forward`.

    `handed` are the caches that are handed over, by the number of the layer
    they were made for; None for all, in order.
    """

    needs: ClassVar = ("parallel", "cache")
    piece: Signal
    name: str
    handed: tuple[int, ...] | None = None
    fail_at: LayerName | None = None


# Questions


@dataclass(frozen=True, repr=False)
class Question(Printed):
    """A question about placements, which concerns no module. Devices in answers are without autodiff flags."""

    needs: ClassVar[tuple[str, ...]] = ("parallel",)


@dataclass(frozen=True, repr=False)
class Even(Question):
    """Answer: the Placement that shares a number of hidden layers out evenly (P17)."""

    devices: tuple[str, ...]
    number: int


@dataclass(frozen=True, repr=False)
class FromStages(Question):
    """Answer: the Placement of stages, each a device and a number of layers (P14)."""

    stages: tuple[tuple[str, int], ...]


@dataclass(frozen=True, repr=False)
class StagesOf(Question):
    """Answer: the stages of a placement, each a device and a number of layers (P21)."""

    placement: Placement


@dataclass(frozen=True, repr=False)
class DevicesOf(Question):
    """Answer: the devices of a placement (P20)."""

    placement: Placement


@dataclass(frozen=True, repr=False)
class Equal(Question):
    """Answer: whether two placements are equal, and whether their hashes are (None if they have none)."""

    one: Placement
    other: Placement


@dataclass(frozen=True, repr=False)
class ByMemory(Question):
    """Answer: the Placement whose runs are sized to capacities, or None (P23). All sizes are bytes."""

    devices: tuple[tuple[str, int], ...]
    input: int
    hidden: tuple[int, ...]
    output: int
    shares_input: bool
