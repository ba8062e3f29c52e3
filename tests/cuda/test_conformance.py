"""The fake has no name that CuPy lacks, and the engine's CuPy file none that the fake lacks. Nothing runs on a GPU.

CuPy can be imported without a driver, so where it is installed the fake is
compared with it. Elsewhere those comparisons are skipped.
"""

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import engine
from tests.fake_cupy import CUDARuntimeError, Machine, OutOfMemoryError, installed
from tests.fake_cupy.arrays import NO_BFLOAT16, USED
from tests.fake_cupy.functions import FUNCTIONS
from tests.fake_cupy.install import modules

from .test_ops import CASES, operands

SOURCE = Path(engine.__file__).with_name("cuda.py")
MISSING = importlib.util.find_spec("cupy") is None
needs_cupy = pytest.mark.skipif(MISSING, reason="CuPy is not installed: pip install cupy-cuda12x")


def names_in_source() -> set[str]:
    """The dotted names of CuPy that the CUDA backend uses, such as ``cupy.cuda.Event``."""
    found = set()
    for node in ast.walk(ast.parse(SOURCE.read_text())):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in ("cupy", "cupyx", "runtime") and parts:
            root = {"runtime": "cupy.cuda.runtime"}.get(node.id, node.id)
            found.add(".".join([root, *parts]))
    return found


def value_of(name: str, roots: dict[str, Any]) -> Any:
    root, *parts = name.split(".")
    value = roots[root]
    for part in parts:
        value = getattr(value, part)
    return value


def test_the_backend_uses_no_name_that_the_fake_lacks_and_none_that_is_private() -> None:
    """A new name in the CuPy file is a new name of the fake."""
    used = names_in_source()
    assert {"cupy.empty", "cupyx.empty_pinned", "cupy.cuda.runtime.memcpyPeerAsync"} <= used
    fake = modules(Machine())
    for name in used:
        assert value_of(name, fake) is not None
        assert not any(part.startswith("_") for part in name.split("."))


def test_only_one_file_of_the_engine_imports_cupy() -> None:
    """And it is not imported with the engine."""
    importing = [
        file.name
        for file in SOURCE.parent.rglob("*.py")
        if re.search(r"^\s*(import|from) cupyx?\b", file.read_text(), re.MULTILINE)
    ]
    assert importing == ["cuda.py"]
    program = "import sys, engine; print('engine.cuda' in sys.modules, 'cupy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


def members(value: Any, path: str) -> list[tuple[str, Any]]:
    """What a module or class of the fake offers, with dotted names."""
    found = []
    for name, member in vars(value).items():
        if not name.startswith("_"):
            found.append((f"{path}.{name}", member))
            if isinstance(member, ModuleType | SimpleNamespace) or (
                inspect.isclass(member) and member.__module__.startswith("tests.fake_cupy")
            ):
                found += members(member, f"{path}.{name}")
    return found


@needs_cupy
def test_every_name_of_the_fake_is_one_of_cupys() -> None:
    """6.4: what is not there must not work over the fake."""
    real = {name: importlib.import_module(name) for name in ("cupy", "cupyx")}
    own = {"capacity", "clock", "mem", "offset", "ptr", "device_id", "id", "base", "status"}  # set on objects
    for module in ("cupy", "cupyx"):
        for name, _ in members(modules(Machine())[module], module):
            if name.rsplit(".", 1)[1] not in own:
                value_of(name, real)


@needs_cupy
def test_calls_that_the_engines_operations_make_are_ones_that_cupy_takes() -> None:
    """Keywords: of functions by their signature, of compiled methods by their documentation. Dtypes: each a kernel."""
    import cupy

    USED.clear()
    with installed(Machine()):
        for case in CASES:
            for here in operands(case):
                case.results([x.to_device("cuda:0") for x in here])
    assert ("max", "f", "axis keepdims") in USED
    for name, dtypes, keywords in USED - {call for call in USED if call[0] == "copyto"}:
        where = cupy.lib.stride_tricks if name == "as_strided" else cupy
        owners = [getattr(owner, name) for owner in (where, cupy.ndarray) if hasattr(owner, name)]
        for keyword in keywords.split():
            assert any(keyword in _parameters(owner) for owner in owners), (name, keyword)
        if owners and type(owners[0]).__name__ == "ufunc":
            loops = [loop.replace("q", "l").replace("Q", "L").split("->") for loop in owners[0].types]
            inputs = dtypes[: owners[0].nin] if len(dtypes) >= owners[0].nin else dtypes[0] * owners[0].nin
            widened = all(result == "?" for _, result in loops) and set(inputs) <= set("bBhHiIlL")  # to compare
            turned = inputs.upper() if set("FD") & set(inputs) else inputs  # a real number beside a complex one
            assert widened or {inputs, turned} & {taken for taken, _ in loops}, (name, inputs)


def _parameters(function: Any) -> list[str]:
    if type(function).__name__ == "ufunc":
        return ["out", "where", "casting", "dtype"]
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return re.findall(r"(\w+)\s*[=,)]", (function.__doc__ or "").split("\n\n")[0])


@needs_cupy
def test_functions_without_bfloat16_are_those_that_the_fake_refuses() -> None:
    """3.4: NumPy has them all; CuPy takes the next dtype that it has a kernel for."""
    import cupy

    search = importlib.import_module("cupy._sorting.search")
    kernels = {name: getattr(cupy, name) for name in FUNCTIONS.split()} | {"where": search._where_ufunc}
    floats = {name: kernel for name, kernel in kernels.items() if "f" in "".join(getattr(kernel, "types", ()))}
    assert {name for name, kernel in floats.items() if "E" not in "".join(kernel.types)} == NO_BFLOAT16


@needs_cupy
def test_cupy_is_as_the_fake_says_where_there_is_no_driver() -> None:
    """7.3: status 35, unhashable devices, and errors of the same form."""
    program = """
import cupy
from cupy.cuda import runtime
assert not cupy.is_available()
assert runtime.CUDARuntimeError(704).status == 704
assert type(cupy.cuda.Device(0)).__hash__ is None
assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
print(runtime.CUDARuntimeError(2), cupy.cuda.memory.OutOfMemoryError(1024, 10, 99), sep="|", end="|")
from engine import Device, DeviceError
assert Device.available("cuda") == []
try:
    Device("cuda:0").memory()
except DeviceError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    status, memory, device = run.stdout.strip().split("|")
    assert status == str(CUDARuntimeError(2))
    assert memory == str(OutOfMemoryError(1024, 10, 99))
    assert re.match(r"cuda: CUDA error (35|100): ", device)
