"""Enum modules: a module that is one of several variants, such as an activation that is chosen by a setting."""

from typing import Any

from .containers import check_name
from .errors import ModuleError
from .module import Module


class EnumModule(Module):
    """A module with one active variant: ``class Act(EnumModule)``, ``Act("Gelu", Gelu())``.

    The variant's name is a component of the paths below it, so a record of one
    variant does not load into another (M7). Subclasses add ``forward``.

    Args:
        variant: the name of the active variant.
        value: what it holds: a module, a Param, or another child.

    Raises:
        PathError: `variant` cannot be part of a path.
    """

    def __init__(self, variant: str, value: Any) -> None:
        check_name(variant, "")
        vars(self)[variant] = value  # not by assignment: a variant may be called like a property below

    def _finish(self) -> None:
        if len(self.__dict__) != 1:
            raise ModuleError(f"{type(self).__name__}: an enum module holds its one variant and nothing else")
        super()._finish()

    @property
    def _container(self) -> str:
        return f"Enum:{type(self).__name__}"

    @property
    def variant(self) -> str:
        """The name of the active variant."""
        return self._fields[0]

    @property
    def value(self) -> Any:
        """What the active variant holds."""
        return self.__dict__[self.variant]
