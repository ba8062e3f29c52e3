"""Reparameterizers: who decides which parameters of a module get a reparameterization, and which.

`reparameterized` asks one about each parameter of floats; `materialized` puts
effective values in the place of what is attached.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .attached import Attachable
from .containers import check_name
from .errors import ModuleError, PathError, standing_at
from .param import Param
from .running_state import RunningState
from .tree import Each, Leaf, Node, joined, leaves, rebuild, refuse_nested, reparameterized_paths

if TYPE_CHECKING:
    from .reparameterization import Reparameterization

M = TypeVar("M", bound=Node)

_MAX_RANK: Final = 8  # of a parameter that a reparameterization holds


class Reparameterizer(ABC):
    """Decides how the parameters of a module are reparameterized; subclass it and write `reparameterize`.

    Source: Burn 0.23, ``Reparameterizer``.
    """

    @abstractmethod
    def reparameterize(self, path: str, param: Param, /) -> "tuple[Param, Reparameterization | None]":
        """What to store for a parameter of floats, and what computes its effective value from that; None for nothing.

        It is asked once per path, in traversal order (A2). Places that hold one
        parameter are tied; they stay tied exactly if it gives the same pair for all (D8).

        Args:
            path: where the parameter stands.
            param: without a reparameterization, perhaps lazy.
        """

    def _answers_by(self, path: str, param: Param) -> Hashable:
        """What the answer goes by beside the parameter, which is then asked about once; None if each path is (D8)."""
        return None

    def _prepared(self, module: M) -> M:
        """The module before its parameters are asked about."""
        return module


def reparameterized(module: M, reparameterizer: Reparameterizer, called: str = "apply_reparameterization") -> M:
    """The module with what `reparameterizer` gives for each parameter of floats, running states excepted (A3).

    Raises:
        ModuleError: a parameter has a reparameterization (A4), or the answer is none that can be attached (M18).
        PathError: its class has no NAME, or one that cannot be part of a path.
        TypeError: `reparameterizer` is no Reparameterizer.
    """
    if not isinstance(reparameterizer, Reparameterizer):
        raise TypeError(f"{called} takes a Reparameterizer, not {reparameterizer!r:.80}; see modules.Reparameterizer")
    first = next(reparameterized_paths(module), None)
    if first is not None:
        raise ModuleError(
            f"{called}: {first} has a reparameterization already; materialize() folds it into the stored value first"
        )
    return rebuild(reparameterizer._prepared(module), _Asking(reparameterizer))


def materialized(module: M) -> M:
    """The module in which each parameter with a reparameterization stores its effective value, and has none (A32).

    One without stays as it is, quantized if it was (A33).

    Raises:
        ModuleError: a reparameterization gives no floats of its base's rank.
    """
    made: dict[int, Param] = {}

    def fold(path: str, param: Param) -> Param:
        if id(param) not in made:
            with standing_at(path):
                made[id(param)] = _folded(param)
        return made[id(param)]

    def change(path: str, leaf: Leaf) -> Leaf:
        return leaf._derived(leaf.value()) if isinstance(leaf, RunningState) else leaf

    return rebuild(module, Each(change, fold=fold))


def _folded(param: Param) -> Param:
    """A parameter of the base's settings over the effective value, a leaf exactly if the base is one (A32)."""
    bare = param._bare
    retains = bare.base().is_require_grad
    return bare._with_value(param.val().set_require_grad(False).set_require_grad(retains))


class _Asking:
    """The transform that asks a reparameterizer."""

    destination = None
    fold = None

    def __init__(self, reparameterizer: Reparameterizer) -> None:
        self._reparameterizer: Final = reparameterizer
        self._answers: Final[dict[Hashable, Param]] = {}
        self._attached: Final[dict[tuple[int, int], Param]] = {}
        self._states: Final[dict[int, RunningState]] = {}

    def leaf(self, path: str, leaf: Leaf) -> Leaf:
        if isinstance(leaf, RunningState):
            if id(leaf) not in self._states:
                self._states[id(leaf)] = leaf._derived(leaf.value())
            return self._states[id(leaf)]
        if not isinstance(leaf, Param) or leaf.kind != "float":
            return leaf
        by = self._reparameterizer._answers_by(path, leaf)
        if by is None:
            return self._asked(path, leaf)
        key = id(leaf), by
        if key not in self._answers:
            self._answers[key] = self._asked(path, leaf)
        return self._answers[key]

    def enter(self, name: str, container: str, /) -> None: ...

    def exit(self, name: str, container: str, /) -> None: ...

    def _asked(self, path: str, param: Param) -> Param:
        base, reparameterization = _checked(path, self._reparameterizer.reparameterize(path, param))
        if reparameterization is None:
            return base
        key = id(base), id(reparameterization)
        if key not in self._attached:  # what is attached keeps both, so that their ids stay taken
            self._attached[key] = base._with_reparameterization(reparameterization)
        return self._attached[key]


def _checked(path: str, answer: Any) -> "tuple[Param, Reparameterization | None]":
    """What `reparameterize` gave for a path, if it can be attached."""
    match answer:
        case (Param() as base, None):
            reparameterization: Any = None
        case (Param() as base, Attachable() as reparameterization):
            _check_parts(path, reparameterization)
        case _:
            raise ModuleError(
                f"reparameterize of {path!r} gave {answer!r:.80}; it must give a Param and a Reparameterization or None"
            )
    if base.reparameterization is not None:
        raise ModuleError(f"reparameterize of {path!r} gave a Param that has a reparameterization already")
    return base, reparameterization


def _check_parts(path: str, reparameterization: Any) -> None:
    """Refuse a reparameterization whose NAME or parameters cannot stand below a parameter."""
    name, cls = getattr(reparameterization, "NAME", None), type(reparameterization).__qualname__
    if not isinstance(name, str):
        found = "no NAME" if name is None else f"NAME {name!r:.80}"
        raise PathError(
            f"reparameterize of {path!r}: class {cls} has {found}; it must be a string, the component of paths "
            f'below the parameter, such as NAME = "weight_norm"'
        )
    check_name(name, path)
    below = joined(path, name)
    refuse_nested(reparameterization, below)
    for inner, leaf in leaves(reparameterization, below):
        if isinstance(leaf, Param) and len(leaf.shape) > _MAX_RANK:
            raise ModuleError(f"{inner} has rank {len(leaf.shape)}; in a reparameterization it is at most {_MAX_RANK}")
