"""What an optimizer keeps for one parameter from step to step."""

from collections.abc import Mapping
from typing import NamedTuple

from engine import Tensor


class State(NamedTuple):
    """Tensors of the parameter's shape, on its device, by name; and how many steps were made."""

    kept: Mapping[str, Tensor] = {}
    time: int = 0
