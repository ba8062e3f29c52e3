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
from collections.abc import Sequence
from typing import Any, Final, Self, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from .backend import Array, Backend, Description, Memory, Route
from .cuda_errors import EXTRAS, device_error
from .cuda_flights import Flights
from .cuda_staging import DownStage, UpStage
from .errors import DeviceError

try:
    import cupy  # pyright: ignore[reportMissingImports]
    import cupyx  # pyright: ignore[reportMissingImports]
    from cupy.cuda import runtime  # pyright: ignore[reportMissingImports]
except Exception as error:
    raise DeviceError(f"cuda devices need CuPy, which cannot be imported ({error}); {EXTRAS}") from error

A = TypeVar("A", bound=Any)

_STAGE_NBYTES: Final = 8 << 20  # each of the two pinned buffers of one way
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
        self._up: dict[tuple[int | None, int], UpStage] = {}
        self._down: dict[int, DownStage] = {}
        self._flights = Flights()

    def indices(self) -> Sequence[int]:
        return range(_count())

    def enter(self, index: int) -> None:
        self._gpu(index).__enter__()

    def leave(self, index: int, error: BaseException | None = None) -> None:
        self._gpus[index].__exit__(type(error), error, None)

    def describe(self, index: int) -> Description:
        """What the driver says; whether peer access works is seen when two GPUs are first used together."""
        with self._gpu(index) as gpu:
            name, capability = runtime.getDeviceProperties(index)["name"], str(gpu.device.compute_capability)
            others = (other for other in range(_count()) if other != index)
            peers = tuple(other for other in others if runtime.deviceCanAccessPeer(index, other))
        text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        return Description(text, f"{capability[:-1]}.{capability[-1]}", peers)

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
        self._flights.sweep()

    def upload(self, array: NDArray[Any], index: int) -> Array:
        """A copy on a GPU, through pinned buffers of fixed size; the array may be changed at once (C7)."""
        gpu = self._gpu(index)
        lying, axes = _as_it_lies(array)
        elements = lying.reshape(-1).view(np.uint8)
        stage, sent = self._up_stage(None, gpu), 0
        (made,) = self._vacant([lying], gpu)
        with stage.lock, gpu:
            while sent < elements.size:
                part = stage.take(elements.size - sent)
                np.copyto(part, elements[sent : sent + part.size])
                _copy(made.data.ptr + sent, part.ctypes.data, part.size, runtime.memcpyHostToDevice, gpu)
                sent += part.size
            return _arranged(made, axes)

    def download(self, arrays: Sequence[Array], index: int) -> list[NDArray[Any]]:
        """Copies in host memory, through pinned buffers of fixed size, for which the host waits last (C7)."""
        gpu = self._gpu(index)
        stage = self._down_stage(gpu)
        with stage.lock, gpu:
            lying = [_as_it_lies(array) for array in arrays]
            made = [np.empty(array.shape, array.dtype) for array, _ in lying]
            try:
                for (array, _), copy in zip(lying, made, strict=True):
                    elements, sent = copy.reshape(-1).view(np.uint8), 0
                    while sent < elements.size:
                        part = stage.take(elements.size - sent)
                        _copy(part.ctypes.data, array.data.ptr + sent, part.size, runtime.memcpyDeviceToHost, gpu)
                        stage.sent(part, elements[sent : sent + part.size])
                        sent += part.size
                stage.land()
            finally:
                stage.forget()
        return [_arranged(copy, axes) for copy, (_, axes) in zip(made, lying, strict=True)]

    def copy_between(
        self, arrays: Sequence[Array], source: int, destination: int, route: Route | None = None
    ) -> tuple[list[Array], Route]:
        """Copies on another GPU, all issued before anything waits for one; no host waits at all (C3)."""
        origin, target = self._gpu(source), self._gpu(destination)
        by_peer = self._goes_by_peer(origin, target, route)
        with origin:
            lying = [_as_it_lies(array) for array in arrays]
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
        made = self._vacant(arrays, target)
        with target:
            vacant = target.recorded()
        try:
            with origin:
                origin.stream.wait_event(vacant)
                for array, copy in zip(arrays, made, strict=True):
                    if array.nbytes:
                        runtime.memcpyPeerAsync(
                            copy.data.ptr, target.index, array.data.ptr, origin.index, array.nbytes, origin.stream.ptr
                        )
                done = origin.recorded()
            with target:
                target.stream.wait_event(done)
            self._flights.hold(origin, target, done, made)
        except BaseException:
            with origin:  # nobody would wait for the copies, and their memory is about to be given back
                origin.stream.synchronize()
            raise
        return made

    def _by_host(self, arrays: Sequence[Array], origin: "_Gpu", target: "_Gpu") -> list[Array]:
        """Copies of contiguous arrays through pinned buffers, each part down on one stream and up on the other."""
        made = self._vacant(arrays, target)
        stage = self._up_stage(origin, target)
        with stage.lock:
            for array, copy in zip(arrays, made, strict=True):
                sent = 0
                while sent < array.nbytes:
                    part = stage.take(array.nbytes - sent)
                    host = part.ctypes.data
                    with origin:
                        _copy(host, array.data.ptr + sent, part.size, runtime.memcpyDeviceToHost, origin)
                        down = origin.recorded()
                    with target:
                        target.stream.wait_event(down)
                        _copy(copy.data.ptr + sent, host, part.size, runtime.memcpyHostToDevice, target)
                    sent += part.size
        return made

    def _vacant(self, arrays: Sequence[Any], target: "_Gpu") -> list[Array]:
        """Memory for copies of arrays; where there is none left, copies that are on their way are waited for first.

        Raises:
            DeviceError: what they hold is not enough.
        """
        try:
            with target:
                return [cupy.empty(array.shape, array.dtype) for array in arrays]
        except DeviceError:
            if not self._flights.land(target):
                raise
        with target:
            return [cupy.empty(array.shape, array.dtype) for array in arrays]

    # Which of the two

    def _goes_by_peer(self, origin: "_Gpu", target: "_Gpu", route: Route | None) -> bool:
        """Whether copies go by peer access, where a route may be asked for."""
        if route not in (None, "peer", "staged"):
            raise DeviceError(f"copies between GPUs go by the route 'peer' or 'staged', not {route!r}")
        reach = route != "staged" and self._reach(origin, target)
        if route == "peer" and not reach:
            raise DeviceError(f"cuda:{origin.index} and cuda:{target.index}: there is no peer access between them")
        return reach

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
            if np.array_equal(self.download([back], origin.index)[0], pattern):
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

    def _up_stage(self, origin: "_Gpu | None", target: "_Gpu") -> UpStage:
        """The pinned buffers for copies to a GPU, from the host or from another GPU."""
        key = (None if origin is None else origin.index, target.index)
        with self._lock:
            stage = self._up.get(key)
            if stage is None:
                writer = None if origin is None else origin.stream
                stage = self._up[key] = UpStage(_pinned(target), target, writer)
            return stage

    def _down_stage(self, origin: "_Gpu") -> DownStage:
        """The pinned buffers for copies from a GPU to the host."""
        with self._lock:
            stage = self._down.get(origin.index)
            if stage is None:
                stage = self._down[origin.index] = DownStage(_pinned(origin), origin)
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

    def recorded(self) -> Any:
        """An event after all that the stream was asked to do; this GPU is current."""
        event = cupy.cuda.Event(disable_timing=True)
        event.record(self.stream)
        return event

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


def _pinned(gpu: _Gpu) -> list[NDArray[np.uint8]]:
    """Two buffers of memory that all GPUs reach; locking it takes a GPU in use."""
    with gpu:
        return [cupyx.empty_pinned(_STAGE_NBYTES, np.uint8) for _ in range(2)]


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
