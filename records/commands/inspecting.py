"""``inspect FILE …``: what a record holds, as a tree with dtypes, shapes, sizes and ids, or as JSON."""

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from records.entry import RecordEntry
from records.files import existing_file
from records.opening import open_record
from records.record import ModuleRecord
from records.scalar import Scalar
from records.shown import shown

from .command_line import counted, printable

_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_STEP: Final = "  "
_MAX_COMPONENTS: Final = 64  # that are shown as a tree; what is below them stands on one line


def add(commands: Any) -> None:
    """Add the command to a parser's."""
    parser = commands.add_parser("inspect", help="what a file holds", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each file")
    parser.set_defaults(run=inspect)


def inspect(arguments: argparse.Namespace) -> None:
    """Print what is in each file; no tensor is read."""
    for number, file in enumerate(arguments.files):
        with open_record(file) as record:
            if arguments.json:
                print(json.dumps(as_json(file, record), allow_nan=False))
            else:
                print("\n" * bool(number) + "\n".join(_text(file, record)))


def as_json(file: Path, record: ModuleRecord) -> dict[str, Any]:
    """What a record holds, as JSON has it. Ids are texts; scalars have kind and value, NaN and infinities as texts."""
    tensors = [
        {
            "path": path,
            "dtype": str(entry.dtype),
            "shape": list(entry.shape),
            "bytes": entry.nbytes,
            "id": None if entry.id is None else str(entry.id),
        }
        for path, entry in record.items()
    ]
    return {
        "file": str(file),
        "format": record.format,
        "kind": record.kind,
        "file_bytes": existing_file(file).stat().st_size,
        "tensors": tensors,
        "scalars": {name: {"kind": one.kind, "value": _json_number(one)} for name, one in record.scalars.items()},
        "metadata": {name: _json_value(value) for name, value in record.metadata.items()},
        "totals": {
            "tensors": len(record),
            "elements": sum(math.prod(entry.shape) for entry in record.values()),
            "bytes": sum(entry.nbytes for entry in record.values()),
            "dtypes": dict(Counter(str(entry.dtype) for entry in record.values())),
        },
    }


def _json_number(scalar: Scalar) -> Any:
    value = scalar.value
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def _json_value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _json_value(inner) for key, inner in value.items()}
    return list(map(_json_value, value)) if isinstance(value, (tuple, list)) else value


def _text(file: Path, record: ModuleRecord) -> Iterator[str]:
    elements = sum(math.prod(entry.shape) for entry in record.values())
    kind = "" if record.kind == "module" else f", of Burn's {record.kind}"
    counts = f"{counted(len(record), 'tensor')}, {counted(elements, 'element')}, {size(_nbytes(record))}"
    yield printable(f"{file}: {record.format}{kind}: {counts}; the file has {size(existing_file(file).stat().st_size)}")
    by_dtype = Counter(str(entry.dtype) for entry in record.values())
    if len(by_dtype) > 1:
        yield _STEP + ", ".join(f"{count:,} {dtype}" for dtype, count in by_dtype.most_common())
    yield from _tree(record)
    if record.scalars:
        yield "scalars"
        yield from (f"{_STEP}{printable(name)}  {one.kind} {one.value}" for name, one in record.scalars.items())
    if record.metadata:
        yield "metadata"
        yield from (f"{_STEP}{printable(name)}  {shown(value)}" for name, value in record.metadata.items())


def _tree(record: Mapping[str, RecordEntry]) -> Iterator[str]:
    """A line for each tensor below those of the modules that it lies in, which say how much they hold."""
    held = Counter[str]()
    for path, entry in record.items():
        for above in _above(path):
            held[above] += entry.nbytes
    width = max((_left_width(path) for path in record), default=0)
    open_: list[str] = []
    for path, entry in record.items():
        modules = _above(path)
        common = next((at for at, (a, b) in enumerate(zip(open_, modules, strict=False)) if a != b), None)
        for depth in range(min(len(open_), len(modules)) if common is None else common, len(modules)):
            name = modules[depth].rpartition(".")[2] if depth else modules[depth]
            yield f"{_STEP * depth}{printable(name)}  {size(held[modules[depth]])}"
        open_ = modules
        name = printable(path.split(".", len(modules))[-1])
        left = f"{_STEP * len(modules)}{name}"
        id_ = "" if entry.id is None else f"  {entry.id}"
        yield f"{left:{width}}  {entry.dtype} {list(entry.shape)}  {size(entry.nbytes)}{id_}"


def _above(path: str) -> list[str]:
    """The paths of the modules that a path lies in, from the outermost on."""
    components = path.split(".")[:-1][:_MAX_COMPONENTS]
    return [".".join(components[: at + 1]) for at in range(len(components))]


def _left_width(path: str) -> int:
    modules = _above(path)
    return len(_STEP) * len(modules) + len(printable(path.split(".", len(modules))[-1]))


def _nbytes(record: ModuleRecord) -> int:
    return sum(entry.nbytes for entry in record.values())


def size(nbytes: int) -> str:
    """Bytes as people read them: ``1,044 B``, ``1.04 MB``."""
    if nbytes < 10_000:
        return f"{nbytes:,} B"
    amount, unit = float(nbytes), 0
    while amount >= 999.5 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.3g} {_UNITS[unit]}"
