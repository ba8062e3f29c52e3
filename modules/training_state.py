"""The training state of a module: what `train`, `valid` and the gradient switches do to each leaf.

A parameter has a trainability that is configured, and a value: plain,
untracked, a leaf that retains its gradient, or made by a recorded operation. A
flag has a value now and a configured one. A *switch* is one row of the table
of M51: it says what becomes of them. No switch reads a value, so what is lazy
stays lazy (M63); none can make a running state train (M96).

A value that a recorded operation made, as `to_device` makes it, cannot become
a leaf. A switch that would make it one is refused before anything is done (M49).
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from engine import AutodiffError, Tensor

from .flag import Flag
from .group import ParamGroup, check_group
from .param import Param
from .running_state import RunningState
from .tree import Each, Leaf, Node, leaves, rebuild

M = TypeVar("M", bound=Node)

_SHOWN: Final = 20  # paths in a message


class Switch(NamedTuple):
    """What a method does to each kind of leaf.

    Attributes:
        name: of the method, for messages.
        trains: whether a parameter's value shall be a leaf, where its device has autodiff.
        param: the parameter afterwards; the same one if nothing changes.
        flag: the value of the flag and its configured value afterwards.
        tensor: a constant, or the value of a running state, afterwards.
    """

    name: str
    trains: Callable[[Param], bool]
    param: Callable[[Param], Param]
    flag: Callable[[Flag], tuple[bool, bool]]
    tensor: Callable[[Tensor], Tensor]


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _as_it_is(flag: Flag) -> tuple[bool, bool]:
    return flag.is_enabled, flag.configured


def _require(name: str, require: bool, flag: Callable[[Flag], tuple[bool, bool]]) -> Switch:
    return Switch(
        name,
        trains=lambda param: require and param.kind == "float",
        param=lambda param: param.set_require_grad(require),
        flag=flag,
        tensor=_unchanged,
    )


REQUIRE_GRAD: Final = _require("set_require_grad", True, _as_it_is)
NO_GRAD: Final = _require("set_require_grad", False, _as_it_is)
FREEZE: Final = _require("freeze", False, lambda flag: (False, False))
UNFREEZE: Final = _require("unfreeze", True, lambda flag: (True, True))
TRAIN: Final = Switch(
    "train",
    trains=lambda param: param.trainable,
    param=lambda param: param._associated(autodiff=True),
    flag=lambda flag: (flag.configured, flag.configured),
    tensor=Tensor.autodiff,
)
VALID: Final = Switch(
    "valid",
    trains=lambda param: False,
    param=lambda param: param._associated(autodiff=False),
    flag=lambda flag: (False, flag.configured),
    tensor=Tensor.without_autodiff,
)


def switched(module: M, switch: Switch, group: ParamGroup | None = None) -> M:
    """The module after a switch; with a `group`, of whose parameters and flags only.

    One result per object goes to all its places; those that a group leaves out
    keep theirs, and the places part (D8).

    Raises:
        AutodiffError: a parameter that shall train was made by a recorded operation; the message names all (M49).
        TypeError: `group` is no ParamGroup.
    """

    def concerns(path: str, leaf: Leaf) -> bool:
        return group is None or not isinstance(leaf, (Param, Flag)) or group.matches(leaf.id, path)

    def change(path: str, leaf: Leaf) -> Leaf:
        if isinstance(leaf, Param):
            return switch.param(leaf)
        if isinstance(leaf, Flag):
            enabled, configured = switch.flag(leaf)
            if (enabled, configured) == (leaf.is_enabled, leaf.configured):
                return leaf
            return leaf.with_value(configured).map(lambda _: enabled)
        if isinstance(leaf, RunningState):
            return leaf._derived(switch.tensor(leaf.value()))
        return switch.tensor(leaf)

    name = switch.name if group is None else f"{switch.name}_group"
    if group is not None:
        check_group(name, group)
    recorded = [
        path
        for path, leaf in leaves(module)
        if isinstance(leaf, Param) and leaf._is_recorded and switch.trains(leaf) and concerns(path, leaf)
    ]
    if recorded:
        raise AutodiffError(_refusal(name, recorded))
    return rebuild(module, Each(change, concerns=concerns))


def _refusal(name: str, paths: list[str]) -> str:
    shown = ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")
    were = "was" if len(paths) == 1 else "were"
    return (
        f"{name}: {shown} {were} moved by to_device, or made by another recorded operation, and cannot train; "
        "move a module with fork to train it"
    )
