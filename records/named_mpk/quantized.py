"""Writing quantized tensors, which each release of Burn names and lays out in a way of its own (N10, N18).

From 0.19 on a value has a byte and a scale is a float32, whatever the record
has: every back end of Burn's CPUs reads that, and no number changes. Before,
there are signed bytes with one scale.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine import BlockScale, QuantScheme, QuantStore, QuantValue
from engine.quantization.packing import from_bytes
from records.burnpack.scheme import encoded_block_size
from records.burnpack.wire import Flaw

from .settings import Version

_WITH_QUANTIZED: Final = (0, 14)  # the versions from which on
_WITH_SCALE_BEHIND: Final = (0, 16)
_WITH_LEVELS: Final = (0, 17)
_WITH_KEYS: Final = (0, 18)
_WITH_SCHEMES: Final = (0, 19)
_PER_WORD: Final = 4  # bytes to which values are filled up, from 0.16 to 0.18


def written_scheme(scheme: QuantScheme, version: Version) -> QuantScheme:
    """The scheme in which a version of Burn gets a tensor.

    Raises:
        Flaw: it has nothing that means the same.
    """
    name = f"Burn {version[0]}.{version[1]}"
    if version < _WITH_QUANTIZED:
        raise Flaw(f"{name} has no quantized tensors; they came with 0.14")
    if scheme.is_two_level or scheme.value.is_float:
        raise Flaw(f"{name} reads no values of scheme {scheme} in such files; save it as burnpack, or dequantize it")
    if version < _WITH_SCHEMES and (scheme.block is not None or scheme.value is not QuantValue.Q8S):
        raise Flaw(f"{name} has Q8S with one scale per tensor alone, not {scheme}; dequantize it, or write for 0.19")
    block = None if scheme.block is None else BlockScale(scheme.block.size)
    return QuantScheme(scheme.value, QuantStore.native(), block=block)


def quantized_form(
    stored: NDArray[np.uint8], shape: tuple[int, ...], scheme: QuantScheme, version: Version
) -> tuple[list[NDArray[Any]], dict[str, Any]]:
    """The bytes of a tensor, in the arrays that follow each other, and the name of its dtype.

    Args:
        stored: its bytes as its scheme has them (Q41).
        shape: its logical shape.
        scheme: one that `written_scheme` takes.
        version: of Burn.
    """
    target = written_scheme(scheme, version)
    held = from_bytes(stored, shape, scheme)
    if version >= _WITH_SCHEMES:
        level = "Tensor" if target.block is None else {"Block": encoded_block_size(target.block)}
        fields = {"value": target.value.name, "param": "F32", "store": "Native", "level": level, "mode": "Symmetric"}
        return [held.values, held.scales], {"QFloat": fields}
    if version < _WITH_SCALE_BEHIND:
        return [held.values], {"QFloat": {"PerTensorSymmetricInt8": {"scale": float(held.scales[0]), "_q": []}}}
    filling = np.zeros(-held.values.size % _PER_WORD, np.uint8)
    return [held.values, filling, held.scales], {"QFloat": _name_before_schemes(version)}


def _name_before_schemes(version: Version) -> dict[str, Any]:
    if version < _WITH_LEVELS:
        return {"PerTensorSymmetric": "QInt8"}
    if version < _WITH_KEYS:
        return {"PerTensor": ["Symmetric", "QInt8"]}
    return {
        "level": "Tensor", "mode": "Symmetric", "q_type": "QInt8", "acc_precision": "Full", "propagation": "Inhibit",
    }  # fmt: skip
