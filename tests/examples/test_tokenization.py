"""Text to ids and back: byte-level BPE from a GGUF file's metadata, and tokenizer.json files."""

import dataclasses

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from examples.chat import chat_text
from examples.errors import UsageError
from examples.tokenization import Tokenizer
from records import RecordFormatError, open_record
from tests.examples.tiny_gguf import END, FIRST_BYTE, START, TOOL, TinyLlama


@pytest.fixture(scope="module")
def metadata(tiny_file):
    with open_record(tiny_file) as record:
        return record.metadata


@pytest.fixture(scope="module")
def tokenizer(metadata):
    return Tokenizer.from_gguf(metadata)


def byte_ids(text):
    return [FIRST_BYTE + byte for byte in text.encode()]


@given(text=st.text())
def test_every_text_comes_back(tokenizer, text):
    """A vocabulary that has all bytes has all texts, and their ids are those of their bytes but for the one merge."""
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    if "he" not in text and "<" not in text:
        assert ids == byte_ids(text)


def test_merges_and_special_tokens_are_one_token_each(tokenizer):
    """Special tokens that are written out in the text included; digits stand alone."""
    he = FIRST_BYTE + 256
    assert tokenizer.encode("he") == [he]
    assert tokenizer.encode("<|start|>he<|end|><tool>") == [START, he, END, TOOL]
    assert tokenizer.encode("<|start>") == byte_ids("<|start>")
    assert tokenizer.stop_ids == {END}


@given(text=st.text(alphabet="aé漢🙂\n ", max_size=8))
def test_a_stream_gives_the_text_piece_by_piece_and_never_half_a_character(tokenizer, text):
    """Joined, the pieces are the text; no piece has a replacement character."""
    stream = tokenizer.stream()
    pieces = [stream.step(one) for one in tokenizer.encode(text)]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_text_that_the_vocabulary_lacks_is_refused(metadata):
    """Without the byte of "z" there is no such text; without the check the letter would vanish."""
    tokens = ["?" * n if n == FIRST_BYTE + ord("z") else t for n, t in enumerate(metadata["tokenizer.ggml.tokens"])]
    fewer = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.tokens": tuple(tokens)})
    assert fewer.encode("a") == byte_ids("a")
    with pytest.raises(UsageError, match="'az' has characters that the model's vocabulary lacks"):
        fewer.encode("az")


def test_what_is_no_text_is_refused(tokenizer):
    """As arguments that are no UTF-8 reach Python."""
    with pytest.raises(UsageError, match="not valid text"):
        tokenizer.encode("a\udcff")


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("tokenizer.ggml.model", "llama", UsageError),
        ("tokenizer.ggml.pre", "qwen2", UsageError),
        ("tokenizer.ggml.model", None, RecordFormatError),
        ("tokenizer.ggml.tokens", None, RecordFormatError),
        ("tokenizer.ggml.tokens", ("a", "a"), RecordFormatError),
        ("tokenizer.ggml.tokens", (1, 2), RecordFormatError),
        ("tokenizer.ggml.token_type", (1,), RecordFormatError),
        ("tokenizer.ggml.merges", ("hello",), RecordFormatError),
        ("tokenizer.ggml.merges", ("x yz",), RecordFormatError),
    ],
)
def test_tokenizer_data_that_is_unknown_or_damaged_is_refused(metadata, key, value, error):
    """One error that says which entry, whatever the library would have said."""
    with pytest.raises(error):
        Tokenizer.from_gguf({**metadata, key: value})


def test_a_pre_tokeniser_of_gpt_2_keeps_digits_together(metadata):
    """What SmolLM2 splits first."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    longer = {
        **metadata,
        "tokenizer.ggml.tokens": (*tokens, "12"),
        "tokenizer.ggml.token_type": (*types, 1),
        "tokenizer.ggml.merges": ("1 2",),
    }
    assert Tokenizer.from_gguf(longer).encode("12") == byte_ids("12")
    assert Tokenizer.from_gguf({**longer, "tokenizer.ggml.pre": "gpt-2"}).encode("12") == [len(tokens)]


def test_a_tokenizer_file_neither_pads_nor_exceeds_the_given_length(tmp_path):
    """Whatever the file itself says."""
    written = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    written.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    written.enable_padding(length=128)
    written.enable_truncation(2)
    written.save(str(tmp_path / "tokenizer.json"))
    read = Tokenizer.from_json(tmp_path / "tokenizer.json", 3)
    assert read.encode("a") == [0]
    assert read.encode("a b a a") == [0, 1, 0]


# Chat templates


def test_a_question_is_put_into_the_templates_words(metadata):
    """Up to where the answer begins."""
    assert chat_text(metadata, "why? {{ 1 }}") == "<|start|>user: why? {{ 1 }}<|end|><|start|>assistant: "


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{% if %}",
        "{{ missing.attribute }}",
        "{{ raise_exception('no system message') }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_is_missing_fails_or_reaches_out_is_refused(tmp_path, template):
    """The sandbox lets a template make text and nothing else; every failure points to --prompt."""
    file = dataclasses.replace(TinyLlama(), template=template).write(tmp_path / "m.gguf")
    with open_record(file) as record, pytest.raises(UsageError, match="use --prompt"):
        chat_text(record.metadata, "hello")
