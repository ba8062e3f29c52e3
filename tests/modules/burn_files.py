"""Modules out of the files that Burn wrote (``burn/burnpack.zip``), as the sidecars tell what is in them."""

import io
import json
import zipfile
from functools import cache
from typing import Any, Final

import numpy as np

from engine import BlockScale, QuantScheme, QuantStore, QuantValue, ScaleDtype, Tensor
from modules import LoraAdapter, Param, Reparameterizer
from tests.golden_files import golden_file

from .small_modules import Holder

ADAPTED: Final = ("a.weight", "b.weight")


@cache
def archive() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(golden_file("burn/burnpack.zip").read_bytes()))


def text_of(name: str) -> Any:
    """A JSON file of the archive."""
    return json.loads(archive().read(name))


def entries_of(name: str) -> dict[str, dict[str, Any]]:
    """The entries of a file by path, as its sidecar tells them."""
    return {entry["name"]: entry for entry in text_of(f"{name}.json")["tensors"]}


def tensor_of(entry: dict[str, Any]) -> Tensor:
    """The tensor of an entry, quantized ones with their scheme."""
    data = np.frombuffer(bytes.fromhex(entry["data"]), np.uint8)
    if entry["dtype_name"] == "qfloat":
        return Tensor.from_quantized(data, entry["shape"], scheme_of(entry["scheme"]), "cpu:0")
    assert entry["dtype_name"] == "f32", entry["name"]
    return Tensor.from_numpy(data.view("<f4").reshape(entry["shape"]), "cpu:0")


def scheme_of(scheme: dict[str, Any]) -> QuantScheme:
    """A scheme as Burn serialises it."""
    assert scheme.keys() == {"value", "store", "mode", "tensor", "block"}, scheme
    store, tensor, block = scheme["store"], scheme["tensor"], scheme["block"]
    match store:
        case "Native":
            kept = QuantStore.native()
        case {"PackedU32": axis}:
            kept = QuantStore.packed_u32(axis)
        case _:
            raise AssertionError(f"the store is not understood: {store}")
    level = None
    if block is not None:
        size = block["size"]
        level = BlockScale(size["storage"][: size["len"]], ScaleDtype[block["dtype"]])
    per_tensor = None if tensor is None else ScaleDtype[tensor]
    return QuantScheme(QuantValue[scheme["value"]], kept, scheme["mode"], per_tensor, level)


def param_of(entry: dict[str, Any]) -> Param:
    return Param.initialized(entry["param_id"], tensor_of(entry))


class Recorded(Reparameterizer):
    """Adapters with the factors of a file."""

    def __init__(self, entries: dict[str, dict[str, Any]], scale: float) -> None:
        self._entries = entries
        self._scale = scale

    def reparameterize(self, path: str, param: Param, /) -> tuple[Param, LoraAdapter | None]:
        if f"{path}.lora.a" not in self._entries:
            return param, None
        a, b = (param_of(self._entries[f"{path}.lora.{name}"]) for name in "ab")
        return param, LoraAdapter(a, b, self._scale)


def two_of(name: str, scale: float) -> Holder:
    """The two Linear of a file, with adapters where it has factors."""
    entries = entries_of(name)
    layers = {
        layer: Holder(weight=param_of(entries[f"{layer}.weight"]), bias=param_of(entries[f"{layer}.bias"]))
        for layer in "ab"
    }
    return Holder(**layers).apply_reparameterization(Recorded(entries, scale))
