"""Modules: trees of parameters, and the values that every method of theirs gives anew.

A user's module is a class with ``__init__`` and ``forward``. What is assigned
to its attributes becomes its children, in that order. When the constructor
returns, the tree is checked and the module is frozen: from then on it is a
value. A method that would change it returns a new tree that shares what did
not change, and the module it was called on stays as it was (M1).
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from engine import Device
from records import ModuleRecord, RecordError, open_record

from . import recording
from .containers import Skip, as_child, attribute, check_name, skip
from .display import DisplaySettings, display
from .errors import FrozenModuleError, PathError
from .flag import Flag
from .group import ParamGroup
from .meta import ModuleMeta
from .param import Param
from .quantizer import Quantizer, quantized_weights
from .recording import LoadResult
from .reparameterizer import Reparameterizer, materialized, reparameterized
from .representation import represent
from .reserved import reserved_names
from .running_state import RunningState
from .training_state import FREEZE, NO_GRAD, REQUIRE_GRAD, TRAIN, UNFREEZE, VALID, switched
from .traversal import Mapped, ModuleMapper, ModuleVisitor, visit
from .tree import Each, Leaf, Node, all_paths, children_of, is_constructed, leaves, num_params, rebuild

if TYPE_CHECKING:
    from .lora import Lora, QLora


class Module(Node, metaclass=ModuleMeta):
    """A tree of parameters with a computation; subclass it and write ``__init__`` and ``forward``.

    Children are Param, Flag, RunningState, Tensor (a constant), Draws, other modules,
    lists, tuples and dicts of those, and None for an absent one; everything
    else is configuration. Modules are compared and hashed by identity.

    Source: Burn 0.23, ``Module``.
    """

    __slots__ = ("__dict__", "_fields", "_skipped")

    _fields: tuple[str, ...]  # names in order of assignment; set when the module is frozen
    _skipped: set[str]  # names of fields that `skip` marked

    # Construction

    def __setattr__(self, name: str, value: Any) -> None:
        if is_constructed(self):
            raise FrozenModuleError(
                f"{type(self).__name__}.{name}: a module is a value and cannot be assigned to; "
                f"module.replace({name}=…) gives a new one"
            )
        if name.startswith("_"):  # at once, as what follows goes by these names
            _check_field(type(self), name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if is_constructed(self):
            raise FrozenModuleError(f"{type(self).__name__}.{name}: a module is a value; its fields cannot be deleted")
        super().__delattr__(name)

    def _finish(self) -> None:
        """Check the fields, make containers read-only, and freeze (M3, M10). A cached property's value is no field."""
        cached = [name for name in self.__dict__ if isinstance(getattr(type(self), name, None), cached_property)]
        fields = {name: value for name, value in self.__dict__.items() if name not in cached}
        for name in fields:
            _check_field(type(self), name)
        self._freeze(fields, set())

    def _freeze(self, fields: Mapping[str, Any], skipped: set[str]) -> None:
        """Freeze with these fields; those that are `skipped`, or marked by `skip`, are configuration."""
        kept: dict[str, Any] = {}
        children: list[tuple[str, Any]] = []
        for name, value in fields.items():
            mark: Any = skip(value) if name in skipped and not isinstance(value, Skip) else value
            if isinstance(mark, Skip):
                kept[name] = mark.value
                if mark.lasting:
                    skipped.add(name)
                continue
            child, is_child = as_child(value, name)
            kept[name] = attribute(child)
            if is_child:
                children.append((name, child))
        self._settle(kept, tuple(children), skipped)

    def _settle(self, fields: dict[str, Any], children: tuple[tuple[str, Any], ...], skipped: set[str]) -> None:
        """Take over checked fields and children; from here on the module is frozen."""
        own = vars(self)
        own.clear()
        own.update(fields)
        object.__setattr__(self, "_fields", tuple(fields))
        object.__setattr__(self, "_skipped", skipped)
        object.__setattr__(self, "_children", children)

    # As a node of the tree

    @property
    def _container(self) -> str:
        return f"Struct:{type(self).__name__}"

    def _with_children(self, children: Sequence[Any], destination: Device | None) -> Self:
        named = tuple((name, child) for (name, _), child in zip(self._children, children, strict=True))
        fields = {**self.fields(), **{name: attribute(child) for name, child in named}}
        made = object.__new__(type(self))
        made._settle(fields, named, self._skipped)
        return made

    def _entries(self) -> list[tuple[str, Any, bool]]:
        walked = dict(self._children)
        entries: list[tuple[str, Any, bool]] = []
        for name, value in self.fields().items():
            is_child = name in walked and attribute(walked[name]) is value
            entries.append((name, walked[name] if is_child else value, is_child))
        return entries

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """``forward`` of the same arguments."""
        return self.forward(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    # Reading

    def visit(self, visitor: ModuleVisitor) -> None:
        """Show `visitor` every parameter, flag and running state, in order of declaration (M12)."""
        visit(self, visitor)

    def collect_devices(self, found: Iterable[Device | str]) -> list[Device]:
        """`found`, then each device of this module that is not yet in it, in traversal order (M36, M38)."""
        devices = [Device(device) for device in found]
        known = set(devices)
        for _, leaf in leaves(self):
            device = _device_of(leaf)
            if device is not None and device not in known:
                known.add(device)
                devices.append(device)
        return devices

    def devices(self) -> list[Device]:
        """Each device that this module's tensors are on, or will be made on, once, in traversal order (M36)."""
        return self.collect_devices([])

    def num_params(self) -> int:
        """Number of elements of all parameters of floats and running states; a tied one counts at each place (M99)."""
        return num_params(self)

    def fields(self) -> Mapping[str, Any]:
        """Name to value of each field as set, configuration and skipped ones included; read-only."""
        return MappingProxyType({name: self.__dict__[name] for name in self._fields})

    def at(self, path: str) -> Any:
        """The Param, Flag, RunningState, Draws, tensor, module or container at a path; the module itself at ``""``.

        What a reparameterization holds is below its parameter, such as ``weight.lora.a``.

        Raises:
            PathError: there is nothing there, and the message names the nearest paths; or `path` is no string.
        """
        if not isinstance(path, str):
            raise PathError(f"at takes a path, a string such as 'blocks.0.weight', not {path!r}")
        here: Any = self
        for name in path.split(".") if path else ():
            here = dict(children_of(here)).get(name)
            if here is None:
                self._refuse_path(path)
        return attribute(here)

    def display(self, settings: DisplaySettings | None = None) -> str:
        """The text of the module's attributes, as Burn writes it; makes nothing (M101, M103). `repr` is another one."""
        return display(self, settings)

    def display_settings(self) -> DisplaySettings:
        """How this module and those below it are displayed, where the caller of `display` does not say; override it."""
        return DisplaySettings()

    def display_content(self) -> Sequence[tuple[str, Any]] | None:
        """Names and values that `display` shows instead of the fields; None for the fields; override it (M102)."""
        return None

    def __repr__(self) -> str:
        return represent(self)

    def _refuse_path(self, path: str) -> None:
        near = difflib.get_close_matches(path, list(all_paths(self)), n=3, cutoff=0.0)
        hint = f"; the nearest are {', '.join(map(repr, near))}" if near else ", and the module has no paths"
        raise PathError(f"there is nothing at {path!r}{hint}")

    # New modules

    def map(self, mapper: ModuleMapper) -> Self:
        """The module with what `mapper` gives for each parameter, flag and running state (M13, M16).

        `mapper` is asked once per path. Places that hold the same object are
        tied; they stay tied exactly if it gives one object for all of them (D8).

        Raises:
            ModuleError: a hook gives something else than a Param or Flag.
        """
        return rebuild(self, Mapped(mapper))

    def clone(self) -> Self:
        """A module with the same values; parameters are shared, running states and Draws its own (M26, M97)."""
        return self._each(lambda path, leaf: leaf)

    def fork(self, device: Device | str) -> Self:
        """The module on a device, to train there: parameters are leaves of their own, and lazy ones stay lazy.

        Ids, settings and the tensors' autodiff association are kept, whatever
        that of `device` is: `train` and `valid` change it (M44). Use `to_device`
        where gradients shall flow back to this module (M40, M42).
        """
        return self._moved(Device(device), cut=True)

    def to_device(self, device: Device | str) -> Self:
        """The module on a device; its parameters are copies that gradients flow back through (M40, M41).

        A copy of what trains is no leaf: its gradient is that of the parameter
        it was copied from, the recorded copy is good for one backward pass, and
        an optimizer cannot step it; use `fork` to go on training there. A lazy
        parameter stays lazy, is a leaf of its own on the new device, whoever
        reads first, and shares its value with this module's (M47, D3).
        """
        return self._moved(Device(device), cut=False)

    def train(self) -> Self:
        """The module for training: everything autodiff, parameters and flags as configured (M51, M56).

        Raises:
            AutodiffError: a parameter that is to train was made by a recorded operation, as after `to_device` (M49).
        """
        return switched(self, TRAIN)

    def valid(self) -> Self:
        """A snapshot for inference: nothing autodiff, flags off; what is configured is kept for `train` (M51, M55)."""
        return switched(self, VALID)

    def set_require_grad(self, require: bool) -> Self:
        """The module with all parameters of floats configured to train, or none; flags stay as they are (M51, M53).

        On a device without autodiff that is remembered for `train` (M59).
        Integers, booleans and running states never train.

        Raises:
            AutodiffError: `require`, and a parameter was made by a recorded operation, as after `to_device` (M49).
        """
        return switched(self, REQUIRE_GRAD if require else NO_GRAD)

    def set_require_grad_group(self, group: ParamGroup, require: bool) -> Self:
        """As `set_require_grad`, of the parameters that `group` has (M52, M91).

        Raises:
            AutodiffError: as there.
            TypeError: `group` is no ParamGroup.
        """
        return switched(self, REQUIRE_GRAD if require else NO_GRAD, group)

    def no_grad(self) -> Self:
        """``set_require_grad(False)``. Flags stay on, so dropout goes on dropping; `valid` is for inference (M53)."""
        return self.set_require_grad(False)

    def freeze(self) -> Self:
        """The module with no parameter configured to train, and all flags off, now and as configured (M51)."""
        return switched(self, FREEZE)

    def freeze_group(self, group: ParamGroup) -> Self:
        """As `freeze`, of the parameters and flags that `group` has; ``group.paths(module)`` tells which (M52, M92).

        Raises:
            TypeError: `group` is no ParamGroup.
        """
        return switched(self, FREEZE, group)

    def unfreeze(self) -> Self:
        """The module with all parameters of floats configured to train, and all flags on, whatever they were (M54).

        Raises:
            AutodiffError: a parameter was made by a recorded operation, as after `to_device` (M49).
        """
        return switched(self, UNFREEZE)

    def unfreeze_group(self, group: ParamGroup) -> Self:
        """As `unfreeze`, of the parameters and flags that `group` has (M52).

        Raises:
            AutodiffError: as there.
            TypeError: `group` is no ParamGroup.
        """
        return switched(self, UNFREEZE, group)

    # Quantized and reparameterized modules

    def quantize_weights(self, quantizer: Quantizer) -> Self:
        """The module with the parameters of floats that `quantizer` concerns quantized; no running states (Q49, Q50).

        They cannot train (Q51). ``quantizer.report(module)`` tells what becomes of each, and what is left as it is.

        Raises:
            QuantizerError: some cannot be quantized; `.findings` has them all (Q58).
        """
        return quantized_weights(self, quantizer)

    def quantize_weights_group(self, quantizer: Quantizer, group: ParamGroup) -> Self:
        """As `quantize_weights`, of the parameters that `group` has, whatever the quantizer's own group (Q52).

        Raises:
            QuantizerError: as there.
            TypeError: `group` is no ParamGroup.
        """
        return quantized_weights(self, quantizer.set_param_group(group))

    def apply_reparameterization(self, reparameterizer: Reparameterizer) -> Self:
        """The module with what `reparameterizer` gives for each parameter of floats; running states not (A2, A3).

        Raises:
            ModuleError: a parameter has a reparameterization already (A4), or the answer cannot be attached (M18).
        """
        return reparameterized(self, reparameterizer)

    def apply_lora(self, lora: "Lora") -> Self:
        """The module frozen, with trainable adapters on the matrices that `lora` has (A14, A15); flags stay.

        Raises:
            ModuleError: a parameter has a reparameterization already.
        """
        return reparameterized(self, lora, "apply_lora")

    def apply_qlora(self, qlora: "QLora") -> Self:
        """As `apply_lora`, over parameters that are quantized first (A39).

        Raises:
            ModuleError: a parameter has a reparameterization already.
            QuantizerError: some cannot be quantized; `.findings` has them all.
        """
        return reparameterized(self, qlora, "apply_qlora")

    def materialize(self) -> Self:
        """The module that stores what layers see, without reparameterizations (A32); it trains as the bases did.

        A parameter without one stays as it is, lazy or quantized if it was (A33); the others are dense (A34).

        Raises:
            ModuleError: a reparameterization gives no floats of its base's rank.
        """
        return materialized(self)

    def replace(self, **fields: Any) -> Self:
        """A module of the same type with these fields, the rest shared; checked as at construction.

        ``__init__`` does not run, so configuration that was computed from a
        replaced field stays. A field that was skipped stays skipped. Running
        states and Draws of the new module are its own.

        Raises:
            PathError: the module has no such field.
        """
        unknown = [name for name in fields if name not in self._fields]
        if unknown:
            raise PathError(
                f"{type(self).__name__} has no field {unknown[0]!r}; its fields are {', '.join(self._fields) or 'none'}"
            )
        made = object.__new__(type(self))
        # Nodes and configuration that stay are taken as they are: what `skip` marked inside them reads unmarked.
        kept = {
            name: value if is_child or not isinstance(value, (list, tuple, dict)) else Skip(value, lasting=False)
            for name, value, is_child in self._entries()
            if name not in self._skipped
        }
        made._freeze({**self.fields(), **kept, **fields}, set(self._skipped))
        return made.clone()

    # Records

    def into_record(self) -> ModuleRecord:
        """A record of every parameter and running state, in visit order, and of the counts of Draws (R2).

        Lazy parameters are made (R5).
        """
        return recording.into_record(self)

    def into_record_group(self, group: ParamGroup) -> ModuleRecord:
        """A record of what `group` has; the rest is neither read nor made (R6)."""
        return recording.into_record(self, group)

    def try_load_record(self, record: ModuleRecord) -> LoadResult[Self]:
        """The module with the record's values, or why it cannot be; each tensor goes straight to its device (R29).

        A parameter that is loaded never makes its initial value (R21). The
        record's options say what may be missing, unused or converted.
        """
        return recording.try_load(self, record)

    def load_record(self, record: ModuleRecord) -> Self:
        """The module with the record's values.

        Raises:
            RecordValidationError: the record does not fit; the message names all that is wrong.
            RecordFormatError: the record's data is damaged.
            TypeError: `record` is no ModuleRecord.
        """
        return self.try_load_record(record).unwrap()

    def save_file(self, file: str | PathLike[str]) -> None:
        """Write the module's record as a burnpack file, all or nothing; ``.bpk`` is added to a bare name (R36, R38).

        Raises:
            RecordIoError: the file cannot be written; what was there before still is.
        """
        self.into_record().save(file)

    def try_load_file(self, file: str | PathLike[str]) -> LoadResult[Self]:
        """The module with a file's values, or why it cannot be (R37); burnpack, safetensors or GGUF."""
        try:
            with open_record(file) as record:
                return self.try_load_record(record)
        except RecordError as error:
            return LoadResult(None, error)

    def load_file(self, file: str | PathLike[str]) -> Self:
        """The module with a file's values.

        On CPU devices the parameters of a burnpack file, and those of a GGUF
        file that are not quantized, share the mapped file (D11): replace the
        file by renaming another over it, as `save_file` does, and never
        rewrite it in place.

        Raises:
            RecordIoError: the file cannot be read.
            RecordFormatError: it is no record, or damaged.
            RecordValidationError: it does not fit the module.
        """
        return self.try_load_file(file).unwrap()

    def _moved(self, device: Device, cut: bool) -> Self:
        def change(path: str, leaf: Leaf) -> Leaf:
            if isinstance(leaf, Param):
                return leaf._moved(device, cut)
            if isinstance(leaf, Flag):
                return leaf
            return leaf.value().to_device(device) if isinstance(leaf, RunningState) else leaf.to_device(device)

        return self._each(change, destination=device)

    def _each(self, change: Any, destination: Device | None = None) -> Self:
        """A tree of changed leaves; `change` gives a running state's new value, which gets a state of its own (M97)."""

        def one(path: str, leaf: Leaf) -> Leaf:
            changed = change(path, leaf)
            if not isinstance(leaf, RunningState):
                return changed
            return leaf._derived(leaf.value() if changed is leaf else changed)

        return rebuild(self, Each(one, destination))

    __copy__ = clone

    def __deepcopy__(self, memo: Any) -> Self:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} is not pickled; save it with save_file and build it anew to load it")


def _check_field(cls: type[Module], name: str) -> None:
    check_name(name, "")
    if any(name in vars(base).get("_reserved", ()) for base in cls.__mro__):
        raise PathError(f"{cls.__name__}: no field can be called {name!r}, a name that its base class uses")


Module._reserved = reserved_names(Module)


def _device_of(leaf: Leaf) -> Device | None:
    """Where a leaf's tensor is or will be; None for a flag."""
    if isinstance(leaf, Flag):
        return None
    return leaf.value().device if isinstance(leaf, RunningState) else leaf.device
