"""Packages that only some formats need; the engine runs without them."""

import importlib
from types import ModuleType

from .errors import RecordError


def optional_package(name: str, file: str) -> ModuleType:
    """The package `name`, imported now.

    Args:
        name: the package, which the extra ``models`` installs.
        file: the file that needs it, for the message.

    Raises:
        RecordError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RecordError(
            f"{file}: reading it takes the package {name} ({error}); in the clone, pip install -e '.[models]'"
        ) from error
