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
from engine.primitive import BOOLEANS, NUMBERS, Operand, Primitive, check_alike, checked_operand, scalar

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

_ADD = Primitive("add", lambda xp, a, b: xp.add(a, b), takes=NUMBERS, scalars=True)
_SUBTRACT = Primitive("subtract", lambda xp, a, b: xp.subtract(a, b), takes=NUMBERS, scalars=True)
_MULTIPLY = Primitive("multiply", lambda xp, a, b: xp.multiply(a, b), takes=NUMBERS, scalars=True)
_DIVIDE = Primitive("divide", lambda xp, a, b: xp.divide(a, b), takes=FLOATS, scalars=True)
_FLOOR_DIVIDE = Primitive("floor_divide", lambda xp, a, b: xp.floor_divide(a, b), takes=NUMBERS, scalars=True)
_REMAINDER = Primitive("remainder", lambda xp, a, b: xp.remainder(a, b), takes=NUMBERS, scalars=True)
_POWER = Primitive("power", lambda xp, a, b: xp.power(a, b), takes=NUMBERS, wide=True, scalars=True)
_MAXIMUM = Primitive("maximum", lambda xp, a, b: xp.maximum(a, b), wide=True, scalars=True)
_MINIMUM = Primitive("minimum", lambda xp, a, b: xp.minimum(a, b), wide=True, scalars=True)
_NEGATIVE = Primitive("negative", lambda xp, x: xp.negative(x), takes=NUMBERS)
_ABSOLUTE = Primitive("absolute", lambda xp, x: xp.absolute(x), takes=NUMBERS)
_SQUARE = Primitive("square", lambda xp, x: x * x, takes=NUMBERS)


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


_CLIP = Primitive("clip", _clip_array, takes=NUMBERS)


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

_EXP = Primitive("exp", lambda xp, x: xp.exp(x), takes=FLOATS, wide=True)
_LOG = Primitive("log", lambda xp, x: xp.log(x), takes=FLOATS, wide=True)
_SQRT = Primitive("sqrt", lambda xp, x: xp.sqrt(x), takes=FLOATS, wide=True)
_RSQRT = Primitive("rsqrt", lambda xp, x: 1 / xp.sqrt(x), takes=FLOATS, wide=True)
_SIN = Primitive("sin", lambda xp, x: xp.sin(x), takes=FLOATS, wide=True)
_COS = Primitive("cos", lambda xp, x: xp.cos(x), takes=FLOATS, wide=True)
_TANH = Primitive("tanh", lambda xp, x: xp.tanh(x), takes=FLOATS, wide=True)
_RECIPROCAL = Primitive("reciprocal", lambda xp, x: 1 / x, takes=FLOATS, wide=True)


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


_EQUAL = Primitive("equal", lambda xp, a, b: xp.equal(a, b), wide=True, scalars=True)
_NOT_EQUAL = Primitive("not_equal", lambda xp, a, b: xp.not_equal(a, b), wide=True, scalars=True)
_LESS = Primitive("less", lambda xp, a, b: xp.less(a, b), wide=True, scalars=True)
_LESS_EQUAL = Primitive("less_equal", lambda xp, a, b: xp.less_equal(a, b), wide=True, scalars=True)
_GREATER = Primitive("greater", lambda xp, a, b: xp.greater(a, b), wide=True, scalars=True)
_GREATER_EQUAL = Primitive("greater_equal", lambda xp, a, b: xp.greater_equal(a, b), wide=True, scalars=True)
_AND = Primitive("logical_and", lambda xp, a, b: xp.logical_and(a, b), takes=BOOLEANS, scalars=True)
_OR = Primitive("logical_or", lambda xp, a, b: xp.logical_or(a, b), takes=BOOLEANS, scalars=True)
_NOT = Primitive("logical_not", lambda xp, x: xp.logical_not(x), takes=BOOLEANS)
_WHERE = Primitive("where", where_array, takes=BOOLEANS, mixed=True, scalars=True)


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
