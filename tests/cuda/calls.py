"""CuPy's calls as the tests of the fake write them most."""

from contextlib import ExitStack
from typing import Any


def on(cp: Any, device: int, stream: Any) -> ExitStack:
    """A device and a stream, both current."""
    stack = ExitStack()
    stack.enter_context(cp.cuda.Device(device))
    stack.enter_context(stream)
    return stack


def event(cp: Any, stream: Any) -> Any:
    """An event of the current device, recorded on a stream."""
    made = cp.cuda.Event(disable_timing=True)
    made.record(stream)
    return made
