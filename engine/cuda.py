"""The CUDA backend: CuPy. Each GPU has one stream of the engine's own, and copies order themselves by events.

A `_Gpu` is a card in use: entering it makes the card and its stream current
in this thread, leaving it turns CUDA's errors into `DeviceError`. All that
the engine asks of a card goes through its one stream, whichever thread asks,
so arrays need no events of their own; only a copy between two cards does. It
runs on the source's stream and waits by an event for all that the destination
was asked to do before, since its memory may have had another owner; the
destination waits by an event for the copy. Where two cards cannot reach each
other's memory, or do it wrongly, the copy goes through pinned host memory.
This is the only file that imports CuPy; it is itself imported when a CUDA
device is first used. ``LAYERLOOM_NO_PEER=1`` switches peer access off.
"""

import os
import threading
import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from .backend import Array, Backend, Memory, Route
from .cuda_errors import EXTRAS, device_error
from .errors import DeviceError

try:
    import cupy  # pyright: ignore[reportMissingImports]
    import cupyx  # pyright: ignore[reportMissingImports]
    from cupy.cuda import runtime  # pyright: ignore[reportMissingImports]
except Exception as error:
    raise DeviceError(f"cuda devices need CuPy, which cannot be imported ({error}); {EXTRAS}") from error

A = TypeVar("A", bound=Any)

_STAGE_NBYTES: Final = 8 << 20  # each of the two pinned buffers through which host copies go
_ALIGNMENT: Final = 512  # of what shares a buffer, as of CuPy's own blocks
_IN_FLIGHT: Final = 32  # batches between two devices whose memory is held at most
_PATTERN_NBYTES: Final = (1 << 16) + 3  # what the first copy of a pair sends there and back

_ALREADY_ENABLED: Final = 704
_NOT_ENABLED: Final = 705
_PEER_REFUSED: Final = frozenset({101, 205, 217, 711})  # such a pair goes by the host
_NOT_FLOAT32: Final = ("CUPY_TF32", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY")  # C9


@final
class CudaBackend:
    """CuPy arrays. The rules C1 to C10 that docstrings name are those of the CUDA notes."""

    xp: Any = cupy

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._gpus: dict[int, _Gpu] = {}
        self._peers: dict[frozenset[int], bool] = {}
        self._stages: dict[tuple[int | None, int], _Stage] = {}
        self._flights: dict[tuple[int, int], deque[_Flight]] = {}

    def indices(self) -> Sequence[int]:
        return range(_count())

    def enter(self, index: int) -> None:
        self._gpu(index).__enter__()

    def leave(self, index: int, error: BaseException | None = None) -> None:
        self._gpus[index].__exit__(type(error), error, None)

    def memory(self, index: int) -> Memory:
        """What the driver and CuPy's pool still have to give; a limit of the pool counts as the GPU's memory."""
        with self._gpu(index):
            free, total = runtime.memGetInfo()
            pool = cupy.get_default_memory_pool()
            free, limit = free + pool.free_bytes(), pool.get_limit()
            if limit:
                total = min(total, limit)
                free = min(free, max(0, limit - pool.used_bytes()))
        return Memory(free, total)

    def synchronize(self, index: int) -> None:
        with self._gpu(index) as gpu:
            gpu.device.synchronize()
        self._sweep()

    def upload(self, array: NDArray[Any], index: int) -> Array:
        """A copy on a GPU, through pinned buffers of fixed size; the array may be changed at once (C7)."""
        gpu = self._gpu(index)
        lying, axes = _as_it_lies(array)
        elements = lying.reshape(-1).view(np.uint8)
        stage, sent = self._stage(None, gpu), 0
        with stage.lock, gpu:
            made = cupy.empty(lying.shape, lying.dtype)
            while sent < elements.size:
                part = stage.take(elements.size - sent)
                np.copyto(part, elements[sent : sent + part.size])
                _copy(made.data.ptr + sent, part.ctypes.data, part.size, runtime.memcpyHostToDevice, gpu)
                sent += part.size
            return _arranged(made, axes)

    def download(self, array: Array, index: int) -> NDArray[Any]:
        """A copy in host memory; the call waits for the array's own stream, and for it alone."""
        with self._gpu(index) as gpu:
            lying, axes = _as_it_lies(array)
            made = np.empty(lying.shape, lying.dtype)
            if made.size:
                lying.get(stream=gpu.stream, out=made, blocking=True)
        return _arranged(made, axes)

    def copy_between(self, arrays: Sequence[Array], source: int, destination: int) -> tuple[list[Array], Route]:
        """Copies on another GPU, all issued before anything waits for one; no host waits at all (C3)."""
        origin, target = self._gpu(source), self._gpu(destination)
        with origin:
            lying = [_as_it_lies(array) for array in arrays]
        by_peer = self._reach(origin, target)
        arrays = [array for array, _ in lying]
        if by_peer:
            with self._lock:  # peer access is switched under it, never while copies are being queued (C6)
                copied = self._by_peer(arrays, origin, target)
        else:
            copied = self._by_host(arrays, origin, target)
        with target:
            made = [_arranged(copy, axes) for copy, (_, axes) in zip(copied, lying, strict=True)]
        return made, "peer" if by_peer else "staged"

    # The two routes between GPUs

    def _by_peer(self, arrays: Sequence[Array], origin: "_Gpu", target: "_Gpu") -> list[Array]:
        """Copies of contiguous arrays by the driver, on the source's stream.

        That stream has made the arrays, and whatever gets their memory next
        runs on it too. The copies are held until they are done, though the
        destination's stream waits for them: memory that goes back to the
        driver waits for no stream of another GPU.
        """
        with target:
            made = [cupy.empty(array.shape, array.dtype) for array in arrays]
            vacant = cupy.cuda.Event(disable_timing=True)
            vacant.record(target.stream)
        try:
            with origin:
                origin.stream.wait_event(vacant)
                for array, copy in zip(arrays, made, strict=True):
                    if array.nbytes:
                        runtime.memcpyPeerAsync(
                            copy.data.ptr, target.index, array.data.ptr, origin.index, array.nbytes, origin.stream.ptr
                        )
                done = cupy.cuda.Event(disable_timing=True)
                done.record(origin.stream)
            with target:
                target.stream.wait_event(done)
            self._hold(_Flight(done, made), origin, target)
        except BaseException:
            with origin:  # nobody would wait for the copies, and their memory is about to be given back
                origin.stream.synchronize()
            raise
        return made

    def _by_host(self, arrays: Sequence[Array], origin: "_Gpu", target: "_Gpu") -> list[Array]:
        """Copies of contiguous arrays through pinned buffers, each part down on one stream and up on the other."""
        with target:
            made = [cupy.empty(array.shape, array.dtype) for array in arrays]
        stage = self._stage(origin, target)
        with stage.lock:
            for array, copy in zip(arrays, made, strict=True):
                sent = 0
                while sent < array.nbytes:
                    part = stage.take(array.nbytes - sent)
                    host = part.ctypes.data
                    with origin:
                        _copy(host, array.data.ptr + sent, part.size, runtime.memcpyDeviceToHost, origin)
                        down = cupy.cuda.Event(disable_timing=True)
                        down.record(origin.stream)
                    with target:
                        target.stream.wait_event(down)
                        _copy(copy.data.ptr + sent, host, part.size, runtime.memcpyHostToDevice, target)
                    sent += part.size
        return made

    def _hold(self, flight: "_Flight", origin: "_Gpu", target: "_Gpu") -> None:
        """Keep copies until they are done, those of the last batches of a pair (C4)."""
        self._sweep()
        with self._lock:
            flights = self._flights.setdefault((origin.index, target.index), deque())
            flights.append(flight)
            while len(flights) > _IN_FLIGHT:
                with target:
                    flights[0].done.synchronize()
                flights.popleft()

    def _sweep(self) -> None:
        with self._lock:
            for flights in self._flights.values():
                while flights and flights[0].done.done:
                    flights.popleft()

    # Which of the two

    def _reach(self, origin: "_Gpu", target: "_Gpu") -> bool:
        """Whether copies go by peer access; found out at the first copy between two GPUs, for both directions (C6)."""
        pair = frozenset((origin.index, target.index))
        reach = self._peers.get(pair)
        if reach is None:
            with self._lock:
                reach = self._peers.get(pair)
                if reach is None:
                    reach = self._peers[pair] = origin is target or self._connect(origin, target)
        return reach

    def _connect(self, origin: "_Gpu", target: "_Gpu") -> bool:
        """Switch peer access on both ways, and see whether data survive it; if not, switch it off again."""
        if os.environ.get("LAYERLOOM_NO_PEER", "") not in ("", "0"):
            return False
        ways = ((origin, target), (target, origin))
        with origin:
            if not all(runtime.deviceCanAccessPeer(gpu.index, peer.index) for gpu, peer in ways):
                return False
        for gpu in self._gpus.values():  # peer access must not change under copies that are queued
            with gpu:
                gpu.device.synchronize()
        trouble = "the driver refuses peer access"
        if all(_enable(gpu, peer) for gpu, peer in ways):
            drawn = np.random.default_rng((origin.index, target.index))  # unlike what another pair left in the memory
            pattern = drawn.integers(256, size=_PATTERN_NBYTES, dtype=np.uint8)
            sent = self.upload(pattern, origin.index)
            back = self._by_peer(self._by_peer([sent], origin, target), target, origin)[0]
            if np.array_equal(self.download(back, origin.index), pattern):
                return True
            trouble = "a copy by peer access came back changed (an IOMMU or PCIe ACS does that)"
        for gpu, peer in ways:
            _disable(gpu, peer)
        warnings.warn(
            f"cuda:{origin.index} and cuda:{target.index}: {trouble}; copies between them go through host memory",
            RuntimeWarning,
            stacklevel=2,
        )
        return False

    # What is made once

    def _gpu(self, index: int) -> "_Gpu":
        """The GPU of that index, opened at its first use.

        Raises:
            DeviceError: there is none, it cannot be opened, or the environment lets float32 be rounded (C9).
        """
        gpu = self._gpus.get(index)
        if gpu is not None:
            return gpu
        with self._lock:
            count = _count()
            if index >= count:
                few = {0: "no GPU", 1: "1 GPU, cuda:0"}
                found = few.get(count, f"{count} GPUs, cuda:0 to cuda:{count - 1}")
                raise DeviceError(f"cuda:{index} does not exist; this machine has {found}")
            for name in _NOT_FLOAT32:
                if os.environ.get(name, "") not in ("", "0"):
                    raise DeviceError(f"cuda:{index}: {name} is set, so float32 products would be rounded; unset it")
            return self._gpus.get(index) or self._gpus.setdefault(index, _Gpu(index))

    def _stage(self, origin: "_Gpu | None", target: "_Gpu") -> "_Stage":
        """The pinned buffers for copies to a GPU, from the host or from another GPU."""
        with self._lock:
            key = (None if origin is None else origin.index, target.index)
            stage = self._stages.get(key)
            if stage is None:
                with target:
                    stage = _Stage(target, None if origin is None else origin.stream)
                self._stages[key] = stage
            return stage


@final
class _Gpu:
    """A GPU in use, and the one stream on which the engine computes and copies on it (C5). A context, per thread."""

    __slots__ = ("device", "index", "stream")

    def __init__(self, index: int) -> None:
        self.index = index
        self.device = cupy.cuda.Device(index)
        try:
            with self.device:
                self.stream = cupy.cuda.Stream(non_blocking=True)
        except Exception as error:
            raise device_error(f"cuda:{index}", error) or error from error

    def __enter__(self) -> Self:
        try:
            self.device.__enter__()
            try:
                self.stream.__enter__()
            except BaseException:
                self.device.__exit__(None, None, None)
                raise
        except runtime.CUDARuntimeError as error:
            raise device_error(f"cuda:{self.index}", error) or error from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Leave stream and device.

        Raises:
            DeviceError: in place of an error of CUDA, which becomes its cause.
        """
        try:
            try:
                self.stream.__exit__(None, None, None)
            finally:
                self.device.__exit__(None, None, None)
        except runtime.CUDARuntimeError as failed:
            error = error or failed
        found = None if error is None else device_error(f"cuda:{self.index}", error)
        if found is not None:
            raise found from error


class _Flight(NamedTuple):
    """Copies that may still be on their way, and the event after which they are not."""

    done: Any
    arrays: list[Array]


@final
class _Stage:
    """Two pinned buffers that copies to a GPU read from, filled in turn (C7).

    Parts of a buffer are handed out until it is used up; a buffer comes round
    again after the copies that read from it. The host writes the parts, and
    waits for that; or another GPU's stream does.

    Args:
        target: the GPU that the parts are copied to.
        writer: the stream that writes the parts; None for the host.
    """

    def __init__(self, target: _Gpu, writer: Any) -> None:
        self.lock = threading.Lock()  # from taking parts to issuing the copies that read them
        self._target = target
        self._writer = writer
        self._buffers = [cupyx.empty_pinned(_STAGE_NBYTES, np.uint8) for _ in range(2)]
        self._read: list[Any] = [None, None]
        self._turn = self._used = 0

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """At most `nbytes` of pinned memory that is free to be written."""
        if self._used >= _STAGE_NBYTES:
            with self._target:
                read = self._read[self._turn] = cupy.cuda.Event(disable_timing=True)
                read.record(self._target.stream)
                self._turn, self._used = 1 - self._turn, 0
                before = self._read[self._turn]
                if before is not None and self._writer is None:
                    before.synchronize()
                elif before is not None:
                    self._writer.wait_event(before)
        part = self._buffers[self._turn][self._used : self._used + nbytes]
        self._used += -(-part.size // _ALIGNMENT) * _ALIGNMENT
        return part


def _count() -> int:
    """How many GPUs CUDA has.

    Raises:
        DeviceError: it cannot be asked.
    """
    try:
        return runtime.getDeviceCount()
    except Exception as error:
        raise device_error("cuda", error) or DeviceError(f"cuda: {error}") from error


def _enable(gpu: _Gpu, peer: _Gpu) -> bool:
    """Whether a GPU can now reach the memory of another."""
    with gpu:
        try:
            runtime.deviceEnablePeerAccess(peer.index)
        except runtime.CUDARuntimeError as error:
            if error.status in _PEER_REFUSED:
                return False
            if error.status != _ALREADY_ENABLED:
                raise
    return True


def _disable(gpu: _Gpu, peer: _Gpu) -> None:
    with gpu:
        try:
            runtime.deviceDisablePeerAccess(peer.index)
        except runtime.CUDARuntimeError as error:
            if error.status != _NOT_ENABLED:
                raise


def _copy(destination: int, source: int, nbytes: int, kind: int, gpu: _Gpu) -> None:
    """Copy between addresses of host and GPU, on the GPU's stream; it is current."""
    runtime.memcpyAsync(destination, source, nbytes, kind, gpu.stream.ptr)


def _as_it_lies(array: A) -> tuple[A, tuple[int, ...] | None]:
    """An array's elements as they lie in memory, C-contiguous, and the order of the axes in which they do so.

    None is the order as it is. An array with gaps is copied (D5).
    """
    if array.flags.c_contiguous:
        return array, None
    axes = tuple(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))
    lying = array.transpose(axes)
    return (lying, axes) if lying.flags.c_contiguous else (array.copy("C"), None)


def _arranged(lying: A, axes: tuple[int, ...] | None) -> A:
    """The array whose elements lie so: the inverse of `_as_it_lies`."""
    return lying if axes is None else lying.transpose(tuple(sorted(range(lying.ndim), key=axes.__getitem__)))


BACKEND: Final[Backend] = CudaBackend()
