"""What the command line chooses for all benchmarks."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from engine import Device

from .progress import Progress
from .timing import Reading, Timing, interleaved

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to measure.

    Attributes:
        quick: sizes and rounds that end within seconds and show that a benchmark works; the figures mean nothing.
        beside: the interpreter of an environment with PyTorch or llama.cpp to measure beside; None for this one.
        devices: between which copies are measured; none for those that the machine has.
        plots: the folder for plots; None for none.
        progress: what is told how far the run is; each call of `interleaved` is a step.
    """

    quick: bool = False
    beside: Path | None = None
    devices: tuple[Device, ...] = ()
    plots: Path | None = None
    progress: Progress = field(default_factory=Progress, compare=False)

    def interleaved(self, *readings: Reading, rounds: int, warmup: int = 3) -> list[Timing]:
        """What each reading gave in so many rounds, after some for warmth; or in two, after one."""
        rounds, warmup = (2, 1) if self.quick else (rounds, warmup)
        return interleaved(*readings, rounds=rounds, warmup=warmup, told=self.progress.part)

    def least_seconds(self, full: float) -> float:
        """How long a reading lasts at least: `full`, or hardly any time."""
        return 1e-5 if self.quick else full

    def size(self, full: T, quick: T) -> T:
        """The size for this run."""
        return quick if self.quick else full
