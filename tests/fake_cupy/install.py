"""Putting a machine in the place of CuPy, and the engine's CUDA backend over it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import engine
from engine.device import Device as EngineDevice

from . import functions, streams
from .copies import Runtime
from .faults import OutOfMemoryError, PerformanceWarning
from .machine import Machine, made_current
from .memory import MemoryPointer, MemoryPool


def modules(machine: Machine) -> dict[str, ModuleType]:
    """`cupy`, `cupy.cuda` and `cupyx` over a machine, by the names under which they are imported."""
    cuda = _module(
        "cupy.cuda",
        runtime=Runtime(machine),
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        Device=streams.Device,
        Event=streams.Event,
        MemoryPointer=MemoryPointer,
        MemoryPool=MemoryPool,
        Stream=streams.Stream,
        alloc_pinned_memory=functions.alloc_pinned_memory,
        get_current_stream=streams.get_current_stream,
        get_elapsed_time=streams.get_elapsed_time,
    )
    cupy = _module(
        "cupy", __version__="14.2.0", cuda=cuda, _util=SimpleNamespace(PerformanceWarning=PerformanceWarning)
    )
    vars(cupy).update(functions.functions())
    cupyx = _module("cupyx", empty_pinned=functions.empty_pinned, zeros_pinned=functions.zeros_pinned)
    return {"cupy": cupy, "cupy.cuda": cuda, "cupyx": cupyx}


def _module(name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(contents)
    return module


@contextmanager
def installed(machine: Machine) -> Iterator[Machine]:
    """A machine in the place of CuPy; at the end, if nothing failed, the host waits for all that is queued.

    Raises:
        Fault: what was still queued then turns out wrong.
    """
    with made_current(machine), _replaced(modules(machine)):
        yield machine
        if not machine.driver and not machine.sticky:
            machine.wait_all()


@contextmanager
def without_cupy() -> Iterator[None]:
    """CuPy as if it were not installed."""
    with _replaced({"cupy": None, "cupy.cuda": None, "cupyx": None}):
        yield


@contextmanager
def _replaced(replacements: dict[str, Any]) -> Iterator[None]:
    """Other modules in the place of CuPy's, and the engine without a CUDA backend before and after."""
    own = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ("cupy", "cupyx")}
    for name in own:
        del sys.modules[name]
    sys.modules.update(replacements)
    forget_backend()
    try:
        yield
    finally:
        for name in replacements:
            sys.modules.pop(name, None)
        sys.modules.update(own)
        forget_backend()


def forget_backend() -> None:
    """Let the engine import its CUDA backend anew at the next use of a CUDA device."""
    sys.modules.pop("engine.cuda", None)
    vars(engine).pop("cuda", None)
    for device in EngineDevice._known.values():
        if device.kind == "cuda":
            object.__setattr__(device, "_backend", None)
