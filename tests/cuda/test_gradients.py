"""Every gradient is computed on a GPU's arrays as on a CPU's. This ran over a fake CuPy and not on a GPU.

As for the operations themselves (`test_ops.py`), it shows that a pull-back
uses nothing that CuPy lacks, stays on the device, and reads nothing that it
did not write.
"""

from typing import Any

import numpy as np
import pytest

from tests.engine.comparison import is_dense, same_bits
from tests.engine.differentiable import ENTRIES, NAMES
from tests.engine.differentiable_inputs import Entry, pooled
from tests.engine.strategies import BFLOAT16
from tests.fake_cupy import Machine
from tests.independent_draws import drawn


@pytest.mark.parametrize("entry", ENTRIES, ids=NAMES)
def test_a_gradient_on_a_gpu_is_that_on_a_cpu(machine: Machine, entry: Entry) -> None:
    """One code path: same bits, dense, on the device of the operands and on no other."""
    dtypes: list[Any] = [np.float64, np.float32, BFLOAT16]
    for dtype, at in zip(dtypes, drawn(entry.anywhere, len(dtypes)), strict=False):
        given = at.cast(dtype)
        cotangents = [w.astype(dtype) for w in pooled(np.random.default_rng(0), entry.values(given))]
        pairs = zip(entry.gradients(given, cotangents, "cuda:1"), entry.gradients(given, cotangents), strict=True)
        for found, expected in pairs:
            assert str(found.device) == "cuda:1"
            assert is_dense(found._data)
            assert same_bits(found, expected)
    assert not any(memory.total for at, memory in enumerate(machine.memories) if at != 1)
