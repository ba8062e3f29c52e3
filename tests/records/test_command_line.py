"""``python -m records``: what inspect, convert and extract print and write, how commands end, what memory they need."""

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from records import ModuleRecord, ParamId, RecordIoError, Scalar, open_record
from records.__main__ import main
from records.commands import command_line
from records.commands.command_line import printable
from records.commands.inspecting import size
from tests.records import pytorch_oracle
from tests.records.command_calls import RECORD, call, entry
from tests.records.strategies import arrays, items, observed, record_of

SAMPLES = Path(__file__).parent / "data" / "pytorch"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    RECORD.save(tmp_path / "r.bpk")
    return tmp_path / "r.bpk"


# inspect


def test_inspect_prints_a_tree_with_dtypes_shapes_sizes_and_ids(file, capsys):
    """A module's line has the bytes of all below it."""
    status, out, err = call(capsys, "inspect", file)
    ids = {path: str(one.id) for path, one in RECORD.items()}
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"{file}: burnpack: 3 tensors, 13 elements, 62 B; the file has {file.stat().st_size:,} B",
        "  1 int64, 1 float16, 1 float32",
        f"head        int64 [4]  32 B  {ids['head']}",
        "net  30 B",
        "  linear  30 B",
        f"    bias    float16 [3]  6 B  {ids['net.linear.bias']}",
        f"    weight  float32 [2, 3]  24 B  {ids['net.linear.weight']}",
        "scalars",
        "  nan  Float nan",
        "  step  Int 7",
        "metadata",
        r"  note  'x\ny'",
    ]


def test_inspect_prints_json_that_has_everything(file, capsys):
    status, out, _ = call(capsys, "inspect", file, "--json")
    found = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert status == 0
    assert found["tensors"][2] == {
        "path": "net.linear.weight", "dtype": "float32", "shape": [2, 3], "bytes": 24, "id": str(ParamId(1)),
    }  # fmt: skip
    assert found["scalars"] == {"nan": {"kind": "Float", "value": "nan"}, "step": {"kind": "Int", "value": 7}}
    assert found["metadata"] == {"note": "x\ny"}
    assert found["totals"] == {
        "tensors": 3, "elements": 13, "bytes": 62, "dtypes": {"int64": 1, "float16": 1, "float32": 1},
    }  # fmt: skip
    assert (found["format"], found["file_bytes"]) == ("burnpack", file.stat().st_size)


def test_metadata_of_an_index_is_json_again(tmp_path, capsys):
    """Numbers that JSON does not have are texts, however deep they lie."""
    index = tmp_path / "m.safetensors.index.json"
    index.write_text('{"metadata": {"a": {"b": [NaN, 1e999, 2.5, {"c": null}]}}, "weight_map": {}}')
    status, out, _ = call(capsys, "inspect", "--json", index)
    assert status == 0
    assert json.loads(out)["metadata"] == {"a": {"b": ["nan", "inf", 2.5, {"c": None}]}}


@given(entries=items())
def test_inspect_shows_every_tensor_once(entries, tmp_path_factory):
    """Names with any characters, without a control character in the output."""
    file = tmp_path_factory.getbasetemp() / "any.bpk"
    file.write_bytes(record_of(entries).into_bytes())
    out = io.StringIO()
    stdout, sys.stdout = sys.stdout, out
    try:
        main(["inspect", str(file)])
    finally:
        sys.stdout = stdout
    lines = out.getvalue().splitlines()
    assert all(line.isprintable() for line in lines)
    names = [printable(item.path.split(".")[-1]) for item in entries]
    assert all(any(line.strip().startswith(name.strip()) for line in lines[1:]) for name in names)


def test_names_of_a_file_cannot_command_a_terminal(tmp_path, capsys):
    record = ModuleRecord([("a\x1b[2Jb", entry([1.0]))])
    record.save(tmp_path / "r.bpk")
    for command in ("inspect", "verify"):
        _, out, _ = call(capsys, command, tmp_path / "r.bpk")
        assert "\x1b" not in out
    _, out, err = call(capsys, "extract", tmp_path / "r.bpk", tmp_path / "s.bpk", "x")
    assert "\x1b" not in out + err
    assert r"\x1b[2Jb" in call(capsys, "inspect", tmp_path / "r.bpk")[1]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (9_999, "9,999 B"), (10_000, "10 kB"), (999_499, "999 kB"), (999_500, "1 MB"), (1_044_776, "1.04 MB"),
     (540_000_000, "540 MB"), (7 * 10**15, "7e+03 TB")],
)  # fmt: skip
def test_sizes_are_shown_as_people_read_them(nbytes, text):
    assert size(nbytes) == text


# convert


@pytest.mark.parametrize("name", ["s.bpk", "s.safetensors"])
def test_convert_writes_the_same_record_in_another_format(name, file, tmp_path, capsys):
    """Ids, scalars and metadata go along."""
    status, out, err = call(capsys, "convert", file, tmp_path / name)
    assert (status, err) == (0, "")
    assert out.startswith(f"{tmp_path / name}: 3 tensors, ")
    with open_record(tmp_path / name) as record:
        assert observed(record) == observed(RECORD)
        assert record.scalars == RECORD.scalars
        assert record.metadata == RECORD.metadata


def test_convert_takes_steps_in_their_order_and_says_what_they_did(tmp_path, capsys):
    status, out, _ = call(
        capsys, "convert", SAMPLES / "state_dict.pt", tmp_path / "s.bpk", "--drop", "num_batches",
        "--norms", "^(norm|b)", "--rename", r"^(\w+)\.", r"net.\1.", "--transpose", "linear.weight",
        "--cast", "float16",
    )  # fmt: skip
    assert status == 0
    assert [line.split(":")[0] for line in out.splitlines() if not line.startswith(" ")][:5] == [
        "Drop", "NormNames", "KeyRemapper", "Transpose", "Cast",
    ]  # fmt: skip
    with open_record(tmp_path / "s.bpk") as record:
        assert "net.norm.gamma" in record
        assert record["net.linear.weight"].shape == (4, 3)
        assert {str(one.dtype) for one in record.values()} == {"float16"}


def test_convert_writes_for_a_version_of_burn_and_without_digests(tmp_path, capsys):
    ModuleRecord([("w", entry(np.ones(3, "float32"), 5))]).save(tmp_path / "r.bpk")
    assert call(capsys, "convert", tmp_path / "r.bpk", tmp_path / "r.mpk", "--for-burn", "0.16")[0] == 0
    assert open_record(tmp_path / "r.mpk").metadata["version"].startswith("0.16")
    assert call(capsys, "convert", tmp_path / "r.bpk", tmp_path / "b", "--no-digest")[0] == 0
    assert b"layerloom" not in (tmp_path / "b.bpk").read_bytes()
    assert call(capsys, "convert", tmp_path / "r.bpk", tmp_path / "c", "--format", "safetensors")[0] == 0
    assert (tmp_path / "c.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("r.mpk", "--for-burn", "0.8"), "0.9 to 0.21"),
        (("r.bpk", "--for-burn", "0.21"), "--for-burn is for named MessagePack"),
        (("r.safetensors", "--no-digest"), "safetensors carries no digests"),
        (("r.mpk.gz", "--no-digest"), "mpk.gz carries no digests"),
        (("r.bpk", "--rename", "a", r"\1"), "invalid group reference"),
    ],
)
def test_options_that_mean_nothing_there_are_wrong_arguments(file, arguments, said, tmp_path, capsys):
    name, *options = arguments
    status, out, err = call(capsys, "convert", file, tmp_path / "made" / name, *options)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_file_that_is_there_is_replaced_only_if_told(file, tmp_path, capsys):
    """Neither by convert nor by extract; the status is that of wrong arguments."""
    target = tmp_path / "s.npy"
    target.write_bytes(b"mine")
    (tmp_path / "s.bpk").write_bytes(b"mine")
    for command in (
        ("convert", file, tmp_path / "s.bpk"),
        ("extract", file, tmp_path / "s.bpk", "head"),
        ("extract", file, target, "head"),
    ):
        status, _, err = call(capsys, *command)
        assert status == 2
        assert "is there already; --force replaces it" in err
        assert Path(command[2]).read_bytes() == b"mine"
        assert call(capsys, *command, "--force")[0] == 0
        assert Path(command[2]).read_bytes() != b"mine"
        Path(command[2]).write_bytes(b"mine")


def test_converting_a_file_onto_itself_keeps_it_whole(file, capsys):
    assert call(capsys, "convert", file, file, "--force")[0] == 0
    with open_record(file, check_data=True) as record:
        assert observed(record) == observed(RECORD)


# extract


def test_extract_takes_tensors_and_modules_with_their_ids(file, tmp_path, capsys):
    assert call(capsys, "extract", file, tmp_path / "s.bpk", "net.linear", "head")[0] == 0
    with open_record(tmp_path / "s.bpk") as record:
        assert observed(record) == observed(RECORD)
    assert call(capsys, "extract", file, tmp_path / "t.bpk", "net.linear.bias")[0] == 0
    with open_record(tmp_path / "t.bpk") as record:
        assert list(record) == ["net.linear.bias"]


@given(array=arrays())
def test_extract_writes_a_numpy_file_of_one_tensor(array, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    (folder / "e.bpk").write_bytes(ModuleRecord([("w", entry(array))]).into_bytes())
    arguments = ["extract", str(folder / "e.bpk"), str(folder / "e.npy"), "w", "--force"]
    if array.dtype.name == "bfloat16":
        with pytest.raises(SystemExit):
            main(arguments)
        return
    main(arguments)
    read = np.load(folder / "e.npy", allow_pickle=False)
    assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("x.bpk", "head.x"), 1, "nothing at 'head.x'; the nearest path is 'head'"),
        (("x.bpk", "net.lin"), 1, "nothing at 'net.lin'; the nearest path is"),
        (("x.npy", "net"), 2, "a NumPy file holds one tensor, and 2 were asked for"),
        (("x.gguf", "head"), 2, "no gguf file is written"),
    ],
)
def test_what_cannot_be_extracted_is_one_line(arguments, status, said, file, tmp_path, capsys):
    name, path = arguments
    found, out, err = call(capsys, "extract", file, tmp_path / name, path)
    assert (found, out) == (status, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / name).exists()


# How commands end


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), 2),
        (("look",), 2),
        (("inspect",), 2),
        (("convert", "a"), 2),
        (("convert", "a", "b", "--drop", "("), 2),
        (("convert", "a", "b", "--cast", "int8"), 2),
        (("convert", "a", "b", "--format", "pt"), 2),
        (("inspect", "missing.bpk"), 1),
        (("diff", "missing.bpk", "missing.bpk"), 1),
        (("convert", "missing.bpk", "x.bpk"), 1),
        (("inspect", SAMPLES / "whole_module.pt"), 1),
    ],
)
def test_errors_are_one_line_and_a_status(arguments, status, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, out, err = call(capsys, *arguments)
    assert (found, out) == (status, "")
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err


def test_ctrl_c_ends_without_a_trace(file, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("records.commands.inspecting.open_record", interrupt)
    assert call(capsys, "inspect", file) == (130, "", "\n")


def test_the_bar_is_shown_on_a_terminal_and_needs_no_package(file, tmp_path, capsys, monkeypatch):
    """Without rich, or without a terminal, nothing is shown, and the work is done."""

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert call(capsys, "convert", file, tmp_path / "with_bar.bpk")[0] == 0
    monkeypatch.setattr(command_line.importlib, "import_module", missing)
    assert call(capsys, "convert", file, tmp_path / "without.bpk")[::2] == (0, "")
    assert (tmp_path / "with_bar.bpk").read_bytes() == (tmp_path / "without.bpk").read_bytes()


def test_it_runs_as_a_module_and_stops_where_nobody_reads(file):
    """``python -m records inspect … | head``."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "records", "inspect", *[str(file)] * 3]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(command, cwd=root, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")


def flipped(source: Path, damaged: Path) -> None:
    """A copy with one bit changed in its last tensor."""
    data = bytearray(source.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)


@pytest.mark.parametrize(
    ("command", "name"), [("convert", "b.bpk"), ("convert", "b.mpk"), ("extract", "b.bpk"), ("extract", "b.npy")]
)
def test_damage_is_not_passed_on_as_sound(command, name, tmp_path, capsys):
    """D1: a copy would have a digest that is right; what was there stays."""
    ModuleRecord([("w", entry(np.ones(64, "float32")))]).save(tmp_path / "a.bpk")
    flipped(tmp_path / "a.bpk", tmp_path / "d.bpk")
    (tmp_path / name).write_bytes(b"old")
    before = sorted(found.name for found in tmp_path.iterdir())
    paths = ["w"] if command == "extract" else []
    status, _, err = call(capsys, command, tmp_path / "d.bpk", tmp_path / name, *paths, "--force")
    assert status == 1
    assert "d.bpk" in err
    assert "digest" in err
    assert sorted(found.name for found in tmp_path.iterdir()) == before
    assert (tmp_path / name).read_bytes() == b"old"


@pytest.mark.parametrize("command", ["convert", "extract"])
def test_a_pytorch_file_with_a_wrong_checksum_is_not_passed_on(command, tmp_path, capsys):
    array = np.ones(64, "float32")
    data = bytearray(pytorch_oracle.archive({"w": pytorch_oracle.tensor("0", array)}, [pytorch_oracle.memory(array)]))
    data[data.index(array.tobytes())] ^= 1
    (tmp_path / "d.pt").write_bytes(data)
    status, _, err = call(
        capsys, command, tmp_path / "d.pt", tmp_path / "b.bpk", *(["w"] if command == "extract" else [])
    )
    assert status == 1
    assert "d.pt" in err
    assert not (tmp_path / "b.bpk").exists()


def test_extract_takes_the_numbers_below_its_paths_only(tmp_path, capsys):
    """As `ModuleRecord.part` does, under the names that they have."""
    record = ModuleRecord(
        [("model.w", entry([1.0])), ("other.w", entry([2.0]))],
        scalars={"model.steps": 3, "epoch": 4, "modelled": 5}, metadata={"k": "v"},
    )  # fmt: skip
    record.save(tmp_path / "a.bpk")
    assert call(capsys, "extract", tmp_path / "a.bpk", tmp_path / "b.bpk", "model")[0] == 0
    with open_record(tmp_path / "b.bpk") as found:
        assert list(found) == ["model.w"]
        assert dict(found.scalars) == {"model.steps": Scalar.of(3)}
        assert found.metadata["k"] == "v"
    assert call(capsys, "extract", tmp_path / "a.bpk", tmp_path / "b.mpk", "other")[0] == 0


def test_verify_tells_files_that_cannot_be_read_from_damaged_ones(file, tmp_path, capsys):
    status, out, err = call(capsys, "verify", tmp_path / "nowhere.bpk", file)
    assert status == 1
    assert "nowhere.bpk" in err
    assert out.startswith(f"{file}: ")
    assert "sound" in out


@pytest.mark.skipif(os.name != "posix", reason="devices and pipes are Unix's")
@pytest.mark.parametrize("name", ["/dev/null", "pipe", "new/"])
def test_special_files_and_folders_are_no_destinations(name, tmp_path, monkeypatch):
    """R38: nothing is written beside them under a longer name."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises(RecordIoError, match="no regular file|ends in a slash"):
        ModuleRecord([("w", entry([1.0]))]).save(name)
    assert [found.name for found in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("command", ["convert", "extract"])
def test_a_destination_that_ends_in_a_slash_is_refused(command, file, tmp_path, capsys):
    arguments = [command, file, f"{tmp_path}/new/", *(["net"] if command == "extract" else [])]
    status, _, err = call(capsys, *arguments)
    assert status == 1
    assert "new/: it ends in a slash" in err
    assert [found.name for found in tmp_path.iterdir()] == [file.name]


def test_outputs_that_are_closed_full_or_of_few_characters_end_no_command_in_a_trace(tmp_path):
    ModuleRecord([("\u00e9", entry([1.0]))]).save(tmp_path / "a.bpk")
    command = f"{shlex.quote(sys.executable)} -m records inspect {shlex.quote(str(tmp_path / 'a.bpk'))}"
    root, plain = Path(__file__).parents[2], {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    for ending, status, said in ((">&-", 0, ""), (">/dev/full", 1, "standard output: No space left"), ("", 0, "")):
        ended = subprocess.run(
            ["sh", "-c", f"{command} {ending}"], cwd=root, env=os.environ | plain, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert ended.returncode == status, ended.stderr
        assert said in ended.stderr
        assert ended.stderr.count("\n") <= 1
