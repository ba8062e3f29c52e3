"""Laws of operations on groups (L50 to L52): they concern what the group matches, and nothing else."""

from typing import Any, Final

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from . import operations as op
from .calls import Observation, applied, built, observed, output
from .generators import pick, trees
from .group_expressions import (
    EVERYTHING,
    Complement,
    Difference,
    Group,
    IdsAt,
    IdsOfPart,
    Kept,
    Paths,
    Union,
    matched,
)
from .group_generators import Matchable, chosen, groups
from .law import law
from .observations import FlagMeta, ValueMeta
from .programs import IDS, offered
from .protocol import Adapter
from .schemes import Scheme
from .spec_tree import ParamSpec, TreeSpec, leaves
from .test_tree import tree_and

NONE: Final = Complement(EVERYTHING)

BY_GROUP: Final = (op.SetRequireGrad, op.Freeze, op.Unfreeze)


def call_on(kind: Any, group: Group | None, value: bool) -> op.Op:
    """An operation of a class; `value` is what `SetRequireGrad` sets. Quantization is one that no value refuses."""
    if kind is op.Quantize:
        return op.Quantize(Scheme("Q8S"), "MinMax", group, allow_nonfinite=True)
    return kind(value, group) if kind is op.SetRequireGrad else kind(group)


@st.composite
def grouped(draw: DrawFn, kind: Any, group: Group) -> op.Op:
    """An operation of a class on a group."""
    return call_on(kind, group, draw(st.booleans()))


def with_flags(kind: type[op.Op]) -> bool:
    return kind is not op.SetRequireGrad


def differences(before: Observation, after: Observation) -> set[str]:
    """Paths at which something is to be seen that was not."""
    metas = {now.path for was, now in zip(before.meta.values, after.meta.values, strict=True) if was != now}
    bits = {path for path in {*before.bits, *after.bits} if before.bits.get(path) != after.bits.get(path)}
    return metas | bits


@law(
    "L50",
    needs=("groups", "state.params", "state.flags"),
    each=("kind", BY_GROUP),
    case=tree_and(groups),
    value=lambda a: st.booleans(),
)
def test_a_group_operation_changes_the_matched_leaves_and_no_other(
    adapter: Adapter, kind: Any, case: tuple[TreeSpec, Group], value: bool
) -> None:
    """Of float parameters `a` and `e`, of flags `f` and `fa` if it writes flags; all matched ones (M52, M91).

    Before, all are as the operation does not leave them, so that each change shows.
    """
    spec, group = case
    on = value if kind is op.SetRequireGrad else kind is op.Unfreeze
    contrary = op.Freeze() if on else op.Unfreeze()
    module = applied(adapter, built(adapter, spec), contrary)
    call = call_on(kind, group, value)
    before = observed(adapter, module, spec)

    after = observed(adapter, applied(adapter, module, call), spec)

    def concerned(value: ValueMeta | FlagMeta) -> bool:
        if isinstance(value, FlagMeta):
            return with_flags(kind)
        return isinstance(leaves(spec)[value.path], ParamSpec) and value.kind == "float"

    inside = set(matched(group, before.meta.ids()))
    event(f"inside: {'all' if len(inside) == len(before.meta.values) else 'some' if inside else 'none'}")
    assert differences(before, after) == {v.path for v in before.meta.values if concerned(v) and v.path in inside}
    assert after.meta.skeleton == before.meta.skeleton
    for seen in after.meta.values:
        if concerned(seen) and seen.path in inside:
            states = (seen.trainable,) if isinstance(seen, ValueMeta) else (seen.enabled, seen.configured)
            assert set(states) == {on}


@law("L50", needs=("groups", "records"), case=tree_and(groups))
def test_a_group_record_holds_the_matched_leaves(adapter: Adapter, case: tuple[TreeSpec, Group]) -> None:
    """Flags that it matches it ignores (M91, R6)."""
    spec, group = case
    module = built(adapter, spec)
    inside = matched(group, adapter.meta(module).ids())

    record = output(adapter, module, op.ToRecord(group))

    flags = {value.path for value in adapter.meta(module).values if isinstance(value, FlagMeta)}
    assert [entry.path for entry in record.entries] == [path for path in inside if path not in flags]


@st.composite
def two_calls(draw: DrawFn, adapter: Adapter) -> Any:
    """A tree, two groups, and two calls: each the operation that it makes of a group."""
    spec = draw(trees(adapter.grammar))
    one, other = draw(groups(spec)), draw(groups(spec))
    kinds = [pick(draw, offered(adapter, (*BY_GROUP, op.Quantize))) for _ in range(2)]
    return spec, one, other, *(draw(grouped(kind, one)) for kind in kinds)


def on(call: Any, group: Group | None) -> op.Op:
    """The same call of another group."""
    return call_on(type(call), group, getattr(call, "value", False))


@law("L51", needs=("groups", "state.params", "state.flags"), case=two_calls)
def test_operations_on_groups_split_and_commute(adapter: Adapter, case: Any) -> None:
    """On g | h as on g, then on h; on disjoint groups in any order; on all as without group; on none not at all (M113).

    Ids do not change, so groups by ids are the same afterwards.
    """
    spec, g, h, call, other = case
    module = built(adapter, spec)

    def after(*calls: op.Op) -> Any:
        made = module
        for one in calls:
            made = applied(adapter, made, one)
        seen = observed(adapter, made, spec)
        return seen.meta.values, seen.meta.skeleton, seen.bits

    assert after(on(call, Union(g, h))) == after(on(call, g), on(call, h))
    rest = Difference(h, g)
    assert after(on(call, g), on(other, rest)) == after(on(other, rest), on(call, g))
    assert after(on(call, EVERYTHING)) == after(on(call, None))
    assert after(on(call, NONE)) == after()


@st.composite
def parts_of(draw: DrawFn, spec: TreeSpec) -> str:
    """The path of a module in the tree; the tree's own if there is no other."""
    return pick(draw, Matchable(spec).parts[::-1])


@law("L52", needs=("groups", "records"), case=tree_and(parts_of))
def test_ids_are_a_snapshot_and_paths_are_not(adapter: Adapter, case: tuple[TreeSpec, str]) -> None:
    """The ids of a part are those of its leaves now, flags and running states included (M77).

    A load gives parameters the ids of the record: the group made before matches
    none of them, one made now all; the part's paths match as ever (M90).
    """
    spec, part = case
    module = built(adapter, spec)
    output(adapter, module, op.KeepGroup("kept", IdsOfPart(part)))
    inside = {path for path in leaves(spec) if not part or path.startswith(f"{part}.")}
    ids = adapter.meta(module).ids()
    tied = {path for path in leaves(spec) if ids[path] in {ids[other] for other in inside}}
    assert set(output(adapter, module, op.PathsOfGroup(Kept("kept")))) == tied
    event(f"part: {'all' if len(tied) == len(ids) else 'some'}")

    record = output(adapter, built(adapter, spec), op.ToRecord())
    loaded = applied(adapter, module, op.LoadRecord(record))

    params = {path for path, node in leaves(spec).items() if isinstance(node, ParamSpec)}
    assert set(output(adapter, loaded, op.PathsOfGroup(Kept("kept")))) == tied - params
    assert set(output(adapter, loaded, op.PathsOfGroup(IdsOfPart(part)))) == tied
    assert set(output(adapter, loaded, op.PathsOfGroup(Paths(tuple(inside))))) == inside
    assert set(output(adapter, module, op.PathsOfGroup(Kept("kept")))) == tied


@law("L52", needs=("groups", "map"), case=tree_and(lambda spec: some_owned(spec)), number=lambda a: IDS)
def test_a_group_of_ids_follows_the_ids(adapter: Adapter, case: tuple[TreeSpec, Any], number: int) -> None:
    """A leaf whose id a mapper replaces is no longer in it; its path still is in a group of paths (M90)."""
    spec, (paths, changed) = case
    module = built(adapter, spec)
    output(adapter, module, op.KeepGroup("kept", IdsAt(paths)))
    before = output(adapter, module, op.PathsOfGroup(Kept("kept")))

    renamed = applied(adapter, module, op.Map(((op.ReplaceId(changed, number),),)))

    kept = adapter.meta(module).ids()
    assert set(output(adapter, renamed, op.PathsOfGroup(Kept("kept")))) == set(before) - (
        {changed} if number not in {kept[path] for path in paths} else set()
    )
    assert set(output(adapter, renamed, op.PathsOfGroup(Paths(paths)))) == set(paths)


@st.composite
def some_owned(draw: DrawFn, spec: TreeSpec) -> tuple[tuple[str, ...], str]:
    """Some leaves, and one of them that is no running state."""
    owned = [path for path, node in leaves(spec).items() if isinstance(node, ParamSpec)]
    paths = chosen(draw, list(leaves(spec)))
    path = pick(draw, owned)
    return tuple(dict.fromkeys((*paths, path))), path
