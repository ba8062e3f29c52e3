"""What crosses the border between the laws and an implementation: data, and an adapter that takes it.

An implementation is put under the laws by an `Adapter`: it builds modules from
spec trees, applies operations, and reports what is there. Operations,
observations and bytes are data, nothing of NumPy's or of the engine's, so an
adapter can be a Python object or a process at the other end of a pipe.

Old versions stay valid: `Done` carries a new handle. An adapter over a library
that works in place copies first and declares ``persistent`` as emulated. What
an adapter does not offer it leaves out of its capabilities, and the laws that
need it do not apply.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from .layered import LayeredSpec
from .layered_operations import Question
from .observations import Bits, Meta, TransferLog
from .operations import Op
from .spec_tree import BOOLS, FLOATS, INTS, Layout, TreeSpec, kind_of

Handle: TypeAlias = Any
Level: TypeAlias = Literal["native", "emulated"]
RefusalKind: TypeAlias = Literal[
    "placement",
    "device_mismatch",
    "record_missing",
    "record_unused",
    "record_mismatch",
    "record_format",
    "group",
    "name",
    "frozen",
    "autodiff",
    "dtype",
    "shape",
    "scheme",
    "hook",
    "layer",
    "initialiser",
    "other",
]


@dataclass(frozen=True)
class Grammar:
    """Which trees may be asked for. Generators take it as an argument, so that nothing is generated in vain.

    Args:
        leaves: what can stand in a tree besides float parameters.
        containers: kinds of container besides a module's fields.
        dtypes: names of dtypes; the first float one is where shrinking ends.
        devices: plain devices; the first is where shrinking ends.
        autodiff: whether a device can carry the autodiff flag.
        lazy: whether a parameter can be lazy.
        ties: whether several places can hold one object.
        absent: whether None may stand in fields, lists and dicts.
        interleaved: whether a module's parameters and children keep their common order.
        layouts: memory orders that a value can be given in.
        reserved: names that no field may have.
        max_rank: the largest rank of a tensor.
        max_extent: the largest extent of an axis.
        max_leaves: the most leaves in a tree, at least 2.
    """

    leaves: tuple[str, ...] = ("int", "bool", "flag", "running", "constant", "config", "skip", "empty", "adapted")
    containers: tuple[str, ...] = ("struct", "list", "tuple", "array", "dict", "enum", "optional")
    dtypes: tuple[str, ...] = (*FLOATS, *INTS, *BOOLS)
    devices: tuple[str, ...] = ("cpu:0", "cpu:1", "cpu:2", "cpu:3")
    autodiff: bool = True
    lazy: bool = True
    ties: bool = True
    absent: bool = True
    interleaved: bool = True
    layouts: tuple[Layout, ...] = ("dense",)
    reserved: tuple[str, ...] = ()
    max_rank: int = 4
    max_extent: int = 4
    max_leaves: int = 7

    def dtypes_of(self, kind: str) -> tuple[str, ...]:
        """The dtypes of a kind of parameter."""
        return tuple(name for name in self.dtypes if kind_of(name) == kind)


@dataclass(frozen=True)
class Done:
    """The operation succeeded: a new handle, and the output if it has one."""

    handle: Handle
    output: Any = None


@dataclass(frozen=True)
class Refused:
    """The operation was refused. Laws check the kind, and that the message names what it must; not its wording.

    A refused load also lists the paths that its options do not allow to be
    missing, unused or mismatched; the kind is the first of mismatched, missing
    and unused.
    """

    kind: RefusalKind
    message: str
    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()


class Adapter(Protocol):
    """An implementation of the Module system, as the laws see it."""

    name: str
    version: str
    grammar: Grammar
    capabilities: Mapping[str, Level]

    def build(self, spec: TreeSpec | LayeredSpec) -> Handle | Refused:
        """A module made from a spec; every parameter, flag and running state gets a fresh id."""
        ...

    def apply(self, target: Handle, operation: Op) -> Done | Refused:
        """The result of an operation. The target stays what it was."""
        ...

    def meta(self, target: Handle) -> Meta:
        """All that can be seen without values. Must create none."""
        ...

    def bits(self, target: Handle, path: str) -> Bits | Refused:
        """The value at a path, plain tensors included; creates it if it is lazy."""
        ...

    def runs(self, target: Handle, path: str) -> int:
        """How often the initialiser of the lazy parameter at a path has run, over all versions of the module."""
        ...

    def log(self) -> TransferLog:
        """Copies between devices since the last call, one entry for each pair of devices, in any order."""
        ...

    def answer(self, question: Question) -> Any | Refused:
        """The answer to a question about placements."""
        ...

    def format_id(self, number: int) -> str:
        """An id as text."""
        ...

    def parse_id(self, text: str) -> int | Refused:
        """The id that a text names."""
        ...
