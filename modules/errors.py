"""The exceptions of the Module system. What layer parallelism adds is in `modules.parallel.errors`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from engine import EngineError, QuantizationError, ShapeError


class ModuleError(EngineError, ValueError):
    """Settings that make no sense, or a tree that cannot be a module."""


class PathError(ModuleError):
    """A path that leads nowhere, or a name that cannot be part of one."""


class GroupError(ModuleError):
    """A parameter group that cannot be made, such as one of a malformed pattern."""


class FrozenModuleError(ModuleError, AttributeError):
    """An attribute of a constructed module was assigned or deleted; modules are values."""


class QuantizerError(QuantizationError, ShapeError):
    """Parameters that a quantizer cannot quantize: blocks that do not divide them, or numbers that are not finite.

    Args:
        findings: one line for each parameter, beginning with its path.
    """

    _SHOWN = 20

    def __init__(self, findings: Sequence[str]) -> None:
        self.findings = tuple(findings)
        lines = list(self.findings[: self._SHOWN])
        if len(self.findings) > self._SHOWN:
            lines.append(f"… and {len(self.findings) - self._SHOWN} more (all are in .findings)")
        super().__init__("not all parameters can be quantized:\n" + "\n".join(f"  {line}" for line in lines))


@contextmanager
def standing_at(path: str) -> Iterator[None]:
    """Adds the path to an exception of what is done with a parameter, which does not know where it stands."""
    try:
        yield
    except Exception as error:
        error.add_note(f"at {path}")
        raise
