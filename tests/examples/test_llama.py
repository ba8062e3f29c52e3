"""A Llama from a GGUF file: what it computes, where its weights go, and which files are refused."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Device, tensor, transfer
from examples.errors import UsageError
from examples.generation import drawn, generated_ids, likeliest
from examples.models.llama import Llama
from examples.models.llama_gguf import llama_config, llama_record
from modules.parallel import DistributedLayeredModel, LayerMemory, LayerPlacement, PlacementError
from records import RecordFormatError, RecordValidationError, open_record
from tests.examples.tiny_gguf import TinyLlama

IDS = [20, 3, 250, 20, 100, 101, 7]


def loaded(file, hidden="000", input=0, output=None, **settings):
    """The model with its layers on the CPU devices of these numbers."""
    with open_record(file) as record:
        config = llama_config(record)
        placement = LayerPlacement(
            f"cpu:{input}", [f"cpu:{n}" for n in hidden], f"cpu:{input if output is None else output}"
        )
        built = DistributedLayeredModel(Llama(config, placement, **settings), placement)
        return built.load_record(llama_record(record, config))


def ids_of(ids, device="cpu:0"):
    return tensor([ids], device=device)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize(("heads", "groups"), [(2, 1), (2, 2), (4, 2)])
def test_logits_are_those_of_the_file_written_out_in_float64(tmp_path, is_tied, heads, groups):
    """Names, transposed and joined weights, rotary pairs side by side, grouped heads, tied head or not."""
    model = TinyLlama(is_tied=is_tied, heads=heads, groups=groups)
    ours = loaded(model.write(tmp_path / "m.gguf"))(ids_of(IDS)).numpy()
    expected = model.logits(IDS)
    assert ours.shape == (1, len(IDS), len(model.tokens))
    np.testing.assert_allclose(ours[0], expected, atol=1e-5 * np.abs(expected).max())


def test_only_the_last_position_has_logits_where_that_is_wanted(tiny_file):
    """The same as the last of all, up to the rounding of products with fewer rows."""
    every, last = (loaded(tiny_file, only_last=only)(ids_of(IDS)).numpy() for only in (False, True))
    assert last.shape == (1, 1, every.shape[-1])
    np.testing.assert_allclose(last[:, 0], every[:, -1], rtol=1e-5, atol=1e-5)


@given(hidden=st.lists(st.integers(0, 3), min_size=3, max_size=3), input=st.integers(0, 3), data=st.data())
def test_split_equals_unsplit_bit_for_bit_whole_and_in_pieces(tiny_file, hidden, input, data):
    """L92, L94, L116: in every placement; one copy for each change of device; caches stay with their layers."""
    split, whole = loaded(tiny_file, hidden, input), loaded(tiny_file)
    assert split(ids_of(IDS)).numpy().tobytes() == whole(ids_of(IDS)).numpy().tobytes()

    cut = data.draw(st.integers(1, len(IDS) - 1))
    caches = [model.new_autoregressive_cache() for model in (split, whole)]
    way = [input, *hidden, input]
    changes = sum(a != b for a, b in itertools.pairwise(way))
    for piece in (IDS[:cut], *([one] for one in IDS[cut:])):
        with transfer.log() as log:
            ours = split.forward_autoregressive_inference(ids_of(piece, f"cpu:{input}"), caches[0])
        theirs = whole.forward_autoregressive_inference(ids_of(piece), caches[1])
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()
        assert (log.copies, log.nbytes) == (changes, changes * len(piece) * 8 * 4)
    assert [str(cache.device) for cache in caches[0]] == [f"cpu:{n}" for n in hidden]


@given(cuts=st.lists(st.integers(1, len(IDS)), min_size=1))
def test_any_cutting_of_the_sequence_gives_the_outputs_of_the_whole(tiny_file, cuts):
    """L114: through all blocks and the head."""
    model = loaded(tiny_file)
    cache, pieces, rest = model.new_autoregressive_cache(), [], list(IDS)
    for length in [*cuts, len(IDS)]:
        if rest:
            piece, rest = rest[:length], rest[length:]
            pieces.append(model.forward_autoregressive_inference(ids_of(piece), cache).numpy())
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), model(ids_of(IDS)).numpy(), atol=1e-4)


def test_weights_go_straight_to_their_layer_and_initial_values_are_never_made(tiny_file, monkeypatch):
    """P9; nothing is copied between devices either."""

    def refuse(*arguments, **settings):
        raise AssertionError("an initial value was made")

    for name in ("uniform", "randn", "ones", "zeros"):
        monkeypatch.setattr(f"modules.nn.initial.{name}", refuse)
    with transfer.log() as log:
        model = loaded(tiny_file, "012")
    assert log.copies == 0
    assert [str(device) for block in model.model.blocks for device in block.devices()] == ["cpu:0", "cpu:1", "cpu:2"]


def test_weights_lie_in_memory_as_products_of_one_row_read_them_fastest(tiny_file):
    """Layers that do not narrow row by row, down as the file has it, and the tied table as the head's weight."""
    model = loaded(tiny_file).model
    for block in model.blocks:
        for layer in (block.attention.query_key_value, block.attention.output, block.feed_forward.gate_up):
            assert layer.weight.val().numpy().flags.c_contiguous
        assert block.feed_forward.down.weight.val().numpy().flags.f_contiguous
    assert model.head.weight is model.embedding.weight
    assert model.embedding.weight.val().numpy().T.flags.c_contiguous


def test_blocks_of_one_device_share_their_rotary_tables(tiny_file):
    """And count in each layer in the memory that is measured, wherever it will be."""
    model = loaded(tiny_file, "001").model
    tables = [block.attention.rotary.cos for block in model.blocks]
    assert tables[0] is tables[1]
    assert tables[1] is not tables[2]
    sizes = LayerMemory.of(loaded(tiny_file).model)
    assert sizes.hidden[0] == sizes.hidden[1] > 2 * tables[0].nbytes
    assert sizes.output.shares_input


def test_a_tied_head_must_run_where_the_embedding_is(tiny_file):
    """P32: the message says which placement would do."""
    with pytest.raises(PlacementError, match="output=placement.input"):
        loaded(tiny_file, "011", output=1)


# Generating


def test_generated_ids_are_the_likeliest_ones_of_the_whole_sequence_each_time(tiny_file):
    """Against a forward over everything for each token, without a cache."""
    model = loaded(tiny_file, "010", only_last=True)
    expected, ids = [], list(IDS)
    for _ in range(8):
        ids.append(int(loaded(tiny_file)(ids_of(ids)).numpy()[0, -1].argmax()))
        expected.append(ids[-1])
    assert list(itertools.islice(generated_ids(model, IDS, likeliest), 8)) == expected


def test_drawn_ids_have_the_probabilities_of_their_logits():
    """softmax(logits / temperature), within four standard deviations of 4000 draws; the same for the same seed."""
    logits, temperature, n = np.array([1.0, 0.0, -1.0, 2.0], np.float32), 0.7, 4000
    row = tensor(logits, device="cpu:0")
    choose, again = drawn(temperature, seed=1), drawn(temperature, seed=1)
    ids = [choose(row) for _ in range(n)]
    assert [again(row) for _ in range(50)] == ids[:50]
    shares = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    counts = np.bincount(ids, minlength=4)
    assert (np.abs(counts - n * shares) <= 4 * np.sqrt(n * shares * (1 - shares))).all()
    assert {drawn(1e-45, seed=None)(row) for _ in range(20)} == {3}


# Files that are refused


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"metadata": {"general.architecture": "qwen2"}}, UsageError, "'qwen2'"),
        ({"metadata": {"llama.rope.scaling.type": "linear"}}, UsageError, "scaled"),
        ({"metadata": {"llama.block_count": None}}, RecordFormatError, "llama.block_count is None"),
        ({"metadata": {"llama.block_count": np.uint32(2**31)}}, RecordFormatError, "claims 2147483648 layers"),
        ({"metadata": {"llama.block_count": np.uint32(4)}}, RecordFormatError, "blocks.3"),
        ({"metadata": {"llama.attention.head_count": np.uint32(0)}}, RecordFormatError, "head_count is 0"),
        ({"metadata": {"llama.attention.value_length": np.uint32(3)}}, UsageError, "value_length"),
        ({"metadata": {"llama.rope.freq_base": np.float32(-1)}}, RecordFormatError, "freq_base is -1.0"),
        ({"metadata": {"llama.feed_forward_length": np.uint32(11)}}, RecordValidationError, "gate_up"),
        ({"without": ("blk.1.attn_k.weight",)}, RecordFormatError, "blocks.1.attention.k"),
        ({"without": ("output_norm.weight",)}, RecordValidationError, "head.norm.gamma"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_what_is_wrong(tmp_path, changes, error, message):
    """No traceback from inside, and nothing is allocated by a number that the file merely claims."""
    file = dataclasses.replace(TinyLlama(), **changes).write(tmp_path / "m.gguf")
    with pytest.raises(error, match=message):
        loaded(file)


def test_a_device_that_is_given_as_text_is_a_device(tiny_file):
    """DESIGN: wherever a Device is taken, its text is too."""
    assert loaded(tiny_file).placement.input == Device("cpu:0")
