"""What records hold, and what a load comes to, computed from spec trees and records alone (R2 to R27, D8)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np

from . import expected
from .observations import Bits, Meta, ValueMeta
from .operations import Entry, LoadOptions, Record
from .protocol import RefusalKind
from .record_operations import Fitting
from .spec_tree import FLOATS, ParamSpec, RunningSpec, TreeSpec, kind_of, leaves, numpy_dtype, tied_with


def recorded(spec: TreeSpec) -> dict[str, ParamSpec | RunningSpec]:
    """What a record of a module has, by path, in order: parameters and running states (R2)."""
    return {path: node for path, node in leaves(spec).items() if isinstance(node, (ParamSpec, RunningSpec))}


def objects(spec: TreeSpec) -> list[tuple[str, ...]]:
    """The paths of each recorded object, in order (D8)."""
    return list(dict.fromkeys(tied_with(spec, path) for path in recorded(spec)))


def record(spec: TreeSpec, ids: Mapping[str, int], paths: Sequence[str] | None = None) -> Record:
    """The record of a fresh build whose leaves got these ids, or of what it has at `paths` (R2, R6)."""
    chosen = {path: node for path, node in recorded(spec).items() if paths is None or path in paths}
    return Record(tuple(Entry(path, expected.bits(node.value), ids[path]) for path, node in chosen.items()))


def in_file_order(record: Record) -> Record:
    """The record as a file offers it: in byte-wise order of names (R40)."""
    return Record(tuple(sorted(record.entries, key=lambda entry: entry.path.encode())))


def _fits(node: ParamSpec | RunningSpec, bits: Bits) -> bool:
    """R12, R17."""
    return bits.shape == node.value.shape and kind_of(bits.dtype) == node.value.kind


def _misfits(spec: TreeSpec, found: Sequence[Entry]) -> list[str]:
    """Paths of the entries for one object that it cannot take: they do not fit, or differ from the first (D8)."""
    nodes = recorded(spec)
    wrong = [entry.path for entry in found if not _fits(nodes[entry.path], entry.bits)]
    return wrong or [entry.path for entry in found if entry.bits != found[0].bits]


def _found(spec: TreeSpec, record: Record) -> list[list[Entry]]:
    """For each object the entries at its places, in order."""
    entries = {entry.path: entry for entry in record.entries}
    return [[entries[path] for path in places if path in entries] for places in objects(spec)]


def fitting(spec: TreeSpec, record: Record) -> Fitting:
    """What of a module and a record does not fit each other (R9 to R17); mismatched paths are sorted."""
    without = {
        path for places, found in zip(objects(spec), _found(spec, record), strict=True) if not found for path in places
    }
    return Fitting(
        tuple(path for path in recorded(spec) if path in without),
        tuple(sorted({entry.path for entry in record.entries} - recorded(spec).keys())),
        tuple(sorted(path for found in _found(spec, record) for path in _misfits(spec, found))),
    )


def allowed(fitting: Fitting, options: LoadOptions) -> Fitting:
    """What is an error under these options (R23 to R27); empty if the load succeeds."""
    return Fitting(
        () if options.allow_partial else fitting.missing,
        () if options.allow_unused else fitting.unused,
        fitting.mismatched if options.validate else (),
    )


def kind_of_refusal(errors: Fitting) -> RefusalKind:
    """The first of mismatched, missing and unused that there is."""
    return "record_mismatch" if errors.mismatched else "record_missing" if errors.missing else "record_unused"


def taken(spec: TreeSpec, record: Record) -> dict[str, Entry]:
    """The entry that each path takes its value from: one for all places of an object (D8)."""
    return {
        path: found[0]
        for places, found in zip(objects(spec), _found(spec, record), strict=True)
        if found and not _misfits(spec, found)
        for path in places
    }


def meta_after(before: Meta, spec: TreeSpec, entries: Mapping[str, Entry], cast: bool = False) -> Meta:
    """The meta of a module that has taken `entries`: dtype, id and laziness are all that changes (R18 to R20).

    An entry without an id, and a running state, leave the id as it is (D9, R19).
    """

    def after(value: ValueMeta) -> ValueMeta:
        entry = entries.get(value.path)
        if entry is None:
            return value
        keeps_id = entry.id is None or isinstance(recorded(spec)[value.path], RunningSpec)
        return replace(
            value,
            id=value.id if keeps_id else entry.id,
            dtype=value.dtype if cast else entry.bits.dtype,
            lazy=False,
            requires_grad=value.trainable and value.autodiff,
        )

    values = tuple(after(value) if isinstance(value, ValueMeta) else value for value in before.values)
    return replace(before, values=values)


# Casts


def same_number(one: Bits, other: Bits, entry: Bits) -> bool:
    """Whether two casts of an entry are equal. Which NaN a NaN becomes is the implementation's own, unless it stays."""
    if one.dtype != other.dtype or one.dtype not in FLOATS or one.dtype == entry.dtype:
        return one == other
    arrays = [np.frombuffer(bits.data, numpy_dtype(bits.dtype)) for bits in (one, other)]
    quiet = [np.where(np.isnan(array), array.dtype.type("nan"), array).tobytes() for array in arrays]
    return one.shape == other.shape and quiet[0] == quiet[1]


def cast(bits: Bits, dtype: str) -> Bits:
    """A value in another dtype of its kind: the nearest number, ties to even; integers keep the low bits."""
    array = np.frombuffer(bits.data, numpy_dtype(bits.dtype))
    with np.errstate(all="ignore"):
        made = array.astype(numpy_dtype(dtype))
    if (bits.dtype, dtype) == ("float64", "bfloat16"):  # ml_dtypes rounds to float32 first
        made = np.array([_nearest(x, y) for x, y in zip(array, made, strict=True)], ml_dtypes.bfloat16)
    return Bits(dtype, bits.shape, made.tobytes())


def _nearest(x: np.float64, near: np.generic) -> np.generic:
    """The bfloat16 nearest to x, which is `near` or a neighbour of it."""
    if not np.isfinite(x):
        return near

    def distance(pattern: int) -> tuple[Fraction, int]:
        number = float(np.uint16(pattern).view(ml_dtypes.bfloat16))
        whole = Fraction(number) if np.isfinite(number) else Fraction(2) ** 128 * (-1 if number < 0 else 1)
        return abs(whole - Fraction(float(x))), pattern & 1

    pattern = int(near.view(np.uint16))
    sign, magnitude = pattern & 0x8000, pattern & 0x7FFF
    around = [sign | other for other in (magnitude - 1, magnitude, magnitude + 1) if 0 <= other <= 0x7F80]
    return np.uint16(min(around, key=distance)).view(ml_dtypes.bfloat16)
