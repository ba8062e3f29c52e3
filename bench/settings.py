"""What the command line chooses for all benchmarks."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from engine import Device

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to measure.

    Attributes:
        quick: sizes and rounds that end within seconds and show that a benchmark works; the figures mean nothing.
        beside: the interpreter of an environment with PyTorch or llama.cpp to measure beside; None for this one.
        devices: between which copies are measured; none for those that the machine has.
        plots: the folder for plots; None for none.
    """

    quick: bool = False
    beside: Path | None = None
    devices: tuple[Device, ...] = ()
    plots: Path | None = None

    def rounds(self, full: int) -> int:
        """How many rounds to measure: `full`, or two."""
        return 2 if self.quick else full

    @property
    def warmup(self) -> int:
        """How many rounds to run before."""
        return 1 if self.quick else 3

    def least_seconds(self, full: float) -> float:
        """How long a reading lasts at least: `full`, or hardly any time."""
        return 1e-5 if self.quick else full

    def size(self, full: T, quick: T) -> T:
        """The size for this run."""
        return quick if self.quick else full
