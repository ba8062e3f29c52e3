"""What the laws of differentiation draw is what they say: often enough of each form, and away from kinks."""

from itertools import pairwise

import numpy as np

from tests.engine.differentiable_inputs import (
    Inputs,
    alike,
    axes,
    choice,
    distinct,
    elementwise,
    extents,
    inputs,
    odd,
    plain,
    shifted,
)
from tests.independent_draws import drawn, share


def _shapes(given: Inputs) -> list[tuple[int, ...]]:
    return [array.shape for array in given.arrays]


def test_operands_have_every_form_often_enough():
    """Spec, section 5: zero extents in about one of eight; rank 0, broadcasting and other memory orders too."""
    found = drawn(elementwise(plain, plain))
    assert 0.03 < share(found, lambda given: 0 in sum(_shapes(given), ())) < 0.3
    assert share(found, lambda given: () in _shapes(given)) > 0.1
    assert share(found, lambda given: len(set(_shapes(given))) > 1) > 0.3
    assert share(found, lambda given: len({len(shape) for shape in _shapes(given)}) > 1) > 0.2
    assert share(found, lambda given: any(not array.flags.c_contiguous for array in given.arrays)) > 0.1
    assert share(found, lambda given: all(array.size > 1 for array in given.arrays)) > 0.15


def test_reductions_are_over_all_some_and_no_axes():
    found = drawn(inputs(alike(extents()), plain, axis=axes, keepdims=choice(False, True)))
    assert share(found, lambda given: given.settings["axis"] is None) > 0.1
    assert share(found, lambda given: given.settings["axis"] == ()) > 0.1
    assert share(found, lambda given: isinstance(given.settings["axis"], int)) > 0.1
    assert share(found, lambda given: isinstance(given.settings["axis"], tuple) and len(given.settings["axis"]) > 1) > (
        0.05
    )


def test_numbers_keep_away_from_kinks_and_fit_every_dtype():
    """None is 0 or 1, no two `distinct` ones are near, no `odd` one is near a multiple of a `plain` one."""
    generator = np.random.default_rng(0)
    one, other = plain(generator, (1000,), ()), shifted(generator, (1000,), ())
    assert min(abs(one).min(), abs(abs(one) - 1).min()) >= 0.25
    assert abs(one[:, None] - other).min() >= 0.125
    ratios = odd(generator, (1000, 1), ()) / one
    assert abs(ratios - np.round(ratios)).min() > 0.02
    for shape in ((), (3,), (2, 3), (4, 4, 4)):
        numbers = np.sort(distinct(generator, shape, ()).ravel())
        assert numbers.size == np.prod(shape, dtype=int)
        assert all(abs(a - b) >= 0.125 for a, b in pairwise(numbers))
        assert abs(numbers).min() >= 1 / 16
        assert (numbers.astype("float16") == numbers).all()
