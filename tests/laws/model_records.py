"""How the model of the rules makes, loads and saves records (R1 to R40), over its leaves by path."""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from . import operations as op
from . import record_expected as expected
from . import record_operations as rec
from .burnpack_file import parsed, written
from .model_leaves import Cell, Leaf, RefusalError, TurnedCell, Weight, array_of, bits_of, exchanged
from .operations import Entry, LoadOptions, Record
from .schemes import is_scheme
from .spec_tree import kind_of

Leaves: TypeAlias = Mapping[str, Leaf]


def on_records(leaves: Leaves, operation: op.Op) -> tuple[Leaves, Any]:
    """What an operation on records or files makes of leaves, and its output.

    Raises:
        RefusalError: it is refused.
    """
    match operation:
        case op.LoadRecord(record, options):
            return load(leaves, record, options)
        case rec.Save(_, record):
            return leaves, written(record or to_record(leaves))
        case rec.Load(data, _, options):
            return load(leaves, _opened(data), options)
        case rec.Open(data):
            record = _opened(data)
            _check_booleans(record.entries)
            return leaves, record
        case rec.Rename(record, rules):
            return leaves, renamed(record, rules)
        case rec.Turn(paths):
            return _turned(leaves, paths), None
    raise NotImplementedError(f"{operation!r} is not offered; see capabilities")


def recorded(leaves: Leaves) -> dict[str, Weight]:
    """What records hold: parameters and running states, by path."""
    return {path: leaf for path, leaf in leaves.items() if isinstance(leaf, Weight) and leaf.role != "constant"}


def to_record(leaves: Leaves, paths: Collection[str] | None = None) -> Record:
    """The record of the leaves at some paths, or of all."""
    chosen = {path: leaf for path, leaf in recorded(leaves).items() if paths is None or path in paths}
    return Record(tuple(Entry(path, leaf.filed(), leaf.id) for path, leaf in chosen.items()))


# Loading


def load(leaves: Leaves, record: Record, options: LoadOptions) -> tuple[Leaves, rec.Fitting]:
    """The leaves with the record's values, one result per object (D8), and what did not fit.

    Raises:
        RefusalError: the options do not allow it, or an entry's data is damaged.
    """
    entries = {entry.path: entry for entry in record.entries}
    holders: dict[int, tuple[Weight, list[str]]] = {}
    for path, leaf in recorded(leaves).items():
        holders.setdefault(id(leaf), (leaf, []))[1].append(path)
    missing: set[str] = set()
    mismatched: dict[str, str] = {}
    taken: dict[int, tuple[Weight, list[Entry]]] = {}
    for number, (leaf, paths) in holders.items():
        found = [entries[path] for path in paths if path in entries]
        misfits = _misfits(leaf, found, options.cast)
        mismatched |= misfits
        if not found:
            missing.update(paths)
        elif not misfits:
            taken[number] = leaf, found
    fitting = rec.Fitting(
        tuple(path for path in recorded(leaves) if path in missing),
        tuple(sorted(path for path in entries if path not in recorded(leaves))),
        tuple(mismatched),
    )
    _check_allowed(fitting, options, mismatched)
    _check_booleans(tuple(entry for _, found in taken.values() for entry in found))
    changed: dict[int, Leaf] = {n: _loaded(leaf, found, options) for n, (leaf, found) in taken.items()}
    return {path: changed.setdefault(id(leaf), _own(leaf)) for path, leaf in leaves.items()}, fitting


def _misfits(leaf: Weight, found: list[Entry], cast: bool) -> dict[str, str]:
    """Entries that the leaf cannot take, by path, and why: of another kind or shape, or tied and different.

    A cast does not quantize (R16).
    """
    wrong: dict[str, str] = {}
    for entry in found:
        bits = entry.bits
        quantizes = cast and leaf.quantized and bits.dtype != leaf.dtype
        if kind_of(bits.dtype) != leaf.kind or bits.shape != leaf.filed_shape or quantizes:
            wrong[entry.path] = f"{bits.dtype} {bits.shape} for {leaf.dtype} {leaf.filed_shape}"
    if wrong:
        return wrong
    return {other.path: f"differs from {found[0].path}" for other in found[1:] if other.bits != found[0].bits}


def _check_allowed(fitting: rec.Fitting, options: LoadOptions, reasons: Mapping[str, str]) -> None:
    """R23 to R27."""
    errors = (
        () if options.allow_partial else fitting.missing,
        () if options.allow_unused else fitting.unused,
        fitting.mismatched if options.validate else (),
    )
    if any(errors):
        kind = "record_mismatch" if errors[2] else "record_missing" if errors[0] else "record_unused"
        said = "; ".join(f"{path} {reasons.get(path, '')}" for paths in errors for path in paths)
        raise RefusalError(kind, said, *errors)


def _check_booleans(entries: tuple[Entry, ...]) -> None:
    """R75, R104."""
    for entry in entries:
        if entry.bits.dtype == "bool" and not set(entry.bits.data) <= {0, 1}:
            raise RefusalError("record_format", f"{entry.path}: a boolean is neither 0 nor 1")


def _own(leaf: Leaf) -> Leaf:
    return replace(leaf) if isinstance(leaf, Weight) and leaf.role == "running" else leaf


def _loaded(leaf: Weight, found: list[Entry], options: LoadOptions) -> Weight:
    bits = found[0].bits
    if is_scheme(bits.dtype):
        if leaf.role == "running" or (options.cast and not leaf.quantized):  # M96, R15
            bits = bits_of(array_of(bits, leaf.dtype if options.cast else None))
    elif options.cast and bits.dtype != leaf.dtype:
        bits = expected.cast(bits, leaf.dtype)
    number = next((entry.id for entry in found if entry.id is not None), None)
    keeps = leaf.role == "running" or number is None
    return replace(leaf.with_bits(exchanged(bits) if leaf.turned else bits), id=leaf.id if keeps else number)


# Files, names, mappers


def _opened(data: bytes) -> Record:
    try:
        return parsed(data)
    except ValueError as error:
        raise RefusalError("record_format", str(error)) from error


def renamed(record: Record, rules: rec.Rules) -> Record:
    """The record under other paths (R34)."""
    entries: dict[str, Entry] = {}
    for entry in record.entries:
        path = entry.path
        for pattern, replacement in rules:
            path = re.sub(pattern, replacement, path)
        if "" in path.split("."):
            raise RefusalError("record_format", f"{entry.path} becomes {path!r}, which is no path")
        if path in entries:
            raise RefusalError("record_format", f"{entries[path].path} and {entry.path} become {path}")
        entries[path] = entry
    return Record(tuple(replace(entry, path=path) for path, entry in entries.items()))


def _turned(leaves: Leaves, paths: tuple[str, ...]) -> Leaves:
    made: dict[int, Leaf] = {}
    for path in paths:
        leaf = leaves[path]
        if isinstance(leaf, Weight) and len(leaf.shape) > 1:
            made[id(leaf)] = _turned_weight(leaf)
    return {path: made.get(id(leaf), leaf) for path, leaf in leaves.items()}


def _turned_weight(leaf: Weight) -> Weight:
    if leaf.lazy and isinstance(leaf.held, Cell):
        return replace(leaf, held=TurnedCell(leaf.held), turned=True)
    bits = exchanged(leaf.bits())
    return replace(leaf, held=bits, shape=bits.shape, turned=True)
