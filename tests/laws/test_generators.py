"""The generators are good: what they draw is valid, and what laws need to see is frequent enough.

Each strategy is drawn 500 times; the least share of each thing is stated. A
law over trees that hardly ever have a None before an item would let "numbering
skips None" live.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.independent_draws import drawn, share

from . import spec_tree
from .generators import Pool, special_patterns, trees, values
from .group_expressions import (
    Complement,
    Difference,
    Everything,
    Group,
    Intersection,
    Pieces,
    Union,
    atoms,
    matched,
)
from .group_generators import ATOMS as KINDS_OF_ATOM
from .group_generators import atoms_of, expressions, groups
from .layered_model import ModelAdapter
from .operations import AddConstant, Fork, Number, Op, ReplaceId, SetFlag, SetTrainable, ToDevice
from .programs import EVERY, MOVES, mappers, operation, programs
from .protocol import Grammar
from .spec_tree import (
    BOOLS,
    FLOATS,
    INTS,
    LAYOUTS,
    ConfigSpec,
    ConstantSpec,
    DictSpec,
    EnumSpec,
    FlagSpec,
    Node,
    OptionalSpec,
    ParamSpec,
    RunningSpec,
    SequenceSpec,
    SkipSpec,
    StructSpec,
    TreeSpec,
    Value,
    attached_to,
    children,
    leaves,
    numpy_dtype,
    places,
    present,
    tensors,
)

pytestmark = pytest.mark.suite

GRAMMAR: Final = ModelAdapter.grammar


@cache
def some_trees() -> list[TreeSpec]:
    return drawn(trees(GRAMMAR))


def nodes(spec: TreeSpec) -> list[tuple[str, Node]]:
    """Every node with its path, configuration included, an optional as what it holds and as itself."""
    found: list[tuple[str, Node]] = []

    def enter(node: Node, path: str) -> None:
        found.append((path, node))
        inner = present(node)
        if inner is not None and inner is not node:
            found.append((path, inner))
        for name, _, child in children(inner):
            enter(child, f"{path}.{name}" if path else name)

    enter(spec.root, "")
    return found


def has(of: type, /, **with_fields: Any) -> Callable[[TreeSpec], bool]:
    """Whether a tree has a node of a class, with these fields."""

    def holds(spec: TreeSpec) -> bool:
        return any(
            isinstance(node, of) and all(getattr(node, name) == value for name, value in with_fields.items())
            for _, node in nodes(spec)
        )

    return holds


def test_every_tree_is_valid() -> None:
    """One non-empty float parameter, one flag, unique paths, equal places tied, at most seven leaves but factors."""
    for spec in some_trees():
        seen = leaves(spec)
        assert any(isinstance(n, ParamSpec) and n.value.kind == "float" and n.value.size for n in seen.values())
        assert any(isinstance(n, FlagSpec) for n in seen.values())
        below = [path for held in attached_to(spec) for path in seen if path.startswith(f"{held}.")]
        assert 2 <= len(seen) - len(below) <= GRAMMAR.max_leaves
        paths = [path for path, _ in nodes(spec)]
        assert all(name and "." not in name for path in paths[1:] for name in path.split("."))
        for _, node in nodes(spec):
            names = [name for name, _, _ in children(node)]
            assert len(set(names)) == len(names)
        for group in spec.ties:
            assert len(group) > 1
            assert len({repr(places(spec)[path]) for path in group}) == 1
        for node in tensors(spec).values():
            assert len(node.value.data) == node.value.size * numpy_dtype(node.value.dtype).itemsize
            assert node.value.dtype not in BOOLS or set(node.value.data) <= {0, 1}


def test_a_tree_prints_as_the_python_that_rebuilds_it() -> None:
    for spec in some_trees():
        assert eval(repr(spec), dict(vars(spec_tree))) == spec


def test_a_grammar_is_obeyed() -> None:
    """What an implementation does not take is not drawn."""
    bare = Grammar(
        leaves=("flag",),
        containers=("struct", "list"),
        dtypes=("float32",),
        devices=("cpu:0",),
        autodiff=False,
        lazy=False,
        ties=False,
        absent=False,
        interleaved=False,
        max_rank=1,
        max_leaves=3,
    )
    for spec in drawn(trees(bare)):
        assert not spec.ties
        assert len(leaves(spec)) <= 3
        for path, node in nodes(spec):
            assert isinstance(node, (StructSpec, SequenceSpec, ParamSpec, FlagSpec)), (path, node)
            assert not isinstance(node, SequenceSpec) or node.kind == "list"
            if isinstance(node, ParamSpec):
                value = node.value
                assert (node.lazy, value.dtype, value.device, value.layout) == (False, "float32", "cpu:0", "dense")
                assert len(value.shape) <= 1
            if isinstance(node, StructSpec):
                below = [isinstance(child, (StructSpec, SequenceSpec)) for _, child in node.fields]
                assert below == sorted(below)


def gap(spec: TreeSpec) -> bool:
    """Whether a None stands before an item that is entered."""
    lists = (node for _, node in nodes(spec) if isinstance(node, SequenceSpec))
    return any(present(a) is None and present(b) is not None for n in lists for a, b in pairwise(n.items))


def unsorted_keys(spec: TreeSpec) -> bool:
    keys = ([key for key, _ in node.items] for _, node in nodes(spec) if isinstance(node, DictSpec))
    return any(names != sorted(names) for names in keys)


def depth(spec: TreeSpec) -> int:
    return max(len(path.split(".")) for path in leaves(spec))


def prefixes(spec: TreeSpec) -> bool:
    """Whether one name begins with another beside it."""
    beside = ([name for name, _, _ in children(node)] for _, node in nodes(spec))
    return any(a != b and b.startswith(a) for names in beside for a in names for b in names)


TREES: Final[dict[str, tuple[float, Callable[[TreeSpec], Any]]]] = {
    "three leaves or more": (0.5, lambda spec: len(leaves(spec)) >= 3),
    "five leaves or more": (0.15, lambda spec: len(leaves(spec)) >= 5),
    "flat": (0.05, lambda spec: depth(spec) == 1),
    "three levels or more": (0.3, lambda spec: depth(spec) >= 3),
    "a module in it": (0.25, lambda spec: any(path and isinstance(n, StructSpec) for path, n in nodes(spec))),
    "a list": (0.15, has(SequenceSpec, kind="list")),
    "a tuple": (0.15, has(SequenceSpec, kind="tuple")),
    "an array": (0.15, has(SequenceSpec, kind="array")),
    "a dict": (0.15, has(DictSpec)),
    "an enum": (0.1, has(EnumSpec)),
    "an optional module": (0.1, lambda spec: any(isinstance(n, OptionalSpec) and n.node for _, n in nodes(spec))),
    "an empty container or module": (
        0.1,
        lambda spec: any(p and not children(n) and n in EMPTY for p, n in nodes(spec)),
    ),
    "None": (0.3, has(OptionalSpec, node=None)),
    "None before an item": (0.15, gap),
    "keys that are not sorted": (0.02, unsorted_keys),
    "names that begin with each other": (0.2, prefixes),
    "ties": (0.25, lambda spec: spec.ties),
    "an integer parameter": (0.07, lambda spec: any(of_dtype(n, INTS) for _, n in nodes(spec))),
    "a boolean parameter": (0.07, lambda spec: any(of_dtype(n, BOOLS) for _, n in nodes(spec))),
    "a running state": (0.07, has(RunningSpec)),
    "a constant": (0.07, has(ConstantSpec)),
    "configuration": (0.07, has(ConfigSpec)),
    "a skipped field": (0.06, has(SkipSpec)),
    "a matrix with factors": (0.12, attached_to),
    "a lazy parameter": (0.4, has(ParamSpec, lazy=True)),
    "an initialised parameter": (0.4, has(ParamSpec, lazy=False)),
    "a parameter not to train": (0.25, has(ParamSpec, wish=False)),
    "two devices": (0.25, lambda spec: len(spec_tree.devices(spec)) > 1),
    "three devices": (0.03, lambda spec: len(spec_tree.devices(spec)) > 2),
    "autodiff only": (0.2, lambda spec: all(n.value.autodiff for n in tensors(spec).values())),
    "plain only": (0.2, lambda spec: not any(n.value.autodiff for n in tensors(spec).values())),
    "autodiff beside plain": (0.03, lambda spec: len({n.value.autodiff for n in tensors(spec).values()}) > 1),
}
EMPTY: Final = (StructSpec(()), DictSpec(()), *(SequenceSpec(kind, ()) for kind in ("list", "tuple", "array")))


def of_dtype(node: Node, dtypes: Iterable[str]) -> bool:
    return isinstance(node, ParamSpec) and node.value.dtype in dtypes


@pytest.mark.parametrize("what", TREES)
def test_trees_have(what: str) -> None:
    least, holds = TREES[what]
    assert share(some_trees(), holds) >= least


@st.composite
def some_value(draw: DrawFn, kind: str) -> Value:
    return values(draw, GRAMMAR, kind, Pool(("cpu:0",), "plain"))


@pytest.mark.parametrize(("kind", "dtypes"), [("float", FLOATS), ("int", INTS), ("bool", BOOLS)])
def test_every_dtype_and_layout_occurs(kind: str, dtypes: Sequence[str]) -> None:
    found = drawn(some_value(kind))

    assert {value.dtype for value in found} == set(dtypes)
    for layout in LAYOUTS:
        assert share(found, lambda value, layout=layout: value.layout == layout) >= 0.05


def test_shapes_are_mostly_matrices_and_sometimes_empty() -> None:
    found = [node.value.shape for spec in some_trees() for node in tensors(spec).values()]

    assert share(found, lambda shape: len(shape) == 2) >= 0.35
    assert share(found, lambda shape: len(shape) > 2) >= 0.1
    assert 0.03 <= share(found, lambda shape: shape == ()) <= 0.2
    assert 0.03 <= share(found, lambda shape: 0 in shape) <= 0.2


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_patterns_are_what_they_should_be(dtype: str) -> None:
    """Signed zeros, subnormals, the ends of the range, infinities, quiet and signalling NaNs with payload."""
    patterns = special_patterns(dtype)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        numbers = np.frombuffer(b"".join(patterns), numpy_dtype(dtype)).astype(np.float64)

    assert len(set(patterns)) == len(patterns) == 22
    assert np.isnan(numbers).sum() == 4
    assert np.isinf(numbers).sum() == 2
    assert (numbers == 0).sum() == 2
    assert {1.0, -1.0} <= set(numbers)
    assert np.signbit(numbers).sum() == 11


def test_values_hold_special_patterns_and_differ_by_position() -> None:
    values = [node.value for spec in some_trees() for node in tensors(spec).values()]
    floats = [value for value in values if value.kind == "float" and value.size]
    large = [value for value in floats if value.size > 4]

    with np.errstate(invalid="ignore"):
        assert share(floats, lambda value: not np.isfinite(value.numpy()).all()) >= 0.05
    assert share(large, lambda value: len({value.numpy().ravel()[k].tobytes() for k in range(value.size)}) > 4) >= 0.8


def test_lazy_trees_have_a_lazy_float_and_tied_trees_a_tie() -> None:
    for spec in drawn(trees(GRAMMAR, lazy=True)):
        assert any(isinstance(n, ParamSpec) and n.lazy and n.value.kind == "float" for n in leaves(spec).values())
    for spec in drawn(trees(GRAMMAR, tied=True)):
        tied = [leaves(spec).get(group[0]) for group in spec.ties]
        assert any(isinstance(node, ParamSpec) and node.value.kind == "float" for node in tied)


def test_several_devices_are_different_ones() -> None:
    for spec in drawn(trees(GRAMMAR, min_devices=3)):
        assert len(spec_tree.devices(spec)) >= 2


def numbered(spec: TreeSpec) -> dict[str, int]:
    """Ids for the leaves of a tree: its number among them, that of the first for tied ones."""
    paths = list(leaves(spec))
    return {path: paths.index(next(p for p in paths if p in spec_tree.tied_with(spec, path))) for path in paths}


# Of groups for operations three in five have a leaf inside and one outside; of expressions, which say more, a third.
@pytest.mark.parametrize(("strategy", "least"), [(groups, 0.6), (expressions, 0.35)])
def test_a_group_mostly_has_a_leaf_inside_and_one_outside(strategy: Callable[..., Any], least: float) -> None:
    found = drawn(trees(GRAMMAR).flatmap(lambda spec: st.tuples(st.just(spec), strategy(spec))))
    insides = [(len(matched(group, numbered(spec))), len(leaves(spec))) for spec, group in found]

    assert share(insides, lambda counts: 0 < counts[0] < counts[1]) >= least
    assert share(insides, lambda counts: counts[0] == counts[1]) >= 0.03
    assert share(insides, lambda counts: counts[0] == 0) >= 0.03


@cache
def some_atoms() -> list[tuple[TreeSpec, Group]]:
    return drawn(trees(GRAMMAR).flatmap(lambda spec: atoms_of(spec).map(lambda atom: (spec, atom))))


@pytest.mark.parametrize("kind", list(dict.fromkeys(KINDS_OF_ATOM)))
def test_every_kind_of_atom_matches_some_leaves_and_not_others(kind: type) -> None:
    found = some_atoms()
    of_kind = [(spec, atom) for spec, atom in found if isinstance(atom, kind)]

    assert len(of_kind) >= 0.05 * len(found)
    if kind is not Everything:
        assert share(of_kind, lambda case: 0 < len(matched(case[1], numbered(case[0]))) < len(leaves(case[0]))) >= 0.25


def test_pieces_match_and_just_miss() -> None:
    """Whole paths, beginnings, ends, insides; and texts with one letter changed, which match nothing."""
    pieces = [(spec, piece) for spec, atom in some_atoms() if isinstance(atom, Pieces) for piece in atom.pieces]

    def among(case: tuple[TreeSpec, str], holds: Callable[[str, str], bool]) -> bool:
        return any(holds(path, case[1]) for path in leaves(case[0]))

    for holds in (str.__eq__, str.startswith, str.endswith, str.__contains__):
        assert share(pieces, lambda case, holds=holds: among(case, holds)) >= 0.15
    assert share(pieces, lambda case: not among(case, str.__contains__)) >= 0.15


def test_expressions_have_every_operator() -> None:
    found = drawn(trees(GRAMMAR).flatmap(lambda spec: expressions(spec, 4)))

    for kind in (Union, Difference, Intersection, Complement):
        assert share(found, lambda group, kind=kind: has_node(group, kind)) >= 0.15
    assert share(found, lambda group: len(list(atoms(group))) >= 3) >= 0.2


def has_node(group: Group, kind: type) -> bool:
    """Whether an expression has an operator of a class."""
    inner = [getattr(group, name) for name in ("one", "other") if hasattr(group, name)]
    return isinstance(group, kind) or any(has_node(one, kind) for one in inner)


def test_mappers_edit_all_there_is() -> None:
    found = drawn(trees(GRAMMAR).flatmap(lambda spec: mappers(spec)))

    for kind in (SetTrainable, AddConstant, ReplaceId, SetFlag, Number):
        assert share(found, lambda mapper, kind=kind: any(isinstance(edit, kind) for edit in mapper)) >= 0.06


def moves_something(case: tuple[TreeSpec, Op]) -> bool:
    spec, move = case
    assert isinstance(move, (Fork, ToDevice))
    return any(node.value.hardware != move.device.removesuffix("+autodiff") for node in tensors(spec).values())


def test_moves_mostly_move_something() -> None:
    found = drawn(trees(GRAMMAR, min_devices=2).flatmap(lambda s: operation(Fork, s, GRAMMAR).map(lambda o: (s, o))))
    assert share(found, moves_something) >= 0.5


def test_programs_have_moves_maps_and_branches() -> None:
    """And every operation occurs; most steps are on the newest version."""
    found = drawn(programs(ModelAdapter(), EVERY))
    steps = [step for program in found for step in program.steps]

    assert {type(step) for _, step in steps} == set(EVERY)
    assert share(steps, lambda step: step[0] == 0) >= 0.25
    assert share(found, lambda program: any(back for back, _ in program.steps)) >= 0.3
    assert share(found, lambda program: sum(isinstance(step, MOVES) for _, step in program.steps) >= 1) >= 0.15
    assert share(found, lambda program: len(program.steps) >= 3) >= 0.35
