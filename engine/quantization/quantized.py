"""The array of a quantized tensor: values and scales together, in place of an array of floats.

It has what the engine asks of an array (shape, dtype, bytes, read-only), its
dtype being its scheme, and no arithmetic: operations dequantize it. Values
and scales are dense arrays in the memory order of what was quantized.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, final

from engine.backend import Array
from engine.dtype import FLOAT32, DType
from engine.errors import QuantizationError
from engine.primitive import quiet

from .blocks import Blocks, inverse, memory_axes
from .calibration import Calibration, magnitudes
from .rounding import to_numbers, to_values
from .scales import from_magnitudes
from .scheme import BlockScale, QuantScheme


@final
class Quantized:
    """Values with their scales.

    Args:
        scheme: how they are to be understood.
        values: int8 integers, or uint8 codes of small floats, of the logical shape.
        scales: float32, of the shape of the scheme's grid.
        factor: the global scale of a two-level scheme, float32 of shape [1]; None without one.
    """

    __slots__ = ("factor", "scales", "scheme", "values")

    def __init__(self, scheme: QuantScheme, values: Array, scales: Array, factor: Array | None) -> None:
        self.scheme: Final = scheme
        self.values: Final = values
        self.scales: Final = scales
        self.factor: Final = factor

    @property
    def dtype(self) -> QuantScheme:
        """The scheme."""
        return self.scheme

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.values.ndim

    @property
    def size(self) -> int:
        """Number of logical elements."""
        return self.values.size

    @property
    def nbytes(self) -> int:
        """Bytes of values and scales in memory: a byte a value, 4 a scale."""
        return sum(part.nbytes for part in self.parts)

    @property
    def parts(self) -> tuple[Array, ...]:
        """The arrays that it consists of."""
        return (self.values, self.scales) if self.factor is None else (self.values, self.scales, self.factor)

    def of_parts(self, parts: Sequence[Array]) -> "Quantized":
        """One like this of other arrays, in the order of `parts`."""
        return Quantized(self.scheme, parts[0], parts[1], parts[2] if len(parts) > 2 else None)

    def setflags(self, write: bool) -> None:
        """Make NumPy's arrays read-only."""
        for part in self.parts:
            part.setflags(write=write)

    def transpose(self, axes: Sequence[int]) -> "Quantized":
        """Its axes in another order, those of blocks and packing with them; views (Q13)."""
        values = self.values.transpose(axes)
        scales = self.scales if self.scheme.block is None else self.scales.transpose(axes)
        return Quantized(self.scheme.permuted(axes), values, scales, self.factor)

    def by_columns(self, width: int) -> Iterator[tuple[slice, "Quantized"]]:
        """Pieces of a matrix of about so many columns, each of whole blocks; views."""
        columns = self.shape[1]
        extent = self.scheme.extents(self.shape)[1] if self.scheme.block is not None else 1
        step = max(1, width // extent) * extent
        for start in range(0, columns, step):
            at = slice(start, min(start + step, columns))
            scales = self.scales
            if self.scheme.block is not None:
                scales = scales[:, at.start // extent : -(-at.stop // extent)]
            yield at, Quantized(self.scheme, self.values[:, at], scales, self.factor)

    def rows(self, xp: Any, ids: Array) -> "Quantized":
        """Rows of a matrix, by number: shape of `ids`, then that of a row."""
        scheme, scales = self.scheme, self.scales
        if scheme.block is not None:
            down, along = scheme.extents(self.shape)
            scheme = replace(scheme, block=BlockScale((along,), scheme.block.dtype))
            scales = scales[ids // down]
        return Quantized(scheme, self.values[ids], scales, self.factor)

    def dequantized(self, xp: Any, dtype: DType = FLOAT32, out: Array | None = None) -> Array:
        """The numbers that it stands for, scale * value in float32, then rounded to a float dtype (Q29).

        Args:
            out: where to write them: of its shape, of `dtype`, in the same memory order; by default a new array.
        """
        axes = memory_axes(self.values)
        values = xp.asarray(self.values.transpose(axes), order="C")
        logical = self.scheme.extents(self.shape)
        extents, scales = tuple(logical[axis] for axis in axes), _effective(self.scales, self.factor)
        if self.scheme.block is not None:
            scales = scales.transpose(axes)
            if any(length % extent for length, extent in zip(values.shape, extents, strict=True)):
                scales, extents = _spread(xp, scales, values.shape, extents), (1,) * values.ndim
        blocks = Blocks.of(values.shape, extents)
        made = xp.empty(values.shape, dtype) if out is None else out.transpose(axes)
        seen = made.reshape(blocks.values)
        to_numbers(xp, values.reshape(blocks.values), scales.reshape(blocks.grid), blocks, self.scheme.value, seen)
        return made.transpose(inverse(axes))


def quantized(
    xp: Any, x: Array, scheme: QuantScheme, calibration: Calibration, *, allow_nonfinite: bool = False
) -> Quantized:
    """The nearest values of floats, with scales found by a calibration, in their memory order.

    Args:
        x: a dense array of floats.
        allow_nonfinite: whether NaN and infinities are quantized (Q27, Q28), not refused.

    Raises:
        DTypeError: the scheme cannot be computed, or not with this calibration (Q6, Q7, Q15).
        ShapeError: the blocks do not divide the shape, or the packed axis is beyond it (Q11, Q12, Q32, Q44).
        QuantizationError: x has NaN or infinities.
    """
    scheme.check()
    calibration.check(scheme)
    scheme.check_shape(x.shape)
    axes = memory_axes(x)
    blocks, lying = _seen(x, scheme, axes)
    found = magnitudes(xp, lying, blocks, calibration)
    finite = xp.isfinite(found).all().item()  # which waits for a GPU, as a refusal must
    if not finite and not allow_nonfinite:
        check_finite(xp, x)
    scales, factor = from_magnitudes(xp, found, scheme)
    if scheme.block is None:
        scales = scales.reshape(1)
    else:
        grid = scheme.grid(x.shape)
        scales = scales.reshape([grid[axis] for axis in axes]).transpose(inverse(axes))
    return with_scales(xp, x, scheme, scales, factor, finite=finite)


def with_scales(
    xp: Any, x: Array, scheme: QuantScheme, scales: Array, factor: Array | None, *, finite: bool
) -> Quantized:
    """The nearest values of floats with scales that are given, in their memory order.

    Args:
        x: a dense array of floats.
        scheme: one whose blocks divide the shape.
        scales: float32, of the shape of the scheme's grid.
        factor: the global scale of a two-level scheme, or None.
        finite: whether all of x is.
    """
    axes, steps = memory_axes(x), _effective(scales, factor)
    blocks, lying = _seen(x, scheme, axes)
    clean = finite and (steps > 0).all().item()
    if scheme.block is not None:
        steps = steps.transpose(axes)
    values = to_values(xp, lying, steps.reshape(blocks.grid), blocks, scheme.value, clean=clean)
    values = values.reshape([x.shape[axis] for axis in axes]).transpose(inverse(axes))
    return Quantized(scheme, values, scales, factor)


def check_finite(xp: Any, x: Array) -> None:
    """Refuse numbers that are not finite in float32 (Q28).

    Raises:
        QuantizationError: it says how many there are.
    """
    with quiet():
        count = int((~xp.isfinite(x.astype(FLOAT32, copy=False))).sum())
    if count:
        raise QuantizationError(
            f"quantize: {count} of {x.size} elements of shape {x.shape} are NaN or infinite in float32; "
            "remove them, or pass allow_nonfinite=True"
        )


def _effective(scales: Array, factor: Array | None) -> Array:
    """The scales as values are multiplied with them: times the global one, rounded to float32 (Q20)."""
    with quiet():
        return scales if factor is None else scales * factor


def _seen(x: Array, scheme: QuantScheme, axes: Sequence[int]) -> tuple[Blocks, Array]:
    """How the blocks of a dense array are seen as it lies, its axes in the order given; and the array, so seen."""
    lying, extents = x.transpose(axes), scheme.extents(x.shape)
    blocks = Blocks.of(lying.shape, [extents[axis] for axis in axes])
    return blocks, lying.reshape(blocks.values)


def _spread(xp: Any, scales: Array, shape: Sequence[int], extents: Sequence[int]) -> Array:
    """The scale of each element, where a block does not divide the shape; files can hold such tensors."""
    for axis, extent in enumerate(extents):
        scales = xp.repeat(scales, extent, axis=axis)
    return scales[tuple(slice(length) for length in shape)]
