"""``python -m bench NAME …``: run benchmarks, print their tables, and write them as JSON.

``python -m bench compare OLD NEW`` compares two of those files.
"""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from engine import Device, DeviceError, EngineError
from examples.command_line import run
from examples.errors import UsageError

from . import compare, machine, report
from .answers import AnswerError
from .beside.client import is_python
from .progress import Progress
from .registry import BENCHMARKS, tables_of
from .settings import Settings

_EPILOG = (
    "Figures of a machine that other work shares mean nothing: wait until it is quiet. Temporary files, of up to "
    "1.2 GB, lie where TMPDIR says."
)


_MAX_THREADS = 1024


def _path(text: str) -> Path:
    """The type of an option that names a file or folder."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return Path(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__, epilog=_EPILOG)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)}; all of them without a name")
    parser.add_argument("--json", type=_path, metavar="FILE", help="write machine and results there too")
    parser.add_argument("--markdown", action="store_true", help="print tables as text for a README")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works, measures nothing")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of matrix products; by default as BLAS chooses"
    )
    parser.add_argument(
        "--beside",
        type=_path,
        metavar="PYTHON",
        help="interpreter of an environment with torch or llama_cpp, for those that compare; by default this one",
    )
    parser.add_argument(
        "--devices",
        metavar="D,D,…",
        help="between which copies are measured, such as cpu:0,cuda:0,cuda:1; by default all that there are",
    )
    parser.add_argument("--plots", type=_path, metavar="FOLDER", help="write plots of copies there, as PNG and SVG")
    return parser


def _devices(text: str | None) -> tuple[Device, ...]:
    """The devices that the option names.

    Raises:
        DeviceError: one is no device, or this machine lacks it; or they are not two or more.
    """
    devices = () if text is None else tuple(Device(part.strip()).inner() for part in text.split(","))
    if text is not None and (len(devices) < 2 or len({*devices}) < len(devices)):
        raise DeviceError("give two devices or more, each once")
    for device in devices:
        with device:
            pass
    return devices


def _refusal(arguments: argparse.Namespace) -> str | None:
    """What is wrong with the arguments, in one line; None if nothing is."""
    for name in arguments.names:
        if name == "compare":
            return "compare comes first: python -m bench compare OLD NEW"
        if name not in BENCHMARKS:
            return f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}"
    if arguments.json is not None and (trouble := report.trouble_writing(arguments.json)) is not None:
        return f"--json {arguments.json}: {trouble}"
    if arguments.beside is not None and not arguments.beside.is_file():
        return f"--beside {arguments.beside}: there is no such interpreter"
    if arguments.beside is not None and not is_python(arguments.beside):
        return f"--beside {arguments.beside}: it is no Python interpreter"
    if arguments.plots is not None and arguments.plots.exists() and not arguments.plots.is_dir():
        return f"--plots {arguments.plots}: it is no folder"
    if arguments.threads is not None and not 1 <= arguments.threads <= _MAX_THREADS:
        return f"--threads {arguments.threads}: give 1 or more, {_MAX_THREADS} at most"
    return None


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Matrix products use so many threads inside the ``with``; as many as BLAS chooses if None."""
    if number is None:
        yield
        return
    with importlib.import_module("threadpoolctl").threadpool_limits(number, user_api="blas"):
        yield


def _run(name: str, settings: Settings) -> report.Result:
    benchmark, rows = BENCHMARKS[name], list[report.Row]()
    with machine.OtherWork() as other, Progress(name) as progress:
        for row in benchmark.measure(replace(settings, progress=progress)):
            rows.append(row)
            progress.found(row.what)
    return report.Result(
        name=name,
        question=benchmark.__doc__ or "",
        rows=rows,
        quick=settings.quick,
        others=other.share,
        tables=tables_of(benchmark, rows),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for.

    Returns:
        The exit status: 0; 1 if two sides computed different answers or something is missing; 2 for wrong
        arguments; 130 if interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["compare"]:
        return compare.main(words[1:])
    given = _parser().parse_args(words)
    refusal = _refusal(given)
    if refusal is None and given.threads is not None:
        refusal = _missing("threadpoolctl", "--threads")
    if refusal is None and given.plots is not None:
        refusal = _missing("matplotlib", "--plots")
    try:
        devices = () if refusal is not None else _devices(given.devices)
    except DeviceError as error:
        devices, refusal = (), f"--devices {given.devices}: {error}"
    if refusal is None and given.plots is not None:
        refusal = _trouble_plotting(given.plots)
    if refusal is not None:
        print(f"python -m bench: {refusal}", file=sys.stderr)
        return 2
    settings = Settings(quick=given.quick, beside=given.beside, devices=devices, plots=given.plots)
    results: list[report.Result] = []
    try:
        with _threads(given.threads):
            described = machine.describe()
            report.print_machine(described)
            for name in given.names or BENCHMARKS:
                results.append(_run(name, settings))
                report.print_result(results[-1], markdown=given.markdown)
                if given.json is not None:
                    report.write_json(given.json, described, results)
    except BrokenPipeError:  # whoever read it has gone
        raise
    except (AnswerError, EngineError, UsageError, OSError) as error:
        print(f"python -m bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _trouble_plotting(folder: Path) -> str | None:
    """Why plots cannot go there, found out before anything is measured; None if they can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"--plots {folder}: it cannot be made: {error.strerror}"
    return None


def _missing(package: str, option: str) -> str | None:
    """That a package that an option takes is not installed; None if it is."""
    if importlib.util.find_spec(package) is not None:
        return None
    return f"{option} takes the package {package}; in the clone, pip install -e '.[bench]'"


if __name__ == "__main__":
    run("python -m bench", main)
