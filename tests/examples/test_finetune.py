"""``python -m examples.finetune``: it learns, keeps its adapter alone, and has it again over weights quantized anew."""

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import finetune
from examples.finetuning import Settings, Tuning
from examples.language_model import loaded_llama, opened_model
from examples.models.llama_gguf import llama_config
from examples.tokenization import Tokenizer
from modules.parallel import LayerPlacement
from records import open_record
from tests.examples.tiny_gguf import FIRST_BYTE, TinyLlama
from tests.modules.small_modules import Holder, Linear

TEXT = "the sea and the lamp, the lamp and the sea; as one does, as ships do not"  # longer than the model's positions
TINY = TinyLlama(width=32, inner=32, template=None)
RANK, BLOCKS = 3, 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TINY.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def finetune_(command, model, tmp_path):
    """Runs the command with the tiny model and text; the learning rate is one that shows in a few steps."""
    (tmp_path / "text.txt").write_text(TEXT)
    options = ["--text", str(tmp_path / "text.txt"), "--tokens", "4", "--prompt", "sea"]

    def run(*arguments):
        return command(finetune.main, *options, "--model", str(model), *arguments)

    return run


@pytest.fixture
def told(finetune_):
    """What it says as JSON."""

    def run(*arguments: str) -> dict[str, Any]:
        outcome = finetune_("--json", *arguments)
        assert (outcome.status, outcome.err) == (0, "")
        return json.loads(outcome.out)

    return run


def interrupt_at(patch: pytest.MonkeyPatch, step: int) -> None:
    """Press Ctrl-C in the middle of a step."""
    whole = Tuning.step

    def interrupted(self: Tuning) -> float:
        if self.steps == step:
            os.kill(os.getpid(), signal.SIGINT)
        return whole(self)

    patch.setattr(Tuning, "step", interrupted)


class Quantized(TinyLlama):
    """The same model with the blocks' matrices in 32 values to a scale along their outputs, computed by hand."""

    largest = 7

    def weights(self) -> dict[str, Any]:
        found = super().weights()
        for block in range(self.blocks):
            for names in (("q",), ("k", "v"), ("output",)):  # k and v are 16 wide, and joined
                self._round([f"blk.{block}.attn_{name}.weight" for name in names], found)
            for name in ("gate", "up", "down"):
                self._round([f"blk.{block}.ffn_{name}.weight"], found)
        return found

    def _round(self, names: list[str], found: dict[str, Any]) -> None:
        joined = np.concatenate([found[name] for name in names])
        for start in range(0, len(joined), 32):
            part = joined[start : start + 32]
            scale = np.abs(part).max(axis=0) / np.float32(self.largest)
            joined[start : start + 32] = np.round(part / scale) * scale
        for name, made in zip(names, np.split(joined, len(names)), strict=True):
            found[name] = made


def loss_by_hand(tiny: TinyLlama) -> float:
    """The mean loss per token of the text in passages of 64, in float64."""
    ids, total = [FIRST_BYTE + byte for byte in TEXT.replace("he", "\0").encode()], 0.0
    ids = [FIRST_BYTE + 256 if id_ == FIRST_BYTE else id_ for id_ in ids]
    for start in range(0, len(ids) - 1, 64):
        passage = ids[start : start + 65]
        logits = tiny.logits(passage[:-1])
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        chosen = shares[np.arange(len(logits)), passage[1:]] / shares.sum(axis=-1)
        total -= np.log(chosen).sum()
    return total / (len(ids) - 1)


@pytest.mark.parametrize(("bits", "largest"), [("4", 7), ("8", 127)])
def test_before_it_learns_it_is_the_quantized_model(told, bits, largest):
    """A16, A19: new adapters change nothing. Against the model with its weights rounded by hand, in float64."""
    quantized = Quantized(**{f.name: getattr(TINY, f.name) for f in dataclasses.fields(TINY)})
    quantized.largest = largest
    found = told("--steps", "0", "--bits", bits)
    assert found["before"]["loss"] == pytest.approx(loss_by_hand(quantized), abs=1e-4)
    assert found["before"]["loss"] == found["after"]["loss"] == found["reloaded"]["loss"]
    assert found["before"]["text"] == found["reloaded"]["text"]
    assert abs(found["before"]["loss"] - loss_by_hand(TINY)) > 1e-3


def test_it_learns_and_the_reloaded_adapter_has_all_of_it(told):
    """The loss falls; over weights that are quantized anew it is the same to the last bit."""
    found = told("--steps", "8", "--rank", str(RANK))
    assert len(found["losses"]) == found["steps"] == 8
    assert found["after"]["loss"] < found["before"]["loss"] - 0.01
    assert found["reloaded"]["loss"] == found["after"]["loss"]
    assert found["before"]["text"].startswith("sea")
    assert found["reloaded"]["text"].startswith("sea")
    assert found["trained_numbers"] == BLOCKS * RANK * ((32 + 64) + (32 + 32))
    assert (found["adapter"], found["rank"], found["bits"], found["seed"]) == (None, RANK, 4, 0)


def test_the_devices_change_nothing_but_the_placement(told):
    """On one, two and three: the same losses and texts, bit for bit. Another seed: others."""
    split, whole, three, other = (
        told("--steps", "3", *options)
        for options in ((), ("--devices", "cpu:0"), ("--devices", "cpu:4,cpu:1,cpu:2"), ("--seed", "1"))
    )
    assert split["placement"] == {"input": "cpu:0", "hidden": ["cpu:0", "cpu:0", "cpu:1"], "output": "cpu:0"}
    assert three["placement"] == {"input": "cpu:4", "hidden": ["cpu:4", "cpu:1", "cpu:2"], "output": "cpu:4"}
    assert {**split, "placement": None} == {**whole, "placement": None} == {**three, "placement": None}
    assert split["losses"] != other["losses"]


def test_devices_without_a_layer_are_named(finetune_):
    """On the error stream; the object is as without them."""
    outcome = finetune_("--steps", "0", "--devices", "cpu:0,cpu:1,cpu:2,cpu:3,cpu:1,cpu:4", "--json")
    assert (outcome.status, outcome.err) == (0, "finetune: no layer goes to cpu:3, cpu:4\n")
    assert json.loads(outcome.out)["placement"]["hidden"] == ["cpu:0", "cpu:1", "cpu:2"]


def test_the_record_holds_the_adapters_alone(told, tmp_path):
    """A30: two factors for each adapted matrix, no base; and what they were made with."""
    file = tmp_path / "kept.bpk"
    found = told("--steps", "2", "--rank", str(RANK), "--adapter", str(file.with_suffix("")))
    assert found["adapter"] == str(file)
    assert found["adapter_bytes"] == file.stat().st_size
    with open_record(file, check_data=True) as record:
        assert {path: entry.shape for path, entry in record.items()} == {
            f"blocks.{block}.attention.{layer}.weight.lora.{factor}": shape
            for block in range(BLOCKS)
            for layer, wide in (("query_key_value", 64), ("output", 32))
            for factor, shape in (("a", (32, RANK)), ("b", (RANK, wide)))
        }
        scalars = {name: scalar.value for name, scalar in record.scalars.items()}
        assert scalars == {"steps": 2, **dataclasses.asdict(Settings(rank=RANK))}


def test_a_kept_adapter_is_gone_on_with(told, tmp_path):
    """Its settings are those in the file; with no steps the file stays what it is."""
    file = tmp_path / "kept.bpk"
    first = told("--steps", "2", "--rank", "2", "--bits", "8", "--seed", "5", "--adapter", str(file))
    second = told("--steps", "3", "--adapter", str(file))
    assert second["before"] == {"steps": 2, **first["reloaded"]}
    assert (second["steps"], len(second["losses"])) == (5, 3)
    assert (second["rank"], second["bits"], second["seed"]) == (2, 8, 5)
    third = told("--steps", "0", "--rank", "2", "--bits", "8", "--seed", "5", "--adapter", str(file))
    assert third["reloaded"] == second["reloaded"]
    assert third["steps"] == 5


def test_every_step_has_a_passage_of_its_own(told, tmp_path):
    """2 and then 1 steps draw the passages of 3: the third loss is that of the model as it was, on the third one."""
    file = tmp_path / "kept.bpk"
    whole = told("--steps", "3")
    assert told("--steps", "2", "--adapter", str(file))["losses"] == whole["losses"][:2]
    assert told("--steps", "1", "--adapter", str(file))["losses"] == whole["losses"][2:]
    assert len(set(whole["losses"])) == 3


def begun(model: Path, settings: Settings) -> Tuning:
    """New adapters over the tiny model."""
    with opened_model(model) as record:
        placement = LayerPlacement("cpu:0+autodiff", ["cpu:0+autodiff"] * BLOCKS, "cpu:0+autodiff")
        base = loaded_llama(record, llama_config(record), placement)
        return Tuning(base, settings, Tokenizer.from_gguf(record.metadata).encode(TEXT))


def test_a_seed_is_of_the_first_factors_and_of_the_passages(model):
    """The same one: the same; another: others. Passages are shown where nothing is learned, by their losses."""

    def drawn(seed: int) -> tuple[list[bytes], list[float]]:
        tuning = begun(model, Settings(seed=seed, lr=1e-30, length=16))
        return [entry.host().tobytes() for entry in tuning.record().values()], [tuning.step() for _ in range(8)]

    (factors, losses), (same_factors, same_losses), (others, other_losses) = map(drawn, (0, 0, 1))
    assert (factors, losses) == (same_factors, same_losses)
    assert len(set(losses)) >= 4
    assert losses != other_losses
    assert [one == other for one, other in zip(factors, others, strict=True)] == [False, True] * 2 * BLOCKS  # b is 0


def test_gradients_are_limited(model):
    """A limit that some gradients exceed and some do not changes what is learned."""
    limited, free = (begun(model, Settings(limit=limit)) for limit in (1e-3, 1e6))
    assert [limited.step() for _ in range(4)] != [free.step() for _ in range(4)]


def test_ctrl_c_keeps_the_adapter_as_far_as_it_came(finetune_, told, monkeypatch, tmp_path):
    """The step is finished; the message tells where it is. Without --adapter nothing is kept."""
    file = tmp_path / "kept.bpk"
    whole = told("--steps", "2")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 1)
        outcome = finetune_("--steps", "5", "--adapter", str(file))
    assert outcome.status == 130
    assert outcome.err == f"finetune: stopped after 2 steps; the same command goes on from {file}\n\n"
    assert told("--steps", "0", "--adapter", str(file))["reloaded"] == whole["reloaded"]
    monkeypatch.chdir(tmp_path / "..")
    before = set(Path().iterdir())
    interrupt_at(monkeypatch, 0)
    assert "stopped after 1 step, and nothing is kept" in finetune_("--steps", "5").err
    assert set(Path().iterdir()) == before


def test_ctrl_c_before_it_learns_is_quiet(finetune_, monkeypatch):
    """While the model speaks; no traceback."""

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(finetune, "generated_ids", interrupt)
    outcome = finetune_("--steps", "1")
    assert (outcome.status, outcome.err) == (130, "\n")


def test_it_prints_placement_losses_texts_and_where_the_adapter_is(finetune_, told, tmp_path):
    """In this order; the numbers are those of the JSON."""
    file = tmp_path / "kept.bpk"
    found = told("--steps", "2")
    outcome = finetune_("--steps", "2", "--adapter", str(file))
    assert (outcome.status, outcome.err) == (0, "")
    wanted = [
        "tied to input",
        f"weights of 4 bits; 6 adapters of rank 8, {found['trained_numbers']:,} numbers; a text of",
        f"before: loss {found['before']['loss']:.4f}",
        found["before"]["text"],
        f"after 2 steps: loss {found['after']['loss']:.4f}",
        f"is in {file}",
        f"reloaded over weights quantized anew: loss {found['reloaded']['loss']:.4f}",
        found["reloaded"]["text"],
    ]
    places = [outcome.out.index(text) for text in wanted]
    assert sorted(places[:3] + places[4:7]) == places[:3] + places[4:7]
    assert "is not kept (--adapter FILE keeps it)" in finetune_("--steps", "0").out
    assert "after 2 steps: loss" in finetune_("--steps", "0", "--adapter", str(file)).out


def test_on_a_terminal_a_bar_shows_the_loss(finetune_, monkeypatch):
    """On the error stream."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "learning" in finetune_("--steps", "2").err


def test_a_mistake_is_one_clear_line(finetune_, command, model, tmp_path):
    """In options, in the text, and in the adapter's file; nothing is printed before it."""
    kept, other, near, binary = (tmp_path / name for name in ("kept.bpk", "other.bpk", "near.bpk", "binary"))
    assert finetune_("--steps", "0", "--rank", "2", "--adapter", str(kept)).status == 0
    Holder(layer=Linear(2, 2)).save_file(other)
    with open_record(kept) as record:
        part = type(record)(
            {path: entry for path, entry in record.items() if ".1." not in path}, scalars=record.scalars
        )
        part.save(near)
    damaged = bytearray(kept.read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "damaged.bpk").write_bytes(damaged)
    binary.write_bytes(b"\xff\xff\xff")
    pipe = tmp_path / "pipe.bpk"
    os.mkfifo(pipe)
    (tmp_path / "short").write_text("a")
    for options, status, line in (
        (["--steps", "-1"], 2, "--steps -1"),
        (["--rank", "0"], 2, "--rank 0"),
        (["--bits", "5"], 2, "invalid choice: 5"),
        (["--tokens", "-1"], 2, "--tokens -1"),
        (["--seed", "-1"], 2, "--seed -1"),
        (["--devices", "cuda"], 2, "'cuda' is no device"),
        (["--prompt", ""], 1, "the prompt has no tokens"),
        (["--prompt", "a" * 65], 1, "65 tokens, and the model 64 positions"),
        (["--text", str(tmp_path / "nowhere")], 1, f"--text {tmp_path / 'nowhere'}: No such file or directory"),
        (["--text", str(tmp_path)], 1, f"--text {tmp_path}: Is a directory"),
        (["--text", ""], 2, "--text '': give the name of a file"),
        (["--model", ""], 2, "--model '': give the name of a file"),
        (["--adapter", ""], 2, "--adapter: '' has no file name"),
        (["--adapter", f"{tmp_path}/new/"], 2, f"--adapter: {tmp_path}/new/: it ends in a slash"),
        (["--adapter", "/dev/null"], 2, "--adapter: /dev/null: it is no regular file"),
        (["--adapter", str(pipe.with_suffix(""))], 2, f"--adapter {pipe.with_suffix('')}: it is no regular file"),
        *(
            (["--adapter", f"a.{of}"], 2, f"--adapter a.{of}: it cannot be kept in such a file; name it *.bpk")
            for of in ("mpk", "MPK", "mpk.gz", "gguf", "pt")
        ),
        (["--text", str(binary)], 1, "no text in UTF-8"),
        (["--text", str(tmp_path / "short")], 1, "1 token; there is nothing to learn"),
        (["--adapter", str(other)], 1, "is no record of an adapter: it has no number 'steps'"),
        (["--adapter", str(near)], 1, "it has no blocks.1.attention.query_key_value.weight.lora.a"),
        (["--adapter", str(tmp_path / "damaged.bpk")], 1, "digest"),
        (["--adapter", str(tmp_path / "no" / "kept")], 1, "No such file or directory"),
        (["--adapter", str(kept), "--rank", "3"], 2, "holds an adapter of rank 2"),
        (["--adapter", str(kept), "--bits", "8"], 2, "holds an adapter of bits 4"),
        (["--adapter", str(kept), "--seed", "1"], 2, "holds an adapter of seed 0"),
        (["--model", str(TinyLlama().write(tmp_path / "narrow.gguf"))], 1, "blocks.0.attention.query_key_value.weight"),
    ):
        outcome = finetune_(*options)
        assert (outcome.status, outcome.out) == (status, ""), (options, outcome)
        assert outcome.err.count("\n") == 1
        assert line in outcome.err


NUMBERS = (("steps", -1), ("steps", 1.5), ("steps", True), ("steps", 2**62), ("seed", -1), ("seed", 2**63),
           ("rank", 2.0), ("rank", 0), ("rank", 65), ("rank", 2**31 - 1), ("rank", 2**40), ("bits", 3), ("bits", 5),
           ("bits", 16), ("bits", 4.0), ("init_std", -0.1), ("init_std", 1.5), ("length", 0),
           ("length", 2.5), ("length", 2**62), ("lr", -1.0), ("lr", 3.5e38), ("lr", float("nan")),
           ("length", 2**31), ("limit", 0.0), ("limit", True))  # fmt: skip


def test_numbers_of_an_adapter_that_none_has_are_one_clear_line(finetune_, model, tmp_path, monkeypatch):
    """Before a model is built."""
    kept, record = tmp_path / "kept.bpk", begun(model, Settings(rank=2)).record()
    monkeypatch.setattr(finetune, "loaded_llama", lambda *_: pytest.fail("a model was built"))
    for name, value in NUMBERS:
        record.with_scalars(**{name: value}).save(kept)
        outcome = finetune_("--adapter", str(kept))
        assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1), outcome
        assert f"kept.bpk is no record of an adapter: its {name!r} is {value!r}" in outcome.err


@pytest.mark.filterwarnings("error")
def test_numbers_at_the_ends_of_their_ranges_are_taken(told, model, tmp_path):
    """With no step made, the loss is that of the factors, which are in the record."""
    kept, record = tmp_path / "kept.bpk", begun(model, Settings(rank=2)).record()
    ends = {"steps": 2**31 - 1, "seed": 2**63 - 1, "length": 2**31 - 1, "lr": 0, "init_std": 1, "limit": 5e-324}
    record.with_scalars(**ends).save(kept)
    found = told("--steps", "0", "--adapter", str(kept))
    assert (found["steps"], found["seed"]) == (2**31 - 1, 2**63 - 1)
    assert np.isfinite(found["reloaded"]["loss"])


def test_an_adapter_whose_tensors_are_of_other_settings_is_one_clear_line(finetune_, model, tmp_path):
    """It names the file, and the first thing that does not fit."""
    kept = tmp_path / "kept.bpk"
    begun(model, Settings(rank=2)).record().with_scalars(rank=3).save(kept)
    outcome = finetune_("--adapter", str(kept))
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1), outcome
    assert "kept.bpk is no record of an adapter: " in outcome.err
    assert "more)" in outcome.err


@pytest.mark.parametrize("name", ["kept", "kept.2", "kept.safetensors", "kept.bpk"])
def test_an_adapter_of_any_name_goes_on(told, tmp_path, name):
    """``.bpk`` is added to a bare name (R38), where a folder has it too (R39)."""
    (tmp_path / "kept").mkdir()
    for steps in (1, 2):
        found = told("--steps", "1", "--adapter", str(tmp_path / name))
        assert found["adapter"] == str(tmp_path / (name if "." in name else "kept.bpk"))
        assert found["steps"] == steps


def test_the_text_that_comes_with_it_is_a_small_one_in_a_manner_of_its_own():
    """300 to 600 words; each part of it but the last ends alike."""
    *parts, last = finetune._TEXT.read_text(encoding="utf-8").split("\n\n")
    assert 300 <= sum(len(part.split()) for part in (*parts, last)) <= 600
    assert all(part.endswith("So turns the light, and so goes the night.") for part in parts)
    assert len(parts) == 7
