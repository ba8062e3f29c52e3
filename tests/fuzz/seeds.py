"""Files to begin with: small ones of every format, by the writers, by other libraries, and by Burn and PyTorch."""

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any, Final

import gguf
import msgpack
import numpy as np
import safetensors.numpy

from engine import Tensor
from records import ModuleRecord, ParamId, RecordEntry
from tests.golden_files import golden_file
from tests.records import pytorch_oracle

SHARDS: Final = ("1.safetensors", "2.safetensors")  # beside an index
_TENSORS: Final[dict[str, Any]] = {
    "b.w": np.array([[1, -0.0], [np.nan, 2]], "float32"),
    "a": np.array([True, False, True]),
    "n": np.array(7, "int64"),
    "none": np.zeros((0, 3), "float16"),
    "u": np.array([1, 255], "uint8"),
}
_MAX_NBYTES: Final = 6000
_SAMPLES: Final = Path(__file__).parents[1] / "records" / "data" / "pytorch"
_PYTORCH: Final = ("state_dict.pt", "training_run.pt", "views.pt", "without_crc.pt", "dtypes.pt", "before_1_6.pth")


def seeds(reader: str, folder: Path) -> list[bytes]:
    """Files for a reader, each of a few kilobytes at most; `folder` is for what is written on the way."""
    made = [data for data in _SEEDS[reader](folder) if len(data) <= _MAX_NBYTES]
    assert made
    return made


def write_shards(folder: Path) -> None:
    """The files that an index names."""
    record = _record()
    for name, paths in zip(SHARDS, (("a", "b.w"), ("n", "none", "u")), strict=True):
        record.adapt(lambda entries, paths=paths: {path: entries[path] for path in paths}).save(folder / name)


def _record() -> ModuleRecord:
    entries = [
        (path, RecordEntry(Tensor.from_numpy(array, "cpu:0"), ParamId(number)))
        for number, (path, array) in enumerate(_TENSORS.items())
    ]
    return ModuleRecord(entries, scalars={"step": 3, "rate": 0.1, "on": True}, metadata={"k": "v"})


def _saved(folder: Path, record: ModuleRecord, name: str, **given: Any) -> bytes:
    record.save(folder / name, **given)
    return (folder / name).read_bytes()


def _golden(archive: str, extension: str) -> list[bytes]:
    with zipfile.ZipFile(golden_file(archive)) as opened:
        return [opened.read(name) for name in opened.namelist() if name.endswith(extension)]


def _burnpack(folder: Path) -> list[bytes]:
    own = [_record().into_bytes(digest=digest) for digest in (True, False)]
    return own + _golden("burn/burnpack.zip", ".bpk")


def _mpk(folder: Path) -> list[bytes]:
    record = ModuleRecord({path: entry for path, entry in _record().items() if path != "none"})
    own = [
        _saved(folder, part, "s.mpk", for_burn=version)
        for version in ("0.9", "0.11", "0.13", "0.14", "0.20", "0.21")
        for part in (record, record.adapt(lambda entries: {"b.w": entries["b.w"]}))
        if part is not record or version != "0.9"
    ]
    return own + _distinct(_golden("burn/mpk.zip", ".mpk") + _golden("burn/mpk.zip", ".json"))


def _distinct(files: list[bytes]) -> list[bytes]:
    """Those that differ in their structure, the smallest of each."""
    found: dict[str, bytes] = {}
    for data in sorted(files, key=len):
        try:
            tree = msgpack.unpackb(data, raw=False) if data[:1] != b"{" else json.loads(data)
        except ValueError:
            continue
        if isinstance(tree, dict) and "item" in tree:
            found.setdefault(_outline(tree["item"]), data)
    return list(found.values())


def _outline(tree: Any) -> str:
    if isinstance(tree, dict):
        return "{" + ",".join(sorted({f"{key}:{_outline(value)}" for key, value in tree.items()})) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(sorted({_outline(value) for value in tree[:5]})) + "]"
    return tree if isinstance(tree, str) and tree.isalnum() and len(tree) < 10 else type(tree).__name__


def _gz(folder: Path) -> list[bytes]:
    return [gzip.compress(data, mtime=0) for data in _mpk(folder)[::4]]


def _safetensors(folder: Path) -> list[bytes]:
    own = [_saved(folder, _record(), "s.safetensors"), _saved(folder, ModuleRecord(), "s.safetensors")]
    other = {"w": np.ones((2, 3), "float32"), "h": np.ones(3, "float16"), "s": np.array(1.0)}
    foreign = b'{"b":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}'
    return [
        *own,
        safetensors.numpy.save(other, {"format": "pt"}),
        len(foreign).to_bytes(8, "little") + foreign + b"\0\0",
    ]


def _index(folder: Path) -> list[bytes]:
    places = {"b.w": SHARDS[0], "a": SHARDS[0], "n": SHARDS[1]}
    tops: list[Any] = [
        {"metadata": {"total_size": 24}, "weight_map": places},
        {"weight_map": {}},
        {"weight_map": {"w": "missing.safetensors"}, "metadata": {"a": [1, {"b": None}]}},
    ]
    return [json.dumps(top, indent=indent).encode() for top in tops for indent in (None, 2)]


def _pytorch(folder: Path) -> list[bytes]:
    samples = [(_SAMPLES / name).read_bytes() for name in _PYTORCH]
    arrays = [np.array([[1.5, 2.0]], "float32"), np.array([1, 2], "int64")]
    state = {f"l.{key}": pytorch_oracle.tensor(str(key), array) for key, array in enumerate(arrays)}
    run = {"model": state, "epoch": 3, "lr": 0.5, "name": "x", "steps": [1, 2.5, None, True]}
    return [
        *samples,
        pytorch_oracle.archive(run, [pytorch_oracle.memory(array) for array in arrays]),
        pytorch_oracle.legacy(run, arrays),
    ]


def _gguf(folder: Path) -> list[bytes]:
    made = []
    values = np.random.default_rng(0).standard_normal((2, 256), dtype="float32")
    for kind in (None, "Q4_0", "Q8_0", "Q5_1", "BF16", "Q4_K", "Q6_K", "Q2_K", "IQ4_NL", "IQ4_XS", "TQ1_0"):
        writer = gguf.GGUFWriter(folder / "s.gguf", "llama")
        writer.add_array("tokens", ["a", "bc"])
        writer.add_array("nested", [[1, 2], [3]])
        writer.add_float32("f", 0.5)
        writer.add_bool("b", True)
        if kind is None:
            writer.add_tensor("w", values[:, :3])
            writer.add_tensor("i", np.arange(3, dtype="int8"))
        else:
            type = gguf.GGMLQuantizationType[kind]
            block, nbytes = gguf.GGML_QUANT_SIZES[type]
            stored = np.random.default_rng(1).integers(0, 255, (2, 256 // block * nbytes)).astype("uint8")
            writer.add_tensor("q", stored, raw_dtype=type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        made.append((folder / "s.gguf").read_bytes())
    return made


_SEEDS: Final = {
    "burnpack": _burnpack,
    "mpk": _mpk,
    "mpk.gz": _gz,
    "safetensors": _safetensors,
    "index": _index,
    "pytorch": _pytorch,
    "gguf": _gguf,
}
