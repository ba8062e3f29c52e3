"""Ctrl-C as a wish that a loop can see, so that what it is doing is finished and kept."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_wishes() -> Iterator[Callable[[], bool]]:
    """Inside the ``with``, Ctrl-C raises nothing at first: what this gives tells whether it was pressed.

    Pressed a second time, it raises KeyboardInterrupt, as it does elsewhere.
    It is for the main thread.
    """
    is_wished = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal is_wished
        if is_wished:
            raise KeyboardInterrupt
        is_wished = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: is_wished
    finally:
        signal.signal(signal.SIGINT, before)
