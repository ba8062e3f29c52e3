"""``python -m examples.embed``, and the BERT encoder: against float64, padded or not, split or not."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Device, transfer
from examples import embed
from examples.errors import UsageError
from examples.models.bert import bert_config
from records import RecordFormatError
from tests.examples import tiny_bert

CPU = Device("cpu:0")


@pytest.fixture(scope="module", autouse=True)
def _tiny_model(tmp_path_factory):
    """The command finds the tiny model in place of the package."""
    folder = tiny_bert.write(tmp_path_factory.mktemp("bert"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embed, "carried_file", lambda package, relative: folder / relative.removeprefix("model/"))
        yield


TEXTS = st.lists(st.lists(st.integers(4, 8), min_size=1, max_size=6), min_size=1, max_size=4)


@given(texts=TEXTS)
def test_embeddings_are_those_of_each_text_alone_written_out_in_float64(texts):
    """Names, transposed and joined weights; the padding of a batch changes nothing; length 1."""
    model = embed.load_model([CPU])
    ours = model(embed.batch_of(texts, CPU)).numpy()
    expected = np.stack([tiny_bert.embedding(ids) for ids in texts])
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    np.testing.assert_allclose((ours**2).sum(-1), 1, atol=1e-5)


@given(texts=TEXTS, devices=st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_split_equals_unsplit_bit_for_bit(texts, devices):
    """P40; hidden state and mask cross once at each change of device (P38), the mask only if there is one."""
    batch = embed.batch_of(texts, CPU)
    split = embed.load_model([Device(f"cpu:{n}") for n in devices])
    with transfer.log() as log:
        ours = split(batch)
    assert ours.tobytes() == embed.load_model([CPU])(batch).tobytes()
    placement = split.placement
    way = [placement.input, *placement.hidden, placement.output]
    tensors = 1 + (batch[1] is not None)
    changes = sum(a != b for a, b in itertools.pairwise(way))
    assert log.copies == tensors * (changes + (placement.input != CPU))


def test_a_batch_of_equal_lengths_needs_no_mask():
    """Others are padded to the longest."""
    ids, mask = embed.batch_of([[5, 6], [7, 8]], CPU)
    assert ids.numpy().tolist() == [[5, 6], [7, 8]]
    assert mask is None
    ids, mask = embed.batch_of([[5], [7, 8]], CPU)
    assert ids.numpy().tolist() == [[5, 0], [7, 8]]
    assert mask is not None
    assert mask.numpy().tolist() == [[True, False], [True, True]]
    for nothing in ([], [[5], []]):
        with pytest.raises(UsageError, match="no tokens"):
            embed.batch_of(nothing, CPU)


def test_json_has_embeddings_and_cosines(command):
    """One object; equal texts have cosine 1."""
    outcome = command(embed.main, "the cat", "the mat sat", "the cat", "--devices", "cpu:0,cpu:1", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    shown = json.loads(outcome.out)
    assert set(shown) == {"embeddings", "cosine"}
    embeddings, cosine = np.array(shown["embeddings"]), np.array(shown["cosine"])
    assert embeddings.shape == (3, tiny_bert.WIDTH)
    np.testing.assert_allclose(cosine, embeddings @ embeddings.T, atol=1e-6)
    np.testing.assert_allclose(cosine[[0, 0], [0, 2]], 1, atol=1e-6)
    np.testing.assert_allclose(embeddings[1], tiny_bert.embedding([2, 4, 8, 6, 3]), atol=1e-5)


def test_devices_without_a_layer_are_named(command):
    """On the error stream; the object is as without them."""
    devices = [f"cpu:{index}" for index in range(tiny_bert.LAYERS + 2)]
    outcome = command(embed.main, "the cat", "--devices", ",".join(devices), "--json")
    assert (outcome.status, outcome.err) == (0, f"embed: no layer goes to {', '.join(devices[-2:])}\n")
    assert outcome.out == command(embed.main, "the cat", "--json").out


def test_a_text_that_is_cut_is_noted_on_the_error_stream(command, monkeypatch):
    """By its number; what is printed is as without the note."""
    monkeypatch.setattr(embed, "_MAX_TOKENS", 6)
    whole, long = "cat cat cat cat", "cat cat cat cat mat"  # the tokenizer adds two tokens
    outcome = command(embed.main, whole, long, "--json")
    assert outcome.status == 0
    assert outcome.err == "embed: text 2 is cut after 6 tokens, which is all that the model takes\n"
    np.testing.assert_allclose(json.loads(outcome.out)["cosine"], 1, atol=1e-6)


def test_table_similarities_and_copies_are_printed(command):
    """Texts as they are, brackets too."""
    outcome = command(embed.main, "the cat", "[bold]the[/bold] mat", "--devices", "cpu:0,cpu:1")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.index("parameters") < outcome.out.index("cosine similarity")
    assert "[bold]the[/bold] mat" in outcome.out
    assert "cpu:0 -> cpu:1 (host)" in outcome.out


@pytest.mark.parametrize(
    ("options", "status", "line"),
    [
        ([], 2, "the following arguments are required: TEXT"),
        (["a", "--devices", "cuda"], 2, "'cuda' is no device"),
        (["a\udcff"], 1, "not valid text"),
    ],
)
def test_a_mistake_is_one_clear_line(command, options, status, line):
    """On the error stream, nothing on the other, and no traceback."""
    outcome = command(embed.main, *options)
    assert (outcome.status, outcome.out) == (status, "")
    assert outcome.err.count("\n") == 1
    assert line in outcome.err


def test_a_config_of_another_model_is_refused(tmp_path):
    """By what it lacks, or by what would compute something else."""
    file = tmp_path / "config.json"
    for text, error, message in (
        ("{}", RecordFormatError, "'vocab_size' is missing"),
        ("[1]", RecordFormatError, "no JSON object"),
        ("{", RecordFormatError, "no JSON object"),
        ('{"model_type": "roberta"}', UsageError, "model_type is 'roberta'; only 'bert' is supported"),
        ('{"hidden_act": "relu"}', UsageError, "hidden_act is 'relu'"),
    ):
        file.write_text(text)
        with pytest.raises(error, match=message):
            bert_config(file)
