"""State dicts of PyTorch, ``*.pt`` and ``*.pth``, read without PyTorch and without running anything pickled."""

from .reader import LEGACY_MAGICS as LEGACY_MAGICS
from .reader import ZIP_MAGIC as ZIP_MAGIC
from .reader import read_pytorch as read_pytorch
