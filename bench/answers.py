"""Whether two sides of a comparison computed the same answer: a time for something else would mean nothing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class AnswerError(RuntimeError):
    """Two sides of a comparison computed different things."""


def check_same(what: str, *answers: Any) -> None:
    """Check that answers are equal.

    Raises:
        AnswerError: two are not.
    """
    for other in answers[1:]:
        if other != answers[0]:
            raise AnswerError(f"{what}: the sides computed different things, {answers[0]!r:.80} and {other!r:.80}")


def check_same_bits(what: str, *answers: NDArray[Any]) -> None:
    """Check that arrays agree in dtype, shape and every bit.

    Raises:
        AnswerError: two do not.
    """
    first = answers[0]
    for other in answers[1:]:
        if (first.dtype, first.shape) != (other.dtype, other.shape) or first.tobytes() != other.tobytes():
            raise AnswerError(f"{what}: the sides computed different bits")


def check_close(what: str, tolerance: float, *answers: NDArray[Any] | Sequence[float]) -> None:
    """Check that arrays of one shape differ nowhere by more than `tolerance`.

    Raises:
        AnswerError: two do.
    """
    first = np.asarray(answers[0], np.float64)
    for answer in answers[1:]:
        other = np.asarray(answer, np.float64)
        if other.shape != first.shape:
            raise AnswerError(f"{what}: the sides computed shapes {first.shape} and {other.shape}")
        difference = np.abs(first - other).max(initial=0.0)
        if not difference <= tolerance:
            raise AnswerError(f"{what}: the sides differ by {difference:.3g}, more than {tolerance:g}")
