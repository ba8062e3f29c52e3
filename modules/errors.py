"""The exceptions of the Module system. What layer parallelism adds is in `modules.parallel.errors`."""

from engine import EngineError


class ModuleError(EngineError, ValueError):
    """Settings that make no sense, or a tree that cannot be a module."""


class PathError(ModuleError):
    """A path that leads nowhere, or a name that cannot be part of one."""


class GroupError(ModuleError):
    """A parameter group that cannot be made, such as one of a malformed pattern."""


class FrozenModuleError(ModuleError, AttributeError):
    """An attribute of a constructed module was assigned or deleted; modules are values."""
