"""Faults of records and loads; see `faults`. Those of files are in `faults_of_files`."""

from math import prod
from typing import Any

import numpy as np

from engine import Tensor, zeros
from modules import Module, Param, RunningState, recording
from modules.tree import leaves
from records import ModuleRecord, RecordEntry, RecordValidationError
from records.burnpack import reader

from .faults import Patch, fault

_Plan = recording._Plan

# Recording


@fault("X26 data becomes C-contiguous before it is written, rank 0 thereby rank 1", "L53", "L54")
def _x26(patch: Patch) -> None:
    original = Param._save_form

    def save_form(self: Param) -> Tensor:
        saved = original(self)
        return saved if saved.ndim else saved.reshape(1)

    patch.setattr(Param, "_save_form", save_form)


@fault("Y60 a record lists entries in order of names", "L53")
def _y60(patch: Patch) -> None:
    original = recording.into_record
    patch.setattr(recording, "into_record", lambda *args: ModuleRecord(sorted(original(*args).items())))


@fault("Y61 a record leaves running states out", "L53", "L54")
def _y61(patch: Patch) -> None:
    original = recording.into_record

    def into_record(module: Any, *group: Any) -> ModuleRecord:
        running = {path for path, leaf in leaves(module) if isinstance(leaf, RunningState)}
        return ModuleRecord((path, entry) for path, entry in original(module, *group).items() if path not in running)

    patch.setattr(recording, "into_record", into_record)


@fault("Y62 a group's record has everything", "L53", "L59")
def _y62(patch: Patch) -> None:
    patch.setattr(Module, "into_record_group", lambda self, group: self.into_record())


# Loading


def _values_changed(patch: Patch, change: Any) -> None:
    """Change each tensor that is read from an entry."""
    original = RecordEntry.read
    patch.setattr(RecordEntry, "read", lambda self, device: change(original(self, device)))


@fault("X25 loading casts to float64 and back", "L54", "L60")
def _x25(patch: Patch) -> None:
    def through_float64(tensor: Tensor) -> Tensor:
        with np.errstate(all="ignore"):
            wide = tensor.numpy().astype(np.float64).astype(tensor.dtype)
        return Tensor.from_numpy(wide, tensor.device)

    original = _Plan.load

    def load(self: Any, path: str, leaf: Any) -> Any:
        with patch.context() as within:
            _values_changed(within, through_float64)
            return original(self, path, leaf)

    patch.setattr(_Plan, "load", load)


@fault("Y63 a load makes every parameter train", "L54")
def _y63(patch: Patch) -> None:
    original = Param._loaded
    patch.setattr(Param, "_loaded", lambda self, number, tensor: original(self, number, tensor).set_require_grad(True))


@fault("Y64 a loaded parameter stays where the record was", "L54", "L63")
def _y64(patch: Patch) -> None:
    original = Param._loaded

    def loaded(self: Param, number: Any, tensor: Tensor) -> Param:
        made = original(self, number, tensor)
        return made._moved(made.device.cpu(0), cut=True)

    patch.setattr(Param, "_loaded", loaded)


@fault("Y65 a running state takes the id of the record", "L54", "L17")
def _y65(patch: Patch) -> None:
    original = _Plan.load

    def load(self: Any, path: str, leaf: Any) -> Any:
        made = original(self, path, leaf)
        entry = self._entries.get(id(leaf))
        return RunningState(made.value(), entry.id) if entry and isinstance(made, RunningState) else made

    patch.setattr(_Plan, "load", load)


@fault("Y66 each place of a tied parameter loads its own entry", "L54", "L59")
def _y66(patch: Patch) -> None:
    def load(self: Any, path: str, leaf: Any) -> Any:
        entry = self._record.get(path)
        if entry is None or not isinstance(leaf, Param):
            return original(self, path, leaf)
        return leaf._loaded(entry.id, entry.read(leaf.device.inner()))

    original = _Plan.load
    patch.setattr(_Plan, "load", load)
    patch.setattr("modules.tree.Each.leaf", lambda self, path, one: self._change(path, one))


@fault("Y67 a parameter that a record lacks becomes zero", "L56", "L57", "L59")
def _y67(patch: Patch) -> None:
    original = _Plan.load

    def load(self: Any, path: str, leaf: Any) -> Any:
        made = original(self, path, leaf)
        if made is leaf and isinstance(leaf, Param) and leaf.is_initialized:
            return leaf._with_value(zeros(leaf.shape, device=leaf.device, dtype=leaf.dtype))
        return made

    patch.setattr(_Plan, "load", load)


@fault("Y68 a load adds to the value that is there", "L54", "L56")
def _y68(patch: Patch) -> None:
    original = _Plan.load

    def load(self: Any, path: str, leaf: Any) -> Any:
        made: Any = original(self, path, leaf)
        if made is leaf or not isinstance(leaf, Param) or not leaf.is_initialized or leaf.kind != "float":
            return made
        value = made.base().without_autodiff()
        return leaf._loaded(made.id, value + leaf.base().without_autodiff().cast(value.dtype))

    patch.setattr(_Plan, "load", load)


@fault("Y69 entries are taken by their order, not by their paths", "L54", "L62")
def _y69(patch: Patch) -> None:
    original = _Plan.__init__

    def init(self: Any, module: Any, record: ModuleRecord) -> None:
        paths = [path for path, leaf in leaves(module) if isinstance(leaf, (Param, RunningState))]
        if {*paths} == {*record}:
            record = record._like(zip(paths, record.values(), strict=True))
        original(self, module, record)

    patch.setattr(_Plan, "__init__", init)


# Options


@fault("X23 missing and unused options are swapped", "L57")
def _x23(patch: Patch) -> None:
    original = ModuleRecord.with_options

    def with_options(self: ModuleRecord, **options: Any) -> ModuleRecord:
        swapped = {"allow_partial": "allow_unused", "allow_unused": "allow_partial"}
        return original(self, **{swapped.get(name, name): value for name, value in options.items()})

    patch.setattr(ModuleRecord, "with_options", with_options)


@fault("Y70 what is unused is told only if nothing else is wrong", "L57")
def _y70(patch: Patch) -> None:
    original = _Plan.__init__

    def init(self: Any, module: Any, record: ModuleRecord) -> None:
        original(self, module, record)
        if self.missing or self.mismatched:
            self.unused = []

    patch.setattr(_Plan, "__init__", init)


@fault("Y71 of a tied parameter's entries the first wins, whatever the others are", "L57")
def _y71(patch: Patch) -> None:
    patch.setattr(_Plan, "_differing", lambda self, paths: [])


# Failures


@fault("X24 parameters are replaced before the record was checked", "L58")
def _x24(patch: Patch) -> None:
    original = _Plan.refusal

    def refusal(self: Any) -> RecordValidationError | None:
        refused = original(self)
        for leaf in self.leaves_of_plan:
            entry = self._entries.get(id(leaf))
            if refused is not None and entry is not None and isinstance(leaf, Param):
                leaf._value, leaf._cell = leaf._loaded(entry.id, entry.read(leaf.device.inner()))._value, None
        return refused

    made = _Plan.__init__

    def init(self: Any, module: Any, record: ModuleRecord) -> None:
        made(self, module, record)
        self.leaves_of_plan = [leaf for _, leaf in leaves(module)]

    patch.setattr(_Plan, "__init__", init)
    patch.setattr(_Plan, "refusal", refusal)


@fault("Y72 a load makes initial values to compare with", "L54", "L58")
def _y72(patch: Patch) -> None:
    original = _Plan._reason

    def reason(self: Any, path: str, leaf: Any, entry: RecordEntry) -> str | None:
        if isinstance(leaf, Param):
            leaf.base()
        return original(self, path, leaf, entry)

    patch.setattr(_Plan, "_reason", reason)


@fault("Y73 a running state is loaded in place", "L58")
def _y73(patch: Patch) -> None:
    def derived(self: RunningState, value: Tensor) -> RunningState:
        self._value = value
        return self

    original = _Plan.load

    def load(self: Any, path: str, leaf: Any) -> Any:
        with patch.context() as within:
            within.setattr(RunningState, "_derived", derived)
            return original(self, path, leaf)

    patch.setattr(_Plan, "load", load)


@fault("Y74 a boolean byte is whatever it is", "L58")
def _y74(patch: Patch) -> None:
    patch.setattr(reader, "checked_bools", lambda what, stored: stored.astype(bool))


# Dtypes and shapes


@fault("Y75 kinds are converted", "L57", "L60")
def _y75(patch: Patch) -> None:
    def kind(self: RecordEntry) -> Any:
        return AnyKind()

    class AnyKind:
        def __ne__(self, other: object) -> bool:
            return False

    patch.setattr(RecordEntry, "kind", property(kind))


@fault("Y76 CastToModule keeps the record's dtype where that is wider", "L60")
def _y76(patch: Patch) -> None:
    original = Tensor.cast

    def cast(self: Tensor, dtype: Any) -> Tensor:
        return self if self.dtype.itemsize > np.dtype(dtype).itemsize else original(self, dtype)

    patch.setattr(Tensor, "cast", cast)


def _compared_by(patch: Patch, same: Any) -> None:
    """Compare shapes by a rule of its own, and bring what passes into shape."""

    def reason(self: Any, path: str, leaf: Any, entry: RecordEntry) -> str | None:
        shape = leaf._record_shape() if isinstance(leaf, Param) else leaf.value().shape
        kind = leaf.kind if isinstance(leaf, Param) else "float"
        return None if entry.kind == kind and same(entry.shape, shape) else f"{entry.dtype} {entry.shape}"

    patch.setattr(_Plan, "_reason", reason)


@fault("Y77 shapes are compared by their number of elements", "L57", "L61")
def _y77(patch: Patch) -> None:
    _compared_by(patch, lambda one, other: prod(one) == prod(other))


@fault("Y78 ones in shapes do not count", "L61")
def _y78(patch: Patch) -> None:
    _compared_by(patch, lambda one, other: [e for e in one if e != 1] == [e for e in other if e != 1])
