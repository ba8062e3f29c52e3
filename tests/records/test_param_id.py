"""Ids of parameters: M22, laws L14 and L15."""

import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from records import ParamId, RecordError, RecordFormatError
from tests.golden_files import golden_file

U64 = st.sampled_from([0, 1, 31, 32, 2**32, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
_SPAWNED = """
import os, random
from records import ParamId
random.seed(1)
child = os.fork()
if child:
    os.waitpid(child, 0)
print(*(int(ParamId.new()) for _ in range(500)), flush=True)
"""


@given(number=U64)
def test_text_of_an_id_parses_to_it(number):
    """L15: 13 characters of the alphabet, in both cases, and the number survives."""
    text = str(ParamId(number))
    assert len(text) == 13
    assert set(text) <= set("0123456789abcdefghijklmnopqrstuv")
    for form in (text, text.upper()):
        assert type(ParamId.parse(form)) is ParamId
        assert int(ParamId.parse(form)) == number


@given(number=U64)
def test_text_is_the_little_endian_bytes_five_bits_at_a_time(number):
    """M22, digit by digit."""
    bits = "".join(f"{byte:08b}" for byte in number.to_bytes(8, "little")) + "0"
    digits = [int(bits[at : at + 5], 2) for at in range(0, 65, 5)]
    assert str(ParamId(number)) == "".join("0123456789abcdefghijklmnopqrstuv"[digit] for digit in digits)


@given(text=st.text("0123456789abcdefghijklmnopqrstuvwxyzV=-. ", max_size=16))
def test_any_text_parses_to_its_own_bytes_or_is_refused(text):
    """L15: what parses is, filled up with zeros, the text of the id."""
    try:
        found = ParamId.parse(text)
    except RecordFormatError:
        return
    assert str(found).startswith(text.lower())
    assert set(str(found)[len(text) :]) <= {"0"}


@pytest.mark.parametrize("value", [-1, 2**64, True, 1.0, "1", None])
def test_an_id_is_an_integer_of_64_bits(value):
    """M22."""
    with pytest.raises(RecordFormatError, match="no parameter id"):
        ParamId(value)


def test_an_id_is_a_number_with_a_text_of_its_own():
    """DESIGN: int(i), str(i); equality is that of numbers."""
    number = ParamId(9505838338724798577)
    assert (str(number), f"{number}", int(number)) == ("e4gfnnsqgnlo6", "e4gfnnsqgnlo6", 9505838338724798577)
    assert number == 9505838338724798577
    assert repr(number) == "ParamId(9505838338724798577)"


def test_fresh_ids_differ_across_threads_forks_and_spawned_processes_whatever_is_seeded():
    """L14: ids do not come from a user's seed."""
    found: list[int] = []

    def make() -> None:
        random.seed(1)
        np.random.seed(1)
        found.extend(int(ParamId.new()) for _ in range(500))

    workers = [threading.Thread(target=make) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", _SPAWNED],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            check=True,
            text=True,
        )
        found.extend(map(int, done.stdout.split()))
    assert len(found) == 4 * 500 + 2 * 2 * 500
    assert len(set(found)) == len(found)


@pytest.mark.golden
def test_texts_and_numbers_agree_with_burn():
    """M22: golden/burn/ids.json; what Burn hashes (UUIDs, N7) or crashes on is refused."""
    cases = json.loads(golden_file("burn/ids.json").read_text())
    assert set(cases) == {"pairs", "parse"}
    for number, text in cases["pairs"]:
        assert str(ParamId(int(number))) == text
        assert ParamId.parse(text) == int(number)
    for case in cases["parse"]:
        is_uuid = "-" in case["text"] and "id" in case
        if "id" in case and not is_uuid:
            assert ParamId.parse(case["text"]) == int(case["id"]), case
        else:
            assert is_uuid or "error" in case or "panic" in case, case
            with pytest.raises(RecordError):
                ParamId.parse(case["text"])
