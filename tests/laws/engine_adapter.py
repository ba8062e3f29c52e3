"""The engine behind the laws' protocol, by its public API.

`engine_build` builds, `engine_view` looks, `record_engine` records and loads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import numpy as np

from engine import (
    AutodiffError,
    DeviceMismatchError,
    DTypeError,
    EngineError,
    ShapeError,
    dequantize,
    transfer,
)
from modules import (
    DisplaySettings,
    Flag,
    FrozenModuleError,
    GroupError,
    Module,
    ModuleMapper,
    Param,
    ParamGroup,
    PathError,
    QuantizerError,
    RunningState,
)
from records import ParamId, RecordFormatError, RecordValidationError

from . import operations as op
from .engine_build import Built, InitialiserFailed, NameRefused
from .engine_gradients import gradients_of, reported, stepped
from .engine_groups import param_group
from .engine_quantization import changed
from .engine_view import Places, Recorder, observed
from .group_expressions import Group
from .observations import Bits, Crossing, Meta, TransferLog
from .protocol import Done, Grammar, Level, RefusalKind, Refused
from .record_engine import as_data, bits_of
from .record_engine import result as on_records
from .spec_tree import LAYOUTS, Enter, Event, Exit, Seen, TreeSpec, tied_with


class HookFailed(Exception):
    """What a hook raises on purpose."""


_KINDS: Final[Sequence[tuple[type[Exception], RefusalKind]]] = (
    (HookFailed, "hook"),
    (InitialiserFailed, "initialiser"),
    (NameRefused, "name"),
    (FrozenModuleError, "frozen"),
    (PathError, "name"),
    (QuantizerError, "scheme"),
    (GroupError, "group"),
    (AutodiffError, "autodiff"),
    (DeviceMismatchError, "device_mismatch"),
    (DTypeError, "dtype"),
    (ShapeError, "shape"),
    (RecordFormatError, "record_format"),
    (EngineError, "other"),
)
_REFUSALS: Final = (HookFailed, InitialiserFailed, NameRefused, EngineError)


def _refused(error: Exception) -> Refused:
    if isinstance(error, RecordValidationError):
        kind = "record_mismatch" if error.mismatched else "record_missing" if error.missing else "record_unused"
        return Refused(kind, str(error), error.missing, error.unused, error.mismatched)
    return Refused(next(kind for of, kind in _KINDS if isinstance(error, of)), str(error))


# Changing


class _Editor(ModuleMapper):
    """The composition of mappers given as data."""

    def __init__(self, mappers: Sequence[op.Mapper], fail_at: int | None) -> None:
        self.mappers = mappers
        self.fail_at = fail_at
        self.events: list[Event] = []
        self.shown: list[list[tuple[str, str, int]]] = [[] for _ in mappers]
        self.calls = 0

    def edit(self, kind: Any, path: str, leaf: Any) -> Any:
        if self.calls == self.fail_at:
            raise HookFailed(f"call {self.calls}")
        self.calls += 1
        self.events.append(Seen(kind, path))
        for mapper, shown in zip(self.mappers, self.shown, strict=True):
            shown.append((path, kind, int(leaf.id)))
            for edit in mapper:
                leaf = _edited(edit, path, leaf, len(shown) - 1)
        return leaf

    def map_float(self, path: str, param: Param, /) -> Param:
        return self.edit("float", path, param)

    def map_int(self, path: str, param: Param, /) -> Param:
        return self.edit("int", path, param)

    def map_bool(self, path: str, param: Param, /) -> Param:
        return self.edit("bool", path, param)

    def map_flag(self, path: str, flag: Flag, /) -> Flag:
        return self.edit("flag", path, flag)

    def enter_module(self, name: str, container_type: str, /) -> None:
        self.events.append(Enter(name, container_type))

    def exit_module(self, name: str, container_type: str, /) -> None:
        self.events.append(Exit(name, container_type))


def _edited(edit: op.Edit, path: str, leaf: Any, call: int) -> Any:
    match edit:
        case op.Number(start):
            return leaf.with_id((start + call) % 2**64)
        case _ if edit.path != path:
            return leaf
        case op.SetTrainable(_, value):
            return leaf.set_require_grad(value)
        case op.AddConstant(_, amount):
            return leaf.map(lambda base: base.set_require_grad(False) + amount).set_require_grad(leaf.trainable)
        case op.ReplaceId(_, number):
            return leaf.with_id(number)
        case op.SetFlag(_, value):
            return leaf.map(lambda _: value)


@dataclass(frozen=True)
class Version:
    """A handle: a module, and what it shares with its other versions."""

    module: Module
    built: Built


def _version() -> str:
    try:
        return version("layerloom")
    except PackageNotFoundError:
        return "as it lies here"


class EngineAdapter:
    """Layerloom's own modules."""

    name: str = "layerloom"
    version: str = _version()
    grammar: Grammar = Grammar(
        layouts=LAYOUTS, reserved=tuple(name for name in dir(Module) if not name.startswith("_"))
    )
    capabilities: Mapping[str, Level] = dict.fromkeys(
        (
            *("visit", "map", "order", "ids", "lazy", "running", "threads", "devices", "transfer_log", "fork"),
            *("state.flags", "state.params", "groups", "records", "records.options", "records.rename"),
            *("records.mappers", "format.burnpack", "display", "persistent", "autodiff", "optimizers"),
            *("quantize", "lora", "reparam"),
        ),
        "native",
    )

    def __init__(self) -> None:
        self._logging = transfer.log()
        self._open = self._logging.__enter__()

    def build(self, spec: TreeSpec) -> Version | Refused:
        built = Built(spec)
        try:
            return Version(built.module(), built)
        except _REFUSALS as error:
            return _refused(error)

    def apply(self, target: Version, operation: op.Op) -> Done | Refused:
        try:
            with np.errstate(all="ignore"):  # values are any bits
                module, output = self._result(target, operation)
        except _REFUSALS as error:
            return _refused(error)
        return Done(Version(module, target.built), output)

    def _result(self, target: Version, operation: op.Op) -> tuple[Module, Any]:
        module = target.module
        match operation:
            case op.Visit():
                recorder = Recorder()
                module.visit(recorder)
                return module, tuple(recorder.events)
            case op.Map(mappers, fail_at):
                editor = _Editor(mappers, fail_at)
                mapped = module.map(editor)
                return mapped, (tuple(editor.events), tuple(map(tuple, editor.shown)))
            case op.CountParams():
                return module, module.num_params()
            case op.CollectDevices(found):
                return module, tuple(str(device.inner()) for device in module.collect_devices(found))
            case op.Display():
                return module, module.display(DisplaySettings(show_param_id=False))
            case op.Clone():
                return module.clone(), None
            case op.Force(path):
                module.at(path).base()
                return module, None
            case op.Update(path, amount):
                module.at(path).update(lambda value: value + amount)
                return module, None
            case op.Train():
                return module.train(), None
            case op.Valid():
                return module.valid(), None
            case op.Fork(device):
                return module.fork(device), None
            case op.ToDevice(device):
                return module.to_device(device), None
            case op.ToRecord(group):
                chosen = self._group(target, group) if group else None
                return module, as_data(module.into_record_group(chosen) if chosen else module.into_record())
            case op.KeepGroup(name, group):
                target.built.groups[name] = self._group(target, group)
                return module, None
            case op.AskGroup(group, asked):
                made = self._group(target, group)
                return module, tuple(made.matches(number, path) for number, path in asked)
            case op.PathsOfGroup(group):
                return module, tuple(self._group(target, group).paths(module))
            case op.Backward(used, through):
                versions = [target]
                for step in through:
                    versions.append(Version(self._result(versions[-1], step)[0], target.built))
                gradients = gradients_of(versions[-1].module, used)
                return module, tuple(reported(version.module, gradients) for version in versions)
            case op.Step(name, settings, used, number):
                return stepped(module, name, dict(settings), used, number), None
            case op.SetRequireGrad() | op.NoGrad() | op.Freeze() | op.Unfreeze():
                return self._switched(target, operation), None
            case op.Effective(path):
                value = module.at(path).val()
                return module, bits_of(dequantize(value) if value.is_quantized else value)
        group = getattr(operation, "group", None)
        made = changed(module, operation, None if group is None else self._group(target, group))
        return on_records(module, operation) if made is None else (made, None)

    def _group(self, target: Version, group: Group) -> ParamGroup:
        return param_group(group, target.module, target.built.groups)

    def _switched(self, target: Version, operation: op.Op) -> Module:
        """The module after a switch of training, by the method with or without a group."""
        module = target.module
        group = getattr(operation, "group", None)
        if group is None:
            match operation:
                case op.SetRequireGrad(value):
                    return module.set_require_grad(value)
                case op.Freeze():
                    return module.freeze()
                case op.Unfreeze():
                    return module.unfreeze()
            return module.no_grad()
        chosen = self._group(target, group)
        if isinstance(operation, op.SetRequireGrad):
            return module.set_require_grad_group(chosen, operation.value)
        return module.freeze_group(chosen) if isinstance(operation, op.Freeze) else module.unfreeze_group(chosen)

    def meta(self, target: Version) -> Meta:
        recorder = Recorder()
        target.module.visit(recorder)
        places = Places(target.module, dict(recorder.shown))
        return Meta(tuple(observed(path, leaf) for path, leaf in recorder.shown), places.skeleton, places.ties)

    def bits(self, target: Version, path: str) -> Bits | Refused:
        found = target.module.at(path)
        try:
            value = found.base() if isinstance(found, Param) else found
        except _REFUSALS as error:
            return _refused(error)
        return bits_of(value.value() if isinstance(value, RunningState) else value)

    def runs(self, target: Version, path: str) -> int:
        return target.built.runs[tied_with(target.built.spec, path)[0]]

    def log(self) -> TransferLog:
        seen = tuple(
            Crossing(str(source), str(destination), count.copies, count.nbytes)
            for (source, destination, _), count in self._open.items()
        )
        self._logging.__exit__(None, None, None)
        self._logging = transfer.log()
        self._open = self._logging.__enter__()
        return seen

    def format_id(self, number: int) -> str:
        return str(ParamId(number))

    def parse_id(self, text: str) -> int | Refused:
        try:
            return int(ParamId.parse(text))
        except EngineError as error:
            return _refused(error)
