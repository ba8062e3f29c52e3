"""Chat templates: a conversation as the text that a model was trained to see."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from examples.errors import UsageError
from examples.packages import library

_TEMPLATE = "tokenizer.chat_template"


def chat_text(metadata: Mapping[str, Any], question: str) -> str:
    """A user's question in the chat template of a GGUF file, up to where the model's answer begins.

    The template is a program of whoever made the file; it runs in jinja2's
    sandbox, which lets it see and do nothing but make the text.

    Raises:
        UsageError: the file has no template, or the template fails.
    """
    template = metadata.get(_TEMPLATE)
    if not isinstance(template, str):
        raise UsageError("the model has no chat template; use --prompt")
    environment = library("jinja2.sandbox").ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(template).render(
            messages=[{"role": "user", "content": question}],
            add_generation_prompt=True,
            bos_token=_token(metadata, "bos"),
            eos_token=_token(metadata, "eos"),
        )
    except Exception as error:  # a template can fail in every way that a program can
        raise UsageError(f"the model's chat template cannot be used: {error}; use --prompt") from error


def _refuse(reason: str) -> NoReturn:
    """What a template calls to refuse a conversation."""
    raise ValueError(reason)


def _token(metadata: Mapping[str, Any], name: str) -> str:
    """The text of a special token; empty where the file names none."""
    tokens: Sequence[str] = metadata.get("tokenizer.ggml.tokens", ())
    index = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return tokens[index] if isinstance(index, int) and index < len(tokens) else ""
