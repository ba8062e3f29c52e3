"""What is attached to a parameter: the reparameterization by which layers see it.

The *bare* parameter holds the stored value, the *base*; what layers compute
with, the *effective* value, is what its reparameterization makes of that, anew
at each read (A6). Walks show the bare parameter, and below it what the
reparameterization holds.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from engine import Tensor, kind_of

from .errors import ModuleError

if TYPE_CHECKING:
    from .param import Param
    from .reparameterization import Reparameterization


class Attachable(ABC):
    """What a `Reparameterization` is beside a module."""

    __slots__ = ()

    NAME: ClassVar[str]
    """The component of paths that stands between the parameter's path and what the reparameterization holds."""

    @abstractmethod
    def apply(self, base: Tensor, /) -> Tensor:
        """The effective value of a parameter with this stored value: floats of the same rank (A1)."""


class Attached(NamedTuple):
    """What a parameter with a reparameterization is made of."""

    bare: "Param"
    reparameterization: "Reparameterization"

    def value(self) -> Tensor:
        """The effective value.

        Raises:
            ModuleError: the reparameterization gives no floats of the base's rank.
        """
        base = self.bare.base()
        made = self.reparameterization.apply(base)
        if not isinstance(made, Tensor):
            raise ModuleError(f"{self._called}.apply gave a {type(made).__qualname__}, not a Tensor")
        if made.ndim != base.ndim or kind_of(made.dtype) != "float":
            raise ModuleError(
                f"{self._called}.apply gave {made.dtype} of shape {made.shape} for a base of {base.dtype} and shape "
                f"{base.shape}; it must give floats of the same rank"
            )
        return made

    @property
    def _called(self) -> str:
        return type(self.reparameterization).__qualname__
