"""Multi-head attention: against loops in float64, with its cache, its masks, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import AutodiffError, DeviceMismatchError, DTypeError, ShapeError, ops, tensor
from modules import ModuleError
from modules.nn import KeyValueCache, MultiHeadAttention, RotaryPositions
from tests.nn import oracles
from tests.nn.strategies import CPU, attentions, cuts, values


@given(layer=attentions(dtype="float64"), batch=st.integers(1, 2), positions=st.integers(0, 5), data=st.data())
def test_attention_is_its_definition(layer, batch, positions, data):
    """Grouped heads, biases, rotary positions, causal or not, padding or not."""
    x = values((batch, positions, layer.d_model), dtype="float64")
    mask = None
    if data.draw(st.booleans()):
        rows = st.lists(st.booleans(), min_size=positions, max_size=positions)
        mask = np.array([data.draw(rows) for _ in range(batch)], dtype=bool).reshape(batch, positions)

    y = layer(x, None if mask is None else tensor(mask, device=CPU))

    assert y.shape == x.shape
    np.testing.assert_allclose(y.numpy(), oracles.attention(layer, oracles.wide(x), mask), atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_attention_keeps_its_dtype(dtype):
    """Within the rounding of the dtype of what float64 gives."""
    rotary = RotaryPositions(8, 4, device=CPU, dtype=dtype)
    layer = MultiHeadAttention(8, 2, causal=True, rotary=rotary, device=CPU, dtype=dtype, seed=1)
    x = values((1, 4, 8), dtype=dtype)
    y = layer(x)
    assert y.dtype == x.dtype
    tolerance = {"float32": 1e-6, "float16": 3e-3, "bfloat16": 3e-2}[dtype]
    np.testing.assert_allclose(oracles.wide(y), oracles.attention(layer, oracles.wide(x)), atol=tolerance)


# Caches


@given(layer=attentions(causal=True, dtype="float64"), total=st.integers(0, 8), data=st.data())
def test_any_cutting_of_the_sequence_gives_the_outputs_of_the_whole(layer, total, data):
    """L114 (P70, P71): pieces of any lengths, empty ones among them, and a batch of two sequences."""
    x = values((2, total, layer.d_model), dtype="float64")
    cache, outputs, start = layer.new_cache(), [], 0
    for length in data.draw(cuts(total)):
        piece = x[:, start : start + length]
        outputs.append(layer(piece, cache=cache).numpy())
        start += length
        assert cache.length == start

    joined = np.concatenate([np.empty((2, 0, layer.d_model)), *outputs], axis=1)
    np.testing.assert_allclose(joined, layer(x).numpy(), atol=1e-12)


@given(layer=attentions(causal=True), positions=st.integers(2, 6), data=st.data())
def test_later_positions_change_no_bit_of_earlier_outputs(layer, positions, data):
    """L115."""
    at = data.draw(st.integers(1, positions - 1))
    x = values((1, positions, layer.d_model))
    changed = x.numpy().copy()
    changed[:, at:] += 1
    before, after = (layer(one).numpy()[:, :at] for one in (x, tensor(changed, device=CPU)))
    assert before.tobytes() == after.tobytes()


@given(layer=attentions(), batch=st.integers(1, 2), lengths=st.lists(st.integers(1, 4), min_size=2, max_size=2))
def test_padding_changes_nothing(layer, batch, lengths):
    """What stands where the mask is false decides nothing, and the tokens give what they give without padding."""
    longest = max(lengths)
    x, other = (values((2, longest, layer.d_model), seed).numpy().copy() for seed in (0, 1))
    mask = np.arange(longest) < np.array(lengths)[:, None]
    other[mask] = x[mask]
    padded, repadded = (layer(tensor(one, device=CPU), tensor(mask, device=CPU)).numpy() for one in (x, other))
    assert padded[mask].tobytes() == repadded[mask].tobytes()
    for row, length in enumerate(lengths):
        alone = layer(tensor(x[row : row + 1, :length], device=CPU)).numpy()
        np.testing.assert_allclose(padded[row, :length], alone[0], atol=1e-5)


def test_a_mask_covers_the_positions_of_the_cache_too():
    """A batch of two prompts, one padded in front of what follows, decodes as each alone."""
    layer = MultiHeadAttention(4, 2, causal=True, device=CPU, dtype="float64", seed=1)
    x = values((2, 4, 4), dtype="float64")
    seen = tensor([[True, True, True, True], [False, True, True, True]], device=CPU)
    cache = layer.new_cache()
    layer(x[:, :3], seen[:, :3], cache)
    y = layer(x[:, 3:], seen, cache).numpy()
    np.testing.assert_allclose(y[0, 0], layer(x[:1]).numpy()[0, 3], atol=1e-12)
    np.testing.assert_allclose(y[1, 0], layer(x[1:, 1:]).numpy()[0, 2], atol=1e-12)


def test_a_cache_lies_where_its_layer_is_and_belongs_to_one_sequence():
    """P69, P72."""
    layer = MultiHeadAttention(4, 2, causal=True, device="cpu:1", seed=1)
    first, second = layer.new_cache(), layer.new_cache()
    assert isinstance(first, KeyValueCache)
    assert (first.device, first.length) == (None, 0)
    x = values((1, 2, 4)).to_device("cpu:1")
    layer(x, cache=first)
    assert (str(first.device), first.length) == ("cpu:1", 2)
    assert (second.device, second.length) == (None, 0)
    alone = layer(x).numpy()
    np.testing.assert_allclose(layer(x, cache=second).numpy(), alone, atol=1e-6)
    with pytest.raises(DeviceMismatchError):
        layer.fork(CPU)(values((1, 1, 4)), cache=first)


# What it holds, and what it refuses


def test_paths_and_settings_are_as_documented():
    """One joined linear layer for q, k and v, then the output layer; the tables are no entries."""
    rotary = RotaryPositions(8, 3 * 2, device=CPU)
    layer = MultiHeadAttention(8, 4, n_kv_heads=2, d_k=6, rotary=rotary, device=CPU)
    assert {path: entry.shape for path, entry in layer.into_record().items()} == {
        "query_key_value.weight": (8, (4 + 2 + 2) * 6),
        "query_key_value.bias": ((4 + 2 + 2) * 6,),
        "output.weight": (4 * 6, 8),
        "output.bias": (8,),
    }
    assert (layer.d_model, layer.n_heads, layer.n_kv_heads, layer.d_k, layer.causal) == (8, 4, 2, 6, False)
    plain = MultiHeadAttention(8, 4, bias=False, device=CPU)
    assert (plain.n_kv_heads, plain.d_k) == (4, 2)
    assert list(plain.into_record()) == ["query_key_value.weight", "output.weight"]


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((0, 1), {}, "d_model is 0"),
        ((4, 0), {}, "n_heads is 0"),
        ((4, 2), {"n_kv_heads": 0}, "n_kv_heads is 0"),
        ((4, 4), {"n_kv_heads": 3}, "n_heads is 4, which n_kv_heads, 3, does not divide"),
        ((4, 3), {}, "d_model is 4, which n_heads, 3, does not divide"),
        ((4, 2), {"d_k": 0}, "d_k is 0"),
        ((4, 2), {"rotary": RotaryPositions(4, 4, device=CPU)}, "rotary turns 4 features, and a head has 2"),
        ((4, 2), {"dtype": "int64"}, "dtype is int64"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_by_name(arguments, settings, message):
    """ModuleError, naming layer, setting and value."""
    with pytest.raises(ModuleError, match=f"MultiHeadAttention: {message}"):
        MultiHeadAttention(*arguments, device=CPU, **settings)


def test_only_causal_attention_has_a_cache():
    """Without it every earlier output would change with each new position."""
    with pytest.raises(ModuleError, match="only causal attention has a cache"):
        MultiHeadAttention(4, 2, device=CPU).new_cache()


def test_inputs_of_other_shapes_are_refused_and_leave_the_cache_as_it_was():
    """ShapeError with the shape that is wanted; DTypeError for a mask that is no mask."""
    layer = MultiHeadAttention(4, 2, causal=True, device=CPU, seed=1)
    with pytest.raises(ShapeError, match=r"x has shape \(2, 4\); it must be \[batch, positions, d_model\]"):
        layer(values((2, 4)))
    x = values((1, 2, 4))
    with pytest.raises(ShapeError, match=r"mask has shape \(2,\); here it must be \[batch, keys\], \(1, 2\)"):
        layer(x, tensor([True, True], device=CPU))
    with pytest.raises(DTypeError):
        layer(x, tensor([[1, 1]], device=CPU))
    cache = layer.new_cache()
    with pytest.raises(ShapeError):
        layer(values((1, 2, 3)), cache=cache)
    assert cache.length == cache.keys.length == cache.values.length == 0


def test_positions_beyond_the_rotary_tables_are_refused():
    """The message names the position and the setting; the cache is as it was."""
    rotary = RotaryPositions(3, 2, device=CPU)
    layer = MultiHeadAttention(4, 2, causal=True, rotary=rotary, device=CPU, seed=1)
    cache = layer.new_cache()
    layer(values((1, 3, 4)), cache=cache)
    with pytest.raises(ModuleError, match="position 3 is beyond max_sequence_length, 3"):
        layer(values((1, 1, 4)), cache=cache)
    assert cache.length == 3


def test_a_padded_row_of_nothing_but_padding_gives_the_bias_alone():
    """A query that sees no key gets 0 from attention, never NaN."""
    layer = MultiHeadAttention(4, 2, device=CPU, seed=1)
    y = layer(values((1, 2, 4)), tensor([[False, False]], device=CPU))
    expected = ops.broadcast_to(layer.output.bias.val(), (1, 2, 4))
    np.testing.assert_allclose(y.numpy(), expected.numpy(), atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_layer_in_training_decodes_only_as_valid(dtype):
    """A cache holds no history: with tracked parameters gradients would be lost, so that is refused, in every dtype."""
    layer = MultiHeadAttention(8, 2, causal=True, device=f"{CPU}+autodiff", dtype=dtype, seed=1)
    x = values((1, 3, 8), dtype=dtype)
    cache = layer.new_cache()
    with pytest.raises(AutodiffError, match=r"valid\(\)"):
        layer(x, cache=cache)
    assert (cache.length, cache.keys.length, cache.values.length) == (0, 0, 0)
    assert layer(x).is_tracked
    np.testing.assert_allclose(oracles.wide(layer.valid()(x, cache=cache)), oracles.wide(layer(x)), atol=2e-3)
    assert cache.length == 3
