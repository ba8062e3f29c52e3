"""SmolLM2 in 4 bits, and the texts written for it: what is learned shows, and what is measured is long enough."""

import json

import pytest

from bench.quantize import _PROSE
from examples import finetune
from examples.language_model import opened_model
from examples.tokenization import Tokenizer
from tests.examples.conftest import command as command

pytestmark = pytest.mark.models


def test_a_few_steps_on_the_log_lower_its_loss(command) -> None:
    """Split over two devices; the adapter is a few megabytes, and reloaded it is worth the same."""
    outcome = command(finetune.main, "--steps", "6", "--tokens", "4", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    assert set(found["placement"]["hidden"]) == {"cpu:0", "cpu:1"}
    assert found["after"]["loss"] < found["before"]["loss"] - 0.2
    assert found["reloaded"]["loss"] == found["after"]["loss"]
    assert 1e6 < found["adapter_bytes"] < 5e6


def test_the_prose_has_1500_tokens() -> None:
    with opened_model(None) as record:
        ids = Tokenizer.from_gguf(record.metadata).encode(_PROSE.read_text(encoding="utf-8"))
    assert len(ids) >= 1500
