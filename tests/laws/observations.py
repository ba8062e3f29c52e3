"""What an adapter reports of a module: data, nothing of NumPy's or of the engine's."""

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from .spec_tree import Kind, Printed, Ties

Skeleton: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, repr=False)
class Bits(Printed):
    """A tensor to the bit: dtype, shape, little-endian row-major bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, repr=False)
class ValueMeta(Printed):
    """A parameter or running state as a visitor sees it, without its value.

    `device` has no autodiff flag, `autodiff` is the flag. `trainable` is the
    configured state; `requires_grad` the effective one, None while lazy.
    """

    path: str
    kind: Kind
    id: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    lazy: bool
    autodiff: bool
    trainable: bool
    requires_grad: bool | None


@dataclass(frozen=True, repr=False)
class FlagMeta(Printed):
    """A flag: its value now, and its configured value."""

    path: str
    id: int
    enabled: bool
    configured: bool


@dataclass(frozen=True, repr=False)
class Meta(Printed):
    """All that can be seen of a module without its values.

    `skeleton` is the tree with None, dict keys and configuration, see
    `expected.skeleton`; `ties` are the groups of paths that hold one object.
    """

    values: tuple[ValueMeta | FlagMeta, ...]
    skeleton: Skeleton
    ties: Ties = ()

    def ids(self) -> dict[str, int]:
        """Path to id, in order."""
        return {value.path: value.id for value in self.values}

    def lazy(self) -> set[str]:
        """Paths of parameters without a value yet."""
        return {value.path for value in self.values if isinstance(value, ValueMeta) and value.lazy}

    def numbered(self) -> "Meta":
        """With ids replaced by 0, 1, … in order of first appearance: ids are random, so builds are compared so."""
        numbers: dict[int, int] = {}
        for value in self.values:
            numbers.setdefault(value.id, len(numbers))
        return replace(self, values=tuple(replace(value, id=numbers[value.id]) for value in self.values))

    def settled(self) -> "Meta":
        """As it will be once every lazy parameter has its value: an untouched one is a leaf if it asked for that."""
        return replace(self, values=tuple(map(_settled, self.values)))


def _settled(value: ValueMeta | FlagMeta) -> ValueMeta | FlagMeta:
    if isinstance(value, ValueMeta) and value.lazy:
        return replace(value, lazy=False, requires_grad=value.trainable and value.autodiff)
    return value


@dataclass(frozen=True, repr=False)
class Gradient(Printed):
    """The gradient of the parameter at a path: its value, its device without flag, and whether that has the flag."""

    path: str
    bits: Bits
    device: str
    autodiff: bool = False


@dataclass(frozen=True)
class Crossing:
    """Tensors copied from one device to another since the log was last read."""

    source: str
    destination: str
    copies: int
    nbytes: int


TransferLog: TypeAlias = tuple[Crossing, ...]
