"""Faults of ids, of laziness and of devices; see `faults`."""

import base64
import random
from typing import Any

import numpy as np

from engine import Device, Tensor, transfer
from engine.cpu import CpuBackend
from engine.primitive import Primitive
from modules import Module, Param, ParamGroup
from modules.lazy import Cell
from modules.module import Each
from modules.tree import leaves, rebuild
from records import ModuleRecord, ParamId

from .faults import Patch, fault

# Ids


@fault("X7 to_device makes new ids", "L16", "L28", "L120")
def _x7(patch: Patch) -> None:
    original = Param._moved
    patch.setattr(Param, "_moved", lambda self, device, cut: original(self, device, cut).with_id(ParamId.new()))


@fault("X8 loading keeps the target's ids", "L17", "L18", "L54")
def _x8(patch: Patch) -> None:
    original = Param._loaded
    patch.setattr(Param, "_loaded", lambda self, number, tensor: original(self, None, tensor))


@fault("Y11 ids come from a generator that users seed", "L14")
def _y11(patch: Patch) -> None:
    patch.setattr("records.param_id.secrets.randbits", random.getrandbits)


@fault("Y12 the text of an id is that of its big-endian bytes", "L15")
def _y12(patch: Patch) -> None:
    def text(self: ParamId) -> str:
        return base64.b32hexencode(int(self).to_bytes(8, "big")).decode().rstrip("=").lower()

    patch.setattr(ParamId, "__str__", text)


# Laziness


def _force(module: Module) -> None:
    for _, leaf in leaves(module):
        if isinstance(leaf, Param):
            leaf.base()


@fault("X9 num_params reads values", "L19")
def _x9(patch: Patch) -> None:
    original = Module.num_params

    def counted(self: Module) -> int:
        _force(self)
        return original(self)

    patch.setattr(Module, "num_params", counted)


@fault("X10 cloning a lazy parameter copies its initialiser", "L20")
def _x10(patch: Patch) -> None:
    original = Module.clone

    def copied(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, Param) or leaf._cell is None or leaf._cell._init is None:
            return leaf
        cell = Cell(leaf._cell._init, leaf.shape, leaf.dtype)
        return leaf._new()._set(leaf.id, None, cell, leaf.device, leaf.trainable, leaf.mappers)

    patch.setattr(Module, "clone", lambda self: rebuild(original(self), Each(copied)))


@fault("X11 the lazy cell checks before it locks, and not again", "L21")
def _x11(patch: Patch) -> None:
    original = Param._taken_over

    def taken_over(self: Param) -> Tensor:
        cell = self._cell
        if cell is not None and cell.value is None and cell._init is not None:
            made = cell._init(self.device, self.trainable)
            cell.value = made.without_autodiff()
        return original(self)

    patch.setattr(Param, "_taken_over", taken_over)


@fault("X12 set_require_grad writes the wish into the shared cell", "L25")
def _x12(patch: Patch) -> None:
    wishes: dict[int, tuple[Cell, bool]] = {}
    switch, taken_over = Param.set_require_grad, Param._taken_over

    def switched(self: Param, require: bool) -> Param:
        if self._cell is not None:
            wishes[id(self._cell)] = self._cell, require
        return switch(self, require)

    def made(self: Param) -> Tensor:
        own = self._trainable
        self._trainable = wishes.get(id(self._cell), (None, own))[1]
        try:
            return taken_over(self)
        finally:
            self._trainable = own

    patch.setattr(Param, "set_require_grad", switched)
    patch.setattr(Param, "_taken_over", made)


@fault("Y13 an initialiser that raised is never run again", "L20", "L21")
def _y13(patch: Patch) -> None:
    original = Cell.value_for

    def value_for(self: Cell, device: Device, require_grad: bool) -> Tensor:
        try:
            return original(self, device, require_grad)
        except Exception:
            self._init = None
            raise

    patch.setattr(Cell, "value_for", value_for)


@fault("Y14 a load makes the initial value first", "L22")
def _y14(patch: Patch) -> None:
    original = Param._loaded

    def loaded(self: Param, number: Any, tensor: Tensor) -> Param:
        self.base()
        return original(self, number, tensor)

    patch.setattr(Param, "_loaded", loaded)


@fault("Y15 a fork of a lazy parameter runs the initialiser again", "L20")
def _y15(patch: Patch) -> None:
    original = Param._moved

    def moved(self: Param, device: Device, cut: bool) -> Param:
        made = original(self, device, cut)
        cell = made._cell
        if cell is None or cell._init is None:
            return made
        again = Cell(cell._init, cell.shape, cell.dtype)
        return made._new()._set(made.id, None, again, made.device, made.trainable, made.mappers)

    patch.setattr(Param, "_moved", moved)


@fault("Y24 a switch of a lazy parameter is forgotten", "L23", "L25")
def _y24(patch: Patch) -> None:
    original = Param.set_require_grad

    def switched(self: Param, require: bool) -> Param:
        return original(self, require) if self.is_initialized else self

    patch.setattr(Param, "set_require_grad", switched)


@fault("Y16 a group record makes every value", "L24")
def _y16(patch: Patch) -> None:
    original = Module.into_record_group

    def recorded(self: Module, group: ParamGroup) -> ModuleRecord:
        _force(self)
        return original(self, group)

    patch.setattr(Module, "into_record_group", recorded)


@fault("Y17 nobody notices an initialiser that reads its own parameter", "L26")
def _y17(patch: Patch) -> None:
    def value_for(self: Cell, device: Device, require_grad: bool) -> Tensor:
        if self.value is None and self._init is not None:
            self.value = self._init(device, require_grad).without_autodiff()
        assert self.value is not None
        return self.value

    patch.setattr(Cell, "value_for", value_for)


# Devices


@fault("X14 a move to the same device counts a copy", "L31", "L94")
def _x14(patch: Patch) -> None:
    original = transfer.copy

    def copy(tensors: Any, device: Any) -> Any:
        for tensor in tensors:
            if tensor.device == Device(device):
                for log in transfer._open.logs:
                    log._add((tensor.device.inner(), tensor.device.inner(), "host"), 1, tensor.nbytes)
        return original(tensors, device)

    patch.setattr(transfer, "copy", copy)


@fault("Y18 a move forgets plain tensors", "L27", "L28")
def _y18(patch: Patch) -> None:
    original = Module._each

    def each(self: Module, change: Any, destination: Any = None) -> Any:
        forgetting = lambda path, leaf: leaf if isinstance(leaf, Tensor) else change(path, leaf)  # noqa: E731
        return original(self, forgetting if destination else change, destination)

    patch.setattr(Module, "_each", each)


@fault("Y19 a move adopts the autodiff flag of the destination", "L28", "L29")
def _y19(patch: Patch) -> None:
    original = Param._moved

    def moved(self: Param, device: Device, cut: bool) -> Param:
        return original(self, device, cut)._associated(device.is_autodiff)

    patch.setattr(Param, "_moved", moved)


@fault("Y20 devices leaves out lazy parameters", "L19", "L27")
def _y20(patch: Patch) -> None:
    def device_of(leaf: Any) -> Any:
        lazy = isinstance(leaf, Param) and not leaf.is_initialized
        return None if lazy else getattr(leaf, "device", None)

    patch.setattr("modules.module._device_of", device_of)


@fault("Y21 two CPU devices share memory", "L32")
def _y21(patch: Patch) -> None:
    def copy_between(self: Any, arrays: Any, source: int, destination: int) -> Any:
        return [array[...] for array in arrays], "host"

    patch.setattr(CpuBackend, "copy_between", copy_between)


@fault("Y22 an operation takes operands of any device", "L33")
def _y22(patch: Patch) -> None:
    patch.setattr(Primitive, "_common_device", lambda self, operands: operands[0]._device)


@fault("Y23 a copy between devices loses the payload of NaNs", "L28")
def _y23(patch: Patch) -> None:
    def copy_between(self: Any, arrays: Any, source: int, destination: int) -> Any:
        with np.errstate(all="ignore"):
            return [
                array.astype(np.float64).astype(array.dtype) if array.dtype.itemsize < 8 else array.copy()
                for array in arrays
            ], "host"

    patch.setattr(CpuBackend, "copy_between", copy_between)
