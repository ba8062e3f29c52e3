"""The whole law suite again, over four GPUs: records, training, split models and the rest (``make test-fake``).

This ran over a fake CuPy and not on a GPU. The fake also finds every use of
memory that nothing orders. A law sees an adapter like the one for CPU devices
whose grammar names other devices, so what it says is said of both. Not among
them are the two laws that start processes, since those have no fake.
"""

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import settings

from tests.fake_cupy import Machine, installed
from tests.laws.law import Law
from tests.laws.layered_engine import EngineAdapter
from tests.laws.protocol import Grammar
from tests.laws.suite import OUTSIDE, named

GPUS: Final = ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
MACHINES: Final[dict[str, dict[str, Any]]] = {
    "peers": {},
    "no peers, default streams per thread": {"peers": (), "per_thread": True},
}
PROCESSES: Final = frozenset(
    {"test_the_file_does_not_depend_on_the_process", "test_the_order_does_not_depend_on_the_seed_of_hashes"}
)
CHOSEN: Final = [law for law in OUTSIDE if law.body.__name__ not in PROCESSES]
DIVISOR: Final = 10  # the same code paths but for copies and kernels; over CPU devices each law takes all examples
LEAST: Final = 5

pytestmark = pytest.mark.fake


class OnGpus(EngineAdapter):
    """The engine, over GPUs alone."""

    name = "layerloom, on GPUs"
    grammar: Grammar = replace(EngineAdapter.grammar, devices=GPUS)


def few(law: Law) -> settings:
    """The chosen profile with fewer examples."""
    chosen = settings()
    return settings(chosen, max_examples=max(LEAST, chosen.max_examples // (DIVISOR * law.slow)))


@pytest.mark.filterwarnings("error:cuda")  # the engine's warning that two GPUs do not reach each other as they should
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("law", CHOSEN, ids=named)
def test_a_law_holds_over_gpus(law: Law, machine: dict[str, Any]) -> None:
    """GPUs of one kind, so that bits agree (P40)."""
    with installed(Machine(**machine)):
        law.put_to(OnGpus(), few(law))
