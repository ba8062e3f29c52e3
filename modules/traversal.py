"""Visit and map: the two public walks over every parameter of a module.

A hook is shown each parameter, flag and running state with its path, in the
order of declaration; the same hooks are called with the same arguments in the
same order by both walks (M14, L3).
"""

from typing import Any

from records import ParamId

from .draws import Draws
from .errors import ModuleError
from .flag import Flag
from .param import Param
from .running_state import RunningState
from .tree import ATTACHED, Leaf, Node


class ModuleVisitor:
    """Reads a module's parameters: override the hooks you need (M12). Each does nothing by default."""

    def visit_float(self, path: str, param: Param, /) -> None:
        """A parameter of floats, or a running state as one (M95)."""

    def visit_int(self, path: str, param: Param, /) -> None:
        """A parameter of integers."""

    def visit_bool(self, path: str, param: Param, /) -> None:
        """A parameter of booleans."""

    def visit_flag(self, path: str, flag: Flag, /) -> None:
        """A flag."""

    def enter_module(self, name: str, container_type: str, /) -> None:
        """Before each child: its name, and what holds it, such as ``Struct:Linear`` or ``Vec`` (M6)."""

    def exit_module(self, name: str, container_type: str, /) -> None:
        """After each child, with the same arguments (M14)."""


class ModuleMapper:
    """Gives a module's parameters new values: override the hooks you need (M13).

    By default each gives its argument back without initialising it.
    """

    def map_float(self, path: str, param: Param, /) -> Param:
        """A parameter of floats; of a running state only the value of what it returns counts (M95)."""
        return param

    def map_int(self, path: str, param: Param, /) -> Param:
        """A parameter of integers."""
        return param

    def map_bool(self, path: str, param: Param, /) -> Param:
        """A parameter of booleans."""
        return param

    def map_flag(self, path: str, flag: Flag, /) -> Flag:
        """A flag."""
        return flag

    def enter_module(self, name: str, container_type: str, /) -> None:
        """Before each child."""

    def exit_module(self, name: str, container_type: str, /) -> None:
        """After each child."""


def visit(node: Node, visitor: ModuleVisitor, prefix: str = "") -> None:
    """Show `visitor` every parameter, flag and running state below a node."""
    hooks = {"float": visitor.visit_float, "int": visitor.visit_int, "bool": visitor.visit_bool}
    _visit(node, visitor, hooks, prefix + "." if prefix else "")


def _visit(node: Node, visitor: ModuleVisitor, hooks: dict[str, Any], prefix: str) -> None:
    container = node._container
    enter, leave = visitor.enter_module, visitor.exit_module
    for name, child in node._children:
        if child.__class__ is Draws:
            continue
        enter(name, container)
        if isinstance(child, Param):
            if child._attached is None:
                hooks[child.kind](prefix + name, child)
            else:
                _visit_attached(*child._attached, visitor, hooks, prefix + name)
        elif isinstance(child, Node):
            _visit(child, visitor, hooks, f"{prefix}{name}.")
        elif isinstance(child, Flag):
            visitor.visit_flag(prefix + name, child)
        elif isinstance(child, RunningState):
            visitor.visit_float(prefix + name, child._as_param())
        leave(name, container)


def _visit_attached(
    bare: Param, reparameterization: Any, visitor: ModuleVisitor, hooks: dict[str, Any], path: str
) -> None:
    """Show a bare parameter, and then what its reparameterization holds (M17)."""
    name = reparameterization.NAME
    hooks[bare.kind](path, bare)
    visitor.enter_module(name, ATTACHED)
    _visit(reparameterization, visitor, hooks, f"{path}.{name}.")
    visitor.exit_module(name, ATTACHED)


class Mapped:
    """The transform that asks a mapper's hooks, once per path, about every parameter, flag and running state."""

    destination = None
    fold = None

    def __init__(self, mapper: ModuleMapper) -> None:
        self._mapper = mapper
        self._hooks = {"float": mapper.map_float, "int": mapper.map_int, "bool": mapper.map_bool}
        self.enter = mapper.enter_module
        self.exit = mapper.exit_module
        self._shown: dict[int, Param] = {}
        self._states: dict[tuple[int, int], tuple[Param, RunningState]] = {}

    def leaf(self, path: str, leaf: Leaf) -> Leaf:
        if isinstance(leaf, Param):
            kind = leaf.kind
            return _checked(self._hooks[kind](path, leaf), Param, kind, path)
        if isinstance(leaf, Flag):
            return _checked(self._mapper.map_flag(path, leaf), Flag, "flag", path)
        if isinstance(leaf, RunningState):
            return self._state(path, leaf)
        return leaf

    def _state(self, path: str, state: RunningState) -> RunningState:
        """A running state of its own; tied ones are shown one object and stay tied if one comes back (D8)."""
        shown = self._shown.setdefault(id(state), state._as_param())
        mapped = _checked(self._mapper.map_float(path, shown), Param, "float", path)
        key = id(state), id(mapped)
        if key not in self._states:
            self._states[key] = mapped, state._derived(mapped.base())  # `mapped` is kept so that its id stays taken
        return self._states[key][1]


def _checked(result: Any, expected: type, kind: str, path: str) -> Any:
    if not isinstance(result, expected):
        raise ModuleError(f"map_{kind} of {path!r} gave a {type(result).__qualname__}, not a {expected.__name__}")
    return result


def list_param_ids(node: Node) -> list[ParamId]:
    """The ids of all parameters and running states in visit order, without the flags' (M77)."""
    found: list[ParamId] = []

    class _Ids(ModuleVisitor):
        def visit_float(self, path: str, param: Param, /) -> None:
            found.append(param.id)

        visit_int = visit_bool = visit_float

    visit(node, _Ids())
    return found
