"""Parameter groups as data: expressions, and what they match, written from rules M75 to M89.

A *resolved* expression says everything itself: `accepts` evaluates it for an id
and a path. The others speak of the module that they are handed to, its
*receiver*: of the ids that it has at some paths, or in a part of it, or of a
group that was made from an older version and kept under a name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from .spec_tree import Printed

# Atoms, in the order in which minimal cases are liked: an exact path explains most


@dataclass(frozen=True, repr=False)
class Paths(Printed):
    """What has one of these paths (M78)."""

    paths: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Ids(Printed):
    """What has one of these ids, whatever its path (M76, M84)."""

    ids: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class IdsAt(Printed):
    """The ids that the receiver has at these paths, at the moment when the group is made (M76)."""

    paths: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class IdsOfPart(Printed):
    """The ids of all leaves of the module at a path of the receiver, or of the receiver, at that moment (M77)."""

    path: str = ""


@dataclass(frozen=True, repr=False)
class Kept(Printed):
    """The group that `operations.KeepGroup` made under this name (M90)."""

    name: str


@dataclass(frozen=True, repr=False)
class Pieces(Printed):
    """What has all of these texts, or at least one, somewhere in its path (M79, M80, M89)."""

    pieces: tuple[str, ...]
    at_least_one: bool = False


@dataclass(frozen=True, repr=False)
class Patterns(Printed):
    """What all of these regular expressions, or at least one, match somewhere in its path (M81, M82)."""

    patterns: tuple[str, ...]
    at_least_one: bool = False


@dataclass(frozen=True, repr=False)
class Everything(Printed):
    """All there is, also what has no path (M75)."""


EVERYTHING: Final = Everything()

# What combines two


@dataclass(frozen=True, repr=False)
class Union(Printed):
    """What either has; `burn` says it by Burn's name, `fuse` (M85, M88)."""

    one: "Group"
    other: "Group"
    burn: bool = False


@dataclass(frozen=True, repr=False)
class Intersection(Printed):
    """What both have (M88)."""

    one: "Group"
    other: "Group"


@dataclass(frozen=True, repr=False)
class Difference(Printed):
    """What the one has and the other has not; `burn` says it by Burn's name, `exclude` (M86, M88)."""

    one: "Group"
    other: "Group"
    burn: bool = False


@dataclass(frozen=True, repr=False)
class Complement(Printed):
    """What the one has not (M88)."""

    one: "Group"


Atom: TypeAlias = Paths | Ids | IdsAt | IdsOfPart | Kept | Pieces | Patterns | Everything
Pair: TypeAlias = Union | Intersection | Difference
Group: TypeAlias = Atom | Pair | Complement


def accepts(group: Group, id: int, path: str | None) -> bool:
    """Whether a resolved group has what is under this id and path (M75 to M88)."""
    match group:
        case Everything():
            return True
        case Ids(ids):
            return id in ids
        case Union(one, other):
            return accepts(one, id, path) or accepts(other, id, path)
        case Intersection(one, other):
            return accepts(one, id, path) and accepts(other, id, path)
        case Difference(one, other):
            return accepts(one, id, path) and not accepts(other, id, path)
        case Complement(one):
            return not accepts(one, id, path)
    if path is None:  # M84: what goes by paths accepts nothing without one
        return False
    match group:
        case Paths(paths):
            return path in paths
        case Pieces(pieces, at_least_one):
            return (any if at_least_one else all)(piece in path for piece in pieces)
        case Patterns(patterns, at_least_one):
            return (any if at_least_one else all)(re.search(pattern, path) is not None for pattern in patterns)
    raise TypeError(f"{group!r} is not resolved")


def resolved(group: Group, ids: Mapping[str, int], kept: Mapping[str, "Group"] | None = None) -> Group:
    """The group for a receiver that has these ids by path; `kept` are resolved groups by name."""
    match group:
        case IdsAt(paths):
            return Ids(tuple(ids[path] for path in paths))
        case IdsOfPart(part):
            return Ids(tuple(number for path, number in ids.items() if not part or path.startswith(f"{part}.")))
        case Kept(name):
            return (kept or {})[name]
        case Union(one, other) | Intersection(one, other) | Difference(one, other):
            return replace(group, one=resolved(one, ids, kept), other=resolved(other, ids, kept))
        case Complement(one):
            return Complement(resolved(one, ids, kept))
    return group


def matched(group: Group | None, ids: Mapping[str, int], kept: Mapping[str, "Group"] | None = None) -> list[str]:
    """The paths of a receiver, which has these ids by path, that a group has, in order; None is all of them."""
    if group is None:
        return list(ids)
    meant = resolved(group, ids, kept)
    return [path for path, number in ids.items() if accepts(meant, number, path)]


def atoms(group: Group) -> Iterator[Atom]:
    """The atoms of an expression, from left to right."""
    match group:
        case Union(one, other) | Intersection(one, other) | Difference(one, other):
            yield from atoms(one)
            yield from atoms(other)
        case Complement(one):
            yield from atoms(one)
        case _:
            yield group


def patterns(group: Group) -> Iterator[str]:
    """The regular expressions in a group, from left to right."""
    return (text for atom in atoms(group) if isinstance(atom, Patterns) for text in atom.patterns)


def by_ids(groups: Iterable[Group]) -> bool:
    """Whether one of the groups goes by ids, which a load changes (M90)."""
    return any(isinstance(atom, (Ids, IdsAt, IdsOfPart, Kept)) for group in groups for atom in atoms(group))
