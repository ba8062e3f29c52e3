"""Copies: every bit arrives, by every route, and no memory stays in use."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine import Device, Tensor, transfer
from engine.dtype import DTYPES

from .check import Bench, need
from .ordering import keep_busy

_SIZES: Final = (1, 511, 4097, (1 << 20) + 3, (1 << 26) + 1)
_QUICK_SIZES: Final = (1, 511, 4097)


def host_copies(bench: Bench) -> str:
    """From the CPU to the GPU and back: every dtype, contiguous, transposed, stepped, rank 0, empty, large."""
    cube = np.arange(24).reshape(2, 3, 4)
    large = np.arange(10_000 if bench.quick else 30_000_000) % 100
    arrays = [cube, cube.T, cube[:, ::2], cube[1, 1, 1], cube[:0], large]
    for dtype in sorted(DTYPES, key=str):
        here = [Tensor.from_numpy(np.asarray(array).astype(dtype), "cpu:0") for array in arrays]
        back = transfer.copy(transfer.copy(here, bench.gpu), "cpu:0")
        for sent, arrived in zip(here, back, strict=True):
            same = (arrived.shape, arrived.dtype, arrived.tobytes()) == (sent.shape, sent.dtype, sent.tobytes())
            need(same, f"{sent.shape} {dtype} came back changed")
            need(arrived.numpy().strides == sent.numpy().strides, f"{sent.shape} {dtype} came back in another order")
    return f"{len(DTYPES)} dtypes, {len(arrays)} layouts"


def peer_call(bench: Bench) -> str:
    """The recipe of two GPUs with one GPU twice: the peer call and its arguments, for every size and layout."""
    for nbytes in _QUICK_SIZES if bench.quick else _SIZES:
        _copied_right(bench.gpu, bench.gpu, nbytes, "peer")
    _layouts_right(bench.gpu, bench.gpu, "peer")
    return f"{bench.gpu} to itself"


def two_gpus(bench: Bench) -> str:
    """Between two GPUs, both ways: the route that is taken, and the other one."""
    first, second = bench.two
    taken = set()
    for source, destination in ((first, second), (second, first)):
        for nbytes in _QUICK_SIZES if bench.quick else _SIZES:
            taken.add(_copied_right(source, destination, nbytes, None))
            _copied_right(source, destination, nbytes, "staged")
        for route in (None, "staged"):
            _layouts_right(source, destination, route)
    return f"{first} and {second} go by {', '.join(sorted(taken))}"


def _copied_right(source: Device, destination: Device, nbytes: int, route: Any) -> str:
    """Whether a batch arrives; it is produced on the GPU just before, and used just after. The route."""
    numbers = (np.arange(nbytes) % 120).astype(np.uint8)
    produced = Tensor.from_numpy(numbers, source) + 1
    backend = source.backend
    made, taken = backend.copy_between([produced._data] * 3, source.index, destination.index, route)
    for copy in backend.download(made, destination.index):
        need(np.array_equal(copy, numbers + 1), f"{nbytes} bytes from {source} to {destination} ({taken}) are wrong")
    return taken


def _layouts_right(source: Device, destination: Device, route: Any) -> None:
    """Whether arrays arrive that are transposed, stepped, of rank 0, empty, or begin at an odd address."""
    cube = Tensor.from_numpy(np.arange(24, dtype=np.uint8).reshape(2, 3, 4), source)
    sent = [cube, cube.T, cube[:, ::2], cube[1, 1, 1], cube[:0], cube.reshape(24)[1:]]
    backend = source.backend
    made, taken = backend.copy_between([x._data for x in sent], source.index, destination.index, route)
    for x, copy in zip(sent, backend.download(made, destination.index), strict=True):
        same = (copy.shape, copy.tobytes()) == (x.shape, x.tobytes())
        need(same, f"{x.shape} from {source} to {destination} ({taken}) is wrong")


def random_copies(bench: Bench) -> str:
    """Thousands of copies of random sizes at random places, the GPUs busy: every bit arrives."""
    random, places = np.random.default_rng(0), [*bench.gpus[:2], Device("cpu:0")]
    kept = [random.integers(256, size=int(size), dtype=np.uint8) for size in 2 ** random.uniform(0, 18, 16)]
    held = [Tensor.from_numpy(array, bench.gpu) for array in kept]
    copies = 50 if bench.quick else 10_000
    for gpu in bench.gpus[:2]:
        keep_busy(bench, gpu)()
    for which, place in zip(random.integers(16, size=copies), random.integers(len(places), size=copies), strict=True):
        held[which] = held[which].to_device(places[place])
    for array, x in zip(kept, held, strict=True):
        need(x.tobytes() == array.tobytes(), f"{array.nbytes} bytes are wrong")
    return f"{copies:,} copies among {', '.join(map(str, places))}"


def no_leaks(bench: Bench) -> str:
    """A thousand copies leave no memory in use, and the pool gives all of it back."""
    x = Tensor.from_numpy(np.ones(1000, np.float32), bench.gpu)
    places: Sequence[Any] = ["cpu:0", *(gpu for gpu in bench.gpus[1:2])]

    def rounds(count: int) -> None:
        for _ in range(count):
            for place in places:
                x.to_device(place).to_device(bench.gpu)
        for gpu in bench.gpus:
            gpu.synchronize()

    rounds(2)
    before = _in_use(bench)
    rounds(10 if bench.quick else 1000)
    after = _in_use(bench)
    need(after == before, f"{before} bytes were in use before, {after} after")
    for gpu in bench.gpus:
        with gpu as device:
            device.xp.get_default_memory_pool().free_all_blocks()
    need(x.to_device(places[-1]).tobytes() == x.tobytes(), "after memory was given back a copy is wrong")
    return ""


def _in_use(bench: Bench) -> list[int]:
    found = []
    for gpu in bench.gpus:
        with gpu:
            found.append(gpu.xp.get_default_memory_pool().used_bytes())
    return found


CHECKS = (host_copies, peer_call, random_copies, no_leaks, two_gpus)
