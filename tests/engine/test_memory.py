"""What no memory can hold is refused by the device's name, and what no array can be as a shape."""

from typing import Any

import numpy as np
import pytest

from engine import (
    Device,
    DeviceError,
    ShapeError,
    Tensor,
    arange,
    causal_mask,
    full,
    ones,
    ops,
    randn,
    rotary_tables,
    transfer,
    uniform,
    zeros,
)

CPU = "cpu:3"
TOO_MUCH = 2**46  # elements: of float32 2⁴⁸ bytes, more than a process can address, but not more than a number says


def large() -> Tensor:
    """A tensor of TOO_MUCH elements over the memory of one."""
    return Tensor._make(np.broadcast_to(np.zeros(1, "float32"), (TOO_MUCH,)), Device(CPU))


@pytest.mark.parametrize(
    ("make", "nbytes"),
    [
        (lambda: zeros((TOO_MUCH,), device=CPU), 4 * TOO_MUCH),
        (lambda: ones((2, TOO_MUCH), device=CPU, dtype="float64"), 16 * TOO_MUCH),
        (lambda: full((TOO_MUCH,), 2, device=CPU, dtype="int16"), 2 * TOO_MUCH),
        (lambda: arange(TOO_MUCH, device=CPU), 8 * TOO_MUCH),
        (lambda: arange(0, TOO_MUCH, device=CPU, dtype="float32"), 8 * TOO_MUCH),
        (lambda: causal_mask(1, TOO_MUCH, device=CPU), 8 * TOO_MUCH),
        (lambda: rotary_tables(TOO_MUCH, 2, device=CPU), 8 * TOO_MUCH),
        (lambda: randn((TOO_MUCH,), seed=0, device=CPU), 4 * TOO_MUCH),
        (lambda: uniform((TOO_MUCH,), seed=0, device=CPU), 4 * TOO_MUCH),
        (lambda: transfer.copy([large()], CPU.replace("3", "4")), 4 * TOO_MUCH),
        (lambda: Tensor.from_numpy(large()._data, CPU), 4 * TOO_MUCH),
    ],
)
def test_what_memory_cannot_hold_names_the_device_and_the_bytes(make, nbytes):
    with pytest.raises(DeviceError, match=rf"^cpu:[34] is out of memory \(asked for {nbytes:,} bytes\)") as found:
        make()
    assert isinstance(found.value.__cause__, MemoryError)


def test_an_operation_without_memory_names_itself_the_shapes_and_the_device():
    x = zeros((2, 1), device=CPU)
    nbytes = rf"{8 * TOO_MUCH:,} bytes"
    with pytest.raises(DeviceError, match=rf"broadcast_to of shapes \(2, 1\): cpu:3 is out of memory.*{nbytes}"):
        ops.broadcast_to(x, (2, TOO_MUCH))
    with pytest.raises(DeviceError, match=r"add of shapes \(70368744177664,\), \(1,\): cpu:3 is out of memory"):
        ops.add(large(), zeros((1,), device=CPU))


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((2**63,), "more bytes"),
        ((2**200,), "more bytes"),
        ((2**40, 2**40), "more bytes"),
        ((0, 2**62), "more bytes"),
        ((1,) * 65, "65 axes"),
        ((0,) * 65, "65 axes"),
    ],
    ids=["2**63", "2**200", "2**80", "none of many", "65 ones", "65 zeros"],
)
def test_a_shape_that_no_array_can_have_is_refused(shape, why):
    makers: dict[str, Any] = {
        "zeros": zeros,
        "ones": ones,
        "full": lambda shape, **given: full(shape, 1, **given),
        "randn": lambda shape, **given: randn(shape, seed=0, **given),
        "uniform": lambda shape, **given: uniform(shape, seed=0, **given),
    }
    for name, make in makers.items():
        with pytest.raises(ShapeError, match=f"^{name}: .*{why}"):
            make(shape, device=CPU)


def test_the_widest_shapes_that_arrays_can_have_are_taken():
    assert zeros((1,) * 64, device=CPU).ndim == 64
    assert zeros((0, 2**60 - 1), device=CPU, dtype="float64").size == 0


def test_counts_that_no_array_can_have_are_refused():
    for count in (lambda: arange(2**62, device=CPU), lambda: arange(0, 1e300, device=CPU, dtype="float32")):
        with pytest.raises(ShapeError, match="arange: "):
            count()
    with pytest.raises(ShapeError, match="causal_mask: "):
        causal_mask(2**40, 2**40, device=CPU)
