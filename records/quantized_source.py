"""Quantized tensors whose bytes lie in a file, as Burn's formats hold them (Q41)."""

from collections.abc import Callable
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from engine import Device, QuantizationError, QuantScheme, Tensor
from engine.quantization.packing import scales_in

from .errors import RecordFormatError
from .storage import Extent

BYTE: Final = np.dtype(np.uint8)


@final
class QuantizedSource:
    """A quantized tensor in a file. Its bytes go from file to file as they are; its scales are checked each time.

    Args:
        what: the file and the tensor, for messages.
        scheme: what the bytes are of; whoever makes the source has checked scheme, shape and number of bytes.
        shape: the logical shape.
        stored: gives the bytes, uint8 of one axis.
        extent: where in the file they lie, if they lie there as they are.
    """

    __slots__ = ("_stored", "_what", "dtype", "extent", "shape")

    def __init__(
        self,
        what: str,
        scheme: QuantScheme,
        shape: tuple[int, ...],
        stored: Callable[[], NDArray[Any]],
        extent: Extent | None = None,
    ) -> None:
        self._what = what
        self._stored = stored
        self.dtype: QuantScheme = scheme
        self.shape = shape
        self.extent = extent

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.shape)

    def host(self) -> NDArray[Any]:
        stored = self._stored()
        self._checked(lambda: scales_in(stored, self.shape, self.dtype))
        return stored

    def read(self, device: Device) -> Tensor:
        return self._checked(lambda: Tensor.from_quantized(self._stored(), self.shape, self.dtype, device))

    def _checked(self, make: Callable[[], Any]) -> Any:
        """What `make` gives.

        Raises:
            RecordFormatError: a scale is not positive and finite (Q47, R104).
        """
        try:
            return make()
        except QuantizationError as error:
            raise RecordFormatError(f"{self._what}: {error}") from None
