"""Checks in processes of their own: the law suite, other settings of CuPy, and NVIDIA's checker of memory."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from .check import Bench, NotRunError, need

_ROOT: Final = Path(__file__).parents[2]
_LAWS: Final = ("tests/cuda/test_gpu.py", "tests/cuda/test_gpu_laws.py")
_LIMIT: Final = 120  # seconds
_FOUND: Final = 86  # exit status of the checker that found something


def laws(bench: Bench) -> str:
    """The laws of split models, of copies and of decoding, over cuda:0 and cpu:0, and over all GPUs."""
    if not (_ROOT / _LAWS[0]).is_file() or importlib.util.find_spec("pytest") is None:
        raise NotRunError("it takes the tests and their packages; in the clone, pip install -e '.[test]'")
    options = ["-m", "gpu", "--require", "gpu", "-p", "no:cacheprovider", "-n", "0"]
    return _said(bench, [sys.executable, "-m", "pytest", *_LAWS, *options])[-1]


def per_thread_streams(bench: Bench) -> str:
    """A quick run of the checks with a default stream for each thread, whose implicit order is another one."""
    command = [sys.executable, "-m", "bench.gpu_check", "--quick", "--markdown"]
    said = _said(bench, command, {"CUPY_CUDA_PER_THREAD_DEFAULT_STREAM": "1"})
    return next((line for line in said if line.startswith("checks of")), "")


def memory_checker(bench: Bench) -> str:
    """compute-sanitizer finds no wrong access to memory in copies."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise NotRunError("compute-sanitizer is not installed")
    checked = [sys.executable, "-m", "bench.gpu_check", "--quick", "host_copies", "peer_call"]
    options = ["--tool", "memcheck", "--error-exitcode", str(_FOUND)]
    return next((line for line in _said(bench, [program, *options, *checked])[::-1] if "ERROR SUMMARY" in line), "")


def _said(bench: Bench, command: Sequence[str], variables: Mapping[str, str] | None = None) -> list[str]:
    """The lines that a command prints.

    Raises:
        NotRunError: this is a quick run, which may itself be such a process.
        WrongError: it fails, or takes too long.
    """
    if bench.quick:
        raise NotRunError("a quick run starts no other")
    environment = {**os.environ, **(variables or {})}
    try:
        done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        need(False, f"it takes longer than {_LIMIT} s")
        raise
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()] or ["it printed nothing"]
    need(done.returncode == 0, f"exit status {done.returncode}: {_telling(lines)}")
    return lines


def _telling(lines: Sequence[str]) -> str:
    """The lines that say what failed; the last one where none does."""
    return "; ".join([line for line in lines if "FAILED" in line][:5] or lines[-1:])


CHECKS = (laws, per_thread_streams, memory_checker)
