"""Working with other implementations: the protocol, with a model that adds numbers in place of one that speaks."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.beside import client, serve
from bench.beside.client import Beside, BesideError

FAKE = """
from serve import serve

class Adder:
    version = "adder"

    def start(self, ids):
        self.total = sum(ids)
        return self.total % 100

    def step(self, id):
        self.total += id
        return self.total % 100

    def logits(self):
        return [float(self.total), 0.5]

def load(file, threads):
    if file.endswith("missing"):
        import a_package_that_is_not_there
    if file.endswith("broken"):
        raise RuntimeError("no such model")
    Adder.version = f"adder of {file} on {threads} threads"
    return Adder()

serve(load)
"""


class Adder:
    """The same model on this side."""

    version = "adder"

    def __init__(self) -> None:
        self.total = 0
        self.steps = 0

    def start(self, ids: Sequence[int]) -> int:
        self.total = sum(ids)
        return self.total % 100

    def step(self, id: int) -> int:
        self.total += id
        self.steps += 1
        return self.total % 100

    def logits(self) -> list[float]:
        return [float(self.total), 0.5]


@pytest.fixture(autouse=True)
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the loop and the fake model, and no time spent at rest."""
    shutil.copy(serve.__file__, tmp_path)
    (tmp_path / "with_fake.py").write_text(FAKE)
    monkeypatch.setattr(client, "_FOLDER", tmp_path)
    monkeypatch.setattr(client, "_REST", 0.0)


def started(file: str = "model") -> Beside:
    return Beside(Path(sys.executable), "with_fake", Path(file), 3)


def test_a_continuation_is_greedy_and_its_logits_are_those_of_the_prompt() -> None:
    """3 + 4 is 7; 7 + 7 is 14; 14 + 14 is 28."""
    found = serve.answer(Adder(), {"do": "continue", "ids": [3, 4], "tokens": 3})
    assert found == {"ids": [7, 14, 28], "logits": [7.0, 0.5]}


def test_decoding_takes_as_many_steps_as_tokens_and_times_those_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([5.0, 8.0])
    monkeypatch.setattr(serve, "perf_counter", lambda: next(clock))
    model = Adder()
    assert serve.answer(model, {"do": "decode", "ids": [1], "tokens": 4}) == {"seconds": 3.0}
    assert model.steps == 4


def test_prefill_takes_no_step() -> None:
    model = Adder()
    assert serve.answer(model, {"do": "prefill", "ids": [1]})["seconds"] >= 0
    assert model.steps == 0


def test_both_sides_answer_alike() -> None:
    with started() as process:
        assert process.version == "adder of model on 3 threads"
        for ids in ([3, 4], [50, 60, 70]):
            request = {"do": "continue", "ids": ids, "tokens": 5}
            assert process.ask("continue", ids, tokens=5) == serve.answer(Adder(), request)


def test_a_reading_is_seconds_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    with started() as process:
        monkeypatch.setattr(Beside, "ask", lambda self, do, ids, **more: {"seconds": 6.0, "more": more})
        assert process.reading("decode", [1], tokens=3, per=3)() == 2.0


def test_a_missing_package_or_a_failure_is_an_error_that_names_script_and_interpreter() -> None:
    with pytest.raises(BesideError, match=r"with_fake in .*a_package_that_is_not_there"):
        started("missing")
    with pytest.raises(BesideError, match=r"without an answer.*no such model"):
        started("broken")
    with started() as process, pytest.raises(BesideError, match="without an answer"):
        process.ask("decode", ["no number"], tokens=1)  # pyright: ignore[reportArgumentType]


def test_the_process_ends_with_the_with() -> None:
    with started() as process:
        running = process._process
        assert running.poll() is None
    assert running.poll() == 0


def test_the_scripts_import_nothing_of_ours_but_the_loop() -> None:
    """The interpreter that runs them has neither engine nor bench."""
    scripts = [file.stem for file in Path(serve.__file__).parent.glob("*with_*.py")]
    assert len(scripts) == 6
    for script in ("serve", *scripts):
        source = Path(serve.__file__).with_name(f"{script}.py").read_text()
        lines = [line.split()[1] for line in source.splitlines() if line.startswith(("import ", "from "))]
        ours = {"engine", "records", "modules", "examples", "bench"}
        assert not ours & {line.split(".")[0] for line in lines}
        assert not any(line.startswith(".") for line in lines)
