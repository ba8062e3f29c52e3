"""The tensors of `bench.records` by safetensors and by PyTorch; it takes the packages torch, safetensors and numpy.

Each request names ``by``: ``safetensors``, or ``torch``, which loads by mapping the file.
``digest``: the SHA-256 of what was loaded, the tensors one behind the other in the order of their names.
``open``, ``load``, ``use`` (load, then read every byte once) and ``save`` (and flush to disk): the ``seconds`` of one.
``peak`` of ``what``, one of these, in a process that did nothing before: the ``bytes`` by which it raises the peak.
"""

import hashlib
import importlib
import os
import re
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from serve import serve


class Checkpoint:
    """One set of tensors in a file of each format.

    Args:
        file: of safetensors; that of torch is written beside it.
        threads: of torch.
    """

    def __init__(self, file: str, threads: int) -> None:
        self.torch = importlib.import_module("torch")
        self.safetensors = importlib.import_module("safetensors")
        self.functions = importlib.import_module("safetensors.torch")
        importlib.import_module("numpy")  # which `use` takes
        self.torch.set_num_threads(threads)
        self.version = f"torch {self.torch.__version__}, safetensors {self.safetensors.__version__}"
        self.files = {"safetensors": Path(file), "torch": Path(file).with_suffix(".pt")}
        self.held: dict[str, Any] = {}

    def hold(self) -> None:
        """Have the tensors in memory, and both files."""
        if not self.held:
            loaded = self.functions.load_file(self.files["safetensors"])
            self.held = {name: tensor.clone() for name, tensor in loaded.items()}
        if not self.files["torch"].exists():
            self.torch.save(self.held, self.files["torch"])

    def open(self, by: str) -> Any:
        """A file whose tensors have not been read; torch knows no such thing but a mapping."""
        if by == "torch":
            return self.load(by)
        with self.safetensors.safe_open(self.files[by], "pt") as opened:
            return list(opened.keys())

    def load(self, by: str) -> dict[str, Any]:
        """All tensors by name."""
        if by == "torch":
            return self.torch.load(self.files[by], mmap=True, weights_only=True)
        return self.functions.load_file(self.files[by])

    def use(self, by: str) -> int:
        """The largest word in the tensors, as NumPy finds it."""
        return max(int(tensor.numpy().reshape(-1).view("uint32").max()) for tensor in self.load(by).values())

    def save(self, by: str) -> None:
        """Write the tensors to a new file, and flush it."""
        target = self._target(by)
        if by == "torch":
            self.torch.save(self.held, target)
        else:
            self.functions.save_file(self.held, target)
        with target.open("rb+") as written:
            os.fsync(written.fileno())

    def _target(self, by: str) -> Path:
        return self.files[by].with_name(f"saved-by-{by}")

    def prepare(self, what: str, by: str) -> None:
        """What comes before, and is not timed."""
        if what == "save":
            self.hold()
            self._target(by).unlink(missing_ok=True)

    def digest(self, by: str) -> str:
        """The SHA-256 of what is loaded."""
        self.hold()
        digest = hashlib.sha256()
        for _, tensor in sorted(self.load(by).items()):
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()


def answer(checkpoint: Checkpoint, request: dict[str, Any]) -> dict[str, Any]:
    """What a request asks for."""
    do, by = request["do"], request["by"]
    if do == "digest":
        return {"digest": checkpoint.digest(by)}
    what = request["what"] if do == "peak" else do
    checkpoint.prepare(what, by)
    work: Callable[[str], Any] = getattr(checkpoint, what)
    _forget_peak()
    before, start = _peak(), perf_counter()
    made = work(by)
    seconds = perf_counter() - start
    del made
    return {"seconds": seconds} if do != "peak" else {"bytes": _peak() - before}


def _forget_peak() -> None:
    """Let the peak be what is taken now, where the system can; what came before may have taken more."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """The most memory that this process has had, in bytes, as `bench.apart` reads it."""
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    serve(Checkpoint, answer)
