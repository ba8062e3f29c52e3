"""`LayerMemory.of`: a model's layers measured by shapes and dtypes, before any value exists."""

import pytest

from engine import Device, Tensor, zeros
from modules import Module, Param, RunningState
from modules.parallel import LayerMemory, OutputMemory, PlacementError
from tests.parallel.small_models import Apply, Chain


class Lazy(Module):
    """Parameters of given shapes and dtypes that must not be made, and what else has bytes."""

    def __init__(self, *params: Param, constant: Tensor | None = None) -> None:
        self.params = list(params)
        self.constant = constant
        self.mean = None if constant is None else RunningState(zeros((2,), device="cpu:0"))

    def forward(self, x: Tensor) -> Tensor:
        return x


def lazy(shape: tuple[int, ...], dtype: str) -> Param:
    def init(device: Device, require_grad: bool) -> Tensor:
        raise AssertionError("measuring makes nothing")

    return Param.lazy(init, shape, dtype, "cpu:0")


def test_bytes_are_those_of_all_tensors_of_a_layer() -> None:
    """DESIGN: by shapes and dtypes; parameters of any kind, running states, constants; no layer without tensors."""
    constant = zeros((5,), device="cpu:0", dtype="float16")
    model = Chain(
        Lazy(lazy((10, 4), "float32"), lazy((3,), "int64")),
        [
            Lazy(lazy((2, 2), "bfloat16"), constant=constant),
            Apply(lambda s: s),
            Lazy(lazy((), "float64"), lazy((0, 9), "float32")),
        ],
        Lazy(lazy((7,), "bool")),
    )
    expected = LayerMemory(160 + 24, [8 + 10 + 8, 0, 8], OutputMemory.after_hidden(7))
    assert LayerMemory.of(model) == expected


def test_a_tied_output_layer_is_counted_once_on_the_inputs_device() -> None:
    """P23: it runs with the input; what it has besides counts there."""
    tied = lazy((100, 8), "float32")
    model = Chain(Lazy(tied), [Lazy(lazy((8,), "float32"))], Lazy(tied, lazy((8,), "float32")))
    assert LayerMemory.of(model) == LayerMemory(3200, [32], OutputMemory.with_input(32))


def test_a_constant_counts_in_each_layer_that_has_it() -> None:
    """Built by a placement it is there once on each device, so no capacity is ever exceeded (P23h)."""
    table = zeros((6,), device="cpu:0")
    model = Chain(Lazy(), [Lazy(constant=table), Lazy(constant=table)], Lazy())
    assert LayerMemory.of(model) == LayerMemory(0, [24 + 8, 24 + 8], OutputMemory.after_hidden(0))


def test_what_is_no_split_model_is_refused() -> None:
    with pytest.raises(PlacementError, match="Lazy is no LayerParallelism"):
        LayerMemory.of(Lazy())
