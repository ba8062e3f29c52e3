"""The laws of split models and of decoding again, over four GPUs. This ran over a fake CuPy and not on a GPU.

The fake also finds every use of memory that nothing orders, which is what
copies between GPUs get wrong. `test_split_model.py` says by which route a copy
goes.
"""

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import settings

from tests.fake_cupy import Machine, installed
from tests.laws import test_decoding, test_parallel, test_stages, test_wrapper
from tests.laws.law import LAWS, Law
from tests.laws.layered_engine import EngineAdapter
from tests.laws.protocol import Grammar

NUMBERS: Final = {"L92", "L94", "L95", "L96", "L100", "L102", "L116", "L117"}
SUITE: Final = {module.__name__ for module in (test_decoding, test_parallel, test_stages, test_wrapper)}
CHOSEN: Final = [law for law in LAWS if law.body.__module__ in SUITE and NUMBERS & {*law.numbers}]
GPUS: Final = ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
DIVISOR: Final = 10  # a tenth of the profile's examples: the same code paths but for the copies


class OnGpus(EngineAdapter):
    """Models split over GPUs."""

    name = "layerloom, on GPUs"

    def __init__(self, *devices: str) -> None:
        super().__init__()
        self.grammar: Grammar = replace(EngineAdapter.grammar, devices=devices)


def few() -> settings:
    """The chosen profile with fewer examples."""
    chosen = settings()
    return settings(chosen, max_examples=max(10, chosen.max_examples // DIVISOR))


def named(law: Law) -> str:
    return f"{'-'.join(law.numbers)}-{law.body.__name__}"


@pytest.mark.parametrize("law", CHOSEN, ids=named)
def test_a_law_of_split_models_holds_over_a_fake_cupy(law: Law) -> None:
    """Devices of one kind, so that bits agree (P40)."""
    with installed(Machine()):
        law.put_to(OnGpus(*GPUS), few())


@pytest.mark.parametrize("peers", [None, ()], ids=["peers", "no peers"])
def test_copies_are_counted_between_gpus_and_cpu_devices(peers: tuple[tuple[int, int], ...] | None) -> None:
    """L94 over both kinds of device, with and without peer access."""
    (law,) = (one for one in CHOSEN if "copied_where_the_device_changes" in one.body.__name__)
    with installed(Machine(peers=peers)):
        law.put_to(OnGpus("cuda:0", "cpu:0", "cuda:1", "cpu:1"), few())
