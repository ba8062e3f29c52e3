"""A classifier of handwritten digits, trained while it is cut by layers over devices.

The images come from the package scikit-learn; every fifth one is kept for
testing. With --record, the run is saved after each epoch and on Ctrl-C, and
the same command goes on from there, bit for bit as if it had not stopped.
Each device gets a share of the four hidden layers; of more devices than that
the rest gets none, and is named on the error stream.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from engine import Device
from examples.command_line import OneLineParser, add_devices, counted, devices_of, run
from examples.digits import Digits
from examples.errors import ArgumentError
from examples.file_options import kept_by
from examples.packages import library
from examples.placing import placement_json, placement_table, tell_unused
from examples.stopping import stop_wishes
from examples.training import Run, Settings

_NAME: Final = "train"

Report = Callable[[float | None], object]
"""Called after each step with the loss, and with None after each epoch."""


def main() -> None:
    """Run the command."""
    run(_NAME, lambda: _train(_arguments()))


def _arguments() -> argparse.Namespace:
    parser = OneLineParser(_NAME, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_devices(parser)
    parser.set_defaults(devices="cpu:0,cpu:1")
    parser.add_argument(
        "--epochs", metavar="N", type=int, default=20, help="passes over the images (default: %(default)s)"
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        type=kept_by("--record"),
        help="where the run is kept, *.bpk or *.safetensors; if it is there, go on with it (a link is replaced)",
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, help="of all that is drawn (default: 0, or that of the record)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, and nothing else")
    arguments = parser.parse_args()
    if arguments.epochs < 0:
        parser.error(f"--epochs {arguments.epochs}: it must be 0 or more")
    if arguments.seed is not None and not 0 <= arguments.seed < 2**63:
        parser.error(f"--seed {arguments.seed}: it must be from 0 to 2**63 - 1")
    return arguments


def _train(arguments: argparse.Namespace) -> None:
    devices, (data, test) = devices_of(arguments.devices), Digits.load().parts()
    losses: list[float] = []
    with stop_wishes() as is_stopped, _told_what_is_kept(arguments.record):
        training = _begun(arguments, data, devices)
        tell_unused(_NAME, devices, training.model.placement)
        total = arguments.epochs * training.steps_per_epoch
        if not arguments.json:
            library("rich.console").Console().print(placement_table(training.model))
        with _shown(training, total, test) as report:
            while training.steps < total and not is_stopped():
                losses.append(training.step())
                report(losses[-1])
                if training.steps % training.steps_per_epoch == 0:
                    report(None)
                    _keep(training, arguments.record)
        is_done = training.steps >= total
        if not is_done:
            _keep(training, arguments.record)
    if not is_done:
        how = f"; the same command goes on from {arguments.record}" if arguments.record else ", and nothing is kept"
        print(f"{_NAME}: stopped after {counted(training.steps, 'step')}{how}", file=sys.stderr)
        raise KeyboardInterrupt
    _tell(arguments, training, losses, test)


def _begun(arguments: argparse.Namespace, data: Digits, devices: list[Device]) -> Run:
    """The run that the record holds, or a new one, which is kept at once: so a place that cannot be written shows.

    Raises:
        ArgumentError: the record is of another seed.
    """
    file: Path | None = arguments.record
    if file is None or not file.exists():
        begun = Run(Settings(seed=arguments.seed or 0), data, devices)
        _keep(begun, file)
        return begun
    resumed = Run.resumed(file, data, devices)
    if arguments.seed not in (None, resumed.settings.seed):
        raise ArgumentError(f"--seed {arguments.seed}: {file} holds a run of seed {resumed.settings.seed}")
    return resumed


def _keep(training: Run, file: Path | None) -> None:
    if file is not None:
        training.save(file)


@contextmanager
def _told_what_is_kept(file: Path | None) -> Iterator[None]:
    """Says so where a second Ctrl-C ends the run at once, perhaps while it was being saved."""
    try:
        yield
    except KeyboardInterrupt:
        is_kept = file is not None and file.exists()
        kept = f"{file} is whole, as it was saved last" if is_kept else "nothing is kept"
        print(f"{_NAME}: interrupted; {kept}", file=sys.stderr)
        raise


@contextmanager
def _shown(training: Run, total: int, test: Digits) -> Iterator[Report]:
    """A bar with the epoch, the loss and the accuracy on the test images; on a terminal's error stream alone."""
    progress = library("rich.progress")
    columns = (
        progress.TextColumn("epoch {task.fields[epoch]}"),
        progress.BarColumn(),
        progress.TextColumn("loss {task.fields[loss]}, test accuracy {task.fields[accuracy]}"),
        progress.TimeRemainingColumn(),
    )
    console = library("rich.console").Console(stderr=True)
    with progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        fields = {"epoch": training.steps // training.steps_per_epoch + 1, "loss": "…", "accuracy": "…"}
        task = bar.add_task("", total=total, completed=training.steps, **fields)

        def report(loss: float | None) -> None:
            if bar.disable:
                return
            if loss is None:
                bar.update(task, accuracy=f"{training.accuracy(test):.1%}")
            else:
                epoch = (training.steps - 1) // training.steps_per_epoch + 1
                bar.update(task, completed=training.steps, epoch=epoch, loss=f"{loss:.4f}")

        yield report


def _tell(arguments: argparse.Namespace, training: Run, losses: list[float], test: Digits) -> None:
    """What came out; the loss is the mean of the last steps made now, those of an epoch at most."""
    last = losses[-training.steps_per_epoch :]
    loss, accuracy = (sum(last) / len(last) if last else None), training.accuracy(test)
    if arguments.json:
        print(json.dumps(_json(arguments, training, losses, loss, accuracy)))
        return
    trained = f"{counted(training.steps // training.steps_per_epoch, 'epoch')} ({counted(training.steps, 'step')})"
    told = "" if loss is None else f", loss {loss:.4f} in the last {counted(len(last), 'step')}"
    print(f"trained for {trained}{told}")
    print(f"accuracy: {accuracy:.1%} of {counted(len(test.labels), 'test image')}")
    if arguments.record:
        print(f"the run is in {arguments.record}")


def _json(
    arguments: argparse.Namespace, training: Run, losses: list[float], loss: float | None, accuracy: float
) -> dict[str, Any]:
    return {
        "steps": training.steps,
        "steps_per_epoch": training.steps_per_epoch,
        "losses": losses,
        "loss": loss,
        "test_accuracy": accuracy,
        "seed": training.settings.seed,
        "placement": placement_json(training.model.placement),
        "record": None if arguments.record is None else str(arguments.record),
    }


if __name__ == "__main__":
    main()
