"""Linear and Embedding: what they compute, what they hold, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import DeviceMismatchError, DTypeError, Seed, ShapeError, tensor
from modules import ModuleError
from modules.nn import Embedding, Linear
from tests.nn import oracles
from tests.nn.strategies import CPU, values


@given(
    before=st.lists(st.integers(0, 3), max_size=2),
    d_input=st.integers(1, 5),
    d_output=st.integers(1, 5),
    bias=st.booleans(),
    dtype=st.sampled_from(["float64", "float32", "float16", "bfloat16"]),
)
def test_linear_is_the_product_with_its_weight_plus_its_bias(before, d_input, d_output, bias, dtype):
    """For every number of leading axes, and in the parameters' dtype."""
    layer = Linear(d_input, d_output, bias=bias, device=CPU, dtype=dtype, seed=1)
    x = values((*before, d_input), dtype=dtype)

    y = layer(x)

    assert y.shape == (*before, d_output)
    assert y.dtype == layer.weight.dtype == x.dtype
    tolerance = {"float64": 1e-14, "float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}[dtype]
    np.testing.assert_allclose(oracles.wide(y), oracles.linear(layer, oracles.wide(x)), atol=tolerance, rtol=tolerance)


def test_a_layer_makes_nothing_before_it_is_read_and_keeps_its_settings():
    """M24; DESIGN, Layers: settings are attributes under Burn's names."""
    layer = Linear(3, 4, device="cpu:1")
    assert (layer.d_input, layer.d_output) == (3, 4)
    assert not layer.weight.is_initialized
    assert not layer.bias.is_initialized
    assert (layer.weight.shape, layer.bias.shape) == ((3, 4), (4,))
    assert [str(device) for device in layer.devices()] == ["cpu:1"]
    assert Linear(3, 4, bias=False, device=CPU).bias is None
    assert [name for name, _ in layer.into_record().items()] == ["weight", "bias"]


def test_initial_values_are_uniform_within_one_over_the_root_of_d_input():
    """Burn's default initialiser, of the weight and the bias: bound 1/√d_input, variance a third of its square."""
    layer = Linear(100, 400, device=CPU, seed=3)
    for param in (layer.weight, layer.bias):
        value = param.val().numpy()
        assert np.abs(value).max() <= 0.1
        assert np.abs(value).max() > 0.095
        assert abs(value.mean()) < 0.01
        assert abs(value.var() / (0.01 / 3) - 1) < 0.2


def test_initial_values_depend_on_the_seed_and_the_order_of_construction_alone():
    """One Seed handed to many layers gives each its own; one integer gives equal layers; None never the same."""

    def weights(*layers):
        return [layer.weight.val().numpy().tobytes() for layer in layers]

    stream = Seed(7)
    first, second = Linear(2, 3, device=CPU, seed=stream), Linear(2, 3, device="cpu:1", seed=stream)
    second_read, first_read = weights(second, first)
    assert first_read != second_read
    again = Seed(7)
    assert [first_read, second_read] == weights(*(Linear(2, 3, device="cpu:2", seed=again) for _ in range(2)))
    assert len(set(weights(*(Linear(2, 3, device=CPU, seed=7) for _ in range(2))))) == 1
    assert len(set(weights(*(Linear(2, 3, device=CPU) for _ in range(2))))) == 2


@given(ids=st.lists(st.integers(0, 4), max_size=6), dtype=st.sampled_from(["float64", "float32", "bfloat16"]))
def test_embedding_gives_the_rows_that_the_ids_name(ids, dtype):
    """Bit for bit, in the order of the ids, repeated ids too."""
    layer = Embedding(5, 3, device=CPU, dtype=dtype, seed=1)
    table = layer.weight.val().numpy()

    for shape in ((len(ids),), (1, len(ids))):
        rows = layer(tensor(ids, device=CPU, dtype="int64").reshape(*shape))
        assert rows.shape == (*shape, 3)
        assert rows.numpy().tobytes() == b"".join(table[one].tobytes() for one in ids)


def test_embedding_takes_rows_of_a_weight_in_any_memory_order():
    """A tied head is fastest with the table stored column by column (D5: a tensor keeps its order)."""
    layer = Embedding(5, 3, device=CPU, seed=1)
    ids = tensor([[4, 0, 4]], device=CPU)
    columns = layer.replace(weight=layer.weight.map(lambda t: tensor(np.asfortranarray(t.numpy()), device=CPU)))
    assert columns.weight.val().numpy().flags.f_contiguous
    assert columns(ids).numpy().tobytes() == layer(ids).numpy().tobytes()


def test_embedding_starts_normally_distributed():
    """Burn's default initialiser: mean 0, deviation 1."""
    value = Embedding(100, 100, device=CPU, seed=2).weight.val().numpy()
    assert abs(value.mean()) < 0.05
    assert abs(value.std() - 1) < 0.05


@pytest.mark.parametrize("wrong", [0, -1, 2.0, "3", None, True])
def test_a_size_that_is_none_is_refused_by_name(wrong):
    """ModuleError, naming layer, setting and value."""
    for make, name in (
        (lambda: Linear(wrong, 2, device=CPU), "Linear: d_input"),
        (lambda: Linear(2, wrong, device=CPU), "Linear: d_output"),
        (lambda: Embedding(wrong, 2, device=CPU), "Embedding: n_embedding"),
        (lambda: Embedding(2, wrong, device=CPU), "Embedding: d_model"),
    ):
        with pytest.raises(ModuleError, match=name) as refused:
            make()
        assert repr(wrong) in str(refused.value)


def test_parameters_are_floats():
    """Another dtype is refused by name; one that NumPy does not know, too."""
    with pytest.raises(ModuleError, match="Linear: dtype is int64"):
        Linear(2, 2, device=CPU, dtype="int64")
    with pytest.raises(DTypeError):
        Embedding(2, 2, device=CPU, dtype="float23")


def test_inputs_that_do_not_go_with_the_layer_are_refused():
    """Wrong extents, dtypes, devices and ids."""
    layer = Linear(3, 2, device=CPU)
    with pytest.raises(ShapeError):
        layer(values((4,)))
    with pytest.raises(DTypeError):
        layer(values((3,), dtype="float64"))
    with pytest.raises(DeviceMismatchError):
        layer(values((3,)).to_device("cpu:1"))
    table = Embedding(5, 3, device=CPU)
    for ids in ([5], [-1]):
        with pytest.raises(IndexError):
            table(tensor(ids, device=CPU))
    with pytest.raises(DTypeError):
        table(values((2,)))
