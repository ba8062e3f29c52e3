"""Quantization schemes as data. The text of one stands where the name of a dtype does: in observations and in records.

``Q4S PackedU32:1 F32 2x4:F16`` is a kind of value, a store with its packed
axis, the dtype of a scale per tensor, and blocks with the dtype of theirs; ``-``
where there is none (Q1, Q36).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from .spec_tree import Printed


@dataclass(frozen=True)
class ValueKind:
    """A kind of value: its width in bits, and the ends of its range."""

    name: str
    bits: int
    low: int
    high: int

    @property
    def is_float(self) -> bool:
        """Whether a value is the code of a small float."""
        return self.name.startswith("E")


@dataclass(frozen=True)
class ScaleKind:
    """A dtype of scales: its width in bytes, and its largest value."""

    name: str
    nbytes: int
    largest: float


VALUES: Final[Mapping[str, ValueKind]] = {
    name: ValueKind(name, bits, low, high)
    for name, bits, low, high in (
        *(("Q8F", 8, -128, 127), ("Q8S", 8, -127, 127), ("Q4F", 4, -8, 7), ("Q4S", 4, -7, 7)),
        *(("Q2F", 2, -2, 1), ("Q2S", 2, -1, 1)),
        *(("E4M3", 8, -448, 448), ("E5M2", 8, -57344, 57344), ("E2M1", 4, -6, 6)),
    )
}
SCALES: Final[Mapping[str, ScaleKind]] = {
    name: ScaleKind(name, nbytes, largest)
    for name, nbytes, largest in (
        *(("F32", 4, 3.4028234663852886e38), ("F16", 2, 65504.0), ("BF16", 2, 3.3895313892515355e38)),
        *(("UE4M3", 1, 448.0), ("UE8M0", 1, 2.0**127)),
    )
}


@dataclass(frozen=True)
class Store:
    """How values lie in files; `axis` is the packed one, counted from the innermost."""

    kind: str
    axis: int


@dataclass(frozen=True)
class Block:
    """Extents of a block along the last axes, and the dtype of the scales."""

    size: tuple[int, ...]
    dtype: ScaleKind


@dataclass(frozen=True, repr=False)
class Scheme(Printed):
    """A scheme.

    Args:
        kind: of the values.
        stored: ``Native``, ``PackedU32`` or ``PackedNative``.
        axis: the packed one, counted from the innermost; 0 of a native store.
        whole: dtype of the scale per tensor, or of the global scale beside blocks; None for no such level.
        blocks: extents of a block, the first of several not 1 (Q8); None for no such level.
        each: dtype of their scales.
    """

    kind: str
    stored: str = "Native"
    axis: int = 0
    whole: str | None = None
    blocks: tuple[int, ...] | None = None
    each: str = "F32"

    @cached_property
    def text(self) -> str:
        """What stands where the name of a dtype does."""
        blocks = "-" if self.blocks is None else f"{'x'.join(map(str, self.blocks))}:{self.each}"
        return f"{self.kind} {self.stored}:{self.axis} {self.whole or '-'} {blocks}"

    # What the oracle of quantization reads; the engine's schemes have the same names

    @property
    def value(self) -> ValueKind:
        """The kind of value."""
        return VALUES[self.kind]

    @property
    def store(self) -> Store:
        """How values lie in files."""
        return Store(self.stored, self.axis)

    @property
    def tensor(self) -> ScaleKind | None:
        """The dtype of the scale per tensor."""
        return None if self.whole is None else SCALES[self.whole]

    @property
    def block(self) -> Block | None:
        """The blocks."""
        return None if self.blocks is None else Block(self.blocks, SCALES[self.each])

    @property
    def scale_dtype(self) -> ScaleKind:
        """That of the innermost level (Q5)."""
        return SCALES[self.each if self.blocks is not None else self.whole or "F32"]

    @property
    def is_two_level(self) -> bool:
        """Whether block scales are relative to a global one (Q4)."""
        return self.whole is not None and self.blocks is not None


def scheme_of(text: str) -> Scheme:
    """The scheme of a text."""
    kind, store, whole, blocks = text.split()
    stored, _, axis = store.partition(":")
    size, _, each = blocks.partition(":")
    if blocks == "-":
        return Scheme(kind, stored, int(axis), None if whole == "-" else whole)
    extents = tuple(map(int, size.split("x")))
    return Scheme(kind, stored, int(axis), None if whole == "-" else whole, extents, each)


def is_scheme(dtype: str) -> bool:
    """Whether a name of a dtype is the text of a scheme."""
    return " " in dtype
