"""Reparameterizations: what is attached is seen by every walk below its parameter, and computes what layers see.

Two of them are written here as a user would write them: weight normalisation and a learned scale (A46).
"""

import inspect
import textwrap
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ops, tensor, zeros
from modules import (
    SGD,
    Module,
    ModuleError,
    ModuleMapper,
    Param,
    ParamGroup,
    PathError,
    Reparameterization,
    Reparameterizer,
    display,
)
from modules.tree import leaves
from tests.engine.strategies import values
from tests.laws.law import inside

from .reparameterizing import (
    By,
    Identities,
    Identity,
    LearnedScale,
    LearnedScales,
    SetTo,
    WeightNorm,
    WeightNormed,
    everything,
    holding,
)
from .small_modules import AUTODIFF, Block, Holder, LazyLinear, Linear, any_module, numbers, paths

SEEDS = st.integers(0, 2**32 - 1)


def floats_of(module: Module) -> list[str]:
    return [path for path, leaf in leaves(module) if isinstance(leaf, Param) and leaf.kind == "float"]


def state_of(module: Module) -> list[tuple[Any, ...]]:
    """What can be seen of each leaf without making it."""
    seen = ("id", "shape", "trainable", "is_initialized")
    return [(path, type(leaf), *(getattr(leaf, name, None) for name in seen)) for path, leaf in leaves(module)]


# What is attached, and what is seen of it


@inside("L84")
@given(made=any_module, number=st.integers(0, 2))
def test_an_identity_adds_only_its_own_paths_and_leaves_without_trace(made, number):
    """L84, A5, A33, A47: paths, ids, counts; the rest is as it was; materialize takes all of it away."""
    module, _ = made
    before = state_of(module)
    adapted = module.apply_reparameterization(Identities(number))

    own = [(path, f"{path}.identity.held.{i}") for path in floats_of(module) for i in range(number)]
    added = {inner for _, inner in own}
    assert [one for one in state_of(adapted) if one[0] not in added] == before
    assert [path for path, _ in leaves(adapted) if path in added] == [inner for _, inner in own]
    assert adapted.num_params() == module.num_params() + 2 * len(own)
    assert state_of(adapted.clone()) == state_of(adapted) == state_of(adapted.map(ModuleMapper()))
    assert state_of(module) == before

    for path in floats_of(module):
        assert adapted.at(path).val().tobytes() == module.at(path).val().tobytes()
    folded = adapted.materialize()
    assert [one[:-1] for one in state_of(folded)] == [one[:-1] for one in before]
    assert everything(folded) == everything(module)
    assert all(folded.at(path).reparameterization is None for path in floats_of(module))


@inside("L88")
@given(made=any_module)
def test_a_visit_a_map_and_the_paths_of_at_agree_on_what_is_attached(made):
    """A5, A8, M17, M111: base, then NAME as Reparameterization, what it holds, and out again; `at` finds each."""
    adapted = made[0].apply_reparameterization(Identities(1))
    events: list[tuple[Any, ...]] = []

    class Events(ModuleMapper):
        def map_float(self, path: str, param: Param, /) -> Param:
            events.append((path, param.id, param.reparameterization))
            return param

        def enter_module(self, name: str, container_type: str, /) -> None:
            events.append((name, container_type))

        def exit_module(self, name: str, container_type: str, /) -> None:
            events.append((container_type, name))

    class Visitor(Events):
        visit_float = Events.map_float
        visit_int = visit_bool = visit_flag = lambda self, path, leaf: None

    adapted.map(Events())
    mapped = list(events)
    events.clear()
    adapted.visit(Visitor())  # pyright: ignore[reportArgumentType]

    assert events == mapped
    for number, event in enumerate(mapped):
        if len(event) == 3 and event[0] in floats_of(made[0]):
            path, _, attached = event
            assert attached is None
            names = [("identity", "Reparameterization"), ("held", "Struct:Identity"), ("0", "Vec")]
            assert mapped[number + 1 : number + 4] == names
            assert mapped[number + 4][0] == f"{path}.identity.held.0"
            assert mapped[number + 5 : number + 8] == [tuple(reversed(name)) for name in reversed(names)]
            assert adapted.at(path).id == event[1]
            assert isinstance(adapted.at(f"{path}.identity"), Identity)
            assert adapted.at(f"{path}.identity.held.0") is adapted.at(path).reparameterization.held[0]


def test_a_reparameterizer_is_asked_about_parameters_of_floats_only_in_order():
    """A2, A3: no integers, flags, constants, and no running states, which are each module's own."""
    block, asked = Block(2), []
    adapted = block.apply_reparameterization(By(lambda path, param: (asked.append((path, param.id)), (param, None))[1]))

    assert asked == [("linear.weight", block.linear.weight.id), ("linear.bias", block.linear.bias.id)]
    assert adapted.mean is not block.mean
    assert adapted.mean.value() is block.mean.value()


def test_the_base_that_a_reparameterizer_gives_is_stored_in_every_case():
    """A2: also where it attaches nothing; this is how LoRA freezes."""
    adapted = Linear(2, 2).apply_reparameterization(By(lambda path, param: (param.set_require_grad(False), None)))

    assert not adapted.weight.trainable
    assert not adapted.bias.trainable


def test_a_parameter_shows_its_base_and_its_value_separately():
    """A6, A12, M28: `val` is computed, `base` is stored; shape, device and id are the base's."""
    module = holding(w=numbers(2, 3))
    adapted = module.apply_reparameterization(LearnedScales())
    param = adapted.w
    scaled = adapted.map(SetTo({"w.learned_scale.scale": tensor([3.0], device="cpu:0")}))

    assert isinstance(param.reparameterization, LearnedScale)
    assert module.w.reparameterization is None
    assert (param.id, param.shape, param.dtype, str(param.device)) == (module.w.id, (2, 3), np.float32, "cpu:0")
    assert param.base() is module.w.base()
    assert np.array_equal(scaled.w.val().numpy(), 3 * numbers(2, 3).numpy())
    assert np.array_equal(scaled.w.base().numpy(), numbers(2, 3).numpy())
    assert np.array_equal(param.val().numpy(), numbers(2, 3).numpy())
    assert param.val() is not param.val()
    assert "with learned_scale" in repr(param)


def test_a_lazy_base_stays_lazy_until_its_value_is_read():
    """A6, M25: shape, device, walks and switches make nothing."""
    made: list[Any] = []
    module = LazyLinear(2, 3, AUTODIFF, made)
    adapted = module.apply_reparameterization(LearnedScales())
    for version in (adapted, adapted.valid(), adapted.freeze(), adapted.fork("cpu:1"), adapted.clone()):
        assert version.weight.shape == (2, 3)
        assert version.num_params() == 7
        assert len(version.devices()) == 1
        assert not version.weight.is_initialized
        repr(version), display(version), repr(version.weight)
    assert not made

    assert adapted.weight.val().shape == (2, 3)
    assert len(made) == 1
    assert module.weight.is_initialized


def test_what_a_parameter_makes_of_itself_keeps_or_drops_its_reparameterization():
    """M29, M32, M53a: switches, ids and file mappers keep it; map and an init mapper drop it."""
    param = holding(w=numbers(2, device=AUTODIFF)).apply_reparameterization(LearnedScales()).w
    attached = param.reparameterization
    frozen = param.set_require_grad(False)

    assert frozen.reparameterization is attached
    assert not frozen.trainable
    assert not frozen.base().is_require_grad
    assert param.set_require_grad(True) is param
    assert param.with_id(5).reparameterization is attached
    assert param.with_id(5).id == 5
    assert param.with_mappers(load=lambda value: value).reparameterization is attached
    assert param.map(lambda base: base + 1).reparameterization is None
    assert param.with_mappers(init=lambda value: value + 1).reparameterization is None
    assert Param.initialized(*param.consume()).reparameterization is None
    assert param.consume()[1] is param.base()


def test_a_path_below_a_parameter_that_is_not_there_is_refused_with_the_nearest():
    """DESIGN, at."""
    adapted = Linear(2, 2).apply_reparameterization(LearnedScales())

    with pytest.raises(PathError, match=r"weight.learned_scale.scale'"):
        adapted.at("weight.learned_scale.scal")
    with pytest.raises(PathError):
        Linear(2, 2).at("weight.learned_scale")


def test_display_counts_factors_without_showing_them_and_repr_shows_them():
    """M101, DESIGN."""
    adapted = Linear(2, 3).freeze().apply_reparameterization(LearnedScales())

    assert display(adapted.weight) == "ParamTensor {rank: 2, shape: [2, 3], kind: float}"
    assert "params: 11\n" in display(adapted)
    assert "learned_scale" not in display(adapted)
    assert "weight: float32 [2, 3] frozen + learned_scale (scale [1])" in repr(adapted)


# Weight normalisation and a learned scale


@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4), axis=st.integers(0, 3), seed=SEEDS)
def test_weight_normalisation_is_numpys_and_starts_as_the_weight(shape, axis, seed):
    """A46: for any rank, within rounding; rank 1 has none; then g scales the directions."""
    axis = min(axis, len(shape) - 1)
    weight = values(tuple(shape), np.dtype("float32"), seed)
    module = holding(w=tensor(weight.tolist(), device="cpu:0", dtype="float32").reshape(*shape))
    adapted = module.apply_reparameterization(WeightNormed(axis))
    if len(shape) < 2:
        assert adapted.w.reparameterization is None
        return
    assert np.allclose(adapted.w.val().numpy(), weight, rtol=1e-5)

    others = tuple(i for i in range(len(shape)) if i != axis)
    norm = np.sqrt((weight.astype(float) ** 2).sum(axis=others, keepdims=True))
    g = 1 + np.arange(norm.size, dtype=np.float32).reshape(norm.shape)
    scaled = adapted.map(SetTo({"w.weight_norm.g": tensor(g.tolist(), device="cpu:0").reshape(*g.shape)}))
    assert np.allclose(scaled.w.val().numpy(), weight * (g / norm), rtol=1e-4, atol=1e-6)


def test_base_and_factor_train_together():
    """A10, A46: gradients of both, as worked out by hand; a step changes both."""
    weight, g = np.array([[3.0, 1.0], [4.0, 1.0]]), 1.0
    module = holding(w=tensor(weight.tolist(), device=AUTODIFF)).apply_reparameterization(WeightNormed(axis=1))
    upstream = np.array([[1.0, 2.0], [3.0, 4.0]])
    gradients = ops.sum(module.w.val() * tensor(upstream.tolist(), device="cpu:0")).backward()

    norm = np.sqrt((weight**2).sum(axis=0, keepdims=True))
    along = (upstream * weight).sum(axis=0, keepdims=True) / norm
    attached = module.w.reparameterization
    assert isinstance(attached, WeightNorm)
    grad_g, grad_w = attached.g.grad(gradients), module.w.grad(gradients)
    assert grad_g is not None
    assert grad_w is not None
    assert np.allclose(grad_g.numpy(), along, rtol=1e-5)
    assert np.allclose(grad_w.numpy(), g * (upstream - along * weight / norm), rtol=1e-4, atol=1e-5)

    stepped = SGD(0.1).step(module, gradients)
    assert np.allclose(stepped.at("w.weight_norm.g").base().numpy(), norm - 0.1 * along, rtol=1e-5)
    assert np.allclose(stepped.w.base().numpy(), weight - 0.1 * grad_w.numpy(), rtol=1e-5)
    assert isinstance(stepped.w.reparameterization, WeightNorm)


def test_the_example_of_the_docs_runs():
    """The docstring of Reparameterization."""
    text = inspect.getdoc(Reparameterization) or ""
    code = textwrap.dedent(text.partition("::\n")[2].partition("Source:")[0])
    module = Linear(2, 3)
    names: dict[str, Any] = {
        "model": module,
        **{one.__name__: one for one in (Param, Reparameterization, Reparameterizer)},
        "ops": ops,
    }
    exec(code, names)

    adapted = names["model"]
    assert paths(adapted) == ["weight", "weight.weight_norm.g", "bias"]
    assert adapted.at("weight.weight_norm.g").shape == (1, 3)
    assert np.allclose(adapted.weight.val().numpy(), module.weight.val().numpy(), rtol=1e-6)


@inside("L88")
def test_switches_groups_and_flags_reach_what_is_attached_by_its_own_path():
    """A26, A46, M91: base only, factor only, both; the flag with `freeze` and `valid`."""
    adapted = holding(w=numbers(2, device=AUTODIFF)).apply_reparameterization(LearnedScales())

    def trains(module: Any) -> tuple[bool, bool, bool]:
        scale = module.w.reparameterization
        return module.w.base().is_require_grad, scale.scale.val().is_require_grad, scale.enabled.is_enabled

    base, factor = ParamGroup.from_path("w"), ParamGroup.from_predicate("learned_scale")
    assert trains(adapted) == (True, True, True)
    assert trains(adapted.freeze_group(base)) == (False, True, True)
    assert trains(adapted.freeze_group(factor)) == (True, False, False)
    assert trains(adapted.freeze()) == trains(adapted.valid()) == (False, False, False)
    assert trains(adapted.valid().train()) == (True, True, True)
    assert trains(adapted.no_grad()) == (False, False, True)
    assert trains(adapted.set_require_grad_group(factor, False)) == (True, False, True)
    assert (base | factor).paths(adapted) == paths(adapted) == ["w", "w.learned_scale.scale", "w.learned_scale.enabled"]
    assert ParamGroup.ids_from_module(adapted).paths(adapted) == paths(adapted)


# What is refused


@inside("L91")
def test_a_second_one_is_refused_naming_the_first_path():
    """A4: nothing is changed."""
    module = Holder(a=Linear(2, 2), b=Linear(2, 2))
    adapted = module.apply_reparameterization(LearnedScales(ParamGroup.from_predicate("b.")))

    with pytest.raises(ModuleError, match=r"^apply_reparameterization: b\.weight has a reparameterization already"):
        adapted.apply_reparameterization(Identities(1))
    assert adapted.materialize().apply_reparameterization(Identities(1)) is not None


def adapted_param() -> Param:
    return holding(w=numbers(1)).apply_reparameterization(LearnedScales()).w


def nested(path: str, param: Param) -> Any:
    return param, Identity([adapted_param()])


class Nameless(Reparameterization):
    """One without NAME."""

    def apply(self, base: Any, /) -> Any:
        return base


class Numbered(Nameless):
    """One with a NAME that is no string."""

    NAME = 3  # pyright: ignore[reportAssignmentType]


class Dotted(Nameless):
    """One with a NAME that is no component of a path."""

    NAME = "a.b"


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda path, param: param, ModuleError, r"reparameterize of 'weight' gave"),
    (lambda path, param: (param, 3), ModuleError, r"reparameterize of 'weight' gave"),
    (lambda path, param: (param.base(), None), ModuleError, r"reparameterize of 'weight' gave"),
    (lambda path, param: (param, Linear(2, 2)), ModuleError, r"reparameterize of 'weight' gave"),
    (lambda path, param: (adapted_param(), None), ModuleError, "already"),
    (nested, ModuleError, r"weight\.identity\.held\.0, a parameter of a reparameterization"),
    (lambda path, param: (param, Nameless()), PathError, "reparameterize of 'weight': class Nameless has no NAME"),
    (lambda path, param: (param, Numbered()), PathError, "class Numbered has NAME 3; it must be a string"),
    (lambda path, param: (param, Dotted()), PathError, "a.b"),
    (
        lambda path, param: (param, Identity([Param(zeros((1,) * 9, device="cpu:0"))])),
        ModuleError,
        r"weight\.identity\.held\.0 has rank 9",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "error", "message"), REFUSED)
def test_an_answer_that_cannot_be_attached_is_refused_naming_the_path(answer, error, message):
    """A1, A4, M18."""
    with pytest.raises(error, match=message):
        Linear(2, 2).apply_reparameterization(By(answer))


def test_factors_of_rank_8_and_bases_of_any_rank_are_taken():
    """A11, M18."""
    module = holding(w=zeros((1,) * 10, device="cpu:0"), s=tensor(3.0, device="cpu:0"))
    adapted = module.apply_reparameterization(
        By(lambda path, param: (param, Identity([Param(zeros((1,) * 8, device="cpu:0"))])))
    )

    assert adapted.num_params() == 4
    assert adapted.s.val().shape == ()
    assert adapted.w.val().ndim == 10


def test_only_a_reparameterizer_can_be_applied():
    """DESIGN: and a settings class that is none says so."""
    with pytest.raises(TypeError, match="apply_reparameterization takes a Reparameterizer"):
        Linear(2, 2).apply_reparameterization(LearnedScale("cpu:0"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(PathError, match="apply"):
        type("Bad", (LearnedScale,), {"__init__": lambda self: setattr(self, "apply", 3)})()
    with pytest.raises(TypeError, match="abstract"):
        Reparameterization()  # pyright: ignore[reportAbstractUsage]


class Giving(Reparameterization):
    """Gives what it is given, whatever the base."""

    NAME = "giving"

    def __init__(self, value: Any) -> None:
        self.value = value

    def apply(self, base: Any, /) -> Any:
        return self.value


@pytest.mark.parametrize("given_value", [3.0, numbers(4), tensor([[1, 2], [3, 4]], device="cpu:0")])
def test_a_value_that_is_no_floats_of_the_bases_rank_is_refused(given_value):
    """A1: when it is read, and by materialize with the path."""
    adapted = Holder(a=Linear(2, 2)).apply_reparameterization(
        By(lambda path, param: (param, Giving(given_value) if path == "a.weight" else None))
    )
    with pytest.raises(ModuleError, match=r"Giving\.apply gave"):
        adapted.a.weight.val()
    with pytest.raises(ModuleError) as caught:
        adapted.materialize()
    assert caught.value.__notes__ == ["at a.weight"]


def test_what_a_mapper_attaches_to_a_base_is_lost_and_to_a_factor_refused():
    """M17: what there was is joined again; A4 within."""
    other = holding(w=numbers(2, 2)).apply_reparameterization(Identities(0)).w
    adapted = holding(w=numbers(2, 2)).apply_reparameterization(LearnedScales())

    class Swapping(ModuleMapper):
        def __init__(self, at: str) -> None:
            self.at = at

        def map_float(self, path: str, param: Param, /) -> Param:
            return other if path == self.at else param

    mapped = adapted.map(Swapping("w"))
    assert isinstance(mapped.w.reparameterization, LearnedScale)
    assert mapped.w.id == other.id
    assert [getattr(leaf, "reparameterization", None) for _, leaf in leaves(mapped)] == [None] * 3
    with pytest.raises(ModuleError, match=r"w\.learned_scale\.scale, a parameter of a reparameterization, has one"):
        adapted.map(Swapping("w.learned_scale.scale"))
