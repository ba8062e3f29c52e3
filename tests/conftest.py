"""Hypothesis profiles, markers, and what the header of a test run says.

One option or environment variable for each choice, printed with every run:
``--profile`` or ``LAYERLOOM_PROFILE`` (below), ``--adapter`` or
``LAYERLOOM_ADAPTER`` (what the laws are put to), ``LAYERLOOM_GOLDEN`` (where
golden values lie). Another variable with that prefix is an error: it would be
a typing mistake that changes nothing.
"""

import gc
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

PREFIX: Final = "LAYERLOOM_"
KNOWN: Final = frozenset({"LAYERLOOM_PROFILE", "LAYERLOOM_ADAPTER", "LAYERLOOM_GOLDEN", "LAYERLOOM_NO_PEER"})
DATABASE: Final = Path(__file__).parent.parent / ".hypothesis"

_KEPT: Final = DirectoryBasedExampleDatabase(DATABASE / "examples")
_NIGHTLY: Final = DirectoryBasedExampleDatabase(DATABASE / "nightly")
_EVERY: Final[dict[str, Any]] = {"deadline": None}  # a first call is slow, machines stall; hangs are pytest-timeout's

PROFILES: Final[dict[str, dict[str, Any]]] = {
    "dev": {"max_examples": 50, "stateful_step_count": 30, "database": _KEPT},
    "ci": {
        "max_examples": 200,
        "stateful_step_count": 50,
        "derandomize": True,
        "database": None,
        "print_blob": True,
    },
    "nightly": {"max_examples": 3000, "stateful_step_count": 100, "database": _NIGHTLY, "print_blob": True},
    "replay": {
        "phases": (Phase.explicit, Phase.reuse),
        "database": _KEPT,
        "print_blob": True,
    },
    "mutate": {
        "max_examples": 100,
        "stateful_step_count": 30,
        "derandomize": True,
        "database": None,
        "phases": (Phase.explicit, Phase.generate),
        "print_blob": True,
    },
}

OF_THE_SUITE: Final = ("faults", "suite")  # markers of tests that look at the suite, not at the engine
UNITS: Final = {"ci": 100}  # examples of a test that states no law, where they are others than the profile's

# Hypothesis loads its own profile `ci` where the variable CI is set, so ours has that name and is loaded by name.
for _name, _chosen in PROFILES.items():
    settings.register_profile(_name, **_EVERY, **_chosen)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("layerloom")
    group.addoption("--profile", choices=sorted(PROFILES), help="settings of hypothesis (LAYERLOOM_PROFILE; dev)")
    group.addoption("--adapter", help="package.module:class that the laws are put to (LAYERLOOM_ADAPTER)")
    group.addoption(
        "--require",
        action="append",
        default=[],
        metavar="NAME",
        help="fail instead of skip where a law is not applicable for want of this capability; 'all' for any",
    )
    group.addoption("--law", action="append", default=[], metavar="L12", help="only the tests of this law")
    group.addoption("--law-report", metavar="FILE", help="write what came of each law as JSON (without -n)")


def pytest_configure(config: pytest.Config) -> None:
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in KNOWN)
    if unknown:
        raise pytest.UsageError(f"unknown variables {', '.join(unknown)}; known are {', '.join(sorted(KNOWN))}")
    settings.load_profile(_profile(config))
    if adapter := config.getoption("adapter"):
        os.environ["LAYERLOOM_ADAPTER"] = str(adapter)
    for line in (
        "law(*numbers, needs): a law of the suite in tests/laws, and the capabilities it needs",
        "inside: a law that looks at identity, memory or threads, so it is the engine's own",
        "faults: puts the laws to implementations with a planted fault (pytest -m faults)",
        "suite: what the generators draw, and what the laws say of a model in plain Python (pytest -m suite)",
    ):
        config.addinivalue_line("markers", line)


def _profile(config: pytest.Config) -> str:
    name = config.getoption("profile") or os.environ.get("LAYERLOOM_PROFILE") or "dev"
    if name not in PROFILES:
        raise pytest.UsageError(f"LAYERLOOM_PROFILE: {name!r} is no profile; there are {', '.join(PROFILES)}")
    return name


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The choices that a result depends on."""
    chosen = settings()
    seed = config.getoption("--hypothesis-seed", None)
    versions = (f"{name} {version(name)}" for name in ("numpy", "ml-dtypes", "hypothesis"))
    profile = _profile(config)
    units = f", {UNITS[profile]} of what is no law" if profile in UNITS else ""
    return [
        f"profile: {profile} ({chosen.max_examples} examples{units}, {chosen.stateful_step_count} steps)",
        f"seed: {'that of each test' if chosen.derandomize else seed or 'random'}",
        f"versions: Python {platform.python_version()}, {', '.join(versions)}",
        f"adapter: {os.environ.get('LAYERLOOM_ADAPTER') or 'the engine'}; golden values: "
        f"{os.environ.get('LAYERLOOM_GOLDEN') or 'tests/golden'}",
    ]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Print the header under one -q too, where pytest prints none: a result without its choices says little."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and session.config.get_verbosity() == -1:
        for line in pytest_report_header(session.config):
            reporter.write_line(line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only the laws asked for; and what says nothing about the engine only if -m names it."""
    numbers = set(config.getoption("law") or ())
    unnamed = [name for name in OF_THE_SUITE if name not in config.option.markexpr]
    left_out = []
    for item in items:
        mark = item.get_closest_marker("law")
        other = bool(numbers) and not numbers.intersection(mark.args if mark else ())
        if other or any(item.get_closest_marker(name) for name in unnamed):
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    if examples := UNITS.get(_profile(config)):
        _take_fewer(items, settings(max_examples=examples))


def _take_fewer(items: list[pytest.Item], chosen: settings) -> None:
    """Give tests that state no law, and have no settings of their own, these."""
    functions = {item.function for item in items if isinstance(item, pytest.Function) and not _states_law(item)}
    for function in functions:
        if hasattr(function, "hypothesis") and not hasattr(function, "_hypothesis_internal_settings_applied"):
            chosen(function)


def _states_law(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) is not None for name in ("law", "inside"))


def pytest_collection_finish() -> None:
    """Thousands of tests lie in memory from here on; the collector need not go through them again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)
