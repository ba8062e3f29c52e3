"""The module tree: what a child is, and the two walks over children that everything else is made of.

A *node* is a place with children: a module or a container. Its children are
module-like values under names, in order: Param, Flag, RunningState, Tensor,
Draws, another node, or None (an absent optional). Everything else is
configuration, which no walk enters. A *leaf* is a child that is no node and no
Draws, which walks pass over as if it were configuration. In the place of a
parameter with a reparameterization walks see two things: the bare parameter
under its path, and below that the reparameterization under its NAME (M17).

`leaves` lists them; `rebuild` makes a new tree of changed leaves that shares
whatever did not change (principle 1), except that its Draws are its own. The
public `visit` and `map` are in `modules.traversal`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, Self, TypeAlias

from engine import Device, Tensor

from .draws import Draws
from .errors import ModuleError
from .flag import Flag
from .param import Param
from .running_state import RunningState

Leaf: TypeAlias = Param | Flag | RunningState | Tensor
CHILDREN = (Param, Flag, RunningState, Tensor, Draws)  # what a child can be, besides a node
ATTACHED: Final = "Reparameterization"  # the container type of a reparameterization


class Node:
    """A place in the tree that has children."""

    __slots__ = ("__weakref__", "_children")

    _children: tuple[tuple[str, Any], ...]

    @property
    def _container(self) -> str:
        """The container type that enter and exit hooks are told (M6)."""
        raise NotImplementedError

    def _with_children(self, children: Sequence[Any], destination: Device | None) -> Self:
        """A node like this one with other children, in the same order; `destination` if they were all moved there."""
        raise NotImplementedError

    def _entries(self) -> list[tuple[str, Any, bool]]:
        """All that it holds, in order: name, value as walks see it, and whether that is a child; else configuration."""
        raise NotImplementedError

    @property
    def _shown(self) -> "Node":
        """The node that display and repr show: itself, or what it wraps if it adds no path of its own (M6)."""
        return self


def is_constructed(node: Node) -> bool:
    """Whether a node has its children already, and so is a value; asks no ``__getattr__`` of a user's class."""
    try:
        object.__getattribute__(node, "_children")
    except AttributeError:
        return False
    return True


class Transform(Protocol):
    """What `rebuild` does with a tree."""

    @property
    def destination(self) -> Device | None:
        """The device that every leaf is moved to, or None."""
        ...

    @property
    def fold(self) -> Callable[[str, Param], Param] | None:
        """What takes the place of a parameter with a reparameterization as a whole; None to change its parts."""
        ...

    def leaf(self, path: str, leaf: Leaf) -> Any:
        """The leaf that takes the place of `leaf`."""
        ...

    def enter(self, name: str, container: str, /) -> None:
        """Called before each child, None included."""
        ...

    def exit(self, name: str, container: str, /) -> None:
        """Called after each child."""
        ...


def joined(prefix: str, name: str) -> str:
    """The path of `name` below `prefix`."""
    return f"{prefix}.{name}" if prefix else name


def children_of(value: Any) -> tuple[tuple[str, Any], ...]:
    """What stands below a child, by name: the children of a node, and the reparameterization of a parameter."""
    if isinstance(value, Node):
        return value._children
    attached = value.reparameterization if isinstance(value, Param) else None
    return () if attached is None else ((attached.NAME, attached),)


def all_paths(value: Any, prefix: str = "") -> Iterator[str]:
    """The paths of everything below a child that is there, in order."""
    for name, child in children_of(value):
        path = joined(prefix, name)
        if child is not None:
            yield path
        yield from all_paths(child, path)


def reparameterized_paths(value: Any, prefix: str = "") -> Iterator[str]:
    """The paths of the parameters below a child that have a reparameterization, in traversal order."""
    for name, child in children_of(value):
        if isinstance(child, Param) and child.reparameterization is not None:
            yield joined(prefix, name)
        yield from reparameterized_paths(child, joined(prefix, name))


def leaves(node: Node, prefix: str = "") -> list[tuple[str, Leaf]]:
    """All leaves below a node with their paths, in traversal order; one that stands twice is there twice."""
    return [(path, child) for path, child in _values(node, prefix) if child.__class__ is not Draws]


def draws(node: Node) -> list[tuple[str, Draws]]:
    """All Draws below a node with their paths, in order; one that stands twice is there twice."""
    return [(path, child) for path, child in _values(node, "") if child.__class__ is Draws]


def _values(node: Node, prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    _collect(node, prefix, found.append)
    return found


def _collect(node: Node, prefix: str, add: Callable[[tuple[str, Any]], None]) -> None:
    for name, child in node._children:
        if isinstance(child, Node):
            _collect(child, joined(prefix, name), add)
        elif child is not None:
            path = joined(prefix, name)
            if child.__class__ is not Param or child._attached is None:
                add((path, child))
            else:
                bare, reparameterization = child._attached
                add((path, bare))
                _collect(reparameterization, joined(path, reparameterization.NAME), add)


def num_elements(leaf: Leaf) -> int:
    """What a leaf counts in `num_params`: elements of a parameter of floats or of a running state, else 0 (M99)."""
    if isinstance(leaf, Param):
        return leaf.num_elements if leaf.kind == "float" else 0
    return leaf.value().size if isinstance(leaf, RunningState) else 0


def num_params(node: Node) -> int:
    """Number of elements of all parameters of floats and running states below a node; tied ones at each place."""
    return sum(num_elements(leaf) for _, leaf in leaves(node))


def rebuild(node: Node, transform: Transform, own: Callable[[Draws], Draws] = lambda one: one._derived()) -> Any:
    """A new tree in which `transform` has replaced the leaves; nodes below the root that did not change are shared.

    To an exception of `transform` the path of the leaf is added as a note.
    `own` gives the new tree's Draws, one for each that there is.
    """
    return node._with_children(_Rebuilding(transform, own).children(node, ""), transform.destination)


class _Rebuilding:
    """One `rebuild` on its way: what it has made of things that stand in several places, so that they stay tied."""

    def __init__(self, transform: Transform, own: Callable[[Draws], Draws]) -> None:
        self._transform: Final = transform
        self._own: Final = own
        self._draws: Final[dict[int, Draws]] = {}
        self._attached: Final[dict[tuple[int, ...], Param]] = {}

    def children(self, node: Node, prefix: str) -> list[Any]:
        """What takes the place of a node's children."""
        container, transform = node._container, self._transform
        children: list[Any] = []
        for name, child in node._children:
            if child.__class__ is Draws:
                children.append(self._draws_of(child))
                continue
            transform.enter(name, container)
            if isinstance(child, Node):
                child = self._node(child, joined(prefix, name))
            elif child is not None:
                path = joined(prefix, name)
                if child.__class__ is not Param or child._attached is None:
                    child = self._leaf(path, child)
                else:
                    child = self._param(path, child, *child._attached)
            transform.exit(name, container)
            children.append(child)
        return children

    def _node(self, node: Node, path: str) -> Any:
        made = self.children(node, path)
        same = all(new is old for new, (_, old) in zip(made, node._children, strict=True))
        return node if same else node._with_children(made, self._transform.destination)

    def _leaf(self, path: str, leaf: Leaf) -> Any:
        try:
            return self._transform.leaf(path, leaf)
        except Exception as error:  # an initialiser, mapper or hook of the user's does not know where it stands
            error.add_note(f"at {path}")
            raise

    def _draws_of(self, one: Draws) -> Draws:
        key = id(one)
        if key not in self._draws:
            self._draws[key] = self._own(one)
        return self._draws[key]

    def _param(self, path: str, param: Param, bare: Param, reparameterization: Any) -> Param:
        """A parameter with a reparameterization, whose parts are changed and joined again; or folded."""
        transform, name = self._transform, reparameterization.NAME
        if transform.fold is not None:
            return transform.fold(path, param)
        base = self._leaf(path, bare)._bare
        transform.enter(name, ATTACHED)
        below = joined(path, name)
        changed = self._node(reparameterization, below)
        transform.exit(name, ATTACHED)
        if base is bare and changed is reparameterization:
            return param
        refuse_nested(changed, below)
        key = (id(param), id(base), *(id(value) for _, value in _values(changed, "")))
        if key not in self._attached:
            self._attached[key] = base._with_reparameterization(changed)
        return self._attached[key]


def refuse_nested(reparameterization: Node, path: str) -> None:
    """Refuse a reparameterization that holds a parameter with one.

    Raises:
        ModuleError: it does; the message has the path.
    """
    nested = next(reparameterized_paths(reparameterization, path), None)
    if nested is not None:
        raise ModuleError(f"{nested}, a parameter of a reparameterization, has one itself; materialize() folds it in")


class Each:
    """A transform that computes one result per object, so that tied places stay tied (D8).

    Args:
        change: gives the new leaf; called once per distinct leaf, with the first path it has.
        destination: set if `change` moves everything there.
        concerns: whether it is about the leaf at a path; one that it is not about stays there, and so parts from
            the places that change. By default it is about all.
        fold: what takes the place of a parameter with a reparameterization; by default its parts are changed.
    """

    def __init__(
        self,
        change: Callable[[str, Any], Leaf],
        destination: Device | None = None,
        concerns: Callable[[str, Leaf], bool] | None = None,
        fold: Callable[[str, Param], Param] | None = None,
    ) -> None:
        self._change = change
        self._concerns = concerns
        self._made: dict[int, Leaf] = {}
        self.destination = destination
        self.fold = fold

    def leaf(self, path: str, leaf: Leaf) -> Leaf:
        if self._concerns is not None and not self._concerns(path, leaf):
            return leaf
        key = id(leaf)
        if key not in self._made:
            self._made[key] = self._change(path, leaf)
        return self._made[key]

    def enter(self, name: str, container: str, /) -> None: ...

    def exit(self, name: str, container: str, /) -> None: ...
