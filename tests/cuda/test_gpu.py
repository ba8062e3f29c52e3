"""What only a GPU can show: the first checks of section 8.1 of the CUDA notes. Skipped where there is none, saying why.

``--require gpu`` makes the want of one a failure.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from engine import Device, DeviceError, Tensor, ops
from engine.dtype import DTYPES
from tests.engine.comparison import same_bits

from .exercises import on
from .test_ops import CASES, operands

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("error:The device where the array resides"),  # C2: CuPy reads remote memory
]


@pytest.fixture(autouse=True)
def gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """The machine's own CuPy and driver."""
    try:
        Device("cuda:0").memory()
    except DeviceError as error:
        required = {"gpu", "all"} & set(request.config.getoption("--require"))
        (pytest.fail if required else pytest.skip)(f"no GPU: {error}")
    yield
    Device("cuda:0").synchronize()


def test_float32_products_are_not_rounded_to_tf32() -> None:
    """C9: relative errors about 1e-6, where TF32 gives 3e-4; two and three axes, and broadcast ones."""
    drawn = np.random.default_rng(0)
    a, b = (drawn.normal(size=(2, 512, 512)).astype("float32") for _ in range(2))
    for left, right in ((a[0], b[0]), (a, b), (a, b[0]), (a[:1], b)):
        exact = left.astype("float64") @ right.astype("float64")
        found = ops.matmul(on("cuda:0", left.copy()), on("cuda:0", right.copy())).to_device("cpu:0").numpy()
        assert np.abs(found - exact).max() / np.abs(exact).max() < 1e-5


def test_host_copies_keep_every_bit() -> None:
    """Contiguous, transposed, rank 0, empty, and larger than the pinned buffers; of every dtype."""
    cube = np.arange(24).reshape(2, 3, 4)
    for dtype in DTYPES:
        for array in (cube, cube.T, cube[1, 1, 1], cube[:0], np.arange(5_000_000) % 100):
            here = Tensor.from_numpy(np.asarray(array).astype(dtype), "cpu:0")
            back = here.to_device("cuda:0").to_device("cpu:0")
            assert same_bits(back, here)
            assert back.numpy().strides == here.numpy().strides


def test_the_recipe_of_two_gpus_works_with_one_twice() -> None:
    """The peer copy and its arguments; and both ways between two where there are two."""
    there = Device("cuda:1" if len(Device.available("cuda")) > 1 else "cuda:0")
    array = np.arange(100_000, dtype="float32").reshape(100, 1000)
    source = on("cuda:0", array) * 2.0
    copies, route = source.device.backend.copy_between([source._data] * 3, 0, there.index)
    assert route in ("peer", "staged")
    for copy in copies:
        assert np.array_equal(there.backend.download([copy], there.index)[0], array * 2)


def test_the_same_work_gives_the_same_bits() -> None:
    """Repeatability on one device."""
    x = on("cuda:0", np.random.default_rng(1).normal(size=(256, 256)).astype("float32"))
    results = {ops.softmax(ops.matmul(x, ops.gelu(x))).tobytes() for _ in range(20)}
    assert len(results) == 1


def test_operations_give_on_a_gpu_nearly_what_they_give_on_a_cpu() -> None:
    """Same shapes and dtypes, and numbers as close as the dtype allows."""
    for case in CASES:
        for here in operands(case):
            there = [x.to_device("cuda:0") for x in here]
            for result, expected in zip(case.results(there), case.results(here), strict=True):
                found = result.to_device("cpu:0")
                assert (found.shape, found.dtype) == (expected.shape, expected.dtype), case.name
                near = {"float64": 1e-10, "float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}.get(str(found.dtype), 0)
                got, wanted = (x.numpy().astype("float64") for x in (found, expected))
                np.testing.assert_allclose(got, wanted, rtol=near, atol=near, err_msg=f"{case.name}, {found.dtype}")
