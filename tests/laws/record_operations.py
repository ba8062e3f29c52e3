"""Operations on records and on files of them, as data; `operations` has `ToRecord` and `LoadRecord`."""

from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from .operations import LoadOptions, Op, Query, Record
from .spec_tree import Printed

Rules: TypeAlias = tuple[tuple[str, str], ...]
STRICT: Final = LoadOptions()


@dataclass(frozen=True, repr=False)
class Fitting(Printed):
    """What of a module and a record does not fit each other: the output of a load that is allowed.

    Args:
        missing: paths of the module that the record lacks, in visit order.
        unused: paths of the record that the module lacks, sorted.
        mismatched: paths in both whose entry the module cannot take, in any order.
    """

    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Save(Query):
    """Output: the bytes of a file that holds the module's record, or `record`.

    The file is one of the file system, or, `in_memory`, never was (R37a). Which
    formats there are the capabilities ``format.*`` say.
    """

    needs: ClassVar = ("records",)
    format: str
    record: Record | None = None
    in_memory: bool = False


@dataclass(frozen=True, repr=False)
class Load(Op):
    """The module with the values of a file. Output: what did not fit, a `Fitting`."""

    needs: ClassVar = ("records",)
    data: bytes
    format: str
    options: LoadOptions = STRICT
    in_memory: bool = False


@dataclass(frozen=True, repr=False)
class Open(Query):
    """Output: the Record in a file, in the order in which the file offers its entries, all of them read."""

    needs: ClassVar = ("records",)
    data: bytes
    format: str
    in_memory: bool = False


@dataclass(frozen=True, repr=False)
class Rename(Query):
    r"""Output: `record` under other paths, by pairs of a regular expression and a replacement (R34).

    Each expression, in order, replaces all its matches in what the one before
    made of a path; groups are written ``\1``.
    """

    needs: ClassVar = ("records.rename",)
    record: Record
    rules: Rules


@dataclass(frozen=True, repr=False)
class Turn(Op):
    """The parameters at these paths, and all tied with them, hold their last two axes exchanged from now on.

    Records keep them as they were, by a load, a save and an init mapper (M32).
    A parameter of fewer axes stays as it is.
    """

    needs: ClassVar = ("records.mappers",)
    paths: tuple[str, ...]
