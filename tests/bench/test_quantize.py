"""What `bench.quantize` works out itself: the perplexity, and the check that values are the nearest ones."""

import math
from pathlib import Path

import numpy as np
import pytest

from bench.answers import AnswerError
from bench.quantize import _FORMS, _PROSE, _check_nearest, perplexity
from bench.speaker import Speaker
from engine import dequantize, quantize, randn
from tests.examples.tiny_gguf import TinyLlama

IDS = [3, 70, 120, 9, 9, 200, 31, 4, 77, 100, 258]


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Speaker:
    return Speaker(TinyLlama().write(tmp_path_factory.mktemp("tiny") / "tiny.gguf"), ["cpu:0"], only_last=False)


@pytest.mark.parametrize("piece", [1, 3, 5, 10, 64])
def test_perplexity_is_that_of_each_token_after_all_before_it(speaker: Speaker, piece: int) -> None:
    """In whatever pieces they go through the model. Against the model in float64, over everything at once."""
    logits = TinyLlama().logits(IDS[:-1])
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chosen = shares[np.arange(len(logits)), IDS[1:]] / shares.sum(axis=-1)
    assert perplexity(speaker, IDS, piece) == pytest.approx(math.exp(-np.log(chosen).mean()), rel=1e-4)


@pytest.mark.parametrize("form", _FORMS, ids=lambda form: form.name)
def test_what_is_not_the_nearest_value_is_found(form) -> None:
    weight = randn((64, 64), seed=0, device="cpu:0")
    before, after = weight.numpy(), dequantize(quantize(weight, form.scheme)).numpy().copy()
    _check_nearest(before, after, form)
    alike = before[5, :32] if form.block else before
    after[5, 7] = before[5, 7] + 0.6 * np.abs(alike).max() / (127 if form.bits == 8 else 7)
    with pytest.raises(AnswerError, match="beyond half a step"):
        _check_nearest(before, after, form)


def test_the_prose_is_long_enough_and_no_part_of_what_is_learned_elsewhere() -> None:
    """Some 1,300 words; no sentence of it is in the text that `examples.finetune` learns."""
    words = _PROSE.read_text(encoding="utf-8").split()
    assert 1200 <= len(words) <= 1400
    log = (Path(__file__).parents[2] / "examples" / "texts" / "lighthouse.txt").read_text(encoding="utf-8")
    assert not any(" ".join(words[at : at + 6]) in log for at in range(len(words)))
