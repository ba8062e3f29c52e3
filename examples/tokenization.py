"""Text to token ids and back, by the tokenizer that a model's file carries."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

from examples.errors import UsageError
from examples.packages import library
from records import RecordFormatError

_SPLITS_DIGITS: Final = {"gpt-2": False, "smollm": True}  # pre-tokenisers of GGUF files -> whether digits stand alone
_CONTROL, _USER_DEFINED = 3, 4  # token types that are never split


@final
class Tokenizer:
    """A tokenizer of the library `tokenizers`.

    Args:
        tokenizer: the library's object.
        stop_ids: ids at which generated text ends.
        is_lossless: whether decoding gives back every text, so that one that it does not is refused.
    """

    def __init__(self, tokenizer: Any, stop_ids: frozenset[int] = frozenset(), is_lossless: bool = False) -> None:
        self._tokenizer = tokenizer
        self._is_lossless = is_lossless
        self.stop_ids = stop_ids

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """The tokenizer in a GGUF file's metadata: byte-level BPE as in GPT-2, special tokens being one token each.

        Raises:
            RecordFormatError: the metadata lacks it.
            UsageError: it is of another kind.
        """
        model, split = (_text(metadata, f"tokenizer.ggml.{key}") for key in ("model", "pre"))
        if model != "gpt2" or split not in _SPLITS_DIGITS:
            kinds = ", ".join(_SPLITS_DIGITS)
            raise UsageError(f"the tokenizer {model!r}, {split!r} is not supported; 'gpt2' with one of {kinds} is")
        tokenizers = library("tokenizers")
        try:
            tokenizer = _byte_level(tokenizers, metadata, _SPLITS_DIGITS[split])
        except Exception as error:  # the library has no class for its own
            raise RecordFormatError(f"the file's tokenizer is damaged: {error}") from error
        ends = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
        return cls(tokenizer, frozenset(end for end in ends if isinstance(end, int)), is_lossless=True)

    @classmethod
    def from_json(cls, file: Path, max_tokens: int) -> "Tokenizer":
        """The tokenizer in a ``tokenizer.json``, its padding off, texts cut at `max_tokens`."""
        tokenizer = library("tokenizers").Tokenizer.from_file(str(file))
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_tokens)
        return cls(tokenizer)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, special tokens written out in it included.

        Raises:
            UsageError: the text is not valid Unicode, or the vocabulary lacks something in it.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{text!r} is not valid text ({error.reason})") from None
        ids = self._tokenizer.encode(text).ids
        if self._is_lossless and self.decode(ids) != text:
            raise UsageError(f"{text!r} has characters that the model's vocabulary lacks")
        return ids

    def cuts(self, text: str) -> bool:
        """Whether a text that `encode` takes is longer than what it gives ids of."""
        return bool(self._tokenizer.encode(text).overflowing)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens written out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def stream(self) -> "TextStream":
        """What turns ids into text one by one."""
        return TextStream(self._tokenizer)


@final
class TextStream:
    """Text of one id after the other; a character that several tokens make comes when it is whole."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._stream = library("tokenizers").decoders.DecodeStream(skip_special_tokens=False)

    def step(self, id: int) -> str:
        """The text that is whole with this id and was not before; maybe none."""
        return self._stream.step(self._tokenizer, id) or ""


def _byte_level(tokenizers: Any, metadata: Mapping[str, Any], splits_digits: bool) -> Any:
    """The library's tokenizer of a GGUF file's metadata."""
    tokens, types, merges = (_list(metadata, f"tokenizer.ggml.{key}") for key in ("tokens", "token_type", "merges"))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        raise ValueError("a token is there twice")
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=pairs))
    bytewise = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [tokenizers.pre_tokenizers.Digits(individual_digits=True)] if splits_digits else []
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*digits, bytewise])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    for kind, add in ((_CONTROL, tokenizer.add_special_tokens), (_USER_DEFINED, tokenizer.add_tokens)):
        whole = [token for token, of in zip(tokens, types, strict=True) if of == kind]
        add([tokenizers.AddedToken(token, normalized=False) for token in whole])
    return tokenizer


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str):
        raise RecordFormatError(f"the file has no tokenizer: its metadata {key!r} is {value!r}, not a text")
    return value


def _list(metadata: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    value = metadata.get(key)
    if not isinstance(value, tuple):
        raise RecordFormatError(f"the file has no tokenizer: its metadata {key!r} is no list")
    return value
