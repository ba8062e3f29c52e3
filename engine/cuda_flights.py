"""Copies between GPUs that may still be on their way, and the arrays that they write, held until they are done (C4).

The destination's stream waits for a copy, but memory that goes back to the
driver waits for no stream of another GPU. So what a copy writes is held until
an event says that it is done, the last *flights* of each pair at most.
"""

import threading
from collections import deque
from typing import Any, Final, NamedTuple, final

from .backend import Array
from .cuda_staging import Gpu

_IN_FLIGHT: Final = 32  # flights of two GPUs that are held at most


class _Flight(NamedTuple):
    """Copies, and the event after which they are done."""

    done: Any
    arrays: list[Array]


@final
class Flights:
    """What is held, for each source and destination, oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[tuple[int, int], deque[_Flight]] = {}

    def hold(self, origin: Gpu, target: Gpu, done: Any, arrays: list[Array]) -> None:
        """Hold copies until they are done; where many are held, wait for the oldest."""
        self.sweep()
        with self._lock:
            flights = self._flights.setdefault((origin.index, target.index), deque())
            flights.append(_Flight(done, arrays))
            while len(flights) > _IN_FLIGHT:
                with target:
                    flights[0].done.synchronize()
                flights.popleft()

    def sweep(self) -> None:
        """Let go of what is done, without waiting."""
        with self._lock:
            for flights in self._flights.values():
                while flights and flights[0].done.done:
                    flights.popleft()

    def land(self, target: Gpu) -> bool:
        """Wait for all copies to a GPU, and let go of them; whether there were any."""
        with self._lock, target:
            landed = [self._flights.pop(way) for way in list(self._flights) if way[1] == target.index]
            for flights in landed:
                for flight in flights:
                    flight.done.synchronize()
        return any(landed)
