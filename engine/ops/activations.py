"""Activations of floats, element by element. float16 and bfloat16 are computed in float32 and rounded once.

Their slopes are computed from e^(−|x|), which neither overflows nor cancels
out: they are exact where they are tiny.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from engine.backend import Array
from engine.dtype import FLOATS
from engine.errors import ShapeError
from engine.primitive import NUMBERS, Primitive, Pull, checked_operand, quiet

from .gaussian import scaled_tail

if TYPE_CHECKING:
    from engine.tensor import Tensor

_TANH_SCALE: Final = 2 * (2 / 3.141592653589793) ** 0.5  # twice: ½ (1 + tanh u) = 1 / (1 + e^(−2u))
_TANH_CUBE: Final = 0.044715 * _TANH_SCALE
_DENSITY: Final = (2 * 3.141592653589793) ** -0.5  # of the standard normal distribution at 0


def _relu_array(xp: Any, x: Array) -> Array:
    return xp.maximum(x, x.dtype.type(0))


def _sigmoid_array(xp: Any, x: Array) -> Array:
    with quiet():  # e^(−x) may be infinite, and its reciprocal 0
        y = xp.exp(-x)
    y += 1
    return 1 / y


def _silu_array(xp: Any, x: Array) -> Array:
    with quiet():
        y = xp.exp(-x)
        y += 1
        return x / y


def _swiglu_array(xp: Any, x: Array) -> Array:
    half = x.shape[-1] // 2
    gate = x[..., :half]
    y = -gate
    with quiet():
        xp.exp(y, out=y)
        y += 1
        xp.divide(gate, y, out=y)
    y *= x[..., half:]
    return y


def _gelu_array(xp: Any, x: Array) -> Array:
    size = xp.minimum(abs(x), 40)  # beyond, the tail is 0 in every dtype
    y = size * size
    y *= -0.5
    y = xp.exp(y)
    y *= scaled_tail(size)
    y *= size
    return xp.maximum(x, 0) - y  # |x| Q(|x|) less than x or than 0: nothing cancels, far out to the left


def _gelu_tanh_array(xp: Any, x: Array) -> Array:
    with quiet():  # x² and e^(−2u) may be infinite, and the result is right
        y = x * x
        y *= -_TANH_CUBE
        y -= _TANH_SCALE
        y *= x
        y = xp.exp(y)
        y += 1
        return x / y


def _softplus_array(xp: Any, x: Array) -> Array:
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-abs(x)))


# Slopes


def _sigmoid_slope(xp: Any, x: Array) -> Array:
    """σ(x) σ(−x)."""
    e = xp.exp(-abs(x))
    return e / ((1 + e) * (1 + e))


def _silu_slope(xp: Any, x: Array) -> Array:
    """σ(x) + x σ(x) σ(−x)."""
    return _sigmoid_array(xp, x) + x * _sigmoid_slope(xp, x)


def _swiglu_vjp(xp: Any, y: Array, x: Array) -> tuple[Pull]:
    def pull(g: Array) -> Array:
        half = x.shape[-1] // 2
        gate, up = x[..., :half], x[..., half:]
        return xp.concatenate((g * up * _silu_slope(xp, gate), g * _silu_array(xp, gate)), axis=-1)

    return (pull,)


def _gelu_slope(xp: Any, x: Array) -> Array:
    """Φ(x) + x φ(x), with the density φ of the standard normal distribution."""
    size = xp.minimum(abs(x), 40)
    left = xp.exp(size * size * -0.5) * (scaled_tail(size) - size * _DENSITY)
    return xp.where(x < 0, left, 1 - left)


def _gelu_tanh_slope(xp: Any, x: Array) -> Array:
    """σ(u) + x σ(u) σ(−u) u′, with u = 2 √(2/π) (x + 0.044715 x³)."""
    near = xp.minimum(xp.maximum(x, -40), 40)  # beyond, e^(−|u|) is 0 in every dtype
    square = near * near
    u = near * (square * _TANH_CUBE + _TANH_SCALE)
    return _sigmoid_array(xp, u) + near * _sigmoid_slope(xp, u) * (square * (3 * _TANH_CUBE) + _TANH_SCALE)


def _smooth(name: str, forward: Callable[..., Array], slope: Callable[[Any, Array], Array]) -> Primitive:
    return Primitive(name, forward, takes=FLOATS, wide=True, vjp=lambda xp, y, x: (lambda g: g * slope(xp, x),))


_RELU = Primitive(  # at 0 the slope is 0
    "relu", _relu_array, takes=NUMBERS, vjp=lambda xp, y, x: (lambda g: xp.where(y <= 0, 0, g),)
)
_SIGMOID = _smooth("sigmoid", _sigmoid_array, _sigmoid_slope)
_SILU = _smooth("silu", _silu_array, _silu_slope)
_SWIGLU = Primitive("swiglu", _swiglu_array, takes=FLOATS, wide=True, vjp=_swiglu_vjp)
_GELU = _smooth("gelu", _gelu_array, _gelu_slope)
_GELU_TANH = _smooth("gelu", _gelu_tanh_array, _gelu_tanh_slope)
_SOFTPLUS = _smooth("softplus", _softplus_array, _sigmoid_array)


def relu(x: "Tensor") -> "Tensor":
    """max(x, 0), of numbers; NaN stays."""
    return _RELU(x)


def sigmoid(x: "Tensor") -> "Tensor":
    """1 / (1 + e^(−x)); 0 where e^(−x) overflows."""
    return _SIGMOID(x)


def silu(x: "Tensor") -> "Tensor":
    """x · sigmoid(x), also called swish; NaN at −∞."""
    return _SILU(x)


def swiglu(x: "Tensor") -> "Tensor":
    """silu(gate) · up, of gate and up side by side: the two halves of the last axis, in this order.

    Args:
        x: floats, shape [..., 2 d].

    Returns:
        Shape [..., d].

    Raises:
        ShapeError: x has rank 0, or its last extent is odd.

    Source: N. Shazeer, "GLU variants improve transformer" (2020), equation 5.
    """
    shape = checked_operand("swiglu", x)._data.shape
    if not shape or shape[-1] % 2:
        raise ShapeError(f"swiglu: x has shape {shape}; its last axis must be gate and up, as long as each other")
    return _SWIGLU(x)


def gelu(x: "Tensor", approximate: Literal["none", "tanh"] = "none") -> "Tensor":
    """x · Φ(x), with the distribution function Φ of the standard normal distribution.

    Args:
        x: floats.
        approximate: ``"none"``: Φ(x) = ½ (1 + erf(x / √2)), to about 4 ulp of x; ``"tanh"``: in its place
            ½ (1 + tanh(√(2/π) (x + 0.044715 x³))), as GPT-2 has it.

    Raises:
        ValueError: `approximate` is neither.

    Source: D. Hendrycks, K. Gimpel, "Gaussian error linear units" (2016).
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate is {approximate!r}; it must be 'none' or 'tanh'")
    return _GELU(x) if approximate == "none" else _GELU_TANH(x)


def softplus(x: "Tensor") -> "Tensor":
    """log(1 + eˣ), without overflow."""
    return _SOFTPLUS(x)
