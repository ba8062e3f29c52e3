"""Optimizers: which parameters a step changes and how it leaves them, settings, groups, and what errors leave."""

import copy
from typing import Any

import numpy as np
import pytest

from engine import AutodiffError, Gradients, Seed, ops, randn, tensor, transfer
from examples.mlp import Mlp
from modules import SGD, Adam, AdamW, Flag, Module, ModuleError, Param, ParamGroup
from modules.nn import Linear
from modules.parallel import DistributedLayeredModel, LayerPlacement
from records import ParamId
from tests.laws.law import inside

from .optimizing import OPTIMIZERS, STATEFUL, Three, array, gradients_of, states, values
from .small_modules import Holder, LazyLinear, numbers

each = pytest.mark.parametrize("name", OPTIMIZERS)
each_stateful = pytest.mark.parametrize("name", STATEFUL)

WEIGHT = ParamGroup.from_path("weight")


@each
def test_a_step_changes_what_has_a_gradient_and_nothing_else(name):
    """Weight decay and old momentum do not reach the others; the module stepped stays as it was (principle 1)."""
    optimizer, module = OPTIMIZERS[name](), Three()
    module = optimizer.step(module, gradients_of(module, "weight", "bias"))
    before = values(module)
    stepped = optimizer.step(module, gradients_of(module, "weight"))

    assert values(module) == before
    assert {path for path, bits in values(stepped).items() if bits != before[path]} == {"weight"}
    assert stepped.bias is module.bias
    assert stepped.steps is module.steps
    assert stepped.mean is not module.mean


@each
def test_an_updated_parameter_is_a_leaf_with_its_id_and_settings(name):
    """On autodiff, without history; its mappers stay (section 3 of laws.md)."""
    module = Three()
    mapped = module.weight.with_mappers(save=lambda x: x * 2.0)
    module = module.replace(weight=mapped)
    stepped = OPTIMIZERS[name]().step(module, gradients_of(module, "weight"))

    param = stepped.weight
    assert param.id == module.weight.id
    assert param.trainable
    assert param.mappers == mapped.mappers
    assert param.base().is_require_grad
    assert param.base().device.is_autodiff
    assert len(param.base().backward(numbers(2, 2).cast(param.dtype))) == 1
    assert param.base().dtype == module.weight.dtype


@each
def test_a_lazy_parameter_is_neither_made_nor_changed(name):
    """It can have no gradient."""
    made: list[Any] = []
    module = Holder(lazy=LazyLinear(2, 2, "cpu:0+autodiff", made), weight=Param(numbers(2, 2, device="cpu:0+autodiff")))
    stepped = OPTIMIZERS[name]().step(module, gradients_of(module, "weight"))
    assert made == []
    assert not stepped.at("lazy.weight").is_initialized


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@each
def test_every_float_dtype_can_be_trained_and_keeps_its_dtype(name, dtype):
    """Halves near their float32 twin, to one rounding a step; what is kept for them is float32."""
    optimizer, module = OPTIMIZERS[name](), Three(dtype=dtype)
    twin_optimizer, twin = OPTIMIZERS[name](), Three(dtype="float64")
    for _ in range(3):
        module = optimizer.step(module, gradients_of(module, "weight"))
        twin = twin_optimizer.step(twin, gradients_of(twin, "weight"))
    assert module.weight.dtype == dtype
    assert {str(entry.dtype) for entry in optimizer.into_record().values()} <= {
        "float64" if dtype == "float64" else "float32"
    }
    tolerance = {"float64": 1e-12, "float16": 8e-3, "bfloat16": 6e-2}[dtype]
    np.testing.assert_allclose(array(module, "weight").astype("float64"), array(twin, "weight"), atol=tolerance)


@each
def test_tied_places_are_updated_once_and_stay_tied(name):
    """D8: one update for one Param object, as if it stood once."""
    param = Param(numbers(2, 2, device="cpu:0+autodiff"))
    tied, once = Holder(a=param, inner=Holder(b=param)), Holder(a=param)
    tied_optimizer, optimizer = OPTIMIZERS[name](), OPTIMIZERS[name]()
    for _ in range(2):
        tied = tied_optimizer.step(tied, gradients_of(tied, "a"))
        once = optimizer.step(once, gradients_of(once, "a"))
        assert tied.at("a") is tied.at("inner.b")
        assert tied.at("a").base().tobytes() == once.at("a").base().tobytes()
    assert states(tied_optimizer) == states(optimizer)


def test_a_group_has_a_tied_parameter_if_it_matches_one_of_its_places():
    """It stays tied: one id has one state."""
    param = Param(numbers(2, device="cpu:0+autodiff"))
    module = Holder(a=param, b=param)
    for path in ("a", "b"):
        optimizer = SGD(1.0, groups=[(ParamGroup.from_path(path), {"lr": 0.0})])
        stepped = optimizer.step(module, gradients_of(module, "a"))
        assert stepped.at("a") is stepped.at("b")
        assert array(stepped, "a").tolist() == array(module, "a").tolist()


@each_stateful
def test_two_parameters_of_one_id_have_no_state_in_common(name):
    """They are refused, by both paths: whose state it is cannot be known. One of them frozen is fine."""
    param = Param(numbers(2, device="cpu:0+autodiff"))
    module = Holder(a=param, b=param.map(lambda x: (x * 2.0).detach().set_require_grad(True)))
    optimizer = OPTIMIZERS[name]()
    with pytest.raises(ModuleError, match=rf"a and b are two parameters with the id {param.id}.*with_id"):
        optimizer.step(module, gradients_of(module, "a", "b"))
    assert states(optimizer) == {"states": 0}
    optimizer.step(module, gradients_of(module, "b"))


@inside("L43")
@each
def test_what_is_frozen_stays_frozen(name):
    """Parameters with e = False, running states, and a snapshot taken before; weight decay on (M51, M55)."""
    module = Holder(part=Three(), rest=Three(), training=Flag(True)).freeze_group(ParamGroup.from_predicate("rest"))
    snapshot, optimizer = module.valid(), OPTIMIZERS[name]()
    frozen, taken = values(module.rest), values(snapshot)
    for _ in range(2):
        module = optimizer.step(module, gradients_of(module, "part.weight", "part.bias"))
    assert values(module.rest) == frozen
    assert values(snapshot) == taken
    assert values(module.part) != values(snapshot.part)


def split(devices: list[str], seed: int = 0) -> DistributedLayeredModel[Mlp]:
    """The residual network of the README over autodiff devices."""
    placement = LayerPlacement.even([f"{device}+autodiff" for device in devices], 4)
    return DistributedLayeredModel(Mlp(placement, Seed(seed)), placement)


def trained(model: Any, optimizer: Any, steps: int = 3, first: int = 0, between: Any = lambda model: model) -> Any:
    """The model after some steps on its mean squared error, each step on data of its own."""
    for step in range(first, first + steps):
        x = randn((5, 4), seed=step, device="cpu:0")
        y = model(x)
        loss = ops.mse(y, randn((5, 3), seed=100 + step, device=y.device))
        model = between(optimizer.step(model, loss.backward()))
    return model


@inside("L120")
@each
def test_training_split_is_training_unsplit_bit_for_bit(name):
    """Same seed, same parameters and state; each parameter and its state stay on their layer's device (P59, P60)."""
    whole_optimizer, whole = OPTIMIZERS[name](), split(["cpu:0"])
    whole = trained(whole, whole_optimizer)
    for devices in (["cpu:0", "cpu:1"], ["cpu:2", "cpu:0", "cpu:1", "cpu:2"]):
        optimizer = OPTIMIZERS[name]()
        model = trained(split(devices), optimizer)
        assert values(model) == values(whole)
        by_path = {path: model.at(path).id for path in values(model)}
        expected = {path: whole.at(path).id for path in values(whole)}
        found, other = optimizer._states, whole_optimizer._states
        for path, id_ in by_path.items():
            assert (id_ in found) == (expected[path] in other)
            for kept, value in found[id_].kept.items() if id_ in found else ():
                assert value.device == model.at(path).device
                assert value.tobytes() == other[expected[path]].kept[kept].tobytes()
        assert [device.inner() for device in model.placement.devices()] == LayerPlacement.even(devices, 4).devices()


@inside("L120")
@each
def test_clones_forks_and_records_in_between_change_no_bit(name):
    """Training is a function of its inputs."""
    optimizer, reference = OPTIMIZERS[name](), OPTIMIZERS[name]()

    def between(model: Any) -> Any:
        forked = model.model.clone().fork("cpu:3").load_record(model.into_record())
        optimizer.into_record()
        return DistributedLayeredModel(forked.fork("cpu:0"), model.placement)

    model = trained(split(["cpu:0"]), optimizer, between=between)
    assert values(model) == values(trained(split(["cpu:0"]), reference))


@each_stateful
def test_the_state_follows_a_parameter_to_its_new_device(name):
    """P60: copied once, at the next step, and counted."""
    optimizer, module = OPTIMIZERS[name](), Three()
    module = optimizer.step(module, gradients_of(module, "weight"))
    moved = module.fork("cpu:1")
    with transfer.log() as log:
        moved = optimizer.step(moved, gradients_of(moved, "weight"))
    assert log.copies == len(optimizer.KEPT)
    with transfer.log() as log:
        optimizer.step(moved, gradients_of(moved, "weight"))
    assert log.copies == 0
    assert {tensor.device for state in optimizer._states.values() for tensor in state.kept.values()} == {
        moved.bias.device
    }


@each
def test_gradients_of_another_version_are_refused(name):
    """A step makes new leaves; the message says what happened. No gradients at all change nothing."""
    optimizer, module = OPTIMIZERS[name](), Three()
    gradients = gradients_of(module, "weight")
    stepped = optimizer.step(module, gradients)
    before = states(optimizer)
    with pytest.raises(AutodiffError, match=r"none of the gradients is of a parameter of this module.*another version"):
        optimizer.step(stepped, gradients)
    assert states(optimizer) == before
    same = optimizer.step(stepped, Gradients({}))
    assert values(same) == values(stepped)
    assert states(optimizer) == before


@each
def test_gradients_of_which_some_are_stale_or_of_nobody_step_the_others(name):
    """A parameter without a gradient is left alone; `Param.grad` tells which one has none (M73)."""
    optimizer, module, other = OPTIMIZERS[name](), Three(), Three()
    gradients = gradients_of(module, "weight", "bias") + gradients_of(other, "weight")
    newer = optimizer.step(module, gradients_of(module, "weight"))
    assert newer.bias is module.bias
    stepped = optimizer.step(newer, gradients)
    assert newer.weight.grad(gradients) is None
    assert newer.bias.grad(gradients) is not None
    assert stepped.weight is newer.weight
    assert values(stepped)["bias"] != values(newer)["bias"]
    assert optimizer.step(other, gradients).bias is other.bias


@each
def test_a_module_that_to_device_moved_is_refused_with_the_way_out(name):
    """M41, M49: no leaf; a fork is one, and so is what is lazy (D3)."""
    optimizer, module = OPTIMIZERS[name](), Linear(3, 2, device="cpu:0+autodiff", seed=0)
    x = randn((4, 3), seed=1, device="cpu:1")

    def gradients(of: Module) -> Gradients:
        return ops.sum(of(x)).backward()  # pyright: ignore[reportCallIssue]

    lazy = module.to_device("cpu:1")
    assert values(optimizer.step(lazy, gradients(lazy))) != values(lazy)
    for moved in (module.to_device("cpu:1"), module.freeze_group(WEIGHT).to_device("cpu:1")):
        before = states(optimizer)
        path = "weight" if moved.weight.trainable else "bias"
        with pytest.raises(AutodiffError, match=rf"step: .* {path} was moved by to_device.*no leaf any more.*use fork"):
            optimizer.step(moved, gradients(moved))
        assert states(optimizer) == before
        with pytest.raises(AutodiffError, match=r"moved by to_device is no leaf any more: use fork"):
            gradients(moved)
    forked = module.fork("cpu:1")
    assert values(optimizer.step(forked, gradients(forked))) != values(forked)


def test_gradients_of_micro_batches_scaled_are_those_of_the_whole_batch():
    """Their sum over the number of batches, as the docstring of Gradients has it."""
    module = Linear(3, 2, device="cpu:0+autodiff", dtype="float64", seed=0)
    x, target = (randn((8, width), seed=width, device="cpu:0", dtype="float64") for width in (3, 2))
    whole = ops.mse(module(x), target).backward()
    one, other = (ops.mse(module(x[part]), target[part]).backward() for part in (slice(0, 4), slice(4, 8)))
    mean = (one + other).map(lambda gradient: gradient * 0.5)
    for path in ("weight", "bias"):
        param = module.at(path)
        np.testing.assert_allclose(param.grad(mean).numpy(), param.grad(whole).numpy(), rtol=1e-12)
    assert values(SGD(0.1).step(module, mean)) != values(module)


def test_an_epsilon_of_0_divides_by_0_only_where_all_gradients_were_0():
    """m̂ / √v̂ is 0 / 0 there, and ±1 at a first step elsewhere."""
    for optimizer in (Adam(0.5, epsilon=0), AdamW(0.5, epsilon=0, weight_decay=0)):
        module = Holder(weight=Param(numbers(3, device="cpu:0+autodiff")))
        value = module.weight.val()
        gradients = value.backward(tensor([2.0, 0.0, -3.0], device="cpu:0"))
        np.testing.assert_allclose(array(optimizer.step(module, gradients), "weight"), [0.5, np.nan, 3.5], rtol=1e-6)


@pytest.mark.parametrize("lr", [1e300, 1.7e308])
@each
def test_a_rate_that_no_float32_holds_shows_in_the_values(name, lr):
    """Every finite rate is taken; nothing warns or raises, and nothing is hidden."""
    optimizer, module = OPTIMIZERS[name](), Three()
    optimizer.lr = lr  # pyright: ignore[reportAttributeAccessIssue]
    stepped = optimizer.step(module, gradients_of(module, "weight"))
    assert not np.isfinite(array(stepped, "weight")).any()


@each_stateful
def test_an_error_on_the_way_leaves_module_and_optimizer_as_they_were(name):
    """The second parameter's state is of another shape: the first one's is not advanced either."""
    optimizer, module = OPTIMIZERS[name](), Three()
    module = optimizer.step(module, gradients_of(module, "weight", "bias"))
    reshaped = module.replace(bias=Param(numbers(3, device="cpu:0+autodiff")).with_id(module.bias.id))
    before = states(optimizer), values(reshaped)
    with pytest.raises(ModuleError, match=r"bias has shape \[3\] and needs a \w+ of float32.*shape \[2\]"):
        optimizer.step(reshaped, gradients_of(reshaped, "weight", "bias"))
    assert (states(optimizer), values(reshaped)) == before
    cast = module.replace(bias=Param(numbers(2, device="cpu:0+autodiff").cast("float64")).with_id(module.bias.id))
    with pytest.raises(ModuleError, match=r"needs a \w+ of float64.*float32"):
        optimizer.step(cast, gradients_of(cast, "bias"))


def test_settings_of_groups_take_the_place_of_the_optimizer_s_and_the_first_match_wins():
    """p − lr · g, so the difference tells the rate."""
    module = Three()
    everything = ParamGroup.all()
    optimizer = SGD(1.0, groups=((WEIGHT, {"lr": 0.5}), (everything, {"lr": 0.25})))
    for rates in ((0.5, 0.25), (1.0, 1.0)):
        stepped = optimizer.step(module, gradients_of(module, "weight", "bias"))
        for path, rate in zip(("weight", "bias"), rates, strict=True):
            gradient = np.arange(array(module, path).size).reshape(array(module, path).shape) - 1.5
            np.testing.assert_allclose(array(module, path) - array(stepped, path), rate * gradient, atol=1e-6)
        optimizer.groups = ()
    optimizer.groups = [(WEIGHT, {"lr": 0.0})]
    optimizer.lr = 2.0
    assert optimizer.groups[0][1] == {"lr": 0.0}
    assert (
        optimizer.step(module, gradients_of(module, "weight")).weight.base().tobytes() == module.weight.base().tobytes()
    )


def test_settings_may_be_assigned_between_steps_and_count_from_then_on():
    """And are read back."""
    module, optimizer = Three(), SGD(0.5)
    optimizer.lr = 0
    assert values(optimizer.step(module, gradients_of(module, "weight"))) == values(module)
    optimizer.momentum = 0.9
    optimizer.nesterov = True
    assert (optimizer.lr, optimizer.momentum, optimizer.nesterov, optimizer.weight_decay) == (0.0, 0.9, True, 0.0)
    other = AdamW()
    other.betas = [0.5, 0.25]  # pyright: ignore[reportAttributeAccessIssue]
    assert (other.lr, other.betas, other.epsilon, other.weight_decay) == (1e-3, (0.5, 0.25), 1e-8, 1e-2)
    assert (Adam().weight_decay, Adam().betas) == (0.0, (0.9, 0.999))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1}, r"SGD: lr is -1; it must be a finite number of 0 or more"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"lr": float("inf")}, "lr is inf"),
        ({"lr": 10**400}, "lr is 1000"),
        ({"lr": True}, "lr is True"),
        ({"lr": "0.1"}, "lr is '0.1'"),
        ({"lr": tensor(0.1, device="cpu:0")}, "lr is Tensor"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"nesterov": 1, "momentum": 0.9}, "nesterov is 1; it must be True or False"),
        ({"nesterov": True}, "nesterov is True and momentum is 0"),
        ({"weight_decay": -1e-9}, "weight_decay is -1e-09"),
        ({"groups": {"lr": 1}}, "pairs of a ParamGroup and its settings"),
        ({"groups": 3}, "pairs of a ParamGroup and its settings"),
        ({"groups": ["weight"]}, "'weight' is no pair"),
        ({"groups": [("weight", {"lr": 1})]}, r"no pair.*ParamGroup.from_regex"),
        ({"groups": [(WEIGHT, {"rate": 1})]}, r"SGD.groups\[0\]: there is no setting 'rate'; there are lr, momentum"),
        ({"groups": [(WEIGHT, {}), (WEIGHT, {"lr": -1})]}, r"SGD.groups\[1\]: lr is -1"),
        ({"groups": [(WEIGHT, {"nesterov": True})]}, r"SGD.groups\[0\]: nesterov is True and momentum is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    """When the optimizer is made and when one is assigned, which then changes nothing."""
    with pytest.raises(ModuleError, match=message):
        SGD(**{"lr": 0.1, **settings})
    optimizer = SGD(0.1)
    before = repr(optimizer)
    (name, value), *more = reversed(settings.items())
    if not more or name == "nesterov":
        with pytest.raises(ModuleError, match=message):
            setattr(optimizer, name, value)
        assert repr(optimizer) == before


@pytest.mark.parametrize("betas", [0.9, (0.9,), (0.9, 1.0), (-0.1, 0.9), (0.9, "0.9"), (0.9, 0.9, 0.9)])
def test_betas_are_two_numbers_below_1(betas):
    with pytest.raises(ModuleError, match="Adam: betas is .*two numbers from 0 up to, without, 1"):
        Adam(betas=betas)


def test_an_assigned_setting_meets_the_groups_too():
    """A group that leaves out momentum takes the optimizer's, so taking that away is refused while Nesterov's is on."""
    optimizer = SGD(0.1, momentum=0.9, groups=[(WEIGHT, {"nesterov": True})])
    with pytest.raises(ModuleError, match=r"groups\[0\]: nesterov"):
        optimizer.momentum = 0
    assert optimizer.momentum == 0.9
    with pytest.raises(AttributeError):
        optimizer.learning_rate = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_other_arguments_are_refused_by_what_they_are():
    module, optimizer = Three(), SGD(0.1)
    with pytest.raises(TypeError, match="SGD.step takes a Module and its gradients, not a Gradients"):
        optimizer.step(gradients_of(module, "weight"), module)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="the Gradients that backward"):
        optimizer.step(module, [1])  # pyright: ignore[reportArgumentType]


@each
def test_a_copy_of_an_optimizer_goes_its_own_way(name):
    """Its state is a value of its own."""
    optimizer, module = OPTIMIZERS[name](), Three()
    module = optimizer.step(module, gradients_of(module, "weight"))
    for other in (copy.copy(optimizer), copy.deepcopy(optimizer)):
        before = states(optimizer)
        one = other.step(module, gradients_of(module, "weight"))
        assert states(optimizer) == before
        assert values(one) != values(module)


def test_repr_tells_settings_and_how_much_is_kept():
    module, optimizer = Three(), SGD(0.1, momentum=0.5, groups=[(WEIGHT, {"lr": 0.2})])
    optimizer.step(module, gradients_of(module, "weight", "bias"))
    assert repr(optimizer) == (
        "SGD(lr=0.1, momentum=0.5, nesterov=False, weight_decay=0.0, "
        "groups=((from_paths(['weight']), {'lr': 0.2}),); state of 2 parameters)"
    )


def test_a_model_learns_what_it_is_shown():
    """A linear map from its inputs and outputs, by every optimizer; so signs and scales are right in use."""
    x = randn((64, 3), seed=1, device="cpu:0")
    truth = randn((3, 2), seed=2, device="cpu:0")
    for optimizer in (
        SGD(0.1, momentum=0.9),
        SGD(0.1, momentum=0.9, nesterov=True),
        Adam(0.1),
        AdamW(0.1, weight_decay=0),
    ):
        layer: Module = Linear(3, 2, device="cpu:0+autodiff", seed=3)
        for _ in range(150):
            layer = optimizer.step(layer, ops.mse(layer(x), x @ truth).backward())
        assert abs(array(layer, "weight") - truth.numpy()).max() < 1e-2


def test_ids_of_what_is_kept_are_the_parameters():
    module, optimizer = Three(), Adam()
    optimizer.step(module, gradients_of(module, "weight"))
    assert set(optimizer._states) == {module.weight.id}
    assert all(isinstance(id_, ParamId) for id_ in optimizer._states)
