"""``python -m examples.train``: it learns, stops, and goes on from its file bit for bit as if it had not stopped."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Device
from examples import train
from examples.digits import Digits
from examples.errors import UsageError
from examples.stopping import stop_wishes
from examples.training import Run, Settings
from records import open_record
from records.atomic import ScratchFile
from tests.modules.small_modules import Holder, Linear

EPOCHS = 3
STEPS = 9  # 24 images, 8 in a step


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 images of noise, of which 24 are to train with, and a small model."""
    random = np.random.default_rng(0)
    digits = Digits(random.random((30, 8, 8), dtype="float32"), random.integers(0, 10, 30))
    monkeypatch.setattr(Digits, "load", classmethod(lambda cls: digits))
    monkeypatch.setattr(train, "Settings", lambda seed: Settings(seed=seed, batch=8, channels=3, n_layers=2))


def contents(file: Path) -> dict[str, Any]:
    """The bits of all tensors and all numbers in a run's file; what an id names is under its parameter's path."""
    with open_record(file, check_data=True) as record:
        paths = {str(entry.id): path for path, entry in record.part("model").items()}
        return {
            **{_by_path(path, paths): (str(entry.dtype), entry.host().tobytes()) for path, entry in record.items()},
            **{_by_path(name, paths): scalar for name, scalar in record.scalars.items()},
        }


def _by_path(name: str, paths: dict[str, str]) -> str:
    parts = name.split(".")
    return ".".join(paths.get(part, part) for part in parts)


def interrupt_at(patch: pytest.MonkeyPatch, step: int) -> None:
    """Press Ctrl-C in the middle of a step."""
    whole = Run.step

    def interrupted(self: Run) -> float:
        if self.steps == step:
            os.kill(os.getpid(), signal.SIGINT)
        return whole(self)

    patch.setattr(Run, "step", interrupted)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("devices", ["cpu:0", "cpu:0,cpu:1"])
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(command, monkeypatch, tmp_path, devices):
    """Stopped in each step in turn, within an epoch or at its end, by Ctrl-C; on other devices too. Bit for bit."""
    options = ["--epochs", str(EPOCHS), "--seed", "5"]
    whole = tmp_path / "whole.bpk"
    assert command(train.main, *options, "--devices", "cpu:0,cpu:1", "--record", str(whole)).status == 0
    expected = contents(whole)
    assert expected["step"].value == STEPS
    assert "model.draws/blocks.1.dropout.draws" in expected
    assert "model.blocks.1.norm.running_mean" in expected
    assert "optimizer.stem.weight.moment_2" in expected
    for step in range(STEPS - 1):
        file = tmp_path / f"stopped-{step}.bpk"
        with monkeypatch.context() as patch:
            interrupt_at(patch, step)
            outcome = command(train.main, *options, "--record", str(file))
        assert outcome.status == 130
        assert f"stopped after {step + 1} step" in outcome.err
        assert str(file) in outcome.err
        assert contents(file)["step"].value == step + 1
        assert command(train.main, *options, "--devices", devices, "--record", str(file)).status == 0
        assert contents(file) == expected


@pytest.mark.usefixtures("small")
def test_ctrl_c_leaves_a_whole_record_of_the_step_it_came_in(command, monkeypatch, tmp_path):
    """The step is finished; a second Ctrl-C ends at once, and the file of before stays whole."""
    file = tmp_path / "run.bpk"
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4)
        assert command(train.main, "--epochs", str(EPOCHS), "--record", str(file)).status == 130
    before = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Run, "step", lambda self: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)])
        outcome = command(train.main, "--epochs", str(EPOCHS), "--record", str(file))
    assert outcome.status == 130
    assert file.read_bytes() == before
    assert [other.name for other in tmp_path.iterdir()] == ["run.bpk"]
    assert contents(file)["step"].value == 5


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_while_the_run_is_begun_is_a_wish_too(command, monkeypatch, tmp_path, presses):
    """Once: the record is there, of no steps, and the same command goes on. Twice: nothing is left of it."""
    file = tmp_path / "run.bpk"
    with monkeypatch.context() as patch:
        interrupt_saving(patch, presses)
        outcome = command(train.main, "--epochs", "1", "--record", str(file))
    assert (outcome.status, outcome.err.count("\n")) == (130, 2)
    if presses == 1:
        assert f"stopped after 0 steps; the same command goes on from {file}" in outcome.err
        assert contents(file)["step"].value == 0
    else:
        assert "train: interrupted; nothing is kept\n" in outcome.err
        assert list(tmp_path.iterdir()) == []
    assert command(train.main, "--epochs", "1", "--record", str(file)).status == 0
    assert contents(file)["step"].value == 3


@pytest.mark.usefixtures("small")
def test_a_second_ctrl_c_while_saving_says_what_is_kept(command, monkeypatch, tmp_path):
    """The file as it was; no other is left beside it."""
    file = tmp_path / "run.bpk"
    assert command(train.main, "--epochs", "1", "--record", str(file)).status == 0
    before = file.read_bytes()
    with monkeypatch.context() as patch:
        interrupt_saving(patch, 2)
        outcome = command(train.main, "--epochs", "2", "--record", str(file))
    assert (outcome.status, outcome.err.count("\n")) == (130, 2)
    assert f"train: interrupted; {file} is whole, as it was saved last" in outcome.err
    assert file.read_bytes() == before
    assert [other.name for other in tmp_path.iterdir()] == ["run.bpk"]


def interrupt_saving(patch: pytest.MonkeyPatch, presses: int) -> None:
    """Press Ctrl-C so often while a record is written, the first time that one is."""
    whole, left = ScratchFile.write, [presses]

    def interrupted(self: ScratchFile, data: Any) -> None:
        while left[0]:
            left[0] -= 1
            os.kill(os.getpid(), signal.SIGINT)
        whole(self, data)

    patch.setattr(ScratchFile, "write", interrupted)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["run.bpk", "run.txt", "run.safetensors", "run", "run.2"])
def test_a_record_of_any_name_goes_on(command, tmp_path, name):
    """burnpack, but for safetensors; ``.bpk`` is added to a bare name (R38), where a folder has it too (R39)."""
    (tmp_path / "run").mkdir()
    expected = None
    for epochs in ("1", "2"):
        outcome = command(train.main, "--epochs", epochs, "--record", str(tmp_path / name))
        assert outcome.status == 0
        [file] = [other for other in tmp_path.iterdir() if other.is_file()]
        assert file.name == (name if "." in name else "run.bpk")
        assert f"the run is in {file}" in outcome.out
        expected = contents(file)["step"].value
    assert expected == 6


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("target", ["run.bpk", "nowhere.bpk"])
def test_a_link_is_gone_on_from_and_replaced(command, tmp_path, target):
    """R45: what it pointed to stays as it was."""
    run_, link = tmp_path / "run.bpk", tmp_path / "link.bpk"
    assert command(train.main, "--epochs", "1", "--record", str(run_)).status == 0
    before = run_.read_bytes()
    link.symlink_to(target)
    outcome = command(train.main, "--epochs", "2", "--record", str(link), "--json")
    assert outcome.status == 0
    assert len(json.loads(outcome.out)["losses"]) == (3 if target == "run.bpk" else 6)
    assert not link.is_symlink()
    assert contents(link)["step"].value == 6
    assert run_.read_bytes() == before


@pytest.mark.usefixtures("small")
def test_devices_for_which_no_layer_is_left_are_not_used(command):
    """Two hidden layers over five devices; the rest is not in the table, and named once on the error stream."""
    devices = ",".join(f"cpu:{index}" for index in (*range(5), 1, 4))
    outcome = command(train.main, "--epochs", "0", "--devices", devices)
    assert (outcome.status, outcome.err) == (0, "train: no layer goes to cpu:2, cpu:3, cpu:4\n")
    assert [f"cpu:{index}" in outcome.out for index in range(5)] == [True, True, False, False, False]


@pytest.mark.usefixtures("small")
def test_every_epoch_shows_each_image_once_in_an_order_of_its_own():
    """It depends on seed and epoch alone; the last step of an epoch takes what is left."""
    orders = []
    for seed in (0, 1):
        begun = Run(Settings(seed=seed, batch=8, channels=3, n_layers=2), Digits.load(), [Device("cpu:0")])
        assert begun.steps_per_epoch == 4
        for _ in range(2):
            batches = []
            for _ in range(begun.steps_per_epoch):
                batches.append(begun.batch().tolist())
                begun.steps += 1
            assert [len(batch) for batch in batches] == [8, 8, 8, 6]
            orders.append([place for batch in batches for place in batch])
            assert sorted(orders[-1]) == list(range(30))
    assert len(set(map(tuple, orders))) == len(orders)


@pytest.mark.usefixtures("small")
def test_without_a_record_nothing_is_kept(command, monkeypatch, tmp_path):
    """And the message says so."""
    monkeypatch.chdir(tmp_path)
    interrupt_at(monkeypatch, 1)
    outcome = command(train.main)
    assert outcome.status == 130
    assert "stopped after 2 steps, and nothing is kept" in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small")
def test_more_epochs_go_on_from_a_finished_run(command, tmp_path):
    """2 and then 3 epochs are 3; with no more to do, the file stays as it is."""
    one, two = tmp_path / "one", tmp_path / "two.bpk"
    assert command(train.main, "--epochs", "3", "--record", str(one)).status == 0
    for epochs in ("2", "3"):
        assert command(train.main, "--epochs", epochs, "--record", str(two)).status == 0
    assert contents(one.with_suffix(".bpk")) == contents(two)
    before = two.read_bytes()
    outcome = command(train.main, "--epochs", "1", "--record", str(two))
    assert outcome.status == 0
    assert "trained for 3 epochs (9 steps)" in outcome.out
    assert two.read_bytes() == before


@pytest.mark.usefixtures("small")
def test_json_tells_losses_accuracy_and_placement(command):
    """One object; the seed decides all of it, the devices nothing but the placement."""

    def told(*options: str) -> dict[str, Any]:
        outcome = command(train.main, "--epochs", "2", "--json", *options)
        assert (outcome.status, outcome.err) == (0, "")
        return json.loads(outcome.out)

    split, whole, other = told(), told("--devices", "cpu:3"), told("--seed", "1")
    assert split["placement"] == {"input": "cpu:0", "hidden": ["cpu:0", "cpu:1"], "output": "cpu:1"}
    assert whole["placement"] == {"input": "cpu:3", "hidden": ["cpu:3", "cpu:3"], "output": "cpu:3"}
    assert (split["steps"], split["steps_per_epoch"], len(split["losses"])) == (6, 3, 6)
    assert split["loss"] == pytest.approx(np.mean(split["losses"][3:]))
    assert 0 <= split["test_accuracy"] <= 1
    assert {**split, "placement": None} == {**whole, "placement": None}
    assert split["losses"] != other["losses"]


@pytest.mark.usefixtures("small")
def test_on_a_terminal_a_bar_shows_epoch_loss_and_accuracy(command, monkeypatch):
    """On the error stream."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    outcome = command(train.main, "--epochs", "2")
    assert "test accuracy" in outcome.err
    assert "accuracy:" in outcome.out


def test_it_reads_97_of_100_digits_that_it_was_not_shown(command):
    """scikit-learn's, in a few of the 20 epochs."""
    outcome = command(train.main, "--epochs", "5", "--json")
    assert outcome.status == 0
    assert json.loads(outcome.out)["test_accuracy"] >= 0.97


@pytest.mark.usefixtures("small")
def test_a_record_that_is_none_of_a_run_is_one_clear_line(command, tmp_path):
    """Another model's, a damaged one, one of another seed, and a place that cannot be written."""
    other, damaged, run_ = tmp_path / "other.bpk", tmp_path / "damaged.bpk", tmp_path / "run.bpk"
    folder = tmp_path / "folder.bpk"
    folder.mkdir()
    Holder(layer=Linear(2, 2)).save_file(other)
    damaged.write_bytes(b"no record")
    assert command(train.main, "--epochs", "0", "--seed", "3", "--record", str(run_)).status == 0
    for options, status, line in (
        (["--record", str(other)], 1, "is no record of a training run: it has no number 'step'"),
        (["--record", str(damaged)], 1, "damaged.bpk"),
        (["--record", str(run_), "--seed", "4"], 2, "holds a run of seed 3"),
        (["--record", str(tmp_path / "nowhere" / "run.bpk")], 1, "No such file or directory"),
        (["--record", str(tmp_path / "run.gguf")], 2, "run.gguf: it cannot be kept in such a file; name it *.bpk"),
        (["--record", ""], 2, "--record: '' has no file name"),
        (["--record", f"{tmp_path}/new/"], 2, "it ends in a slash"),
        (["--record", "."], 2, "--record: '.' has no file name"),
        (["--record", ".."], 2, "--record: '..' has no file name"),
        (["--record", "/dev/null"], 2, "--record: /dev/null: it is no regular file"),
        (["--record", str(folder)], 2, "folder.bpk: it is no regular file"),
        (["--record", str(run_ / "run.bpk")], 1, "Not a directory"),
        (["--record", str(tmp_path / "run.mpk")], 2, "run.mpk: it cannot be kept in such a file; name it *.bpk"),
        (["--record", str(tmp_path / "run.mpk.gz")], 2, "run.mpk.gz: it cannot be kept in such"),
        (["--record", "a" * 300], 2, "aaa: File name too long"),
        (["--epochs", "-1"], 2, "--epochs -1"),
        (["--seed", "-1"], 2, "--seed -1"),
        (["--devices", "cuda"], 2, "'cuda' is no device"),
    ):
        outcome = command(train.main, *options)
        assert (outcome.status, outcome.out) == (status, ""), outcome
        assert outcome.err.count("\n") == 1
        assert line in outcome.err


NUMBERS = (("batch", 0), ("batch", 2.5), ("batch", True), ("channels", 0), ("seed", -1), ("step", -1), ("step", 2**62),
           ("step", 1.5), ("step", 2**63 + 1), ("n_layers", -1), ("n_layers", 10**9), ("channels", 2**31 - 1),
           ("channels", 2**40), ("batch", 2**62), ("dropout", 1.0), ("dropout", float("nan")), ("lr", -1.0),
           ("lr", float("inf")), ("lr", 3.5e38), ("limit", 0.0), ("weight_decay", True), ("batch", 2**31),
           ("weight_decay", -0.1))  # fmt: skip


@pytest.mark.usefixtures("small")
def test_numbers_of_a_record_that_no_run_has_are_one_clear_line(command, tmp_path):
    """Before a model of such sizes is built."""
    run_ = tmp_path / "run.bpk"
    record = Run(Settings(batch=8, channels=3, n_layers=2), Digits.load(), [Device("cpu:0")]).record()
    for name, value in NUMBERS:
        record.with_scalars(**{name: value}).save(run_)
        outcome = command(train.main, "--record", str(run_))
        assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1), outcome
        assert f"run.bpk is no record of a training run: its {name!r} is {value!r}" in outcome.err


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("settings", [{"n_layers": 0}, {"n_layers": 1}, {"n_layers": 3}, {"channels": 4}])
def test_a_record_whose_tensors_are_of_other_settings_is_one_clear_line(command, tmp_path, settings):
    """It names the file, and the first thing that does not fit."""
    run_ = tmp_path / "run.bpk"
    record = Run(Settings(batch=8, channels=3, n_layers=2), Digits.load(), [Device("cpu:0")]).record()
    record.with_scalars(**settings).save(run_)
    outcome = command(train.main, "--record", str(run_))
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1), outcome
    assert "run.bpk is no record of a training run: " in outcome.err
    assert " more)" in outcome.err
    assert len(outcome.err) < 300 + len(str(run_))


@pytest.mark.usefixtures("small")
def test_a_record_whose_data_is_damaged_is_refused_before_it_is_used(command, tmp_path):
    """D1: by its digest, and the file stays as it is."""
    run_ = tmp_path / "run.bpk"
    assert command(train.main, "--epochs", "0", "--record", str(run_)).status == 0
    damaged = bytearray(run_.read_bytes())
    damaged[-300] ^= 1
    run_.write_bytes(damaged)
    outcome = command(train.main, "--epochs", "1", "--record", str(run_))
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert "digest" in outcome.err
    assert run_.read_bytes() == damaged


@pytest.mark.usefixtures("small")
def test_a_record_without_the_optimizer_is_refused(tmp_path):
    """Going on with a fresh one would be another run."""
    begun = Run(Settings(batch=8, channels=3, n_layers=2), Digits.load(), [Device("cpu:0")])
    begun.step()
    record = begun.record()
    entries = {path: entry for path, entry in record.items() if path.startswith("model.")}
    type(record)(entries, scalars=record.scalars).save(tmp_path / "run.bpk")
    with pytest.raises(UsageError, match=r"run\.bpk is no record of a training run: states: .* the states of"):
        Run.resumed(tmp_path / "run.bpk", Digits.load(), [Device("cpu:0")])


def test_ctrl_c_is_a_wish_once_and_an_interrupt_after_that():
    """And as before when the loop is left."""
    before = signal.getsignal(signal.SIGINT)
    with stop_wishes() as is_stopped:
        assert not is_stopped()
        os.kill(os.getpid(), signal.SIGINT)
        assert is_stopped()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_every_fifth_digit_is_for_testing():
    """No image is in both parts, and none is lost."""
    digits = Digits(np.arange(13 * 4, dtype="float32").reshape(13, 2, 2), np.arange(13))
    data, test = digits.parts()
    assert test.labels.tolist() == [4, 9]
    assert sorted([*data.labels, *test.labels]) == list(range(13))
    np.testing.assert_array_equal(test.images, digits.images[[4, 9]])
