"""How fast do copies between devices go, by size, route, layout and direction?

GB/s (1e9 bytes per second) from 1 KiB to 1 GiB, and the time of the smallest copy, for every ordered pair of the
devices given: medians and quartiles of 10 interleaved rounds after 3 for warmth, beside what the driver or NumPy does
on memory that is there already. Routes: ``host`` between CPU devices, ``upload`` and ``download`` through pinned
buffers, ``peer`` and ``staged`` between GPUs are the engine's; ``pageable`` (through ordinary memory), ``pinned`` and
``driver`` are bare calls. Strided: every other block of 256 bytes, gathered by the engine and then copied. Both ways:
two threads, the bytes of both. On GPUs events are read, on CPU devices the clock. Where the machine has nvbandwidth,
its figures stand beside ours; where this interpreter, or the one that --beside names, has torch: what the same copies
take there.
"""

from .measuring import measure as measure
from .tables import tables as tables
