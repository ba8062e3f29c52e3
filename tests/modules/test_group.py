"""Parameter groups: which parameters and flags an operation concerns (M75 to M92)."""

import operator as op
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules import GroupError, ParamGroup, list_param_ids
from records import ParamId

from .small_modules import Block, Stack

words = st.text("ab.", max_size=4)
paths = st.none() | words
numbers = st.integers(0, 3)

plain_groups = st.one_of(
    st.just(ParamGroup.all()),
    st.lists(numbers, max_size=2).map(ParamGroup.from_ids),
    words.map(ParamGroup.from_path),
    st.lists(words, max_size=2).map(ParamGroup.from_paths),
    words.map(ParamGroup.from_predicate),
    st.lists(words, max_size=2).map(ParamGroup.from_predicates),
    st.lists(words, max_size=2).map(ParamGroup.from_any_predicates),
    st.sampled_from(["a", "^a", "b$", "a.b", r"\."]).map(ParamGroup.from_regex),
)
groups = st.recursive(
    plain_groups,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] - pair[1]),
        inner.map(lambda group: ~group),
    ),
    max_leaves=4,
)


def test_constructors_accept_what_their_names_say():
    """M75 to M82: whole strings, texts inside, and searches, all of them or any."""
    accepted = {
        ParamGroup.all(): [True, True, True, True],
        ParamGroup.from_ids([1, ParamId(3)]): [True, False, True, False],
        ParamGroup.from_path("a.weight"): [True, False, False, False],
        ParamGroup.from_paths(["a.weight", "b.bias", "none"]): [True, False, False, True],
        ParamGroup.from_predicate("weight"): [True, True, False, False],
        ParamGroup.from_predicates(["weight", "a."]): [True, False, False, False],
        ParamGroup.from_any_predicates(["weight", "a."]): [True, True, True, False],
        ParamGroup.from_regex("^a"): [True, False, True, False],
        ParamGroup.from_regexes(["^a", "t$"]): [True, False, False, False],
        ParamGroup.from_any_regexes(["^a", "t$"]): [True, True, True, False],
    }
    places = [(1, "a.weight"), (2, "b.weight"), (3, "a.bias"), (4, "b.bias")]
    for group, answers in accepted.items():
        assert [group.matches(id_, path) for id_, path in places] == answers, group


def test_empty_lists_mean_all_of_nothing_and_any_of_nothing():
    """M88, where Burn's M87 differs."""
    for everything in (ParamGroup.from_predicates([]), ParamGroup.from_regexes([])):
        assert everything.matches(1, "a")
    nothing = [
        ParamGroup.from_ids([]), ParamGroup.from_paths([]), ParamGroup.from_any_predicates([]),
        ParamGroup.from_any_regexes([]),
    ]  # fmt: skip
    for group in nothing:
        assert not group.matches(1, "a")


def test_without_a_path_no_path_matches():
    """M84: id groups ignore the path, and all accepts."""
    for group in (
        ParamGroup.from_path("a"), ParamGroup.from_predicates([]), ParamGroup.from_predicate(""),
        ParamGroup.from_regex(""),
    ):  # fmt: skip
        assert not group.matches(1)
    assert ParamGroup.all().matches(1)
    assert ParamGroup.from_ids([1]).matches(1)


@given(groups, groups, numbers, paths)
def test_operators_have_the_meaning_of_sets(one: ParamGroup, other: ParamGroup, id_: int, path: str | None):
    """M88: and Burn's names are those of two of them (M85, M86, where Burn's forget exclusions)."""
    in_one, in_other = one.matches(id_, path), other.matches(id_, path)

    assert (one | other).matches(id_, path) == (in_one or in_other)
    assert (one & other).matches(id_, path) == (in_one and in_other)
    assert (one - other).matches(id_, path) == (in_one and not in_other)
    assert (~one).matches(id_, path) != in_one
    assert one.fuse(other).matches(id_, path) == (one | other).matches(id_, path)
    assert one.exclude(other).matches(id_, path) == (one - other).matches(id_, path)


def test_exclusions_are_kept():
    """M85, M86: the two cases in which Burn forgets them."""
    without_a = ParamGroup.all().exclude(ParamGroup.from_path("a"))

    assert not without_a.fuse(ParamGroup.from_path("b")).matches(1, "a")
    assert ParamGroup.all().exclude(without_a).matches(1, "a")


@given(words, words)
def test_a_piece_of_a_path_is_no_component(piece: str, path: str):
    """M89, M119: it matches wherever it stands, so it accepts what the whole path accepts."""
    assert ParamGroup.from_predicate(piece).matches(1, path) == (piece in path)
    assert ParamGroup.from_predicate(path).matches(1, path)


def test_a_bad_pattern_is_refused_when_the_group_is_made():
    """M83: naming it."""
    for make in (ParamGroup.from_regex, lambda pattern: ParamGroup.from_any_regexes(["a", pattern])):
        with pytest.raises(GroupError, match=r"'\(a' is no regular expression"):
            make("(a")


def test_one_text_is_not_taken_for_its_letters():
    """The lists of the plural forms hold strings."""
    for make in (ParamGroup.from_paths, ParamGroup.from_predicates, ParamGroup.from_any_regexes):
        with pytest.raises(GroupError, match="not the string 'abc' alone"):
            make("abc")
        with pytest.raises(GroupError, match="3 is no string"):
            make([3])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"ParamGroup\.all\(\)"):
        ParamGroup()


def test_the_ids_of_a_module_are_those_it_has_now():
    """M77, M90: running states and flags included; another version with other ids is not meant."""
    module = Block(2)
    group = ParamGroup.ids_from_module(module)
    others = module.replace(linear=Block(2).linear)

    assert group.paths(module) == ["linear.weight", "linear.bias", "steps", "training", "mean"]
    assert group.paths(others) == ["steps", "training", "mean"]
    assert all(group.matches(id_) for id_ in list_param_ids(module))


def test_after_a_load_a_group_of_ids_made_before_matches_no_parameter():
    """M90: they have the record's ids; flags and running states keep theirs, and paths go on matching."""
    module = Block(2)
    loaded = module.load_record(Block(2).into_record())

    assert ParamGroup.ids_from_module(module).paths(loaded) == ["training", "mean"]
    assert ParamGroup.from_predicate("linear").paths(loaded) == ["linear.weight", "linear.bias"]


def test_a_group_tells_what_it_matches_in_a_module():
    """M92: in visit order; constants are in no group."""
    module = Stack(2, ["cpu:0"])

    assert ParamGroup.from_predicate("linear").paths(module) == ["blocks.0.linear.weight", "blocks.0.linear.bias"]
    assert ParamGroup.from_ids([module.head.id]).paths(module) == ["blocks.0.linear.weight", "head"]
    assert "blocks.0.table" not in ParamGroup.all().paths(module)


def test_a_group_shows_how_it_was_made():
    """The text names constructors, arguments and operators."""
    group = (ParamGroup.from_path("a") | ParamGroup.from_predicate("b")) - ~ParamGroup.from_regex("^c")

    assert repr(group) == "((from_paths(['a']) | from_predicates(['b'])) - ~from_regexes(['^c']))"
    assert repr(ParamGroup.all() & ParamGroup.from_ids([1])) == "(all() & from_ids(['0400000000000']))"


def test_long_chains_of_operators_are_no_deep_nesting():
    """Unions, intersections and differences of thousands of groups match and show themselves."""
    names = [f"p{i}" for i in range(3000)]
    union = nothing = common = ParamGroup.from_path("first")
    for name in names:
        union |= ParamGroup.from_path(name)
        common &= ParamGroup.all()
        nothing -= ParamGroup.from_path(name)

    for path in ("first", "p0", "p2999"):
        assert union.matches(1, path)
    assert not union.matches(1, "p3000")
    assert common.matches(1, "first")
    assert nothing.matches(1, "first")
    assert not (nothing - ParamGroup.from_path("first")).matches(1, "first")
    assert repr(union).startswith("(from_paths(['first']) | from_paths(['p0']) | ")


@pytest.mark.parametrize("operator", [op.or_, op.and_, op.sub])
def test_operators_with_something_else_are_type_errors(operator: Any):
    """As Python's sets have it."""
    with pytest.raises(TypeError):
        operator(ParamGroup.all(), "x")


def test_matches_takes_an_id_and_says_so():
    """A path alone is a likely mistake."""
    with pytest.raises(TypeError, match=r"'abc': matches\(id, path\)"):
        ParamGroup.all().matches("abc")  # pyright: ignore[reportArgumentType]
