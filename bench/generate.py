"""How close does a split language model come to what the machine can do, and to other implementations?

SmolLM2-135M in float32, its cache included. Decoding: tokens per second, one at a time after a prompt of 32, against
its matrix-vector products run bare in NumPy (in the faster of two memory orders), and against the memory's bandwidth,
which is that of the fastest of three NumPy functions that read far more than the caches hold. Prefill: 128 tokens at
once, against the machine's rate for the product of two matrices 2048 wide; only products with weights count as work.
Where this interpreter, or the one that --beside names, has torch or llama_cpp: against a Llama in eager PyTorch and
against llama.cpp, on the same weights and as many threads. Medians of 20 interleaved rounds (beside others: 10).
"""

import importlib.util
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from engine import ops, tensor

from . import gguf_files, limits
from .answers import check_close, check_same, check_same_bits
from .apart import apart, peak_bytes
from .beside.client import Beside, BesideError
from .machine import blas_threads
from .report import Limit, Row, at_least
from .settings import Settings
from .speaker import Speaker, multiplied
from .timing import Spread, Timing, fastest, timed

_PROMPT: Final = "The sea is"
_TOKENS: Final = 16  # decoded in one reading


class Other(NamedTuple):
    """Another implementation: its script, its name, how far its logits may lie from ours, and what we must reach."""

    script: str
    name: str
    tolerance: float
    decode_bound: Limit | None
    decode_goal: Limit | None
    prefill_bound: Limit | None


OTHERS: Final = (
    Other("with_torch", "eager PyTorch", 2e-3, at_least(0.5), None, at_least(1)),
    Other("with_llama_cpp", "llama.cpp", 5e-2, None, at_least(1), None),
)


def measure(settings: Settings) -> Iterable[Row]:
    """Decoding, prefill, the demo, and others."""
    settings.progress.expect(3)
    with tempfile.TemporaryDirectory(prefix="layerloom-bench-") as folder:
        file = gguf_files.smollm2_file(Path(folder), settings)
        whole = Speaker(file, ["cpu:0"])
        yield from _decoding(settings, whole, Speaker(file, ["cpu:0", "cpu:1"]))
        yield from _prefilling(settings, whole)
        yield from _beside(settings, whole, file, Path(folder) / "float32.gguf")
        nbytes = sum(weight.nbytes for weight in whole.products())
        del whole
        yield from _demo(settings, file, nbytes)


def _ids(whole: Speaker, count: int) -> list[int]:
    """Tokens for a prompt, the same ones each time; none of the special ones at the start of the vocabulary."""
    return np.random.default_rng(0).integers(20, whole.config.n_tokens, count).tolist()


def _decoding(settings: Settings, whole: Speaker, split: Speaker) -> Iterator[Row]:
    ids, tokens = _ids(whole, 32), settings.size(_TOKENS, 4)
    following, of_split = whole.following(ids, tokens), split.following(ids, tokens)
    check_same("generate, split in two", following["ids"], of_split["ids"])
    check_same_bits("generate, split in two", np.array(following["logits"]), np.array(of_split["logits"]))
    products = whole.products()
    weights = [product.numpy() for product in products]
    turned = [np.asfortranarray(w) if w.flags.c_contiguous else np.ascontiguousarray(w) for w in weights]
    random = np.random.default_rng(0)
    rows = [random.standard_normal((1, len(weight)), np.float32) for weight in weights]
    for row, weight, product, other in zip(rows, weights, products, turned, strict=True):
        ours = ops.linear(tensor(row, device="cpu:0"), product).numpy()
        check_close("generate, a product", 1e-2, ours, row @ weight, row @ other)

    nbytes = sum(weight.nbytes for weight in weights)
    read_nbytes = settings.size(2**30, 2**16)
    reads = limits.reads(read_nbytes, blas_threads())
    one, two, bare, bare_turned, *reading = settings.interleaved(
        whole.decoding(ids, tokens),
        split.decoding(ids, tokens),
        timed(lambda: multiplied(rows, weights), repeat=tokens),
        timed(lambda: multiplied(rows, turned), repeat=tokens),
        *reads.values(),
        rounds=20,
    )
    readings = dict(zip(reads, reading, strict=True))
    name = fastest(readings)
    at_bandwidth = readings[name].scaled(nbytes / read_nbytes)
    yield Row(what=f"reading memory, by {name}", value=readings[name].rate(read_nbytes / 1e9), unit="GB/s")
    yield _tokens("weights at that bandwidth", at_bandwidth)
    yield _tokens("its products bare, weights as the model holds them", bare)
    yield _tokens("its products bare, weights in the other memory order", bare_turned)
    orders = {"held": bare, "other": bare_turned}
    floor = orders[fastest(orders)]
    yield _tokens("decoding on one device", one, floor, "products bare", bound=at_least(0.85))
    yield _tokens("decoding on one device, beside bandwidth", one, at_bandwidth, "bandwidth", goal=at_least(0.6))
    yield _tokens("decoding split over two devices", two, one, "one device", goal=at_least(0.99))


def _tokens(
    what: str,
    timing: Timing,
    other: Timing | None = None,
    to: str = "",
    *,
    count: int = 1,
    bound: Limit | None = None,
    goal: Limit | None = None,
) -> Row:
    """A row of tokens per second, where each reading made `count`; the ratio is one of rates."""
    ratio = None if other is None else other.over(timing)
    return Row(what=what, value=timing.rate(count), unit="tokens/s", ratio=ratio, to=to, bound=bound, goal=goal)


def _prefilling(settings: Settings, whole: Speaker) -> Iterator[Row]:
    ids = _ids(whole, settings.size(128, 8))
    *blocks, output = whole.products()
    work = 2.0 * (len(ids) * sum(weight.size for weight in blocks) + output.size)
    check_close("generate, prefill", 1e-2, whole.following(ids, 1)["logits"], _one_by_one(whole, ids))
    sgemm, sgemm_work = limits.sgemm(settings.size(limits.SGEMM_WIDTH, 64))
    prefill, product = settings.interleaved(whole.prefilling(ids), sgemm, rounds=20)
    at_rate = product.scaled(work / sgemm_work)
    yield Row(what="product of two matrices", value=product.rate(sgemm_work / 1e9), unit="GFLOP/s")
    what = f"prefill of {len(ids)} tokens"
    yield _tokens(what, prefill, at_rate, "sgemm", count=len(ids), goal=at_least(0.8))


def _one_by_one(whole: Speaker, ids: list[int]) -> list[float]:
    """The logits after `ids`, taken one at a time."""
    whole.start(ids[:1])
    for id in ids[1:]:
        whole.step(id)
    return whole.logits()


def _beside(settings: Settings, whole: Speaker, file: Path, float32: Path) -> Iterator[Row]:
    python = settings.beside or Path(sys.executable)
    for other in OTHERS:
        package = other.script.removeprefix("with_")
        if settings.beside is None and importlib.util.find_spec(package) is None:
            why = f"not measured: {package} is not installed here; --beside names an interpreter that has it"
            yield Row(what=f"decoding beside {other.name}", value=None, unit="tokens/s", note=why)
            continue
        if not float32.is_file():
            gguf_files.write_float32(file, float32)
        try:
            with Beside(python, other.script, float32, blas_threads()) as process:
                yield from _compared(settings, whole, other, process)
        except BesideError as error:
            yield Row(what=f"decoding beside {other.name}", value=None, unit="tokens/s", note=f"not measured: {error}")


def _compared(settings: Settings, whole: Speaker, other: Other, process: Beside) -> Iterator[Row]:
    settings.progress.expect(1)
    short, long, tokens = _ids(whole, 32), _ids(whole, settings.size(128, 8)), settings.size(_TOKENS, 4)
    for ids in (short, long):
        ours, theirs = whole.following(ids, 1), process.ask("continue", ids, tokens=1)
        check_same(f"generate, {other.name}", ours["ids"], theirs["ids"])
        check_close(f"generate, logits of {other.name}", other.tolerance, ours["logits"], theirs["logits"])
    decode, its_decode, prefill, its_prefill = settings.interleaved(
        whole.decoding(short, tokens),
        process.reading("decode", short, tokens=tokens, per=tokens),
        whole.prefilling(long),
        process.reading("prefill", long),
        rounds=10,
    )
    name = process.version
    yield _tokens(f"decoding by {name}", its_decode)
    yield _tokens(
        f"decoding beside {other.name}",
        decode,
        its_decode,
        other.name,
        bound=other.decode_bound,
        goal=other.decode_goal,
    )
    yield _tokens(f"prefill of {len(long)} tokens by {name}", its_prefill, count=len(long))
    what = f"prefill of {len(long)} tokens beside {other.name}"
    yield _tokens(what, prefill, its_prefill, other.name, count=len(long), bound=other.prefill_bound)


def _demo(settings: Settings, file: Path, nbytes: int) -> Iterator[Row]:
    """Loading alone, the demo in a process of its own to its first token, and the memory it takes."""
    arguments = ["--prompt", _PROMPT, "--devices", "cpu:0,cpu:1", "--tokens", "1", "--json", "--model", str(file)]

    def run_demo() -> None:
        subprocess.run([sys.executable, "-m", "examples.generate", *arguments], check=True, capture_output=True)

    loading, running = settings.interleaved(
        timed(lambda: Speaker(file, ["cpu:0", "cpu:1"])), timed(run_demo), rounds=5, warmup=1
    )
    yield Row(what="loading the model", value=loading.spread(), unit="s")
    yield Row(what="the demo, from its start to its first token", value=running.spread(), unit="s")
    peak = apart(__name__, "demo", *arguments)["peak"]
    yield Row(
        what="memory of the demo at its peak",
        value=Spread(peak / 1e6, peak / 1e6, peak / 1e6),
        unit="MB",
        ratio=Spread(peak / nbytes, peak / nbytes, peak / nbytes),
        to="its weights",
    )


def demo(*arguments: str) -> dict[str, Any]:
    """For a process of its own: what it takes to run the demo."""
    sys.argv = ["examples.generate", *arguments]
    start = perf_counter()
    runpy.run_module("examples.generate", run_name="__main__")
    return {"seconds": perf_counter() - start, "peak": peak_bytes()}
