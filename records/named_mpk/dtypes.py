"""Element types as the files of Burn 0.14 to 0.21 name them (N5, N10)."""

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError
from engine.quantization.scheme import BlockScale, QuantScheme, QuantStore, QuantValue, ScaleDtype
from records.burnpack.wire import Flaw, Wire, decoded_wire, stored_nbytes
from records.shown import shown

from .tree import Numbers, Tree

_BYTES_PER_WORD: Final = 4
_INT8: Final = QuantScheme(QuantValue.Q8S, QuantStore.native())


class Affine(NamedTuple):
    """Signed bytes with a zero point: value = (q - offset) * scale. Burn 0.14 to 0.16 had it, no scheme of ours has.

    `offset` and `scale` are None where they stand behind the values, as int32 and float32.
    """

    offset: int | None
    scale: np.float32 | None

    def numbers(self, stored: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.float32]:
        """float32 numbers of the bytes of a tensor.

        Raises:
            Flaw: the scale is not positive and finite.
        """
        offset, scale = self.offset, self.scale
        if offset is None or scale is None:
            offset, scale = int(stored[-8:-4].copy().view("<i4")[0]), stored[-4:].copy().view("<f4")[0]
        values = stored[: math.prod(shape)].view(np.int8).astype(np.float32)
        with np.errstate(over="ignore"):  # which gives infinities, as in Burn
            return ((values - np.float32(offset)) * _checked_scale(scale)).reshape(shape)


class Symmetric(NamedTuple):
    """Quantized values of a scheme. `scale` is None where scales stand behind the values, after some filling."""

    scheme: QuantScheme
    filling: int
    scale: np.float32 | None

    @property
    def is_plain(self) -> bool:
        """Whether the bytes are those of the scheme as they lie (Q41)."""
        return self.scale is None and not self.filling

    def arranged(self, stored: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """The bytes of a tensor as its scheme has them (Q41)."""
        if self.scale is not None:
            return np.concatenate([stored, np.frombuffer(self.scale.tobytes(), np.uint8)])
        if self.filling:
            values = math.prod(shape)
            return np.concatenate([stored[:values], stored[values + self.filling :]])
        return stored


def element_type(dtype: Tree, shape: tuple[int, ...], nbytes: int) -> Wire | Affine | Symmetric:
    """What a tensor's `dtype` means, its bytes being as many as it takes.

    Raises:
        Flaw: it is unknown, or takes another number of bytes.
    """
    if isinstance(dtype, dict) and dtype.keys() == {"QFloat"}:
        found, expected = _quantized(dtype["QFloat"], shape, nbytes)
    else:
        found = decoded_wire(dtype)
        expected = stored_nbytes(found, shape)
    if nbytes != expected:
        raise Flaw(f"{nbytes} bytes; shape {list(shape)} of {shown(dtype)} takes {expected}")
    return found


def _quantized(detail: Tree, shape: tuple[int, ...], nbytes: int) -> tuple[Affine | Symmetric, int]:
    """A quantized element type and the bytes that it takes, by the form that its version of Burn gave it."""
    if not isinstance(detail, dict):
        raise Flaw(f"a quantized dtype is {shown(detail)}, no map")
    values = math.prod(shape)
    words = -(-values // _BYTES_PER_WORD) * _BYTES_PER_WORD
    per_word = Symmetric(_INT8, words - values, None)
    if detail == {"PerTensorAffine": "QInt8"}:  # 0.16
        return Affine(None, None), words + 8
    if detail in ({"PerTensorSymmetric": "QInt8"}, {"PerTensor": ["Symmetric", "QInt8"]}):  # 0.16, 0.17
        return per_word, words + 4
    if detail.keys() == {"level", "mode", "q_type", "acc_precision", "propagation"}:  # 0.18
        if (detail["level"], detail["mode"], detail["q_type"]) == ("Tensor", "Symmetric", "QInt8"):
            return per_word, words + 4
    elif detail.keys() == {"value", "param", "store", "level", "mode"}:  # 0.19 to 0.21
        return _scheme(detail, shape, nbytes)
    elif len(detail) == 1:  # 0.14, 0.15
        ((name, numbers),) = detail.items()
        if name == "PerTensorAffineInt8" and isinstance(numbers, dict) and numbers.keys() >= {"scale", "offset"}:
            if type(numbers["offset"]) is not int or not -(2**31) <= numbers["offset"] < 2**31:
                raise Flaw(f"the offset of the values is {shown(numbers['offset'])}")
            return Affine(numbers["offset"], _checked_scale(numbers["scale"])), values
        if name == "PerTensorSymmetricInt8" and isinstance(numbers, dict) and "scale" in numbers:
            return Symmetric(_INT8, 0, _checked_scale(numbers["scale"])), values
    raise Flaw(f"quantized dtype {shown(detail)} is unknown")


def _checked_scale(scale: Any) -> np.float32:
    if type(scale) not in (float, np.float32):
        raise Flaw(f"the scale is {shown(scale)}, no float")
    with np.errstate(over="ignore"):
        scale = np.float32(scale)
    if not 0 < scale < np.inf:
        raise Flaw(f"the scale is {scale}; scales are positive and finite")
    return scale


def _scheme(detail: dict[str, Tree], shape: tuple[int, ...], nbytes: int) -> tuple[Symmetric, int]:
    """Schemes of 0.19 to 0.21, whose scales are float32 or of the dtype `param`; the number of bytes tells which."""
    try:
        value, param = QuantValue[detail["value"]], ScaleDtype[detail["param"]]
    except (KeyError, TypeError):
        raise Flaw(f"quantized dtype {shown(detail)} has an unknown value or param") from None
    if detail["mode"] != "Symmetric":
        raise Flaw(f"quantized dtype {shown(detail)} has an unknown mode")
    store, extents = _store(detail["store"]), _block(detail["level"])
    expected: list[int] = []
    try:
        for dtype in (ScaleDtype.F32, param):
            if extents is None:
                scheme = QuantScheme(value, store, tensor=None if dtype is ScaleDtype.F32 else dtype)
            else:
                scheme = QuantScheme(value, store, block=BlockScale(extents, dtype))
            expected.append(scheme.nbytes(shape))
            if expected[-1] == nbytes:
                return Symmetric(scheme, 0, None), nbytes
    except EngineError as error:
        raise Flaw(str(error)) from None
    raise Flaw(f"{nbytes} bytes; shape {list(shape)} of {shown(detail)} takes {' or '.join(map(str, expected))}")


def _store(store: Tree) -> QuantStore:
    if store == "Native":
        return QuantStore.native()
    if store == "U32":  # 0.19
        return QuantStore.packed_u32()
    if isinstance(store, dict) and len(store) == 1:
        ((kind, axis),) = store.items()
        if kind in ("PackedU32", "PackedNative") and type(axis) is int and axis >= 0:
            return QuantStore(kind, axis)
    raise Flaw(f"the store of quantized values is {shown(store)}")


def _block(level: Tree) -> tuple[int, ...] | None:
    """The extents of a block; None for one scale per tensor."""
    if level == "Tensor":
        return None
    size = level.get("Block") if isinstance(level, dict) and len(level) == 1 else None
    if isinstance(size, dict) and size.keys() == {"storage", "len"}:
        storage, length = size["storage"], size["len"]
        if isinstance(storage, Numbers) and storage.form == "int" and storage.count == 5 and type(length) is int:
            extents = storage.read().tolist()
            if 1 <= length <= 5 and all(1 <= extent <= 255 for extent in extents):
                return tuple(extents[:length])
    raise Flaw(f"the level of a quantized dtype is {shown(level)}")
