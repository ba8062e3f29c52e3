"""What a gradient is: of its operand's shape, dtype and device, plain, dense, read-only; and exact to its dtype."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Device
from tests.engine.comparison import eps, exact, is_dense
from tests.engine.differentiable import ENTRIES, NAMES
from tests.engine.differentiable_inputs import Entry, one_in, pooled
from tests.engine.strategies import FLOATS, HALVES

each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=NAMES)
seeds = st.integers(0, 2**32 - 1)


@each_entry
@one_in(20)
@given(data=st.data(), seed=seeds, dtype=st.sampled_from(FLOATS))
def test_a_gradient_is_like_its_operand(entry: Entry, data: st.DataObject, seed: int, dtype: Any) -> None:
    """M73, DESIGN: the operand's shape and dtype, on its device without autodiff, dense and read-only.

    In float16 and bfloat16 it is the float32 gradient of the same numbers, and in float32 that of float64, within
    some roundings: of the result, which a gradient may be computed from, and of itself.
    """
    at = data.draw(entry.inputs).cast(dtype)
    cotangents = [w.astype(dtype) for w in pooled(np.random.default_rng(seed), entry.values(at))]
    found = entry.gradients(at, cotangents)
    wide = np.dtype("float32" if dtype in HALVES else "float64")
    reference = entry.gradients(at.cast(wide), cotangents)

    largest = max([float(np.abs(w.astype(np.float64)).max(initial=0)) for w in cotangents], default=0.0)
    for position, gradient, more_exact in zip(at.floats, found, reference, strict=True):
        assert gradient.shape == at.arrays[position].shape
        assert gradient.dtype == dtype
        assert gradient.device == Device("cpu:0")
        assert not gradient.device.is_autodiff
        assert not gradient.is_tracked
        assert is_dense(gradient._data)
        assert not gradient._data.flags.writeable
        size = max(largest, float(np.abs(exact(more_exact)).max(initial=0)))
        np.testing.assert_allclose(exact(gradient), exact(more_exact), rtol=0, atol=16 * eps(dtype) * size)
