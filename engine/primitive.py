"""How an operation is made: an array function with a name, and the checks that all operations share.

An *operand* is what an operation reads and makes: an array, the device it
lies on, and the node that remembers how a tracked one came about. `Tensor` is
the operand that users see. A *primitive* is one entry of the engine's table
of operations: it computes with the array module of its operands' device, so
NumPy and CuPy share every line, and it refuses operands of two devices or of
dtypes that it does not combine before any array is touched.

Every operand is *dense*: its array fills its memory without gaps, in some
order of the axes. A copy between devices can therefore keep the memory order,
and with it every bit of what is computed next (D5, P40). The operations that
could leave gaps (slices, broadcasts) copy. The array of a *quantized* operand
is a `Quantized`, whose dtype is its scheme and no NumPy dtype; it is
dequantized when it is used, unless the primitive knows better.

A primitive that can be differentiated has a *vector-Jacobian product* beside
its array function. When an operand is tracked, it is recorded: the product
gives a *pull-back* for each operand, a closure that turns the gradient of the
result into that of the operand, and keeps just the arrays that it will read.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeAlias, TypeVar

import numpy as np

from .backend import Array
from .cpu import out_of_memory
from .device import Device
from .dtype import BOOL, DTYPES, FLOAT32, FLOATS, HALVES, INTS, DType
from .errors import DeviceMismatchError, DTypeError, EngineError, ShapeError
from .graph import Node, PullBack, Step

NUMBERS: Final = FLOATS | INTS
BOOLEANS: Final = frozenset({BOOL})

_CALLED: Final = {FLOATS: "floats", INTS: "integers", NUMBERS: "numbers", BOOLEANS: "booleans"}
_new: Final = object.__new__

Pull: TypeAlias = Callable[[Array], Array]
"""From the gradient of a result the gradient of one operand, or of what that was broadcast to."""

OperandT = TypeVar("OperandT", bound="Operand")

JointPull: TypeAlias = Callable[[Array, tuple[bool, ...]], Sequence[Array | None]]
"""From the gradient of a result those of all operands; the flags say which are asked for, the others may be None."""


class Operand:
    """An array on a device. `_node` is None unless the value is part of a recorded graph."""

    __slots__ = ("__weakref__", "_data", "_device", "_node")

    _data: Array
    _device: Device
    _node: Node | None

    @classmethod
    def _make(cls, data: Array, device: Device, node: Node | None = None) -> Self:
        """An operand over an array that nobody else will write to; NumPy's are made read-only."""
        if device.kind == "cpu":
            data.setflags(write=False)
        made = _new(cls)
        made._data = data
        made._device = device
        made._node = node
        return made

    def _host(self) -> np.ndarray[Any, Any]:
        """Its numbers in host memory; from a GPU a copy, for which this waits."""
        data = dequantized(self)._data
        return data if self._device.kind == "cpu" else self._device.backend.download([data], self._device.index)[0]


class Primitive:
    """One operation on arrays, called with operands.

    Args:
        name: what error messages call it.
        forward: ``forward(xp, *arrays, **settings)``, the array of the result.
        takes: the dtypes that the first operand may have, None for all. The others have the same, unless `mixed`.
        mixed: whether the operands may differ in dtype; the public function then checks the others.
        wide: whether float16 and bfloat16 operands are computed in float32; a float32 result is then rounded once.
        scalars: whether an operand may be a scalar that `scalar` made.
        vjp: ``vjp(xp, y, *arrays, **settings)`` of the result's array and the operands', called when the operation is
            recorded. It gives a tuple of a `Pull` per operand (None where an operand has no gradient), or one
            `JointPull` where the operands' gradients share work. float16 and bfloat16 reach it, and its pull-backs,
            as float32. None: the result is never tracked.
        quantized: ``quantized(*arrays)`` of arrays among which there are quantized ones: a `forward` for them, or
            None where they are to be dequantized, as they all are without it (Q35).
    """

    __slots__ = ("direct", "forward", "mixed", "name", "quantized", "scalars", "takes", "vjp")

    def __init__(
        self,
        name: str,
        forward: Callable[..., Array],
        *,
        takes: frozenset[DType] | None = None,
        mixed: bool = False,
        wide: bool = False,
        scalars: bool = False,
        vjp: Callable[..., tuple[Pull | None, ...] | JointPull] | None = None,
        quantized: Callable[..., Callable[..., Array] | None] | None = None,
    ) -> None:
        self.name: Final = name
        self.forward: Final = forward
        self.takes: Final = DTYPES if takes is None else takes
        self.direct: Final = self.takes - HALVES if wide else self.takes  # what `forward` is given as it is
        self.mixed: Final = mixed
        self.scalars: Final = scalars
        self.vjp: Final = vjp
        self.quantized: Final = quantized

    def __call__(self, *operands: Any, **settings: Any) -> Any:
        """The result, on the operands' device; autodiff when one of them is (M72), recorded when one is tracked.

        Args:
            operands: at least one Operand; the others Operands, or scalars where the primitive takes them.

        Raises:
            TypeError: an operand is neither, or a setting is of another type.
            DeviceMismatchError: the operands lie on different devices.
            DTypeError: the operands differ in dtype, or have one that the operation does not take.
            ShapeError: the operands' shapes do not go together.
            DeviceError: the device has no memory for the result.
        """
        arrays = []
        like = device = dtype = None
        tracked = False
        for operand in operands:
            if isinstance(operand, Operand):
                array = operand._data
                if operand._node is not None:
                    tracked = True
                if like is None:
                    like, device, dtype = operand, operand._device, array.dtype
                else:
                    if operand._device is not device:
                        device = self._common_device(operands)
                    if array.dtype is not dtype:
                        dtype = self._dtype_of_unlike(operands, dtype)
                arrays.append(array)
            elif self.scalars and isinstance(operand, np.generic):
                arrays.append(operand)
            else:
                raise not_a_tensor(self.name, operand)
        if like is None or device is None:
            raise TypeError(f"{self.name}: no operand is a Tensor; make one with tensor(…, device=…)")
        forward = self.forward if dtype in self.direct else self._indirect(dtype, arrays)
        if forward is None:
            return self(*all_dequantized(operands), **settings)
        try:
            if device.kind == "cpu":
                data = forward(np, *arrays, **settings) if settings else forward(np, *arrays)
                if data.__class__ is not np.ndarray and not is_scheme(data.dtype):
                    data = np.asarray(data)
                data.setflags(False)  # pyright: ignore[reportCallIssue] by position: a keyword costs as much again
            else:
                with device:
                    data = forward(device.xp, *arrays, **settings)
        except ValueError as error:
            if isinstance(error, EngineError):
                raise
            raise self._refused_shapes(arrays, error) from error
        except (TypeError, OverflowError) as error:
            if isinstance(error, EngineError):
                raise
            raise self._refused_settings(settings, error) from error
        except MemoryError as error:
            shapes = ", ".join(str(array.shape) for array in arrays)
            raise out_of_memory(f"{self.name} of shapes {shapes}: {device}", error) from error
        made = _new(like.__class__)
        made._data = data
        made._device = device
        made._node = self._recorded(operands, arrays, data, device, settings) if tracked and self.vjp else None
        return made

    def _recorded(
        self, operands: Sequence[Any], arrays: list[Array], y: Array, device: Device, settings: dict[str, Any]
    ) -> Step | None:
        """The step of a result `y`; None where that is no float, and so has no gradient."""
        if y.dtype not in FLOATS:
            return None
        nodes = tuple(operand._node if isinstance(operand, Operand) else None for operand in operands)
        return Step(self.name, nodes, self._pull_back(nodes, arrays, y, device, settings))

    def _pull_back(
        self, nodes: tuple[Node | None, ...], arrays: list[Array], y: Array, device: Device, settings: dict[str, Any]
    ) -> PullBack:
        """From the gradient of `y` those of the operands that have a node."""
        name, place = self.name, device.inner()
        needs = tuple(node is not None for node in nodes)
        forms = [(array.shape, array.dtype) for array in arrays]
        pulls = self._pulls(needs, arrays, y, device, settings)

        def pull_back(gradient: Operand) -> list[Operand | None]:
            try:
                with device:
                    xp = device.xp
                    parts = pulls(widened(gradient._data))
                    return [
                        gradient._make(_settled(xp, part, *form), place) if need and part is not None else None
                        for need, part, form in zip(needs, parts, forms, strict=True)
                    ]
            except MemoryError as error:
                raise out_of_memory(f"the gradient of {name}: {place}", error) from error

        return pull_back

    def _pulls(
        self, needs: tuple[bool, ...], arrays: list[Array], y: Array, device: Device, settings: dict[str, Any]
    ) -> Callable[[Array], Sequence[Array | None]]:
        """The gradients of the operands as a function of that of `y`, without keeping what it will not read."""
        vjp: Any = self.vjp
        if y.dtype in HALVES or any(array.dtype in HALVES for array in arrays):

            def later(g: Array) -> Sequence[Array | None]:  # so that the halves are kept as such
                with device:
                    found = vjp(device.xp, widened(y), *map(widened, arrays), **settings)
                return _chosen(found, needs)(g)

            return later
        with device:
            return _chosen(vjp(device.xp, y, *arrays, **settings), needs)

    def _indirect(self, dtype: Any, arrays: list[Array]) -> Callable[..., Array] | None:
        """`forward` for a dtype that it is not called with as it is; None for arrays that must be dequantized first.

        Raises:
            DTypeError: it does not take the dtype.
        """
        if is_scheme(dtype):
            return None if self.quantized is None else self.quantized(*arrays)
        if dtype not in self.takes:
            way = "use // or cast to a float dtype" if self.name == "divide" else "cast it first"
            raise DTypeError(f"{self.name}: takes {_CALLED[self.takes]}, not a tensor of dtype {dtype}; {way}")

        def widely(xp: Any, *arrays: Array, **settings: Any) -> Array:
            data = self.forward(xp, *(widened(array) for array in arrays), **settings)
            return data.astype(dtype) if data.dtype == FLOAT32 else data

        return widely

    def _dtype_of_unlike(self, operands: Sequence[Any], dtype: Any) -> Any:
        """The dtype by which operands of several go on: the scheme of a quantized one, else that of the first.

        Raises:
            DTypeError: dense operands differ in dtype, and may not.
        """
        if not self.mixed:
            check_alike(self.name, *operands)
        dtypes = (operand._data.dtype for operand in operands if isinstance(operand, Operand))
        return next(filter(is_scheme, dtypes), dtype)

    def _common_device(self, operands: Sequence[Any]) -> Device:
        """The device of all operands, with the autodiff flag if one has it."""
        devices = [operand._device for operand in operands if isinstance(operand, Operand)]
        for position, device in enumerate(devices):
            if device != devices[0]:
                raise DeviceMismatchError(
                    f"{self.name}: operand 0 is on {devices[0].inner()}, operand {position} on {device.inner()}; "
                    "copy one to the other's device first, with to_device"
                )
        return next((device for device in devices if device.is_autodiff), devices[0])

    def _refused_shapes(self, arrays: Sequence[Array], error: ValueError) -> ShapeError:
        if len(arrays) == 1:
            return ShapeError(f"{self.name}: not for a tensor of shape {arrays[0].shape} ({error})")
        shapes = ", ".join(str(array.shape) for array in arrays)
        return ShapeError(f"{self.name}: shapes {shapes} do not go together ({error})")

    def _refused_settings(self, settings: dict[str, Any], error: TypeError | OverflowError) -> TypeError | ShapeError:
        given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        kind = TypeError if isinstance(error, TypeError) else ShapeError
        return kind(f"{self.name}: not with {given} ({error})" if given else f"{self.name}: {error}")


def _chosen(
    found: tuple[Pull | None, ...] | JointPull, needs: tuple[bool, ...]
) -> Callable[[Array], Sequence[Array | None]]:
    """What a vector-Jacobian product gave, cut to the operands that need a gradient."""
    if not isinstance(found, tuple):
        return lambda g: found(g, needs)
    kept = [pull if need else None for pull, need in zip(found, needs, strict=True)]
    return lambda g: [None if pull is None else pull(g) for pull in kept]


def _settled(xp: Any, part: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    """A gradient in the form of its operand: summed over the axes that were broadcast, rounded once, dense."""
    if part.shape != shape:
        added = part.ndim - len(shape)
        repeated = [added + axis for axis, extent in enumerate(shape) if extent == 1 != part.shape[added + axis]]
        part = part.sum(axis=(*range(added), *repeated)).reshape(shape)
    return dense(xp, part if part.dtype == dtype else part.astype(dtype))


def checked_operand(name: str, value: Any) -> Operand:
    """`value`, a Tensor.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, Operand):
        raise not_a_tensor(name, value)
    return value


def check_alike(name: str, *operands: Any) -> None:
    """Refuse operands of two dtypes; scalars and quantized tensors among them are let pass.

    Raises:
        TypeError: an operand is no Tensor.
        DTypeError: two dtypes.
    """
    found = (checked_operand(name, value)._data.dtype for value in operands if not isinstance(value, np.generic))
    dtypes = [dtype for dtype in found if not is_scheme(dtype)]
    if any(dtype != dtypes[0] for dtype in dtypes):
        raise DTypeError(
            f"{name}: operands have dtypes {' and '.join(map(str, dtypes))}; nothing is promoted silently, so cast one"
        )


def widened(array: Array) -> Array:
    """float16 and bfloat16 as float32; anything else as it is."""
    return array.astype(FLOAT32) if array.dtype in HALVES else array


def scalar(name: str, value: Any, like: Any) -> np.generic:
    """A Python or NumPy scalar in the dtype of the operand beside it; a float too large for that is infinite.

    Raises:
        TypeError: `value` is no scalar, or `like` no Tensor.
        DTypeError: a float beside integers, a number beside booleans, or an integer that does not fit.
    """
    dtype = checked_operand(name, like)._data.dtype
    if value.__class__ is not float:
        if isinstance(value, np.generic) and value.dtype in DTYPES:
            value = value.item()
        if not isinstance(value, (int, float)):
            raise not_a_tensor(name, value)
    if is_scheme(dtype):
        dtype = FLOAT32  # to which it is dequantized
    is_float = dtype is FLOAT32 or dtype in FLOATS
    if not is_float and (isinstance(value, float) or (dtype in BOOLEANS and not isinstance(value, bool))):
        raise DTypeError(f"{name}: scalar {value!r} beside a tensor of dtype {dtype}; cast the tensor first")
    try:
        return dtype.type(float(value) if is_float else value)
    except OverflowError:
        raise DTypeError(f"{name}: {value!r} does not fit dtype {dtype} of the tensor beside it") from None


def is_scheme(dtype: Any) -> bool:
    """Whether it is the dtype of a quantized array, whose numbers must be computed before they are used."""
    return not isinstance(dtype, np.dtype)


def dequantized(operand: OperandT, dtype: DType = FLOAT32) -> OperandT:
    """The numbers of a quantized operand in a float dtype, untracked; a dense operand as it is (Q29, Q35)."""
    data, device = operand._data, operand._device
    if not is_scheme(data.dtype):
        return operand
    with device:
        return operand._make(data.dequantized(device.xp, dtype), device)


def all_dequantized(operands: Sequence[Any]) -> list[Any]:
    """Operands without quantized ones: in the float dtype of a dense one beside them, or float32 (Q35)."""
    given = [operand for operand in operands if isinstance(operand, Operand)]
    beside = next((operand._data.dtype for operand in given if operand._data.dtype in FLOATS), FLOAT32)
    return [dequantized(operand, beside) if isinstance(operand, Operand) else operand for operand in operands]


def not_a_tensor(name: str, value: object) -> TypeError:
    """The error for an operand that is neither a Tensor nor a scalar."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return TypeError(f"{name}: operand is a {kind}, not a Tensor; make one with tensor(…, device=…)")


def quiet() -> np.errstate:
    """A context without NumPy's warnings, for infinities and NaNs that are meant; CuPy never warns."""
    return np.errstate(all="ignore")


def dense(xp: Any, array: Array) -> Array:
    """`array` itself where its memory has no gaps (in any order of the axes), else a contiguous copy of it."""
    flags = array.flags
    if flags.c_contiguous or flags.f_contiguous:
        return array
    extent = array.itemsize
    for stride, length in sorted((s, n) for s, n in zip(array.strides, array.shape, strict=True) if n != 1):
        if stride != extent:
            return xp.array(array, order="C", copy=True)
        extent *= length
    return array
