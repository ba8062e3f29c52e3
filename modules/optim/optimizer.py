"""What all optimizers do: walk over a module, update what has a gradient, and keep state by parameter id.

An optimizer is the mutable thing beside a module that is a value: a *step*
makes a new module, and changes what the optimizer keeps. What it keeps for a
parameter, its *state*, is found by the parameter's id, so that it outlives the
module that was stepped: clones, moves, and records of module and optimizer
continue where they were (L18). It lies on the parameter's device (P60).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, final

from engine import AutodiffError, Gradients, Tensor, zeros
from engine.updates import state_dtype
from modules.errors import ModuleError
from modules.group import ParamGroup
from modules.module import Module
from modules.param import Param
from modules.tree import Leaf, leaves
from records import ModuleRecord, ParamId

from . import recording
from .setting import Setting, Values
from .state import State

M = TypeVar("M", bound=Module)

Groups: TypeAlias = Iterable[tuple[ParamGroup, Values]]
"""Pairs of a group and the settings that its parameters have in place of the optimizer's; the first match wins.

A group may have nothing of a module: ``group.paths(module)`` tells what it has.
"""


class Optimizer(ABC):
    """Base of SGD, Adam and AdamW. Its class attributes of type `Setting` are its settings.

    Args:
        groups: settings of some parameters.
        settings: a value for each setting.

    Raises:
        ModuleError: a setting has no such value, or a group names one that there is not.
    """

    __slots__ = ("_groups", "_settings", "_settings_of_groups", "_states")

    KEPT: ClassVar[tuple[str, ...]] = ()  # names of the tensors that a state holds
    COUNTS: ClassVar[bool] = False  # whether a state counts the steps

    _settings: Values
    _groups: tuple[tuple[ParamGroup, Values], ...]  # as given
    _settings_of_groups: tuple[tuple[ParamGroup, Values], ...]  # with the optimizer's where a group has none
    _states: Mapping[ParamId, State]  # replaced as a whole, never changed

    def __init__(self, groups: Groups, /, **settings: Any) -> None:
        self._states = {}
        self._set(settings, groups)

    @property
    def groups(self) -> tuple[tuple[ParamGroup, Values], ...]:
        """Pairs of a group and the settings that its parameters have; may be assigned between steps."""
        return tuple((group, dict(own)) for group, own in self._groups)

    @groups.setter
    def groups(self, groups: Groups) -> None:
        self._set(self._settings, groups)

    def step(self, module: M, gradients: Gradients) -> M:
        """The module with every parameter updated that has a gradient; the others are as they were.

        Gradients of other leaves are left aside: two modules may be trained by
        one loss, each with an optimizer of its own. So gradients of which only
        some are of this version of the module make a step for those alone:
        ``param.grad(gradients)`` is None for a parameter that stays as it is.

        An updated parameter is a leaf, with the id and settings that it had.
        Places that hold one parameter are updated once and stay tied (D8); a
        group has a tied parameter if it matches one of its places.

        Args:
            module: what the gradients were computed with.
            gradients: of a loss.

        Raises:
            AutodiffError: there are gradients, and none is of a parameter of this module.
            ModuleError: the state of a parameter is of another shape or dtype, or two parameters that have state
                share an id.
        """
        if not isinstance(module, Module):
            raise TypeError(f"{self._name}.step takes a Module and its gradients, not a {type(module).__qualname__}")
        if not isinstance(gradients, Gradients):
            raise TypeError(f"{self._name}.step takes the Gradients that backward() gives, not {gradients!r:.80}")
        step = _Step(self, module, gradients)
        updated = module._each(step.leaf)
        if len(gradients) and not step.is_used:
            raise AutodiffError(
                f"{self._name}.step: none of the gradients is of a parameter of this module; they are of another "
                f"version of it. {_why_another(module)}"
            )
        self._states = {**self._states, **step.states}
        return updated

    def into_record(self) -> ModuleRecord:
        """A record of the states, without the settings: entries and scalars named by the parameters' ids.

        Put it `under` a prefix beside a module's record, and one file holds
        both: ``model.into_record().under("model") | optimizer.into_record().under("optimizer")``.
        The state of a parameter that the module has no more is in it too.
        """
        return recording.into_record(self._states, self.COUNTS)

    def load_record(self, record: ModuleRecord, module: Module) -> None:
        """Take the states of a record in place of those that there are, each onto its parameter's device.

        The record's options say what may be missing or unused, and whether a
        state of another dtype is converted. ``allow_unused=True`` drops the
        states of parameters that were replaced or removed.

        Args:
            record: of an optimizer that keeps the same: Adam and AdamW take each other's.
            module: with the ids of the parameters that the states are of: load its record first.

        Raises:
            RecordValidationError: the record does not fit; the optimizer keeps what it has.
            TypeError: `record` is no ModuleRecord.
        """
        self._states = recording.states_of(record, module, self._name, self.KEPT, self.COUNTS)

    @property
    def _name(self) -> str:
        return type(self).__name__

    @abstractmethod
    def _updated(self, value: Tensor, gradient: Tensor, state: State, settings: Values) -> tuple[Tensor, State]:
        """The new value and state of one parameter, both without autodiff; all tensors lie on its device."""

    def _keeps(self, settings: Values) -> bool:
        """Whether there is a state for a parameter of these settings."""
        return bool(self.KEPT)

    def _conflict(self, settings: Values) -> str | None:
        """Why settings do not go together; None if they do."""
        return None

    # Settings

    @classmethod
    def _known(cls) -> dict[str, Setting[Any]]:
        bases = reversed(cls.__mro__)
        return {name: value for base in bases for name, value in vars(base).items() if isinstance(value, Setting)}

    def _configure(self, changes: Values) -> None:
        self._set({**self._settings, **changes}, self._groups)

    def _set(self, settings: Values, groups: Groups) -> None:
        """Check the settings, alone and with those of each group in their place, and take them over."""
        own = self._checked(self._name, settings)
        self._refuse_conflict(self._name, own)
        given: list[tuple[ParamGroup, Values]] = []
        whole: list[tuple[ParamGroup, Values]] = []
        for number, (group, values) in enumerate(self._pairs(groups)):
            what = f"{self._name}.groups[{number}]"
            given.append((group, self._checked(what, values)))
            whole.append((group, {**own, **given[-1][1]}))
            self._refuse_conflict(what, whole[-1][1])
        self._settings, self._groups, self._settings_of_groups = own, tuple(given), tuple(whole)

    def _checked(self, what: str, settings: Values) -> Values:
        known = self._known()
        for name in settings:
            if name not in known:
                raise ModuleError(f"{what}: there is no setting {name!r}; there are {', '.join(known)}")
        return {name: known[name].check(f"{what}: {name}", value) for name, value in settings.items()}

    def _refuse_conflict(self, what: str, settings: Values) -> None:
        reason = self._conflict(settings)
        if reason is not None:
            raise ModuleError(f"{what}: {reason}")

    def _pairs(self, groups: Any) -> Iterable[tuple[ParamGroup, Values]]:
        if isinstance(groups, (Mapping, str)) or not isinstance(groups, Iterable):
            raise ModuleError(f"{self._name}.groups are pairs of a ParamGroup and its settings, not {groups!r:.80}")
        for pair in groups:
            match pair:
                case (ParamGroup() as group, Mapping() as values):
                    yield group, values
                case _:
                    raise ModuleError(
                        f"{self._name}.groups: {pair!r:.80} is no pair of a ParamGroup and its settings, such as "
                        "(ParamGroup.from_regex('bias$'), {'weight_decay': 0})"
                    )

    def _settings_at(self, id: ParamId, paths: Iterable[str]) -> Values:
        """The settings of a parameter that stands at these paths."""
        for group, settings in self._settings_of_groups:
            if any(group.matches(id, path) for path in paths):
                return settings
        return self._settings

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._settings.items())
        groups = f", groups={self._groups!r}" if self._groups else ""
        return f"{self._name}({settings}{groups}; state of {len(self._states)} parameters)"


@final
class _Step:
    """One step through a module: new leaves, and the states that go with them."""

    def __init__(self, optimizer: Optimizer, module: Module, gradients: Gradients) -> None:
        self._optimizer: Final = optimizer
        self._gradients: Final = gradients
        self._places: Final = _places(module) if optimizer._groups else {}
        self._stepped: Final[dict[ParamId, str]] = {}
        self.states: Final[dict[ParamId, State]] = {}
        self.is_used = False

    def leaf(self, path: str, leaf: Leaf) -> Leaf:
        """The updated parameter, or the leaf itself where there is no gradient of it."""
        gradient = leaf.grad(self._gradients) if isinstance(leaf, Param) else None
        if not isinstance(leaf, Param) or gradient is None:
            return leaf
        self.is_used = True
        optimizer = self._optimizer
        settings = optimizer._settings_at(leaf.id, self._places.get(id(leaf), ()))
        keeps = optimizer._keeps(settings)
        value = leaf.base().without_autodiff()
        state = self._state(path, leaf, value) if keeps else State()
        new_value, new_state = optimizer._updated(value, gradient, state, settings)
        if keeps:
            self.states[leaf.id] = new_state
        return leaf._with_value(new_value.autodiff().set_require_grad(True))

    def _state(self, path: str, param: Param, value: Tensor) -> State:
        """The state of a parameter, on its device; zeros at its first step."""
        other = self._stepped.setdefault(param.id, path)
        step = f"{self._optimizer._name}.step"
        if other != path:
            raise ModuleError(
                f"{step}: {other} and {path} are two parameters with the id {param.id}, by which their state is "
                "kept; give one of them an id of its own, with_id(ParamId.new()), or tie them: one Param in both places"
            )
        of = state_dtype(value.dtype)
        found = self._optimizer._states.get(param.id)
        if found is None:
            kept = {name: zeros(value.shape, device=value.device, dtype=of) for name in self._optimizer.KEPT}
            return State(kept)
        for name, tensor in found.kept.items():
            if tensor.shape != value.shape or tensor.dtype != of:
                raise ModuleError(
                    f"{step}: {path} has shape {list(value.shape)} and needs a {name} of {of}; what is kept "
                    f"for its id has shape {list(tensor.shape)} and {tensor.dtype}; begin with a new optimizer"
                )
        return State({name: tensor.to_device(value.device) for name, tensor in found.kept.items()}, found.time)


def _why_another(module: Module) -> str:
    """How gradients may have come to be of another version of a module, and what to do."""
    for path, leaf in leaves(module):
        if isinstance(leaf, Param) and leaf._is_recorded:
            return (
                f"{path} was moved by to_device, or made by another recorded operation, and is no leaf any more: its "
                "gradient is that of what it was copied from; use fork to go on training on another device"
            )
    return "A step, a map and a load make new leaves: compute the loss with the module that is stepped"


def _places(module: Module) -> dict[int, list[str]]:
    """The paths of each parameter, by the id of the object."""
    found: dict[int, list[str]] = {}
    for path, leaf in leaves(module):
        if isinstance(leaf, Param):
            found.setdefault(id(leaf), []).append(path)
    return found
