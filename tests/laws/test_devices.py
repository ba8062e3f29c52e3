"""Laws of devices and moves (L27 to L29, L31).

L32 (memory of two devices is disjoint) and L33 (mixing is refused) look inside:
`tests/modules/test_memory.py`, `tests/engine/test_mixing.py`.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import event
from hypothesis import strategies as st

from . import expected
from .calls import all_bits, applied, built, observed, output, read
from .generators import devices, special_patterns, trees
from .law import law
from .observations import Meta, ValueMeta
from .operations import CollectDevices, Fork, Op, ToDevice
from .programs import MOVES, operation, some_paths
from .protocol import Adapter
from .spec_tree import (
    FLOATS,
    ConstantSpec,
    FlagSpec,
    Node,
    ParamSpec,
    RunningSpec,
    StructSpec,
    TreeSpec,
    Value,
    lazy_paths,
    tensors,
    tied_with,
)
from .spec_tree import devices as devices_of


def several_devices(adapter: Adapter) -> Any:
    """Trees over three devices, with a plain tensor."""
    return trees(adapter.grammar, min_devices=min(3, len(adapter.grammar.devices)), holding=("constant",))


def found_before(adapter: Adapter) -> Any:
    """A list of devices with duplicates."""
    return st.lists(st.sampled_from(adapter.grammar.devices), max_size=3).map(lambda drawn: (*drawn, *drawn[:1]))


@law("L27", needs=("devices",), spec=several_devices, found=found_before)
def test_devices_are_those_of_the_tree_each_once_in_order(
    adapter: Adapter, spec: TreeSpec, found: tuple[str, ...]
) -> None:
    """After those given, which stay as they are; plain tensors count, lazy parameters too (M36 to M39)."""
    module = built(adapter, spec)
    event(f"devices: {len(devices_of(spec))}")

    assert output(adapter, module, CollectDevices()) == devices_of(spec)
    assert output(adapter, module, CollectDevices(found)) == devices_of(spec, found)


def tree_and_move(adapter: Adapter) -> Any:
    """A tree over several devices, and a move."""
    move = st.sampled_from(MOVES)
    return several_devices(adapter).flatmap(
        lambda spec: st.tuples(st.just(spec), move.flatmap(lambda kind: operation(kind, spec, adapter.grammar)))
    )


def _target(move: Op) -> str:
    assert isinstance(move, (Fork, ToDevice))
    return move.device.removesuffix("+autodiff")


@law("L27", needs=("devices", "fork"), case=tree_and_move)
def test_a_moved_module_is_on_one_device(adapter: Adapter, case: tuple[TreeSpec, Op]) -> None:
    """Or on none, if it has no tensor (M116)."""
    spec, move = case

    moved = applied(adapter, built(adapter, spec), move)

    assert output(adapter, moved, CollectDevices()) == (_target(move),)


def _at(meta: Meta, spec: TreeSpec, device: str, keeps_leaves: bool) -> Meta:
    """The meta of a module that was moved: devices, and of `to_device` effective trainability, are all that changes."""

    def moved(value: Any) -> Any:
        if not isinstance(value, ValueMeta):
            return value
        stays = keeps_leaves or value.device == device or value.lazy
        return replace(value, device=device, requires_grad=value.requires_grad if stays else False)

    constants = {path: node.value for path, node in tensors(spec).items() if isinstance(node, ConstantSpec)}
    there = {path: (device, value.autodiff) for path, value in constants.items()}
    return Meta(tuple(map(moved, meta.values)), expected.skeleton(spec.root, "", there), meta.ties)


def _check_move(adapter: Adapter, spec: TreeSpec, move: Op) -> None:
    module = built(adapter, spec)
    before = observed(adapter, module, spec)

    moved = applied(adapter, module, move)

    after = observed(adapter, moved, spec)
    assert after.meta == _at(before.meta, spec, _target(move), isinstance(move, Fork))
    assert after.bits == before.bits
    assert all_bits(adapter, moved, spec) == all_bits(adapter, module, spec)


@law("L28", "L29", needs=("devices", "fork"), case=tree_and_move)
def test_a_move_changes_devices_and_nothing_else(adapter: Adapter, case: tuple[TreeSpec, Op]) -> None:
    """Skeleton, ids, bits, kinds, configured state, flags, laziness and autodiff association stay.

    The flag of the destination is not adopted (M40, M43 to M45, M48). `fork`
    keeps leaves leaves; a value that `to_device` moves is none any more (M41, M42).
    """
    _check_move(adapter, *case)


@law(
    "L28",
    needs=("devices", "fork"),
    each=("dtype", FLOATS),
    kind=lambda a: st.sampled_from(MOVES),
    places=lambda a: devices(a.grammar, 2),
)
def test_a_move_keeps_every_class_of_bit_pattern(adapter: Adapter, dtype: str, kind: Any, places: list[str]) -> None:
    """Signed zeros, subnormals, infinities, quiet and signalling NaNs with their payloads (M48)."""
    patterns = special_patterns(dtype)
    value = Value(dtype, (len(patterns),), b"".join(patterns), places[0])
    leaves: tuple[tuple[str, Node], ...] = (
        *(("weight", ParamSpec(value)), ("lazy", ParamSpec(value, lazy=True))),
        *(("state", RunningSpec(value)), ("constant", ConstantSpec(value)), ("flag", FlagSpec(True))),
    )
    allowed = {"state": "running", "constant": "constant", "flag": "flag"}
    kept = tuple(leaf for leaf in leaves if allowed.get(leaf[0], "int") in (*adapter.grammar.leaves, "int"))
    _check_move(adapter, TreeSpec(StructSpec(kept, "Root")), kind(places[1]))


@law("L29", needs=("devices", "fork"), case=tree_and_move)
def test_a_move_and_back_gives_equal_values_and_devices(adapter: Adapter, case: tuple[TreeSpec, Op]) -> None:
    """From plain to an autodiff handle and back, and the other way round (M44, M48)."""
    spec, move = case
    module = built(adapter, spec)
    home = applied(adapter, module, Fork(devices_of(spec)[0]))

    back = applied(adapter, applied(adapter, home, move), Fork(devices_of(spec)[0]))

    assert all_bits(adapter, back, spec) == all_bits(adapter, home, spec)
    assert [_association(value) for value in adapter.meta(back).values] == [
        _association(value) for value in adapter.meta(home).values
    ]


def _association(value: Any) -> Any:
    return (value.path, value.device, value.autodiff) if isinstance(value, ValueMeta) else value


def tree_reads_and_move(adapter: Adapter) -> Any:
    return tree_and_move(adapter).flatmap(
        lambda case: st.tuples(st.just(case[0]), st.just(case[1]), some_paths(lazy_paths(case[0])))
    )


@law("L31", needs=("devices", "fork", "transfer_log"), case=tree_reads_and_move)
def test_a_move_logs_one_copy_of_each_tensor_that_changes_device(adapter: Adapter, case: Any) -> None:
    """With its bytes; none for what is lazy or there already, one for what is tied (principle 3, M46, D4)."""
    spec, move, reads = case
    module = built(adapter, spec)
    made = {other for path in reads for other in tied_with(spec, path)}
    for path in reads:
        read(adapter, module, path)
    copies: dict[tuple[str, str], Counter[str]] = {}
    for path, node in tensors(spec).items():
        exists = not (isinstance(node, ParamSpec) and node.lazy) or path in made
        if exists and node.value.hardware != _target(move) and path == tied_with(spec, path)[0]:
            count = copies.setdefault((node.value.hardware, _target(move)), Counter())
            count.update(copies=1, nbytes=len(node.value.data))
    event(f"ways: {len(copies)}")

    adapter.log()
    applied(adapter, module, move)
    log = adapter.log()

    assert {(c.source, c.destination): Counter(copies=c.copies, nbytes=c.nbytes) for c in log} == copies
    assert adapter.log() == ()
