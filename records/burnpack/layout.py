"""Where things lie in a burnpack file (R49 to R58)."""

from typing import Final

MAGIC: Final = b"NRUB"
VERSION: Final = 1
HEADER_NBYTES: Final = 10  # magic, version, length of the metadata
ALIGNMENT: Final = 256


def data_start(metadata_nbytes: int) -> int:
    """Offset of the data section: the first multiple of 256 behind the metadata (R53)."""
    return aligned(HEADER_NBYTES + metadata_nbytes)


def aligned(offset: int) -> int:
    """The least multiple of 256 that is not before `offset` (R55)."""
    return -(-offset // ALIGNMENT) * ALIGNMENT
