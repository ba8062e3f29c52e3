"""Laws of layers that behave otherwise in training (L41, L43): dropout and batch normalisation.

A layer is in training where its flag is on and what it is given is autodiff,
whatever its parameters are (M53, M69, M98).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from . import operations as op
from .calls import all_bits, applied, built, read
from .generators import pick
from .group_expressions import Paths
from .law import law
from .layered import BATCH, DROP, LayeredSpec, LayerSpec, Placement, Signal
from .layered_calls import ran
from .layered_expected import Array
from .observations import FlagMeta
from .programs import SWITCHES, operation
from .protocol import Adapter, Handle
from .spec_tree import ConfigSpec, ConstantSpec, FlagSpec, Node, ParamSpec, Printed, RunningSpec, StructSpec, Value

FORWARDS: Final = 3
ROWS: Final = 8
WIDTH: Final = 3


@dataclass(frozen=True, repr=False)
class Living(Printed):
    """A model of one layer with state, switches that are thrown first, and whether its input is autodiff.

    `inputs` are the numbers of the tensors that it is given one after the other.
    """

    spec: LayeredSpec
    switches: tuple[op.Op, ...]
    autodiff: bool
    inputs: tuple[Array, ...]

    @property
    def path(self) -> str:
        """Of the layer's module."""
        return f"blocks.0.{'dropout' if self.spec.layers[1].step == DROP else 'norm'}"

    def signal(self, x: Array) -> Signal:
        device = self.spec.placement.plain.input + "+autodiff" * self.autodiff
        return Signal(ConstantSpec(Value("float64", x.shape, x.tobytes(), device)))


def numbers(x: Array) -> Value:
    """A value of float64 numbers."""
    array = np.asarray(x, np.float64)
    return Value("float64", array.shape, array.tobytes())


@st.composite
def living(draw: DrawFn, adapter: Adapter, layer: LayerSpec, rows: int) -> Living:
    """A model of one such layer in any training state, and inputs of eighths, no zeros among them."""
    device = pick(draw, adapter.grammar.devices) + pick(draw, ("+autodiff", ""))
    still = LayerSpec("identity")
    spec = LayeredSpec((still, layer, still), Placement(device, (device,), device), "float64")
    switches: list[op.Op] = []
    for _ in range(draw(st.integers(0, 3))):
        switches.append(draw(operation(pick(draw, SWITCHES), spec.tree, adapter.grammar)))
    inputs: list[Array] = []
    for _ in range(FORWARDS):
        drawn = draw(st.lists(st.integers(1, 40), min_size=rows * WIDTH, max_size=rows * WIDTH))
        signs = np.where(np.arange(len(drawn)) % 3 == 0, -1, 1)
        inputs.append((np.array(drawn, np.float64) / 8 * signs).reshape(rows, WIDTH))
    return Living(spec, tuple(switches), pick(draw, (True, True, False)), tuple(inputs))


@st.composite
def dropping(draw: DrawFn, adapter: Adapter) -> Living:
    fields = (("prob", ConfigSpec(pick(draw, (0.5, 0.25, 0.75, 0.0)))), ("training", FlagSpec(draw(st.booleans()))))
    case = draw(living(adapter, LayerSpec(DROP, (("dropout", StructSpec(fields, "Dropout")),)), 2))
    return Living(case.spec, case.switches, case.autodiff, tuple(np.tile(x, (32, 1)) for x in case.inputs))


@st.composite
def normalising(draw: DrawFn, adapter: Adapter) -> Living:
    eighths = st.integers(-16, 16).map(lambda number: number / 8)
    row = st.lists(eighths, min_size=WIDTH, max_size=WIDTH).map(np.array)
    gamma, beta, mean, var = (draw(row) for _ in range(4))
    fields: tuple[tuple[str, Node], ...] = (
        ("gamma", ParamSpec(numbers(gamma))),
        ("beta", ParamSpec(numbers(beta))),
        ("training", FlagSpec(draw(st.booleans()))),
        ("running_mean", RunningSpec(numbers(mean))),
        ("running_var", RunningSpec(numbers(np.abs(var) + 0.25))),
        ("momentum", ConfigSpec(pick(draw, (0.1, 0.5, 1.0, 0.0)))),
        ("epsilon", ConfigSpec(pick(draw, (1e-5, 0.5)))),
    )
    layer = LayerSpec(BATCH, (("norm", StructSpec(fields, "BatchNorm")),))
    return draw(living(adapter, layer, draw(st.integers(1, ROWS))))


def begun(adapter: Adapter, case: Living) -> tuple[Handle, bool]:
    """The module after its switches, and whether its layer must be in training."""
    module = built(adapter, case.spec)
    for switch in case.switches:
        module = applied(adapter, module, switch)
    flag = next(value for value in adapter.meta(module).values if value.path == f"{case.path}.training")
    assert isinstance(flag, FlagMeta)
    active = flag.enabled and case.autodiff
    event(f"flag {'on' if flag.enabled else 'off'}, input {'autodiff' if case.autodiff else 'plain'}")
    return module, active


def array_of(signal: Signal) -> Array:
    """The tensor that a signal is."""
    (value,) = signal.values().values()
    return value.numpy()


@law("L41", needs=("parallel", "dropout", "state.params", "state.flags"), case=dropping)
def test_dropout_leaves_out_in_training_and_only_then(adapter: Adapter, case: Living) -> None:
    """Otherwise it is the identity, to the bit. In training some elements are 0, others x / (1 − p) (M69)."""
    module, active = begun(adapter, case)
    prob = case.spec.setting(case.path, "prob")
    for x in case.inputs:
        y = array_of(ran(adapter, module, case.signal(x)))
        if not (active and prob):
            assert y.tobytes() == x.tobytes()
            continue
        kept = y != 0
        assert 0 < kept.sum() < kept.size
        assert np.allclose(y[kept], x[kept] / (1 - prob), rtol=2**-48, atol=0)


def statistics(adapter: Adapter, case: Living, module: Handle) -> tuple[Array, Array]:
    """The running mean and variance of a module."""
    found = (read(adapter, module, f"{case.path}.{name}") for name in ("running_mean", "running_var"))
    mean, var = (np.frombuffer(bits.data, np.float64) for bits in found)
    return mean, var


@law("L41", "L43", needs=("parallel", "batch_norm", "state.params", "state.flags"), case=normalising)
def test_batch_norm_moves_its_statistics_in_training_and_only_then(adapter: Adapter, case: Living) -> None:
    """In training they move towards those of the batch, which it uses; else not by a bit, and it uses them (M98).

    `freeze` stops that, `no_grad` does not (M53). Of a clone made before nothing changes (M97).
    """
    module, active = begun(adapter, case)
    clone = applied(adapter, module, op.Clone())
    before, momentum = all_bits(adapter, clone, case.spec.tree), case.spec.setting(case.path, "momentum")
    gamma, beta = (np.frombuffer(before[f"{case.path}.{name}"].data, np.float64) for name in ("gamma", "beta"))
    for x in case.inputs:
        running = statistics(adapter, case, module)
        y = array_of(ran(adapter, module, case.signal(x)))
        mean, var = (x.mean(axis=0), x.var(axis=0)) if active else running
        scale = gamma / np.sqrt(var + case.spec.setting(case.path, "epsilon"))
        assert np.allclose(y, (x - mean) * scale + beta, rtol=2**-36, atol=2**-36 * (1 + np.abs(scale).max()))
        after = statistics(adapter, case, module)
        for old, batch, new in zip(running, (mean, var), after, strict=True):
            if active:
                assert np.allclose(new, old * (1 - momentum) + batch * momentum, rtol=2**-44, atol=2**-44)
            else:
                assert new.tobytes() == old.tobytes()
    assert all_bits(adapter, clone, case.spec.tree) == before


@law(
    "L43",
    needs=("parallel", "batch_norm", "autodiff", "optimizers", "state.params", "state.flags", "groups"),
    case=normalising,
    whole=lambda a: st.booleans(),
)
def test_a_frozen_layer_stays_as_it_is_through_training(adapter: Adapter, case: Living, whole: bool) -> None:
    """Its running statistics, with its flag frozen, and its parameters, if they are too; forwards and steps in turn.

    Where they are not, they train, and the statistics stay (M51, M98).
    """
    module = applied(adapter, applied(adapter, built(adapter, case.spec), op.Train()), op.Unfreeze())
    group = None if whole else Paths((f"{case.path}.training",))
    module = applied(adapter, module, op.Freeze(group))
    before = all_bits(adapter, module, case.spec.tree)
    used = (f"{case.path}.gamma", f"{case.path}.beta")
    for x in case.inputs:
        ran(adapter, module, case.signal(x))
        if not whole:
            module = applied(adapter, module, op.Step("SGD", (("lr", 0.5), ("weight_decay", 0.1)), used))
    after = all_bits(adapter, module, case.spec.tree)

    assert {path for path in before if before[path] != after[path]} == (set() if whole else set(used))
