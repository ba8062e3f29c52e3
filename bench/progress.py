"""How far a run is: a bar on a terminal's error stream, for benchmarks and for the checks of a GPU.

It is drawn between readings of the clock, never during one, and at most ten
times a second. A bar that draws itself in a thread of its own, as is usual,
would take the interpreter's lock from what is being measured.
"""

import importlib
import sys
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self, final

_REST: Final = 0.1  # seconds from one drawing to the next, at least


@final
class Progress:
    """The bar of one run, shown while its ``with`` is open; without the package rich, or a terminal, nothing is shown.

    Args:
        title: what stands before the bar.

    Attributes:
        steps: how many there are to be, as far as is known.
        done: how many of them are done, the one under way in part.
    """

    def __init__(self, title: str = "") -> None:
        self.steps = 0
        self.done = 0.0
        self._title = title
        self._bar: Any = None
        self._drawn = 0.0

    def expect(self, steps: int) -> None:
        """There are so many steps more."""
        self.steps += steps
        self._draw()

    def part(self, done: int, of: int) -> None:
        """Of a step, one part more is done: `done` of them now, 1 or more."""
        self.done = int(self.done) + done / of
        self._draw()

    def found(self, what: str) -> None:
        """Say what came last."""
        self._draw(found=what)

    def _draw(self, **fields: str) -> None:
        if self._bar is None:
            return
        self._bar.update(self._bar.task_ids[0], completed=self.done, total=self.steps or None, **fields)
        now = monotonic()
        if now - self._drawn >= _REST:
            self._drawn = now
            self._bar.refresh()

    def __enter__(self) -> Self:
        rich: Any = None
        if sys.stderr.isatty():
            with suppress(ImportError):
                rich = importlib.import_module("rich.progress")
        if rich is None:
            return self
        found = importlib.import_module("rich.table").Column(no_wrap=True, overflow="ellipsis", ratio=1)
        columns = (
            rich.TextColumn("{task.description}", markup=False),
            rich.BarColumn(20),
            rich.TaskProgressColumn(),
            rich.TimeElapsedColumn(),
            rich.TextColumn("{task.fields[found]}", markup=False, table_column=found),
        )
        console = importlib.import_module("rich.console").Console(stderr=True)
        self._bar = rich.Progress(*columns, console=console, transient=True, auto_refresh=False, expand=True)
        self._bar.add_task(self._title, total=None, found="")
        self._bar.start()
        self._bar.refresh()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
