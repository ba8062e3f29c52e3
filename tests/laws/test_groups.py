"""Laws of groups (L45 to L49): what they match, and that they are a Boolean algebra.

What a group means is evaluated on the paths and ids of a module by
`group_expressions`, never by asking the implementation. What operations do
with groups is in `test_group_operations`.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from . import operations as op
from .calls import built, output
from .generators import pick, trees
from .group_expressions import (
    EVERYTHING,
    Complement,
    Difference,
    Group,
    Ids,
    IdsAt,
    Intersection,
    Paths,
    Patterns,
    Pieces,
    Union,
    accepts,
    matched,
    resolved,
)
from .group_generators import atoms_of, expressions, pieces_of
from .law import law
from .programs import IDS
from .protocol import Adapter, Refused
from .spec_tree import TreeSpec, leaves
from .test_tree import tree_and


@st.composite
def places_beside(draw: DrawFn, spec: TreeSpec) -> tuple[tuple[int | None, str | None], ...]:
    """Places to ask about that may not be in the tree: pieces of paths, any text, no path; ids of leaves or others.

    An id is given by the number of a leaf, or is another one (negative: −1 − id).
    """
    paths = list(leaves(spec))
    path = st.sampled_from(paths).flatmap(lambda path: st.sampled_from(pieces_of(path)))
    other = st.sampled_from((0, 1, 2**64 - 1)) | IDS
    either = st.integers(0, len(paths) - 1) | other.map(lambda number: -1 - number)
    return tuple(draw(st.lists(st.tuples(either, st.none() | path | st.text()), max_size=4)))


def asked(ids: dict[str, int], beside: Any) -> tuple[tuple[int, str | None], ...]:
    """Every leaf, and the places beside."""
    numbers = list(ids.values())
    return (
        *((number, path) for path, number in ids.items()),
        *((numbers[place] if place >= 0 else -1 - place, path) for place, path in beside),
    )


def check_meaning(adapter: Adapter, spec: TreeSpec, group: Group, beside: Any) -> None:
    """The implementation's answers are the meaning of the group."""
    module = built(adapter, spec)
    ids = adapter.meta(module).ids()
    meant, places = resolved(group, ids), asked(ids, beside)

    answers = output(adapter, module, op.AskGroup(group, places))

    assert dict(zip(places, answers, strict=True)) == {place: accepts(meant, *place) for place in places}
    inside = matched(group, ids)
    event(f"inside: {'all' if len(inside) == len(ids) else 'some' if inside else 'none'}")
    assert output(adapter, module, op.PathsOfGroup(group)) == tuple(inside)


@law("L45", needs=("groups",), case=tree_and(atoms_of, places_beside))
def test_an_atom_matches_what_its_name_says(adapter: Adapter, case: tuple[TreeSpec, Group, Any]) -> None:
    """For every leaf, and for paths and ids that do not occur (M75 to M84, M89)."""
    check_meaning(adapter, *case)


@law("L45", needs=("groups",), case=tree_and(lambda spec: expressions(spec, 3), places_beside))
def test_an_expression_matches_what_its_operators_say(adapter: Adapter, case: tuple[TreeSpec, Group, Any]) -> None:
    """(M88)."""
    check_meaning(adapter, *case)


# The algebra

NONE: Final = Complement(EVERYTHING)
IDENTITIES: Final[dict[str, Callable[[Group, Group, Group], tuple[Group, Group]]]] = {
    "a | b = b | a": lambda a, b, c: (Union(a, b), Union(b, a)),
    "a & b = b & a": lambda a, b, c: (Intersection(a, b), Intersection(b, a)),
    "(a | b) | c = a | (b | c)": lambda a, b, c: (Union(Union(a, b), c), Union(a, Union(b, c))),
    "(a & b) & c = a & (b & c)": lambda a, b, c: (
        Intersection(Intersection(a, b), c),
        Intersection(a, Intersection(b, c)),
    ),
    "a | a = a": lambda a, b, c: (Union(a, a), a),
    "a & a = a": lambda a, b, c: (Intersection(a, a), a),
    "a | (a & b) = a": lambda a, b, c: (Union(a, Intersection(a, b)), a),
    "a & (a | b) = a": lambda a, b, c: (Intersection(a, Union(a, b)), a),
    "a & (b | c) = (a & b) | (a & c)": lambda a, b, c: (
        Intersection(a, Union(b, c)),
        Union(Intersection(a, b), Intersection(a, c)),
    ),
    "a | (b & c) = (a | b) & (a | c)": lambda a, b, c: (
        Union(a, Intersection(b, c)),
        Intersection(Union(a, b), Union(a, c)),
    ),
    "~(a | b) = ~a & ~b": lambda a, b, c: (Complement(Union(a, b)), Intersection(Complement(a), Complement(b))),
    "~(a & b) = ~a | ~b": lambda a, b, c: (Complement(Intersection(a, b)), Union(Complement(a), Complement(b))),
    "~~a = a": lambda a, b, c: (Complement(Complement(a)), a),
    "a - b = a & ~b": lambda a, b, c: (Difference(a, b), Intersection(a, Complement(b))),
    "a - (b - c) = (a - b) | (a & c)": lambda a, b, c: (
        Difference(a, Difference(b, c)),
        Union(Difference(a, b), Intersection(a, c)),
    ),
    "a | nothing = a": lambda a, b, c: (Union(a, NONE), a),
    "a & all = a": lambda a, b, c: (Intersection(a, EVERYTHING), a),
    "a | all = all": lambda a, b, c: (Union(a, EVERYTHING), EVERYTHING),
    "a & nothing = nothing": lambda a, b, c: (Intersection(a, NONE), NONE),
    "a | ~a = all": lambda a, b, c: (Union(a, Complement(a)), EVERYTHING),
    "a - a = nothing": lambda a, b, c: (Difference(a, a), NONE),
}


@law("L46", needs=("groups",), case=tree_and(*(lambda spec: expressions(spec, 2),) * 3, places_beside))
def test_groups_are_a_boolean_algebra(adapter: Adapter, case: Any) -> None:
    """Both sides match the same leaves, and the same paths and ids that do not occur (M88)."""
    spec, *parts, beside = case
    module = built(adapter, spec)
    ids = adapter.meta(module).ids()
    places = asked(ids, beside)
    for name, identity in IDENTITIES.items():
        sides = identity(*parts)
        one, other = (output(adapter, module, op.AskGroup(side, places)) for side in sides)
        assert one == other, name
        assert one == tuple(accepts(resolved(sides[0], ids), *place) for place in places), name


@law("L47", needs=("groups",), case=tree_and(*(lambda spec: expressions(spec, 2),) * 3, places_beside))
def test_fuse_and_exclude_are_union_and_difference(adapter: Adapter, case: Any) -> None:
    """With exclusions on the left, on the right and twice, none of which is forgotten (M85, M86, M88)."""
    spec, a, b, c, beside = case
    module = built(adapter, spec)
    ids = adapter.meta(module).ids()
    places = asked(ids, beside)

    def check(build: Callable[[bool], Group]) -> None:
        meant = resolved(build(True), ids)
        burn, own = (output(adapter, module, op.AskGroup(build(name), places)) for name in (True, False))
        assert burn == own == tuple(accepts(meant, *place) for place in places)

    def without(one: Group, other: Group, burn: bool) -> Group:
        return Difference(one, other, burn)

    check(lambda burn: Union(without(a, b, burn), c, burn))
    check(lambda burn: Union(c, without(a, b, burn), burn))
    check(lambda burn: without(a, without(b, c, burn), burn))
    check(lambda burn: without(without(a, b, burn), c, burn))
    check(lambda burn: Union(a, a, burn))
    check(lambda burn: Union(Union(a, b, burn), without(c, a, burn), burn))


EMPTY: Final[dict[Group, bool]] = {
    Pieces(()): True,
    Patterns(()): True,
    Pieces((), at_least_one=True): False,
    Patterns((), at_least_one=True): False,
    Paths(()): False,
    Ids(()): False,
    IdsAt(()): False,
}


@law("L48", needs=("groups",), case=tree_and(places_beside))
def test_all_of_nothing_is_every_path_and_any_of_nothing_none(adapter: Adapter, case: tuple[TreeSpec, Any]) -> None:
    """Empty lists of paths or ids match nothing; without a path nothing that goes by paths matches (M84, M88)."""
    spec, beside = case
    module = built(adapter, spec)
    places = asked(adapter.meta(module).ids(), (*beside, (0, None)))
    for group, everything in EMPTY.items():
        answers = output(adapter, module, op.AskGroup(group, places))
        assert answers == tuple(everything and path is not None for _, path in places)


# Patterns

BROKEN: Final = ("(", "[", "a)", "*", "a{2,1}", "(?P<a", "\\", "(?<=a*)b", "[b-a]", "(?P=x)", r"\1")


@st.composite
def any_pattern(draw: DrawFn) -> str:
    """A broken pattern, alone or in others; or any text."""
    text, broken = draw(st.text(max_size=6)), pick(draw, BROKEN)
    return pick(draw, (broken, re.escape(text) + broken, text))


def compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


@law(
    "L49",
    needs=("groups",),
    spec=lambda a: trees(a.grammar),
    pattern=lambda a: any_pattern(),
    several=lambda a: st.booleans(),
)
def test_a_bad_pattern_is_refused_when_the_group_is_made(
    adapter: Adapter, spec: TreeSpec, pattern: str, several: bool
) -> None:
    """By its text, before anything is asked; a good one is taken (M83)."""
    module = built(adapter, spec)
    group = Patterns(("weight", pattern), at_least_one=True) if several else Patterns((pattern,))

    answer = adapter.apply(module, op.KeepGroup("kept", group))

    event("good" if compiles(pattern) else "bad")
    assert isinstance(answer, Refused) == (not compiles(pattern))
    if isinstance(answer, Refused):
        assert answer.kind == "group"
        assert repr(pattern) in answer.message


@law(
    "L49",
    needs=("groups",),
    case=tree_and(lambda spec: expressions(spec, 3)),
    paths=lambda a: st.lists(st.none() | st.text() | st.text(max_size=3).map(lambda t: f"{t}." * 5000), min_size=1),
    number=lambda a: IDS,
)
def test_matching_never_fails(adapter: Adapter, case: tuple[TreeSpec, Group], paths: Any, number: int) -> None:
    """Whatever the path is, and however long (M119)."""
    spec, group = case
    module = built(adapter, spec)
    meant = resolved(group, adapter.meta(module).ids())

    answers = output(adapter, module, op.AskGroup(group, tuple((number, path) for path in paths)))

    assert answers == tuple(accepts(meant, number, path) for path in paths)
