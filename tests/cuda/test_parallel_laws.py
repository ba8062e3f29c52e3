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
OF_ONE_KIND: Final = {  # these compare bits between placements; a CPU and a GPU round otherwise
    "test_a_copy_keeps_the_order_of_memory_and_so_every_bit_of_the_next_sum",
    "test_a_split_model_decodes_each_piece_to_the_bits_of_the_unsplit_one",
    "test_a_split_model_gives_the_bits_of_the_plain_composition",
    "test_caches_do_not_move_with_a_model",
    "test_moves_rewrite_the_placement_and_nothing_else_does",
}
MIXED: Final = [law for law in CHOSEN if law.body.__name__ not in OF_ONE_KIND]
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


@pytest.mark.parametrize("law", MIXED, ids=named)
def test_a_law_holds_over_a_gpu_and_a_cpu_device_that_round_otherwise(law: Law) -> None:
    """What is not about bits between placements holds over both kinds; on a real GPU too."""
    with installed(Machine(1, inexact=True)):
        law.put_to(OnGpus("cuda:0", "cpu:0"), few())
