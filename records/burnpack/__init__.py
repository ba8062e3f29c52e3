"""The burnpack format, version 1, as Burn 0.23 reads and writes it."""

from .reader import read_burnpack as read_burnpack
from .writer import burnpack_bytes as burnpack_bytes
from .writer import write_burnpack as write_burnpack
