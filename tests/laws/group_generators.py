"""Strategies for groups: expressions whose texts are pieces of paths that exist. Random text almost never matches.

Atoms are ordered so that minimal cases are exact paths, then ids, pieces and
patterns; expressions shrink to atoms.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from .generators import pick
from .group_expressions import (
    Complement,
    Difference,
    Everything,
    Group,
    IdsAt,
    IdsOfPart,
    Intersection,
    Paths,
    Patterns,
    Pieces,
    Union,
)
from .spec_tree import EnumSpec, StructSpec, TreeSpec, leaves, places

ATOMS: Final = (*(Paths, IdsAt, Pieces, Patterns) * 2, IdsOfPart, Everything)
PAIRS: Final = (Union, Difference, Intersection)


class Matchable:
    """What groups can be made of: the paths of a tree's leaves, and of the modules in it."""

    def __init__(self, spec: TreeSpec) -> None:
        self.leaves = list(leaves(spec))
        self.parts = ["", *(path for path, node in places(spec).items() if isinstance(node, (StructSpec, EnumSpec)))]


def chosen(draw: DrawFn, paths: Sequence[str]) -> tuple[str, ...]:
    """Some of the paths, in their order: in nine of ten draws not all and not none. Shrinks to the first."""
    every = 2 ** len(paths) - 1
    proper = max(0, every - 1)
    number = draw(st.integers(0, 10 * proper + 1))
    mask = number % proper + 1 if number < 10 * proper else (number - 10 * proper) * every
    return tuple(path for place, path in enumerate(paths) if mask >> place & 1)


@cache
def pieces_of(path: str) -> tuple[str, ...]:
    """The whole path, its beginnings, ends and components, some of its inside, and pieces with a letter changed."""
    names = path.split(".")
    found = [path, path, *names]
    for at in range(1, len(names)):
        found += [".".join(names[:at]), ".".join(names[at:]), ".".join(names[:at]) + ".", "." + ".".join(names[at:])]
    middle = len(path) // 2
    found += [path[1:], path[:-1], path[middle:], path[middle : middle + 1]]
    return *found, f"{path[:middle]}~{path[middle + 1 :]}", f"~{path[1:]}", f"{names[-1]}~", f"{path}."


def piece(draw: DrawFn, paths: Sequence[str]) -> str:
    """A piece of one of the paths."""
    return pick(draw, pieces_of(pick(draw, paths)))


def pattern(draw: DrawFn, paths: Sequence[str]) -> str:
    """A regular expression made of a piece or two: as it is, anchored, with a gap, a joker or another way."""
    path = pick(draw, paths)
    text, at = re.escape(pick(draw, pieces_of(path))), draw(st.integers(0, len(path)))
    match pick(draw, ("plain", "start", "end", "whole", "joker", "gap", "either", "class")):
        case "start":
            return f"^{re.escape(path[:at])}"
        case "end":
            return f"{re.escape(path[at:])}$"
        case "whole":
            return f"^{text}$"
        case "joker":
            return f"{re.escape(path[:at])}.{re.escape(path[at + 1 :])}"
        case "gap":
            return f"{re.escape(path[: at // 2])}.*{re.escape(path[at:])}"
        case "either":
            return f"^({text}|{re.escape(piece(draw, paths))})$"
        case "class":
            return rf"\w+\.{re.escape(path.split('.')[-1])}$"
    return text


def atom(draw: DrawFn, at: Matchable) -> Group:
    """An atom about the leaves of a tree."""
    kind: Any = pick(draw, ATOMS)
    if kind in (Pieces, Patterns):
        one = piece if kind is Pieces else pattern
        count = pick(draw, (1, 1, 1, 2, 2, 0))
        return kind(tuple(one(draw, at.leaves) for _ in range(count)), count != 1 and draw(st.booleans()))
    if kind is IdsOfPart:
        return IdsOfPart(pick(draw, at.parts))
    if kind is Everything:
        return Everything()
    return kind(chosen(draw, at.leaves))


def expression(draw: DrawFn, at: Matchable, depth: int) -> Group:
    """An expression of at most so many operators one inside the other."""
    kind: Any = pick(draw, (None, None, *PAIRS, Union, Difference, Complement)) if depth else None
    if kind is None:
        return atom(draw, at)
    one = expression(draw, at, depth - 1)
    if kind is Complement:
        return Complement(one)
    other = expression(draw, at, depth - 1)
    if kind is Intersection:
        return Intersection(one, other)
    return kind(one, other, draw(st.booleans()))


def group(draw: DrawFn, at: Matchable, depth: int = 2) -> Group:
    """A group for an operation: as often as not some exact paths, else an expression."""
    return Paths(chosen(draw, at.leaves)) if draw(st.booleans()) else expression(draw, at, depth)


@st.composite
def groups(draw: DrawFn, spec: TreeSpec, depth: int = 2) -> Group:
    """See `group`."""
    return group(draw, Matchable(spec), depth)


@st.composite
def expressions(draw: DrawFn, spec: TreeSpec, depth: int = 2) -> Group:
    """See `expression`."""
    return expression(draw, Matchable(spec), depth)


@st.composite
def atoms_of(draw: DrawFn, spec: TreeSpec) -> Group:
    """See `atom`."""
    return atom(draw, Matchable(spec))
