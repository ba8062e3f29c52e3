"""SmolLM2-135M-Instruct against what transformers computes from the same file, on one device and split over three."""

import hashlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from engine import tensor
from examples.generation import generated_ids, likeliest
from examples.language_model import _FILE, _PACKAGE
from examples.models.llama import Llama
from examples.models.llama_gguf import llama_config, llama_record
from examples.packages import carried_file
from examples.tokenization import Tokenizer
from modules.parallel import DistributedLayeredModel, LayerPlacement
from records import open_record
from tests.golden_files import golden_file

pytestmark = [pytest.mark.models, pytest.mark.golden]

WORDS = json.loads(golden_file("smollm2.json").read_text())
PROMPTS = {prompt["name"]: prompt for prompt in WORDS["prompts"]}
PLACEMENTS = {
    "whole": LayerPlacement("cpu:0", ["cpu:0"] * 30, "cpu:0"),
    "over three": LayerPlacement("cpu:0", ["cpu:0"] * 10 + ["cpu:1"] * 10 + ["cpu:2"] * 10, "cpu:0"),
}


@pytest.fixture(scope="module")
def file():
    """The file that the golden values were computed from."""
    found = Path(carried_file(_PACKAGE, _FILE))
    assert hashlib.sha256(found.read_bytes()).hexdigest() == WORDS["info"]["sha256"]
    return found


@pytest.fixture(scope="module", params=list(PLACEMENTS))
def model(request, file):
    """The model in one of the placements."""
    placement = PLACEMENTS[request.param]
    with open_record(file) as record:
        config = llama_config(record)
        built = DistributedLayeredModel(Llama(config, placement), placement)
        return built.load_record(llama_record(record, config))


@pytest.fixture(scope="module")
def arrays():
    with np.load(golden_file("smollm2.npz")) as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def tokenizer(file):
    with open_record(file) as record:
        return Tokenizer.from_gguf(record.metadata)


def ids_of(prompt):
    return tensor([prompt["ids"]], device="cpu:0")


@pytest.mark.parametrize("name", list(PROMPTS))
def test_logits_of_the_last_position_are_those_of_transformers(model, arrays, name):
    """Within 2e-3: all of them where they are stored, else the ten largest."""
    prompt = PROMPTS[name]
    logits = model(ids_of(prompt)).numpy()[0, -1]
    np.testing.assert_allclose(logits[prompt["top10_ids"]], prompt["top10_logits"], atol=2e-3)
    np.testing.assert_allclose(logits[prompt["top10_ids"]], prompt["top10_logits_f64"], atol=2e-3)
    if name in ("plain", "chat"):
        np.testing.assert_allclose(logits, arrays[f"{name}/logits_last"], atol=2e-3)


@pytest.mark.parametrize("name", list(PROMPTS))
def test_greedy_continuations_are_the_same_token_for_token(model, name):
    """With caches. A step whose two best logits are closer than 1e-3 may go the other way, and ends the comparison."""
    prompt = PROMPTS[name]
    ours = itertools.islice(generated_ids(model, prompt["ids"], likeliest), len(prompt["greedy_ids"]))
    for step, (mine, theirs) in enumerate(zip(ours, prompt["greedy_ids"], strict=True)):
        if mine != theirs:
            assert prompt["greedy_margins"][step] < 1e-3, f"step {step}: {mine} instead of {theirs}"
            return


@pytest.mark.parametrize("name", ["plain", "chat"])
def test_hidden_states_agree_layer_by_layer(model, arrays, name):
    """After the embedding and each block, relative to the layer's largest value; and after the final norm."""
    inner, placement = model.model, model.placement
    x = inner.embedding(ids_of(PROMPTS[name]))
    states = [x]
    for block, device in zip(inner.blocks, placement.hidden, strict=True):
        x = block(x.to_device(device))
        states.append(x.to_device("cpu:0"))
    for ours, norms in zip((state.numpy()[0] for state in states), arrays[f"{name}/hidden_norms"], strict=True):
        np.testing.assert_allclose(np.sqrt((ours**2).sum(-1)), norms, atol=2e-5 * norms.max())
    if name == "plain":
        for ours, last in zip((state.numpy()[0, -1] for state in states), arrays["plain/hidden_last"], strict=True):
            np.testing.assert_allclose(ours, last, atol=2e-5 * np.abs(last).max())
        final = inner.head.norm(states[-1]).numpy()[0, -1]
        expected = arrays["plain/final_norm_last"]
        np.testing.assert_allclose(final, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("text", [*WORDS["prompts"], *WORDS["tokenize_only"]], ids=lambda text: text["text"][:20])
def test_texts_have_the_ids_that_transformers_gives_them(tokenizer, text):
    """And come back from them."""
    assert tokenizer.encode(text["text"]) == text["ids"]
    assert tokenizer.decode(text["ids"]) == text["text"]


@pytest.mark.parametrize("name", list(PROMPTS))
def test_continuations_are_written_as_transformers_writes_them(tokenizer, name):
    """At once, and token by token."""
    ids, text = PROMPTS[name]["greedy_ids"], PROMPTS[name]["greedy_text"]
    stream = tokenizer.stream()
    assert tokenizer.decode(ids) == text
    assert "".join(stream.step(one) for one in ids) == text
