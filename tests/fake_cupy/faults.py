"""What the fake raises: CuPy's own errors, and `Fault` where CUDA would be silent and wrong."""

from typing import Final

NAMES: Final = {
    1: "cudaErrorInvalidValue: invalid argument",
    2: "cudaErrorMemoryAllocation: out of memory",
    35: "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
    100: "cudaErrorNoDevice: no CUDA-capable device is detected",
    101: "cudaErrorInvalidDevice: invalid device ordinal",
    217: "cudaErrorPeerAccessUnsupported: peer access is not supported between these two devices",
    400: "cudaErrorInvalidResourceHandle: invalid resource handle",
    600: "cudaErrorNotReady: device not ready",
    700: "cudaErrorIllegalAddress: an illegal memory access was encountered",
    704: "cudaErrorPeerAccessAlreadyEnabled: peer access is already enabled",
    705: "cudaErrorPeerAccessNotEnabled: peer access has not been enabled",
    711: "cudaErrorTooManyPeers: peer mapping resources exhausted",
    719: "cudaErrorLaunchFailure: unspecified launch failure",
}


class Fault(AssertionError):
    """A use of CUDA that may go wrong without an error; it is no exception that CuPy has, so nobody catches it."""


class CUDARuntimeError(RuntimeError):
    """An error of CUDA's runtime; `status` is its number."""

    def __init__(self, status: int) -> None:
        super().__init__(NAMES.get(status, "unrecognized error code: unrecognized error code"))
        self.status = status


class OutOfMemoryError(MemoryError):
    """The pool got no memory from the driver, or has reached its limit."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        tail = f", limit set to: {limit:,} bytes" if limit else ""
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes{tail}).")


class PerformanceWarning(RuntimeWarning):
    """What CuPy says when it reads another GPU's memory."""
