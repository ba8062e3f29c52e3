"""What a quantized tensor is made of, as plain values: kind of value, store, scales and their blocks.

A *scheme* says how numbers become small integers, or codes of small floats:
the *value kind*, the *store* (how values lie in files), and one scale per
tensor, one per *block*, or both, in which case block scales are relative to a
*global* scale. A block is a rectangle aligned with the tensor's last axes.
The *grid* is the array of scales: one per block, row-major. A scheme is the
dtype of the tensors that have it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from operator import index
from typing import Any, Final, Literal, TypeAlias, final

from engine.errors import DTypeError, ShapeError

_MAX_RANK: Final = 5  # of a block
_MAX_EXTENT: Final = 255  # of a block, along one axis


# What is of another type


def check_part(where: str, name: str, value: Any, kind: type) -> None:
    """Refuse an argument that is no scheme, or no such part of one.

    Args:
        where: who was given it.
        name: of the argument.
        kind: what it must be.

    Raises:
        DTypeError: it is of another type.
    """
    if not isinstance(value, kind):
        names = f" ({', '.join(kind.__members__)})" if issubclass(kind, Enum) else ""
        raise DTypeError(f"{where}: {name} is {value!r:.80}; it must be a {kind.__name__}{names}")


def _integer(value: Any) -> int | None:
    """Python's own integer; None for what is none, and for truth values."""
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None


# The parts


@final
class QuantValue(Enum):
    """The kinds of values: integers of 8, 4 and 2 bits (F the full range, S the symmetric one), and small floats.

    `bits` is the width; `low` and `high` are the ends of the range.
    """

    Q8F = (8, -128, 127)
    Q8S = (8, -127, 127)
    Q4F = (4, -8, 7)
    Q4S = (4, -7, 7)
    Q2F = (2, -2, 1)
    Q2S = (2, -1, 1)
    E4M3 = (8, -448, 448)
    E5M2 = (8, -57344, 57344)
    E2M1 = (4, -6, 6)

    def __init__(self, bits: int, low: int, high: int) -> None:
        self.bits: Final = bits
        self.low: Final = low
        self.high: Final = high

    @property
    def is_float(self) -> bool:
        """Whether a value is the code of a small float, not an integer."""
        return self.name.startswith("E")


@final
class ScaleDtype(Enum):
    """The dtypes of stored scales; U means without sign. `nbytes` is the width, `largest` the largest value."""

    F32 = (4, 3.4028234663852886e38)
    F16 = (2, 65504.0)
    BF16 = (2, 3.3895313892515355e38)
    UE4M3 = (1, 448.0)
    UE8M0 = (1, 2.0**127)

    def __init__(self, nbytes: int, largest: float) -> None:
        self.nbytes: Final = nbytes
        self.largest: Final = largest


@final
@dataclass(frozen=True)
class QuantStore:
    """How values lie in files: `native`, a byte each, or packed in words or bytes along an axis (Q36).

    Args:
        kind: ``"Native"``, ``"PackedU32"`` (32-bit words) or ``"PackedNative"`` (bytes).
        axis: the packed axis, counted from the innermost: 0 is the last one. Of a native store always 0.

    Raises:
        DTypeError: there is no such kind, or the axis is no integer or negative.
    """

    kind: Literal["Native", "PackedU32", "PackedNative"]
    axis: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in ("Native", "PackedU32", "PackedNative"):
            raise DTypeError(f"QuantStore: {self.kind!r:.80} is no store; there are Native, PackedU32 and PackedNative")
        axis = _integer(self.axis)
        if axis is None:
            raise DTypeError(f"QuantStore: axis is {self.axis!r:.80}; it must be an integer")
        object.__setattr__(self, "axis", axis)
        if self.axis < 0 or (self.axis and self.kind == "Native"):
            raise DTypeError(f"QuantStore: axis {self.axis} of {self.kind}; a packed axis is 0 (the last) or more")

    @classmethod
    def native(cls) -> "QuantStore":
        """A byte per value."""
        return cls("Native")

    @classmethod
    def packed_u32(cls, axis: int = 0) -> "QuantStore":
        """32-bit words of 4, 8 or 16 values."""
        return cls("PackedU32", axis)

    @classmethod
    def packed_native(cls, axis: int = 0) -> "QuantStore":
        """Bytes of two E2M1 codes; of any other kind a byte per value."""
        return cls("PackedNative", axis)

    def __str__(self) -> str:
        return self.kind if self.kind == "Native" else f"{self.kind}({self.axis})"


@final
@dataclass(frozen=True)
class BlockScale:
    """One scale per block.

    Args:
        size: the block's extents, for the last axes of a tensor: 1 to 5 of them, each 1 to 255. Leading 1s are dropped.
        dtype: of the scales.

    Raises:
        DTypeError: `size` is none, or `dtype` no ScaleDtype.
    """

    size: tuple[int, ...]
    dtype: ScaleDtype = ScaleDtype.F32

    def __post_init__(self) -> None:
        given = self.size if isinstance(self.size, (tuple, list)) else (None,)
        size = tuple(extent for extent in map(_integer, given) if extent is not None)
        if len(size) < len(given):
            raise DTypeError(f"BlockScale: size is {self.size!r:.80}; it must be a tuple of integers, such as (32,)")
        if not 1 <= len(size) <= _MAX_RANK or any(not 1 <= extent <= _MAX_EXTENT for extent in size):
            raise DTypeError(
                f"BlockScale: size {list(size)}; it has 1 to {_MAX_RANK} extents, each from 1 to {_MAX_EXTENT}"
            )
        while len(size) > 1 and size[0] == 1:
            size = size[1:]
        object.__setattr__(self, "size", size)
        check_part("BlockScale", "dtype", self.dtype, ScaleDtype)


Mode: TypeAlias = Literal["Symmetric", "Lookup"]


@final
@dataclass(frozen=True)
class QuantScheme:
    """How a tensor is quantized; a value that is compared and hashed by its parts (Q1, Q2).

    No level at all means one float32 scale per tensor, though the scheme is
    not equal to one that says so (Q3).

    Args:
        value: the kind of value.
        store: how values lie in files.
        mode: ``"Symmetric"``; ``"Lookup"`` can be named, and is refused wherever numbers are computed (Q6).
        tensor: the dtype of a scale per tensor, or of the global scale beside block scales; None for no such level.
        block: the scales per block; None for no such level.

    Raises:
        DTypeError: there is no such mode, or an argument is of another type.
    """

    value: QuantValue = QuantValue.Q8F
    store: QuantStore = QuantStore("PackedU32", 0)
    mode: Mode = "Symmetric"
    tensor: ScaleDtype | None = None
    block: BlockScale | None = None

    def __post_init__(self) -> None:
        check_part("QuantScheme", "value", self.value, QuantValue)
        check_part("QuantScheme", "store", self.store, QuantStore)
        if self.tensor is not None:
            check_part("QuantScheme", "tensor", self.tensor, ScaleDtype)
        if self.block is not None:
            check_part("QuantScheme", "block", self.block, BlockScale)
        if not isinstance(self.mode, str) or self.mode not in ("Symmetric", "Lookup"):
            raise DTypeError(f"QuantScheme: {self.mode!r:.80} is no mode; there are Symmetric and Lookup")

    @property
    def num_levels(self) -> int:
        """2 where block scales are relative to a global one, else 1 (Q4)."""
        return 2 if self.is_two_level else 1

    @property
    def is_two_level(self) -> bool:
        """Whether block scales are relative to a global one."""
        return self.tensor is not None and self.block is not None

    @property
    def scale_dtype(self) -> ScaleDtype:
        """The dtype of the innermost level's scales (Q5)."""
        if self.block is not None:
            return self.block.dtype
        return ScaleDtype.F32 if self.tensor is None else self.tensor

    @property
    def values_per_element(self) -> int:
        """Values in one element of the store (Q37)."""
        if self.store.kind == "PackedU32":
            return 32 // self.value.bits
        return 2 if self.store.kind == "PackedNative" and self.value is QuantValue.E2M1 else 1

    def check(self) -> None:
        """Refuse a scheme that nothing can be quantized by (Q6, Q7).

        Raises:
            DTypeError: it has the mode ``Lookup``, or two levels whose dtypes do not go together.
        """
        if self.mode != "Symmetric":
            raise DTypeError(f"scheme {self}: mode {self.mode} needs a table, which no tensor has; use Symmetric")
        if self.tensor is not None and self.block is not None:
            if self.block.dtype.largest > ScaleDtype.F16.largest:
                raise DTypeError(
                    f"scheme {self}: block scales in {self.block.dtype.name} leave nothing to a global scale; "
                    "use F16 or UE4M3 for them, or leave out the scale per tensor"
                )
            if self.tensor is not ScaleDtype.F32:
                raise DTypeError(f"scheme {self}: a global scale is in F32, not {self.tensor.name}")

    # What it makes of a shape

    def extents(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The extents of a block along each axis of a tensor; without blocks those of the tensor.

        Raises:
            ShapeError: the block has more axes than the tensor (Q12, Q32).
        """
        if self.block is None:
            return tuple(shape)
        size = self.block.size
        if len(size) > len(shape):
            raise ShapeError(f"scheme {self}: a block of {len(size)} axes for a tensor of shape {tuple(shape)}")
        return (1,) * (len(shape) - len(size)) + size

    def grid(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the scales: blocks along each axis, the last perhaps not full; without blocks ``(1,)`` (Q10)."""
        if self.block is None:
            return (1,)
        return tuple(-(-length // extent) for length, extent in zip(shape, self.extents(shape), strict=True))

    def check_shape(self, shape: Sequence[int]) -> None:
        """Refuse a shape that is no whole number of blocks, or has not the packed axis (Q11, Q12, Q32, Q44).

        Raises:
            ShapeError: it names the axis and both extents.
        """
        for axis, (length, extent) in enumerate(zip(shape, self.extents(shape), strict=True)):
            if extent and length % extent:
                raise ShapeError(
                    f"scheme {self}: axis {axis} of shape {tuple(shape)} has extent {length}, "
                    f"which a block of extent {extent} does not divide"
                )
        self.packed_axis(shape)

    def packed_axis(self, shape: Sequence[int]) -> int:
        """The axis of a tensor that is packed, or would be; rank 0 counts as [1].

        Raises:
            ShapeError: the tensor has no such axis (Q44).
        """
        rank = max(1, len(shape))
        if self.store.axis >= rank:
            raise ShapeError(
                f"scheme {self}: store {self.store} packs axis {self.store.axis} from the innermost, "
                f"which a tensor of shape {tuple(shape)} has not"
            )
        return rank - 1 - self.store.axis

    def storage(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the store (Q40): the packed axis swapped with the last one, and cut into words."""
        extents = list(shape) or [1]
        packed = self.packed_axis(shape)
        extents[packed], extents[-1] = extents[-1], extents[packed]
        extents[-1] = -(-extents[-1] // self.values_per_element)
        return tuple(extents)

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor of that shape in files and exchange (Q43)."""
        element = 4 if self.store.kind == "PackedU32" else 1
        values, scales = prod(self.storage(shape)) * element, prod(self.grid(shape)) * self.scale_dtype.nbytes
        return values + scales + (4 if self.is_two_level else 0)

    # What becomes of it

    def permuted(self, axes: Sequence[int]) -> "QuantScheme":
        """The scheme of a tensor whose axes are put in another order (Q13).

        Args:
            axes: axis `i` of the new tensor was ``axes[i]``; all of them, none negative.
        """
        rank = len(axes)
        store, block = self.store, self.block
        if store.kind != "Native" and rank:
            store = QuantStore(store.kind, rank - 1 - list(axes).index(rank - 1 - store.axis))
        if block is not None:
            extents = (1,) * (rank - len(block.size)) + block.size
            block = BlockScale(tuple(extents[axis] for axis in axes), block.dtype)
        return replace(self, store=store, block=block)

    def of_rank(self, rank: int) -> "QuantScheme":
        """The scheme of a tensor without blocks that is reshaped: the packed axis keeps its number if there is one."""
        return self if self.store.axis < max(1, rank) else replace(self, store=QuantStore(self.store.kind, 0))

    def __str__(self) -> str:
        parts = [self.value.name, str(self.store)]
        if self.mode != "Symmetric":
            parts.append(self.mode)
        if self.tensor is not None:
            parts.append(f"tensor {self.tensor.name}")
        if self.block is not None:
            parts.append(f"block {list(self.block.size)} {self.block.dtype.name}")
        return f"({', '.join(parts)})"
