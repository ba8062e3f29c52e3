"""Do loading and saving a checkpoint run at the speed of the file system, in no more memory than its tensors?

A burnpack file of 540 MB with the tensors of a language model of 135M parameters in float32, in the system's cache and
in the folder that TMPDIR names. GB/s (1e9 bytes per second) and ratios of rates: medians of 10 interleaved rounds for
loading, 5 for saving. Loading maps the file, so it is measured twice: as it is, and with every byte used once
afterwards, on both sides. The digest of a file is one SHA-256, which cannot be computed in parts; so where the disk is
faster, saving is held to the hash. Memory is that of a process of its own, at its peak; pages of the mapped file count.
Where this interpreter, or the one that --beside names, has torch and safetensors: against safetensors.torch and against
PyTorch with mmap=True, each with a file of its own, in the same rounds; what they save is flushed to disk as ours is.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine import Device, Tensor
from modules import Module, Param
from records import ModuleRecord, RecordEntry, open_record

from . import records_beside
from .answers import check_same, check_same_bits
from .apart import apart, own_bytes, peak_bytes
from .report import Limit, Row, at_least, at_most
from .settings import Settings
from .timing import Spread, Timing, timed

_PIECE = 8 * 2**20  # bytes that the plain write hands over at once, as ours does


class Layer(Module):
    """Parameters of some shapes, without values until they are loaded."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: str) -> None:
        self.tensors = {name: Param.lazy(_refused, shape, "float32", device) for name, shape in shapes.items()}


class Model(Module):
    """Layers of a file's shapes."""

    def __init__(self, layers: list[dict[str, tuple[int, ...]]], device: str = "cpu:0") -> None:
        self.layers = [Layer(shapes, device) for shapes in layers]


def _refused(device: Device, require_grad: bool) -> Tensor:
    raise AssertionError("a parameter that is loaded never makes its initial value (R21)")


def shapes_of(quick: bool) -> list[dict[str, tuple[int, ...]]]:
    """The tensors of a SmolLM2 of 135M parameters, layer by layer; or of a very small one."""
    width, inner, kv, count, vocabulary = (8, 24, 4, 2, 64) if quick else (576, 1536, 192, 30, 49152)
    block = {
        "input_norm": (width,),
        "query": (width, width),
        "key": (width, kv),
        "value": (width, kv),
        "output": (width, width),
        "inner_norm": (width,),
        "gate": (width, inner),
        "up": (width, inner),
        "down": (inner, width),
    }
    return [{"embedding": (vocabulary, width)}, *[block] * count, {"norm": (width,)}]


def arrays_of(layers: list[dict[str, tuple[int, ...]]]) -> dict[str, NDArray[np.float32]]:
    """Random numbers for every path of `Model`."""
    random = np.random.default_rng(0)
    return {
        f"layers.{index}.tensors.{name}": random.standard_normal(shape, np.float32)
        for index, shapes in enumerate(layers)
        for name, shape in shapes.items()
    }


def record_of(arrays: Mapping[str, NDArray[Any]]) -> ModuleRecord:
    """A record over these arrays, which are not copied."""
    return ModuleRecord((path, RecordEntry(Tensor.adopt(array, "cpu:0"))) for path, array in arrays.items())


def used(arrays: Iterable[NDArray[Any]]) -> int:
    """The largest word in some arrays: reads every byte once."""
    return max(int(array.reshape(-1).view(np.uint32).max()) for array in arrays)


def values_of(module: Module) -> Iterator[tuple[str, NDArray[Any]]]:
    """Each parameter's array with its path."""
    for path, entry in module.into_record().items():
        yield path, entry.host()


def write_plainly(file: Path, arrays: Iterable[NDArray[Any]]) -> None:
    """Write arrays one behind the other, and flush them to disk."""
    with file.open("wb", buffering=0) as opened:
        for array in arrays:
            data = array.reshape(-1).view(np.uint8).data
            for offset in range(0, len(data), _PIECE):
                piece = data[offset : offset + _PIECE]
                while len(piece):
                    piece = piece[opened.write(piece) :]
        os.fsync(opened.fileno())


def hash_plainly(arrays: Iterable[NDArray[Any]]) -> bytes:
    """One SHA-256 of arrays one behind the other."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()


def load_in_process(file: str, layers: str) -> dict[str, int | None]:
    """For a process of its own: memory before and after loading and using a file."""
    model = Model(json.loads(layers))
    before = peak_bytes()
    loaded = model.load_file(file)
    used(array for _, array in values_of(loaded))
    return {"before": before, "after": peak_bytes(), "own": own_bytes()}


def save_in_process(file: str, layers: str) -> dict[str, int]:
    """For a process of its own: memory before and after saving a model that it holds."""
    record = record_of(arrays_of(json.loads(layers)))
    before = peak_bytes()
    record.save(file)
    return {"before": before, "after": peak_bytes()}


def measure(settings: Settings) -> Iterable[Row]:
    """Opening, loading, saving, and the memory of both."""
    settings.progress.expect(2)
    layers = shapes_of(settings.quick)
    with tempfile.TemporaryDirectory(prefix="layerloom-bench-") as folder:
        file = Path(folder) / "model.bpk"
        arrays = arrays_of(layers)
        record_of(arrays).save(file)
        yield from _loading(settings, file, layers, arrays)
        yield _loading_memory(file, layers)
        yield from _beside(settings, file, layers, arrays)
        file.unlink()
        yield from _saving(settings, file, arrays)
        largest = max(array.nbytes for array in arrays.values())
        arrays.clear()
        yield _saving_memory(file, layers, largest)


def _loading(
    settings: Settings, file: Path, layers: list[dict[str, tuple[int, ...]]], arrays: Mapping[str, NDArray[Any]]
) -> Iterator[Row]:
    model = Model(layers)
    loaded = dict(values_of(model.load_file(file)))
    check_same("records, paths", list(loaded), list(arrays))
    for path, array in arrays.items():
        check_same_bits(f"records, {path}", loaded[path], array)
    del loaded

    def opened() -> None:
        with open_record(file):
            pass

    def read_entries() -> int:
        with open_record(file) as record:
            return used(entry.read("cpu:0").numpy() for entry in record.values())

    opening, one_array, loading, one_array_used, entries_used, module_used = settings.interleaved(
        timed(opened),
        timed(lambda: np.fromfile(file, np.uint8)),
        timed(lambda: model.load_file(file)),
        timed(lambda: used([np.fromfile(file, np.uint32, file.stat().st_size // 4)])),
        timed(read_entries),
        timed(lambda: used(array for _, array in values_of(model.load_file(file)))),
        rounds=10,
    )
    nbytes = file.stat().st_size
    bound = at_least(0.8)
    yield Row(what="opening a file", value=opening.spread(1e-3), unit="ms")
    yield Row(what="reading a file into one array", value=one_array.rate(nbytes / 1e9), unit="GB/s")
    yield _rate("loading into a Module", loading, one_array, nbytes, "reading into one array", bound)
    yield Row(what="the same array, used once", value=one_array_used.rate(nbytes / 1e9), unit="GB/s")
    to = "reading into one array, used once"
    yield _rate("reading a record's entries, used once", entries_used, one_array_used, nbytes, to, bound)
    yield _rate("loading into a Module, used once", module_used, one_array_used, nbytes, to, bound)


def _beside(
    settings: Settings, file: Path, layers: list[dict[str, tuple[int, ...]]], arrays: Mapping[str, NDArray[Any]]
) -> Iterator[Row]:
    """The same by safetensors and by PyTorch."""
    model, record, target = Model(layers), record_of(arrays), file.with_name("saved.bpk")
    ours = records_beside.Ours(
        open=lambda: open_record(file).close(),
        load=lambda: model.load_file(file),
        use=lambda: used(array for _, array in values_of(model.load_file(file))),
        save=lambda: record.save(target),
        save_undigested=lambda: record.save(target, digest=False),
        target=target,
    )
    yield from records_beside.rows(settings, file.parent, record, arrays, ours)
    target.unlink(missing_ok=True)


def _saving(settings: Settings, file: Path, arrays: Mapping[str, NDArray[Any]]) -> Iterator[Row]:
    record = record_of(arrays)
    nbytes = sum(array.nbytes for array in arrays.values())
    plain = file.with_name("plain")

    def without(target: Path) -> Callable[[], None]:
        return lambda: target.unlink(missing_ok=True)

    writing, hashing, saving, undigested = settings.interleaved(
        timed(lambda: write_plainly(plain, arrays.values()), before=without(plain)),
        timed(lambda: hash_plainly(arrays.values())),
        timed(lambda: record.save(file), before=without(file)),
        timed(lambda: record.save(file, digest=False), before=without(file)),
        rounds=5,
        warmup=1,
    )
    record.save(file)
    with open_record(file, check_data=True) as saved:
        check_same("records, saved paths", sorted(saved), sorted(arrays))
        for path, array in arrays.items():
            check_same_bits(f"records, saved {path}", saved[path].host(), array)
    check_same("records, bytes written", plain.stat().st_size, nbytes)
    plain.unlink()
    to = "plain write and fsync"
    yield Row(what=to, value=writing.rate(nbytes / 1e9), unit="GB/s")
    yield Row(what="one SHA-256", value=hashing.rate(nbytes / 1e9), unit="GB/s")
    yield _rate("saving, with digests", saving, writing, nbytes, to, None)
    slower = max(writing, hashing, key=lambda timing: timing.spread().median)
    yield _rate("saving, at its limit", saving, slower, nbytes, "the slower of write and SHA-256", at_least(0.9))
    yield _rate("saving, without digests", undigested, writing, nbytes, to, None)


def _rate(what: str, timing: Timing, other: Timing, nbytes: int, to: str, bound: Limit | None) -> Row:
    return Row(what=what, value=timing.rate(nbytes / 1e9), unit="GB/s", ratio=other.over(timing), to=to, bound=bound)


def _loading_memory(file: Path, layers: list[dict[str, tuple[int, ...]]]) -> Row:
    found = apart(__name__, "load_in_process", str(file), json.dumps(layers))
    grown, nbytes = found["after"] - found["before"], file.stat().st_size
    own = "" if found["own"] is None else f"memory of its own afterwards, in all: {found['own'] / 1e6:.0f} MB"
    return Row(
        what="memory that loading takes at its peak",
        value=_one(grown / 1e6),
        unit="MB",
        ratio=_one(grown / nbytes),
        to="the file",
        bound=at_most(1.05),
        note=own,
    )


def _saving_memory(file: Path, layers: list[dict[str, tuple[int, ...]]], largest: int) -> Row:
    found = apart(__name__, "save_in_process", str(file), json.dumps(layers))
    grown = found["after"] - found["before"]
    return Row(
        what="memory that saving takes at its peak, beyond the model",
        value=_one(grown / 1e6),
        unit="MB",
        ratio=_one(grown / largest),
        to="the largest tensor",
        bound=at_most(1),
    )


def _one(number: float) -> Spread:
    """What was measured once."""
    return Spread(number, number, number)
