"""The backward pass itself: copies, fan-out over devices, release, depth, and what is refused."""

import gc
import subprocess
import sys
import threading
import weakref
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import (
    AutodiffError,
    Device,
    DeviceMismatchError,
    DTypeError,
    Gradients,
    ShapeError,
    Tensor,
    ops,
    tensor,
    transfer,
)
from tests.laws.law import inside

DEVICES = [f"cpu:{index}" for index in range(3)]


def leaf(values: object, device: str = "cpu:0") -> Tensor:
    return tensor(values, device=f"{device}+autodiff", dtype="float64").require_grad()


def read(value: Tensor | None) -> list[float]:
    assert value is not None
    return value.to_device("cpu:0").numpy().tolist()


@inside("L111")
@given(st.lists(st.sampled_from(DEVICES), min_size=1, max_size=6))
def test_the_gradient_of_a_copy_is_the_copy_back_and_is_logged(path: list[str]) -> None:
    """L111, P37: along any chain of devices, the same bits arrive at the source by as many copies as went out."""
    x = leaf([1.5, -0.0, 3.0], path[0])
    cotangent = np.array([-0.0, np.inf, 2.5e-320])
    y = x
    for device in path:
        y = y.to_device(device)

    with transfer.log() as log:
        gradients = y.backward(Tensor.from_numpy(cotangent, path[-1]))

    gradient = x.grad(gradients)
    assert gradient is not None
    assert gradient.tobytes() == cotangent.tobytes()
    assert gradient.device == Device(path[0])
    assert not gradient.device.is_autodiff
    assert log.copies == sum(a != b for a, b in pairwise(path))
    assert log.nbytes == log.copies * cotangent.nbytes
    for a, b in pairwise(path):
        assert a == b or log[Device(b), Device(a), "host"].copies > 0


@inside("L109")
@given(st.lists(st.sampled_from(DEVICES), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_fan_out_along_devices_adds_in_the_order_of_one_device(path: list[str], seed: int) -> None:
    """L109, P59: what is used at each stop of a way gets the bits that the unsplit graph gives it."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(3)
    factors = rng.standard_normal((len(path), 2, 3))

    def gradient(way: list[str]) -> bytes:
        start = value = leaf(x.tolist(), way[0])
        total: Tensor | None = None
        for device, pair in zip(way, factors, strict=True):
            value = value.to_device(device)
            for factor in pair:
                part = value * Tensor.from_numpy(factor, device)
                total = part if total is None else total.to_device(device) + part
        assert total is not None
        found = start.grad(total.backward(Tensor.from_numpy(np.ones(3), way[-1])))
        assert found is not None
        assert found.device == Device(way[0])
        return found.tobytes()

    assert gradient(path) == gradient(["cpu:0"] * len(path))


@inside("L111")
def test_a_batch_copied_at_once_pulls_each_gradient_back() -> None:
    """L111, D7: a tensor that stands twice in a batch is one copy, and gets the sum of what its uses send."""
    x, y = leaf([1.0, 2.0]), leaf([3.0], "cpu:1")
    a, b, again = transfer.copy([x, y, x], "cpu:2")
    assert a is again

    gradients = ops.sum(a * 3.0 + again * b).backward()

    assert read(x.grad(gradients)) == [6.0, 6.0]
    assert read(y.grad(gradients)) == [3.0]


@inside("L112")
def test_cuts_stop_gradients() -> None:
    """L112, M70 to M74: what is detached, switched off or plain is a constant; an unused leaf is absent, not zero."""
    x, unused = leaf([2.0]), leaf([5.0])
    for constant in (
        x.detach().set_require_grad(False),
        x.set_require_grad(False),
        x.without_autodiff(),
        (x * x).detach(),
    ):
        value = x * constant
        gradients = value.backward()
        assert read(x.grad(gradients)) == constant.numpy().tolist()
        assert constant.grad(gradients) is None
        assert unused.grad(gradients) is None
        assert len(gradients) == 1
    assert not (x.without_autodiff() * x.without_autodiff()).is_tracked
    untracked = x.set_require_grad(False) * 2.0
    assert untracked.device.is_autodiff
    assert not untracked.is_tracked


@inside("L113")
def test_a_released_graph_is_refused_and_nothing_else_is_released() -> None:
    """L113: a second pass over any released part names the operation, and leaves the part that is whole usable."""
    x = leaf([1.0, 2.0])
    shared = x * x
    first, second, other = ops.sum(shared), ops.sum(shared * 3.0), ops.sum(x * 5.0)
    first.backward()
    with pytest.raises(AutodiffError, match=r"released by an earlier backward"):
        first.backward()
    with pytest.raises(AutodiffError, match=r"multiply was released"):
        (second + other).backward()
    assert read(x.grad(other.backward())) == [5.0, 5.0]


@inside("L113")
def test_a_copy_that_is_good_for_one_pass_says_to_fork() -> None:
    """M41, M42: what to_device moves is a recorded copy; of other operations nothing of that is said."""
    moved, squared = leaf([1.0]).to_device("cpu:1"), ops.square(leaf([1.0]))
    for shared, is_copy in ((moved, True), (squared, False)):
        ops.sum(shared * 2.0).backward()
        with pytest.raises(AutodiffError, match="released by an earlier backward") as raised:
            ops.sum(shared * 3.0).backward()
        assert ("moved by to_device is no leaf any more: use fork" in str(raised.value)) == is_copy


@inside("L113")
def test_backward_from_what_is_not_tracked_is_refused() -> None:
    """L113: a value that needs no gradient says which kind it is."""
    plain = tensor([1.0], device="cpu:0")
    with pytest.raises(
        AutodiffError, match=r"on a device without autodiff.*train\(\).*autodiff\(\) and require_grad\(\)"
    ):
        plain.backward()
    with pytest.raises(AutodiffError, match=r"is not tracked.*train\(\).*unfreeze\(\).*require_grad\(\)"):
        plain.autodiff().backward()
    with pytest.raises(AutodiffError, match="is not tracked"):
        (leaf([1.0]) > 0.0).backward()


def test_a_cotangent_is_of_the_tensors_shape_dtype_and_device() -> None:
    """The four things that can be wrong about a cotangent, each with its own error, and the graph stays whole."""
    x = leaf([1.0, 2.0])
    y = x * 3.0
    with pytest.raises(ShapeError, match=r"shape \(2,\) needs a cotangent"):
        y.backward()
    with pytest.raises(ShapeError, match=r"has shape \(1,\); it must be \(2,\)"):
        y.backward(tensor([1.0], device="cpu:0", dtype="float64"))
    with pytest.raises(DTypeError, match="has dtype float32; it must be float64"):
        y.backward(tensor([1.0, 1.0], device="cpu:0"))
    with pytest.raises(DeviceMismatchError, match="is on cpu:1; it must be on cpu:0"):
        y.backward(tensor([1.0, 1.0], device="cpu:1", dtype="float64"))
    with pytest.raises(TypeError, match="ndarray, not a Tensor"):
        y.backward(np.ones(2))  # pyright: ignore[reportArgumentType]
    assert read(x.grad(y.backward(y))) == [9.0, 18.0]  # a tracked cotangent counts by its value


@inside("L113")
def test_ten_thousand_operations_in_a_row_and_their_disposal_need_no_recursion() -> None:
    """L113: neither the pass nor the release of a graph that was never used is as deep as the chain."""
    x = leaf([1.0])
    y = x
    for _ in range(10_000):
        y = y + 1.0
    assert read(x.grad(y.backward())) == [1.0]
    y = x
    for _ in range(50_000):
        y = y + 1.0
    del y
    gc.collect()


@inside("L109", "L113")
def test_a_wide_fan_adds_every_use() -> None:
    """L109, L113: a thousand uses of one value."""
    x = leaf([2.0])
    total = x * 0.0
    for _ in range(1000):
        total = total + x
    assert read(x.grad(total.backward())) == [1000.0]


def test_what_a_step_kept_is_gone_after_the_pass() -> None:
    """The values between are released as the pass goes, though the result is still held."""
    x = leaf([1.0, 2.0])
    between = ops.exp(x)
    kept = weakref.ref(between._node)  # pyright: ignore[reportArgumentType]
    y = ops.sum(between * between)
    del between
    gc.collect()
    assert kept() is not None
    y.backward()
    gc.collect()
    assert kept() is None


@inside("L113")
def test_the_order_of_gradients_does_not_depend_on_the_hash_seed() -> None:
    """L113: sums and order are equal in processes with different hash seeds and object addresses."""
    program = (
        "from engine import tensor, ops, Seed, randn\n"
        "junk = [object() for _ in range({junk})]\n"
        "xs = [randn((3,), seed=n, device='cpu:0+autodiff', dtype='float32').require_grad() for n in range(8)]\n"
        "total = xs[0]\n"
        "for n in range(40): total = total * xs[n % 8] + xs[(n * 5) % 8]\n"
        "print([g.tobytes().hex() for g in ops.sum(total).backward()])\n"
    )
    root = Path(__file__).parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program.format(junk=junk)],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, junk in (("0", 1), ("1", 1000), ("2", 77))
    }
    assert len(outputs) == 1
    assert "00" in outputs.pop()


@inside("L113")
def test_one_of_two_threads_gets_the_gradients_of_a_shared_graph() -> None:
    """L113 under threads: each pass is whole or refused, and exactly one is whole."""
    for _ in range(20):
        x = leaf([1.0, 2.0])
        y = x
        for _ in range(50):
            y = y * 1.0
        y = ops.sum(y)
        barrier, results = threading.Barrier(2), []

        def run(y: Tensor = y, x: Tensor = x, barrier: threading.Barrier = barrier, results: list = results) -> None:  # pyright: ignore[reportMissingTypeArgument]
            barrier.wait()
            try:
                results.append(read(x.grad(y.backward())))
            except AutodiffError as error:
                results.append(str(error))

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (refusal,) = (result for result in results if result != [1.0, 1.0])
        assert len(results) == 2
        assert "released by an earlier backward" in refusal


def test_gradients_of_two_passes_are_added() -> None:
    """Micro-batches: `+` adds per leaf, and keeps the leaves that only one pass met."""
    x, y = leaf([1.0]), leaf([2.0], "cpu:1")
    first = (x * 3.0).backward()
    second = (x.to_device("cpu:1") * y).backward()

    both = first + second

    assert (len(first), len(second), len(both)) == (1, 2, 2)
    assert read(x.grad(both)) == [5.0]
    assert read(y.grad(both)) == [1.0]
    assert read(x.grad(first)) == [3.0]
    assert [gradient.device for gradient in both] == [Device("cpu:0"), Device("cpu:1")]
    with pytest.raises(TypeError):
        first + 1  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]


def test_map_gives_new_gradients_of_the_same_form() -> None:
    """`map` leaves the ones it was called on, and refuses another shape, dtype, device or type."""
    x = leaf([1.0, 2.0])
    gradients = ops.sum(x * x).backward()

    assert read(x.grad(gradients.map(lambda g: g * 0.5))) == [1.0, 2.0]
    assert read(x.grad(gradients)) == [2.0, 4.0]
    with pytest.raises(ShapeError):
        gradients.map(ops.sum)
    with pytest.raises(DTypeError):
        gradients.map(lambda g: g.cast("float32"))
    with pytest.raises(DeviceMismatchError):
        gradients.map(lambda g: g.to_device("cpu:1"))
    with pytest.raises(TypeError, match="float, not a Tensor"):
        gradients.map(lambda g: 1.0)  # pyright: ignore[reportArgumentType, reportReturnType]
    assert isinstance(gradients, Gradients)
    assert "1 leaves" in repr(gradients)
