"""How the model of the rules quantizes, attaches factors and folds them in (Q49 to Q58, A14 to A20, A32 to A35)."""

import zlib
from dataclasses import replace
from typing import Any

import numpy as np

from . import operations as op
from .group_expressions import matched
from .model_leaves import Leaf, RefusalError, Switch, Weight, array_of, bits_of, quantized
from .model_version import Version
from .observations import Bits
from .spec_tree import ConfigSpec, ParamSpec, StructSpec, Value, attached_to, lora, numpy_dtype


def changed(target: Version, operation: op.Op) -> Version:
    """What such an operation gives.

    Raises:
        RefusalError: it is refused.
    """
    match operation:
        case op.Quantize():
            return _quantized(target, operation)
        case op.ApplyLora():
            return _adapted(target, operation)
        case op.Materialize():
            return _materialized(target)
    raise NotImplementedError(f"{operation!r}")


def _is_float(leaf: Leaf) -> bool:
    return isinstance(leaf, Weight) and leaf.role == "param" and leaf.kind == "float"


# Quantization


def _quantized(target: Version, operation: op.Quantize) -> Version:
    """Each object once, all that cannot be are named (Q58); what is quantized already stays (Q31)."""
    chosen = [path for path in matched(operation.group, target.ids, target.kept) if _is_float(target.leaves[path])]
    wrong: dict[int, str] = {}
    made: dict[int, Leaf] = {}
    for path in chosen:
        leaf = target.leaves[path]
        if not isinstance(leaf, Weight) or leaf.quantized or id(leaf) in {*made, *wrong}:
            continue
        leaf.bits()
        if reason := _reason(leaf, operation):
            wrong[id(leaf)] = f"{path}: {reason}"
        else:
            bits = quantized(leaf.bits(), operation.scheme, operation.calibration == "AbsMean")
            made[id(leaf)] = leaf.with_bits(bits)
    if wrong:
        raise RefusalError("scheme", "; ".join(wrong.values()))
    leaves = {path: made.get(id(leaf), leaf) if path in chosen else leaf for path, leaf in target.leaves.items()}
    return replace(target, leaves=leaves).each(lambda leaf: leaf)


def _reason(leaf: Weight, operation: op.Quantize) -> str | None:
    """Why a value cannot be quantized (Q11, Q12, Q28, Q44)."""
    scheme, shape = operation.scheme, leaf.bits().shape
    blocks = scheme.blocks or ()
    if len(blocks) > len(shape) or scheme.axis >= max(1, len(shape)):
        return f"shape {shape} has too few axes"
    for axis, extent in enumerate(blocks, len(shape) - len(blocks)):
        if shape[axis] % extent:
            return f"axis {axis} has extent {shape[axis]}, blocks {extent}"
    missing = int(np.count_nonzero(~np.isfinite(array_of(leaf.bits(), "float32"))))
    return f"{missing} elements are not finite" if missing and not operation.allow_nonfinite else None


# Adapters


def _adapted(target: Version, operation: op.ApplyLora) -> Version:
    if held := attached_to(target.spec):
        raise RefusalError("other", f"{next(iter(held))} has a reparameterization already")
    frozen = target.each(_frozen)
    chosen = set(matched(operation.group, target.ids, target.kept))
    made: dict[int, tuple[ParamSpec, Leaf, ParamSpec, Leaf]] = {}
    attached: dict[str, tuple[str, StructSpec] | None] = {}
    leaves = dict(frozen.leaves)
    for path, leaf in frozen.leaves.items():
        if path not in chosen or not isinstance(leaf, Weight) or not _is_float(leaf) or len(leaf.shape) != 2:
            continue
        if id(leaf) not in made:
            made[id(leaf)] = _factors(path, leaf, operation)
        a, leaf_a, b, leaf_b = made[id(leaf)]
        attached[path] = lora(a, b, operation.alpha / operation.rank)
        leaves |= {f"{path}.lora.a": leaf_a, f"{path}.lora.b": leaf_b}
    return frozen.with_attached(attached, leaves)


def _frozen(leaf: Leaf) -> Leaf:
    if isinstance(leaf, Switch) or not _is_float(leaf):
        return leaf
    tracking = "U" if leaf.autodiff else "P"
    changes = leaf.trainable or leaf.tracking != tracking
    return replace(leaf.tracked(tracking), trainable=False) if changes else leaf


def _factors(path: str, leaf: Weight, operation: op.ApplyLora) -> tuple[ParamSpec, Leaf, ParamSpec, Leaf]:
    """The factors of a base, which is made (A16, A17)."""
    bits = leaf.bits()
    dtype = operation.dtype or ("float32" if leaf.quantized else leaf.dtype)
    rng = np.random.default_rng((operation.seed, zlib.crc32(path.encode())))
    a = rng.standard_normal((bits.shape[0], operation.rank)) / operation.rank
    made: list[Any] = []
    for array in (a, np.zeros((operation.rank, bits.shape[1]))):
        held = bits_of(array.astype(np.float32).astype(numpy_dtype(dtype)))
        device = leaf.device + "+autodiff" * leaf.autodiff
        spec = ParamSpec(Value(dtype, held.shape, held.data, device))
        number = int.from_bytes(np.random.default_rng().bytes(8), "little")
        tracking = "L" if leaf.autodiff else "P"
        made += [spec, Weight("param", number, "float", dtype, held.shape, leaf.device, True, tracking, held)]
    first, leaf_a, second, leaf_b = made
    return first, leaf_a, second, leaf_b


def effective(target: Version, path: str) -> Bits:
    """What layers compute with, as floats (A6, A18, Q35)."""
    leaf = target.leaves[path]
    assert isinstance(leaf, Weight)
    if f"{path}.lora.a" not in target.leaves:
        return bits_of(array_of(leaf.bits())) if leaf.quantized else leaf.bits()
    return _sum(target, path, dict(attached_to(target.spec)[path][1].fields)["scale"])


def _sum(target: Version, path: str, scale: Any) -> Bits:
    base, a, b = (_bits(target, at) for at in (path, f"{path}.lora.a", f"{path}.lora.b"))
    one, other = array_of(a), array_of(b)
    if one.dtype != other.dtype:
        raise RefusalError("dtype", f"{path}: factors of {a.dtype} and {b.dtype}")
    assert isinstance(scale, ConfigSpec)
    dtype = one.dtype
    half = dtype.itemsize == 2
    with np.errstate(all="ignore"):
        product = (one.astype(np.float32) @ other.astype(np.float32)).astype(dtype) if half else one @ other
        made = array_of(base, str(dtype)) + product * dtype.type(scale.value)
    return bits_of(np.asarray(made, dtype))


def _bits(target: Version, path: str) -> Bits:
    leaf = target.leaves[path]
    assert isinstance(leaf, Weight)
    return leaf.bits()


def _materialized(target: Version) -> Version:
    made: dict[tuple[int, ...], Leaf] = {}
    leaves = dict(target.leaves)
    held = attached_to(target.spec)
    for path in held:
        base, *factors = (target.leaves[at] for at in (path, f"{path}.lora.a", f"{path}.lora.b"))
        key = id(base), *map(id, factors)
        assert isinstance(base, Weight)
        if key not in made:
            value = effective(target, path)
            retains = "L" if base.tracking == "L" else "U" if base.autodiff else "P"
            made[key] = replace(base.with_bits(value), tracking=retains)
        leaves[path] = made[key]
    return target.with_attached(dict.fromkeys(held), leaves).each(lambda leaf: leaf)
