"""Operations on a GPU: they work at all, give what the CPU gives, in float32 where they say so, and each time alike."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bench.operations import CASES, TAKEN, Case
from bench.report import spread_text
from bench.settings import Settings
from bench.timing import timed
from engine import Device, DeviceError, Tensor, ops, zeros

from .check import Bench, need

_NEAR = {"float64": 1e-10, "float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}  # beside it, in absolute and relative
_FLOAT32 = 1e-5  # relative error of a product in float32, where TF32 has 3e-4


def libraries(bench: Bench) -> str:
    """One addition, one product (CUDA headers and cuBLAS are found)."""
    x = Tensor.from_numpy(np.eye(32, dtype=np.float32), bench.gpu)
    need(float(ops.sum(ops.matmul(x + x, x))) == 64, "the trace of 2 I I is not 64")
    described, memory = bench.gpu.backend.describe(bench.gpu.index), bench.gpu.memory()
    runtime = bench.gpu.xp.cuda.runtime
    versions = (
        f"{version // 1000}.{version % 1000 // 10}"
        for version in (runtime.runtimeGetVersion(), runtime.driverGetVersion())
    )
    return (
        f"{described.name}, compute capability {described.capability}, {memory.free / 2**30:.1f} GiB free of "
        f"{memory.total / 2**30:.1f}; CuPy {bench.gpu.xp.__version__}, CUDA {', driver for CUDA '.join(versions)}"
    )


def operations(bench: Bench) -> str:
    """Every operation, of every dtype and memory order, beside the CPU."""
    wrong, count = Counter[str](), 0
    for case in CASES:
        for dtype in TAKEN[case.takes]:
            here = case.tensors(dtype)
            for operands in (here, [_turned(x) for x in here]):
                count += 1
                trouble = _trouble(case, operands, bench.gpu)
                if trouble:
                    wrong[f"{case.name} of {dtype}: {trouble}"] += 1
    need(not wrong, f"{sum(wrong.values())} of {count} calls: {'; '.join(sorted(wrong))}")
    return f"{count} calls of {len({case.name for case in CASES})} operations"


def _turned(x: Tensor) -> Tensor:
    """The same values, the axes in memory the other way round."""
    return Tensor.from_numpy(np.ascontiguousarray(x.numpy().T).T, x.device) if x.ndim > 1 else x


def _trouble(case: Case, here: list[Tensor], gpu: Device) -> str:
    """What is wrong with the results of a call on a GPU; empty if nothing is."""
    try:
        results = case.results([x.to_device(gpu) for x in here])
    except Exception as error:  # of whatever kind, it belongs to the operation
        return f"{type(error).__name__}: {' '.join(str(error).split()):.200}"
    for found, expected in zip(results, case.results(here), strict=True):
        if found.device != gpu or (found.shape, found.dtype) != (expected.shape, expected.dtype):
            return f"{found.shape} {found.dtype} on {found.device}, not {expected.shape} {expected.dtype}"
        near = _NEAR.get(str(found.dtype), 0)
        got, wanted = (x.to_device("cpu:0").numpy().astype(np.float64) for x in (found, expected))
        if not np.allclose(got, wanted, rtol=near, atol=near, equal_nan=True):
            return f"it differs by {np.nanmax(np.abs(got - wanted)):.3g}"
    return ""


def float32_products(bench: Bench) -> str:
    """Products of float32 are not rounded (no TF32)."""
    extent = 32 if bench.quick else 512
    a, b = (np.random.default_rng(seed).standard_normal((2, extent, extent)).astype(np.float32) for seed in (0, 1))
    worst = 0.0
    for left, right in ((a[0], b[0]), (a, b), (a, b[0]), (a[:1], b)):
        exact = left.astype(np.float64) @ right.astype(np.float64)
        on_gpu = [Tensor.from_numpy(np.ascontiguousarray(x), bench.gpu) for x in (left, right)]
        found = ops.matmul(*on_gpu).to_device("cpu:0").numpy()
        worst = max(worst, float(np.abs(found - exact).max() / np.abs(exact).max()))
    need(worst < _FLOAT32, f"the largest relative error is {worst:.2g}")
    return f"largest relative error {worst:.2g}"


def repeatability(bench: Bench) -> str:
    """The same work gives the same bits, 20 times."""
    x = Tensor.from_numpy(np.random.default_rng(1).standard_normal((256, 256)).astype(np.float32), bench.gpu)
    results = {ops.softmax(ops.matmul(x, ops.gelu(x))).tobytes() for _ in range(2 if bench.quick else 20)}
    need(len(results) == 1, f"{len(results)} different results")
    return ""


def threads(bench: Bench) -> str:
    """Eight threads at once, tensors handed from one to another."""
    shared = Tensor.from_numpy(np.arange(1000, dtype=np.float32), bench.gpu) + 1.0

    def work(index: int) -> np.ndarray:
        x = Tensor.from_numpy(np.full(1000, index, np.float32), bench.gpus[index % len(bench.gpus)])
        for _ in range(10):
            x = x + 1.0
        return (x * shared.to_device(x.device)).to_device("cpu:0").numpy()

    with ThreadPoolExecutor(8) as pool:
        for index, found in enumerate(pool.map(work, range(8))):
            need(np.array_equal(found, (index + 10) * np.arange(1, 1001, dtype=np.float32)), f"thread {index} is wrong")
    return ""


def errors(bench: Bench) -> str:
    """A GPU that is not there, too little memory, operands of two devices: errors say so, and the device works on."""
    x = Tensor.from_numpy(np.ones((8, 8), np.float32), bench.gpu)
    more = bench.gpu.memory().total + 1
    others = [x.to_device(place) for place in (Device("cpu:0"), *bench.gpus[1:2])]
    for use, words in (
        (lambda: x.to_device("cuda:99"), "does not exist"),
        (lambda: zeros((more,), dtype="uint8", device=bench.gpu), "out of memory"),
        *((lambda other=other: ops.matmul(x, other), f"{other.device}") for other in others),
    ):
        try:
            use()
        except DeviceError as error:
            need(words in str(error), f"'{words}' is not in: {error}")
        else:
            need(False, f"no error that says '{words}'")
    need(float(ops.sum(x)) == 64, "afterwards a sum is wrong")
    return ""


def speed(bench: Bench) -> str:
    """An addition by the engine and by CuPy alone, and a copy within the GPU: times to read, none is asserted."""
    gpu, nbytes = bench.gpu, 1 << (12 if bench.quick else 28)
    x, large = zeros((8,), device=gpu), zeros((nbytes,), dtype="uint8", device=gpu)
    array, add = x._data, gpu.xp.add
    settings = Settings(quick=bench.quick)

    def bare() -> None:
        with gpu:
            add(array, array)

    def within() -> None:
        gpu.backend.copy_between([large._data], gpu.index, gpu.index, "peer")

    readings = [timed(call, devices=[gpu], repeat=100) for call in (lambda: x + x, bare)]
    engine, cupy, copying = settings.interleaved(*readings, timed(within, devices=[gpu], repeat=4), rounds=10)
    return (
        f"{spread_text(engine.spread(1e-6), 'µs')} and {spread_text(cupy.spread(1e-6), 'µs')}; "
        f"{spread_text(copying.rate(2 * nbytes / 1e9), 'GB/s')}, read and written"
    )


CHECKS = (libraries, operations, float32_products, repeatability, threads, errors, speed)
