"""Copies of the CUDA backend that are wrong on purpose: each must fail an exercise. Over a fake CuPy, not on a GPU.

A planted fault is a piece of `engine/cuda.py` replaced by another. One that
no exercise minds would mean that the fake, or the exercise, proves nothing.
"""

import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import engine
from tests.fake_cupy import Machine, installed

from .exercises import EXERCISES, Exercise

SOURCE = Path(engine.__file__).with_name("cuda.py")


class Planted(NamedTuple):
    """A fault: what it is, the text of the backend that it replaces, and the exercises that must mind."""

    what: str
    old: str
    new: str
    caught_by: str


FAULTS = [
    Planted(
        "the copy does not wait for the destination's earlier work (E_dst)",
        "origin.stream.wait_event(vacant)",
        "pass",
        "a_recycled_destination_is_not_overwritten_under_its_former_user",
    ),
    Planted(
        "the destination does not wait for the copy (E_done)",
        "target.stream.wait_event(done)",
        "pass",
        "a_produced_value_arrives_and_is_consumed",
    ),
    Planted(
        "the copy runs on the destination's stream",
        "array.nbytes, origin.stream.ptr",
        "array.nbytes, target.stream.ptr",
        "a_produced_value_arrives_and_is_consumed",
    ),
    Planted(
        "the destination waits for its own event instead of the copy's",
        "                done = cupy.cuda.Event(disable_timing=True)\n                done.record(origin.stream)\n",
        "                done = vacant\n",
        "a_produced_value_arrives_and_is_consumed",
    ),
    Planted(
        "an interrupted batch is left to itself",
        "                origin.stream.synchronize()\n            raise",
        "                pass\n            raise",
        "an_interrupted_batch_leaves_no_copy_behind",
    ),
    Planted(
        "the event of the destination is waited on before it is recorded",
        "            vacant.record(target.stream)\n",
        "",
        "a_produced_value_arrives_and_is_consumed",
    ),
    Planted(
        "the event of the copy is made under the wrong device (400)",
        "            with origin:\n                origin.stream.wait_event(vacant)",
        "            with target:\n                origin.stream.wait_event(vacant)",
        "a_produced_value_arrives_and_is_consumed",
    ),
    Planted(
        "the copies are not held until they are done",
        "self._hold(_Flight(done, made), origin, target)",
        "pass",
        "a_dropped_destination_stays_until_the_copy_is_done",
    ),
    Planted(
        "the held copies are never let go",
        "while flights and flights[0].done.done:",
        "while False:",
        "copies_in_flight_are_few_and_let_go",
    ),
    Planted(
        "the held copies are not bounded",
        "while len(flights) > _IN_FLIGHT:",
        "while False:",
        "copies_in_flight_are_few_and_let_go",
    ),
    Planted(
        "the oldest of the held copies is let go before it is done",
        "flights[0].done.synchronize()",
        "pass",
        "many_dropped_destinations_stay_until_their_copies_are_done",
    ),
    Planted(
        "the host waits for each copy",
        "                done.record(origin.stream)\n",
        "                done.record(origin.stream)\n                done.synchronize()\n",
        "no_host_waits_for_a_copy_between_gpus",
    ),
    Planted(
        "an empty array is copied (its pointer is 0)",
        "if array.nbytes:",
        "if True:",
        "every_layout_arrives_as_it_was",
    ),
    Planted(
        "the wrong number of bytes: too many",
        "array.data.ptr, origin.index, array.nbytes,",
        "array.data.ptr, origin.index, array.nbytes + 4096,",
        "a_produced_value_arrives_and_is_consumed",
    ),
    Planted(
        "the wrong number of bytes: elements for bytes",
        "array.data.ptr, origin.index, array.nbytes,",
        "array.data.ptr, origin.index, array.size,",
        "a_produced_value_arrives_and_is_consumed",
    ),
    Planted(
        "an array with gaps goes as it lies",
        '(array.copy("C"), None)',
        "(array, None)",
        "an_array_with_gaps_is_copied_dense",
    ),
    Planted(
        "the order of the axes is lost",
        "lying.transpose(tuple(sorted(range(lying.ndim), key=axes.__getitem__)))",
        "lying.transpose(axes)",
        "every_layout_arrives_as_it_was",
    ),
    Planted(
        "peer access that is on already is an error (704)",
        "if error.status != _ALREADY_ENABLED:",
        "if True:",
        "peer_access_that_is_on_already_is_fine",
    ),
    Planted(
        "peer access is switched under queued copies",
        "                gpu.device.synchronize()\n        trouble",
        "                pass\n        trouble",
        "peer_access_is_not_switched_under_queued_copies",
    ),
    Planted(
        "peer access is not tested",
        "if np.array_equal(self.download(back, origin.index), pattern):",
        "if True:",
        "a_peer_that_loses_data_is_not_used",
    ),
    Planted(
        "peer access that failed its test stays on",
        "            _disable(gpu, peer)\n",
        "            pass\n",
        "a_peer_that_loses_data_is_not_used",
    ),
    Planted(
        "a download takes another device's stream",
        "with self._gpu(index) as gpu:\n            lying, axes",
        "with self._gpu(0) as gpu:\n            lying, axes",
        "a_download_sees_the_last_kernel",
    ),
    Planted(
        "a download does not wait",
        "lying.get(stream=gpu.stream, out=made, blocking=True)",
        "lying.get(stream=cupy.cuda.Stream(non_blocking=True), out=made, blocking=False)",
        "a_download_sees_the_last_kernel",
    ),
    Planted(
        "a pinned buffer is written again before it was read",
        "before.synchronize()",
        "pass",
        "an_uploaded_array_may_be_changed_at_once",
    ),
    Planted(
        "a pinned buffer is as large as the array",
        "_STAGE_NBYTES, np.uint8",
        "_STAGE_NBYTES << 4, np.uint8",
        "an_uploaded_array_may_be_changed_at_once",
    ),
    Planted(
        "the upward half of a staged copy does not wait for the downward one",
        "target.stream.wait_event(down)",
        "pass",
        "copies_through_the_host_keep_their_order",
    ),
    Planted(
        "a staged copy writes a buffer that is still being read",
        "self._writer.wait_event(before)",
        "pass",
        "copies_through_the_host_keep_their_order",
    ),
    Planted(
        "copies are made on one device only",
        "self.device.__enter__()",
        "cupy.cuda.Device(0).__enter__()",
        "threads_work_on_devices_of_their_own",
    ),
    Planted(
        "the engine works on the default stream, with copies on its own",
        "            self.stream.__enter__()\n",
        "            cupy.cuda.Stream.ptds.__enter__()\n",
        "a_produced_value_arrives_and_is_consumed",
    ),
]


def exercises(name: str) -> list[Exercise]:
    return [exercise for exercise in EXERCISES if exercise.run.__name__ == name]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_planted_fault_fails_its_exercise(fault: Planted) -> None:
    """The list of section 6.3 of the CUDA notes, as far as the backend's recipe can have it."""
    source = SOURCE.read_text()
    assert source.count(fault.old) == 1, f"{SOURCE.name} has changed: it does not have {fault.old!r} once"
    wrong = source.replace(fault.old, fault.new)
    failures = [failure(wrong, exercise) for exercise in EXERCISES if exercise.run.__name__ == fault.caught_by]
    assert any(failures)
    assert not any(isinstance(error, (SyntaxError, NameError, AttributeError)) for error in failures)


def failure(source: str, exercise: Exercise) -> Exception | None:
    """How an exercise fails with a CUDA backend of that source; None if it does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            with installed(Machine(**exercise.settings)) as machine:
                module = ModuleType("engine.cuda")
                sys.modules["engine.cuda"] = module
                exec(compile(source, SOURCE, "exec"), vars(module))
                exercise.run(machine)
        except Exception as error:
            return error
    return None
