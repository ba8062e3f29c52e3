"""Laws of files: what they keep, how they are read, which bytes they are (L55, L63, L64); damage is L66 to L68.

L63's reads of one tensor, straight to its device, are in `tests/modules/test_record_reads.py`.
"""

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

from hypothesis import event
from hypothesis import strategies as st

from . import record_expected as expected
from .calls import applied, built, observed, output
from .generators import trees
from .law import law
from .operations import Clone, LoadRecord, Map, Number, Record, ToRecord
from .programs import Program, programs
from .protocol import Adapter, Handle, Refused
from .record_generators import Builds, builds, named_records
from .record_operations import Load, Open, Save
from .spec_tree import DictSpec, FlagSpec, ParamSpec, SequenceSpec, StructSpec, TreeSpec, Value
from .subject import VARIABLE

BURNPACK: Final = ("records", "ids", "format.burnpack")


def memory_or_disk(adapter: Adapter) -> Any:
    """Whether a file is in memory; one in four is not, since disks are waited for."""
    return st.sampled_from((True, True, True, False))


# What a file keeps


@law("L55", needs=BURNPACK, record=lambda a: named_records(a.grammar), memory=memory_or_disk)
def test_a_file_keeps_every_entry_of_a_record(adapter: Adapter, record: Record, memory: bool) -> None:
    """Names of any text, deep ones too, dtypes, shapes, bits and ids, absent ones too, in byte-wise order of names.

    In memory and on disk it is the same file (R36 to R41, R59, R61, R62).
    """
    module = built(adapter, TreeSpec(StructSpec((), "Root")))
    event(f"entries: {len(record.entries)}, in order: {record == expected.in_file_order(record)}")

    data = output(adapter, module, Save("burnpack", record, in_memory=True))

    assert output(adapter, module, Save("burnpack", record, memory)) == data
    assert output(adapter, module, Open(data, "burnpack", memory)) == expected.in_file_order(record)


# How it is read


@law(
    "L63",
    needs=(*BURNPACK, "transfer_log"),
    case=lambda a: builds(a.grammar, min_devices=min(3, len(a.grammar.devices))),
    memory=memory_or_disk,
)
def test_a_file_is_read_when_it_is_loaded_and_straight_onto_each_device(
    adapter: Adapter, case: Builds, memory: bool
) -> None:
    """What comes of it is what loading the record that was read whole gives; no byte goes from device to device.

    Reading a file is no copy between devices (R35, R41).
    """
    target = built(adapter, case.target)
    data = output(adapter, built(adapter, case.source), Save("burnpack", in_memory=memory))
    devices = [value.device for value in _values(adapter, target)]
    adapter.log()

    lazily = applied(adapter, target, Load(data, "burnpack", in_memory=memory))

    assert adapter.log() == ()
    assert [value.device for value in _values(adapter, lazily)] == devices
    eagerly = applied(adapter, target, LoadRecord(output(adapter, target, Open(data, "burnpack", in_memory=True))))
    assert observed(adapter, lazily, case.target) == observed(adapter, eagerly, case.target)


def _values(adapter: Adapter, module: Handle) -> list[Any]:
    return [value for value in adapter.meta(module).values if hasattr(value, "device")]


# Its bytes


@law(
    "L64",
    needs=BURNPACK,
    program=lambda a: programs(a, (Clone, Map, ToRecord), adds=False, max_steps=3),
    memory=memory_or_disk,
)
def test_equal_modules_make_equal_files(adapter: Adapter, program: Program, memory: bool) -> None:
    """Again, after a load of the file, in memory and on disk; whatever was done in between (R48)."""
    module = built(adapter, program.spec)
    for _, step in program.steps:
        answer = adapter.apply(module, step)
        module = module if isinstance(answer, Refused) else answer.handle
    data = output(adapter, module, Save("burnpack", in_memory=True))

    after = applied(adapter, module, Load(data, "burnpack", in_memory=True))

    for version, in_memory in ((module, memory), (applied(adapter, module, Clone()), True), (after, True)):
        assert output(adapter, version, Save("burnpack", in_memory=in_memory)) == data


@law("L64", needs=(*BURNPACK, "threads"), spec=lambda a: trees(a.grammar))
def test_every_thread_writes_the_same_file(adapter: Adapter, spec: TreeSpec) -> None:
    """Four at once, of one lazy module (R48, M24)."""
    module = built(adapter, spec)
    barrier = threading.Barrier(4)
    files: list[bytes] = []

    def save() -> None:
        barrier.wait(timeout=10)
        files.append(output(adapter, module, Save("burnpack", in_memory=True)))

    threads = [threading.Thread(target=save, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)

    assert len(files) == 4
    assert set(files) == {output(adapter, module, Save("burnpack", in_memory=True))}


_PRINT_DIGEST: Final = """
import hashlib, sys
from tests.laws.spec_tree import *
from tests.laws.subject import subject
from tests.laws.test_files import numbered_file
print(hashlib.sha256(numbered_file(subject(), eval(sys.stdin.read()))).hexdigest())
"""


def numbered_file(adapter: Adapter, spec: TreeSpec) -> bytes:
    """The file of a build whose parameters have the ids 1, 2, …"""
    return output(adapter, applied(adapter, built(adapter, spec), Map(((Number(1),),))), Save("burnpack"))


def _name(adapter: Adapter) -> str:
    return f"{type(adapter).__module__}:{type(adapter).__qualname__}"


@law("L64", needs=(*BURNPACK, "map"))
def test_the_file_does_not_depend_on_the_process(adapter: Adapter) -> None:
    """Nor on its hash seed: in other processes the same module makes the same file (R48, R61)."""
    keys = [f"k{number}" for number in range(20, 0, -1)]
    weight = ParamSpec(Value("float32", (2,), b"\x00\x00\x80\x3f\x05\x00\x80\x7f", adapter.grammar.devices[0]))
    inner = DictSpec(tuple((key, SequenceSpec("list", (weight, FlagSpec(True)))) for key in keys))
    spec = TreeSpec(StructSpec((("z", inner), ("a", weight)), "Root"))
    digests = {
        subprocess.run(
            [sys.executable, "-c", _PRINT_DIGEST],
            input=repr(spec),
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONUTF8": "1", VARIABLE: _name(adapter)},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            encoding="utf-8",
            check=True,
        ).stdout.strip()
        for seed in ("0", "1")
    }

    assert digests == {hashlib.sha256(numbered_file(adapter, spec)).hexdigest()}
