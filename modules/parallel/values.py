"""How the placement values read what they are given, and how their tuples are shown.

A placement, a stage and the three memories are made of devices, counts and
sequences of those. Each is read here once, and refused here with one message
that names the argument and what it was.
"""

import operator
from collections.abc import Iterable, Mapping, Set
from itertools import groupby
from typing import Final, SupportsIndex, TypeVar, cast

from engine import Device, DeviceError

from .errors import Layer, PlacementError

T = TypeVar("T")

MOST_BYTES: Final = 2**64 - 1
"""The largest size and capacity (P23): what an unsigned 64-bit number holds."""


def device_of(name: str, value: Device | str, *, layer: Layer | None = None) -> Device:
    """The device that `value` is, or is the text of.

    Raises:
        PlacementError: it is neither.
    """
    try:
        return Device(value)
    except DeviceError as error:
        raise PlacementError(f"{name}: {error}", layer=layer) from error


def devices_of(name: str, values: Iterable[Device | str], *, are_hidden: bool = False) -> tuple[Device, ...]:
    """The devices that `values` are, or are the texts of.

    Raises:
        PlacementError: they are no sequence, or one is no device; if they are those of hidden layers, its layer is set.
    """
    return tuple(
        device_of(f"{name}[{index}]", value, layer=index if are_hidden else None)
        for index, value in enumerate(tuple_of(name, values))
    )


def count_of(name: str, value: SupportsIndex, *, most: int | None = None, layer: Layer | None = None) -> int:
    """`value` as an int of Python, whose sums are exact. NumPy's integers are taken; a bool is no count.

    Raises:
        PlacementError: it is no integer, negative, or more than `most` (P23l).
    """
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < 0 or (most is not None and number > most):
        bounds = "0 or more" if most is None else f"from 0 to {most}"
        raise PlacementError(f"{name} is {value!r}; it must be an integer, {bounds}", layer=layer)
    return number


def tuple_of(name: str, values: Iterable[T]) -> tuple[T, ...]:
    """`values` as a tuple, whatever sequence they are.

    Raises:
        PlacementError: they are no sequence; a text is one value, and sets and mappings are not ordered by place.
    """
    if isinstance(values, str | bytes | Set | Mapping) or not isinstance(values, Iterable):
        raise PlacementError(f"{name} is {values!r}; give a list, a tuple or another sequence")
    return tuple(values)


def instances_of(name: str, values: Iterable[T], kind: type[T]) -> tuple[T, ...]:
    """`values` as a tuple, each an instance of `kind`.

    Raises:
        PlacementError: they are no sequence, or one of them is something else.
    """
    listed = tuple_of(name, values)
    for index, value in enumerate(cast(tuple[object, ...], listed)):
        if not isinstance(value, kind):
            raise PlacementError(f"{name}[{index}] is {value!r}; it must be a {kind.__name__}")
    return listed


def tuple_text(texts: Iterable[str]) -> str:
    """Python for a tuple of values with these texts; long runs are products: ``('cpu:0',) * 9 + ('cpu:1',) * 8``."""
    listed = list(texts)
    runs = [(text, len(list(run))) for text, run in groupby(listed)]
    if 2 * len(runs) <= len(listed) and listed:
        return " + ".join(f"({text},)" + (f" * {count}" if count > 1 else "") for text, count in runs)
    return f"({listed[0]},)" if len(listed) == 1 else f"({', '.join(listed)})"
