"""Rotary positions: pairs of features turned by an angle that grows with the position.

A gradient is turned back by the same angle.
"""

from typing import TYPE_CHECKING, Any

from engine.backend import Array
from engine.dtype import FLOAT32, FLOATS, HALVES, INT64, DType
from engine.errors import DTypeError, ShapeError
from engine.primitive import Primitive, Pull, all_dequantized, checked_operand, is_scheme

from .checks import check_indices, checked_integer
from .indexing import take_vjp

if TYPE_CHECKING:
    from engine.tensor import Tensor


def rope_array(xp: Any, x: Array, cos: Array, sin: Array, *positions: Array, offset: int, interleaved: bool) -> Array:
    if positions:
        cos, sin = (xp.take(table, positions[0].astype(INT64, copy=False), axis=0) for table in (cos, sin))
    else:
        cos, sin = (table[offset : offset + x.shape[-2]] for table in (cos, sin))
    return _turned_neighbours(xp, x, cos, sin) if interleaved else _turned_halves(xp, x, cos, sin)


def _turned_neighbours(xp: Any, x: Array, cos: Array, sin: Array) -> Array:
    # A pair that lies side by side is a complex number, and turning it is one multiplication: a tenth of the time.
    pairs = x if x.strides[-1] == x.itemsize else xp.ascontiguousarray(x)
    turns = cos + 1j * sin
    return (pairs.view(turns.dtype) * turns).view(x.dtype)


def _turned_halves(xp: Any, x: Array, cos: Array, sin: Array) -> Array:
    pairs = x.reshape(*x.shape[:-1], 2, cos.shape[-1])
    turned = pairs * sin[..., None, :]
    y = pairs * cos[..., None, :]
    first, second = y[..., 0, :], y[..., 1, :]
    first -= turned[..., 1, :]
    second += turned[..., 0, :]
    return y.reshape(x.shape)


def _rope_vjp(
    xp: Any, y: Array, x: Array, cos: Array, sin: Array, *positions: Array, offset: int, interleaved: bool
) -> tuple[Pull | None, ...]:
    def to_x(g: Array) -> Array:
        return rope_array(xp, g, cos, -sin, *positions, offset=offset, interleaved=interleaved)

    def to_cos(g: Array) -> Array:
        (a, b), (of_a, of_b) = _members(x, interleaved), _members(g, interleaved)
        return to_table(of_a * a + of_b * b)

    def to_sin(g: Array) -> Array:
        (a, b), (of_a, of_b) = _members(x, interleaved), _members(g, interleaved)
        return to_table(of_b * a - of_a * b)

    used = positions[0] if positions else xp.arange(offset, offset + x.shape[-2])
    to_table, _ = take_vjp(xp, y, cos, xp.broadcast_to(used, x.shape[:-1]), 0)
    return to_x, to_cos, to_sin, *(None for _ in positions)


def _members(x: Array, interleaved: bool) -> tuple[Array, Array]:
    """The first and the second member of each pair."""
    half = x.shape[-1] // 2
    return (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])


_ROPE = Primitive("rope", rope_array, takes=FLOATS, mixed=True, wide=True, vjp=_rope_vjp)


def rope(
    x: "Tensor",
    cos: "Tensor",
    sin: "Tensor",
    *,
    offset: int = 0,
    positions: "Tensor | None" = None,
    interleaved: bool = False,
) -> "Tensor":
    """x with each pair of features turned by the angle of its position: (a, b) becomes (a cos − b sin, a sin + b cos).

    Args:
        x: floats, shape [..., time, d], with d even.
        cos, sin: row p for position p, shape [length, d/2], as `rotary_tables` makes them; of x's dtype, or float32
            beside float16 and bfloat16.
        offset: the position of the first time step; those after it follow.
        positions: in place of `offset`, integers of shape [time], or of one that broadcasts to [..., time].
        interleaved: whether the features 2i and 2i + 1 are a pair (llama's GGUF files), rather than
            i and i + d/2 (transformers).

    Raises:
        ShapeError: the tables do not go with x, or positions are beyond them.
        IndexError: `positions` has one that is beyond the tables.
        DTypeError: the tables have another dtype, or `positions` are no integers.

    Source: J. Su and others, "RoFormer: enhanced transformer with rotary position embedding" (2021), equation 34.
    """
    data, table = checked_operand("rope", x)._data, checked_operand("rope", cos)._data
    if table.ndim != 2 or checked_operand("rope", sin)._data.shape != table.shape:
        raise ShapeError(f"rope: cos has shape {table.shape}, sin {sin._data.shape}; both must be [length, d/2]")
    if data.ndim < 2 or data.shape[-1] != 2 * table.shape[1]:
        raise ShapeError(f"rope: x {data.shape} and tables {table.shape} must be [..., time, d] and [length, d/2]")
    if table.dtype != sin._data.dtype or not (table.dtype == data.dtype or _beside_half(data.dtype, table.dtype)):
        if any(is_scheme(operand._data.dtype) for operand in (x, cos, sin)):
            x, cos, sin = all_dequantized((x, cos, sin))
            return rope(x, cos, sin, offset=offset, positions=positions, interleaved=interleaved)
        raise DTypeError(f"rope: dtypes {data.dtype}, {table.dtype}, {sin._data.dtype} of x, cos, sin; cast the tables")
    if positions is not None:
        check_indices("rope", positions, table.shape[0], "position", "tables of length")
        if not _broadcasts(positions._data.shape, data.shape[:-1]):
            raise ShapeError(f"rope: positions {positions._data.shape} do not broadcast to {data.shape[:-1]}")
        return _ROPE(x, cos, sin, positions, offset=0, interleaved=interleaved)
    offset = checked_integer("rope", "offset", offset)
    if not 0 <= offset <= table.shape[0] - data.shape[-2]:
        last = offset + data.shape[-2] - 1
        raise ShapeError(f"rope: positions {offset} to {last} are not all in tables of length {table.shape[0]}")
    return _ROPE(x, cos, sin, offset=offset, interleaved=interleaved)


def _beside_half(dtype: DType, table: DType) -> bool:
    return dtype in HALVES and table == FLOAT32


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(shape) <= len(to) and all(
        extent in (1, wanted) for extent, wanted in zip(reversed(shape), reversed(to), strict=False)
    )
