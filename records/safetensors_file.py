"""Reading safetensors through their library: the header at opening, each tensor when it is read."""

from typing import Any, final

from numpy.typing import NDArray

from engine import Device, Tensor
from engine.dtype import BOOL, DType

from .entry import Contents, ForeignDType, ForeignSource, RecordEntry, checked_bools, nbytes_of, shape_overflows
from .errors import RecordFormatError, RecordIoError
from .optional import optional_package
from .safetensors_writer import DTYPES, taken_apart
from .shown import said, shown
from .storage import Limits


@final
class SafetensorsFile:
    """A file that the library has opened; it maps it, and copies a tensor out of it when asked."""

    def __init__(self, file: str) -> None:
        library = optional_package("safetensors", file)
        self.name = file
        self._error: type[Exception] = library.SafetensorError
        try:
            self._opened: Any = library.safe_open(file, framework="numpy")
        except OSError as error:
            raise RecordIoError.of(f"{file}: cannot be opened", error) from error
        except self._error as error:
            raise RecordFormatError(f"{file}: no safetensors file: {said(error)}") from error

    def close(self) -> None:
        """Let go of the file. What was read stays valid."""
        self._opened = None

    def metadata(self) -> dict[str, str]:
        """The free texts of the header."""
        return dict(self._opened.metadata() or {})

    def tensors(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, element type and shape of each tensor, in the order of their names (R40)."""
        slices = {name: self._opened.get_slice(name) for name in sorted(self._opened.keys())}
        return [(name, found.get_dtype(), tuple(found.get_shape())) for name, found in slices.items()]

    def array(self, name: str) -> NDArray[Any]:
        """One tensor, copied out of the file."""
        if self._opened is None:
            raise RecordIoError(
                f"{self.name}: tensor {shown(name)} was not read before the file was closed; open it again"
            )
        try:
            return self._opened.get_tensor(name)
        except self._error as error:
            raise RecordFormatError(f"{self.name}: tensor {shown(name)}: {said(error)}") from error


def read_safetensors(file: str, limits: Limits) -> tuple[Contents, SafetensorsFile]:
    """The entries and the metadata of a safetensors file; no tensor is read. Only files of ours have ids and scalars.

    Raises:
        RecordFormatError: it is none, or beyond a limit.
        RecordIoError: the system refused to open it.
        RecordError: the package `safetensors` is not installed.
    """
    opened = SafetensorsFile(file)
    tensors = opened.tensors()
    if len(tensors) > limits.max_tensors:
        raise RecordFormatError(f"{file}: {len(tensors)} tensors, the limit is {limits.max_tensors}")
    try:
        ids, scalars, metadata = taken_apart(opened.metadata())
    except RecordFormatError as error:
        raise RecordFormatError(f"{file}: {error}") from None
    entries = [
        (name, RecordEntry(_source(opened, name, dtype, shape, limits), ids.get(name)))
        for name, dtype, shape in tensors
    ]
    return Contents(entries, scalars, metadata), opened


def _source(
    opened: SafetensorsFile, name: str, dtype: str, shape: tuple[int, ...], limits: Limits
) -> "_SafetensorsSource | ForeignSource":
    what = f"{opened.name}: tensor {shown(name)}"
    if dtype not in DTYPES:
        return ForeignSource(what, ForeignDType(dtype), shape, 0)
    if shape_overflows(shape):
        raise RecordFormatError(f"{what}: the product of shape {shown(list(shape))} overflows")
    nbytes = nbytes_of(DTYPES[dtype], shape)
    if nbytes > limits.max_tensor_bytes:
        raise RecordFormatError(f"{what}: {nbytes} bytes, the limit is {limits.max_tensor_bytes}")
    return _SafetensorsSource(opened, name, DTYPES[dtype], shape)


@final
class _SafetensorsSource:
    """A tensor in a safetensors file."""

    __slots__ = ("_name", "_opened", "dtype", "shape")

    def __init__(self, opened: SafetensorsFile, name: str, dtype: DType, shape: tuple[int, ...]) -> None:
        self._opened = opened
        self._name = name
        self.dtype = dtype
        self.shape = shape

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.dtype, self.shape)

    def host(self) -> NDArray[Any]:
        array = self._opened.array(self._name)
        if self.dtype == BOOL:
            return checked_bools(f"{self._opened.name}: tensor {shown(self._name)}", array)
        return array

    def read(self, device: Device) -> Tensor:
        return Tensor.adopt(self.host(), device)
