"""The law suite's own part of pytest: the adapter as a fixture, and what is not applicable to it."""

from pathlib import Path

import pytest
from hypothesis import settings

from .protocol import Adapter
from .report import LawReport
from .subject import subject


def pytest_configure(config: pytest.Config) -> None:
    """Collect what comes of each law, if that is asked for."""
    if file := config.getoption("law_report", None):
        config.pluginmanager.register(LawReport(Path(str(file))))


@pytest.fixture(scope="session")
def adapter() -> Adapter:
    """The implementation under test."""
    return subject()


@pytest.fixture(scope="session")
def profile() -> settings:
    """The settings of hypothesis, for a law that draws for itself."""
    return settings()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A law whose capability the adapter lacks is not applicable: skipped with the reason, or failed if required."""
    mark = item.get_closest_marker("law")
    missing = [name for name in (mark.kwargs.get("needs", ()) if mark else ()) if name not in subject().capabilities]
    if not missing or mark is None:
        return
    said = f"{', '.join(mark.args)} not applicable: {subject().name} does not offer {', '.join(missing)}"
    if required := {"all", *missing}.intersection(item.config.getoption("require") or ()):
        pytest.fail(f"{said}, which --require {' '.join(sorted(required))} asks for", pytrace=False)
    pytest.skip(said)
