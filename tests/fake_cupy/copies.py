"""Raw copies by address, which know no dtype, shape or bound: the runtime calls, and what an array's get and set do."""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .clocks import Stamp
from .faults import CUDARuntimeError, Fault
from .machine import Machine, Queue, Touch
from .memory import Block

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, DEFAULT = 1, 2, 3, 4


def host_bytes(address: int, nbytes: int) -> NDArray[np.uint8]:
    """Ordinary memory of this process."""
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


def check_written(block: Block, low: int, high: int, stamp: Stamp) -> None:
    """Refuse bytes that nobody wrote.

    Raises:
        Fault: there are some.
    """
    if not block.written[low:high].all():
        raise Fault(f"'{stamp.what}' reads memory of cuda:{block.device} that nobody wrote")


def up(machine: Machine, target: int, host: int, nbytes: int, queue: Queue, device: int) -> None:
    """From the host to a device. From ordinary memory the call returns when that has been read."""
    block, low = machine.memories[device].find(target, nbytes)
    touches = [Touch(block, low, low + nbytes, True)]
    pinned = machine.pinned.find(host, nbytes)
    if pinned is not None:
        touches.append(Touch(pinned[0], pinned[1], pinned[1] + nbytes, False))
    stamp = machine.issue(queue, "copy from the host", touches)
    data = host_bytes(host, nbytes) if pinned is None else machine.pinned.up(*pinned, nbytes, stamp)
    block.data[low : low + nbytes] = data
    block.written[low : low + nbytes] = True


def down(machine: Machine, host: int, source: int, nbytes: int, queue: Queue, device: int) -> None:
    """From a device to the host. To ordinary memory the call returns when all is there."""
    block, low = machine.memories[device].find(source, nbytes)
    touches = [Touch(block, low, low + nbytes, False)]
    pinned = machine.pinned.find(host, nbytes)
    if pinned is not None:
        touches.append(Touch(pinned[0], pinned[1], pinned[1] + nbytes, True))
    stamp = machine.issue(queue, "copy to the host", touches)
    check_written(block, low, low + nbytes, stamp)
    data = block.data[low : low + nbytes]
    if pinned is not None:
        machine.pinned.down(*pinned, data, stamp)
    else:
        host_bytes(host, nbytes)[:] = data
        machine.advance(queue.clock)


def across(machine: Machine, target: int, to: int, source: int, of: int, nbytes: int, queue: Queue) -> None:
    """Between devices, or within one; without peer access the driver stages it."""
    if not machine.memories[to].holds(target) or not machine.memories[of].holds(source):
        raise CUDARuntimeError(1)
    into, start = machine.memories[to].find(target, nbytes)
    block, low = machine.memories[of].find(source, nbytes)
    touches = [Touch(block, low, low + nbytes, False), Touch(into, start, start + nbytes, True)]
    stamp = machine.issue(queue, f"copy from cuda:{of} to cuda:{to}", touches, devices=(to, of))
    check_written(block, low, low + nbytes, stamp)
    if to != of:
        machine.note_peer_copy(stamp)
    if not ((of, to) in machine.dropping and (of, to) in machine.enabled):
        into.data[start : start + nbytes] = block.data[low : low + nbytes]
    into.written[start : start + nbytes] = True


class Runtime:
    """The functions of `cupy.cuda.runtime`, by their names."""

    CUDARuntimeError = CUDARuntimeError
    memcpyHostToDevice = HOST_TO_DEVICE  # noqa: N815
    memcpyDeviceToHost = DEVICE_TO_HOST  # noqa: N815
    memcpyDeviceToDevice = DEVICE_TO_DEVICE  # noqa: N815
    memcpyDefault = DEFAULT  # noqa: N815

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def getDeviceCount(self) -> int:
        self._machine.check("getDeviceCount")
        return self._machine.devices

    def getDevice(self) -> int:
        return self._machine.device

    def setDevice(self, device: int) -> None:
        self._machine.set_device(device)

    def deviceSynchronize(self) -> None:
        self._machine.wait_device(self._machine.device)

    def getDeviceProperties(self, device: int) -> dict[str, Any]:
        self._machine.check("getDeviceProperties")
        if not 0 <= device < self._machine.devices:
            raise CUDARuntimeError(101)
        return {"name": f"Fake GPU {device}".encode()}

    def driverGetVersion(self) -> int:
        return 0 if self._machine.driver else 13020

    def runtimeGetVersion(self) -> int:
        return 12080

    def memGetInfo(self) -> tuple[int, int]:
        memory = self._machine.memories[self._machine.device]
        return memory.capacity - memory.total, memory.capacity

    def deviceCanAccessPeer(self, device: int, peer: int) -> int:
        self._machine.check("deviceCanAccessPeer")
        return int((device, peer) in self._machine.peers)

    def deviceEnablePeerAccess(self, peer: int) -> None:
        self._machine.check("deviceEnablePeerAccess")
        self._machine.change_peer(self._machine.device, peer, enable=True)

    def deviceDisablePeerAccess(self, peer: int) -> None:
        self._machine.check("deviceDisablePeerAccess")
        self._machine.change_peer(self._machine.device, peer, enable=False)

    def memcpyPeerAsync(self, dst: int, dst_device: int, src: int, src_device: int, size: int, stream: int) -> None:
        self._machine.check("memcpyPeerAsync")
        across(self._machine, dst, dst_device, src, src_device, size, self._machine.queue(stream))

    def memcpyAsync(self, dst: int, src: int, size: int, kind: int, stream: int) -> None:
        machine = self._machine
        machine.check("memcpyAsync")
        to, of = ([m.device for m in machine.memories if m.holds(address)] for address in (dst, src))
        expected = {(0, 1): DEVICE_TO_HOST, (1, 0): HOST_TO_DEVICE, (1, 1): DEVICE_TO_DEVICE}.get((len(to), len(of)))
        if kind not in (DEFAULT, expected):
            raise CUDARuntimeError(1)
        queue = machine.queue(stream)
        if to and of:
            across(machine, dst, to[0], src, of[0], size, queue)
        elif to:
            up(machine, dst, src, size, queue, to[0])
        else:
            down(machine, dst, src, size, queue, of[0])
