"""The implementation under test: the one that the variable LAYERLOOM_ADAPTER, or the option --adapter, names."""

import importlib
import os
from functools import cache
from typing import Final

from .protocol import Adapter

VARIABLE: Final = "LAYERLOOM_ADAPTER"
ENGINE: Final = "tests.laws.layered_engine:EngineAdapter"


@cache
def subject() -> Adapter:
    """The adapter under test, made at the first call: by then the options have been read.

    Raises:
        ValueError: the name is not of the form ``package.module:class``.
        ImportError: there is no such module or class.
    """
    name = os.environ.get(VARIABLE) or ENGINE
    module, separator, attribute = name.partition(":")
    if not separator:
        raise ValueError(f"{VARIABLE}: {name!r} is not of the form package.module:class")
    found = getattr(importlib.import_module(module), attribute, None)
    if found is None:
        raise ImportError(f"{VARIABLE}: module {module} has no {attribute}")
    return found()
