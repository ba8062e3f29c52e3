"""Filling: which device each layer goes on when layers of known sizes are laid over devices of known capacities.

Only numbers here: capacities in the order of the devices, sizes in the order
in which the layers are laid (P23a), both in bytes. A *share* is the fraction
of its capacity that a device may use, a *limit* the bytes that this is. The
order is kept: no layer lies on an earlier device than the one before it.

Floats are made of ints, and truncated, at exactly the places that P23m names:
another order of rounding gives other bits, and then other runs.

Source: Burn 0.23, ``LayerPlacement::by_memory``; rules P23b to P23n.
"""

from collections.abc import Sequence
from typing import Final

_HALVINGS: Final = 48


def level_places(capacities: Sequence[int], sizes: Sequence[int]) -> list[int] | None:
    """For each layer the index of its device, so that the fullest device is as empty as the order permits.

    Under the share that this takes, a device is not filled up: its run ends
    where it comes closest to the device's proportion of what remains, unless
    the devices behind were then too small (P23e, P23g). On the last device
    only the limit counts, so that rounding never loses a layer (P23k).

    Returns:
        Indices that never decrease, or None: there is no device, or the layers do not fit.
    """
    share = _least_share(capacities, sizes)
    if share is None or not capacities:
        return None
    limits = _limits(capacities, share)
    places: list[int] = []
    for device, (capacity, limit) in enumerate(zip(capacities, limits, strict=True)):
        left, rest, later = sum(sizes[len(places) :]), sum(capacities[device:]), limits[device + 1 :]
        target = float(left) * float(capacity) / float(rest) if rest else 0.0
        load = 0
        while len(places) < len(sizes) and load + sizes[len(places)] <= limit:
            size = sizes[len(places)]
            enough = bool(later) and float(load) + float(size) / 2 > target
            if enough and _fits(later, sizes[len(places) :]):
                break
            load += size
            places.append(device)
    return places


def _least_share(capacities: Sequence[int], sizes: Sequence[int]) -> float | None:
    """The least share under which the layers fit, to 2**-48, by halving (P23d, P23n); None if not even 1 does."""
    if not _fits(_limits(capacities, 1.0), sizes):
        return None
    enough, short = 1.0, 0.0
    for _ in range(_HALVINGS):
        share = (enough + short) / 2
        if _fits(_limits(capacities, share), sizes):
            enough = share
        else:
            short = share
    return enough


def _limits(capacities: Sequence[int], share: float) -> list[int]:
    """The bytes that each device may take (P23b), never more than it has: a float can round above it (P23l)."""
    return [min(int(float(capacity) * share), capacity) for capacity in capacities]


def _fits(limits: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether the layers find room when each device takes what it can, in order (P23c). No bytes need no room."""
    devices = iter(limits)
    room = 0
    for size in sizes:
        while size > room:
            limit = next(devices, None)
            if limit is None:
                return False
            room = limit
        room -= size
    return True
