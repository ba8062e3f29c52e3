"""The script that checks a GPU, over a fake CuPy: what it says of a good one, of a wrong one, and of none."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from bench.gpu_check import computing, copying, elsewhere, ordering, statuses
from bench.gpu_check.__main__ import CHECKS, LAST, main
from bench.gpu_check.check import Bench, NotRunError, WrongError, need, run
from bench.operations import A, Case
from engine import Device, Tensor, ops
from tests.fake_cupy import Fault, Machine, installed, without_cupy

MEMORY = 64 << 20


def bench(count: int = 1) -> Bench:
    return Bench([Device(f"cuda:{index}") for index in range(count)], quick=True)


@pytest.mark.parametrize(("count", "left_out"), [(1, 10), (2, 5)])
def test_on_good_gpus_every_check_is_ok_or_says_why_it_did_not_run(
    count: int, left_out: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One table, and the same as JSON; what takes two GPUs is not run on one."""
    file = tmp_path / "found.json"
    with installed(Machine(count, memory=MEMORY)), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["--quick", "--markdown", "--json", str(file)]) == 0
    found = json.loads(file.read_text(encoding="utf-8"))
    checks = found["checks"]
    assert len(checks) == len(CHECKS) + 1 + len(LAST)
    outcomes = [check["outcome"] for check in checks]
    assert outcomes.count("not run") == left_out
    assert "FAILED" not in outcomes
    assert all(check["detail"] for check in checks if check["outcome"] == "not run")
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| ") for line in lines) == len(checks) + 2
    assert any(f"{len(checks) - left_out} ok, 0 FAILED, {left_out} not run" in line for line in lines)
    (copies,) = found["benchmarks"]
    assert any(row["what"] == "cpu:0 → cuda:0, upload, contiguous, 4 KiB" for row in copies["rows"])


def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for context, words in (
        (without_cupy(), "cuda12"),
        (installed(Machine(driver=35)), "35"),
        (installed(Machine(0)), ""),
    ):
        with context:
            assert main([]) == 2
        printed = capsys.readouterr()
        (line,) = printed.err.splitlines()
        assert "there is no GPU to check: " in line
        assert words in line
        assert printed.out == ""


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with installed(Machine(1)):
        assert main(["--json", str(tmp_path / "nowhere" / "found.json")]) == 2
    assert "no folder" in capsys.readouterr().err


def test_a_check_that_fails_is_named_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def good(bench: Bench) -> str:
        """A good one."""
        return "fine"

    def wrong(bench: Bench) -> str:
        """A wrong one.

        More about it.
        """
        need(False, "it is wrong")
        return ""

    def broken(bench: Bench) -> str:
        """A broken one."""
        raise ZeroDivisionError("by\nzero")

    def other(bench: Bench) -> str:
        """Another one."""
        raise NotRunError("no need")

    with installed(Machine(1)):
        found = list(run([wrong, broken, other, good], bench()))
    assert [(one.name, one.outcome, one.detail) for one in found] == [
        ("A wrong one", "FAILED", "it is wrong"),
        ("A broken one", "FAILED", "ZeroDivisionError: by zero"),
        ("Another one", "not run", "no need"),
        ("A good one", "ok", "fine"),
    ]


def test_a_failure_is_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(bench: Bench) -> str:
        """A wrong one."""
        raise WrongError("it is wrong")

    monkeypatch.setattr("bench.gpu_check.__main__.CHECKS", (wrong,))
    with installed(Machine(1)):
        assert main(["--quick"]) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: ops.negative(x) if x.device.kind == "cpu" else x, "differs by"),
        (lambda x: x if x.device.kind == "cpu" else x.cast("float64"), "float64"),
        (lambda x: x if x.device.kind == "cpu" else x.reshape(-1), "(24,)"),
        (lambda x: x if x.device.kind == "cpu" else x.to_device("cpu:0"), "on cpu:0"),
        (lambda x: x if x.device.kind == "cpu" else x.refuse(), "AttributeError"),
    ],
)
def test_an_operation_that_is_another_on_a_gpu_is_found(call: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its values, dtype, shape and device, and whether it works at all."""
    monkeypatch.setattr(computing, "CASES", [Case("odd", call, (A,), "floats"), Case("exp", ops.exp, (A,), "floats")])
    with installed(Machine(1)), pytest.raises(WrongError, match=r"of 16 calls: odd of") as caught:
        computing.operations(bench())
    assert words in str(caught.value)
    assert "exp" not in str(caught.value)


@pytest.mark.parametrize(("busy", "left_out"), [(0, "waits_for_copy"), (1, "waits_for_memory")])
def test_the_waits_that_the_check_of_streams_leaves_out_are_needed(busy: Any, left_out: str) -> None:
    """The fake objects to each; a GPU that is busy gives wrong numbers."""
    with installed(Machine(1)), pytest.raises(Fault, match="race"):
        ordering._two_streams(bench(), busy, **{left_out: False})
    with installed(Machine(1)):
        assert ordering._two_streams(bench(), busy)


def test_copies_that_come_back_changed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the way from the host, by the peer call, and memory that stays in use."""
    with installed(Machine(1)):
        backend = Device("cuda:0").backend
        upload = backend.upload
        held: list[Any] = []

        def odd(array: Any, index: int) -> Any:
            made = upload(array, index)
            if array.dtype == "int32" and array.size == 10_000:
                with Device("cuda:0"):
                    made[7] = 3
            return made

        def holding(array: Any, index: int) -> Any:
            held.append(upload(array, index))
            return held[-1]

        monkeypatch.setattr(type(backend), "upload", lambda self, array, index: odd(array, index))
        with pytest.raises(WrongError, match=r"\(10000,\) int32 came back changed"):
            copying.host_copies(bench())
        monkeypatch.setattr(type(backend), "upload", lambda self, array, index: holding(array, index))
        with pytest.raises(WrongError, match="bytes were in use before"):
            copying.no_leaks(bench())
        monkeypatch.setattr(type(backend), "upload", lambda self, array, index: upload(array, index))
        monkeypatch.setattr(
            type(backend), "copy_between", lambda self, arrays, a, b, route: ([array * 0 for array in arrays], "peer")
        )
        with Device("cuda:0"), pytest.raises(WrongError, match="1 bytes from cuda:0 to cuda:0"):
            copying.peer_call(bench())


def test_gpus_without_peer_access_go_by_the_host_and_the_table_says_so() -> None:
    with installed(Machine(2, peers=())):
        assert copying.two_gpus(bench(2)) == "cuda:0 and cuda:1 go by staged"
    with installed(Machine(2)):
        assert copying.two_gpus(bench(2)) == "cuda:0 and cuda:1 go by peer"


def test_a_product_that_is_rounded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As TF32 does, with fewer bits of mantissa than float32 has."""
    matmul = ops.matmul

    def rounded(a: Tensor, b: Tensor) -> Tensor:
        return matmul(a.cast("float16").cast("float32"), b.cast("float16").cast("float32"))

    with installed(Machine(1)):
        assert "error" in computing.float32_products(bench())
        monkeypatch.setattr(ops, "matmul", rounded)
        with pytest.raises(WrongError, match="relative error is"):
            computing.float32_products(bench())


def test_only_the_checks_that_are_named_run_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with installed(Machine(1)):
        assert main(["--quick", "--markdown", "peer_call", "host_copies"]) == 0
        assert "2 ok, 0 FAILED, 0 not run" in capsys.readouterr().out
        assert main(["peer_cal"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'peer_cal'" in line
    assert "peer_call, " in line


def test_reading_another_gpus_memory_is_a_failure() -> None:
    """CuPy only warns of it (C2)."""

    def remote(bench: Bench) -> str:
        """Remote."""
        warnings.warn("The device where the array resides (0) is different from the current", RuntimeWarning, 2)
        return ""

    with installed(Machine(1)):
        (found,) = run([remote], bench())
    assert found.outcome == "FAILED"


def test_a_source_that_nobody_holds_is_found() -> None:
    with installed(Machine(1)), pytest.raises(Fault, match="race"):
        ordering._dropped(bench(), holds=False)
    with installed(Machine(1)):
        assert ordering._dropped(bench(), holds=True)
        assert ordering.dropped_sources(bench()) == ""


@pytest.mark.parametrize("check", [copying.random_copies, ordering.pinned_memory, ordering.dropped_sources])
def test_a_copy_that_changes_a_byte_is_found(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with installed(Machine(1)):
        backend = type(Device("cuda:0").backend)
        download = backend.download

        def changed(self: Any, arrays: Any, index: int) -> Any:
            copies = download(self, arrays, index)
            for copy in copies:
                copy.reshape(-1).view("uint8")[:1] ^= 1
            return copies

        monkeypatch.setattr(backend, "download", changed)
        with pytest.raises(WrongError, match="wrong"):
            check(bench())


def test_peer_access_is_switched_and_left_as_it_was() -> None:
    """On where the engine had switched it on, off where the driver refuses or data are lost; without any, not run."""
    with installed(Machine(2)) as machine:
        assert statuses.peer_statuses(bench(2)) == ""
        assert machine.enabled == {(0, 1), (1, 0)}
    with installed(Machine(2, dropping=[(0, 1)])) as machine, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert "had not switched it on" in statuses.peer_statuses(bench(2))
        assert not machine.enabled
    with installed(Machine(2, peers=())), pytest.raises(NotRunError, match="does not reach"):
        statuses.peer_statuses(bench(2))


def test_other_numbers_of_errors_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed(Machine(1)):
        assert statuses.statuses(bench()) == "101, 400"
        monkeypatch.setattr(Device("cuda:0").xp.cuda.runtime, "setDevice", lambda device: None, raising=False)
        with pytest.raises(WrongError, match="the number 0, not 101"):
            statuses.statuses(bench())


def test_two_gpus_of_which_one_is_busy_go_by_each_route() -> None:
    for peers in (None, ()):
        with installed(Machine(2, peers=peers)):
            assert ordering.busy_gpus(bench(2)) == ""
            assert ordering.dropped_destinations(bench(2)) == ""


def full() -> Bench:
    return Bench([Device("cuda:0")], quick=False)


def ending(status: int, *lines: str) -> Any:
    """A command that prints lines and ends so; what it was is in its list `asked`."""
    asked: list[Any] = []

    def ended(command: Any, **more: Any) -> Any:
        asked.append((command, more["env"]))
        return subprocess.CompletedProcess(command, status, "\n".join(lines), "")

    ended.asked = asked  # pyright: ignore[reportFunctionMemberAccess]
    return ended


def test_processes_of_their_own_say_what_came_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The laws' last line, the other run's heading, the checker's count of errors."""
    monkeypatch.setattr(elsewhere.shutil, "which", lambda name: f"/bin/{name}")
    for check, line, word in (
        (elsewhere.laws, "31 passed in 9 s", "pytest"),
        (elsewhere.per_thread_streams, "checks of the CUDA path: 20 ok", "bench.gpu_check"),
        (elsewhere.memory_checker, "========= ERROR SUMMARY: 0 errors", "memcheck"),
    ):
        command = ending(0, "first", line)
        monkeypatch.setattr(elsewhere.subprocess, "run", command)
        assert check(full()) == line
        ((given, environment),) = command.asked
        assert word in given
        per_thread = environment.get("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM")
        assert per_thread == ("1" if check is elsewhere.per_thread_streams else None)
        monkeypatch.setattr(elsewhere.subprocess, "run", ending(86, "FAILED one", "fine", "FAILED two", "last"))
        with pytest.raises(WrongError, match="exit status 86: FAILED one; FAILED two"):
            check(full())
        monkeypatch.setattr(elsewhere.subprocess, "run", ending(1))
        with pytest.raises(WrongError, match="exit status 1: it printed nothing"):
            check(full())
        with pytest.raises(NotRunError, match="quick"):
            check(bench())


def test_a_process_that_hangs_or_is_not_there_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "_LIMIT", 0.01)
    with pytest.raises(WrongError, match=r"longer than 0\.01 s"):
        elsewhere._said(full(), [sys.executable, "-c", "import time; time.sleep(30)"])
    monkeypatch.setattr(elsewhere.shutil, "which", lambda name: None)
    with pytest.raises(NotRunError, match="compute-sanitizer is not installed"):
        elsewhere.memory_checker(full())
    monkeypatch.setattr(elsewhere.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotRunError, match="test"):
        elsewhere.laws(full())


def test_the_tests_that_it_runs_are_there() -> None:
    assert all((elsewhere._ROOT / file).is_file() for file in elsewhere._LAWS)
