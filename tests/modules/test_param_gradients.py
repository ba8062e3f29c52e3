"""Gradients of parameters: who has one, and on which device, after forks and moves (M41, M42, M73)."""

import numpy as np
import pytest

from engine import Device, Tensor, ops
from modules import Param, ParamGroup

from .small_modules import AUTODIFF, Holder, LazyLinear, numbers


def loss(weight: Param, factor: float = 3.0) -> Tensor:
    """A number whose gradient by each element of the weight is `factor`."""
    return ops.sum(weight.val() * factor)


def test_a_parameter_that_was_used_has_a_gradient():
    """M73: plain, of its shape and dtype, on its device; the others have none."""
    module = Holder(used=Param(numbers(2, 3, device="cpu:1+autodiff")), unused=Param(numbers(1, device=AUTODIFF)))
    gradients = loss(module.used).backward()
    gradient = module.used.grad(gradients)

    assert gradient is not None
    assert str(gradient.device) == "cpu:1"
    assert str(gradient.dtype) == "float32"
    assert np.array_equal(gradient.numpy(), np.full((2, 3), 3.0))
    assert module.unused.grad(gradients) is None
    assert len(gradients) == 1


def test_a_lazy_parameter_has_no_gradient_and_is_not_made_by_asking():
    """M63: neither itself nor another version; once it was used it has one."""
    made: list[Device] = []
    module = LazyLinear(2, 1, AUTODIFF, made)
    gradients = loss(Param(numbers(1, device=AUTODIFF))).backward()

    assert module.weight.grad(gradients) is None
    assert not made
    moved = module.to_device("cpu:1")
    gradients = loss(moved.weight).backward()
    assert len(made) == 1
    assert moved.weight.grad(gradients) is not None
    assert module.weight.grad(gradients) is None


@pytest.mark.parametrize("device", ["cpu:0", "cpu:1"])
def test_gradients_stay_on_a_fork(device: str):
    """M42, L30: it is a leaf of its own, on the same device too."""
    module = Holder(weight=Param(numbers(2, device=AUTODIFF)))
    forked = module.fork(device)
    gradients = loss(forked.weight).backward()
    gradient = forked.weight.grad(gradients)

    assert gradient is not None
    assert gradient.device == Device(device)
    assert np.array_equal(gradient.numpy(), [3.0, 3.0])
    assert module.weight.grad(gradients) is None
    assert len(gradients) == 1


def test_gradients_of_a_moved_module_reach_the_one_it_was_moved_from():
    """M41, L30: on the source's device, through several moves; the moved parameter retains none."""
    module = Holder(weight=Param(numbers(2, device=AUTODIFF)))
    moved = module.to_device("cpu:1").to_device("cpu:2")
    gradients = (loss(moved.weight) * 2.0).backward()
    gradient = module.weight.grad(gradients)

    assert gradient is not None
    assert str(gradient.device) == "cpu:0"
    assert np.array_equal(gradient.numpy(), [6.0, 6.0])
    assert moved.weight.grad(gradients) is None
    assert moved.weight.trainable


def test_a_moved_parameter_that_was_lazy_is_a_leaf_of_its_own():
    """D3: gradients stay with it, whoever makes the value."""
    for source_first in (True, False):
        module = LazyLinear(2, 1, AUTODIFF)
        moved = module.to_device("cpu:1")
        if source_first:
            module.weight.val()
        gradients = loss(moved.weight).backward()

        assert moved.weight.grad(gradients) is not None
        assert module.weight.grad(gradients) is None


def test_a_move_to_the_same_device_keeps_the_leaf():
    """D4: the same parameter, so the same gradient."""
    module = Holder(weight=Param(numbers(2, device=AUTODIFF)))
    moved = module.to_device("cpu:0")

    assert moved.weight is module.weight
    assert module.weight.grad(loss(moved.weight).backward()) is not None


def test_only_what_requires_a_gradient_gets_one():
    """L42, M51: of a module in part frozen, and of no snapshot."""
    params = {name: Param(numbers(2, device=AUTODIFF)) for name in ("a", "b")}
    module = Holder(**params).freeze_group(ParamGroup.from_path("b"))
    gradients = (loss(module.a) + loss(module.b)).backward()

    assert module.a.grad(gradients) is not None
    assert module.b.grad(gradients) is None
    assert params["b"].grad(gradients) is None
    assert not loss(module.valid().a).is_tracked
    assert not loss(module.no_grad().a).is_tracked


def test_versions_that_share_a_value_share_its_gradient():
    """M26: a clone, another id, other mappers; a switch that cuts makes a leaf of its own."""
    module = Holder(weight=Param(numbers(2, device=AUTODIFF)))
    gradients = loss(module.clone().weight).backward()

    for same in (module.weight, module.weight.with_id(5), module.weight.with_mappers(load=lambda tensor: tensor)):
        assert same.grad(gradients) is not None
    assert module.train().weight.grad(gradients) is not None
    assert module.no_grad().unfreeze().weight.grad(gradients) is None
    assert module.valid().train().weight.grad(gradients) is None


def test_a_tied_parameter_has_the_sum_of_the_gradients_of_its_places():
    """M11, D8: one object, one leaf; still so on the other device."""
    param = Param(numbers(2, device=AUTODIFF))
    module = Holder(a=param, b=param)
    for version in (module, module.fork("cpu:1"), module.freeze().unfreeze(), module.valid().train()):
        gradients = (loss(version.a, 1.0) + loss(version.b, 2.0)).backward()
        gradient = version.a.grad(gradients)

        assert len(gradients) == 1
        assert gradient is not None
        assert np.array_equal(gradient.numpy(), [3.0, 3.0])
