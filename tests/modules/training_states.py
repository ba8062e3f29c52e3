"""The states of parameters and flags as rule M51 and section 3 of the laws have them, written down by hand.

A value is *P* plain, *U* untracked on a device with autodiff, *L* a leaf that
retains its gradient, or *N* made by a recorded operation. `CELLS` says what
each call makes of it.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from engine import Tensor
from modules import Flag, ModuleMapper, Param, ParamGroup, ParamMappers

from .small_modules import AUTODIFF, numbers

VALUES: Final = "PULN"
ERROR: Final = "!"

CELLS: Final[dict[str, tuple[str, dict[bool, str], str]]] = {
    # call: configured trainability after it ("." as it was), values after P, U, L, N if a (is not), flag after it
    # (now and configured: T, F, "." as it was, "a" as configured)
    "set_require_grad(True)": ("T", {True: "PLL!", False: "PLL!"}, ".."),
    "set_require_grad(False)": ("F", {True: "PUUU", False: "PUUU"}, ".."),
    "no_grad": ("F", {True: "PUUU", False: "PUUU"}, ".."),
    "freeze": ("F", {True: "PUUU", False: "PUUU"}, "FF"),
    "unfreeze": ("T", {True: "PLL!", False: "PLL!"}, "TT"),
    "valid": (".", {True: "PPPP", False: "PPPP"}, "F."),
    "train": (".", {True: "LLL!", False: "UUUU"}, "a."),
    "fork": (".", {True: "PULU", False: "PULU"}, ".."),
    "fork elsewhere": (".", {True: "PULU", False: "PULU"}, ".."),
    "to_device": (".", {True: "PULN", False: "PULN"}, ".."),
    "to_device elsewhere": (".", {True: "PUNN", False: "PUNN"}, ".."),
    "map": (".", {True: "PULN", False: "PULN"}, ".."),
    "clone": (".", {True: "PULN", False: "PULN"}, ".."),
    "load_record": (".", {True: "PLLL", False: "PUUU"}, ".."),
}

CALLS: Final[dict[str, Callable[[Any], Any]]] = {
    "set_require_grad(True)": lambda module: module.set_require_grad(True),
    "set_require_grad(False)": lambda module: module.set_require_grad(False),
    "no_grad": lambda module: module.no_grad(),
    "freeze": lambda module: module.freeze(),
    "unfreeze": lambda module: module.unfreeze(),
    "valid": lambda module: module.valid(),
    "train": lambda module: module.train(),
    "fork": lambda module: module.fork("cpu:0"),
    "fork elsewhere": lambda module: module.fork("cpu:1"),
    "to_device": lambda module: module.to_device("cpu:0"),
    "to_device elsewhere": lambda module: module.to_device("cpu:1"),
    "map": lambda module: module.map(ModuleMapper()),
    "clone": lambda module: module.clone(),
    "load_record": lambda module: module.load_record(module.into_record()),
}

GROUP_CALLS: Final[dict[str, Callable[[Any, ParamGroup], Any]]] = {
    "set_require_grad(True)": lambda module, group: module.set_require_grad_group(group, True),
    "set_require_grad(False)": lambda module, group: module.set_require_grad_group(group, False),
    "freeze": lambda module, group: module.freeze_group(group),
    "unfreeze": lambda module, group: module.unfreeze_group(group),
}


class State(NamedTuple):
    """Of a parameter: value, configured trainability. Of a flag: "T" or "F", configured value."""

    value: str
    configured: bool


STATES: Final = [State(value, configured) for value in (*VALUES, *"TF") for configured in (True, False)]


def value_of(tensor: Tensor) -> str:
    """Which of P, U, L, N a tensor is."""
    assert tensor.device.is_autodiff or not tensor.is_tracked  # M50
    assert tensor.is_tracked or not tensor.is_require_grad
    if not tensor.device.is_autodiff:
        return "P"
    return "L" if tensor.is_require_grad else "N" if tensor.is_tracked else "U"


def state_of(leaf: Param | Flag) -> State:
    """The state of a parameter, which is made if it is lazy, or of a flag."""
    if isinstance(leaf, Flag):
        return State("T" if leaf.is_enabled else "F", leaf.configured)
    return State(value_of(leaf.base()), leaf.trainable)


def leaf_in(state: State, id: int = 7) -> Any:
    """A parameter on cpu:0, or a flag, in a state."""
    if state.value in "TF":
        return Flag(state.configured, id).map(lambda _: state.value == "T")
    tensor = {
        "P": lambda: numbers(2),
        "U": lambda: numbers(2, device=AUTODIFF),
        "L": lambda: numbers(2, device=AUTODIFF).require_grad(),
        "N": lambda: numbers(2, device="cpu:1+autodiff").require_grad().to_device("cpu:0"),
    }[state.value]()
    return Param.initialized(id, tensor, ParamMappers(trainable=state.configured))


def after(call: str, state: State) -> State:
    """The state after a call; its value is `ERROR` where the call is refused."""
    configured, values, flag = CELLS[call]
    if state.value in "TF":
        now = {".": state.value, "a": "T" if state.configured else "F"}.get(flag[0], flag[0])
        return State(now, state.configured if flag[1] == "." else flag[1] == "T")
    value = values[state.configured][VALUES.index(state.value)]
    return State(value, state.configured if configured == "." else configured == "T")
