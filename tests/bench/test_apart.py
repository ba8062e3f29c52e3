"""Functions in processes of their own."""

import json
import math
from pathlib import Path

import pytest

from bench.apart import apart, own_bytes, peak_bytes

BLOCK = 64 * 2**20


def echo(*arguments: str) -> dict[str, object]:
    """What it is given, after a line that is no result."""
    print("something else")
    return {"arguments": list(arguments), "peak": peak_bytes(), "own": own_bytes()}


def grown() -> list[int]:
    """The peak before and after 64 MiB were written and given back."""
    before = peak_bytes()
    block = bytearray(b"\1") * BLOCK
    del block
    return [before, peak_bytes()]


def fail() -> None:
    raise RuntimeError("no such luck")


def test_a_result_comes_back_from_another_process() -> None:
    found = apart(__name__, "echo", "a", "b c")
    assert found["arguments"] == ["a", "b c"]
    assert found["peak"] > 2**20


def test_its_peak_is_its_own_and_stays_when_memory_is_given_back() -> None:
    ballast = bytearray(b"\1") * (4 * BLOCK)  # memory of this process, which is not the other's
    before, after = apart(__name__, "grown")
    assert len(ballast) == 4 * BLOCK
    assert before < 4 * BLOCK
    assert after - before == pytest.approx(BLOCK, rel=0.1)


def test_a_failure_is_told_with_its_reason() -> None:
    with pytest.raises(RuntimeError, match="no such luck"):
        apart(__name__, "fail")


def test_memory_is_unknown_without_the_system_file_but_the_peak_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = peak_bytes()
    monkeypatch.setattr(Path, "read_text", lambda self, *args: "VmSize:\t 1 kB\n")
    assert own_bytes() is None
    assert math.isclose(peak_bytes(), peak, rel_tol=0.5)
    assert json.dumps(peak)
