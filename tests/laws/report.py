"""What came of each law, as JSON: ``pytest tests/laws --law-report FILE``.

A law is *not applicable* where the adapter lacks a capability that it needs,
*failed* (with the minimal case) where one of its tests failed, else *passed*;
``emulated`` says that the adapter makes one of those capabilities out of others.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from .subject import subject

RANK: Final = {"not applicable": 0, "passed": 1, "failed": 2}


class LawReport:
    """Collects outcomes while the tests run, and writes them at the end."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.laws: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        mark = item.get_closest_marker("law")
        if mark is not None and (report.when == "call" or not report.passed):
            result = "failed" if report.failed else "not applicable" if report.skipped else "passed"
            notes = getattr(call.excinfo.value, "__notes__", []) if call.excinfo and report.failed else []
            for number in mark.args:
                self.note(number, result, item.name, mark.kwargs.get("needs", ()), "\n".join(notes))
        return report

    def note(self, number: str, result: str, test: str, needs: Any, case: str) -> None:
        """One test's outcome; a law has the worst of its tests'."""
        levels = {subject().capabilities.get(name, "missing") for name in needs}
        law = self.laws.setdefault(number, {"result": result, "emulated": False, "tests": {}})
        law["result"] = max(law["result"], result, key=RANK.__getitem__)
        law["emulated"] |= "emulated" in levels
        law["tests"][test] = {"result": result, **({"case": case} if case else {})}

    def pytest_sessionfinish(self) -> None:
        order = sorted(self.laws, key=lambda number: int(number[1:]))
        told = {"adapter": subject().name, "version": subject().version, "laws": {n: self.laws[n] for n in order}}
        self.file.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
