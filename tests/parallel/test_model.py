"""The wrapped model: what it refuses, what it adds to exceptions, what its methods do to the placement."""

import dataclasses
import threading

import pytest

from engine import Device, DeviceMismatchError, Tensor, tensor, zeros
from modules import FrozenModuleError, Module, ModuleError, ModuleMapper, Param, PathError
from modules.parallel import (
    AutoregressiveLayer,
    DistributedLayer,
    DistributedLayeredModel,
    LayerPlacement,
    PlacementError,
)
from tests.parallel.small_models import Apply, Chain, RunningSum, Scale, chain

A, B, C = Device("cpu:0"), Device("cpu:1"), Device("cpu:2")
PLACEMENT = LayerPlacement(A, [A, B, B], C)


def x() -> Tensor:
    return tensor([1.0, 2.0, 3.0], device=A)


def test_any_module_with_a_forward_is_a_layer() -> None:
    """P1: nothing is inherited from."""
    assert isinstance(Scale(1, A), DistributedLayer)
    assert not isinstance(Scale(1, A), AutoregressiveLayer)
    assert isinstance(RunningSum(1, A), AutoregressiveLayer)


def test_what_is_no_layer_is_refused_with_its_place() -> None:
    """P1, checked when the model is wrapped."""

    class NoForward(Module):
        pass

    on_a = LayerPlacement(A, [A], A)
    with pytest.raises(ModuleError, match="hidden layer 0 .*NoForward.*forward"):
        DistributedLayeredModel(Chain(Scale(1, A), [NoForward()], Scale(1, A)), on_a)
    with pytest.raises(ModuleError, match="no LayerParallelism"):
        DistributedLayeredModel(Scale(1, A), on_a)
    with pytest.raises(PlacementError, match="no LayerPlacement"):
        DistributedLayeredModel(chain(on_a), "cpu:0")


def test_a_refusal_names_the_layer_its_value_and_both_devices() -> None:
    """P25 to P29, in that order; the attributes say the same as the message."""
    wrong = {
        "input": dataclasses.replace(PLACEMENT, input=B),
        1: dataclasses.replace(PLACEMENT, hidden=[A, A, B]),
        "output": dataclasses.replace(PLACEMENT, output=A),
    }
    for layer, placement in wrong.items():
        with pytest.raises(PlacementError) as refused:
            DistributedLayeredModel(chain(PLACEMENT), placement)
        error = refused.value
        assert (error.layer, error.path) == (layer, "weight")
        assert str(error.expected) in str(error)
        assert str(error.found) in str(error)
    with pytest.raises(PlacementError, match="3 hidden layers.*devices for 2.*each hidden layer needs a device"):
        DistributedLayeredModel(chain(PLACEMENT), dataclasses.replace(PLACEMENT, hidden=[A, B]))


def test_tied_layers_are_told_the_placement_that_would_do() -> None:
    """P32: the check of one of them fails, and the message knows why."""
    shared = Scale(3, A)
    model = Chain(shared, [Scale(3, B)], shared)
    placement = LayerPlacement(A, [B], B)

    with pytest.raises(PlacementError, match=r"tied to 'weight' of the input layer.*output=placement\.input"):
        DistributedLayeredModel(model, placement)

    DistributedLayeredModel(model, dataclasses.replace(placement, output=placement.input))


def test_an_exception_of_a_layer_keeps_its_type_and_is_told_where_it_was() -> None:
    """P42, L104: and the model runs again."""

    class Special(Exception):
        pass

    fail = [True]

    def perhaps(signal: Tensor) -> Tensor:
        if fail[0]:
            raise Special("no")
        return signal

    wrapped = DistributedLayeredModel(
        Chain(Scale(3, A), [Scale(3, B), Apply(perhaps)], Scale(3, A)), LayerPlacement(A, [B, C], A)
    )
    with pytest.raises(Special) as raised:
        wrapped(x())
    assert raised.value.__notes__ == ["in hidden layer 1, on cpu:2"]
    fail[0] = False
    assert wrapped(x()).device == A


def test_a_mapper_that_moves_a_parameter_is_refused() -> None:
    """D2, P55: the result is refused with the layer's name; the model it was called on runs as before."""

    class Move(ModuleMapper):
        def map_float(self, path: str, param: Param, /) -> Param:
            return param.map(lambda value: value.to_device(C)) if path == "blocks.0.weight" else param

    wrapped = DistributedLayeredModel(chain(PLACEMENT), PLACEMENT)
    with pytest.raises(PlacementError, match="hidden layer 0 belongs on cpu:0.*cpu:2"):
        wrapped.map(Move())
    wrapped.check()
    assert wrapped(x()).device == C


def test_moves_rewrite_the_placement_and_nothing_else_does() -> None:
    """P53, P57, L100."""
    wrapped = DistributedLayeredModel(chain(PLACEMENT), PLACEMENT)
    for same in (
        wrapped.clone(),
        wrapped.map(ModuleMapper()),
        wrapped.valid(),
        wrapped.train(),
        wrapped.load_record(wrapped.into_record()),
    ):
        assert same.placement == PLACEMENT
        assert isinstance(same, DistributedLayeredModel)
    for moved in (wrapped.fork("cpu:3"), wrapped.to_device("cpu:3")):
        assert moved.placement == LayerPlacement("cpu:3", ["cpu:3"] * 3, "cpu:3")
        moved.check()
    assert wrapped.placement == PLACEMENT


def test_the_wrapper_adds_nothing_to_paths_also_inside_another_module() -> None:
    """P51, M6: a record of the wrapper is a record of the model; a move of the outer module moves it rightly."""

    class Outer(Module):
        def __init__(self, inner: Module) -> None:
            self.net = inner
            self.bias = Param(zeros((1,), device=A))

    model = chain(PLACEMENT)
    wrapped = DistributedLayeredModel(model, PLACEMENT)
    assert list(wrapped.into_record()) == list(model.into_record())
    outer = Outer(wrapped)
    assert next(iter(outer.into_record())) == "net.head.weight"
    moved = outer.fork(B)
    assert moved.net.placement == LayerPlacement(B, [B, B, B], B)
    assert moved.devices() == [B]


def test_the_model_is_reached_by_model_only() -> None:
    """P44, P45; and the wrapper is a value like every module."""
    model = chain(PLACEMENT)
    wrapped = DistributedLayeredModel(model, PLACEMENT)
    assert wrapped.model is model is wrapped.into_inner()
    with pytest.raises(AttributeError, match=r"stem.*\.model"):
        _ = wrapped.stem
    with pytest.raises(FrozenModuleError):
        wrapped.placement = PLACEMENT


def test_a_field_cannot_shadow_an_accessor() -> None:
    """DESIGN, Module: nor any other public name of the base class."""

    class Shadow(Chain):
        def __init__(self) -> None:
            super().__init__(Scale(1, A), [], Scale(1, A))
            self.layers_hidden = []

    with pytest.raises(PathError, match="layers_hidden"):
        Shadow()


def test_replace_checks_the_new_model_against_the_placement() -> None:
    """P33: a model is split by replacing its layers with forked ones."""
    on_a = chain(LayerPlacement.even([A], 3))
    forked = [block.fork(device) for block, device in zip(on_a.blocks, PLACEMENT.hidden, strict=True)]
    wrapped = DistributedLayeredModel(on_a.replace(blocks=forked, head=on_a.head.fork(C)), PLACEMENT)
    assert [p.id for p in (wrapped.at("head.weight"), wrapped.at("blocks.2.weight"))] == [
        p.id for p in (on_a.at("head.weight"), on_a.at("blocks.2.weight"))
    ]
    with pytest.raises(PlacementError):
        wrapped.replace(placement=LayerPlacement.even([A], 3))


def test_a_layer_that_mixes_devices_is_refused_by_the_operation() -> None:
    """Principle 3: a constant outside the tree is on its own device, and nothing moves it."""
    elsewhere = zeros((3,), device=C)
    wrapped = DistributedLayeredModel(
        Chain(Scale(3, A), [Apply(lambda s: s + elsewhere)], Scale(3, A)), LayerPlacement(A, [B], A)
    )
    with pytest.raises(DeviceMismatchError, match=r"add.*cpu:1.*cpu:2") as raised:
        wrapped(x())
    assert raised.value.__notes__ == ["in hidden layer 0, on cpu:1"]


def test_eight_threads_may_run_one_model() -> None:
    """A forward changes nothing in the model."""
    wrapped = DistributedLayeredModel(chain(PLACEMENT), PLACEMENT)
    expected, results = wrapped(x()).tobytes(), []
    threads = [threading.Thread(target=lambda: results.append(wrapped(x()).tobytes())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 8


def test_a_subclass_with_fields_of_its_own_is_refused() -> None:
    """P51: as a module it is the model; other fields would be lost."""

    class Named(DistributedLayeredModel[Chain]):
        def __init__(self, model: Chain, placement: LayerPlacement) -> None:
            super().__init__(model, placement)
            self.name = "mine"

    class Empty(DistributedLayeredModel[Chain]):
        def __init__(self) -> None:
            pass

    with pytest.raises(ModuleError, match="Named: .* fields model and placement only, not model, placement, name"):
        Named(chain(PLACEMENT), PLACEMENT)
    with pytest.raises(ModuleError, match="Empty: .* fields model and placement only, not none"):
        Empty()
