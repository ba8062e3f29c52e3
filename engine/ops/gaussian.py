"""The error function and the normal distribution's upper tail, for NumPy and CuPy alike (neither has them).

The tail Q(a) = ½ erfc(a / √2) is e^(−a²/2) times a smooth function, which is
here a polynomial in v = (4 − a) / (4 + a): the half line of a becomes
(−1, 1], where a Chebyshev series converges fast. Near 0, erf is x plus x
times a polynomial in x². The coefficients were computed for this file from the power
series and the continued fraction of erfc with 60 digits. float32 takes a
shorter part of each series.

Source: M. M. Shepherd, J. G. Laframboise, "Chebyshev approximation of
(1 + 2x) exp(x²) erfc x in 0 ≤ x < ∞" (1981), for the map.
"""

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from numpy.polynomial import Chebyshev, Polynomial

from engine.backend import Array
from engine.dtype import FLOAT32, FLOAT64, FLOATS, DType
from engine.primitive import Primitive, Pull

if TYPE_CHECKING:
    from engine.tensor import Tensor

# fmt: off
_TAIL_SERIES: Final = (  # of Q(a) · e^(a²/2) · (4 + a) in v
    0.9704512045660766, 0.7517088168395706, 0.22219355567525104, 0.04851775326044609, 0.006925920496242481,
    0.00032059847439814995, -0.00010054739163210679, -1.8903369019706955e-05, 1.0103568854746187e-06,
    6.145334749398919e-07, -3.3810201200906525e-09, -2.0686508061772002e-08, -1.1282603630869185e-10,
    7.77401522847912e-10, -9.94142412976632e-12, -3.174482948373452e-11, 1.8424806541301585e-12,
    1.3128617462642487e-12, -1.7415363110493724e-13, -4.907282330599179e-14, 1.2931269146839244e-14,
    1.2180855553812348e-15, -8.055052935426743e-16, 2.8488767334772235e-17, 4.0648772325554976e-17,
)
_NEAR_SERIES: Final = (  # of erf(x) / x − 1 in x², over [0, 1]
    -0.024523060617345903, -0.14226120510371365, 0.010035582187599796, -0.0005768764699767485,
    2.7419931252196067e-05, -1.1043175507344448e-06, 3.8488755420356445e-08, -1.180858253382971e-09,
    3.233421582466402e-11, -7.991015889361602e-13, 1.7990722979291732e-14, -3.718655338808459e-16,
    7.115754383293926e-18,
)
# fmt: on


def _powers(series: tuple[float, ...], domain: tuple[float, float] = (-1, 1)) -> tuple[float, ...]:
    """The coefficients of a Chebyshev series over an interval as those of powers, the highest first."""
    return tuple(map(float, Chebyshev(series, domain).convert(kind=Polynomial).coef[::-1]))


_Coefficients: TypeAlias = dict[DType, tuple[float, ...]]
_TAIL: Final[_Coefficients] = {FLOAT64: _powers(_TAIL_SERIES), FLOAT32: _powers(_TAIL_SERIES[:11])}
_NEAR: Final[_Coefficients] = {FLOAT64: _powers(_NEAR_SERIES, (0, 1)), FLOAT32: _powers(_NEAR_SERIES[:8], (0, 1))}

_SLOPE: Final = 2 / 3.141592653589793**0.5  # of erf at 0


def scaled_tail(a: Array) -> Array:
    """Q(a) · e^(a²/2) for a ≥ 0, of float32 or float64: the tail without what makes it small."""
    d = 1 / (a + 4)
    y = _polynomial(d * 8 - 1, _TAIL[a.dtype])
    y *= d
    return y


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Horner's rule; the highest power comes first."""
    y = x * coefficients[0]
    for coefficient in coefficients[1:-1]:
        y += coefficient
        y *= x
    y += coefficients[-1]
    return y


def _erf_array(xp: Any, x: Array) -> Array:
    size = abs(x)
    inner = xp.minimum(size, 1)
    near = inner + inner * _polynomial(inner * inner, _NEAR[x.dtype])
    outer = xp.minimum(size, 7)  # from 6 on erf is 1 to the last bit of float64; a larger square may overflow
    far = 1 - 2 * scaled_tail(outer * 2**0.5) * xp.exp(-outer * outer)
    return xp.copysign(xp.where(size < 1, near, far), x)


def _erf_vjp(xp: Any, y: Array, x: Array) -> tuple[Pull]:
    """The slope is 2/√π e^(−x²)."""
    return (lambda g: g * (xp.exp(-x * x) * _SLOPE),)


_ERF = Primitive("erf", _erf_array, takes=FLOATS, wide=True, vjp=_erf_vjp)


def erf(x: "Tensor") -> "Tensor":
    """The error function 2/√π ∫₀ˣ e^(−t²) dt, of floats, to about 2 ulp."""
    return _ERF(x)
