"""Files that fourteen releases of Burn wrote, from 0.8 to 0.21, and what is in them. N1 to N15."""

import functools
import gzip
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from engine import dequantize
from records import ModuleRecord, RecordError, RecordFormatError, open_record
from tests.golden_files import golden_file

pytestmark = pytest.mark.golden

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16",
    "Bool": "bool", "{'Bool': 'Native'}": "bool",
}  # fmt: skip
KINDS = {None: "module", "optimizer": "optimizer", "scalar": "scheduler"}
TEXT = re.compile(rb"\x82\xa2id(?:\xad[0-9a-v]{13}|\xaa[0-9a-v]{10}|\xd9\x24[0-9a-f-]{36})\xa5param")


@functools.cache
def archive() -> dict[str, bytes]:
    with zipfile.ZipFile(golden_file("burn/mpk.zip")) as opened:
        return {name: opened.read(name) for name in opened.namelist() if not name.endswith("/")}


def files() -> dict[str, dict[str, Any]]:
    """Name to sidecar; the files that can be read."""
    told = {name: json.loads(data) for name, data in archive().items() if name.endswith(".sidecar.json")}
    return {
        name.removesuffix(".sidecar.json"): sidecar for name, sidecar in told.items() if ".bin" not in Path(name).name
    }


def written(folder: Path, name: str) -> Path:
    file = folder / name.replace("/", "-")
    file.write_bytes(archive()[name])
    return file


def tensors(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [tensor for tensor in told["tensors"] if tensor["kind"] != "scalar"]


def test_every_file_of_burn_equals_its_sidecar(tmp_path):
    """N1 to N13: paths in file order, ids, dtypes, shapes, bytes; of quantized tensors the float32 that Burn gives."""
    seen: dict[str, int] = {}
    for name, told in files().items():
        with open_record(written(tmp_path, name)) as record:
            paths = [tensor["path"] for tensor in tensors(told)]
            assert sorted(record) == sorted(paths), name
            assert told.get("kind") == "optimizer" or list(record) == paths, name
            if told["module"] != "scheduler_unit":  # nothing: a module may be that too
                assert record.kind == KINDS[told.get("kind")]
            assert record.metadata["settings"] == told["settings"]
            scalars = {one["path"]: one["value"] for one in told["tensors"] if one["kind"] == "scalar"}
            if told.get("item") is not None:
                scalars = {"item": told["item"]}
            assert {key: scalar.value for key, scalar in record.scalars.items()} == scalars, name
            for tensor in tensors(told):
                check(record, tensor, told, name)
                seen[tensor["kind"]] = seen.get(tensor["kind"], 0) + 1
    assert len(files()) == 454
    assert set(seen) == {"float", "int", "bool", "quantized"}


def check(record: ModuleRecord, tensor: dict[str, Any], told: dict[str, Any], name: str) -> None:
    entry = record[tensor["path"]]
    assert list(entry.shape) == tensor["shape"], name
    if "id_u64" in tensor:
        assert int(entry.id or 0) == int(tensor["id_u64"]), name
        assert str(entry.id) == tensor["id"]
    elif told["burn"].startswith("0.14") and "id" in tensor:
        assert str(entry.id) == tensor["id"] + "000"
    else:
        assert entry.id is None
    if tensor["kind"] == "quantized":
        read = entry.read("cpu:0")
        assert read.is_quantized != is_affine(tensor), name
        numbers = dequantize(read) if read.is_quantized else read
        assert numbers.tobytes().hex() == tensor["dequantized_f32_hex"], name
        return
    array = entry.of_kind(tensor["kind"]).read("cpu:0").numpy()
    if tensor["kind"] == "int" and tensor["dtype"] == "F32":  # 0.11 in full precision
        assert array.dtype == "int32"
        array = array.astype("float32")
    assert str(array.dtype) == DTYPES[str(tensor["dtype"])], name
    assert array.tobytes().hex() == tensor["hex"], (name, tensor["path"])


def is_affine(tensor: dict[str, Any]) -> bool:
    """Whether a quantized tensor has a zero point, and so no scheme of ours."""
    return tensor["kind"] == "quantized" and "Affine" in str(tensor["dtype"])


def test_writing_what_burn_wrote_gives_its_bytes(tmp_path):
    """N10, N15 to N20: every file but those with zero points, for its own version, gzip aside.

    Ids of 0.8 to 0.14 are written in today's form (N20), and of 0.8 there is no plain file, so no version to write for.
    """
    compared = 0
    for name, told in files().items():
        if name.endswith(".json") or any(map(is_affine, told["tensors"])):
            continue
        with open_record(written(tmp_path, name)) as opened:
            kinds = {one["path"]: one["kind"].replace("quantized", "float") for one in tensors(told)}
            entries = [(path, opened[path].of_kind(kind)) for path, kind in kinds.items()]
            record = ModuleRecord(entries, scalars=opened.scalars, metadata=opened.metadata)
            again = tmp_path / ("again.mpk.gz" if name.endswith(".gz") else "again.mpk")
            version = told["burn"]
            record.save(again, for_burn="0.9" if version.startswith("0.8") else version)
        ours, theirs = again.read_bytes(), archive()[name]
        if name.endswith(".gz"):
            ours, theirs = gzip.decompress(ours), gzip.decompress(theirs)
        if version.startswith("0.8"):
            ours = ours.replace(b"\xa50.9.0", b"\xa50.8.0")
        if version >= "0.15" and not version.startswith(("0.8", "0.9")):
            assert ours == theirs, name
        assert TEXT.sub(b"\x82\xa2id", ours) == TEXT.sub(b"\x82\xa2id", theirs), name
        compared += 1
    assert compared >= 420


def test_a_file_becomes_burnpack_and_named_message_pack_again_with_its_ids(tmp_path):
    """N15, R62: what stands where travels in the metadata."""
    name = "v0.21.0/nest_full.mpk"
    with open_record(written(tmp_path, name)) as record:
        record.save(tmp_path / "r.bpk")
    with open_record(tmp_path / "r.bpk") as record:
        record.save(tmp_path / "r.mpk")
    assert (tmp_path / "r.mpk").read_bytes() == archive()[name]


def test_bincode_is_refused_with_the_reason(tmp_path):
    """N14."""
    names = [name for name in archive() if name.endswith(".bin")]
    assert len(names) == 14
    for name in names:
        for data in (archive()[name], gzip.compress(archive()[name])):
            file = tmp_path / "m.bin"
            file.write_bytes(data)
            with pytest.raises(RecordFormatError, match=r"m\.bin: .*BinFileRecorder, which stores no names"):
                open_record(file)


def test_a_version_without_the_kind_of_parameter_is_refused(tmp_path):
    """N6, N18: booleans and integers came with 0.11."""
    with open_record(written(tmp_path, "v0.21.0/kinds_full.mpk")) as record:
        with pytest.raises(RecordError, match=r"'ints'.*0\.10 has no parameters of int32"):
            record.save(tmp_path / "r.mpk", for_burn="0.10")
        for version in ("0.11", "0.13", "0.14", "0.20"):
            record.save(tmp_path / "r.mpk", for_burn=version)
            with open_record(tmp_path / "r.mpk") as again:
                for path, entry in record.items():
                    read = again[path].of_kind(entry.kind).read("cpu:0")
                    assert read.tobytes() == entry.read("cpu:0").tobytes(), (version, path)
