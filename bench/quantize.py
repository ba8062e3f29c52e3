"""What do quantized weights cost in time, and what do they save in bytes and lose in quality?

A weight of 4096 × 4096, quantized to 8 and to 4 bits with one scale, and with one for each block of 32 along its rows:
GB/s (1e9 bytes of its float32 form per second) against a copy of it by one thread, which is what our side uses; where
this interpreter, or the one that --beside names, has torch, against the same work there on as many threads as BLAS has.
Then SmolLM2-135M with all matrices quantized in blocks of 32: bytes in memory, where each value takes a byte whatever
its bits, and in a file; perplexity on prose that was written for this, in one piece; and tokens per second, one at a
time after a prompt of 32, and for a prompt of 128. Where two places share a matrix, a file has it twice. Medians of 20
interleaved rounds; beside PyTorch 10, of the model 5.
"""

import hashlib
import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine import BlockScale, Calibration, QuantScheme, QuantValue, Tensor, dequantize, ops, quantize, randn, tensor
from examples.tokenization import Tokenizer
from modules import Param, ParamGroup, Quantizer
from modules.tree import Node, leaves
from records import open_record

from . import gguf_files
from .answers import check_same, check_same_bits
from .beside.client import Beside, BesideError
from .machine import blas_threads
from .report import Limit, Row, at_least
from .settings import Settings
from .speaker import Speaker
from .timing import Spread, Timing, timed

_BLOCK: Final = 32  # values that share a scale
_VALUES: Final = {8: QuantValue.Q8S, 4: QuantValue.Q4S}
_MATRICES: Final = ParamGroup.from_regex(r"weight$")
_PROSE: Final = Path(__file__).with_name("prose.txt")
_PIECE: Final = 256  # tokens of the prose that go through the model together
_TOKENS: Final = 8  # decoded in one reading


class Form(NamedTuple):
    """How a weight is quantized.

    Attributes:
        bits: of a value.
        block: values that share a scale; 0 for all of the weight.
    """

    bits: int
    block: int

    @property
    def scheme(self) -> QuantScheme:
        """The scheme."""
        return QuantScheme(_VALUES[self.bits], block=BlockScale((self.block,)) if self.block else None)

    @property
    def name(self) -> str:
        """What a row calls it."""
        return f"{self.bits} bits, {f'blocks of {self.block}' if self.block else 'one scale'}"


_FORMS: Final = tuple(Form(bits, block) for bits in _VALUES for block in (0, _BLOCK))


def measure(settings: Settings) -> Iterable[Row]:
    """A weight, alone and beside PyTorch, and a language model."""
    settings.progress.expect(len(_FORMS) + 1)
    width = settings.size(4096, 64)
    weight = randn((width, width), seed=0, device="cpu:0")
    for form in _FORMS:
        yield from _weight(settings, weight, form)
    yield from _beside(settings, weight)
    with tempfile.TemporaryDirectory(prefix="layerloom-bench-") as folder:
        yield from _model(settings, Path(folder))


# A weight


def _weight(settings: Settings, weight: Tensor, form: Form) -> Iterator[Row]:
    made = quantize(weight, form.scheme)
    source, target = weight.numpy(), np.empty(weight.shape, np.float32)
    _fill(made, target)
    check_same_bits(f"quantize, {form.name}", target, dequantize(made).numpy())
    _check_nearest(source, target, form)
    copying, quantizing, dequantizing, filling = settings.interleaved(
        timed(lambda: np.copyto(target, source)),
        timed(lambda: quantize(weight, form.scheme)),
        timed(lambda: dequantize(made)),
        timed(lambda: _fill(made, target)),
        rounds=20,
    )
    goal = at_least(0.2) if form == Form(8, _BLOCK) else None
    yield Row(what=f"copying, {form.name}", value=copying.rate(weight.nbytes / 1e9), unit="GB/s")
    yield _rate(f"quantizing, {form.name}", quantizing, copying, weight.nbytes, goal=goal)
    yield _rate(f"dequantizing, {form.name}", dequantizing, copying, weight.nbytes)
    what = f"dequantizing into memory that is there, {form.name}"
    yield _rate(what, filling, copying, weight.nbytes, bound=at_least(0.6))


def _rate(
    what: str,
    timing: Timing,
    other: Timing,
    nbytes: int,
    to: str = "a copy",
    *,
    bound: Limit | None = None,
    goal: Limit | None = None,
) -> Row:
    rate, ratio = timing.rate(nbytes / 1e9), other.over(timing)
    return Row(what=what, value=rate, unit="GB/s", ratio=ratio, to=to, bound=bound, goal=goal)


def _fill(made: Tensor, target: NDArray[np.float32]) -> None:
    """The numbers of a quantized tensor in memory that is there, as products with a large weight make them."""
    made._data.dequantized(np, target.dtype, target)


def _check_nearest(before: NDArray[Any], after: NDArray[Any], form: Form) -> None:
    """Check that no number is further from what stands for it than half a step, and a little for rounding."""
    blocks = before.reshape(-1, form.block or before.size)
    half = np.abs(blocks).max(axis=-1, keepdims=True) / (2 * _VALUES[form.bits].high)
    far = np.abs(blocks - after.reshape(blocks.shape)) > half * (1 + 1e-4)
    check_same(f"quantize, {form.name}, numbers beyond half a step", int(far.sum()), 0)


def _beside(settings: Settings, weight: Tensor) -> Iterator[Row]:
    what = "quantizing beside eager PyTorch"
    if settings.beside is None and importlib.util.find_spec("torch") is None:
        why = "not measured: torch is not installed here; --beside names an interpreter that has it"
        yield Row(what=what, value=None, unit="GB/s", note=why)
        return
    with tempfile.TemporaryDirectory(prefix="layerloom-bench-") as folder:
        file = Path(folder, "weight")
        with file.open("wb") as stream:
            stream.write(json.dumps({"shape": weight.shape}).encode() + b"\n")
            stream.write(weight.numpy().astype("<f4", copy=False).data)
        python = settings.beside or Path(sys.executable)
        try:
            with Beside(python, "quantize_with_torch", file, blas_threads()) as process:
                for form in _FORMS:
                    yield from _compared(settings, weight, form, process)
        except BesideError as error:
            yield Row(what=what, value=None, unit="GB/s", note=f"not measured: {error}")


def _compared(settings: Settings, weight: Tensor, form: Form, process: Beside) -> Iterator[Row]:
    made = quantize(weight, form.scheme)
    parts = {"values": made._data.values, "scales": made._data.scales, "numbers": dequantize(made).numpy()}
    high, block = _VALUES[form.bits].high, form.block
    ours = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in parts.items()}
    check_same(f"quantize, {form.name}, beside PyTorch", ours, process.ask("digest", high=high, block=block))
    target = np.empty(weight.shape, np.float32)
    pairs = {
        "quantizing": (timed(lambda: quantize(weight, form.scheme)), "quantize"),
        "dequantizing": (timed(lambda: dequantize(made)), "dequantize"),
        "dequantizing into memory that is there": (timed(lambda: _fill(made, target)), "fill"),
    }
    settings.progress.expect(len(pairs))
    for what, (reading, do) in pairs.items():
        mine, its = settings.interleaved(reading, process.reading(do, high=high, block=block), rounds=10)
        bound = at_least(0.5) if (do, form) == ("quantize", Form(8, _BLOCK)) else None
        row = f"{what} beside eager PyTorch, {form.name}"
        yield _rate(row, mine, its, weight.nbytes, f"eager {process.version}", bound=bound)


# A language model


def _model(settings: Settings, folder: Path) -> Iterator[Row]:
    file = gguf_files.smollm2_file(folder, settings)
    speakers = {"float32": Speaker(file, ["cpu:0"], only_last=False)}
    for bits in _VALUES:
        speaker = speakers[f"{bits} bits"] = Speaker(file, ["cpu:0"], only_last=False)
        quantizer = Quantizer(Calibration.MIN_MAX, Form(bits, _BLOCK).scheme, _MATRICES)
        speaker.model = speaker.model.quantize_weights(quantizer)
    yield from _bytes(speakers, folder)
    yield from _perplexity(settings, speakers, file)
    yield from _speed(settings, speakers)


def _bytes(speakers: dict[str, Speaker], folder: Path) -> Iterator[Row]:
    """In memory and in a file, which is loaded again to see that it holds the same model."""
    in_memory: dict[str, float] = {}
    in_file: dict[str, float] = {}
    for name, speaker in speakers.items():
        params = _params(speaker.model)
        in_memory[name] = sum(param.nbytes for param in params)
        file = folder / f"{name}.bpk"
        speaker.model.save_file(file)
        in_file[name] = file.stat().st_size
        loaded = speaker.model.load_file(file)
        for before, after in zip(params, _params(loaded), strict=True):
            check_same(f"quantize, {name}, loaded", before.dtype, after.dtype)
            check_same(f"quantize, {name}, loaded", before.base().tobytes(), after.base().tobytes())
        del loaded
        file.unlink()
    yield from _beside_float32("bytes in memory", in_memory, "MB", 1e6)
    yield from _beside_float32("bytes in a file", in_file, "MB", 1e6)


def _params(model: Node) -> list[Param]:
    """The parameters of a model, each once."""
    return list({id(leaf): leaf for _, leaf in leaves(model) if isinstance(leaf, Param)}.values())


def _beside_float32(what: str, found: dict[str, float], unit: str, per: float = 1.0) -> Iterator[Row]:
    """A row for each form of the model, of a number that was found once."""
    first = next(iter(found.values()))
    for place, (name, number) in enumerate(found.items()):
        value, ratio = Spread(*[number / per] * 3), Spread(*[number / first] * 3)
        yield Row(
            what=f"{what}, {name}",
            value=value,
            unit=unit,
            ratio=ratio if place else None,
            to="float32" if place else "",
        )


def _perplexity(settings: Settings, speakers: dict[str, Speaker], file: Path) -> Iterator[Row]:
    with open_record(file) as record:
        ids = Tokenizer.from_gguf(record.metadata).encode(_PROSE.read_text(encoding="utf-8"))
    ids = ids[: settings.size(len(ids), 100)]
    found = {name: perplexity(speaker, ids, settings.size(_PIECE, 64)) for name, speaker in speakers.items()}
    yield from _beside_float32(f"perplexity on {len(ids):,} tokens", found, "")


def perplexity(speaker: Speaker, ids: Sequence[int], piece: int) -> float:
    """exp of the mean of −log p over all tokens but the first, each given all before it.

    Args:
        speaker: gives logits of all positions.
        piece: tokens that go through the model together.
    """
    cache = speaker.model.new_autoregressive_cache()
    total, last = 0.0, len(ids) - 1
    for start in range(0, last, piece):
        given, told = ids[start : min(start + piece, last)], ids[start + 1 : start + 1 + piece]
        logits: Tensor = speaker.model.forward_autoregressive_inference(tensor([given], device="cpu:0"), cache)
        total += len(told) * float(ops.cross_entropy(logits[0], tensor(told, device="cpu:0")))
    return float(np.exp(total / last))


def _speed(settings: Settings, speakers: dict[str, Speaker]) -> Iterator[Row]:
    random, tokens = np.random.default_rng(0), settings.size(_TOKENS, 4)
    n_tokens = speakers["float32"].config.n_tokens
    short, long = (random.integers(20, n_tokens, count).tolist() for count in (32, settings.size(128, 8)))
    decoding = [speaker.decoding(short, tokens) for speaker in speakers.values()]
    prefilling = [speaker.prefilling(long) for speaker in speakers.values()]
    timings = settings.interleaved(*decoding, *prefilling, rounds=5, warmup=1)
    for what, count, of in (
        ("decoding", 1, timings[: len(speakers)]),
        (f"prefill of {len(long)} tokens", len(long), timings[len(speakers) :]),
    ):
        for name, timing in zip(speakers, of, strict=True):
            is_first = timing is of[0]
            ratio = None if is_first else of[0].over(timing)
            value = timing.rate(count)
            yield Row(
                what=f"{what}, {name}", value=value, unit="tokens/s", ratio=ratio, to="" if is_first else "float32"
            )
