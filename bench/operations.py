"""One table of all operations: how each is called, what dtypes it takes and gives, and operands that go together.

`gpu_check` runs it on a GPU. The laws of the tests that hold for every
operation run over it too, and compare it with the public names of
`engine.ops`: an operation that nobody entered fails.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from engine import Tensor, ops

FLOATS = tuple(np.dtype(kind) for kind in ("float32", "float64", "float16", ml_dtypes.bfloat16))
INTS = tuple(np.dtype(name) for name in ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"))
BOOL = np.dtype("bool")

Takes = Literal["floats", "numbers", "bools", "all"]
Gives = Literal["same", "bool", "int64", "sum"]

TAKEN: dict[Takes, tuple[Any, ...]] = {
    "floats": FLOATS, "numbers": (*FLOATS, *INTS), "bools": (BOOL,), "all": (*FLOATS, *INTS, BOOL),
}  # fmt: skip


@dataclass(frozen=True)
class Free:
    """An operand of the dtype that the case is run with."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Positive(Free):
    """The same, of values above 0."""


@dataclass(frozen=True)
class Indices:
    """An operand of int64 from 0 up to, without, `extent`."""

    shape: tuple[int, ...]
    extent: int


@dataclass(frozen=True)
class Mask:
    """A bool operand."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One way to call an operation."""

    name: str
    call: Callable[..., Any]
    operands: Sequence[Free | Indices | Mask]
    takes: Takes = "all"
    gives: Gives = "same"

    def tensors(self, dtype: Any, seed: int = 0) -> list[Tensor]:
        """Operands on ``cpu:0``."""
        return [Tensor.from_numpy(_array(kind, dtype, seed + at), "cpu:0") for at, kind in enumerate(self.operands)]

    def results(self, operands: Sequence[Tensor]) -> list[Tensor]:
        """What the call gives, as a list."""
        result = self.call(*operands)
        return [result] if isinstance(result, Tensor) else list(result)

    def gives_dtype(self, dtype: Any) -> Any:
        """The dtype of the results."""
        if self.gives == "same" or (self.gives == "sum" and dtype != BOOL):
            return dtype
        return BOOL if self.gives == "bool" else np.dtype("int64")


def _array(kind: Free | Indices | Mask, dtype: Any, seed: int) -> Any:
    if isinstance(kind, Indices):
        return np.random.default_rng(seed).integers(0, kind.extent, kind.shape)
    if isinstance(kind, Mask):
        return np.random.default_rng(seed).random(kind.shape) < 0.7
    array = _drawn(kind.shape, dtype, seed)
    if isinstance(kind, Positive) and dtype != BOOL:
        array = np.abs(array) + np.ones((), dtype)
    return array.astype(dtype)


def _drawn(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> NDArray[Any]:
    """Random numbers that a dtype holds: normal times 2, small integers, or booleans."""
    generator = np.random.default_rng(seed)
    if dtype == BOOL:
        return generator.random(shape) < 0.5
    if dtype in INTS:
        return generator.integers(0 if dtype.kind == "u" else -9, 10, shape).astype(dtype)
    return np.asarray(generator.standard_normal(shape) * 2).astype(dtype)


A, ROW = Free((2, 3, 4)), Free((4,))
P = Positive((2, 3, 4))


def _unary(names: str, takes: Takes, gives: Gives = "same") -> list[Case]:
    return [Case(name, getattr(ops, name), (P if name in _OF_POSITIVE else A,), takes, gives) for name in names.split()]


def _binary(names: str, takes: Takes, gives: Gives = "same") -> list[Case]:
    return [
        Case(name, getattr(ops, name), (operand, ROW if operand is A else Positive((4,))), takes, gives)
        for name in names.split()
        for operand in (P if name in _OF_POSITIVE else A,)
    ]


def _reduction(names: str, takes: Takes, gives: Gives = "same") -> list[Case]:
    settings: list[dict[str, Any]] = [{}, {"axis": 1}, {"axis": -1, "keepdims": True}]
    return [
        Case(name, partial(getattr(ops, name), **kw), (A,), takes, gives) for name in names.split() for kw in settings
    ]


_OF_POSITIVE = frozenset(["divide", "floor_divide", "remainder", "power", "log", "sqrt", "rsqrt", "reciprocal"])

HEADS = {"q": (2, 4, 3, 6), "k": (2, 2, 5, 6), "v": (2, 2, 5, 7)}

CASES: list[Case] = [
    *_unary("negative absolute square relu", "numbers"),
    *_unary("exp log sqrt rsqrt sin cos tanh reciprocal erf sigmoid silu gelu softplus", "floats"),
    *_unary("logical_not", "bools"),
    *_unary("softmax log_softmax logsumexp", "floats"),
    *_unary("tril transpose", "all"),
    *_binary("add subtract multiply floor_divide remainder power", "numbers"),
    *_binary("divide", "floats"),
    *_binary("maximum minimum", "all"),
    *_binary("equal not_equal less less_equal greater greater_equal", "all", "bool"),
    *_binary("logical_and logical_or", "bools"),
    *_reduction("sum prod", "all", "sum"),
    *_reduction("mean var", "floats"),
    *_reduction("max min", "all"),
    *_reduction("argmax argmin", "all", "int64"),
    *_reduction("any all", "bools"),
    Case("cumsum", lambda x: ops.cumsum(x, 1), (A,), "all", "sum"),
    Case("gelu", lambda x: ops.gelu(x, "tanh"), (A,), "floats"),
    Case("swiglu", ops.swiglu, (Free((3, 4)),), "floats"),
    Case("clip", lambda x: ops.clip(x, 0, 2), (A,), "numbers"),
    Case("where", ops.where, (Mask((2, 1, 4)), A, ROW)),
    Case("cast", lambda x: ops.cast(x, x.dtype), (A,)),
    Case("matmul", ops.matmul, (Free((2, 3, 4)), Free((4, 5))), "numbers"),
    Case("matmul", ops.matmul, (Free((2, 3, 4)), Free((2, 4, 5))), "numbers"),
    Case("matmul", ops.matmul, (Free((4,)), Free((4,))), "numbers"),
    Case("linear", ops.linear, (Free((2, 3, 4)), Free((4, 5)), Free((5,))), "numbers"),
    Case("linear", ops.linear, (Free((1, 4)), Free((4, 5))), "numbers"),
    Case("reshape", lambda x: ops.reshape(x, 4, -1), (A,)),
    Case("swap_axes", lambda x: ops.swap_axes(x, 0, -1), (A,)),
    Case("broadcast_to", lambda x: ops.broadcast_to(x, (5, 2, 3, 4)), (Free((2, 1, 4)),)),
    Case("concatenate", lambda *x: ops.concatenate(x, 1), (A, Free((2, 1, 4)), A)),
    Case("stack", lambda *x: ops.stack(x, -1), (A, A)),
    Case("split", lambda x: ops.split(x, (1, 0, 2), 1), (A,)),
    Case("index", lambda x: ops.index(x, (slice(None), 1, slice(None, None, 2))), (A,)),
    Case("index", ops.index, (A, Indices((3,), 2))),
    Case("take", lambda x, i: ops.take(x, i, 1), (A, Indices((2, 2), 3))),
    Case("embedding", ops.embedding, (Free((7, 4)), Indices((2, 3), 7))),
    Case("gather", lambda x, i: ops.gather(x, i, 1), (A, Indices((2, 5, 4), 3))),
    Case(
        "scatter_add",
        lambda x, i, v: ops.scatter_add(x, i, v, 1),
        (A, Indices((2, 5, 4), 3), Free((2, 5, 4))),
        "numbers",
    ),
    Case("layer_norm", ops.layer_norm, (A, ROW, ROW), "floats"),
    Case("layer_norm", ops.layer_norm, (A, ROW), "floats"),
    Case("rms_norm", ops.rms_norm, (A, ROW), "floats"),
    Case("batch_norm", ops.batch_norm, (A, Free((3,)), Positive((3,)), Free((3,)), Free((3,))), "floats"),
    Case("batch_statistics", ops.batch_statistics, (A,), "floats"),
    Case("rope", ops.rope, (Free((2, 3, 6)), Free((9, 3)), Free((9, 3))), "floats"),
    Case(
        "rope",
        lambda x, cos, sin, p: ops.rope(x, cos, sin, positions=p, interleaved=True),
        (Free((2, 3, 6)), Free((9, 3)), Free((9, 3)), Indices((3,), 9)),
        "floats",
    ),
    Case(
        "attention",
        lambda q, k, v, mask: ops.attention(q, k, v, mask, causal=True),
        (Free(HEADS["q"]), Free(HEADS["k"]), Free(HEADS["v"]), Mask((2, 1, 1, 5))),
        "floats",
    ),
    Case("attention", ops.attention, (Free(HEADS["q"]), Free(HEADS["k"]), Free(HEADS["v"])), "floats"),
    Case(
        "conv2d",
        lambda x, w, b: ops.conv2d(x, w, b, stride=2, padding=1, groups=2),
        (Free((2, 4, 5, 6)), Free((6, 2, 3, 2)), Free((6,))),
        "floats",
    ),
    Case("max_pool2d", lambda x: ops.max_pool2d(x, 2, padding=1), (Free((2, 3, 5, 6)),), "floats"),
    Case("cross_entropy", ops.cross_entropy, (Free((2, 3, 4)), Indices((2, 3), 4)), "floats"),
    Case("mse", ops.mse, (A, A), "floats"),
]
