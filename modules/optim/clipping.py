"""Gradients made smaller before a step: all of them together by their norm, or each element by its size."""

import math
from typing import Any

from engine import Gradients, ops
from engine.primitive import quiet
from engine.updates import sums_of_squares

from .setting import above_zero


def clip_norm(gradients: Gradients, limit: float) -> Gradients:
    """The gradients, all scaled by one factor if their norm exceeds a limit; the same ones if it does not.

    The norm is the square root of the sum of the squares of all elements of
    all gradients, on whichever devices they lie: each gradient's sum is worked
    out in float64 where it lies, and the sums are added exactly on the host.
    So a split model's norm is that of the whole model, bit for bit. A norm
    that is no number makes the gradients so.

    Args:
        gradients: of a loss.
        limit: of the norm; above 0.

    Raises:
        ModuleError: `limit` is no such number.
        TypeError: `gradients` are no Gradients.

    Source: R. Pascanu, T. Mikolov, Y. Bengio, "On the difficulty of training recurrent neural networks" (2013),
    algorithm 1, over all parameters.
    """
    _check("clip_norm", gradients)
    bound = above_zero("clip_norm: limit", limit)
    sums = sums_of_squares(list(gradients))
    norm = math.sqrt(math.fsum(sums)) if all(map(math.isfinite, sums)) else math.sqrt(sum(sums))
    if norm <= bound:
        return gradients
    with quiet():
        return gradients.map(lambda gradient: gradient * (bound / norm))


def clip_value(gradients: Gradients, limit: float) -> Gradients:
    """The gradients, each element brought into the range from −`limit` to `limit`; NaN stays.

    Args:
        gradients: of a loss.
        limit: above 0.

    Raises:
        ModuleError: `limit` is no such number.
        TypeError: `gradients` are no Gradients.
    """
    _check("clip_value", gradients)
    bound = above_zero("clip_value: limit", limit)
    return gradients.map(lambda gradient: ops.clip(gradient, -bound, bound))


def _check(name: str, gradients: Any) -> None:
    if not isinstance(gradients, Gradients):
        raise TypeError(f"{name} takes the Gradients that backward() gives, not a {type(gradients).__qualname__}")
