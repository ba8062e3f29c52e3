"""Operations on a module, as data: they print, shrink, and can be sent to another process.

A *mapper* is a tuple of edits, a *group* an expression (`group_expressions`),
a *record* a tuple of entries. Each operation names the capabilities it needs.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from .group_expressions import EVERYTHING, Group
from .observations import Bits
from .schemes import Scheme
from .spec_tree import Printed

# Mappers


@dataclass(frozen=True, repr=False)
class SetTrainable(Printed):
    """Set the configured trainability of the float parameter at a path."""

    path: str
    value: bool


@dataclass(frozen=True, repr=False)
class AddConstant(Printed):
    """Replace the float value at a path by itself + `amount`; it trains again if it is configured to."""

    path: str
    amount: int


@dataclass(frozen=True, repr=False)
class ReplaceId(Printed):
    """Give the parameter or flag at a path another id. A running state keeps its own."""

    path: str
    id: int


@dataclass(frozen=True, repr=False)
class SetFlag(Printed):
    """Set the value, not the configured value, of the flag at a path."""

    path: str
    value: bool


@dataclass(frozen=True, repr=False)
class Number(Printed):
    """An edit with state: the k-th parameter or flag that this mapper sees, from 0, gets the id `start` + k."""

    start: int


Edit: TypeAlias = SetTrainable | AddConstant | ReplaceId | SetFlag | Number
Mapper: TypeAlias = tuple[Edit, ...]

# Records


@dataclass(frozen=True, repr=False)
class Entry(Printed):
    """A tensor of a record, with the id that goes with it."""

    path: str
    bits: Bits
    id: int | None = None


@dataclass(frozen=True, repr=False)
class Record(Printed):
    """The entries of a record, in order."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, repr=False)
class LoadOptions(Printed):
    """How a load treats what does not fit (R7)."""

    cast: bool = False
    allow_partial: bool = False
    allow_unused: bool = False
    validate: bool = True


# Operations


@dataclass(frozen=True, repr=False)
class Op(Printed):
    """An operation on a module."""

    needs: ClassVar[tuple[str, ...]] = ()
    gives_module: ClassVar[bool] = True  # else it only reads, and the handle that comes back is the target's


class Query(Op):
    """An operation that only reads."""

    gives_module: ClassVar = False


@dataclass(frozen=True, repr=False)
class Visit(Query):
    """Record all six hooks of a visitor. Output: the events."""

    needs: ClassVar = ("visit",)


@dataclass(frozen=True, repr=False)
class Map(Op):
    """Map by the composition of mappers, first to last; none is the identity.

    Each mapper applies its edits in order to what the one before it returned.
    With `fail_at`, the leaf hook's call of that number, from 0, raises, and
    the refusal is of kind ``hook``.

    Output: the events of the traversal, and for each mapper the (path, kind,
    id) of what it was shown.
    """

    needs: ClassVar = ("map",)
    mappers: tuple[Mapper, ...] = ()
    fail_at: int | None = None


@dataclass(frozen=True, repr=False)
class CountParams(Query):
    """Output: the number of parameters."""


@dataclass(frozen=True, repr=False)
class CollectDevices(Query):
    """Output: `found`, then the module's devices that are not in it, without autodiff flags."""

    needs: ClassVar = ("devices",)
    found: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Display(Query):
    """Output: the module's text, without ids."""

    needs: ClassVar = ("display",)


@dataclass(frozen=True, repr=False)
class Clone(Op):
    """A clone."""


@dataclass(frozen=True, repr=False)
class Force(Query):
    """Read the value at a path. The module is the same."""

    needs: ClassVar = ("lazy",)
    path: str = ""


@dataclass(frozen=True, repr=False)
class Update(Query):
    """A layer runs: the running state at a path becomes itself + `amount`, in this very module."""

    needs: ClassVar = ("running",)
    path: str = ""
    amount: int = 1


@dataclass(frozen=True, repr=False)
class Train(Op):
    """Into training state."""

    needs: ClassVar = ("state.flags",)


@dataclass(frozen=True, repr=False)
class Valid(Op):
    """A validation snapshot."""

    needs: ClassVar = ("state.flags",)


@dataclass(frozen=True, repr=False)
class SetRequireGrad(Op):
    """Set the configured trainability of matched parameters."""

    needs: ClassVar = ("state.params",)
    value: bool = True
    group: Group | None = None


@dataclass(frozen=True, repr=False)
class NoGrad(Op):
    """As `SetRequireGrad(False)`."""

    needs: ClassVar = ("state.params",)


@dataclass(frozen=True, repr=False)
class Freeze(Op):
    """Matched parameters and flags off."""

    needs: ClassVar = ("state.params", "state.flags")
    group: Group | None = None


@dataclass(frozen=True, repr=False)
class Unfreeze(Op):
    """Matched parameters and flags on."""

    needs: ClassVar = ("state.params", "state.flags")
    group: Group | None = None


@dataclass(frozen=True, repr=False)
class Fork(Op):
    """Move to a device, cut from the source's graph."""

    needs: ClassVar = ("devices", "fork")
    device: str = "cpu:0"


@dataclass(frozen=True, repr=False)
class ToDevice(Op):
    """Move to a device."""

    needs: ClassVar = ("devices",)
    device: str = "cpu:0"


@dataclass(frozen=True, repr=False)
class Backward(Query):
    """The gradients of a loss: the sum of all elements of `used` floats, each as often as its path is there.

    What counts is the stored value of a parameter, whatever is attached to it.

    The loss is computed with what `through`, one operation after the other,
    make of the receiver; losses of several devices are copied together.

    Output: for the receiver, and for what each of `through` gave, the
    `Gradient` of each parameter that has one, in order.
    """

    needs: ClassVar = ("autodiff",)
    used: tuple[str, ...] = ()
    through: tuple[Op, ...] = ()


@dataclass(frozen=True, repr=False)
class Step(Op):
    """So many steps of training, each with the gradients of the loss of `Backward` over `used`.

    `settings` are the optimizer's, under its names. One optimizer takes all steps.
    """

    needs: ClassVar = ("autodiff", "optimizers")
    optimizer: str = "SGD"
    settings: tuple[tuple[str, float | bool], ...] = ()
    used: tuple[str, ...] = ()
    number: int = 1


@dataclass(frozen=True, repr=False)
class KeepGroup(Query):
    """Make a group from this module, and keep it under a name that all versions of the module share."""

    needs: ClassVar = ("groups",)
    name: str = "kept"
    group: Group = EVERYTHING


@dataclass(frozen=True, repr=False)
class AskGroup(Query):
    """Output: for each (id, path) that is asked about, whether the group, made from this module, matches it."""

    needs: ClassVar = ("groups",)
    group: Group = EVERYTHING
    asked: tuple[tuple[int, str | None], ...] = ()


@dataclass(frozen=True, repr=False)
class PathsOfGroup(Query):
    """Output: the paths of this module's leaves that a group, made from this module, matches, in order (M92)."""

    needs: ClassVar = ("groups",)
    group: Group = EVERYTHING


@dataclass(frozen=True, repr=False)
class ToRecord(Query):
    """Output: the Record of matched entries."""

    needs: ClassVar = ("records",)
    group: Group | None = None


@dataclass(frozen=True, repr=False)
class LoadRecord(Op):
    """The module with the record's values. Output: what did not fit, a `Fitting` (`record_operations`)."""

    needs: ClassVar = ("records",)
    record: Record = Record(())
    options: LoadOptions = LoadOptions()


# Quantization and reparameterization


@dataclass(frozen=True, repr=False)
class Quantize(Op):
    """Quantize the float parameters that a group matches; without one all, by the form without a group."""

    needs: ClassVar = ("quantize",)
    scheme: Scheme
    calibration: Literal["MinMax", "AbsMean"] = "MinMax"
    group: Group | None = None
    allow_nonfinite: bool = False


@dataclass(frozen=True, repr=False)
class ApplyLora(Op):
    """LoRA: adapters at the matrices that a group matches; all float parameters are frozen.

    The initial value of a factor goes by the seed and its path alone.
    """

    needs: ClassVar = ("lora",)
    rank: int = 1
    alpha: float = 1.0
    dtype: str | None = None
    group: Group | None = None
    seed: int = 0


@dataclass(frozen=True, repr=False)
class Materialize(Op):
    """Store what is computed with, in the place of what is attached."""

    needs: ClassVar = ("reparam",)


@dataclass(frozen=True, repr=False)
class Effective(Query):
    """Output: what layers compute with at the path of a float parameter, Bits of floats; makes what is lazy."""

    needs: ClassVar = ("reparam",)
    path: str = ""
