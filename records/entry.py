"""One entry of a record: the id, dtype, shape and data of a parameter. Its data may still lie in a file.

A *source* is what makes the data when it is asked: a tensor in memory, a place
in a file, or a step of `adapt` over other sources.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, NoReturn, Protocol, Self, TypeAlias, final, get_args

import numpy as np
from numpy.typing import NDArray

from engine import Device, QuantScheme, Tensor, kind_of
from engine.dtype import BOOL, DType, Kind
from engine.quantization.operations import bytes_of

from .errors import RecordFormatError
from .param_id import ParamId
from .scalar import Scalar
from .storage import Extent

_HOST: Final = Device("cpu:0")
_MAX_AXES: Final = 64
_MAX_ELEMENTS: Final = 2**60 - 1


@final
class ForeignDType:
    """An element type that a file has and no tensor can have; an entry of it is listed but not read."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ForeignDType) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"ForeignDType({self.name!r})"


EntryDType: TypeAlias = DType | QuantScheme | ForeignDType
StoredForm: TypeAlias = Literal["Flex32", "Bool(U8)", "Bool(U32)"]


class Source(Protocol):
    """What makes the data of an entry, anew each time it is asked."""

    @property
    def dtype(self) -> EntryDType:
        """Element type of the data that it makes; of quantized data its scheme."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the data that it makes."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the data that it makes, as `host` gives it."""
        ...

    def host(self) -> NDArray[Any]:
        """The data as an array in host memory that nobody will write to, in any memory order.

        Of quantized data: the bytes that files hold (Q41), uint8 of one axis.
        """
        ...

    def read(self, device: Device) -> Tensor:
        """The data as a tensor on a device, without history."""
        ...


@final
class RecordEntry:
    """An id, a dtype, a shape, and the data, which `read` gives.

    Args:
        source: what makes the data, or a Tensor, whose history is left behind.
        id: the parameter's id; None where a file has none, and the parameter keeps its own (D9).
        form: how a file that tells stores elements for which tensors have no dtype of their own: ``"Flex32"`` (as
            float32), ``"Bool(U8)"`` or ``"Bool(U32)"`` (one and four bytes). Burn's formats keep it from file to
            file; what passes through a module loses it.

    Raises:
        TypeError: `source` makes no data, or `id` is no ParamId.
        RecordFormatError: there is no such form.
    """

    __slots__ = ("form", "id", "source")

    id: ParamId | None
    source: Source
    form: StoredForm | None

    def __init__(self, source: Source | Tensor, id: ParamId | None = None, *, form: StoredForm | None = None) -> None:
        made = TensorSource(source) if isinstance(source, Tensor) else source
        if not all(callable(getattr(made, name, None)) for name in ("host", "read")):
            kind = type(source).__qualname__
            raise TypeError(f"RecordEntry takes a Tensor or a source of one, not a {kind}; tensor(…) makes a Tensor")
        if id is not None and not isinstance(id, ParamId):
            raise TypeError(f"RecordEntry: id is {id!r:.80}; it must be a ParamId, or None")
        if form is not None and form not in get_args(StoredForm):
            raise RecordFormatError(f"RecordEntry: form is {form!r:.80}; there are {', '.join(get_args(StoredForm))}")
        object.__setattr__(self, "source", made)
        object.__setattr__(self, "id", id)
        object.__setattr__(self, "form", form)

    @property
    def dtype(self) -> EntryDType:
        """Element type of the tensor that `read` gives; of a quantized one its `QuantScheme`."""
        return self.source.dtype

    @property
    def kind(self) -> Kind:
        """``"float"``, ``"int"`` or ``"bool"``; a scheme and a foreign dtype count as float (R17)."""
        dtype = self.dtype
        return "float" if isinstance(dtype, ForeignDType) else kind_of(dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor that `read` gives."""
        return self.source.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the data that `host` gives, and so of a quantized tensor those in a file (Q43)."""
        return self.source.nbytes

    @property
    def extent(self) -> Extent | None:
        """Where in its file the data lies; None where it lies in none, in several places, or in a compressed one."""
        return getattr(self.source, "extent", None)

    def of_kind(self, kind: Kind) -> "RecordEntry":
        """This entry as that kind of numbers, where its file leaves open which it is; else as it is."""
        source = self.source.of_kind(kind) if isinstance(self.source, UndecidedSource) else self.source
        return self if source is self.source else RecordEntry(source, self.id)

    def read(self, device: Device | str) -> Tensor:
        """The data as a tensor on a device, without history and associated with autodiff as the device is.

        A tensor in memory that is there already is given as it is. On a CPU
        device the tensor of a burnpack file shares the mapped file (D11).

        Raises:
            RecordIoError: the file was closed.
            RecordFormatError: the data is no data of this dtype (R104), or of one that no tensor can have.
        """
        return self.source.read(Device(device))

    def host(self) -> NDArray[Any]:
        """The data as a read-only NumPy array in host memory, in any memory order; raises what `read` raises.

        Of a quantized tensor: the bytes that files hold (Q41), uint8 of one axis.
        """
        return self.source.host()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a RecordEntry is a value; {name} cannot be assigned")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RecordEntry is not pickled; its record's into_bytes() gives bytes")

    def __repr__(self) -> str:
        form = "" if self.form is None else f", form={self.form!r}"
        return f"RecordEntry(id={self.id!r}, dtype={self.dtype}, shape={self.shape}{form})"


@final
class TensorSource:
    """A tensor in memory. Read elsewhere it is copied, and the copy counted, as every copy is."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.without_autodiff() if tensor.is_tracked else tensor

    @property
    def dtype(self) -> DType | QuantScheme:
        return self._tensor.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._tensor.shape

    @property
    def nbytes(self) -> int:
        dtype = self.dtype
        return dtype.nbytes(self.shape) if isinstance(dtype, QuantScheme) else self._tensor.nbytes

    def host(self) -> NDArray[Any]:
        if self._tensor.is_quantized:
            return bytes_of(self._tensor)
        on_host = self._tensor if self._tensor.device.kind == "cpu" else self._tensor.to_device(_HOST)
        return on_host.numpy()

    def read(self, device: Device) -> Tensor:
        moved = self._tensor.to_device(device)
        return moved.autodiff() if device.is_autodiff else moved.without_autodiff()


@final
class ForeignSource:
    """Data in a file whose element type no tensor can have: it is there, and reading it is refused.

    Args:
        what: the file and the tensor, for the message.
        dtype: what the file calls the element type.
        shape: what the file says.
        nbytes: bytes in the file.
        extent: where in the file they lie, if that is known.
    """

    __slots__ = ("_what", "dtype", "extent", "nbytes", "shape")

    def __init__(
        self, what: str, dtype: ForeignDType, shape: tuple[int, ...], nbytes: int, extent: Extent | None = None
    ) -> None:
        self._what = what
        self.dtype: EntryDType = dtype
        self.shape = shape
        self.nbytes = nbytes
        self.extent = extent

    def host(self) -> NDArray[Any]:
        raise RecordFormatError(f"{self._what} has elements of {self.dtype}, which no tensor can have")

    def read(self, device: Device) -> Tensor:
        return Tensor.adopt(self.host(), device)


@final
class UndecidedSource:
    """Data of which a file does not say what kind of numbers it is; the parameter that takes it decides.

    Args:
        readings: what it is as each kind that it can be; the first is taken where there is no parameter.
    """

    __slots__ = ("_readings",)

    def __init__(self, readings: Mapping[Kind, Source]) -> None:
        self._readings = readings

    def of_kind(self, kind: Kind) -> Source:
        """What makes it as that kind; itself where it cannot be of that kind."""
        return self._readings.get(kind, self)

    @property
    def _first(self) -> Source:
        return next(iter(self._readings.values()))

    @property
    def dtype(self) -> EntryDType:
        return self._first.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._first.shape

    @property
    def nbytes(self) -> int:
        return self._first.nbytes

    def host(self) -> NDArray[Any]:
        return self._first.host()

    def read(self, device: Device) -> Tensor:
        return self._first.read(device)


class Contents(NamedTuple):
    """What a file of any format holds: entries in the order of their names (R40), scalars, and metadata."""

    entries: list[tuple[str, RecordEntry]]
    scalars: dict[str, Scalar]
    metadata: dict[str, Any]


def nbytes_of(dtype: DType, shape: tuple[int, ...]) -> int:
    """Bytes of that many elements."""
    return math.prod(shape) * dtype.itemsize


def shape_overflows(shape: tuple[int, ...]) -> bool:
    """Whether NumPy can have no array of this shape: too many axes, or more elements of 8 bytes than it can count.

    Zero extents do not make the others smaller.
    """
    return len(shape) > _MAX_AXES or math.prod(extent or 1 for extent in shape) > _MAX_ELEMENTS


def checked_bools(what: str, stored: NDArray[Any]) -> NDArray[Any]:
    """Bytes or words of 0 and 1 as booleans; bytes without a copy.

    Raises:
        RecordFormatError: there is another number among them (R75).
    """
    numbers = stored.view(np.uint8) if stored.dtype.itemsize == 1 else stored
    if numbers.size and numbers.max() > 1:
        at = int(np.flatnonzero(numbers.reshape(-1) > 1)[0])
        raise RecordFormatError(f"{what}: element {at} is {numbers.reshape(-1)[at]}; a boolean is 0 or 1")
    return numbers.view(BOOL) if numbers.dtype.itemsize == 1 else numbers.astype(BOOL)
