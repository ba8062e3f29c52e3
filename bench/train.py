"""What does a training step of a split model cost beside eager PyTorch, and what do recording and a backward take?

A step: forward, mean squared error, backward and Adam of a stem, four blocks ``x + relu(linear(x))`` and a head, all of
one width, with 128 rows; split means over two CPU devices. Where this interpreter, or the one that --beside names, has
torch: against the same step there, on the same weights and as many threads. Recording: an addition of two tensors of 16
numbers, plain, recorded, and pulled back. Memory: by how much forward and backward raise the peak of a process of its
own, against the activations that the backward reads. Medians of 20 interleaved rounds.
"""

import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine import Seed, Tensor, ops, randn
from modules import Adam
from modules.parallel import DistributedLayeredModel, LayerPlacement
from modules.tree import leaves

from .answers import check_close, check_same_bits
from .apart import apart, peak_bytes
from .beside.client import Beside, BesideError
from .forward import Mlp
from .machine import blas_threads
from .report import Row
from .settings import Settings
from .timing import Reading, Spread, repeats, timed

_BLOCKS: Final = 4
_ROWS: Final = 128
_LR: Final = 1e-3
_READING: Final = 0.01  # seconds that a reading lasts at least
_TOLERANCE: Final = 1e-4  # of a loss of about 1, after a few steps in float32


class Training:
    """The model over some devices, its data and optimizer.

    Args:
        width: of every layer.
        rows: of the data.
        devices: the layers are cut evenly over them.
    """

    def __init__(self, width: int, rows: int, devices: list[str]) -> None:
        self._placement = LayerPlacement.even([f"{device}+autodiff" for device in devices], _BLOCKS)
        self._width = width
        self.x = randn((rows, width), seed=1, device=self._placement.input.inner())
        self.target = randn((rows, width), seed=2, device=self._placement.output.inner())
        self.reset()

    def reset(self) -> None:
        """Begin with the initial values."""
        self.model = DistributedLayeredModel(Mlp(self._width, self._placement, Seed(0)), self._placement)
        self.optimizer = Adam(_LR)

    def loss(self) -> Tensor:
        """The mean squared error of the model's output."""
        return ops.mse(self.model(self.x), self.target)

    def step(self) -> Tensor:
        """One step; gives the loss before it."""
        loss = self.loss()
        self.model = self.optimizer.step(self.model, loss.backward())
        return loss

    def losses(self, steps: int) -> list[float]:
        """The loss before each of so many steps, from the initial values."""
        self.reset()
        return [float(self.step()) for _ in range(steps)]

    def values(self) -> list[NDArray[Any]]:
        """All parameters, in order."""
        return [leaf.base().numpy() for _, leaf in leaves(self.model)]  # pyright: ignore[reportAttributeAccessIssue]

    def reading(self, steps: int) -> Reading:
        """A reading of the seconds that one step takes, where so many are made."""
        return timed(self.step, repeat=steps, devices=self._placement.devices())

    def write(self, file: Path) -> None:
        """Initial values and data as `train_with_torch` reads them."""
        self.reset()
        arrays = [np.atleast_2d(array) for array in (*self.values(), self.x.numpy(), self.target.numpy())]
        with file.open("wb") as stream:
            stream.write(json.dumps({"lr": _LR, "shapes": [array.shape for array in arrays]}).encode() + b"\n")
            for array in arrays:
                stream.write(np.ascontiguousarray(array, "<f4").tobytes())


def measure(settings: Settings) -> Iterable[Row]:
    """Steps of three widths, recording, and memory."""
    widths = settings.size((64, 512, 2048), (8, 16))
    settings.progress.expect(len(widths) + 1)
    for width in widths:
        yield from _steps(settings, width)
    yield from _recording(settings)
    yield from _memory(settings)


def _steps(settings: Settings, width: int) -> Iterator[Row]:
    rows = settings.size(_ROWS, 3)
    whole, split = Training(width, rows, ["cpu:0"]), Training(width, rows, ["cpu:0", "cpu:1"])
    check_close(f"train, {width} wide", 0.0, whole.losses(3), split.losses(3))
    for one, other in zip(whole.values(), split.values(), strict=True):
        check_same_bits(f"train, {width} wide", one, other)
    steps = repeats(whole.reading(1), settings.least_seconds(_READING))
    forward, unsplit, splitted = settings.interleaved(
        timed(whole.loss, repeat=steps), whole.reading(steps), split.reading(steps), rounds=20
    )
    size = f"{width} wide"
    yield Row(what=f"forward alone, {size}", value=forward.spread(1e-3), unit="ms")
    yield Row(
        what=f"step on one device, {size}",
        value=unsplit.spread(1e-3),
        unit="ms",
        ratio=unsplit.over(forward),
        to="forward",
    )
    yield Row(
        what=f"step split in two, {size}",
        value=splitted.spread(1e-3),
        unit="ms",
        ratio=splitted.over(unsplit),
        to="one device",
    )
    yield from _beside(settings, split, size)


def _beside(settings: Settings, split: Training, size: str) -> Iterator[Row]:
    what = f"step split in two beside eager PyTorch, {size}"
    if settings.beside is None and importlib.util.find_spec("torch") is None:
        why = "not measured: torch is not installed here; --beside names an interpreter that has it"
        yield Row(what=what, value=None, unit="ms", note=why)
        return
    with tempfile.TemporaryDirectory(prefix="layerloom-bench-") as folder:
        file = Path(folder, "training")
        split.write(file)
        try:
            with Beside(settings.beside or Path(sys.executable), "train_with_torch", file, blas_threads()) as process:
                yield from _compared(settings, split, size, what, process)
        except BesideError as error:
            yield Row(what=what, value=None, unit="ms", note=f"not measured: {error}")


def _compared(settings: Settings, split: Training, size: str, what: str, process: Beside) -> Iterator[Row]:
    settings.progress.expect(1)
    theirs = process.ask("losses", steps=4)["losses"]
    check_close(f"train, losses of PyTorch, {size}", _TOLERANCE, split.losses(4), theirs)
    steps = repeats(split.reading(1), settings.least_seconds(_READING))
    ours, its = settings.interleaved(split.reading(steps), process.reading("train", steps=steps, per=steps), rounds=20)
    yield Row(what=f"step by {process.version}, {size}", value=its.spread(1e-3), unit="ms")
    yield Row(what=what, value=ours.spread(1e-3), unit="ms", ratio=ours.over(its), to="eager PyTorch")


def _recording(settings: Settings) -> Iterator[Row]:
    """An addition as a link of a long chain."""
    links = settings.size(1000, 10)
    plain = randn((16,), seed=0, device="cpu:0")
    leaf = plain.autodiff().set_require_grad(True)
    ends: list[Tensor] = []

    def chained(first: Tensor) -> Tensor:
        x = first
        for _ in range(links):
            x = x + plain
        return x

    def record() -> None:
        ends[:] = [chained(leaf)]

    record()
    gradient = leaf.grad(ends[0].backward(plain))
    check_same_bits("train, a chain", plain.numpy(), gradient.numpy() if gradient is not None else np.zeros(0))
    unrecorded, recorded, pulled = settings.interleaved(
        timed(lambda: chained(plain)), timed(record), timed(lambda: ends[0].backward(plain), before=record), rounds=20
    )
    each = 1e-6 * links
    yield Row(what="an operation, plain", value=unrecorded.spread(each), unit="µs")
    for what, timing in (("recorded", recorded), ("pulled back", pulled)):
        ratio = timing.over(unrecorded)
        yield Row(what=f"an operation, {what}", value=timing.spread(each), unit="µs", ratio=ratio, to="plain")


def _memory(settings: Settings) -> Iterator[Row]:
    width, rows = settings.size((512, 16_384), (16, 64))
    found = apart(__name__, "backward_memory", str(width), str(rows))
    taken, activations = found["taken"], found["activations"]
    yield Row(
        what=f"memory of forward and backward at its peak, {width} wide, {rows:,} rows",
        value=Spread(taken / 1e6, taken / 1e6, taken / 1e6),
        unit="MB",
        ratio=Spread(*[taken / activations] * 3),
        to="activations read",
    )


def backward_memory(width: str, rows: str) -> dict[str, int]:
    """For a process of its own: by how much forward and backward raise its peak, and the bytes of the activations.

    The backward reads the input of each linear layer, the result of each ReLU, and the distance from the target.
    """
    Training(8, 2, ["cpu:0"]).step()  # what is made once
    training = Training(int(width), int(rows), ["cpu:0"])
    training.values()
    before = peak_bytes()
    training.loss().backward()
    kept = (1 + _BLOCKS + 1) + _BLOCKS + 1
    return {"taken": peak_bytes() - before, "activations": kept * training.x.nbytes}
