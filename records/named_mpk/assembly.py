"""From paths to the item of a file: which maps and arrays the entries of a record stand in.

A component of digits is a place in an array, any other a field of a map. What
no path tells is told by an outline, which a record has that was read from such
a file, and by what is given beside it: fields, vectors and enums without state.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from records.errors import RecordError

from .item import NUMBER, PARAMETER, TENSOR, WHOLE, Outline

_MAX_COMPONENTS: Final = 120  # so that what is written nests no deeper than readers take
_MAX_GAP: Final = 10_000  # places of an array that nothing stands at


class Leaf(NamedTuple):
    """A place where a parameter, a tensor without id or a number stands; `form` is the outline's word for it."""

    form: str
    path: str


Assembled: TypeAlias = Any  # a dict, a list, a Leaf or None


class _Branch(dict[str, Any]):
    """A map or an array being made: what stands at each name, or index as text."""

    is_array = False


def assembled(
    entries: Iterable[str], scalars: Iterable[str], outline_text: object, stateless: Mapping[str, Any]
) -> Assembled:
    """The item in which everything stands at its path.

    Args:
        entries: paths of tensors.
        scalars: names of numbers; each must be in the outline.
        outline_text: JSON of the outline of the file that the record came from, if it did. An outline that has
            none of the paths, or is none, is not looked at.
        stateless: what to put at other paths: None, and lists and dicts of it.

    Raises:
        RecordError: a path leads through another one, or to an absurd index; a number has no place; `stateless`
            holds something else.
    """
    paths = dict.fromkeys(entries, PARAMETER)
    outline = _outline(outline_text)
    told = dict(_leaves(outline, ""))
    for path in paths:
        if told.get(path) == TENSOR:
            paths[path] = TENSOR
    for name in scalars:
        if told.get(name) != NUMBER:
            raise RecordError(f"a named-MessagePack file has no place for scalars; {name!r} is one")
        paths[name] = NUMBER
    root = _branches(outline, "", paths) if paths.keys() & told.keys() or not paths else _Branch()
    if not isinstance(root, _Branch) and (paths or stateless):
        if list(paths) == [WHOLE] and not stateless:
            return root
        root = _Branch()
    for path, form in paths.items():
        _put(root, path, Leaf(form, path))
    for path, value in stateless.items():
        _put(root, path, _nothing(path, value))
    return _finished(root, "")


def _outline(text: object) -> Outline:
    try:
        return json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}


def _leaves(outline: Outline, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(outline, str):
        yield path or WHOLE, outline
    elif isinstance(outline, (dict, list)) and path.count(".") < _MAX_COMPONENTS:
        for key, value in outline.items() if isinstance(outline, dict) else enumerate(outline):
            yield from _leaves(value, f"{path}.{key}" if path else str(key))


def _branches(outline: Outline, path: str, paths: Mapping[str, str]) -> Any:
    """The outline without the places of what is not there any more."""
    if isinstance(outline, str):
        return Leaf(outline, path or WHOLE) if paths.get(path or WHOLE) == outline else None
    if not isinstance(outline, (dict, list)) or path.count(".") >= _MAX_COMPONENTS:
        return None
    made = _Branch()
    made.is_array = isinstance(outline, list)
    for key, value in outline.items() if isinstance(outline, dict) else enumerate(outline):
        child = _branches(value, f"{path}.{key}" if path else str(key), paths)
        if child is not None or not isinstance(value, str) or made.is_array:
            made[str(key)] = child
    return made


def _nothing(path: str, value: Any) -> Any:
    """A value without state, as branches."""
    if value is None:
        return None
    if not isinstance(value, (dict, list, tuple)):
        raise RecordError(f"stateless: {value!r} at {path!r}; what has no state is None, or lists and dicts of it")
    made = _Branch()
    made.is_array = not isinstance(value, dict)
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if not isinstance(key, (str, int)):
            raise RecordError(f"stateless: {key!r} at {path!r} is no name")
        made[str(key)] = _nothing(f"{path}.{key}", inner)
    return made


def _put(root: _Branch, path: str, value: Any) -> None:
    *above, last = path.split(".")
    if len(above) >= _MAX_COMPONENTS:
        raise RecordError(f"{path!r} has more than {_MAX_COMPONENTS} components")
    branch = root
    for key in above:
        child = branch.get(key)
        if child is None:
            child = branch[key] = _Branch()
        if isinstance(child, Leaf):
            raise RecordError(f"{path!r} leads through {child.path!r}, where something else stands")
        branch = child
    there = branch.get(last)
    if there is not None and there != value:
        raise RecordError(f"something stands at {path!r} already, or below it")
    branch[last] = value


def _finished(tree: Any, path: str) -> Assembled:
    """Plain dicts and lists."""
    if not isinstance(tree, _Branch):
        return tree
    made = {key: _finished(value, f"{path}.{key}" if path else key) for key, value in tree.items()}
    if not tree.is_array and not (made and all(map(_is_index, made))):
        return made
    if not all(map(_is_index, made)):
        raise RecordError(f"{path!r} is an array, and has names beside indices: {', '.join(sorted(made))}")
    length = 1 + max(map(int, made), default=-1)
    if length > len(made) + _MAX_GAP:
        raise RecordError(f"{path!r} is an array of {length} places with something at {len(made)} of them")
    return [made.get(str(index)) for index in range(length)]


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 10 and str(int(name)) == name
