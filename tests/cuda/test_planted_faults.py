"""Copies of the CUDA backend that are wrong on purpose: each must fail an exercise. Over a fake CuPy, not on a GPU.

A planted fault is a piece of one of the backend's files replaced by another.
One that no exercise minds would mean that the fake, or the exercise, proves
nothing.
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

FOLDER = Path(engine.__file__).parent
FILES = ("cuda_staging", "cuda_flights", "cuda")  # of the backend; each after those that it imports


class Planted(NamedTuple):
    """A fault: what it is, the text of the backend that it replaces, the exercises that must mind, and where it is."""

    what: str
    old: str
    new: str
    caught_by: str
    file: str = "cuda"


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
        "                done = origin.recorded()\n",
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
        "            vacant = target.recorded()\n",
        "            vacant = cupy.cuda.Event(disable_timing=True)\n",
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
        "self._flights.hold(origin, target, done, made)",
        "pass",
        "a_dropped_destination_stays_until_the_copy_is_done",
    ),
    Planted(
        "the held copies are never let go",
        "while flights and flights[0].done.done:",
        "while False:",
        "copies_in_flight_are_few_and_let_go",
        "cuda_flights",
    ),
    Planted(
        "the held copies are not bounded",
        "while len(flights) > _IN_FLIGHT:",
        "while False:",
        "copies_in_flight_are_few_and_let_go",
        "cuda_flights",
    ),
    Planted(
        "the oldest of the held copies is let go before it is done",
        "flights[0].done.synchronize()",
        "pass",
        "many_dropped_destinations_stay_until_their_copies_are_done",
        "cuda_flights",
    ),
    Planted(
        "the host waits for each copy",
        "                done = origin.recorded()\n",
        "                done = origin.recorded()\n                done.synchronize()\n",
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
        "if np.array_equal(self.download([back], origin.index)[0], pattern):",
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
        "runtime.memcpyDeviceToHost, gpu)",
        "runtime.memcpyDeviceToHost, self._gpu(0))",
        "a_download_sees_the_last_kernel",
    ),
    Planted(
        "a download does not wait",
        "arriving.there.synchronize()",
        "pass",
        "a_download_sees_the_last_kernel",
        "cuda_staging",
    ),
    Planted(
        "a pinned buffer is written again before the host has read it",
        "while self._arriving and self._arriving[0].turn == self._buffers.turn:",
        "while False:",
        "large_downloads_arrive_through_small_buffers",
        "cuda_staging",
    ),
    Planted(
        "each array of a batch is waited for before the next one is sent",
        "                        sent += part.size\n                stage.land()",
        "                        sent += part.size\n                    stage.land()",
        "downloads_are_sent_as_one_batch",
    ),
    Planted(
        "an interrupted download is landed with the next one",
        "                stage.forget()\n",
        "                pass\n",
        "an_interrupted_download_is_forgotten",
    ),
    Planted(
        "memory that copies hold is not waited for",
        "if not self._flights.land(target):",
        "if True:",
        "copies_that_fill_the_memory_are_waited_for",
    ),
    Planted(
        "memory that copies hold is given back before they are done",
        "                    flight.done.synchronize()\n",
        "                    pass\n",
        "copies_that_fill_the_memory_are_waited_for",
        "cuda_flights",
    ),
    Planted(
        "a staged copy waits for each part before it sends the next",
        "host, part.size, runtime.memcpyHostToDevice, target)\n",
        "host, part.size, runtime.memcpyHostToDevice, target)\n"
        "                        origin.stream.wait_event(target.recorded())\n",
        "parts_of_a_staged_copy_overlap",
    ),
    Planted(
        "a part is as large as its buffer",
        "_PARTS: Final = 8",
        "_PARTS: Final = 1",
        "parts_of_a_staged_copy_overlap",
        "cuda_staging",
    ),
    Planted(
        "a pinned buffer is written again before it was read",
        "before.synchronize()",
        "pass",
        "an_uploaded_array_may_be_changed_at_once",
        "cuda_staging",
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
        "cuda_staging",
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
    source = (FOLDER / f"{fault.file}.py").read_text()
    assert source.count(fault.old) == 1, f"{fault.file}.py has changed: it does not have {fault.old!r} once"
    wrong = source.replace(fault.old, fault.new)
    failures = [failure(fault.file, wrong, exercise) for exercise in exercises(fault.caught_by)]
    assert any(failures)
    assert not any(isinstance(error, (SyntaxError, NameError, AttributeError)) for error in failures)


def failure(file: str, wrong: str, exercise: Exercise) -> Exception | None:
    """How an exercise fails with a CUDA backend of which one file is as given; None if it does not."""
    names = [f"engine.{name}" for name in FILES]
    own = {name: sys.modules.get(name) for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            with installed(Machine(**exercise.settings)) as machine:
                for name in FILES:
                    source = FOLDER / f"{name}.py"
                    module = sys.modules[f"engine.{name}"] = ModuleType(f"engine.{name}")
                    exec(compile(wrong if name == file else source.read_text(), source, "exec"), vars(module))
                exercise.run(machine)
        except Exception as error:
            return error
        finally:
            for name, module in own.items():
                sys.modules.pop(name, None)
                if module is not None:
                    sys.modules[name] = module
    return None
