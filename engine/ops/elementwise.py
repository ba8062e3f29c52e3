"""Operations element by element: arithmetic, comparison, logic, elementary functions.

Binary ones broadcast as NumPy does. A scalar takes the dtype of the tensor
beside it. Booleans have logic, no arithmetic; integers have no quotient
(``//`` is theirs). Functions of floats compute float16 and bfloat16 in
float32 and round once.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

from engine.backend import Array
from engine.dtype import BFLOAT16, FLOATS, INTS
from engine.errors import DTypeError
from engine.primitive import BOOLEANS, NUMBERS, Operand, Primitive, Pull, check_alike, checked_operand, scalar

if TYPE_CHECKING:
    from engine.tensor import Tensor

Number: TypeAlias = "Tensor | float"


def _binary(primitive: Primitive, a: Any, b: Any) -> "Tensor":
    """`primitive` of two tensors, or of a tensor and a scalar."""
    if not isinstance(b, Operand):
        b = scalar(primitive.name, b, a)
    elif not isinstance(a, Operand):
        a = scalar(primitive.name, a, b)
    return primitive(a, b)


# Arithmetic


def _power_vjp(xp: Any, y: Array, a: Any, b: Any) -> tuple[Pull, Pull]:
    # Where a is 0, the slope by a is 0 for b = 0, and that by b is 0 for every b ≥ 0; as PyTorch.
    return (
        lambda g: xp.where((a == 0) & (b == 0), 0, g * b * xp.power(a, b - 1)),
        lambda g: xp.where((b >= 0) & (a == 0), 0, g * y * xp.log(a)),
    )


def _maximum_vjp(xp: Any, y: Array, a: Any, b: Any) -> tuple[Pull, Pull]:
    return lambda g: _to_larger(xp, g, a, b), lambda g: _to_larger(xp, g, b, a)


def _minimum_vjp(xp: Any, y: Array, a: Any, b: Any) -> tuple[Pull, Pull]:
    return lambda g: _to_larger(xp, g, b, a), lambda g: _to_larger(xp, g, a, b)


def _to_larger(xp: Any, g: Array, a: Any, b: Any) -> Array:
    """A gradient where a > b, half of it where they are equal (as PyTorch), else 0."""
    # By name: CuPy refuses an operator with a NumPy scalar on its left.
    return xp.where(xp.less(a, b), 0, xp.where(xp.equal(a, b), g / 2, g))


_ADD = Primitive(
    "add",
    lambda xp, a, b: xp.add(a, b),
    takes=NUMBERS,
    scalars=True,
    vjp=lambda xp, y, a, b: (lambda g: g, lambda g: g),
)
_SUBTRACT = Primitive(
    "subtract",
    lambda xp, a, b: xp.subtract(a, b),
    takes=NUMBERS,
    scalars=True,
    vjp=lambda xp, y, a, b: (lambda g: g, lambda g: -g),
)
_MULTIPLY = Primitive(
    "multiply",
    lambda xp, a, b: xp.multiply(a, b),
    takes=NUMBERS,
    scalars=True,
    vjp=lambda xp, y, a, b: (lambda g: g * b, lambda g: g * a),
)
_DIVIDE = Primitive(
    "divide",
    lambda xp, a, b: xp.divide(a, b),
    takes=FLOATS,
    scalars=True,
    vjp=lambda xp, y, a, b: (lambda g: g / b, lambda g: -g * (a / b / b)),
)
_FLOOR_DIVIDE = Primitive("floor_divide", lambda xp, a, b: xp.floor_divide(a, b), takes=NUMBERS, scalars=True)
_REMAINDER = Primitive(
    "remainder",
    lambda xp, a, b: xp.remainder(a, b),
    takes=NUMBERS,
    scalars=True,
    vjp=lambda xp, y, a, b: (lambda g: g, lambda g: -g * xp.floor_divide(a, b)),
)
_POWER = Primitive("power", lambda xp, a, b: xp.power(a, b), takes=NUMBERS, wide=True, scalars=True, vjp=_power_vjp)
_MAXIMUM = Primitive("maximum", lambda xp, a, b: xp.maximum(a, b), wide=True, scalars=True, vjp=_maximum_vjp)
_MINIMUM = Primitive("minimum", lambda xp, a, b: xp.minimum(a, b), wide=True, scalars=True, vjp=_minimum_vjp)
_NEGATIVE = Primitive("negative", lambda xp, x: xp.negative(x), takes=NUMBERS, vjp=lambda xp, y, x: (lambda g: -g,))
_ABSOLUTE = Primitive(  # at 0 the slope is 0
    "absolute", lambda xp, x: xp.absolute(x), takes=NUMBERS, vjp=lambda xp, y, x: (lambda g: g * xp.sign(x),)
)
_SQUARE = Primitive("square", lambda xp, x: x * x, takes=NUMBERS, vjp=lambda xp, y, x: (lambda g: g * (x + x),))


def add(a: Number, b: Number) -> "Tensor":
    """a + b."""
    return _binary(_ADD, a, b)


def subtract(a: Number, b: Number) -> "Tensor":
    """a − b."""
    return _binary(_SUBTRACT, a, b)


def multiply(a: Number, b: Number) -> "Tensor":
    """a · b, element by element."""
    return _binary(_MULTIPLY, a, b)


def divide(a: Number, b: Number) -> "Tensor":
    """a / b, of floats."""
    return _binary(_DIVIDE, a, b)


def floor_divide(a: Number, b: Number) -> "Tensor":
    """⌊a / b⌋."""
    return _binary(_FLOOR_DIVIDE, a, b)


def remainder(a: Number, b: Number) -> "Tensor":
    """a − b · ⌊a / b⌋; it has the sign of b."""
    return _binary(_REMAINDER, a, b)


def power(a: Number, b: Number) -> "Tensor":
    """aᵇ.

    Raises:
        DTypeError: a negative exponent of integers, whose power is none. (On a GPU, reading the exponents waits.)
    """
    exponent = scalar("power", b, a) if not isinstance(b, Operand) else b._host()
    if exponent.dtype in INTS and exponent.size and exponent.min() < 0:
        raise DTypeError("power: a negative exponent of integers; cast them to a float dtype first")
    return _binary(_POWER, a, b)


def maximum(a: Number, b: Number) -> "Tensor":
    """The larger of a and b; NaN where either is."""
    return _binary(_MAXIMUM, a, b)


def minimum(a: Number, b: Number) -> "Tensor":
    """The smaller of a and b; NaN where either is."""
    return _binary(_MINIMUM, a, b)


def negative(x: "Tensor") -> "Tensor":
    """−x."""
    return _NEGATIVE(x)


def absolute(x: "Tensor") -> "Tensor":
    """|x|."""
    return _ABSOLUTE(x)


def square(x: "Tensor") -> "Tensor":
    """x²."""
    return _SQUARE(x)


def _clip_array(xp: Any, x: Any, low: Any, high: Any) -> Any:
    if low is not None:
        x = xp.maximum(x, low)
    return x if high is None else xp.minimum(x, high)


def _clip_vjp(xp: Any, y: Array, x: Array, low: Any, high: Any) -> tuple[Pull]:
    """On a bound the slope is 1, as in PyTorch."""
    lowest, highest = -xp.inf if low is None else low, xp.inf if high is None else high
    return (lambda g: xp.where((x >= lowest) & (x <= highest), g, 0),)


_CLIP = Primitive("clip", _clip_array, takes=NUMBERS, vjp=_clip_vjp)


def clip(x: "Tensor", low: float | None = None, high: float | None = None) -> "Tensor":
    """x, but `low` where it is below that and `high` where it is above; NaN stays.

    Args:
        x: numbers.
        low: a scalar, or None for no lower bound.
        high: likewise; where it is below `low`, it wins.
    """
    bounds = {"low": low, "high": high}
    return _CLIP(x, **{name: None if bound is None else scalar("clip", bound, x) for name, bound in bounds.items()})


# Elementary functions of floats

_EXP = Primitive("exp", lambda xp, x: xp.exp(x), takes=FLOATS, wide=True, vjp=lambda xp, y, x: (lambda g: g * y,))
_LOG = Primitive("log", lambda xp, x: xp.log(x), takes=FLOATS, wide=True, vjp=lambda xp, y, x: (lambda g: g / x,))
_SQRT = Primitive(
    "sqrt", lambda xp, x: xp.sqrt(x), takes=FLOATS, wide=True, vjp=lambda xp, y, x: (lambda g: g / (y + y),)
)
_RSQRT = Primitive(
    "rsqrt", lambda xp, x: 1 / xp.sqrt(x), takes=FLOATS, wide=True, vjp=lambda xp, y, x: (lambda g: g * y * y * y / -2,)
)
_SIN = Primitive(
    "sin", lambda xp, x: xp.sin(x), takes=FLOATS, wide=True, vjp=lambda xp, y, x: (lambda g: g * xp.cos(x),)
)
_COS = Primitive(
    "cos", lambda xp, x: xp.cos(x), takes=FLOATS, wide=True, vjp=lambda xp, y, x: (lambda g: -g * xp.sin(x),)
)
_TANH = Primitive(
    "tanh", lambda xp, x: xp.tanh(x), takes=FLOATS, wide=True, vjp=lambda xp, y, x: (lambda g: g * (1 - y * y),)
)
_RECIPROCAL = Primitive(
    "reciprocal", lambda xp, x: 1 / x, takes=FLOATS, wide=True, vjp=lambda xp, y, x: (lambda g: -g * y * y,)
)


def exp(x: "Tensor") -> "Tensor":
    """eˣ."""
    return _EXP(x)


def log(x: "Tensor") -> "Tensor":
    """Natural logarithm; −∞ at 0, NaN below."""
    return _LOG(x)


def sqrt(x: "Tensor") -> "Tensor":
    """√x; NaN below 0."""
    return _SQRT(x)


def rsqrt(x: "Tensor") -> "Tensor":
    """1 / √x; ∞ at 0, NaN below."""
    return _RSQRT(x)


def sin(x: "Tensor") -> "Tensor":
    """Sine of x in radians."""
    return _SIN(x)


def cos(x: "Tensor") -> "Tensor":
    """Cosine of x in radians."""
    return _COS(x)


def tanh(x: "Tensor") -> "Tensor":
    """Hyperbolic tangent."""
    return _TANH(x)


def reciprocal(x: "Tensor") -> "Tensor":
    """1 / x, of floats."""
    return _RECIPROCAL(x)


# Comparison and logic


def where_array(xp: Any, condition: Array, a: Any, b: Any) -> Array:
    """`a` where the condition holds, else `b`; of bfloat16 by its bits, since CuPy would make it float32."""
    if a.dtype == BFLOAT16:
        return xp.where(condition, a.view(xp.uint16), b.view(xp.uint16)).view(BFLOAT16)
    return xp.where(condition, a, b)


def _where_vjp(xp: Any, y: Array, condition: Array, a: Any, b: Any) -> tuple[None, Pull, Pull]:
    return None, lambda g: xp.where(condition, g, 0), lambda g: xp.where(condition, 0, g)


_EQUAL = Primitive("equal", lambda xp, a, b: xp.equal(a, b), wide=True, scalars=True)
_NOT_EQUAL = Primitive("not_equal", lambda xp, a, b: xp.not_equal(a, b), wide=True, scalars=True)
_LESS = Primitive("less", lambda xp, a, b: xp.less(a, b), wide=True, scalars=True)
_LESS_EQUAL = Primitive("less_equal", lambda xp, a, b: xp.less_equal(a, b), wide=True, scalars=True)
_GREATER = Primitive("greater", lambda xp, a, b: xp.greater(a, b), wide=True, scalars=True)
_GREATER_EQUAL = Primitive("greater_equal", lambda xp, a, b: xp.greater_equal(a, b), wide=True, scalars=True)
_AND = Primitive("logical_and", lambda xp, a, b: xp.logical_and(a, b), takes=BOOLEANS, scalars=True)
_OR = Primitive("logical_or", lambda xp, a, b: xp.logical_or(a, b), takes=BOOLEANS, scalars=True)
_NOT = Primitive("logical_not", lambda xp, x: xp.logical_not(x), takes=BOOLEANS)
_WHERE = Primitive("where", where_array, takes=BOOLEANS, mixed=True, scalars=True, vjp=_where_vjp)


def equal(a: Number, b: Number) -> "Tensor":
    """a = b, bool."""
    return _binary(_EQUAL, a, b)


def not_equal(a: Number, b: Number) -> "Tensor":
    """a ≠ b, bool."""
    return _binary(_NOT_EQUAL, a, b)


def less(a: Number, b: Number) -> "Tensor":
    """a < b, bool."""
    return _binary(_LESS, a, b)


def less_equal(a: Number, b: Number) -> "Tensor":
    """a ≤ b, bool."""
    return _binary(_LESS_EQUAL, a, b)


def greater(a: Number, b: Number) -> "Tensor":
    """a > b, bool."""
    return _binary(_GREATER, a, b)


def greater_equal(a: Number, b: Number) -> "Tensor":
    """a ≥ b, bool."""
    return _binary(_GREATER_EQUAL, a, b)


def logical_and(a: Number, b: Number) -> "Tensor":
    """Both, of booleans."""
    return _binary(_AND, a, b)


def logical_or(a: Number, b: Number) -> "Tensor":
    """Either, of booleans."""
    return _binary(_OR, a, b)


def logical_not(x: "Tensor") -> "Tensor":
    """Not, of booleans."""
    return _NOT(x)


def where(condition: "Tensor", a: Number, b: Number) -> "Tensor":
    """`a` where the condition holds, else `b`; the three broadcast. ``where(mask, 0.0, x)`` fills masked places.

    Args:
        condition: bool.
        a: of any dtype; a scalar takes that of `b`.
        b: of the dtype of `a`; likewise.

    Raises:
        DTypeError: the condition is no bool tensor, or `a` and `b` differ in dtype.
    """
    checked_operand("where", condition)
    chosen, otherwise = a, b if isinstance(b, Operand) else scalar("where", b, a)
    if not isinstance(a, Operand):
        chosen = scalar("where", a, b)
    check_alike("where", chosen, otherwise)
    return _WHERE(condition, chosen, otherwise)
