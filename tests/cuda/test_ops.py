"""Every operation runs on a GPU's arrays as on a CPU's. This ran over a fake CuPy and not on a GPU.

The fake computes by NumPy, so results agree bit for bit; what it shows is that
an operation uses nothing that CuPy lacks, stays on the device, and reads
nothing that it did not write. Numbers of a real GPU are another matter.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest

from bench.operations import CASES, TAKEN, Case
from engine import (
    Buffer,
    Tensor,
    arange,
    causal_mask,
    full,
    ones,
    ops,
    randn,
    rotary_tables,
    tensor,
    uniform,
    zeros,
)
from engine.dtype import DTYPES
from tests.engine.comparison import is_dense, same_bits
from tests.engine.strategies import in_order
from tests.fake_cupy import Machine

each_case = pytest.mark.parametrize("case", CASES, ids=[f"{case.name}-{at}" for at, case in enumerate(CASES)])


def operands(case: Case) -> Iterator[list[Tensor]]:
    """Operands on the CPU: of each dtype that the operation takes, and in two orders of memory."""
    for dtype in TAKEN[case.takes]:
        plain = case.tensors(dtype)
        yield plain
        yield [in_order(x.numpy(), tuple(reversed(range(x.ndim)))) for x in plain]


@each_case
def test_an_operation_gives_on_a_gpu_what_it_gives_on_a_cpu(machine: Machine, case: Case) -> None:
    """One code path: same shapes, dtypes, bits and dense results, on the device of the operands and on no other."""
    for here in operands(case):
        there = [x.to_device("cuda:1") for x in here]
        for found, expected in zip(case.results(there), case.results(here), strict=True):
            assert str(found.device) == "cuda:1"
            assert is_dense(found._data)
            assert same_bits(found, expected)
    assert [memory.total > 0 for memory in machine.memories] == [False, True, False, False]


X = np.arange(12, dtype="float32").reshape(3, 4) - 5.5
SPECIAL = np.array([0.0, -0.0, 1.5, -1e30, np.inf, -np.inf, np.nan])
SOME_DTYPES = sorted(DTYPES, key=str)


def buffered(device: str) -> Iterator[Tensor]:
    """Views of a buffer as it grows."""
    buffer = Buffer(1)
    for count in (1, 2, 5):
        buffer.append(tensor(np.full((2, count, 3), count, "float32"), device=device))
        yield buffer.view()
        yield buffer.view() * 2.0


def applied(x: Tensor, *functions: Callable[[Tensor], Tensor]) -> list[Tensor]:
    return [function(x) for function in functions]


MORE: dict[str, Callable[[str], Iterable[Tensor]]] = {
    "scalars": lambda at: applied(tensor(X, device=at), lambda x: 2 * x - 1, lambda x: 1 / x, lambda x: x**2 > 3),
    "choices": lambda at: [ops.where(tensor(X > 0, device=at), tensor(X, device=at), 0.0)],
    "casts": lambda at: [tensor(SPECIAL, device=at).cast(a).cast(b) for a in SOME_DTYPES for b in SOME_DTYPES],
    "nothing": lambda at: applied(tensor(X[:0], device=at), ops.sum, ops.exp, ops.softmax, ops.tril, lambda x: x.T),
    "rank 0": lambda at: applied(tensor(X[1, 2], device=at), ops.sum, ops.exp, ops.gelu, ops.max, ops.argmax),
    "slices": lambda at: [tensor(X, device=at)[i] for i in (1, (..., None, -1), (slice(1), slice(None, None, -2)))],
    "creation": lambda at: [
        zeros((2, 3), device=at),
        ones((), device=at, dtype="bfloat16"),
        arange(2, 9, 3, device=at),
    ],
    "full": lambda at: [full((2, 2), 1.5, device=at, dtype=dtype) for dtype in ("float16", "float64", "bfloat16")],
    "draws": lambda at: [randn((3, 5), seed=7, device=at), uniform((4,), -1, 1, seed=8, device=at, dtype="bfloat16")],
    "buffers": buffered,
    "tables": lambda at: [*rotary_tables(9, 6, device=at), causal_mask(3, 5, device=at)],
}


@pytest.mark.parametrize("name", sorted(MORE))
def test_what_the_table_does_not_call_is_the_same_too(machine: Machine, name: str) -> None:
    """Scalars, casts of what does not fit, no elements, rank 0, slices, and what makes tensors."""
    for there, here in zip(MORE[name]("cuda:2"), MORE[name]("cpu:0"), strict=True):
        assert str(there.device) == "cuda:2"
        assert same_bits(there, here)
