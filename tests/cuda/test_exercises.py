"""The CUDA backend does all its exercises. This ran over a fake CuPy and not on a GPU."""

import warnings

import pytest

from tests.fake_cupy import Machine, installed

from .exercises import EXERCISES, Exercise


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: f"{exercise.run.__name__}-{exercise.settings}")
def test_the_backend_does_its_exercise(exercise: Exercise) -> None:
    """C1 to C8; each exercise says which rule it is about."""
    with installed(Machine(**exercise.settings)) as machine, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        exercise.run(machine)
