"""Calibration: the magnitude that a scale must hold, per tensor or per block."""

from enum import Enum
from math import prod
from typing import Any, final

import numpy as np

from engine.backend import Array
from engine.dtype import FLOAT32
from engine.errors import DTypeError
from engine.primitive import quiet

from .blocks import Blocks
from .scheme import QuantScheme, check_part


@final
class Calibration(Enum):
    """How the range of a tensor or block is found.

    ``MIN_MAX``: by its least and largest number. ``ABS_MEAN``: by the mean of
    the absolute values, as BitNet b1.58 does with ``Q2S``; what is beyond it
    becomes the end of the range.
    """

    MIN_MAX = "MinMax"
    ABS_MEAN = "AbsMean"

    def check(self, scheme: QuantScheme) -> None:
        """Refuse a scheme that the calibration cannot serve (Q15).

        Raises:
            DTypeError: ``ABS_MEAN`` with a two-level scheme.
        """
        if self is Calibration.ABS_MEAN and scheme.is_two_level:
            raise DTypeError(f"scheme {scheme}: AbsMean has no form with two levels; use MinMax, or one level")


def check_settings(name: str, calibration: Any, scheme: Any, allow_nonfinite: Any) -> None:
    """Refuse what nothing can be quantized by, named as arguments of `name`.

    Raises:
        DTypeError: `scheme` is none, or cannot be computed, or not with this calibration (Q6, Q7, Q15).
        TypeError: `calibration` is none, or `allow_nonfinite` no truth value.
    """
    if not isinstance(calibration, Calibration):
        known = ", ".join(Calibration.__members__)
        raise TypeError(f"{name}: calibration is {calibration!r:.80}; it must be a Calibration ({known})")
    check_part(name, "scheme", scheme, QuantScheme)
    if not isinstance(allow_nonfinite, (bool, np.bool_)):
        raise TypeError(f"{name}: allow_nonfinite is {allow_nonfinite!r:.80}; it must be True or False")
    scheme.check()
    calibration.check(scheme)


def magnitudes(xp: Any, x: Array, blocks: Blocks, calibration: Calibration) -> Array:
    """The grid of what scales must hold: the largest or the mean absolute values, float32 (Q14 to Q16).

    A block with NaN gives NaN; one of zeros, or without elements, 0.

    Args:
        x: floats, seen as `blocks` sees them.
    """
    mean = calibration is Calibration.ABS_MEAN
    found = xp.zeros(blocks.grid, xp.float64 if mean else FLOAT32)
    inside = blocks.inside
    with quiet():
        for at, in_grid in blocks.parts(xp):
            absolute = abs(x[at].astype(FLOAT32, copy=False))
            if mean:
                found[in_grid] += absolute.sum(axis=inside, dtype=FLOAT32, keepdims=True)
            else:
                found[in_grid] = xp.maximum(found[in_grid], _largest(xp, absolute, inside))
        if mean:
            found = (found / max(1, prod(blocks.values[axis] for axis in inside))).astype(FLOAT32)
    return found


def _largest(xp: Any, absolute: Array, inside: tuple[int, ...]) -> Array:
    """The largest of numbers that are not negative, over the axes given, which stay with extent 1. There are some.

    Their bits are compared, as integers: NumPy is twice as fast with these,
    and four times where every second number meets its neighbour.
    """
    bits = absolute.view(xp.int32)
    if xp is np and absolute.flags.c_contiguous and bits.ndim - 1 in inside:
        while bits.shape[-1] % 2 == 0:
            flat = bits.reshape(-1)
            bits = np.maximum(flat[0::2], flat[1::2]).reshape(*bits.shape[:-1], bits.shape[-1] // 2)
    return bits.max(axis=inside, keepdims=True).view(FLOAT32)
