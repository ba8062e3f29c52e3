"""Order: vector clocks of streams, and what each piece of memory remembers of its users.

A *timeline* is a stream's own count of the operations put on it. A *clock*
says how far into each timeline something is known to be done. An operation is
*ordered* after an earlier one if its clock reaches the tick of that one.
"""

from typing import NamedTuple, TypeAlias

from .faults import Fault

Clock: TypeAlias = dict[int, int]


class Stamp(NamedTuple):
    """One operation: the tick of a timeline, and a name for messages."""

    timeline: int
    tick: int
    what: str


def join(clock: Clock, other: Clock) -> None:
    """Let `clock` know all that `other` knows."""
    for timeline, tick in other.items():
        if clock.get(timeline, 0) < tick:
            clock[timeline] = tick


def knows(clock: Clock, stamp: Stamp) -> bool:
    """Whether an operation is done as far as a clock knows."""
    return clock.get(stamp.timeline, 0) >= stamp.tick


def reaches(clock: Clock, other: Clock) -> bool:
    """Whether a clock knows all that another one knows."""
    return all(clock.get(timeline, 0) >= tick for timeline, tick in other.items())


class Access(NamedTuple):
    """Who touched which bytes of a block."""

    stamp: Stamp
    low: int
    high: int
    writes: bool


class History:
    """The accesses to a block that the host does not know to be done. It outlives the block's owners."""

    def __init__(self) -> None:
        self.accesses: list[Access] = []

    def touch(self, access: Access, clock: Clock, host: Clock) -> None:
        """Add an access by an operation that runs after `clock`.

        Raises:
            Fault: an earlier access to the same bytes, one of the two writing, is not ordered before it.
        """
        kept = []
        for earlier in self.accesses:
            if knows(host, earlier.stamp):
                continue
            apart = earlier.high <= access.low or access.high <= earlier.low
            if not apart and (earlier.writes or access.writes) and not knows(clock, earlier.stamp):
                raise Fault(
                    f"race: '{access.stamp.what}' {'writes' if access.writes else 'reads'} what "
                    f"'{earlier.stamp.what}' {'writes' if earlier.writes else 'reads'}, and nothing orders the two"
                )
            covered = access.low <= earlier.low and earlier.high <= access.high
            same = earlier.stamp.timeline == access.stamp.timeline and earlier.writes == access.writes
            if not (covered and (access.writes or same)):
                kept.append(earlier)
        self.accesses = [*kept, access]

    def is_settled(self, clock: Clock) -> bool:
        """Whether all accesses are done as far as a clock knows."""
        return all(knows(clock, access.stamp) for access in self.accesses)
