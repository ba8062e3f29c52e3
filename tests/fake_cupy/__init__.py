"""A CuPy over NumPy, for machines without a GPU. It computes at once, and judges order as if nothing had happened yet.

`installed(Machine(...))` puts it in the place of `cupy` and `cupyx`. What it
is strict about, and what it cannot show:

- Every stream has a vector clock. Each access to a block of memory is
  compared with the earlier ones: where two are not ordered by a stream, an
  event or a wait of the host, that is a `Fault`, whatever the timing would
  have been (`clocks`, `streams`).
- Memory is physical: its history outlives the array, the allocator prefers to
  hand out what is still in use, freed memory is poisoned, and reading what
  nobody wrote is a `Fault` (`memory`).
- Asynchronous copies to the host land late, and those from pinned memory are
  compared with it when they land (`pinned`).
- Kernels refuse operands of another device than the current one, NumPy
  arrays, and values that decide what the host does (`arrays`).

It shows no real numbers, compile errors, speed, or what a driver does, and
where the project's notes on CUDA are wrong, it is wrong too.
"""

from .faults import CUDARuntimeError as CUDARuntimeError
from .faults import Fault as Fault
from .faults import OutOfMemoryError as OutOfMemoryError
from .faults import PerformanceWarning as PerformanceWarning
from .install import installed as installed
from .install import without_cupy as without_cupy
from .machine import Machine as Machine
