"""Training state of a split model: every switch is the model's, and the placement is kept (P51 to P57)."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from engine import AutodiffError, Device, ops
from modules import Flag, Module, ModuleMapper, Param, ParamGroup, RunningState
from modules.parallel import DistributedLayeredModel, LayerPlacement
from tests.modules.small_modules import LazyLinear, numbers, paths

from .small_models import Chain, chain

DEVICES: Final = [Device(f"cpu:{index}+autodiff") for index in range(3)]
PLACEMENT: Final = LayerPlacement.even(DEVICES, 4)
GROUP: Final = ParamGroup.from_any_predicates(["blocks.1", "training", "stem"])

KEEPING: Final[dict[str, Callable[[Any], Any]]] = {
    "train": lambda module: module.train(),
    "valid": lambda module: module.valid(),
    "valid, train": lambda module: module.valid().train(),
    "set_require_grad": lambda module: module.set_require_grad(False),
    "set_require_grad_group": lambda module: module.set_require_grad_group(GROUP, False),
    "no_grad": lambda module: module.no_grad(),
    "freeze": lambda module: module.freeze(),
    "freeze_group": lambda module: module.freeze_group(GROUP),
    "unfreeze": lambda module: module.freeze().unfreeze(),
    "unfreeze_group": lambda module: module.freeze().unfreeze_group(GROUP),
    "map": lambda module: module.map(ModuleMapper()),
    "clone": lambda module: module.clone(),
}


class Layer(Module):
    """One of everything."""

    def __init__(self, device: Device) -> None:
        self.weight = Param(numbers(2, device=str(device)))
        self.lazy = LazyLinear(2, 1, str(device)).weight
        self.training = Flag(True)
        self.mean = RunningState(numbers(2, device=str(device)))
        self.table = numbers(2, device=str(device))

    def forward(self, x: Any) -> Any:
        return x * self.weight.val() * self.table


def model() -> Chain:
    return Chain(Layer(PLACEMENT.input), [Layer(device) for device in PLACEMENT.hidden], Layer(PLACEMENT.output))


def facts(module: Module) -> list[Any]:
    """What can be seen of each leaf without making it."""
    found: list[Any] = []
    for path in [*paths(module), "stem.table"]:
        leaf = module.at(path)
        if isinstance(leaf, Flag):
            found.append((path, leaf.is_enabled, leaf.configured))
        elif isinstance(leaf, Param):
            value = leaf.val() if leaf.is_initialized else None
            retains = value is not None and value.is_require_grad
            found.append((path, str(leaf.device), leaf.trainable, leaf.is_initialized, retains))
        else:
            value = leaf.value() if isinstance(leaf, RunningState) else leaf
            found.append((path, str(value.device), value.is_tracked))
    return found


@pytest.mark.parametrize("name", KEEPING)
def test_each_switch_of_the_wrapper_is_that_of_the_model_and_keeps_the_placement(name: str):
    """P51, P52, P57, P83: and everything stays where it is, lazy parameters lazy."""
    bare = model()
    wrapped = DistributedLayeredModel(bare, PLACEMENT)
    before = facts(bare)
    switched = KEEPING[name](wrapped)

    assert type(switched) is DistributedLayeredModel
    assert switched.placement == PLACEMENT
    assert facts(switched) == facts(switched.model) == facts(KEEPING[name](bare))
    assert paths(switched) == paths(bare)
    assert facts(bare) == facts(wrapped) == before
    returning = {"map", "clone", "train", "valid, train", "unfreeze"}
    assert (facts(switched) == before) == (name in returning)
    switched.check()


@pytest.mark.parametrize("name", ["fork", "to_device"])
def test_a_move_of_the_whole_model_puts_every_layer_on_one_device(name: str):
    """P53, P84: only a fork trains there (P33, M49)."""
    wrapped = DistributedLayeredModel(model(), PLACEMENT)
    moved = getattr(wrapped, name)("cpu:1")

    assert moved.placement == LayerPlacement("cpu:1", ["cpu:1"] * 4, "cpu:1")
    assert facts(moved) == facts(getattr(wrapped.model, name)("cpu:1"))
    moved.check()
    elsewhere = [path for path in paths(wrapped) if path.endswith("weight") and str(wrapped.at(path).device)[4] != "1"]
    assert len(elsewhere) == 5
    if name == "fork":
        assert all(moved.train().at(path).val().is_require_grad for path in elsewhere)
    else:
        with pytest.raises(AutodiffError, match=f"train: {', '.join(elsewhere)} were moved by to_device"):
            moved.train()
        assert moved.no_grad().unfreeze().placement == moved.placement


def test_a_model_is_split_by_forking_its_layers_not_by_moving_them():
    """P33, P59: gradients land on each parameter's own device; of moved layers on the device they came from."""
    whole = chain(LayerPlacement("cpu:0+autodiff", ["cpu:0+autodiff"] * 2, "cpu:0+autodiff"))
    placement = LayerPlacement("cpu:0", ["cpu:1", "cpu:2"], "cpu:0")
    places = list(zip(whole.blocks, placement.hidden, strict=True))
    forked = whole.replace(blocks=[block.fork(device) for block, device in places])
    moved = whole.replace(blocks=[block.to_device(device) for block, device in places])
    for split, owner in ((forked, forked), (moved, whole)):
        wrapped = DistributedLayeredModel(split, placement)
        gradients = ops.sum(wrapped(numbers(3))).backward()
        for path in ("stem.weight", "blocks.0.weight", "blocks.1.weight", "head.weight"):
            param = owner.at(path)
            gradient = param.grad(gradients)
            assert gradient is not None
            assert gradient.device == param.device
            # The product of the input and the other layers' weights, which are 2, 1, 2 and 0.5.
            other = 2.0 / float(param.val()[0])
            assert np.array_equal(gradient.numpy(), other * np.array([1.0, 2.0, 3.0]))
    with pytest.raises(AutodiffError, match=r"train: blocks\.0\.weight, blocks\.1\.weight were moved by to_device"):
        DistributedLayeredModel(moved, placement).train()
