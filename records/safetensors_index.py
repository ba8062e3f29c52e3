"""Reading an index of safetensors files: ``*.safetensors.index.json``, which says in which file each tensor lies."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, Final, final

from .entry import Contents, RecordEntry
from .errors import RecordFormatError
from .safetensors_file import SafetensorsFile, read_safetensors
from .scalar import Scalar
from .shown import said, shown
from .storage import Limits, Storage

_MAP: Final = "weight_map"
_STARTS: Final = re.compile(rb'\s*\{\s*"(?:metadata|weight_map)"')
_ENDING: Final = ".index.json"
_MAX_FILES: Final = 1000  # each of which stays open


def begins_index(name: str, start: bytes) -> bool:
    """Whether a file that has this name and starts so is an index."""
    return _STARTS.match(start) is not None and (name.endswith(_ENDING) or b'"weight_map"' in start)


@final
class SafetensorsShards:
    """The open files of an index, closed together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.files: list[SafetensorsFile] = []

    def close(self) -> None:
        """Let go of the files. What was read stays valid."""
        for file in self.files:
            file.close()


def read_index(storage: Storage, limits: Limits) -> tuple[Contents, SafetensorsShards]:
    """The entries of all files that an index names, in the order of their names; no tensor is read.

    A tensor that is in a file and not in the index is left out. The metadata
    is the index's, and that of the files.

    Raises:
        RecordFormatError: it is no index, a tensor is not where it says, or it is beyond a limit.
        RecordIoError: a file is missing, or the system refused to open it.
    """
    top = _json(storage, limits)
    by_file: defaultdict[str, set[str]] = defaultdict(set)
    for tensor, file in top[_MAP].items():
        if not isinstance(file, str) or not file or file in (".", "..") or "/" in file or "\\" in file or "\0" in file:
            raise RecordFormatError(
                f"{storage.name}: tensor {shown(tensor)} is in {shown(file)}, no name of a file beside the index"
            )
        by_file[file].add(tensor)
    if len(by_file) > _MAX_FILES:
        raise RecordFormatError(f"{storage.name}: {len(by_file)} files, the limit is {_MAX_FILES}")
    opened = SafetensorsShards(storage.name)
    try:
        return _united(storage.name, by_file, top.get("metadata"), opened, limits), opened
    except BaseException:
        opened.close()
        raise


def _united(
    index: str, by_file: dict[str, set[str]], metadata: Any, opened: SafetensorsShards, limits: Limits
) -> Contents:
    entries: list[tuple[str, RecordEntry]] = []
    scalars: dict[str, Scalar] = {}
    texts: dict[str, Any] = dict(metadata) if isinstance(metadata, dict) else {}
    for file in sorted(by_file):
        contents, shard = read_safetensors(str(Path(index).with_name(file)), limits)
        opened.files.append(shard)
        found = [(name, entry) for name, entry in contents.entries if name in by_file[file]]
        if missing := by_file[file] - {name for name, _ in found}:
            raise RecordFormatError(f"{shard.name}: has no tensor {shown(min(missing))}, which {index} says it has")
        entries += found
        scalars.update(contents.scalars)
        for key, text in contents.metadata.items():
            texts.setdefault(key, text)
    return Contents(sorted(entries, key=lambda pair: pair[0]), scalars, texts)


def _json(storage: Storage, limits: Limits) -> dict[str, Any]:
    if storage.nbytes > limits.max_metadata_bytes:
        raise RecordFormatError(
            f"{storage.name}: {storage.nbytes} bytes, the limit is {limits.max_metadata_bytes}; "
            "give max_metadata_bytes to raise it"
        )
    try:
        top = json.loads(storage.read(0, storage.nbytes), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise RecordFormatError(f"{storage.name}: no index of safetensors files: {said(error)}") from None
    if not isinstance(top, dict) or not isinstance(top.get(_MAP), dict):
        raise RecordFormatError(f"{storage.name}: no index of safetensors files: it has no map {_MAP!r}")
    _check_depth(storage.name, top, limits.max_depth)
    if len(top[_MAP]) > limits.max_tensors:
        raise RecordFormatError(
            f"{storage.name}: {len(top[_MAP])} tensors, the limit is {limits.max_tensors}; give max_tensors to raise it"
        )
    return top


def _check_depth(name: str, top: dict[str, Any], limit: int) -> None:
    """R79."""
    containers: list[Any] = [top]
    for _ in range(limit):
        inner = (one for outer in containers for one in (outer.values() if isinstance(outer, dict) else outer))
        containers = [one for one in inner if isinstance(one, (dict, list))]
    if containers:
        raise RecordFormatError(f"{name}: values nest deeper than the limit of {limit}; give max_depth to raise it")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key is there twice")
    return made
