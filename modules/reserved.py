"""Reserved names: those that our classes keep themselves in, which users' fields and classes must leave alone.

A field may have no name of an attribute of a base class of ours. A method of
a user's class may override a public one, as Python has it, but no private
one: it would take our place without knowing it.
"""

from typing import Final

from .errors import ModuleError

_PACKAGE: Final = __name__.partition(".")[0]


def reserved_names(cls: type) -> frozenset[str]:
    """The names that no field of a subclass may have: all that our classes define, but those with two underscores."""
    names = {name for base in cls.__mro__ if is_ours(base) for name in vars(base)}
    return frozenset(name for name in names if not name.startswith(("__", "_abc_")))


def private_names(cls: type) -> frozenset[str]:
    """The private ones of `reserved_names`."""
    return frozenset(name for name in reserved_names(cls) if name.startswith("_"))


def refuse_reserved_names(cls: type) -> None:
    """Refuse a class, itself or through a base, that defines or declares a private name of a base class of ours.

    Raises:
        ModuleError: it does; the message names class and name.
    """
    private = private_names(cls)
    for base in cls.__mro__:
        if not is_ours(base):
            taken = private.intersection((*vars(base), *vars(base).get("__annotations__", ())))
            if taken:
                raise ModuleError(
                    f"{base.__qualname__}: no class can define {min(taken)!r}, a name that the base class "
                    "of a module keeps for itself; call it something else"
                )


def is_ours(cls: type) -> bool:
    """Whether a class is one of this package."""
    return cls.__module__.partition(".")[0] == _PACKAGE
