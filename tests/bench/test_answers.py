"""Comparisons of what two sides computed."""

import numpy as np
import pytest

from bench.answers import AnswerError, check_close, check_same, check_same_bits


def test_equal_answers_pass() -> None:
    check_same("x", [1, 2], [1, 2], [1, 2])
    check_same_bits("x", np.arange(3), np.arange(3))
    check_close("x", 0.1, [1.0, 2.0], np.array([1.05, 1.95], np.float32))
    check_close("x", 0.0, np.zeros(0), np.zeros(0))


def test_different_answers_are_refused_by_name() -> None:
    with pytest.raises(AnswerError, match=r"decoding: .*\[1\] and \[2\]"):
        check_same("decoding", [1], [1], [2])
    for other in (np.arange(3.0), np.arange(4), np.array([[0, 1, 2]]), np.array([0, 1, 3])):
        with pytest.raises(AnswerError, match="product"):
            check_same_bits("product", np.arange(3), other)
    with pytest.raises(AnswerError, match="bits"):
        check_same_bits("zero", np.array([0.0]), np.array([-0.0]))


@pytest.mark.parametrize("other", [[1.2, 2.0], [1.0, float("nan")], [1.0], [[1.0, 2.0]]])
def test_answers_further_apart_than_the_tolerance_are_refused(other: list[float]) -> None:
    with pytest.raises(AnswerError, match="logits"):
        check_close("logits", 0.1, [1.0, 2.0], other)
