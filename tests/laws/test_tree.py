"""Laws of the tree, of visit and of map (L1 to L9); `test_versions` has L10 to L13.

Nothing is sorted in a comparison: that would hide L5 and L8. What is compared
includes the skeleton: without it, "map drops None" survives.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import event
from hypothesis import strategies as st

from . import expected
from .calls import all_bits, applied, built, events, mapped_events, observed, output, read, runs
from .generators import trees
from .law import law
from .operations import Clone, CollectDevices, CountParams, LoadRecord, Map, Mapper, ToRecord
from .programs import MOVES, SWITCHES, Program, mappers, programs
from .protocol import Adapter, Refused
from .spec_tree import (
    DictSpec,
    Enter,
    EnumSpec,
    Event,
    Exit,
    FlagSpec,
    Node,
    OptionalSpec,
    ParamSpec,
    RunningSpec,
    Seen,
    SequenceSpec,
    StructSpec,
    TreeSpec,
    Value,
    attached_to,
    leaves,
    num_params,
    tensors,
    walk,
)


def any_tree(adapter: Adapter) -> Any:
    return trees(adapter.grammar)


def tree_and(*more: Any) -> Any:
    """A tree, and what else is drawn for it, as one tuple."""

    def draw(adapter: Adapter) -> Any:
        return trees(adapter.grammar).flatmap(lambda spec: st.tuples(st.just(spec), *(make(spec) for make in more)))

    return draw


@law("L1", needs=("map",), spec=any_tree)
def test_the_identity_map_changes_nothing_and_makes_nothing(adapter: Adapter, spec: TreeSpec) -> None:
    """Equal meta: skeleton, order, ids, lazy state, ties; equal bits (M13, M19, M110)."""
    module = built(adapter, spec)
    before = observed(adapter, module, spec)

    assert observed(adapter, applied(adapter, module, Map()), spec) == before
    assert set(runs(adapter, module, spec).values()) <= {0}


@law("L2", needs=("map",), case=tree_and(lambda spec: mappers(spec, 1), lambda spec: mappers(spec, 1)))
def test_mapping_twice_is_mapping_once_by_the_composition(
    adapter: Adapter, case: tuple[TreeSpec, Mapper, Mapper]
) -> None:
    """Same meta and bits, and each mapper, those with state too, is shown the same (path, kind, id) (M12 to M16).

    A running state keeps its id whatever a mapper returns (M95), so its id is
    not compared.
    """
    spec, first, second = case
    module = built(adapter, spec)

    halfway = applied(adapter, module, Map((first,)))
    twice = applied(adapter, halfway, Map((second,)))
    once = applied(adapter, module, Map((first, second)))

    assert adapter.meta(twice) == adapter.meta(once)
    assert all_bits(adapter, twice, spec) == all_bits(adapter, once, spec)
    shown = [output(adapter, module, Map((first,)))[1][0], output(adapter, halfway, Map((second,)))[1][0]]
    composed = output(adapter, module, Map((first, second)))[1]
    running = {path for path, node in leaves(spec).items() if isinstance(node, RunningSpec)}
    for alone, together in zip(shown, composed, strict=True):
        assert [(p, k, i * (p not in running)) for p, k, i in alone] == [
            (p, k, i * (p not in running)) for p, k, i in together
        ]


@law("L3", "L4", "L5", needs=("visit", "map", "order"), spec=any_tree)
def test_visit_and_map_make_the_walk_of_the_spec_tree(adapter: Adapter, spec: TreeSpec) -> None:
    """The same hooks with the same arguments in declaration order; enter and exit nest (M2, M6 to M9, M14, M111)."""
    module = built(adapter, spec)
    event(f"leaves: {len(leaves(spec))}")

    assert events(adapter, module) == walk(spec)
    assert mapped_events(adapter, module) == walk(spec)


@law("L5", needs=("visit", "order"), spec=any_tree)
def test_a_fresh_module_is_what_the_spec_tree_says(adapter: Adapter, spec: TreeSpec) -> None:
    """Paths, kinds, shapes, dtypes, devices, laziness, training state, skeleton, ties; then every bit (M2 to M8)."""
    module = built(adapter, spec)
    meta = adapter.meta(module)

    assert meta == expected.meta(spec, meta.ids())
    assert all_bits(adapter, module, spec) == {path: expected.bits(n.value) for path, n in tensors(spec).items()}
    assert output(adapter, module, CountParams()) == num_params(spec)


@law("L4", needs=("visit", "map"), spec=any_tree)
def test_enter_and_exit_nest_and_give_each_leaf_its_path(adapter: Adapter, spec: TreeSpec) -> None:
    """A stack kept from enter and exit alone spells every path, and is empty at the end (M9, M14)."""
    module = built(adapter, spec)
    for seen in (events(adapter, module), mapped_events(adapter, module)):
        stack: list[tuple[str, str]] = []
        for one in seen:
            match one:
                case Enter(name, container):
                    stack.append((name, container))
                case Exit(name, container):
                    assert stack.pop() == (name, container)
                case Seen(_, path):
                    assert path == ".".join(name for name, _ in stack)
        assert stack == []


@law("L6", needs=("visit",), spec=any_tree)
def test_no_path_occurs_twice_and_none_lies_inside_another(adapter: Adapter, spec: TreeSpec) -> None:
    """Names that begin with each other and digits as keys do not confuse paths (M8, M10).

    But for what is attached to a parameter, which is below it under its NAME (A5).
    """
    paths = [one.path for one in events(adapter, built(adapter, spec)) if isinstance(one, Seen)]
    names = {path: name for path, (name, _) in attached_to(spec).items()}

    assert len(set(paths)) == len(paths)
    inside = [(p, q) for p in paths for q in paths if q.startswith(f"{p}.")]
    event(f"inside another: {bool(inside)}")
    assert all(p in names and q.startswith(f"{p}.{names[p]}.") for p, q in inside)


@law("L8", needs=("visit", "map"), program=lambda a: programs(a, (Clone, Map, *MOVES, *SWITCHES)))
def test_the_order_never_changes(adapter: Adapter, program: Program) -> None:
    """Over repeated visits, clones, moves, switches and maps; it is that of declaration, never sorted (M2)."""
    module = built(adapter, program.spec)
    for _, step in program.steps:
        answer = adapter.apply(module, step)
        module = module if isinstance(answer, Refused) else answer.handle
        assert events(adapter, module) == walk(program.spec)


@law("L8", needs=("visit", "records"), spec=any_tree)
def test_the_order_survives_a_record(adapter: Adapter, spec: TreeSpec) -> None:
    """A record lists what visitors see, in that order, and loading it keeps it (M2, R2)."""
    module = built(adapter, spec)
    record = output(adapter, module, ToRecord())

    assert [entry.path for entry in record.entries] == [
        one.path for one in walk(spec) if isinstance(one, Seen) and one.kind != "flag"
    ]
    assert events(adapter, applied(adapter, module, LoadRecord(record))) == walk(spec)


_PRINT_WALK = """
import sys
from tests.laws import spec_tree
from tests.laws.calls import built, events
from tests.laws.subject import subject
print(events(subject(), built(subject(), eval(sys.stdin.read(), vars(spec_tree)))))
"""


@law("L8", needs=("visit", "order"))
def test_the_order_does_not_depend_on_the_seed_of_hashes(adapter: Adapter) -> None:
    """Two processes with different seeds walk alike: nothing goes through a set (M2)."""
    weight = ParamSpec(Value("float32", (1,), bytes(4)))
    keys = ("b", "a", "10", "9", "weight", "ключ")
    inner = DictSpec(tuple((key, SequenceSpec("list", (weight, OptionalSpec(), FlagSpec(True)))) for key in keys))
    spec = TreeSpec(StructSpec((("z", inner), ("a", weight)), "Root"))
    walks = {
        subprocess.run(
            [sys.executable, "-c", _PRINT_WALK],
            input=repr(spec),
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONUTF8": "1"},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            encoding="utf-8",
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "2")
    }

    assert walks == {repr(walk(spec))}


# Names

WEIGHT = ParamSpec(Value("float32", (1,), b"\x00\x00\x80\x3f"))
PLACES = ("field", "key", "variant")
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="."), min_size=1)


def _named(place: str, name: str) -> tuple[TreeSpec, str]:
    """A module with a component of that name, as a field, a dict's key or a variant; and the path of its weight."""
    if place == "field":
        return TreeSpec(StructSpec(((name, WEIGHT),), "Root")), name
    if place == "key":
        return TreeSpec(StructSpec((("d", DictSpec(((name, WEIGHT),))),), "Root")), f"d.{name}"
    enum = EnumSpec(name, StructSpec((("w", WEIGHT),)))
    return TreeSpec(StructSpec((("e", enum),), "Root")), f"e.{name}.w"


@law("L7", needs=("visit",), each=("place", PLACES), name=lambda a: st.sampled_from(("", ".", "a.b", "a.", ".a", "..")))
def test_a_name_that_is_empty_or_has_a_dot_is_refused(adapter: Adapter, place: str, name: str) -> None:
    """When the module is built, and the message shows the name (M10)."""
    answer = adapter.build(_named(place, name)[0])

    assert isinstance(answer, Refused)
    assert answer.kind == "name"
    assert repr(name) in answer.message


@law(
    "L7",
    needs=("visit",),
    each=("place", PLACES),
    name=lambda a: st.text(min_size=1).filter(lambda text: "." not in text),
)
def test_any_other_name_is_a_path_or_is_refused(adapter: Adapter, place: str, name: str) -> None:
    """A key always works; a field's name may belong to the implementation (M10)."""
    spec, path = _named(place, name)
    answer = adapter.build(spec)
    if isinstance(answer, Refused):
        assert place != "key"
        assert (answer.kind, repr(name) in answer.message) == ("name", True)
    else:
        assert events(adapter, answer) == walk(spec)
        assert read(adapter, answer, path).data == WEIGHT.value.data


@law("L7", needs=("visit",), name=lambda a: st.sampled_from(a.grammar.reserved))
def test_no_field_shadows_a_method(adapter: Adapter, name: str) -> None:
    """Every public attribute name of a module is refused as a field's, and taken as a key (M10)."""
    answer = adapter.build(_named("field", name)[0])

    assert isinstance(answer, Refused)
    assert (answer.kind, name in answer.message) == ("name", True)
    assert not isinstance(adapter.build(_named("key", name)[0]), Refused)


# Containers of modules

CONTAINERS = ("list", "tuple", "array", "dict", "struct", "optional")


def _container(kind: str, parts: tuple[Node, ...]) -> tuple[Node, list[tuple[str, str]]]:
    """The parts in a container, and the (component, container type) of each; an optional holds only one."""
    if kind in ("dict", "struct"):
        named = tuple((f"k{len(parts) - index}", part) for index, part in enumerate(parts))
        node = DictSpec(named) if kind == "dict" else StructSpec(named)
        return node, [(name, "Dict" if kind == "dict" else "Struct:Block") for name, _ in named]
    types = {"list": "Vec", "tuple": "Tuple", "array": "Array"}
    return SequenceSpec(kind, parts), [(str(index), types[kind]) for index in range(len(parts))]  # pyright: ignore


def _under(prefix: str, seen: list[Event]) -> Iterator[Event]:
    for one in seen:
        yield replace(one, path=f"{prefix}.{one.path}") if isinstance(one, Seen) else one


@law(
    "L9",
    needs=("visit", "devices"),
    each=("kind", CONTAINERS),
    parts=lambda a: st.lists(trees(a.grammar) | st.none(), min_size=1, max_size=3),
)
def test_a_container_shows_its_parts_each_under_its_prefix(
    adapter: Adapter, kind: str, parts: list[TreeSpec | None]
) -> None:
    """In order; None is entered, left and counted in the numbering, and adds nothing else (M6, M9, M36, M99)."""
    if kind == "optional":
        parts = parts[:1]
        node: Node = OptionalSpec(parts[0] and parts[0].root)
        components = [("", "")]
    else:
        node, components = _container(kind, tuple(OptionalSpec(part and part.root) for part in parts))
    whole = built(adapter, TreeSpec(StructSpec((("x", node),), "Root")))
    alone = [part and built(adapter, replace(part, ties=())) for part in parts]

    shown_by_all: list[Event] = [Enter("x", "Struct:Root")]
    for (name, container), part in zip(components, alone, strict=True):
        shown = events(adapter, part) if part else []
        inside = list(_under(f"x.{name}" if name else "x", shown))
        shown_by_all += [Enter(name, container), *inside, Exit(name, container)] if name else inside
    assert events(adapter, whole) == [*shown_by_all, Exit("x", "Struct:Root")]
    present = [part for part in alone if part]
    counts = [output(adapter, part, CountParams()) for part in present]
    assert output(adapter, whole, CountParams()) == sum(counts)
    found: tuple[str, ...] = ()
    for part in present:
        found = output(adapter, part, CollectDevices(found))
    assert output(adapter, whole, CollectDevices()) == found
