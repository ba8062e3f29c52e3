"""all-MiniLM-L6-v2 against what sentence-transformers computes from the same file."""

import hashlib
import json

import numpy as np
import pytest

from engine import Device
from examples.embed import _PACKAGE, batch_of, load_model, load_tokenizer
from examples.packages import carried_file
from tests.golden_files import golden_file

pytestmark = [pytest.mark.models, pytest.mark.golden]

WORDS = json.loads(golden_file("minilm.json").read_text())
IDS = [text["ids"] for text in WORDS["texts"]]
CPU = Device("cpu:0")


@pytest.fixture(scope="module", params=[1, 3], ids=["whole", "over three"])
def model(request):
    """The model on one device, or over three; from the file that the golden values were computed from."""
    for name, expected in (("model.safetensors", "sha256"), ("tokenizer.json", "tokenizer_sha256")):
        stored = carried_file(_PACKAGE, f"model/{name}").read_bytes()
        assert hashlib.sha256(stored).hexdigest() == WORDS["info"][expected]
    return load_model([Device(f"cpu:{n}") for n in range(request.param)])


@pytest.fixture(scope="module")
def arrays():
    with np.load(golden_file("minilm.npz")) as stored:
        return dict(stored)


def cosine_distances(ours, theirs):
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    lengths = np.sqrt((ours**2).sum(-1) * (theirs**2).sum(-1))
    return 1 - (ours * theirs).sum(-1) / lengths


def test_embeddings_are_those_of_sentence_transformers(model, arrays):
    """Within 1e-5 cosine distance, and of length 1: in one padded batch, and each text alone."""
    batch = model(batch_of(IDS, CPU)).to_device(CPU).numpy()
    alone = np.concatenate([model(batch_of([ids], CPU)).to_device(CPU).numpy() for ids in IDS])
    for ours in (batch, alone):
        for name in ("embeddings", "embeddings_f64"):
            assert np.abs(cosine_distances(ours, arrays[name])).max() < 1e-5
            np.testing.assert_allclose(ours, arrays[name], atol=1e-5)
    np.testing.assert_allclose(batch @ batch.T, WORDS["cosine"], atol=1e-5)


def test_hidden_states_agree_layer_by_layer(model, arrays):
    """Of the first text: after the embedding and after each layer."""
    inner = model.model
    signal = inner.embeddings(batch_of(IDS[:1], CPU))
    states = [signal[0]]
    for block, device in zip(inner.blocks, model.placement.hidden, strict=True):
        signal = block((signal[0].to_device(device), None))
        states.append(signal[0].to_device(CPU))
    for ours, theirs in zip(states, arrays["hidden0"], strict=True):
        np.testing.assert_allclose(ours.numpy()[0], theirs, atol=1e-5)


@pytest.mark.parametrize("text", WORDS["texts"], ids=lambda text: text["text"][:20])
def test_texts_have_the_ids_that_sentence_transformers_gives_them(text):
    """Without padding; cut at 256 tokens."""
    tokenizer = load_tokenizer()
    assert tokenizer.encode(text["text"]) == text["ids"]
    assert len(tokenizer.encode("word " * 1000)) == WORDS["info"]["max_tokens"]
