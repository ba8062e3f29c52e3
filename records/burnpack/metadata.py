"""The CBOR value in front of a burnpack file: names and places of the tensors, free texts, scalars (R60 to R73)."""

import io
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import cbor2

from records.entry import shape_overflows
from records.param_id import ParamId
from records.scalar import Scalar
from records.shown import said, shown
from records.storage import Limits

from .scheme import decoded_scheme, encoded_scheme
from .wire import Flaw, Wire, WireType, decoded_wire, stored_nbytes


class Descriptor(NamedTuple):
    """One tensor: its bytes are those from `start` to `end`, counted from the data section on."""

    name: str
    wire: WireType
    shape: tuple[int, ...]
    start: int
    end: int
    id: ParamId | None


class Metadata(NamedTuple):
    """All that the CBOR value says; tensors in the order of their names."""

    tensors: list[Descriptor]
    texts: dict[str, str]
    scalars: dict[str, Scalar]


# Reading


class _NoTags(Mapping[int, Any]):
    """A decoder for every semantic tag, which refuses it: the format has none (R103a)."""

    def __getitem__(self, tag: int) -> Any:
        def refuse(*_: Any) -> NoReturn:
            raise Flaw(f"CBOR tag {tag}; the format has none")

        return refuse

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0


def decode(raw: bytes, limits: Limits) -> Metadata:
    """What the CBOR value `raw` says; each field is checked for its type and by itself.

    Raises:
        Flaw: it is not one CBOR value of the format, or beyond a limit.
    """
    top = _mapping(_cbor_value(raw, limits), "the metadata")
    if "tensors" not in top:
        raise Flaw("the metadata has no key 'tensors'")
    descriptors = _mapping(top["tensors"], "tensors")
    if len(descriptors) > limits.max_tensors:
        raise Flaw(f"{len(descriptors)} tensors, the limit is {limits.max_tensors}; give max_tensors to raise it")
    tensors = [_descriptor(name, descriptors[name]) for name in _sorted_names(descriptors)]
    texts = _mapping(top.get("metadata", {}), "metadata")
    scalars = _mapping(top.get("scalars", {}), "scalars")
    return Metadata(
        tensors,
        {_text(key, "a key of metadata"): _text(text, f"metadata {shown(key)}") for key, text in texts.items()},
        {_text(key, "a key of scalars"): _scalar(key, value) for key, value in scalars.items()},
    )


def unknown_keys(raw: bytes, limits: Limits) -> list[str]:
    """Keys of a value that `decode` takes which it does not read (R93): at the top, and in descriptors.

    Raises:
        Flaw: it is no CBOR value.
    """
    top = _cbor_value(raw, limits)
    found = [str(key) for key in top if key not in ("tensors", "metadata", "scalars")]
    for name in sorted(top["tensors"]):
        keys = top["tensors"][name]
        found += [f"{name}: {key}" for key in keys if key not in ("dtype", "shape", "data_offsets", "param_id")]
    return found


def _cbor_value(raw: bytes, limits: Limits) -> Any:
    stream = io.BytesIO(raw)
    try:
        value = cbor2.CBORDecoder(
            stream,
            semantic_decoders=_NoTags(),  # pyright: ignore[reportArgumentType]
            max_depth=limits.max_depth,
            allow_duplicate_keys=False,
            strict_hashable_types=True,  # other keys can be made to collide, which takes quadratic time
        ).decode()
    except cbor2.CBORError as error:
        cause = error.__cause__
        raise Flaw(str(cause) if isinstance(cause, Flaw) else f"the metadata is no CBOR value: {said(error)}") from None
    if stream.tell() != len(raw):
        raise Flaw(f"{len(raw) - stream.tell()} bytes are left after the metadata's CBOR value")
    return value


def _sorted_names(descriptors: dict[Any, Any]) -> list[str]:
    for name in descriptors:
        if "" in _text(name, "a tensor's name").split("."):
            raise Flaw(f"tensor {shown(name)}: a name has components between its dots, and none of them is empty")
    return sorted(descriptors)  # the order of code points is that of the UTF-8 bytes (R40, R61)


def _descriptor(name: str, value: Any) -> Descriptor:
    try:
        fields = _mapping(value, "the descriptor")
        for field in ("dtype", "shape", "data_offsets"):
            if field not in fields:
                raise Flaw(f"no {field}")
        shape = tuple(_unsigned(extent, "an extent of the shape") for extent in _array(fields["shape"], "shape"))
        offsets = _array(fields["data_offsets"], "data_offsets")
        if len(offsets) != 2:
            raise Flaw(f"data_offsets has {len(offsets)} numbers instead of 2")
        start, end = (_unsigned(offset, "an offset") for offset in offsets)
        number = fields.get("param_id")
        id = None if number is None else ParamId(_unsigned(number, "param_id"))
        found = Descriptor(name, _wire(fields["dtype"]), shape, start, end, id)
        _check_length(found)
    except Flaw as flaw:
        raise Flaw(f"tensor {shown(name)}: {flaw}") from None
    return found


def _wire(dtype: Any) -> WireType:
    if isinstance(dtype, dict) and dtype.keys() == {"QFloat"}:
        return decoded_scheme(dtype["QFloat"])
    return decoded_wire(dtype)


def _check_length(tensor: Descriptor) -> None:
    """R96, R98: the range is one, and as long as shape and dtype say."""
    if tensor.end < tensor.start:
        raise Flaw(f"data_offsets end at {tensor.end}, before they start at {tensor.start}")
    if shape_overflows(tensor.shape):
        raise Flaw(f"the product of shape {shown(list(tensor.shape))} overflows")
    expected = stored_nbytes(tensor.wire, tensor.shape)
    if tensor.end - tensor.start != expected:
        element = tensor.wire.loaded if isinstance(tensor.wire, Wire) else tensor.wire
        raise Flaw(
            f"data_offsets span {tensor.end - tensor.start} bytes; "
            f"shape {list(tensor.shape)} of {element} takes {expected}"
        )


def _scalar(key: str, value: Any) -> Scalar:
    variants = _mapping(value, f"scalar {shown(key)}")
    if len(variants) != 1:
        raise Flaw(f"scalar {shown(key)}: {len(variants)} values instead of 1")
    ((kind, number),) = variants.items()
    try:
        return Scalar(kind, number)
    except ValueError as error:
        raise Flaw(f"scalar {shown(key)}: {error}") from None


def _mapping(value: Any, what: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise Flaw(f"{what} is no map")
    return value


def _array(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise Flaw(f"{what} is no array")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise Flaw(f"{what} is no text: {shown(value)}")
    return value


def _unsigned(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value < 2**64:
        raise Flaw(f"{what} is {shown(value)}, not an unsigned 64-bit integer")
    return value


# Writing


def encode(tensors: Iterable[Descriptor], texts: Mapping[str, str], scalars: Mapping[str, Scalar]) -> bytes:
    """The CBOR value with the keys, their order and the number forms of Burn's writer (R60 to R65).

    Raises:
        Flaw: a name or text is not Unicode.
    """
    ordered = sorted(tensors, key=lambda tensor: tensor.name)
    top: dict[str, Any] = {"tensors": {tensor.name: _fields(tensor) for tensor in ordered}}
    if texts:
        top["metadata"] = {key: texts[key] for key in sorted(texts)}
    if scalars:
        top["scalars"] = {key: scalars[key] for key in sorted(scalars)}
    try:
        return cbor2.dumps(top, default=_encode_scalar)
    except UnicodeEncodeError as error:
        raise Flaw(f"{shown(error.object)} is not Unicode text") from None


def _fields(tensor: Descriptor) -> dict[str, Any]:
    wire = tensor.wire
    fields = {
        "dtype": wire.cbor if isinstance(wire, Wire) else {"QFloat": encoded_scheme(wire)},
        "shape": list(tensor.shape),
        "data_offsets": [tensor.start, tensor.end],
    }
    return fields if tensor.id is None else {**fields, "param_id": int(tensor.id)}


def _encode_scalar(encoder: cbor2.CBOREncoder, scalar: Scalar) -> None:
    encoder.encode_length(5, 1)
    encoder.encode_string(scalar.kind)
    if scalar.kind == "Float":
        encoder.write(shortest_float(float(scalar)))
    else:
        encoder.encode(scalar.value)


def shortest_float(value: float) -> bytes:
    """A double as CBOR in the fewest bytes that keep every bit (R65).

    A signalling NaN stays a double: decoders make it quiet when they widen it.
    """
    (bits,) = struct.unpack(">Q", struct.pack(">d", value))
    if math.isnan(value):
        sign, quiet, payload = bits >> 63, bits >> 51 & 1, bits & (2**52 - 1)
        if quiet and payload % 2**42 == 0:
            return b"\xf9" + (sign << 15 | 0x7C00 | payload >> 42).to_bytes(2, "big")
        if quiet and payload % 2**29 == 0:
            return b"\xfa" + (sign << 31 | 0x7F800000 | payload >> 29).to_bytes(4, "big")
        return b"\xfb" + struct.pack(">d", value)
    for head, form in ((b"\xf9", ">e"), (b"\xfa", ">f")):
        try:
            packed = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.unpack(form, packed)[0] == value:
            return head + packed
    return b"\xfb" + struct.pack(">d", value)
