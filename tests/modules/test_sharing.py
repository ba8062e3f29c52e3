"""What versions of a module share as objects and memory, and what they never do (L1, L7, L9 to L11, L32)."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Device, Tensor, tensor
from modules import Flag, Module, ModuleMapper, Param, PathError, RunningState
from tests.laws.engine_adapter import EngineAdapter, Version
from tests.laws.generators import trees
from tests.laws.law import inside
from tests.laws.operations import Clone, Edit, Force, Fork, Map, Number, ToDevice, ToRecord, Train, Update, Valid
from tests.laws.programs import Program, edits, programs
from tests.laws.protocol import Refused
from tests.laws.spec_tree import EnumSpec, StructSpec, TreeSpec, places, tensors

ENGINE = EngineAdapter()
TREES = trees(ENGINE.grammar)


def built(spec: TreeSpec) -> Version:
    made = ENGINE.build(spec)
    assert not isinstance(made, Refused), made.message
    return made


def after(version: Version, operation: Any) -> Version:
    answer = ENGINE.apply(version, operation)
    assert not isinstance(answer, Refused), answer.message
    return answer.handle


def tensor_at(module: Module, path: str) -> Tensor | None:
    """The tensor at a place; None where it does not exist yet."""
    found = module.at(path)
    if isinstance(found, Param):
        return found.base() if found.is_initialized else None
    return found.value() if isinstance(found, RunningState) else found


def check_shared(before: Module, now: Module, path: str) -> None:
    """The same object; of a running state another over the same tensor (M97)."""
    old, new = before.at(path), now.at(path)
    if isinstance(old, RunningState):
        assert new is not old
        assert new.value() is old.value()
    elif isinstance(old, (Param, Flag, Tensor)):
        assert new is old


def holds_running_state(spec: TreeSpec, path: str) -> bool:
    return any(p.startswith(f"{path}.") and type(node).__name__ == "RunningSpec" for p, node in places(spec).items())


@inside("L1", "L11")
@given(spec=TREES)
def test_the_identity_map_shares_every_value_and_every_module_below_the_root(spec: TreeSpec) -> None:
    """But running states, and what holds one (M19, M97; principle 1)."""
    before = built(spec)
    now = after(before, Map())

    assert now.module is not before.module
    for path, node in places(spec).items():
        check_shared(before.module, now.module, path)
        if isinstance(node, (StructSpec, EnumSpec)) and not holds_running_state(spec, path):
            assert now.module.at(path) is before.module.at(path)


@inside("L11")
@given(case=TREES.flatmap(lambda spec: st.tuples(st.just(spec), st.lists(edits(spec), max_size=3))))
def test_a_map_shares_what_it_does_not_edit(case: tuple[TreeSpec, list[Edit]]) -> None:
    """As objects and as memory; a parameter of which a factor is edited is another over the same base (principle 1)."""
    spec, drawn = case
    local = tuple(edit for edit in drawn if not isinstance(edit, Number))
    before = built(spec)
    now = after(before, Map((local,)))

    for path in places(spec).keys() - {edit.path for edit in local}:
        old, new = before.module.at(path), now.module.at(path)
        if isinstance(old, Param) and any(edit.path.startswith(f"{path}.") for edit in local):
            assert not old.is_initialized or new.base() is old.base()
        else:
            check_shared(before.module, now.module, path)


@inside("L11")
@given(spec=TREES, kind=st.sampled_from((Fork, ToDevice)))
def test_a_move_to_where_a_tensor_is_gives_that_tensor(spec: TreeSpec, kind: Any) -> None:
    """Its memory is shared, of a plain tensor and of what `to_device` moves the object too (D4)."""
    before = built(spec)
    device = next(iter(tensors(spec).values())).value.hardware
    now = after(before, kind(device))

    for path, node in tensors(spec).items():
        old, new = tensor_at(before.module, path), tensor_at(now.module, path)
        if node.value.hardware == device and old is not None and new is not None and old.size:
            assert np.shares_memory(old.numpy(), new.numpy())
            assert new is old or kind is Fork


@inside("L10")
@given(spec=TREES)
def test_arrays_of_a_module_cannot_be_written(spec: TreeSpec) -> None:
    """An array that was taken from it is read-only; one that it was made from is copied (M1)."""
    module = built(spec).module
    for path in tensors(spec):
        value = tensor_at(module, path)
        if value is not None:
            with pytest.raises(ValueError, match=r"read-only|assignment destination"):
                value.numpy()[...] = 0
            with pytest.raises(ValueError, match="WRITEABLE"):
                value.numpy().setflags(write=True)


@inside("L10")
def test_a_module_does_not_see_what_happens_to_the_arrays_and_lists_it_was_made_from() -> None:
    """Rule M1."""
    source = np.ones(3, np.float32)
    items: list[Any] = [Param(Tensor.from_numpy(source, "cpu:0"))]
    keyed: dict[str, Any] = {"a": Param(tensor(source, device="cpu:0"))}

    class Holder(Module):
        def __init__(self) -> None:
            self.items = items
            self.keyed = keyed

    module = Holder()
    source[:] = 5.0
    items.append(None)
    keyed["b"] = None

    assert [module.at(path).val().tobytes() for path in ("items.0", "keyed.a")] == [
        np.ones(3, np.float32).tobytes()
    ] * 2
    assert (len(module.items), len(module.keyed)) == (1, 1)


OPERATIONS = (Clone, Map, Fork, ToDevice, Train, Valid, Force, Update, ToRecord)


@inside("L32")
@given(program=programs(ENGINE, OPERATIONS, min_devices=2))
def test_memory_of_two_devices_is_disjoint(program: Program) -> None:
    """Of every two tensors of every two versions after every operation (principle 3, D11)."""
    versions = [built(program.spec)]
    for back, operation in program.steps:
        answer = ENGINE.apply(versions[max(0, len(versions) - 1 - back)], operation)
        if not isinstance(answer, Refused):
            versions.append(answer.handle)

    by_device: dict[Device, list[Tensor]] = {}
    for version in versions:
        for path in tensors(program.spec):
            value = tensor_at(version.module, path)
            if value is not None:
                by_device.setdefault(value.device, []).append(value)
    for one, other in combinations(by_device.values(), 2):
        for a in one:
            assert not any(np.may_share_memory(a.numpy(), b.numpy()) for b in other)


@inside("L9")
@given(parts=st.lists(TREES, min_size=1, max_size=3))
def test_modules_keep_their_parameters_inside_a_container(parts: list[TreeSpec]) -> None:
    """The same objects, so the same ids (M6)."""

    class Outer(Module):
        def __init__(self, modules: list[Module]) -> None:
            self.modules_ = modules

    versions = [built(spec) for spec in parts]
    outer = Outer([version.module for version in versions])

    for index, (version, spec) in enumerate(zip(versions, parts, strict=True)):
        for path in places(spec):
            assert outer.at(f"modules_.{index}.{path}") is version.module.at(path)


@inside("L7")
@pytest.mark.parametrize("wrapped", [lambda m: m, lambda m: [m], lambda m: {"a": m}, lambda m: ([m],)])
def test_a_module_that_contains_itself_is_refused(wrapped: Any) -> None:
    """When it is built (M10)."""

    class Cyclic(Module):
        def __init__(self) -> None:
            self.inner = wrapped(self)

    with pytest.raises(PathError, match="inner"):
        Cyclic()


@inside("L7")
@pytest.mark.parametrize("kind", [list, dict])
def test_a_container_that_contains_itself_is_refused(kind: type) -> None:
    """When the module is built (M10)."""
    cyclic: Any = kind()
    if kind is list:
        cyclic += [Flag(True), cyclic]
    else:
        cyclic.update(a=Flag(True), b=cyclic)

    class Holder(Module):
        def __init__(self) -> None:
            self.inner = cyclic

    with pytest.raises(PathError, match="inner"):
        Holder()


@inside("L13")
def test_the_exception_of_a_hook_arrives_unchanged() -> None:
    """It is the very object that the hook raised (M20)."""
    error = KeyError("mine")

    class Raising(ModuleMapper):
        def map_float(self, path: str, param: Param, /) -> Param:
            raise error

    class Holder(Module):
        def __init__(self) -> None:
            self.weight = Param(tensor([1.0], device="cpu:0"))

    with pytest.raises(KeyError) as raised:
        Holder().map(Raising())
    assert raised.value is error
