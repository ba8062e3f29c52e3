"""Every benchmark runs, in its quick form: the same code on tiny sizes, with its checks of both sides' answers."""

import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.registry import BENCHMARKS

EXPECTED = {
    "copies": ("cpu:0 → cpu:1, host, contiguous, 16 KiB", "cpu:0 ↔ cpu:1, host, strided, 1 KiB"),
    "forward": ("split in two, 16 wide, 3 rows", "Linear with bias, 8 × 8, 1 row"),
    "generate": ("decoding on one device", "decoding split over two devices", "memory of the demo at its peak"),
    "modules": ("visiting 100 parameters", "mapping 100 parameters to themselves"),
    "quantize": ("quantizing, 8 bits, blocks of 32", "bytes in a file, 4 bits", "perplexity on 100 tokens, 8 bits"),
    "records": ("loading into a Module, used once", "saving, with digests", "memory that loading takes at its peak"),
    "train": ("step split in two, 16 wide", "an operation, recorded", "an operation, pulled back"),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs_and_answers_its_question(name: str, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    assert main([name, "--quick", "--json", str(file)]) == 0
    (found,) = json.loads(file.read_text(encoding="utf-8"))["benchmarks"]
    assert found["question"].split("\n", 1)[0].endswith("?")
    rows = {row["what"]: row for row in found["rows"]}
    assert len(rows) == len(found["rows"])
    assert rows.keys() >= set(EXPECTED[name])
    for row in found["rows"]:
        for spread in (row["value"], row["ratio"]):
            assert spread is None or 0 <= spread["low"] <= spread["median"] <= spread["high"]
        assert row["value"] is not None or row["note"].startswith("not measured")
        assert (row["ratio"] is None) == (row["to"] == "")
