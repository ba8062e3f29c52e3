"""The tree of values that a file holds, its large ones left where they are.

A tree is a dict of texts to trees, a list of trees, a text, an integer, a
float, a NumPy float32 (what the file holds in four bytes), a truth value,
None, a `Blob` or `Numbers`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from numpy.typing import NDArray

from engine.dtype import DType

Tree: TypeAlias = Any
Form: TypeAlias = Literal["float32", "float64", "decimal", "int", "bool"]  # decimal: a text, as in JSON


class Store(Protocol):
    """Bytes that can be read at any place."""

    @property
    def name(self) -> str:
        """What errors call them."""
        ...

    def read(self, offset: int, nbytes: int) -> bytes:
        """The bytes from `offset` on, fewer at the end."""
        ...

    def reaches(self, end: int) -> bool:
        """Whether there are so many bytes."""
        ...

    def array(self, what: str, offset: int, dtype: DType, shape: tuple[int, ...]) -> NDArray[Any]:
        """A read-only array of the bytes from `offset` on, which are there."""
        ...


@dataclass(frozen=True, slots=True)
class Blob:
    """A binary: `nbytes` bytes from `offset` on."""

    store: Store
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array of numbers of one form, or of truth values; never empty.

    `low` and `high` are the extremes of integers, 0 for other forms. `read` makes the array: float32, float64,
    int64 or bool, and float64 for decimals.
    """

    form: Form
    count: int
    low: int
    high: int
    read: Callable[[], NDArray[Any]]
