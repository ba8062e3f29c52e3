"""Faults of quantization; see `faults`."""

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from engine import Calibration, QuantizationError, QuantScheme, QuantStore, QuantValue, ScaleDtype, dequantize
from engine.quantization import packing, quantized, rounding, scales
from modules import Module, ModuleMapper, Param, Quantizer, QuantizerError
from records import ParamId

from .faults import Patch, fault

_SMALL = {ScaleDtype.F16: np.float16, ScaleDtype.BF16: ml_dtypes.bfloat16, ScaleDtype.UE4M3: ml_dtypes.float8_e4m3fn}


class _Numpy:
    """NumPy with some functions of its own."""

    def __init__(self, **functions: Any) -> None:
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _rounds_with(patch: Patch, **functions: Any) -> None:
    """Values are found with these functions in the place of NumPy's."""

    def to_values(xp: Any, *args: Any, **settings: Any) -> Any:
        return rounding.to_values(_Numpy(**functions), *args, **settings)

    patch.setattr(quantized, "to_values", to_values)


# Values


@fault("X29 halves are rounded away from zero", "L71")
def _x29(patch: Patch) -> None:
    def away(x: Any, out: Any = None) -> Any:
        return np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x, out=out)

    _rounds_with(patch, rint=away)


@fault("X29 numbers are multiplied by the reciprocal of the scale", "L71")
def _x29_reciprocal(patch: Patch) -> None:
    def to_values(xp: Any, x: Any, steps: Any, *args: Any, **settings: Any) -> Any:
        with np.errstate(all="ignore"):
            x = x.astype(np.float32) * (np.float32(1) / steps)
        return rounding.to_values(xp, x, np.ones_like(steps), *args, **settings)

    patch.setattr(quantized, "to_values", to_values)


@fault("X31 symmetric kinds clamp one step lower", "L71", "L75")
def _x31(patch: Patch) -> None:
    def to_values(xp: Any, x: Any, steps: Any, blocks: Any, value: QuantValue, **settings: Any) -> Any:
        lower: Any = SimpleNamespace(low=value.low - 1, high=value.high, is_float=False)
        return rounding.to_values(xp, x, steps, blocks, lower if value.name.endswith("S") else value, **settings)

    patch.setattr(quantized, "to_values", to_values)


@fault("Y120 what is above the range becomes its other end", "L71", "L74")
def _y120(patch: Patch) -> None:
    def clip(x: Any, low: Any, high: Any, out: Any) -> None:
        out[...] = np.where(x > high, low, np.maximum(x, low))

    _rounds_with(patch, clip=clip)


@fault("Y121 quantizing like another finds the scales again", "L72")
def _y121(patch: Patch) -> None:
    def with_scales(xp: Any, x: Any, scheme: QuantScheme, *scales: Any, finite: bool) -> Any:
        return quantized.quantized(xp, x, scheme, Calibration.MIN_MAX)

    patch.setattr("engine.quantization.operations.with_scales", with_scales)


# Scales


def _scales_from(patch: Patch, change: Any) -> None:
    """Scales are found from other magnitudes."""
    original = scales.from_magnitudes
    patch.setattr(quantized, "from_magnitudes", lambda xp, found, scheme: original(xp, change(found), scheme))


@fault("Y122 a scale is found for a little less than the largest number", "L71", "L73")
def _y122(patch: Patch) -> None:
    _scales_from(patch, lambda found: found * np.float32(0.99))


@fault("Y123 a scale is never below a thousandth", "L71", "L76")
def _y123(patch: Patch) -> None:
    _scales_from(patch, lambda found: np.maximum(found, np.float32(2.0**-10)))


@fault("Y124 a block takes the scale of its neighbour where that is larger", "L71", "L77")
def _y124(patch: Patch) -> None:
    _scales_from(patch, lambda found: np.maximum(found, np.roll(found.reshape(-1), 1).reshape(found.shape)))


@fault("Y125 the scale of a tensor is stored as float32, whatever its dtype", "L71", "L78")
def _y125(patch: Patch) -> None:
    original = scales.from_magnitudes

    def from_magnitudes(xp: Any, found: Any, scheme: QuantScheme) -> Any:
        return original(xp, found, QuantScheme(scheme.value) if scheme.block is None else scheme)

    patch.setattr(quantized, "from_magnitudes", from_magnitudes)


@fault("Y126 a block of zeros has the scale 0", "L79")
def _y126(patch: Patch) -> None:
    patch.setattr(scales, "stored", scales.round_up)


@fault("X30 scales are rounded to nearest", "L71", "L80")
def _x30(patch: Patch) -> None:
    original = scales.round_up

    def to_nearest(xp: Any, found: Any, dtype: ScaleDtype) -> Any:
        if dtype not in _SMALL:
            return original(xp, found, dtype)
        with np.errstate(all="ignore"):
            return np.minimum(found, np.float32(dtype.largest)).astype(_SMALL[dtype]).astype(np.float32)

    patch.setattr(scales, "round_up", to_nearest)


# Bytes


@fault("X32 values are unpacked without their sign", "L81")
def _x32_sign(patch: Patch) -> None:
    original = packing.unpack

    def unpack(data: Any, shape: Any, scheme: QuantScheme) -> Any:
        return original(data, shape, scheme) & ((1 << (scheme.value.bits - 1)) - 1)

    patch.setattr(packing, "unpack", unpack)


@fault("X32 lines are packed as one sequence", "L81")
def _x32_sequence(patch: Patch) -> None:
    original = packing._pack_into

    def pack_into(made: Any, values: Any, scheme: QuantScheme) -> None:
        flat = QuantScheme(scheme.value, QuantStore(scheme.store.kind))
        words = np.zeros(flat.nbytes((values.size,)) - 4, np.uint8)
        original(words, values.reshape(-1), flat)
        made[: len(words)] = words

    patch.setattr(packing, "_pack_into", pack_into)


@fault("X32 words of an outer packed axis lie in the order of the axes", "L81")
def _x32_words(patch: Patch) -> None:
    original = packing._pack_into

    def pack_into(made: Any, values: Any, scheme: QuantScheme) -> None:
        original(made, values, scheme)
        if scheme.store.kind == "PackedU32":
            words = made.copy().view("<u4").reshape(scheme.storage(values.shape))
            swapped = np.swapaxes(words, scheme.packed_axis(values.shape), -1)
            made[...] = np.frombuffer(swapped.tobytes(), np.uint8)

    patch.setattr(packing, "_pack_into", pack_into)


@fault("Y127 scales of blocks do not follow the packed axis", "L81")
def _y127(patch: Patch) -> None:
    original = packing.to_bytes

    def to_bytes(array: Any) -> Any:
        made = original(array)
        if array.scheme.block is not None:
            encoded = scales.encode(np.ascontiguousarray(array.scales), array.scheme.scale_dtype)
            end = len(made) - (4 if array.scheme.is_two_level else 0)
            made[end - len(encoded) : end] = np.frombuffer(encoded, np.uint8)
        return made

    patch.setattr(packing, "to_bytes", to_bytes)


# Modules


@fault("Y128 NaN and infinities are quantized without being asked for", "L82")
def _y128(patch: Patch) -> None:
    patch.setattr(quantized, "check_finite", lambda xp, x: None)


@fault("Y129 only the first parameter that cannot be quantized is named", "L82")
def _y129(patch: Patch) -> None:
    patch.setattr("modules.quantizer.QuantizerError", lambda findings: QuantizerError(findings[:1]))


@fault("Y130 what cannot be quantized is left out without a word", "L82")
def _y130(patch: Patch) -> None:
    original = Quantizer.quantized

    def quantized(self: Quantizer, param: Param) -> Param:
        try:
            return original(self, param)
        except QuantizationError:
            return param

    patch.setattr(Quantizer, "quantized", quantized)


@fault("Y131 the quantizer's group is not asked", "L24", "L50", "L51", "L83")
def _y131(patch: Patch) -> None:
    original = Quantizer._reason

    def reason(self: Quantizer, path: str, param: Param) -> str | None:
        found = original(self, path, param)
        return None if found == "not of the group" else found

    patch.setattr(Quantizer, "_reason", reason)


@fault("Y132 rows of a quantized table have the scales of other rows", "L83")
def _y132(patch: Patch) -> None:
    original = quantized.Quantized.rows

    def rows(self: Any, xp: Any, ids: Any) -> Any:
        turned = quantized.Quantized(self.scheme, self.values, self.scales[::-1], self.factor)
        return original(turned if self.scheme.block is not None else self, xp, ids)

    patch.setattr(quantized.Quantized, "rows", rows)


@fault("Y133 quantizing gives a parameter a new id", "L16", "L34", "L50", "L83")
def _y133(patch: Patch) -> None:
    original = Quantizer.quantized
    patch.setattr(Quantizer, "quantized", lambda self, param: original(self, param).with_id(ParamId.new()))


class _Dense(ModuleMapper):
    """What is quantized becomes dense."""

    def map_float(self, path: str, param: Param, /) -> Param:
        return param.map(dequantize) if param.base().is_quantized else param


@fault("Y134 a fork makes quantized values dense", "L34", "L83", "L91")
def _y134(patch: Patch) -> None:
    original = Module.fork
    patch.setattr(Module, "fork", lambda self, device: original(self, device).map(_Dense()))
