"""Handwritten digits from the package scikit-learn: 1,797 images of 8 × 8 pixels, and which digit each one shows."""

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from examples.packages import library

_BRIGHTEST = 16  # the value of a white pixel in the data set
_TEST_EVERY = 5


class Digits(NamedTuple):
    """Images and labels.

    Attributes:
        images: float32 [images, 8, 8], from 0 for black to 1 for white.
        labels: int64 [images], from 0 to 9.
    """

    images: NDArray[Any]
    labels: NDArray[Any]

    @classmethod
    def load(cls) -> Self:
        """All of them, in the order of the data set.

        Raises:
            UsageError: scikit-learn is not installed.
        """
        found = library("sklearn.datasets").load_digits()
        return cls((found.images / _BRIGHTEST).astype(np.float32), found.target.astype(np.int64))

    def parts(self) -> tuple[Self, Self]:
        """Those to train with, and those to test with: every fifth one."""
        is_test = np.arange(len(self.labels)) % _TEST_EVERY == _TEST_EVERY - 1
        return self._at(~is_test), self._at(is_test)

    def _at(self, places: NDArray[Any]) -> Self:
        return type(self)(self.images[places], self.labels[places])
