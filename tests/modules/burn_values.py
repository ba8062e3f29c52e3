"""Values as Burn's sidecars tell them (golden/burn/README.md), and as ours; quantized ones as tensors."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from engine import BlockScale, QuantScheme, QuantStore, QuantValue, ScaleDtype, Tensor

Value: TypeAlias = NDArray[Any] | Tensor  # a Tensor where it is quantized

DTYPES: Final = {
    "f64": np.dtype("<f8"), "f32": np.dtype("<f4"), "flex32": np.dtype("<f4"), "f16": np.dtype("<f2"),
    "bf16": np.dtype(ml_dtypes.bfloat16), "i64": np.dtype("<i8"), "i32": np.dtype("<i4"), "i16": np.dtype("<i2"),
    "i8": np.dtype("i1"), "u64": np.dtype("<u8"), "u32": np.dtype("<u4"), "u16": np.dtype("<u2"), "u8": np.dtype("u1"),
}  # fmt: skip
BOOLS: Final = {"Bool(Native)": np.dtype("u1"), "Bool(U8)": np.dtype("u1"), "Bool(U32)": np.dtype("<u4")}
FLOATS: Final = ("f64", "f32", "flex32", "f16", "bf16", "qfloat")


def is_quantized(entry: Mapping[str, Any]) -> bool:
    return entry.get("dtype_name") == "qfloat"


def scheme_of(told: Mapping[str, Any]) -> QuantScheme:
    """The scheme that a sidecar tells; `told` as Burn serialises it (R71, R72)."""
    store, block = told["store"], told["block"]
    return QuantScheme(
        QuantValue[told["value"]],
        QuantStore.native() if store == "Native" else QuantStore(*next(iter(store.items()))),
        told["mode"],
        None if told["tensor"] is None else ScaleDtype[told["tensor"]],
        None if block is None else BlockScale(
            tuple(block["size"]["storage"][: block["size"]["len"]]), ScaleDtype[block["dtype"]]
        ),
    )  # fmt: skip


def value_of_entry(entry: Mapping[str, Any]) -> Value:
    """An entry's values; booleans of every width as bool."""
    raw = bytes.fromhex(entry["data"])
    if is_quantized(entry):
        return Tensor.from_quantized(np.frombuffer(raw, np.uint8), entry["shape"], scheme_of(entry["scheme"]), "cpu:0")
    if entry["dtype"] in BOOLS:
        return (np.frombuffer(raw, BOOLS[entry["dtype"]]) != 0).reshape(entry["shape"])
    return np.frombuffer(raw, DTYPES[entry["dtype_name"]]).reshape(entry["shape"])


def dequantized(entry: Mapping[str, Any], target: Mapping[str, Any]) -> NDArray[Any]:
    """The numbers that Burn makes of a quantized entry, in the dtype of a dense target."""
    numbers = np.frombuffer(bytes.fromhex(entry["dequantized"]), "<f4").reshape(entry["shape"])
    return numbers.astype(DTYPES[target.get("dtype_name", "f32")])  # of a lazy target nothing else is recorded


def kind_of_entry(entry: Mapping[str, Any]) -> str:
    if entry["dtype"] in BOOLS:
        return "bool"
    return "float" if entry["dtype_name"] in FLOATS else "int"


def value_of(tensor: Tensor) -> Value:
    """A tensor of ours as `value_of_entry` has it."""
    return tensor if tensor.is_quantized else tensor.numpy()


def tensor_of(value: Value, device: str) -> Tensor:
    """A value as a tensor on a device."""
    return value.to_device(device) if isinstance(value, Tensor) else Tensor.from_numpy(value, device)


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Equality to the last bit, dtypes and shapes included."""

    def bits(value: Any) -> Any:
        return (value.dtype, value.shape, value.tobytes()) if isinstance(value, (np.ndarray, Tensor)) else value

    return {key: bits(value) for key, value in one.items()} == {key: bits(value) for key, value in other.items()}
