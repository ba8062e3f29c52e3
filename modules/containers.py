"""Read-only containers of children, and the rule by which a field's value is a child or configuration.

Lists, tuples and dicts that hold children become read-only containers when
the module is constructed; what holds only configuration is left as it is
(DESIGN, Module).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NoReturn, Self, SupportsIndex, TypeVar, final, overload

from engine import Device, Tensor

from .errors import FrozenModuleError, ModuleError, PathError
from .hidden import refuse_hidden_children
from .representation import represent
from .tree import CHILDREN, Node, is_constructed, joined

_FROZEN_LIST: Final = (
    "the list of a module's children is read-only, as the module is a value; "
    "module.replace(field=[*items, …]) gives a new module"
)
_FROZEN_DICT: Final = (
    "the dict of a module's children is read-only, as the module is a value; "
    "module.replace(field={**items, …}) gives a new module"
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@final
class Skip(Generic[T]):
    """What `skip` gives; a module unwraps it when it is constructed.

    `lasting` is False for configuration that is handed on unchanged: what
    replaces it later is looked at anew.
    """

    __slots__ = ("lasting", "value")

    def __init__(self, value: T, lasting: bool = True) -> None:
        self.value = value
        self.lasting = lasting


def skip(value: T) -> T:
    """`value` marked as configuration, whatever it holds (M4): never visited, moved or recorded.

    The field, or the item of a list, tuple or dict, then reads as `value` itself.

    Raises:
        ModuleError: `value` is a Param, Flag, RunningState or Draws.
    """
    if isinstance(value, CHILDREN) and not isinstance(value, Tensor):
        raise ModuleError(f"skip: a {type(value).__qualname__} cannot be skipped; keep it as a field of its own")
    return Skip(value)  # pyright: ignore[reportReturnType]


class ReadOnlyList(Node, Sequence[T_co]):
    """A list of a module's children, read-only. It equals a list of the same items.

    ``+``, ``*``, slices and ``copy`` give lists.
    """

    __slots__ = ("_items",)

    _items: tuple[T_co, ...]

    @property
    def _container(self) -> str:
        return "Vec"

    def __init__(self, items: Sequence[T_co] = (), path: str = "", within: tuple[int, ...] = ()) -> None:
        pairs = [(str(i), *as_child(item, joined(path, str(i)), within)) for i, item in enumerate(items)]
        self._items = tuple(attribute(value) for _, value, _ in pairs)
        self._children = tuple((name, value) for name, value, is_child in pairs if is_child)

    def _with_children(self, children: Sequence[Any], destination: Device | None) -> Self:
        made = type(self).__new__(type(self))
        items = list(self._items)
        for (name, _), child in zip(self._children, children, strict=True):
            items[int(name)] = attribute(child)
        made._items = tuple(items)
        made._children = tuple((name, child) for (name, _), child in zip(self._children, children, strict=True))
        return made

    def _entries(self) -> list[tuple[str, Any, bool]]:
        return _entries_of([(str(i), item) for i, item in enumerate(self._items)], self._children)

    def _is_configuration(self) -> bool:
        """Whether it holds some configuration and otherwise only None, as only an Array that the user made can."""
        return len(self._children) < len(self._items) and all(child is None for _, child in self._children)

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[T_co]: ...
    def __getitem__(self, index: Any) -> Any:
        return list(self._items[index]) if isinstance(index, slice) else self._items[index]

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._items)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise FrozenModuleError(_FROZEN_LIST)

    def __delitem__(self, index: Any) -> NoReturn:
        raise FrozenModuleError(_FROZEN_LIST)

    def __getattr__(self, name: str) -> NoReturn:
        raise _no_attribute(self, name, list, _FROZEN_LIST)

    def __add__(self, other: Sequence[Any]) -> list[Any]:
        return [*self._items, *other]

    def __radd__(self, other: Sequence[Any]) -> list[Any]:
        return [*other, *self._items]

    def __mul__(self, times: SupportsIndex) -> list[Any]:
        return list(self._items) * times

    __rmul__ = __mul__

    def copy(self) -> list[T_co]:
        """A list of the same items."""
        return list(self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, ReadOnlyList)):
            return NotImplemented
        return len(self) == len(other) and all(a is b or _same(a, b) for a, b in zip(self, other, strict=True))

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return represent(self)


def _no_attribute(container: Node, name: str, like: type, frozen: str) -> AttributeError:
    """The error for an attribute that is not there; for the methods by which a list or dict changes, what to do."""
    if hasattr(like, name):
        return FrozenModuleError(frozen)
    return AttributeError(f"{type(container).__name__!r} object has no attribute {name!r}")


def _same(a: Any, b: Any) -> bool:
    """Equality that asks a Tensor for identity, since its ``==`` is elementwise."""
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and bool(a == b)


@final
class Array(ReadOnlyList[T_co]):
    """A list of fixed length: ``self.heads = Array([…])``. It only differs from a list in its container type (M6)."""

    __slots__ = ()

    @property
    def _container(self) -> str:
        return "Array"


@final
class ReadOnlyDict(Node, Mapping[str, T_co]):
    """A dict of a module's children, read-only, in the order in which it was filled. ``|`` and ``copy`` give dicts."""

    __slots__ = ("_items",)

    _items: dict[str, T_co]

    @property
    def _container(self) -> str:
        return "Dict"

    def __init__(self, items: Mapping[str, T_co], path: str = "", within: tuple[int, ...] = ()) -> None:
        self._items = {}
        children = []
        for key, item in items.items():
            check_name(key, path)
            value, is_child = as_child(item, joined(path, key), within)
            self._items[key] = attribute(value)
            if is_child:
                children.append((key, value))
        self._children = tuple(children)

    def _with_children(self, children: Sequence[Any], destination: Device | None) -> Self:
        made = type(self).__new__(type(self))
        made._children = tuple((name, child) for (name, _), child in zip(self._children, children, strict=True))
        made._items = {**self._items, **{name: attribute(child) for name, child in made._children}}
        return made

    def _entries(self) -> list[tuple[str, Any, bool]]:
        return _entries_of(self._items.items(), self._children)

    def __getitem__(self, key: str) -> T_co:
        return self._items[key]

    def __setitem__(self, key: str, value: Any) -> NoReturn:
        raise FrozenModuleError(_FROZEN_DICT)

    def __delitem__(self, key: str) -> NoReturn:
        raise FrozenModuleError(_FROZEN_DICT)

    def __getattr__(self, name: str) -> NoReturn:
        raise _no_attribute(self, name, dict, _FROZEN_DICT)

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __or__(self, other: Mapping[Any, Any]) -> dict[Any, Any]:
        return {**self._items, **other} if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Mapping[Any, Any]) -> dict[Any, Any]:
        return {**other, **self._items} if isinstance(other, Mapping) else NotImplemented

    def copy(self) -> dict[str, T_co]:
        """A dict of the same items."""
        return dict(self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return self.keys() == other.keys() and all(
            item is other[k] or _same(item, other[k]) for k, item in self.items()
        )

    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return represent(self)


@final
class TupleNode(Node):
    """A tuple of children as walks see it; the module's field holds the tuple itself, named tuples of their type."""

    __slots__ = ("value",)

    value: tuple[Any, ...]

    @property
    def _container(self) -> str:
        return "Tuple"

    def __init__(self, items: tuple[Any, ...], path: str = "", within: tuple[int, ...] = ()) -> None:
        pairs = [(str(i), *as_child(item, joined(path, str(i)), within)) for i, item in enumerate(items)]
        self.value = tuple_like(items, [attribute(value) for _, value, _ in pairs])
        self._children = tuple((name, value) for name, value, is_child in pairs if is_child)

    def _with_children(self, children: Sequence[Any], destination: Device | None) -> Self:
        made = type(self).__new__(type(self))
        items = list(self.value)
        for (name, _), child in zip(self._children, children, strict=True):
            items[int(name)] = attribute(child)
        made.value = tuple_like(self.value, items)
        made._children = tuple((name, child) for (name, _), child in zip(self._children, children, strict=True))
        return made

    def _entries(self) -> list[tuple[str, Any, bool]]:
        return _entries_of([(str(i), item) for i, item in enumerate(self.value)], self._children)


def _entries_of(items: Iterable[tuple[str, Any]], children: tuple[tuple[str, Any], ...]) -> list[tuple[str, Any, bool]]:
    """Items under their names, those that are children as walks see them."""
    walked = dict(children)
    return [(name, walked.get(name, item), name in walked) for name, item in items]


def tuple_like(like: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """A tuple of `items` of the same type, with the same attributes; its constructor, whatever it takes, is not run."""
    made = tuple.__new__(type(like), items)
    if hasattr(like, "__dict__"):
        vars(made).update(vars(like))
    return made


def attribute(child: Any) -> Any:
    """What a module's field or a container's item reads as, of a child as walks see it."""
    return child.value if isinstance(child, TupleNode) else child


def check_name(name: object, path: str) -> None:
    """Refuse what cannot be a component of a path (M10).

    Raises:
        PathError: `name` is no string, is empty, or contains a dot.
    """
    where = f"under {path!r}" if path else "in the module"
    if not isinstance(name, str):
        raise PathError(f"key {name!r} {where} is no string; children in a dict have string keys")
    if not name or "." in name:
        raise PathError(f"name {name!r} {where} cannot be part of a path: it is empty or contains a dot")


def as_child(value: Any, path: str, within: tuple[int, ...] = ()) -> tuple[Any, bool]:
    """`value` as walks see it, and whether it is a child; configuration comes back as it is.

    Args:
        value: a field's value or a container's item.
        path: where it stands, for messages.
        within: ids of the containers around it, to notice one that holds itself.

    Raises:
        PathError: a key cannot be part of a path, or a container or module holds itself.
        ModuleError: an array, an iterator, or a set, dataclass or other object that holds a child.
    """
    if value is None or isinstance(value, CHILDREN):
        return value, True
    if isinstance(value, Skip):
        return value.value, False
    if isinstance(value, Node):
        if not is_constructed(value):
            raise PathError(
                f"{path}: the {type(value).__name__} is still being constructed; a module cannot hold itself"
            )
        return value, not (isinstance(value, ReadOnlyList) and value._is_configuration())
    if isinstance(value, (list, tuple, dict)):
        if id(value) in within:
            raise PathError(f"{path}: the {type(value).__name__} holds itself")
        inside = (*within, id(value))
        if _is_configuration(value, path, inside):
            return _without_marks(value), False
        if isinstance(value, dict):
            return ReadOnlyDict(value, path, inside), True
        if isinstance(value, tuple):
            return TupleNode(value, path, inside), True
        return ReadOnlyList(value, path, inside), True
    refuse_hidden_children(value, path)
    return value, False


def _is_configuration(value: Any, path: str, within: tuple[int, ...]) -> bool:
    """Whether a list, tuple or dict holds some configuration and otherwise only None or configuration."""
    some = False
    if isinstance(value, dict):
        for key in value:
            refuse_hidden_children(key, f"{path}: a key")
    for item in value.values() if isinstance(value, dict) else value:
        if item is None:
            continue
        if isinstance(item, (list, tuple, dict)):
            if id(item) in within:
                raise PathError(f"{path}: the {type(item).__name__} holds itself")
            if not _is_configuration(item, path, (*within, id(item))):
                return False
        elif isinstance(item, (*CHILDREN, Node)):
            if not (isinstance(item, ReadOnlyList) and item._is_configuration()):
                return False
        elif not isinstance(item, Skip):
            refuse_hidden_children(item, path)
        some = True
    return some


def _without_marks(value: Any) -> Any:
    """Configuration with what `skip` marked in it unwrapped; the same object if nothing is."""
    if isinstance(value, Skip):
        return value.value
    if isinstance(value, dict):
        unmarked = {key: _without_marks(item) for key, item in value.items()}
        return value if all(unmarked[key] is item for key, item in value.items()) else unmarked
    if isinstance(value, (list, tuple)):
        items = [_without_marks(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return tuple_like(value, items) if isinstance(value, tuple) else items
    return value
