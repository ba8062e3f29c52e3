"""How strong the suite is: each planted fault must make the laws fail that are said to catch it.

Run by ``pytest -m faults``; a fault that survives, or one that a law said to
catch it does not, fails the run. Without shrinking: what a fault's smallest
case is does not matter here.
"""

import warnings
from collections.abc import Iterator

import pytest
from hypothesis import settings

from . import (
    faults,
    faults_of_files,
    faults_of_gradients,
    faults_of_groups,
    faults_of_layers,
    faults_of_optimizers,
    faults_of_quantization,
    faults_of_records,
    faults_of_reparameterization,
    faults_of_training,
    faults_of_values,
)
from .faults import FAULTS, Fault
from .law import Law
from .protocol import Adapter
from .suite import INSIDE, OUTSIDE

PLANTED = (
    *(faults, faults_of_files, faults_of_gradients, faults_of_groups, faults_of_layers),
    *(faults_of_optimizers, faults_of_records, faults_of_training, faults_of_values),
    *(faults_of_quantization, faults_of_reparameterization),
)
LAWS = (*OUTSIDE, *INSIDE)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


def laws_of(number: str) -> list[Law]:
    return [law for law in LAWS if number in law.numbers]


def kills(law: Law, adapter: Adapter) -> bool:
    """Whether the law fails."""
    assert not law.missing(adapter), "a law that does not apply catches nothing"
    try:
        law.put_to(adapter, settings.get_profile("mutate"))
    except (Exception, pytest.fail.Exception):
        return True
    return False


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No warnings, and no explanations of failed assertions: comparing long texts takes most of the time."""
    monkeypatch.setattr("_pytest.assertion.util._reprcompare", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught_by_each_of_its_laws(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = fault.plant(monkeypatch)

    survived = [number for number in fault.laws if not any(kills(law, adapter) for law in laws_of(number))]

    assert not survived, f"{fault.name} is not caught by {', '.join(survived)}"


def test_every_law_here_has_a_fault_that_it_catches() -> None:
    """A law that nothing breaks may be always true."""
    numbers = {number for law in LAWS for number in law.numbers}
    caught = {number for fault in FAULTS for number in fault.laws}

    assert not numbers - caught, "no fault for these laws"
    assert not caught - numbers, "no law of these numbers"
