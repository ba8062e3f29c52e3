"""Parameter groups: which parameters and flags of a module an operation concerns.

A group answers whether it matches an id and a path. Groups are a Boolean
algebra with the meaning of sets: ``|``, ``&``, ``-``, ``~`` (M88). Burn's
`fuse` is ``|`` and its `exclude` is ``-``; unlike Burn's, they keep the
exclusions of both sides (M85, M86).
"""

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias, final

from records import ParamId

from .errors import GroupError
from .flag import Flag
from .param import Param
from .running_state import RunningState
from .tree import Node, leaves

_Test: TypeAlias = Callable[[ParamId | None, str | None], bool]


class _Chain(NamedTuple):
    """What a group combines: side by side, so that a long chain of operators is no deep nesting."""

    operator: str
    parts: "tuple[tuple[str, ParamGroup], ...]"  # each with the operator before it


_UNION: Final = "|"
_INTERSECTION: Final = "&"
_DIFFERENCE: Final = "-"


@final
class ParamGroup:
    """A set of parameters and flags, by path or by id; made by the class methods and operators below.

    An operation on a group does nothing to a module of which the group has
    nothing, so a path that is misspelt goes unnoticed there: ask `paths`.
    """

    __slots__ = ("_chain", "_matches", "_text")

    _chain: _Chain | None
    _matches: _Test
    _text: str

    def __init__(self) -> None:
        raise TypeError("make a ParamGroup with ParamGroup.all(), from_path(…), from_regex(…), …")

    @classmethod
    def _made(cls, text: str, matches: _Test) -> "ParamGroup":
        group = cls.__new__(cls)
        group._chain = None
        group._matches = matches
        group._text = text
        return group

    @classmethod
    def _joined(cls, one: "ParamGroup", operator: str, other: "ParamGroup") -> "ParamGroup":
        """``one operator other``; a difference is an intersection with what the other has not."""
        kind = _UNION if operator == _UNION else _INTERSECTION
        parts = one._chain.parts if one._chain is not None and one._chain.operator == kind else ((kind, one),)
        parts = (*parts, (operator, other))

        def matches(id: ParamId | None, path: str | None) -> bool:
            if kind == _UNION:
                return any(part._matches(id, path) for _, part in parts)
            return all(part._matches(id, path) != (sign == _DIFFERENCE) for sign, part in parts)

        group = cls._made("", matches)
        group._chain = _Chain(kind, parts)
        return group

    @classmethod
    def all(cls) -> "ParamGroup":
        """Everything, also what has no path (M75)."""
        return cls._made("all()", lambda id, path: True)

    @classmethod
    def from_ids(cls, ids: Iterable[ParamId | int]) -> "ParamGroup":
        """What has one of these ids, whatever its path (M76)."""
        wanted = frozenset(ParamId(id) for id in ids)
        return cls._made(f"from_ids({sorted(map(str, wanted))})", lambda id, path: id in wanted)

    @classmethod
    def ids_from_module(cls, module: Node) -> "ParamGroup":
        """The ids of all parameters, running states and flags that a module has now (M77, M90)."""
        return cls.from_ids(leaf.id for _, leaf in leaves(module) if isinstance(leaf, (Param, Flag, RunningState)))

    @classmethod
    def from_path(cls, path: str) -> "ParamGroup":
        """What has exactly this path (M78)."""
        return cls.from_paths([path])

    @classmethod
    def from_paths(cls, paths: Iterable[str]) -> "ParamGroup":
        """What has exactly one of these paths; of no paths nothing (M78)."""
        wanted = frozenset(_texts("from_paths", paths))
        return cls._made(f"from_paths({sorted(wanted)})", lambda id, path: path in wanted)

    @classmethod
    def from_predicate(cls, piece: str) -> "ParamGroup":
        """What has this text somewhere in its path; components are not respected (M79, M89)."""
        return cls.from_predicates([piece])

    @classmethod
    def from_predicates(cls, pieces: Iterable[str]) -> "ParamGroup":
        """What has all these texts in its path; of no texts every path (M79, M88)."""
        wanted = _texts("from_predicates", pieces)
        return cls._by_path(f"from_predicates({wanted})", lambda path: all(piece in path for piece in wanted))

    @classmethod
    def from_any_predicates(cls, pieces: Iterable[str]) -> "ParamGroup":
        """What has at least one of these texts in its path; of no texts nothing (M80, M88)."""
        wanted = _texts("from_any_predicates", pieces)
        return cls._by_path(f"from_any_predicates({wanted})", lambda path: any(piece in path for piece in wanted))

    @classmethod
    def from_regex(cls, pattern: str) -> "ParamGroup":
        """What a regular expression matches somewhere in its path (M81).

        Raises:
            GroupError: the pattern is none of Python's (M83).
        """
        return cls.from_regexes([pattern])

    @classmethod
    def from_regexes(cls, patterns: Iterable[str]) -> "ParamGroup":
        """What all these regular expressions match somewhere in its path; of none every path (M81, M88)."""
        found = _compiled("from_regexes", patterns)
        text = f"from_regexes({[pattern.pattern for pattern in found]})"
        return cls._by_path(text, lambda path: all(pattern.search(path) for pattern in found))

    @classmethod
    def from_any_regexes(cls, patterns: Iterable[str]) -> "ParamGroup":
        """What at least one of these regular expressions matches somewhere in its path; of none nothing (M82, M88)."""
        found = _compiled("from_any_regexes", patterns)
        text = f"from_any_regexes({[pattern.pattern for pattern in found]})"
        return cls._by_path(text, lambda path: any(pattern.search(path) for pattern in found))

    @classmethod
    def _by_path(cls, text: str, test: Callable[[str], bool]) -> "ParamGroup":
        return cls._made(text, lambda id, path: path is not None and test(path))  # M84: no path, no match

    def matches(self, id: ParamId | int, path: str | None = None) -> bool:
        """Whether the group has what is under this id and full path; never raises for an id and a path (M119).

        Raises:
            TypeError: `id` is no id.
        """
        if not isinstance(id, int):
            raise TypeError(f"matches takes a ParamId or its number, and then the path, not {id!r}: matches(id, path)")
        return self._matches(ParamId(id), path)

    def matches_path(self, path: str) -> bool:
        """Whether the group has what is under this full path and has no id, as Draws are."""
        return self._matches(None, path)

    def paths(self, module: Node) -> list[str]:
        """The paths of the module's parameters, running states and flags that the group has, in visit order (M92)."""
        return [
            path
            for path, leaf in leaves(module)
            if isinstance(leaf, (Param, Flag, RunningState)) and self._matches(leaf.id, path)
        ]

    def __or__(self, other: "ParamGroup") -> "ParamGroup":
        """What either group has."""
        return self._joined(self, _UNION, other) if isinstance(other, ParamGroup) else NotImplemented

    def __and__(self, other: "ParamGroup") -> "ParamGroup":
        """What both groups have."""
        return self._joined(self, _INTERSECTION, other) if isinstance(other, ParamGroup) else NotImplemented

    def __sub__(self, other: "ParamGroup") -> "ParamGroup":
        """What this group has and the other has not."""
        return self._joined(self, _DIFFERENCE, other) if isinstance(other, ParamGroup) else NotImplemented

    def __invert__(self) -> "ParamGroup":
        """What this group has not."""
        return self._made(f"~{self!r}", lambda id, path: not self._matches(id, path))

    def fuse(self, other: "ParamGroup") -> "ParamGroup":
        """Burn's name for ``self | other``."""
        return self | other

    def exclude(self, other: "ParamGroup") -> "ParamGroup":
        """Burn's name for ``self - other``."""
        return self - other

    def __repr__(self) -> str:
        if self._chain is None:
            return self._text
        (_, first), *others = self._chain.parts
        return f"({' '.join([repr(first), *(f'{sign} {part!r}' for sign, part in others)])})"


def check_group(name: str, group: object) -> None:
    """Refuse what is no group; `name` is the method that was given it.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(group, ParamGroup):
        raise TypeError(f"{name} takes a ParamGroup, not {group!r}; ParamGroup.from_path(…) makes one")


def _texts(name: str, texts: Iterable[str]) -> list[str]:
    """A list of strings; one string alone would be taken for its letters."""
    if isinstance(texts, str):
        raise GroupError(f"{name}: give a list of strings, not the string {texts!r} alone")
    found = list(texts)
    for text in found:
        if not isinstance(text, str):
            raise GroupError(f"{name}: {text!r} is no string")
    return found


def _compiled(name: str, patterns: Iterable[str]) -> list[re.Pattern[str]]:
    found = []
    for pattern in _texts(name, patterns):
        try:
            found.append(re.compile(pattern))
        except (re.error, OverflowError, RecursionError) as error:
            raise GroupError(f"{name}: {pattern!r} is no regular expression: {error}") from None
    return found
