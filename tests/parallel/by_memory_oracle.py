"""`by_memory` once more, written from rules P23a to P23f and P23k to P23m alone, and all splits by brute force.

Every number is an exact fraction; a step that the rules take in float64 is
rounded by `f64` at that step. It shares no code with `modules.parallel`.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations_with_replacement


def f64(number: Fraction | int) -> Fraction:
    """The nearest float64, ties to even, as a fraction."""
    return Fraction(float(Fraction(number)))


def limits(capacities: Sequence[int], share: Fraction, capped: bool) -> list[int]:
    """P23b; `capped`: never beyond the capacity itself (P23l)."""
    found = [int(f64(f64(capacity) * share)) for capacity in capacities]
    bounds = capacities if capped else [2**64 - 1] * len(capacities)
    return [min(limit, bound) for limit, bound in zip(found, bounds, strict=True)]


def fits(room: Sequence[int], sizes: Sequence[int]) -> bool:
    """P23c: each device takes the longest run of what remains; in the end only layers of no bytes may remain."""
    remaining = list(sizes)
    for left in room:
        while remaining and remaining[0] <= left:
            left -= remaining.pop(0)
    return not any(remaining)


def places(capacities: Sequence[int], sizes: Sequence[int], *, upstream: bool = False) -> list[int] | None:
    """P23c to P23f: the index of the device of each layer, or None.

    `upstream` leaves out what the project does otherwise (P23k, P23l).
    """
    capped = not upstream
    if not capacities or not fits(limits(capacities, Fraction(1), capped), sizes):
        return None
    upper, lower = Fraction(1), Fraction(0)
    for _ in range(48):
        share = f64((upper + lower) / 2)
        if fits(limits(capacities, share, capped), sizes):
            upper = share
        else:
            lower = share
    room = limits(capacities, upper, capped)
    found: list[int] = []
    remaining = list(sizes)
    for device, capacity in enumerate(capacities):
        rest = sum(capacities[device:])
        target = f64(f64(f64(sum(remaining)) * f64(capacity)) / f64(rest)) if rest else Fraction(0)
        is_last = device == len(capacities) - 1
        load = 0
        while remaining:
            size = remaining[0]
            in_limit = load + size <= room[device]
            in_target = f64(f64(load) + f64(size) / 2) <= target
            needed = not fits(room[device + 1 :], remaining)
            if not in_limit or not (in_target or needed or (is_last and not upstream)):
                break
            load += remaining.pop(0)
            found.append(device)
    return None if remaining else found


def fullest(capacities: Sequence[int], sizes: Sequence[int], split: Sequence[int]) -> Fraction | None:
    """The largest load ÷ capacity of a split, exactly; None if a load passes its capacity."""
    loads = [0] * len(capacities)
    for size, device in zip(sizes, split, strict=True):
        loads[device] += size
    if any(load > capacity for load, capacity in zip(loads, capacities, strict=True)):
        return None
    return max(
        Fraction(load, capacity) if load else Fraction(0) for load, capacity in zip(loads, capacities, strict=True)
    )


def least_fullest(capacities: Sequence[int], sizes: Sequence[int]) -> Fraction | None:
    """The least of `fullest` over all splits that keep the order; None if none stays within the capacities."""
    splits = combinations_with_replacement(range(len(capacities)), len(sizes))
    ratios = [ratio for split in splits if (ratio := fullest(capacities, sizes, split)) is not None]
    return min(ratios, default=None)
