"""The exception of layer parallelism."""

from typing import Literal, TypeAlias

from engine import Device
from modules.errors import ModuleError

Layer: TypeAlias = Literal["input", "output"] | int
"""Which layer of a model: its input layer, a hidden layer by its index from 0, or its output layer."""


class PlacementError(ModuleError):
    """A placement that cannot be, or a model that is not where its placement says.

    Args:
        message: what was found and what to do about it.
        layer: the first layer concerned; None if it is no single one.
        path: of the value inside that layer.
        expected: the device, or the number of layers, that should be there.
        found: the device, or the number of layers, that is there.
    """

    def __init__(
        self,
        message: str,
        *,
        layer: Layer | None = None,
        path: str | None = None,
        expected: Device | int | None = None,
        found: Device | int | None = None,
    ) -> None:
        super().__init__(message)
        self.layer = layer
        self.path = path
        self.expected = expected
        self.found = found
