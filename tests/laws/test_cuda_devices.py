"""The laws of laziness, devices, moves and records over GPUs: a fake CuPy everywhere, real ones where there are some.

A tensor on a GPU goes by other routes than one on a CPU device, and its values
come back through copies; what the laws say is the same.
"""

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import settings

from engine import Device
from tests.fake_cupy import Machine, installed

from . import test_devices, test_files, test_lazy, test_load_options, test_records, test_versions
from .engine_adapter import EngineAdapter
from .law import Law
from .protocol import Grammar
from .suite import OUTSIDE, named

MODULES: Final = (test_devices, test_files, test_lazy, test_load_options, test_records, test_versions)
SUITE: Final = {module.__name__ for module in MODULES}
CHOSEN: Final = [law for law in OUTSIDE if law.body.__module__ in SUITE and law.draws]  # without loops, processes
DIVISOR: Final = 5  # a fifth of the profile's examples: the same code paths but for the copies


class OnGpus(EngineAdapter):
    """The engine's modules over GPUs and CPU devices."""

    name = "layerloom, on GPUs"

    def __init__(self, *devices: str) -> None:
        super().__init__()
        self.grammar: Grammar = replace(EngineAdapter.grammar, devices=devices)


def few() -> settings:
    """The chosen profile with fewer examples."""
    chosen = settings()
    return settings(chosen, max_examples=max(10, chosen.max_examples // DIVISOR))


@pytest.mark.parametrize("law", CHOSEN, ids=named)
def test_a_law_holds_over_a_fake_cupy(law: Law) -> None:
    """Which also finds every use of memory that nothing orders."""
    with installed(Machine()):
        law.put_to(OnGpus("cuda:0", "cpu:0", "cuda:1", "cpu:1"), few())


@pytest.mark.gpu
@pytest.mark.parametrize("law", CHOSEN, ids=named)
def test_a_law_holds_on_gpus(law: Law) -> None:
    """On what this machine has."""
    found = [str(device) for device in Device.available("cuda")]
    if not found:
        pytest.skip("no GPU here")
    law.put_to(OnGpus(*found[:2], "cpu:0", "cpu:1"), few())
