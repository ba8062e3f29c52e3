"""This side of the scripts in this folder: it starts one and asks it to work."""

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, final

from bench.timing import Reading

_FOLDER: Final = Path(__file__).parent
# Isolated, so that nothing of this project is found but what lies in this folder.
_STARTER: Final = """
import runpy, sys
folder, script = sys.argv[1:3]
sys.path.append(folder)
del sys.argv[1:3]
runpy.run_module(script, run_name="__main__")
"""
_ANSWER_NBYTES: Final = 16
_REST: Final = 0.1  # seconds after which the threads of either side no longer wait for work with a core each


class BesideError(RuntimeError):
    """An implementation cannot be measured."""


def is_python(program: Path) -> bool:
    """Whether a program computes what Python does; an interpreter without this project's packages is one too."""
    command = [str(program), "-I", "-c", "print(6 * 7)"]
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return False
    with process:
        answer = b"" if process.stdout is None else process.stdout.read(_ANSWER_NBYTES)
        process.kill()  # some programs print without end
    return answer.strip() == b"42"


@final
class Beside:
    """Another implementation in a process of its own, which ends with the ``with``.

    Args:
        python: the interpreter that runs it.
        script: the file in this folder: ``with_torch`` or ``with_llama_cpp``, language models; ``train_with_torch``.
        file: what the script works with: a GGUF file of float32 tensors, or `bench.train`'s.
        threads: how many it computes with.

    Raises:
        BesideError: the interpreter lacks the packages, or the script failed.
    """

    def __init__(self, python: Path, script: str, file: Path, threads: int) -> None:
        command = [str(python), "-I", "-c", _STARTER, str(_FOLDER), script, str(file), str(threads)]
        self._open = ExitStack()
        self._errors = self._open.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
        self._process = self._open.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        )
        self._what = f"{script} in {python}"
        try:
            self.version: str = self._answer()["version"]
        except BaseException:
            self.close()
            raise

    def _answer(self) -> dict[str, Any]:
        output = self._process.stdout
        line = "" if output is None else output.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            last = (self._errors.read().strip().splitlines() or ["it printed no error"])[-1]
            raise BesideError(f"{self._what} ended without an answer: {last}")
        found = json.loads(line)
        if "error" in found:
            raise BesideError(f"{self._what}: {found['error']}")
        return found

    def ask(self, do: str, ids: Sequence[int] = (), **more: Any) -> dict[str, Any]:
        """What it answers to a request; `serve` lists those of language models, the other script its own.

        Raises:
            BesideError: it failed.
        """
        if self._process.stdin is None:
            raise BesideError(f"{self._what} is closed")
        try:
            self._process.stdin.write(json.dumps({"do": do, "ids": list(ids), **more}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise BesideError(f"{self._what} ended: {error}") from error
        return self._answer()

    def reading(self, do: str, ids: Sequence[int] = (), *, per: int = 1, **more: Any) -> Reading:
        """A reading of the seconds that it says a request took, divided by `per`; before and after, all rest."""

        def read() -> float:
            time.sleep(_REST)
            seconds = self.ask(do, ids, **more)["seconds"]
            time.sleep(_REST)
            return seconds / per

        return read

    def close(self) -> None:
        """End it."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
