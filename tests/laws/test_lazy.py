"""Laws of laziness (L19 to L20, L22 to L25). L21 and L26 look at threads: `tests/modules/test_lazy_threads.py`.

Initialisers count their runs and give another value in each: with a constant
initialiser, "each clone runs its own" survives. Where none may run, all raise.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from . import expected
from .calls import all_bits, applied, built, output, read, runs
from .generators import pick, trees
from .group_expressions import Paths
from .law import law
from .observations import Bits, Meta, ValueMeta
from .operations import (
    Clone,
    CollectDevices,
    CountParams,
    Display,
    Force,
    Fork,
    Freeze,
    LoadRecord,
    Map,
    NoGrad,
    Op,
    SetRequireGrad,
    SetTrainable,
    ToDevice,
    ToRecord,
    Train,
    Unfreeze,
    Valid,
    Visit,
)
from .programs import MOVES, SWITCHES, Program, offered, operation, programs, some_paths
from .protocol import Adapter, Handle, Refused
from .spec_tree import (
    ALWAYS,
    DictSpec,
    EnumSpec,
    Node,
    OptionalSpec,
    ParamSpec,
    SequenceSpec,
    StructSpec,
    TreeSpec,
    lazy_paths,
    leaves,
    tied_with,
)
from .subject import subject


def with_params(spec: TreeSpec, change: Callable[[ParamSpec], ParamSpec]) -> TreeSpec:
    """The tree with each parameter changed."""

    def of(node: Node) -> Node:
        match node:
            case ParamSpec(attached=(name, held)):
                return replace(change(node), attached=(name, struct(held)))
            case ParamSpec():
                return change(node)
            case StructSpec(fields, name):
                return StructSpec(tuple((field, of(child)) for field, child in fields), name)
            case DictSpec(items):
                return DictSpec(tuple((key, of(child)) for key, child in items))
            case SequenceSpec(kind, items):
                return SequenceSpec(kind, tuple(map(of, items)))
            case EnumSpec(variant, held, name):
                return EnumSpec(variant, struct(held), name)
            case OptionalSpec(held) if held is not None:
                return OptionalSpec(of(held))
        return node

    def struct(node: StructSpec) -> StructSpec:
        return StructSpec(tuple((field, of(child)) for field, child in node.fields), node.name)

    return TreeSpec(struct(spec.root), spec.ties)


def param_at(spec: TreeSpec, path: str) -> ParamSpec:
    """The parameter at a path."""
    node = leaves(spec)[path]
    assert isinstance(node, ParamSpec)
    return node


def raising(spec: TreeSpec) -> TreeSpec:
    """The tree with initialisers that never give a value."""
    return with_params(spec, lambda param: replace(param, fails=ALWAYS) if param.lazy else param)


def eager(spec: TreeSpec) -> TreeSpec:
    """The tree with every value made."""
    return with_params(spec, lambda param: replace(param, lazy=False))


def lazy_tree(adapter: Adapter) -> Any:
    return trees(adapter.grammar, lazy=True)


def without_effect(meta: Meta) -> Meta:
    """Without effective trainability, in which a moved lazy parameter differs from a moved value (D3, L23)."""
    blank = (replace(value, requires_grad=None) if isinstance(value, ValueMeta) else value for value in meta.values)
    return replace(meta, values=tuple(blank))


FREE: tuple[type[Op], ...] = (
    *(Visit, CountParams, CollectDevices, Display, Clone, Map, Train, Valid, Fork, ToDevice),
    *(NoGrad, SetRequireGrad, Freeze, Unfreeze),
)
"""M25's second list, as far as it is calls of a module: none of these makes a value."""


@law("L19", needs=("lazy",), each=("kind", offered(subject(), FREE)), spec=lazy_tree, data=lambda a: st.data())
def test_what_needs_no_value_makes_none(adapter: Adapter, kind: type[Op], spec: TreeSpec, data: Any) -> None:
    """And says what the same call says of a module whose values exist (M25, M38, M63, M99, M103)."""
    call = data.draw(operation(kind, spec, adapter.grammar, adds=False))
    lazy, made = built(adapter, raising(spec)), built(adapter, eager(spec))
    unmade = adapter.meta(lazy).lazy()

    free, paid = adapter.apply(lazy, call), adapter.apply(made, call)

    assert not isinstance(free, Refused), free.message
    assert not isinstance(paid, Refused), paid.message
    assert set(runs(adapter, lazy, spec).values()) == {0}
    assert adapter.meta(free.handle).lazy() == unmade
    assert free.output == paid.output or kind is Map  # a map shows ids, which differ from build to build
    of_lazy, of_made = (adapter.meta(answer.handle).numbered().settled() for answer in (free, paid))
    if kind is ToDevice:  # a moved value is no leaf, a moved lazy parameter is (M41, D3)
        of_lazy, of_made = without_effect(of_lazy), without_effect(of_made)
    assert of_lazy == of_made


QUIET = (Clone, Map, *MOVES, *SWITCHES)


@law(
    "L20",
    needs=("lazy",),
    program=lambda a: programs(a, (*QUIET, Force), adds=False, lazy=True),
    fails=lambda a: st.sampled_from((0, 0, 1, 2)),
    data=lambda a: st.data(),
)
def test_an_initialiser_succeeds_once_for_all_versions(
    adapter: Adapter, program: Program, fails: int, data: Any
) -> None:
    """Whoever reads first, all read the same bits; one that raised runs again for the next reader (M24, M47, D6)."""
    spec = with_params(program.spec, lambda param: replace(param, fails=fails))
    versions = [built(adapter, spec)]
    for back, step in program.steps:
        answer = adapter.apply(versions[max(0, len(versions) - 1 - back)], step)
        if step.gives_module and not isinstance(answer, Refused):
            versions.append(answer.handle)
    event(f"versions: {len(versions)}")

    values = {path: node.value for path, node in leaves(spec).items() if isinstance(node, ParamSpec) and node.lazy}
    for index, path in data.draw(st.permutations([(i, p) for i in range(len(versions)) for p in values])):
        bits = adapter.bits(versions[index], path)
        while isinstance(bits, Refused):
            assert (bits.kind, adapter.runs(versions[index], path) <= fails) == ("initialiser", True)
            bits = adapter.bits(versions[index], path)
        assert bits == expected.bits(values[path], fails)
    assert set(runs(adapter, versions[-1], spec).values()) == {fails + 1}


@law(
    "L22",
    needs=("lazy", "records"),
    program=lambda a: programs(a, QUIET, adds=False, lazy=True, max_steps=4),
    at=lambda a: st.integers(0, 4),
)
def test_loading_runs_no_initialiser(adapter: Adapter, program: Program, at: int) -> None:
    """Before or after, moved or not (M25, R21)."""
    spec = program.spec
    record = output(adapter, built(adapter, eager(spec)), ToRecord())
    module = first = built(adapter, raising(spec))
    steps: list[Op] = [step for _, step in program.steps]
    steps.insert(at, LoadRecord(record))
    for step in steps:
        answer = adapter.apply(module, step)
        assert not isinstance(answer, Refused) or answer.kind == "autodiff"
        module = module if isinstance(answer, Refused) else answer.handle

    assert {entry.path: read(adapter, module, entry.path) for entry in record.entries} == {
        entry.path: entry.bits for entry in record.entries
    }
    assert set(runs(adapter, module, spec).values()) == {0}
    assert adapter.meta(first).lazy() == set(lazy_paths(spec))


@st.composite
def read_twice(draw: DrawFn, adapter: Adapter) -> tuple[Program, tuple[dict[str, int], ...]]:
    """A program that switches a lazy parameter; and twice, before which of its steps each lazy parameter is read."""
    program = draw(programs(adapter, (Clone, Map, Fork, *SWITCHES), lazy=True))
    lazy = lazy_paths(program.spec)
    floats = [path for path in lazy if param_at(program.spec, path).value.kind == "float"]
    switch = Map(((SetTrainable(pick(draw, floats), draw(st.booleans())),),))
    at = draw(st.integers(0, len(program.steps)))
    steps = (*program.steps[:at], (0, switch), *program.steps[at:])
    before = st.integers(0, len(steps))
    return Program(program.spec, steps), tuple({path: draw(before) for path in lazy} for _ in range(2))


@law("L23", needs=("lazy", "map"), case=read_twice)
def test_it_does_not_matter_when_a_value_is_made(adapter: Adapter, case: Any) -> None:
    """Bits, ids, devices, configured state and flags are the same in the end (M26, M46, M47, M63; for `e` see D3)."""
    program, both = case

    def run(reads: dict[str, int]) -> tuple[Meta, dict[str, Bits]]:
        module = built(adapter, program.spec)
        for at, (_, step) in enumerate(program.steps):
            for path in (path for path, point in reads.items() if point == at):
                read(adapter, module, path)
            module = applied(adapter, module, step)
        bits = all_bits(adapter, module, program.spec)
        return without_effect(adapter.meta(module).numbered()), bits

    assert run(both[0]) == run(both[1])


def tree_and_lazy_path(adapter: Adapter) -> Any:
    return lazy_tree(adapter).flatmap(lambda spec: st.tuples(st.just(spec), st.sampled_from(lazy_paths(spec))))


@law("L24", needs=("lazy",), case=tree_and_lazy_path)
def test_reading_a_parameter_makes_that_one_only(adapter: Adapter, case: tuple[TreeSpec, str]) -> None:
    """And those tied to it (M25)."""
    spec, path = case
    module = built(adapter, spec)
    read(adapter, module, path)

    made = tied_with(spec, path)
    assert adapter.meta(module).lazy() == {other for other in lazy_paths(spec) if other not in made}
    assert runs(adapter, module, spec) == {other: int(other in made) for other in lazy_paths(spec)}


@law(
    "L24",
    needs=("lazy", "records", "groups"),
    case=lambda a: lazy_tree(a).flatmap(lambda s: st.tuples(st.just(s), some_paths(list(leaves(s))))),
)
def test_a_group_record_makes_what_the_group_matches_only(
    adapter: Adapter, case: tuple[TreeSpec, tuple[str, ...]]
) -> None:
    """Rule R6."""
    spec, paths = case
    module = built(adapter, spec)
    record = output(adapter, module, ToRecord(Paths(paths)))

    assert {entry.path for entry in record.entries} <= set(paths)
    made = {other for path in paths for other in tied_with(spec, path)}
    assert adapter.meta(module).lazy() == set(lazy_paths(spec)) - made


def switches_of(path: str, value: bool) -> tuple[Op, ...]:
    """Ways to ask that the parameter at a path trains, or does not: by a map, by a group, with all others."""
    grouped, whole = (Unfreeze(Paths((path,))), Unfreeze()) if value else (Freeze(Paths((path,))), Freeze())
    mapper = Map(((SetTrainable(path, value),),))
    return mapper, SetRequireGrad(value, Paths((path,))), SetRequireGrad(value), grouped, whole


@law(
    "L25",
    needs=("lazy", "map", "state.params", "state.flags", "groups"),
    spec=lazy_tree,
    which=lambda a: st.booleans(),
    first=lambda a: st.booleans(),
    way=lambda a: st.integers(0, 4),
)
def test_a_wish_to_train_belongs_to_the_clone(
    adapter: Adapter, spec: TreeSpec, which: bool, first: bool, way: int
) -> None:
    """Switching one clone of a lazy parameter changes nothing of the other, before and after both have values (M27)."""
    path = next(path for path in lazy_paths(spec) if param_at(spec, path).value.kind == "float")
    module = built(adapter, spec)
    pair: list[Handle] = [module, applied(adapter, module, Clone())]
    other, switched = pair[which], pair[not which]
    before = adapter.meta(other)
    wish = next(value for value in before.values if value.path == path).trainable  # pyright: ignore

    switched = applied(adapter, switched, switches_of(path, not wish)[way])
    assert adapter.meta(other) == before

    for reader in (other, switched) if first else (switched, other):
        read(adapter, reader, path)
    made = {place: value for value in adapter.meta(other).settled().values for place in [value.path]}
    assert made == {value.path: value for value in before.settled().values}
    value = next(value for value in adapter.meta(switched).values if value.path == path)
    assert isinstance(value, ValueMeta)
    assert (value.trainable, value.requires_grad) == (not wish, value.autodiff and not wish)
