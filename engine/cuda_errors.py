"""What the errors of CUDA and CuPy say about a device, as `DeviceError`.

Errors of CUDA are read by number, never by text (C10). The classes are told
by their names, so that nothing here needs CuPy.
"""

from typing import Final

from .errors import DeviceError

EXTRAS: Final = "in the clone, pip install -e '.[cuda12]' (or '.[cuda13]', by the CUDA version of the driver)"

_MEANING: Final = {
    2: "out of memory, of the GPU or of pinned host memory",
    3: "CUDA cannot be initialised; a process forked after using CUDA cannot use it, start it with 'spawn'",
    35: "no NVIDIA driver, or one too old for this CuPy; install or update the driver",
    46: "the GPU is held by another process in exclusive mode",
    100: "the driver sees no GPU; compare nvidia-smi and CUDA_VISIBLE_DEVICES",
    101: "there is no such GPU",
    700: "a kernel touched memory that is not its own; CUDA is of no more use to this process, start it anew",
    719: "a kernel failed; CUDA is of no more use to this process, start it anew",
    802: "the GPUs are not ready; on a machine with NVSwitch the fabric manager must run",
    803: "the driver and its libraries differ in version; reboot, or install the driver anew",
}


def status_of(error: BaseException) -> int | None:
    """CUDA's number of an error that a call of its runtime gave; None for any other exception."""
    status = getattr(error, "status", None)
    return status if type(error).__name__ == "CUDARuntimeError" and isinstance(status, int) else None


def device_error(place: str, error: BaseException) -> DeviceError | None:
    """What an error says of the device named `place`; None where it is none of CUDA's or CuPy's."""
    status = status_of(error)
    if status is not None:
        return DeviceError(f"{place}: CUDA error {status}: {_MEANING.get(status, error)}")
    if type(error).__name__ == "OutOfMemoryError":
        return DeviceError(f"{place} is out of memory ({error}); use more devices, a smaller batch or a smaller dtype")
    if isinstance(error, ImportError):
        return DeviceError(f"{place}: a library of CUDA cannot be loaded ({error}); {EXTRAS}")
    if type(error).__name__ == "CUBLASError":
        return DeviceError(f"{place}: {error}; cuBLAS fails so when the GPU has no memory left for it")
    return None
