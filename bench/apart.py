"""Running a function in a process of its own, to see what memory it takes.

The peak is that of the process since it started, so one process can answer
one such question only, and a forked one would begin with its parent's.
"""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parent.parent


def apart(module: str, function: str, *arguments: str) -> Any:
    """What a function gives when a new interpreter calls it.

    Args:
        module: where it is.
        function: its name; it takes texts and gives what JSON holds.

    Raises:
        RuntimeError: it failed; the message ends with its last line on stderr.
    """
    command = [sys.executable, "-m", "bench.apart", module, function, *arguments]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["without a message"]
        raise RuntimeError(f"{module}.{function} failed in a process of its own: {lines[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def peak_bytes() -> int:
    """The most memory that this process has had at one time, pages of mapped files that it touched included."""
    found = _status("VmHWM")
    if found is not None:
        return found
    resource = importlib.import_module("resource")  # which Windows lacks
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


def own_bytes() -> int | None:
    """The memory that is this process's alone now, without pages of files; None where the system does not tell."""
    return _status("RssAnon")


_MAXRSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024


def _status(name: str) -> int | None:
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return None
    found = re.search(rf"^{name}:\s*(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def main(module: str, function: str, *arguments: str) -> None:
    """Call the function and print its result as the last line."""
    print("\n" + json.dumps(getattr(importlib.import_module(module), function)(*arguments)))


if __name__ == "__main__":
    main(*sys.argv[1:])
