"""Burn's trained MNIST network, cut by layers over devices, reads the handwritten digits of scikit-learn.

They are other digits than it was trained with, 8 × 8 pixels large, and are
enlarged to its 28 × 28; it reads most of them. FILE is its record, mnist.bpk.
Of three layers, the first two devices and the last one get one each; others
are named on the error stream.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine import Device, Tensor, ops, tensor
from examples.command_line import OneLineParser, add_devices, counted, devices_of, run
from examples.digits import Digits
from examples.errors import UsageError
from examples.file_options import read_by
from examples.loading import shown
from examples.models.mnist import EXTENT, Mnist, mnist_record, normalised
from examples.packages import library
from examples.placing import placement_json, placement_table, tell_unused
from modules.parallel import DistributedLayeredModel, LayerPlacement
from records import open_record

_NAME: Final = "mnist"
_FOLDER: Final = "LAYERLOOM_GOLDEN"
_EXTENTS: Final = (18, 14)  # pixels of a digit in the middle of its image, about as tall and wide as MNIST's are
_DARK, _CONTRAST = 0.3, 2.5  # what MNIST shows as black, and how much steeper its edges are


def main() -> None:
    """Run the command."""
    run(_NAME, lambda: _mnist(_arguments()))


def _arguments() -> argparse.Namespace:
    parser = OneLineParser(_NAME, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = f"default: public/mnist.bpk in the folder that {_FOLDER} names"
    parser.add_argument("file", metavar="FILE", nargs="?", type=read_by("FILE"), help=default)
    add_devices(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object, and nothing else")
    return parser.parse_args()


def _mnist(arguments: argparse.Namespace) -> None:
    devices = devices_of(arguments.devices)
    model = load_model(arguments.file or _default_file(), devices)
    tell_unused(_NAME, devices, model.placement)
    digits = Digits.load()
    logits = model(batch_of(digits.images, model.placement.input))
    found = ops.argmax(logits, axis=-1).to_device("cpu:0").numpy()
    is_right = found == digits.labels
    if arguments.json:
        placed = placement_json(model.placement)
        print(json.dumps({"found": found.tolist(), "accuracy": float(is_right.mean()), "placement": placed}))
        return
    console = library("rich.console").Console()
    console.print(placement_table(model))
    console.print(_table(digits.labels, is_right))
    print(f"{is_right.mean():.1%} of {counted(len(found), 'digit')} are read as what they are")


def _default_file() -> Path:
    folder = os.environ.get(_FOLDER)
    if not folder:
        raise UsageError(f"give the network's record, mnist.bpk, or name with {_FOLDER} a folder with public/mnist.bpk")
    return Path(folder, "public", "mnist.bpk")


def load_model(file: Path, devices: Sequence[Device]) -> DistributedLayeredModel[Mnist]:
    """The network, its layers in even shares over the devices.

    Raises:
        RecordError: the file cannot be read, or is of another network.
    """
    first, *others = devices
    placement = LayerPlacement(first, [others[0] if others else first], devices[-1])
    model = DistributedLayeredModel(Mnist(placement), placement)
    with open_record(file) as record, shown(mnist_record(record), "the network") as watched:
        return model.load_record(watched).valid()


def batch_of(images: NDArray[Any], device: Device) -> Tensor:
    """Images [images, height, width], from 0 to 1, as the network takes them: enlarged, framed and normalised."""
    large = np.clip((_enlarged(_enlarged(images, 1), 2) - _DARK) * _CONTRAST, 0, 1)
    margins = [((EXTENT - extent) // 2, (EXTENT - extent + 1) // 2) for extent in _EXTENTS]
    framed = np.pad(large, ((0, 0), *margins))
    return normalised(tensor(framed[:, None].astype(np.float32), device=device))


def _enlarged(images: NDArray[Any], axis: int) -> NDArray[Any]:
    """Images with more pixels along an axis, each a mean of its two neighbours weighted by how near they are."""
    extent, wanted = images.shape[axis], _EXTENTS[axis - 1]
    places = np.clip((np.arange(wanted) + 0.5) * extent / wanted - 0.5, 0, extent - 1)
    low = np.minimum(places.astype(int), extent - 2)
    share = (places - low).reshape(-1, *(1,) * (images.ndim - axis - 1))
    return images.take(low, axis) * (1 - share) + images.take(low + 1, axis) * share


def _table(labels: NDArray[Any], is_right: NDArray[Any]) -> Any:
    table = library("rich.table").Table("digit", box=library("rich.box").SIMPLE)
    for heading in ("images", "read right"):
        table.add_column(heading, justify="right")
    for digit in range(10):
        of_digit = is_right[labels == digit]
        table.add_row(str(digit), f"{len(of_digit):,}", f"{of_digit.mean():.1%}" if len(of_digit) else "")
    return table


if __name__ == "__main__":
    main()
