"""What a kind of device supplies: an array module, a context, and raw copies of arrays.

A *backend* serves all devices of one kind. `engine` computes through the
array module alone (``device.xp``), so NumPy and CuPy run the same operations.
The CUDA backend is imported when a CUDA device is first used, never before:
everything else works without CuPy.
"""

import importlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = Any  # numpy.ndarray or cupy.ndarray
Route: TypeAlias = Literal["host", "upload", "download", "peer", "staged"]


class Memory(NamedTuple):
    """Bytes of a device's memory."""

    free: int
    total: int


class Description(NamedTuple):
    """What a device is.

    Attributes:
        name: of the hardware, as its maker calls it.
        capability: the compute capability of a GPU, ``"9.0"``; empty for a CPU.
        peers: indices of the other devices of its kind whose memory it can reach, as far as the driver says.
    """

    name: str
    capability: str = ""
    peers: tuple[int, ...] = ()


class Backend(Protocol):
    """One kind of device. Arrays are the backend's own, except where NumPy's are named."""

    @property
    def xp(self) -> Any:
        """The array module: NumPy, or one that has NumPy's functions."""
        ...

    def indices(self) -> Sequence[int]:
        """Indices of the devices that this machine has.

        Raises:
            DeviceError: there is no driver, or no device.
        """
        ...

    def enter(self, index: int) -> None:
        """Make a device current for this thread, until the matching `leave`.

        Raises:
            DeviceError: there is no such device, or no driver or package for it.
        """
        ...

    def leave(self, index: int, error: BaseException | None = None) -> None:
        """Restore the device that was current before the matching `enter`.

        Args:
            error: the exception that ends the use of the device, if one does.

        Raises:
            DeviceError: in place of `error`, where that says something of the device: it is out of memory, or failed.
        """
        ...

    def describe(self, index: int) -> Description:
        """What a device is; on a GPU this opens it."""
        ...

    def memory(self, index: int) -> Memory:
        """Free and total memory of a device."""
        ...

    def synchronize(self, index: int) -> None:
        """Wait until the device has finished what this process asked of it."""
        ...

    def upload(self, array: NDArray[Any], index: int) -> Array:
        """A copy of a host array on a device; it keeps the memory order of a dense one (D5)."""
        ...

    def download(self, arrays: Sequence[Array], index: int) -> list[NDArray[Any]]:
        """Copies of a device's arrays in host memory; they keep the memory order of dense ones (D5)."""
        ...

    def copy_between(
        self, arrays: Sequence[Array], source: int, destination: int, route: Route | None = None
    ) -> tuple[list[Array], Route]:
        """Copies on another device of the same kind, and the route they took (D5: memory order kept).

        Args:
            route: the one to take, which a measurement may choose; None for the best that works.

        Raises:
            DeviceError: a device is out of memory, or there is no such route between the two.
        """
        ...


def load(kind: str) -> Backend:
    """The backend of a kind of device.

    Raises:
        DeviceError: `kind` is ``"cuda"``, and CuPy is not installed.
    """
    return importlib.import_module(f"engine.{kind}").BACKEND
