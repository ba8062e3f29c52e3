"""Laws of versions: what operations leave alone, what ties share, what a failure leaves behind (L10 to L13)."""

import threading
from typing import Any

from hypothesis import event
from hypothesis import strategies as st

from .calls import Observation, applied, built, events, observed, output, read
from .generators import trees
from .law import law
from .observations import FlagMeta, Meta, ValueMeta
from .operations import (
    AddConstant,
    Clone,
    CountParams,
    Edit,
    Force,
    Fork,
    Freeze,
    Map,
    Number,
    Op,
    ToDevice,
    ToRecord,
    Train,
    Update,
    Valid,
)
from .programs import EVERY, REMAKING, Program, edits, programs
from .protocol import Adapter, Refused
from .spec_tree import FlagSpec, ParamSpec, Seen, TreeSpec, leaves, num_params, tied_with, walk


def _makes_values(operation: Op) -> bool:
    """Whether an operation may initialise what is lazy, in every version (M25)."""
    adds = isinstance(operation, Map) and any(isinstance(e, AddConstant) for m in operation.mappers for e in m)
    return adds or isinstance(operation, (Force, ToRecord, *REMAKING))


def _check_unchanged(before: Observation, now: Observation, makes_values: bool, updated: tuple[str, ...]) -> None:
    """A version is what it was: at most, values that were lazy exist, and a layer has updated its running state."""
    if not makes_values:
        assert now.meta == before.meta
    assert now.meta.settled() == before.meta.settled()
    assert now.meta.lazy() <= before.meta.lazy()
    kept = {path: bits for path, bits in before.bits.items() if path not in updated}
    assert {path: now.bits[path] for path in kept} == kept


@law("L10", needs=("persistent",), program=lambda a: programs(a, EVERY))
def test_every_version_survives_every_operation(adapter: Adapter, program: Program) -> None:
    """Meta and bits of the receiver and of all older versions stay, whether the operation succeeds or is refused.

    Only the module that runs changes, and only its running state (M1, M20, M97).
    """
    _check_survival(adapter, program)


@law(
    "L10",
    needs=("persistent", "quantize", "lora", "reparam"),
    slow=2,
    program=lambda a: programs(a, (*REMAKING, Clone, Map, Fork, Freeze, Update, ToRecord)),
)
def test_every_version_survives_what_remakes_its_values(adapter: Adapter, program: Program) -> None:
    """Quantization, LoRA, `materialize`, in between other operations (M1, Q58, A4)."""
    _check_survival(adapter, program)


def _check_survival(adapter: Adapter, program: Program) -> None:
    spec = program.spec
    versions = [built(adapter, spec)]
    seen = [observed(adapter, versions[0], spec)]
    for back, operation in program.steps:
        target = max(0, len(versions) - 1 - back)
        answer = adapter.apply(versions[target], operation)
        event(f"{type(operation).__name__} {'refused' if isinstance(answer, Refused) else 'done'}")
        for index, version in enumerate(versions):
            now = observed(adapter, version, spec)
            changed = operation.path if isinstance(operation, Update) and index == target else None
            updated = () if changed is None else tied_with(spec, changed)
            _check_unchanged(seen[index], now, _makes_values(operation), updated)
            seen[index] = now
        if operation.gives_module and not isinstance(answer, Refused):
            versions.append(answer.handle)
            seen.append(observed(adapter, answer.handle, spec))


def tree_and_edits(adapter: Adapter) -> Any:
    drawn = trees(adapter.grammar)
    return drawn.flatmap(lambda spec: st.tuples(st.just(spec), st.lists(edits(spec), max_size=4)))


@law("L11", needs=("map",), case=tree_and_edits)
def test_a_map_changes_what_it_edits_and_nothing_else(adapter: Adapter, case: tuple[TreeSpec, list[Edit]]) -> None:
    """Meta and bits outside the edited paths stay, order and skeleton too (M52; principle 1)."""
    spec, drawn = case
    local = [edit for edit in drawn if not isinstance(edit, Number)]
    edited = {edit.path for edit in local}
    module = built(adapter, spec)

    after = applied(adapter, module, Map((tuple(local),)))

    before, now = observed(adapter, module, spec), observed(adapter, after, spec)
    assert [value.path for value in now.meta.values] == [value.path for value in before.meta.values]
    assert _outside(now.meta, edited) == _outside(before.meta, edited)
    assert now.meta.skeleton == before.meta.skeleton
    assert {p: b for p, b in now.bits.items() if p not in edited} == {
        p: b for p, b in before.bits.items() if p not in edited
    }


def _outside(meta: Meta, paths: set[str]) -> list[ValueMeta | FlagMeta]:
    return [value for value in meta.values if value.path not in paths]


@law("L12", needs=("visit",), spec=lambda a: trees(a.grammar, tied=True))
def test_a_tied_parameter_is_there_under_each_of_its_paths(adapter: Adapter, spec: TreeSpec) -> None:
    """With one id and one value; it is counted for each path (M11)."""
    module = built(adapter, spec)
    ids = adapter.meta(module).ids()

    assert [one.path for one in events(adapter, module) if isinstance(one, Seen)] == list(leaves(spec))
    for group in spec.ties:
        visited = [path for path in group if path in ids]
        assert len({ids[path] for path in visited}) <= 1
        assert len({read(adapter, module, p) for p in group if not isinstance(leaves(spec).get(p), FlagSpec)}) <= 1
    assert output(adapter, module, CountParams()) == num_params(spec)


@law("L12", needs=("records",), spec=lambda a: trees(a.grammar, tied=True))
def test_a_record_lists_every_path_of_a_tied_parameter(adapter: Adapter, spec: TreeSpec) -> None:
    """Rules D8, M11."""
    record = output(adapter, built(adapter, spec), ToRecord())

    paths = [entry.path for entry in record.entries]
    assert paths == [one.path for one in walk(spec) if isinstance(one, Seen) and one.kind != "flag"]


TYING = (Clone, Train, Valid, Fork, ToDevice)


@law("L12", needs=("devices",), program=lambda a: programs(a, TYING, tied=True))
def test_tied_places_stay_tied(adapter: Adapter, program: Program) -> None:
    """Every method of a module computes one result for one object (D8)."""
    module = built(adapter, program.spec)
    for _, operation in program.steps:
        answer = adapter.apply(module, operation)
        module = module if isinstance(answer, Refused) else answer.handle
        assert adapter.meta(module).ties == program.spec.ties


def failing(adapter: Adapter) -> Any:
    """A tree, and which of its hook calls raises."""
    return trees(adapter.grammar, lazy=adapter.grammar.lazy).flatmap(
        lambda spec: st.tuples(st.just(spec), st.integers(0, len(leaves(spec)) - 1))
    )


@law("L13", needs=("map",), case=failing)
def test_a_raising_hook_leaves_nothing_behind(adapter: Adapter, case: tuple[TreeSpec, int]) -> None:
    """Its exception arrives, and the module can be observed and mapped as before (M20)."""
    spec, call = case
    module = built(adapter, spec)
    before = observed(adapter, module, spec)

    answer = adapter.apply(module, Map((), fail_at=call))

    assert isinstance(answer, Refused)
    assert (answer.kind, answer.message) == ("hook", f"call {call}")
    assert observed(adapter, module, spec) == before
    assert observed(adapter, applied(adapter, module, Map()), spec) == before


@law("L13", needs=("map", "lazy", "threads"), case=failing)
def test_a_raising_hook_holds_no_lock(adapter: Adapter, case: tuple[TreeSpec, int]) -> None:
    """Another thread can still initialise every parameter (M20)."""
    spec, call = case
    module = built(adapter, spec)
    adapter.apply(module, Map((), fail_at=call))
    lazy = [path for path, node in leaves(spec).items() if isinstance(node, ParamSpec) and node.lazy]
    made: list[Any] = []

    reader = threading.Thread(target=lambda: made.extend(adapter.bits(module, path) for path in lazy), daemon=True)
    reader.start()
    reader.join(timeout=10)

    assert not reader.is_alive()
    assert len(made) == len(lazy)
