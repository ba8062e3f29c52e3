"""State dicts of PyTorch, ``*.pt`` and ``*.pth``, read without PyTorch and without running anything pickled."""

from .reader import LEGACY_MAGIC as LEGACY_MAGIC
from .reader import ZIP_MAGIC as ZIP_MAGIC
from .reader import read_pytorch as read_pytorch
