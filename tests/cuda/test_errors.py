"""What a GPU that is absent, wrong, full or broken says. This ran over a fake CuPy and not on a GPU."""

import numpy as np
import pytest

from engine import Device, DeviceError, DTypeError, ShapeError, Tensor, ops, tensor, transfer, zeros
from tests.fake_cupy import CUDARuntimeError, Machine, OutOfMemoryError, installed, without_cupy


def test_without_cupy_a_cuda_device_says_what_to_install_and_none_is_available() -> None:
    """Naming a device touches nothing; the first use fails."""
    with without_cupy():
        device = Device("cuda:0")
        assert Device.available("cuda") == []
        for use in (lambda: zeros((2,), device=device), device.memory, device.synchronize, device.__enter__):
            with pytest.raises(DeviceError, match=r"pip install -e '\.\[cuda12\]'.*cuda13"):
                use()
        assert zeros((2,), device="cpu:0").tobytes() == bytes(8)


@pytest.mark.parametrize(("status", "meaning"), [(35, "driver"), (100, "sees no GPU"), (802, "fabric manager")])
def test_without_driver_or_device_the_error_names_status_and_meaning(status: int, meaning: str) -> None:
    """C8, C10: the probe catches every error of CUDA."""
    with installed(Machine(driver=status)):
        assert Device.available("cuda") == []
        with pytest.raises(DeviceError, match=rf"CUDA error {status}: .*{meaning}"):
            tensor([1.0], device="cuda:0")


def test_an_index_that_does_not_exist_says_how_many_there_are() -> None:
    """The machine is asked, not guessed."""
    with installed(Machine(devices=2)):
        assert Device.available("cuda") == [Device("cuda:0"), Device("cuda:1")]
        with pytest.raises(DeviceError, match=r"cuda:2 does not exist; this machine has 2 GPUs, cuda:0 to cuda:1"):
            tensor([1.0], device="cuda:2")
        with pytest.raises(DeviceError, match="cuda:7 does not exist"):
            tensor([1.0], device="cuda:0").to_device("cuda:7")
    with installed(Machine(devices=0)), pytest.raises(DeviceError, match=r"this machine has no GPU"):
        tensor([1.0], device="cuda:0")
    with installed(Machine(devices=1)), pytest.raises(DeviceError, match=r"has 1 GPU, cuda:0"):
        tensor([1.0], device="cuda:1")


def test_nothing_touches_cuda_before_a_device_is_used() -> None:
    """C8: naming, comparing and printing devices asks the driver nothing, and entering one opens no other."""
    with installed(Machine()) as machine:
        machine.refuses["getDeviceCount"] = 999
        assert str(Device("cuda:3").autodiff().inner()) == "cuda:3"
        machine.refuses.clear()
        tensor([1.0], device="cuda:2")
        assert [memory.total > 0 for memory in machine.memories] == [False, False, True, False]


def out_of_memory() -> pytest.RaisesExc[DeviceError]:
    return pytest.RaisesExc(DeviceError, match=r"cuda:\d is out of memory \(Out of memory allocating [\d,]+ bytes")


def test_out_of_memory_is_a_device_error_that_names_the_bytes() -> None:
    """Wherever memory is asked for; the memory in use is not disturbed, and the device works on."""
    with installed(Machine(memory=1 << 16)) as machine:
        x = Tensor.from_numpy(np.ones(10_000, np.uint8), "cuda:0")
        big = Tensor.from_numpy(np.ones((1, 60_000), np.uint8), "cpu:0")
        for use in (
            lambda: zeros((60_000,), device="cuda:0", dtype="uint8"),
            lambda: ops.broadcast_to(x, (6, 10_000)),
            lambda: big.to_device("cuda:0"),
        ):
            with pytest.raises(DeviceError) as found:
                use()
            assert out_of_memory().matches(found.value)
            assert isinstance(found.value.__cause__, OutOfMemoryError)
        assert machine.memories[0].in_use == 10_240
        assert (x + x).tobytes() == np.full(10_000, 2, np.uint8).tobytes()


@pytest.mark.parametrize("peers", [None, ()])
def test_out_of_memory_at_the_end_of_a_copy_names_that_device(peers: tuple[()] | None) -> None:
    """Of a batch of which only the first fits, nothing stays behind."""
    with installed(Machine(memory=4 << 20, peers=peers)) as machine:
        batch = [Tensor.from_numpy(np.full(1 << 20, value, np.uint8), "cuda:0") for value in (1, 2)]
        batch[0].to_device("cuda:1")
        Device("cuda:0").synchronize()
        held = Tensor.from_numpy(np.ones(5 << 19, np.uint8), "cuda:1")
        with pytest.raises(DeviceError, match=r"cuda:1 is out of memory .* 1,048,576 bytes"):
            transfer.copy(batch, "cuda:1")
        assert machine.memories[1].in_use == held.nbytes


def test_a_limit_of_the_pool_counts_as_memory(machine: Machine) -> None:
    """`memory` says what can still be had: what the driver and the pool have, within the limit."""
    x = Tensor.from_numpy(np.ones(1000, np.uint8), "cuda:1")
    assert Device("cuda:1").memory() == ((1 << 30) - 1024, 1 << 30)
    with Device("cuda:1") as device:
        device.xp.get_default_memory_pool().set_limit(size=1 << 20)
    assert Device("cuda:1").memory() == ((1 << 20) - 1024, 1 << 20)
    del x
    assert Device("cuda:1").memory() == (1 << 20, 1 << 20)
    with Device("cuda:1") as device:
        device.xp.get_default_memory_pool().set_limit(size=0)
    assert Device("cuda:1").memory() == (1 << 30, 1 << 30)


def test_shapes_and_dtypes_that_do_not_fit_are_their_own_errors(machine: Machine) -> None:
    """An error of the device is none of the shapes, and the other way round."""
    a, b = tensor([[1.0, 2.0]], device="cuda:0"), tensor([1.0, 2.0, 3.0], device="cuda:0")
    with pytest.raises(ShapeError, match="add: shapes"):
        a + b
    with pytest.raises(ShapeError, match="matmul: shapes"):
        a @ b
    with pytest.raises(DTypeError):
        a + b.cast("float64")
    with pytest.raises(DeviceError, match="no device"), Device("cuda:0"):
        Device("gpu:0")


@pytest.mark.parametrize("status", [700, 719])
def test_after_a_failed_kernel_every_use_says_that_the_process_is_done(status: int) -> None:
    """C10: the number is read, not the text; nothing waits for ever."""
    with installed(Machine()) as machine:
        x = tensor([1.0, 2.0], device="cuda:0")
        y = x.to_device("cuda:1")
        machine.sticky = status
        uses = (
            lambda: x + x,
            lambda: y.to_device("cuda:0"),
            lambda: y.to_device("cpu:0"),
            Device("cuda:1").synchronize,
        )
        for use in uses:
            with pytest.raises(DeviceError, match=rf"CUDA error {status}: .*start it anew") as found:
                use()
            assert isinstance(found.value.__cause__, CUDARuntimeError)


@pytest.mark.parametrize("name", ["CUPY_TF32", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY"])
def test_an_environment_that_rounds_float32_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """C9: float32 means float32."""
    monkeypatch.setenv(name, "1")
    with installed(Machine()), pytest.raises(DeviceError, match=f"{name} is set"):
        tensor([1.0], device="cuda:0")
    monkeypatch.setenv(name, "0")
    with installed(Machine()):
        assert float(tensor([1.0], device="cuda:0")) == 1


def test_a_device_that_cannot_be_opened_can_be_tried_again(machine: Machine) -> None:
    """No half-open device stays behind."""
    machine.refuses["streamCreate"] = 2
    with pytest.raises(DeviceError, match="out of memory"):
        tensor([1.0], device="cuda:0")
    machine.refuses.clear()
    assert float(tensor([1.0], device="cuda:0")) == 1
