"""What the tests of the examples share: a tiny model's file, and a command run as a user would."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.examples.tiny_gguf import TinyLlama


class Outcome(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


@pytest.fixture(scope="session")
def tiny() -> TinyLlama:
    return TinyLlama()


@pytest.fixture(scope="session")
def tiny_file(tiny: TinyLlama, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's GGUF file."""
    return tiny.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """``command(main, *arguments)`` runs a command's main function in this process."""

    def run(main: Callable[[], None], *arguments: str) -> Outcome:
        monkeypatch.setattr("sys.argv", ["command", *arguments])
        status: object = 0
        try:
            main()
        except SystemExit as ended:
            status = ended.code
        captured = capsys.readouterr()
        if isinstance(status, str):  # what Python itself prints for such an exit
            return Outcome(1, captured.out, captured.err + status + "\n")
        return Outcome(int(status or 0), captured.out, captured.err)  # pyright: ignore[reportArgumentType]

    return run
