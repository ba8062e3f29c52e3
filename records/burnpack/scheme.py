"""Quantization schemes as a burnpack file holds them (R70 to R74)."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeVar

from engine import BlockScale, DTypeError, QuantScheme, QuantStore, QuantValue, ScaleDtype
from records.shown import shown

from .wire import Flaw

E = TypeVar("E", bound=Enum)

_STORED_EXTENTS: Final = 5  # of a block; the unused ones are 1
_MAX_EXTENT: Final = 255
_OLD_KEYS: Final = ("level", "param")  # of Burn up to 0.21
_PLAIN_LEVEL: Final = {"level": "Tensor", "param": "F32"}  # what no level at all means today


# Reading


def decoded_scheme(value: Any) -> QuantScheme:
    """The scheme that stands under ``QFloat``; a missing `tensor` or `block` is null, other keys are ignored.

    Raises:
        Flaw: it is none, one of an old Burn that means something else (R74), or one that nothing is computed with (Q7).
    """
    fields = _map(value, "a scheme")
    if any(key in fields for key in _OLD_KEYS):
        _check_old(fields)
    for key in ("value", "store", "mode"):
        if key not in fields:
            raise Flaw(f"a scheme has no {key}: {shown(value)}")
    mode, tensor, block = fields["mode"], fields.get("tensor"), fields.get("block")
    try:
        scheme = QuantScheme(
            _named(QuantValue, fields["value"], "the kind of value"),
            _store(fields["store"]),
            mode if isinstance(mode, str) else repr(mode),  # pyright: ignore[reportArgumentType]
            None if tensor is None else _named(ScaleDtype, tensor, "the dtype of the scale per tensor"),
            None if block is None else _block(block),
        )
        scheme.check()
    except DTypeError as error:
        raise Flaw(str(error)) from None
    return scheme


def _check_old(fields: Mapping[Any, Any]) -> None:
    """Refuse what Burn up to 0.21 wrote, unless it means one float32 scale per tensor (R74)."""
    is_mixed = fields.get("tensor") is not None or fields.get("block") is not None
    if is_mixed or any(fields.get(key) != plain for key, plain in _PLAIN_LEVEL.items()):
        raise Flaw(
            f"a scheme of Burn up to 0.21, with level {shown(fields.get('level'))} and param "
            f"{shown(fields.get('param'))}; only level 'Tensor' with param 'F32' can be read"
        )


def _store(value: Any) -> QuantStore:
    if value == "Native":
        return QuantStore.native()
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, axis),) = value.items()
        if kind in ("PackedU32", "PackedNative") and type(axis) is int and axis >= 0:
            return QuantStore(kind, axis)
    raise Flaw(f"the store of quantized values is {shown(value)}; there are Native, PackedU32 and PackedNative")


def _block(value: Any) -> BlockScale:
    fields = _map(value, "the block of a scheme")
    size = _map(fields.get("size"), "the size of a block")
    storage, length = size.get("storage"), size.get("len")
    if not isinstance(storage, list) or len(storage) != _STORED_EXTENTS:
        raise Flaw(f"the extents of a block are {shown(storage)}, not {_STORED_EXTENTS} numbers")
    if any(type(extent) is not int or not 1 <= extent <= _MAX_EXTENT for extent in storage):
        raise Flaw(f"the extents of a block are {shown(storage)}; each is from 1 to {_MAX_EXTENT}")
    if type(length) is not int or not 1 <= length <= _STORED_EXTENTS:
        raise Flaw(f"a block has {shown(length)} extents; it has 1 to {_STORED_EXTENTS}")
    return BlockScale(tuple(storage[:length]), _named(ScaleDtype, fields.get("dtype"), "the dtype of the block scales"))


def _named(kinds: type[E], name: Any, what: str) -> E:
    if not isinstance(name, str) or name not in kinds.__members__:
        raise Flaw(f"{what} is {shown(name)}; there are {', '.join(kinds.__members__)}")
    return kinds[name]


def _map(value: Any, what: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise Flaw(f"{what} is {shown(value)}, no map")
    return value


# Writing


def encoded_scheme(scheme: QuantScheme) -> dict[str, Any]:
    """What stands under ``QFloat``, its keys in the order of Burn's writer (R71, R72)."""
    store, block = scheme.store, scheme.block
    return {
        "value": scheme.value.name,
        "store": store.kind if store.kind == "Native" else {store.kind: store.axis},
        "mode": scheme.mode,
        "tensor": None if scheme.tensor is None else scheme.tensor.name,
        "block": None if block is None else _encoded_block(block),
    }


def _encoded_block(block: BlockScale) -> dict[str, Any]:
    return {"size": encoded_block_size(block), "dtype": block.dtype.name}


def encoded_block_size(block: BlockScale) -> dict[str, Any]:
    """The extents of a block, the unused ones 1, and how many there are."""
    unused = _STORED_EXTENTS - len(block.size)
    return {"storage": [*block.size, *(1,) * unused], "len": len(block.size)}
