"""Quantization and reparameterization of the engine behind the laws' protocol, by its public API."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine import BlockScale, Calibration, QuantScheme, QuantStore, QuantValue, ScaleDtype, Tensor
from modules import Lora, LoraAdapter, Module, Param, ParamGroup, Quantizer, Reparameterizer

from . import operations as op
from .observations import Bits
from .schemes import Scheme, scheme_of


def dtype_name(dtype: Any) -> str:
    """The name of a dtype, or the text of a scheme."""
    if not isinstance(dtype, QuantScheme):
        return str(dtype)
    whole, block = dtype.tensor and dtype.tensor.name, dtype.block
    blocks, each = (None, "F32") if block is None else (block.size, block.dtype.name)
    return Scheme(dtype.value.name, dtype.store.kind, dtype.store.axis, whole, blocks, each).text


def quant_scheme(scheme: Scheme) -> QuantScheme:
    """The engine's scheme."""
    blocks = None if scheme.blocks is None else BlockScale(scheme.blocks, ScaleDtype[scheme.each])
    store = QuantStore(scheme.stored, scheme.axis)  # pyright: ignore[reportArgumentType]
    whole = None if scheme.whole is None else ScaleDtype[scheme.whole]
    return QuantScheme(QuantValue[scheme.kind], store, tensor=whole, block=blocks)


def quantized_of(bits: Bits) -> Tensor:
    """The quantized tensor that bits are of."""
    data = np.frombuffer(bits.data, np.uint8)
    return Tensor.from_quantized(data, bits.shape, quant_scheme(scheme_of(bits.dtype)), "cpu:0")


def changed(module: Module, operation: op.Op, group: ParamGroup | None) -> Module | None:
    """What an operation on values or what is attached makes of a module; None if it is none of these."""
    match operation:
        case op.Quantize(scheme, calibration, _, allow):
            quantizer = Quantizer(Calibration(calibration), quant_scheme(scheme), allow_nonfinite=allow)
            if group is None:
                return module.quantize_weights(quantizer)
            return module.quantize_weights_group(quantizer, group)
        case op.ApplyLora(rank, alpha, dtype, _, seed):
            return module.apply_lora(Lora(rank, alpha, dtype=dtype, param_group=group, seed=seed))
        case op.Materialize():
            return module.materialize()
    return None


class Attaching(Reparameterizer):
    """Attaches adapters that are there, by path; ties get one pair."""

    def __init__(self, adapters: Mapping[str, LoraAdapter]) -> None:
        self.adapters = adapters

    def reparameterize(self, path: str, param: Param, /) -> tuple[Param, LoraAdapter | None]:
        return param, self.adapters.get(path)
