"""The laws of split models and of decoding on GPUs: those of `test_parallel_laws.py`. Skipped where there is none.

``--require gpu`` makes the want of one a failure. `bench.gpu_check` runs this.
"""

import pytest

from engine import Device
from tests.laws.law import Law

from .test_gpu import gpu as gpu  # a fixture: skips or fails without a GPU
from .test_parallel_laws import CHOSEN, MIXED, OnGpus, few, named

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("error:The device where the array resides")]


@pytest.mark.parametrize("law", MIXED, ids=named)
def test_a_law_of_split_models_holds_over_a_gpu_and_a_cpu_device(law: Law) -> None:
    law.put_to(OnGpus("cuda:0", "cpu:0"), few())


@pytest.mark.parametrize("law", CHOSEN, ids=named)
def test_a_law_of_split_models_holds_over_gpus(law: Law) -> None:
    """Of one model, so that bits agree (P40)."""
    found = [str(device) for device in Device.available("cuda")]
    if len(found) < 2:
        pytest.skip("it takes two GPUs")
    law.put_to(OnGpus(*found[:4]), few())
