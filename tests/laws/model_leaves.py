"""The leaves of the model of the rules: values that are made once, weights, switches; see `model_adapter`."""

import threading
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tests.engine import quantization_oracle as oracle

from . import expected
from .observations import Bits
from .protocol import RefusalKind, Refused
from .schemes import Scheme, is_scheme, scheme_of
from .spec_tree import Kind, ParamSpec, numpy_dtype

Tracking: TypeAlias = Literal["P", "U", "L", "N"]  # plain; autodiff: untracked, a leaf, made by an operation


class RefusalError(Exception):
    """An operation is refused; a load with the paths that are missing, unused and mismatched."""

    def __init__(self, kind: RefusalKind, message: str, *paths: tuple[str, ...]) -> None:
        super().__init__(message)
        self.refused: Final = Refused(kind, message, *paths)


class Cell:
    """A value that is made once, by whoever reads it first."""

    def __init__(self, spec: ParamSpec) -> None:
        self.spec = spec
        self.runs = 0
        self.value: Bits | None = None
        self.lock = threading.RLock()

    def read(self) -> Bits:
        with self.lock:
            if self.value is None:
                run = self.runs
                self.runs += 1
                if run < self.spec.fails:
                    raise RefusalError("initialiser", f"run {run} of the initialiser fails")
                self.value = expected.bits(self.spec.value, run)
            return self.value


class TurnedCell(Cell):
    """The value of another cell with its last two axes exchanged."""

    def __init__(self, source: Cell) -> None:
        super().__init__(source.spec)
        self.source = source

    def read(self) -> Bits:
        with self.lock:
            if self.value is None:
                self.value = exchanged(self.source.read())
            return self.value


def exchanged(bits: Bits) -> Bits:
    """The same tensor with its last two axes exchanged."""
    array = np.frombuffer(bits.data, numpy_dtype(bits.dtype)).reshape(bits.shape).swapaxes(-1, -2)
    return Bits(bits.dtype, array.shape, array.tobytes())


def array_of(bits: Bits, dtype: str | None = None) -> NDArray[Any]:
    """A tensor as an array: of its own dtype, or of another; what is quantized as its numbers, else float32 (Q29)."""
    if is_scheme(bits.dtype):
        scheme = scheme_of(bits.dtype)
        numbers = oracle.dequantized(oracle.from_bytes(bits.data, bits.shape, scheme), scheme)
        return _cast(numbers, dtype or "float32")
    array = np.frombuffer(bits.data, numpy_dtype(bits.dtype)).reshape(bits.shape)
    return array if dtype is None else _cast(array, dtype)


def _cast(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    with np.errstate(all="ignore"):
        return array.astype(numpy_dtype(dtype), copy=False)


def bits_of(array: NDArray[Any]) -> Bits:
    """An array as bits."""
    return Bits(str(array.dtype), array.shape, array.tobytes())


def quantized(bits: Bits, scheme: Scheme, mean: bool) -> Bits:
    """A tensor of floats quantized."""
    made = oracle.quantized(array_of(bits, "float32"), scheme, mean)
    return Bits(scheme.text, bits.shape, oracle.to_bytes(made, scheme))


def sum_of(bits: Bits, amount: int) -> Bits:
    """A tensor with a number added to each element; of a quantized one the numbers, in float32."""
    if is_scheme(bits.dtype):
        return bits_of(np.add(array_of(bits), np.float32(amount)))
    dtype = numpy_dtype(bits.dtype)
    array = np.frombuffer(bits.data, dtype).reshape(bits.shape)
    with np.errstate(all="ignore"):
        return Bits(bits.dtype, bits.shape, np.add(array, dtype.type(amount)).tobytes())


@dataclass(frozen=True, eq=False)
class Weight:
    """A parameter, a running state or a plain tensor, in one version.

    `shape` is the declared one while it is lazy. A *turned* weight is held
    with its last two axes exchanged, and lies in records as it was before (M32).
    `node` stands for the leaf of the recorded graph that it is, or was made of.
    """

    role: Literal["param", "running", "constant"]
    id: int
    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    device: str
    trainable: bool
    tracking: Tracking
    held: Bits | Cell
    turned: bool = False
    node: object = field(default_factory=object)

    @property
    def autodiff(self) -> bool:
        return self.tracking != "P"

    @property
    def quantized(self) -> bool:
        """Whether the value is; then it never trains (Q33)."""
        return is_scheme(self.dtype)

    @property
    def nbytes(self) -> int:
        """What a copy of it copies: of a quantized value a byte for each, and its scales in float32 (Q38)."""
        bits = self.bits()
        if not self.quantized:
            return len(bits.data)
        scheme = scheme_of(self.dtype)
        made = oracle.from_bytes(bits.data, bits.shape, scheme)
        return made.values.size + 4 * made.scales.size + 4 * scheme.is_two_level

    @property
    def lazy(self) -> bool:
        return isinstance(self.held, Cell) and self.held.value is None

    def bits(self) -> Bits:
        return self.held.read() if isinstance(self.held, Cell) else self.held

    def filed(self) -> Bits:
        """As it lies in records."""
        return exchanged(self.bits()) if self.turned else self.bits()

    @property
    def filed_shape(self) -> tuple[int, ...]:
        """Its shape in records; makes nothing (M33)."""
        return self.shape if self.lazy else self.filed().shape

    def with_bits(self, bits: Bits) -> "Weight":
        """Another value, a leaf of its own; it trains if it is configured to and is not quantized."""
        trains = self.trainable and not is_scheme(bits.dtype)
        tracking = "P" if not self.autodiff else "L" if trains else "U"
        return replace(self, held=bits, dtype=bits.dtype, shape=bits.shape, tracking=tracking, node=object())

    def tracked(self, tracking: Tracking) -> "Weight":
        """In another state, as far as it can be; a value that becomes a leaf is a new one."""
        if self.quantized and tracking == "L":
            tracking = "U"
        stays = tracking == self.tracking or tracking != "L"
        return replace(self, tracking=tracking, node=self.node if stays else object())


@dataclass(frozen=True, eq=False)
class Switch:
    """A flag."""

    id: int
    enabled: bool
    configured: bool
    kind: Kind = "flag"


Leaf: TypeAlias = Weight | Switch
