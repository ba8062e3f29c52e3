"""Operations element by element: arithmetic, comparison, logic, elementary functions.

Binary ones broadcast as NumPy does. A scalar takes the dtype of the tensor
beside it. Booleans have logic, no arithmetic; integers have no quotient
(``//`` is theirs). Functions of floats compute float16 and bfloat16 in
float32 and round once.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

from engine.dtype import BOOL, FLOATS, INTS, DType, as_dtype
from engine.errors import DTypeError
from engine.primitive import Operand, Primitive, not_a_tensor, scalar

if TYPE_CHECKING:
    from engine.tensor import Tensor

Number: TypeAlias = "Tensor | float"

_NUMBERS = FLOATS | INTS
_BOOLEANS = frozenset({BOOL})


def _binary(primitive: Primitive, a: Any, b: Any, takes: frozenset[DType] | None) -> "Tensor":
    """`primitive` of two tensors, or of a tensor and a scalar; `takes` are the dtypes it has (None: all)."""
    if not isinstance(b, Operand):
        if not isinstance(a, Operand):
            raise not_a_tensor(primitive.name, a)
        b = scalar(primitive.name, b, a)
    elif not isinstance(a, Operand):
        a = scalar(primitive.name, a, b)
    if takes is not None:
        check_dtype(primitive.name, b if isinstance(b, Operand) else a, takes)
    return primitive(a, b)


def _unary(primitive: Primitive, x: "Tensor", takes: frozenset[DType]) -> "Tensor":
    check_dtype(primitive.name, x, takes)
    return primitive(x)


def check_dtype(name: str, operand: Operand, takes: frozenset[DType]) -> None:
    """Refuse an operand whose dtype the operation does not have.

    Raises:
        TypeError: `operand` is no Tensor.
        DTypeError: its dtype is not in `takes`.
    """
    if not isinstance(operand, Operand):
        raise not_a_tensor(name, operand)
    if operand._data.dtype not in takes:
        way = "use // or cast to a float dtype" if name == "divide" else "cast it first"
        raise DTypeError(f"{name}: not for a tensor of dtype {operand._data.dtype}; {way}")


# Arithmetic

_ADD = Primitive("add", lambda xp, a, b: xp.add(a, b))
_SUBTRACT = Primitive("subtract", lambda xp, a, b: xp.subtract(a, b))
_MULTIPLY = Primitive("multiply", lambda xp, a, b: xp.multiply(a, b))
_DIVIDE = Primitive("divide", lambda xp, a, b: xp.divide(a, b))
_FLOOR_DIVIDE = Primitive("floor_divide", lambda xp, a, b: xp.floor_divide(a, b))
_REMAINDER = Primitive("remainder", lambda xp, a, b: xp.remainder(a, b))
_POWER = Primitive("power", lambda xp, a, b: xp.power(a, b), wide=True)
_MAXIMUM = Primitive("maximum", lambda xp, a, b: xp.maximum(a, b))
_MINIMUM = Primitive("minimum", lambda xp, a, b: xp.minimum(a, b))
_NEGATIVE = Primitive("negative", lambda xp, x: xp.negative(x))
_ABSOLUTE = Primitive("absolute", lambda xp, x: xp.absolute(x))


def add(a: Number, b: Number) -> "Tensor":
    """a + b."""
    return _binary(_ADD, a, b, _NUMBERS)


def subtract(a: Number, b: Number) -> "Tensor":
    """a − b."""
    return _binary(_SUBTRACT, a, b, _NUMBERS)


def multiply(a: Number, b: Number) -> "Tensor":
    """a · b, element by element."""
    return _binary(_MULTIPLY, a, b, _NUMBERS)


def divide(a: Number, b: Number) -> "Tensor":
    """a / b, of floats."""
    return _binary(_DIVIDE, a, b, FLOATS)


def floor_divide(a: Number, b: Number) -> "Tensor":
    """⌊a / b⌋."""
    return _binary(_FLOOR_DIVIDE, a, b, _NUMBERS)


def remainder(a: Number, b: Number) -> "Tensor":
    """a − b · ⌊a / b⌋; it has the sign of b."""
    return _binary(_REMAINDER, a, b, _NUMBERS)


def power(a: Number, b: Number) -> "Tensor":
    """aᵇ."""
    return _binary(_POWER, a, b, _NUMBERS)


def maximum(a: Number, b: Number) -> "Tensor":
    """The larger of a and b; NaN where either is."""
    return _binary(_MAXIMUM, a, b, None)


def minimum(a: Number, b: Number) -> "Tensor":
    """The smaller of a and b; NaN where either is."""
    return _binary(_MINIMUM, a, b, None)


def negative(x: "Tensor") -> "Tensor":
    """−x."""
    return _unary(_NEGATIVE, x, _NUMBERS)


def absolute(x: "Tensor") -> "Tensor":
    """|x|."""
    return _unary(_ABSOLUTE, x, _NUMBERS)


# Elementary functions of floats

_EXP = Primitive("exp", lambda xp, x: xp.exp(x), wide=True)
_LOG = Primitive("log", lambda xp, x: xp.log(x), wide=True)
_SQRT = Primitive("sqrt", lambda xp, x: xp.sqrt(x), wide=True)
_SIN = Primitive("sin", lambda xp, x: xp.sin(x), wide=True)
_COS = Primitive("cos", lambda xp, x: xp.cos(x), wide=True)
_TANH = Primitive("tanh", lambda xp, x: xp.tanh(x), wide=True)
_RECIPROCAL = Primitive("reciprocal", lambda xp, x: xp.reciprocal(x), wide=True)


def exp(x: "Tensor") -> "Tensor":
    """eˣ."""
    return _unary(_EXP, x, FLOATS)


def log(x: "Tensor") -> "Tensor":
    """Natural logarithm; −∞ at 0, NaN below."""
    return _unary(_LOG, x, FLOATS)


def sqrt(x: "Tensor") -> "Tensor":
    """√x; NaN below 0."""
    return _unary(_SQRT, x, FLOATS)


def sin(x: "Tensor") -> "Tensor":
    """Sine of x in radians."""
    return _unary(_SIN, x, FLOATS)


def cos(x: "Tensor") -> "Tensor":
    """Cosine of x in radians."""
    return _unary(_COS, x, FLOATS)


def tanh(x: "Tensor") -> "Tensor":
    """Hyperbolic tangent."""
    return _unary(_TANH, x, FLOATS)


def reciprocal(x: "Tensor") -> "Tensor":
    """1 / x, of floats."""
    return _unary(_RECIPROCAL, x, FLOATS)


# Comparison and logic

_EQUAL = Primitive("equal", lambda xp, a, b: xp.equal(a, b))
_NOT_EQUAL = Primitive("not_equal", lambda xp, a, b: xp.not_equal(a, b))
_LESS = Primitive("less", lambda xp, a, b: xp.less(a, b))
_LESS_EQUAL = Primitive("less_equal", lambda xp, a, b: xp.less_equal(a, b))
_GREATER = Primitive("greater", lambda xp, a, b: xp.greater(a, b))
_GREATER_EQUAL = Primitive("greater_equal", lambda xp, a, b: xp.greater_equal(a, b))
_AND = Primitive("logical_and", lambda xp, a, b: xp.logical_and(a, b))
_OR = Primitive("logical_or", lambda xp, a, b: xp.logical_or(a, b))
_NOT = Primitive("logical_not", lambda xp, x: xp.logical_not(x))
_WHERE = Primitive("where", lambda xp, condition, a, b: xp.where(condition, a, b), mixed=True)


def equal(a: Number, b: Number) -> "Tensor":
    """a = b, bool."""
    return _binary(_EQUAL, a, b, None)


def not_equal(a: Number, b: Number) -> "Tensor":
    """a ≠ b, bool."""
    return _binary(_NOT_EQUAL, a, b, None)


def less(a: Number, b: Number) -> "Tensor":
    """a < b, bool."""
    return _binary(_LESS, a, b, None)


def less_equal(a: Number, b: Number) -> "Tensor":
    """a ≤ b, bool."""
    return _binary(_LESS_EQUAL, a, b, None)


def greater(a: Number, b: Number) -> "Tensor":
    """a > b, bool."""
    return _binary(_GREATER, a, b, None)


def greater_equal(a: Number, b: Number) -> "Tensor":
    """a ≥ b, bool."""
    return _binary(_GREATER_EQUAL, a, b, None)


def logical_and(a: Number, b: Number) -> "Tensor":
    """Both, of booleans."""
    return _binary(_AND, a, b, _BOOLEANS)


def logical_or(a: Number, b: Number) -> "Tensor":
    """Either, of booleans."""
    return _binary(_OR, a, b, _BOOLEANS)


def logical_not(x: "Tensor") -> "Tensor":
    """Not, of booleans."""
    return _unary(_NOT, x, _BOOLEANS)


def where(condition: "Tensor", a: Number, b: Number) -> "Tensor":
    """`a` where the condition holds, else `b`; the three broadcast.

    Args:
        condition: bool.
        a: of any dtype; a scalar takes that of `b`.
        b: of the dtype of `a`; likewise.

    Raises:
        DTypeError: the condition is no bool tensor, or `a` and `b` differ in dtype.
    """
    check_dtype("where", condition, _BOOLEANS)
    if not isinstance(b, Operand):
        if not isinstance(a, Operand):
            raise TypeError("where: neither choice is a Tensor; make one with tensor(…, device=…)")
        b = scalar("where", b, a)
    elif not isinstance(a, Operand):
        a = scalar("where", a, b)
    if isinstance(a, Operand) and isinstance(b, Operand) and a._data.dtype != b._data.dtype:
        raise DTypeError(f"where: choices have dtypes {a._data.dtype} and {b._data.dtype}; cast one")
    return _WHERE(condition, a, b)


# Dtypes


def _cast_array(xp: Any, x: Any, dtype: DType) -> Any:
    return x.astype(dtype)


_CAST = Primitive("cast", _cast_array)


def cast(x: "Tensor", dtype: Any) -> "Tensor":
    """x in another dtype."""
    of = as_dtype(dtype)
    return x if x._data.dtype == of else _CAST(x, dtype=of)
