"""The metaclass of modules: what happens when a class of modules is written, and when one of it is made.

A user's ``__init__`` need not call ours. So the check and the freezing come
after the whole constructor call, which a dataclass's is too.
"""

import inspect
from abc import ABCMeta
from typing import Any, Final

from .errors import ModuleError
from .reserved import is_ours, private_names, refuse_reserved_names
from .tree import is_constructed

_GIVING_WAY: Final = frozenset({"__eq__", "__hash__", "__repr__", "__setattr__", "__delattr__"})


class ModuleMeta(ABCMeta):
    """Checks and freezes each module when its constructor returns."""

    _reserved: frozenset[str]  # of each class of ours: names that no field of it or of a subclass may have

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> "ModuleMeta":
        if namespace.get("__slots__") and any(isinstance(base, ModuleMeta) for base in bases):
            raise ModuleError(f"{name}: a Module keeps its fields in its __dict__; leave __slots__ (slots=True) out")
        made = super().__new__(mcs, name, bases, namespace, **kwargs)
        refuse_reserved_names(made)
        if is_ours(made):
            made._reserved = private_names(made)
        return made

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        module = super().__call__(*args, **kwargs)
        if isinstance(type(module), ModuleMeta) and not is_constructed(module):
            type(module)._finish(module)
        return module

    @property
    def __signature__(cls) -> inspect.Signature:
        """The arguments of ``__init__``, which `help` and editors show."""
        if cls.__init__ is object.__init__:
            return inspect.Signature()
        signature = inspect.signature(cls.__init__)
        return signature.replace(
            parameters=list(signature.parameters.values())[1:], return_annotation=inspect.Signature.empty
        )

    def __setattr__(cls, name: str, value: Any) -> None:
        # A dataclass would compare by fields and hide our repr: modules are compared by identity (DESIGN).
        if not (name in _GIVING_WAY and "__dataclass_params__" in cls.__dict__):
            super().__setattr__(name, value)
