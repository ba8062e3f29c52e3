"""Optimizers against PyTorch's: single parameters with given gradients, and a small model trained for five steps.

float64 must agree but for rounding; float32 within the error that PyTorch's own float32 has, and a few roundings.
"""

import json
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from engine import Tensor, ops, tensor
from modules import SGD, Adam, AdamW, Module, Param
from tests.golden_files import golden_file

pytestmark = pytest.mark.golden

CLASSES: Final = {"SGD": SGD, "Adam": Adam, "AdamW": AdamW}
OF_RUN: Final = {
    "sgd": SGD, "sgd_momentum": SGD, "sgd_nesterov_wd": SGD, "adam": Adam, "adam_l2": Adam, "adamw": AdamW,
}  # fmt: skip
ULPS: Final = 16
PRECISIONS: Final = [("f64", "float64"), ("f32", "float32")]


class One(Module):
    """A flat parameter."""

    def __init__(self, value: Tensor) -> None:
        self.p = Param(value)


class Mlp(Module):
    """mean((tanh(x · p0 + p1) · p2 + p3 − t)²)."""

    def __init__(self, values: list[Tensor]) -> None:
        self.p = [Param(value) for value in values]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        p0, p1, p2, p3 = (param.val() for param in self.p)
        return ops.mse(ops.tanh(x @ p0 + p1) @ p2 + p3, t)


def optimizer_of(run: dict[str, Any], kind: Any) -> Any:
    """The optimizer that a run's settings mean, whose names are PyTorch's."""
    settings = {("epsilon" if name == "eps" else name): value for name, value in run.items() if name != "class"}
    return kind(**settings)


def check(what: str, found: NDArray[Any], cases: Any, name: str, precision: str, at: int | None = None) -> None:
    """As near to the float64 values as rounding, and for float32 PyTorch's own error, allows."""
    exact, reference = cases[name.format("f64")], cases[name.format("f32")]
    if at is not None:
        exact, reference = exact[at], reference[at]
    allowed = ULPS * np.finfo(found.dtype).eps * max(np.abs(exact).max(), 1e-3)
    if precision == "f32":
        allowed += 2 * np.abs(reference - exact).max()
    assert np.abs(found - exact).max() <= allowed, f"{what}: off by {np.abs(found - exact).max():.3g}"


@pytest.mark.parametrize(("precision", "dtype"), PRECISIONS)
def test_a_parameter_with_given_gradients_goes_the_reference_s_way(precision, dtype):
    """Five steps of each run."""
    with np.load(golden_file("ops/optimizers.npz")) as cases:
        runs = json.loads(str(cases["meta"]))["runs"]
        assert set(runs) == set(OF_RUN)
        for name, run in runs.items():
            optimizer = optimizer_of(run, CLASSES[run["class"]])
            module = One(tensor(cases["init"].astype(dtype), device="cpu:0+autodiff"))
            for at, gradient in enumerate(cases["grads"]):
                gradients = module.p.val().backward(tensor(gradient.astype(dtype), device="cpu:0"))
                module = optimizer.step(module, gradients)
                found = module.p.val().numpy()
                check(f"{name}, step {at}", found, cases, f"{name}/{{}}/params", precision, at)


@pytest.mark.parametrize("name", OF_RUN)
@pytest.mark.parametrize(("precision", "dtype"), PRECISIONS)
def test_a_model_in_training_goes_the_reference_s_way(name, precision, dtype):
    """The losses of five steps, and the parameters after them."""
    with np.load(golden_file("ops/training.npz")) as cases:
        runs = json.loads(str(cases["meta"]))["runs"]
        assert set(runs) == set(OF_RUN)
        optimizer = optimizer_of(runs[name], OF_RUN[name])
        x, t, *values = (cases[f"in/{part}"].astype(dtype) for part in ("x", "t", "p0", "p1", "p2", "p3"))
        batch = tensor(x, device="cpu:0"), tensor(t, device="cpu:0")
        module = Mlp([tensor(value, device="cpu:0+autodiff") for value in values])
        for at in range(5):
            loss = module(*batch)
            found = np.asarray(float(loss), dtype)
            check(f"{name}, loss {at}", found, cases, f"{name}/{{}}/loss", precision, at)
            module = optimizer.step(module, loss.backward())
        for place, param in enumerate(module.p):
            check(f"{name}, p{place}", param.val().numpy(), cases, f"{name}/{{}}/p{place}", precision)
