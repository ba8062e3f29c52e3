"""``python -m engine devices``, with GPUs and without. This ran over a fake CuPy and not on a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Tensor
from engine.__main__ import main
from tests.fake_cupy import Machine, installed, without_cupy


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> list[str]:
    """The lines that the command prints; nothing on stderr."""
    assert main(["devices", *arguments]) == status
    found = capsys.readouterr()
    assert found.err == ""
    return found.out.splitlines()


def test_every_device_is_a_line_and_pairs_with_peer_access_are_a_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    """Each GPU's name, capability and memory; the row's GPU reaches the column's memory, or does not."""
    with installed(Machine(3, peers=[(0, 1), (1, 0), (2, 0)], memory=3 << 30)):
        lines = printed(capsys)
    heading, cpu, *gpus = lines[:5]
    assert heading.split("  ")[0] == "device"
    assert cpu.startswith("cpu:0 ")
    for index, line in enumerate(gpus):
        assert line.split() == [f"cuda:{index}", "Fake", "GPU", str(index), "9.0", "3.0", "GiB", "3.0", "GiB"]
    assert "peer access" in lines[6]
    assert [line.split() for line in lines[7:]] == [
        ["cuda:0", "cuda:1", "cuda:2"],
        ["cuda:0", "-", "yes", "no"],
        ["cuda:1", "yes", "-", "no"],
        ["cuda:2", "yes", "no", "-"],
    ]


def test_memory_in_use_is_not_free(capsys: pytest.CaptureFixture[str]) -> None:
    with installed(Machine(1, memory=1 << 28)):
        held = Tensor.from_numpy(np.zeros(1 << 27, np.uint8), "cuda:0")
        line = printed(capsys)[2]
        assert held.nbytes == 1 << 27
    assert line.split()[-4:] == ["0.2", "GiB", "0.1", "GiB"]


def test_json_holds_the_same_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    with installed(Machine(2, peers=[(0, 1)], memory=1 << 20)):
        found: dict[str, Any] = json.loads("\n".join(printed(capsys, "--json")))
    cpu, first, second = found["devices"]
    assert found["no_gpu"] is None
    assert cpu["device"] == "cpu:0"
    assert cpu["compute_capability"] is None
    assert 0 < cpu["free_nbytes"] <= cpu["memory_nbytes"]
    assert first == {
        "device": "cuda:0",
        "name": "Fake GPU 0",
        "compute_capability": "9.0",
        "memory_nbytes": 1 << 20,
        "free_nbytes": 1 << 20,
        "peers": ["cuda:1"],
    }
    assert second["peers"] == []


def test_without_a_gpu_one_line_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """No package, no driver, no device: each is a machine with a CPU, and no error."""
    with without_cupy():
        assert any(line.startswith("no GPU: ") and "cuda12" in line for line in printed(capsys))
        assert "cuda12" in json.loads("\n".join(printed(capsys, "--json")))["no_gpu"]
    for status in (35, 100):
        with installed(Machine(driver=status)):
            *_, last = printed(capsys)
            assert last.startswith(f"no GPU: cuda: CUDA error {status}: ")
    with installed(Machine(0)):
        assert printed(capsys)[-1] == "no GPU: CUDA finds none"


def test_a_gpu_that_cannot_be_opened_is_a_line_and_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    """The others are shown; nothing is known of whom it reaches."""
    with installed(Machine(2)) as machine:
        machine.refuses["streamCreate"] = 46
        lines = printed(capsys, status=1)
        assert lines[2] == "cuda:0  cuda:0: CUDA error 46: the GPU is held by another process in exclusive mode"
        assert lines[-1].split() == ["cuda:1", "?", "-"]
        assert "error" in json.loads("\n".join(printed(capsys, "--json", status=1)))["devices"][2]


def test_the_environment_that_switches_peer_access_off_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERLOOM_NO_PEER", "1")
    with installed(Machine(2)):
        assert "LAYERLOOM_NO_PEER" in printed(capsys)[-1]


def test_wrong_arguments_are_one_line() -> None:
    """And the command runs as it is written, with no more packages than the engine needs."""
    for arguments in ([], ["device"], ["devices", "--jason"]):
        run = subprocess.run([sys.executable, "-m", "engine", *arguments], capture_output=True, text=True)
        assert run.returncode == 2
        assert len(run.stderr.splitlines()) == 1
    run = subprocess.run([sys.executable, "-m", "engine", "devices"], capture_output=True, text=True)
    assert run.returncode == 0
    assert "cpu:0" in run.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_is_full_is_told_in_one_line_and_one_that_nobody_reads_not_at_all() -> None:
    command = [sys.executable, "-m", "engine", "devices"]
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "python -m engine: standard output: No space left on device\n")
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")
