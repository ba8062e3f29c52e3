"""The display of a module: its attributes as text, as Burn writes it.

Each attribute stands on a line of its own, or all on one; parameters show
rank, shape and kind, configuration its ``repr`` (M101). Nothing is made by
displaying it: a lazy parameter shows its declared shape (M103). The `repr` of
a module is another text, in `modules.representation`.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from engine import Tensor

from .containers import as_child
from .draws import Draws
from .errors import ModuleError
from .flag import Flag
from .param import Param
from .running_state import RunningState
from .tree import Node, num_params

_INDENTATION = 2


@dataclass(frozen=True)
class DisplaySettings:
    """How a module is displayed; None means that it is not set here (M102).

    What the caller of `display` sets wins over what a module sets, and that
    over what the modules below it set.

    Attributes:
        show_param_id: whether parameters show their ids; else not.
        show_all_attributes: whether modules show their fields instead of a content of their own; else not.
        show_num_parameters: whether modules show the number of their parameters; else they do.
        new_line_after_attribute: whether each attribute has a line of its own; else it has.
        indentation_size: spaces per level, 0 or more; else 2.

    Raises:
        ModuleError: `indentation_size` is negative.
    """

    show_param_id: bool | None = None
    show_all_attributes: bool | None = None
    show_num_parameters: bool | None = None
    new_line_after_attribute: bool | None = None
    indentation_size: int | None = None

    def __post_init__(self) -> None:
        if self.indentation_size is not None and self.indentation_size < 0:
            raise ModuleError(f"indentation_size is {self.indentation_size}; it must be 0 or more")

    def over(self, other: "DisplaySettings") -> Self:
        """These settings, and where one is not set, that of `other`."""
        unset = [field.name for field in fields(self) if getattr(self, field.name) is None]
        return replace(self, **{name: getattr(other, name) for name in unset})


def display(value: Any, settings: DisplaySettings | None = None) -> str:
    """The text of a module, a container of modules, or anything else that can be a child (M101).

    Args:
        value: what is displayed; configuration shows its ``repr``.
        settings: those given win over the modules' own.
    """
    return _text(_as_walked(value), settings or DisplaySettings(), 1)


def _as_walked(value: Any) -> Any:
    """A value as walks see it; what no module could hold stays as it is, and shows its ``repr``."""
    try:
        return as_child(value, "")[0]
    except ModuleError:
        return value


def _text(value: Any, settings: DisplaySettings, level: int) -> str:
    """The text of a child as walks see it, or of configuration; `level` is that of its attributes."""
    match value:
        case Param():
            shown_id = f", id: {value.id}" if settings.show_param_id else ""
            return f"ParamTensor {{{_shape(value)}, kind: {value.kind}{shown_id}}}"
        case RunningState():
            return "RunningState"
        case Tensor():
            return f"Tensor {{{_shape(value)}}}"
        case Node():
            return _block(value._shown, settings, level)
        case Flag():
            return "enabled" if value.is_enabled else "disabled"
        case _:
            return repr(value)


def _shape(value: Param | Tensor) -> str:
    return f"rank: {len(value.shape)}, shape: {list(value.shape)}"


def _block(node: Node, given: DisplaySettings, level: int) -> str:
    """A heading, then the attributes in braces; the heading alone if there are none."""
    is_module = node._container.startswith(("Struct:", "Enum:"))
    settings = given.over(node.display_settings()) if is_module else given  # pyright: ignore[reportAttributeAccessIssue]
    heading = _heading(node)
    attributes = [f"{name}: {_text(value, settings, level + 1)}" for name, value in _content(node, settings)]
    if not attributes:
        return heading
    if is_module and settings.show_num_parameters is not False and (count := num_params(node)):
        attributes.append(f"params: {count}")
    if settings.new_line_after_attribute is False:
        return f"{heading} {{{', '.join(attributes)}}}"
    step = _INDENTATION if settings.indentation_size is None else settings.indentation_size
    lines = "".join(f"{' ' * (level * step)}{attribute}\n" for attribute in attributes)
    return f"{heading} {{\n{lines}{' ' * ((level - 1) * step)}}}"


def _content(node: Node, settings: DisplaySettings) -> list[tuple[str, Any]]:
    """The attributes to show, values as walks see them; Draws are not shown, as Burn has none."""
    kind = node._container.partition(":")[0]
    if kind in ("Struct", "Enum") and not settings.show_all_attributes:
        summary = node.display_content()  # pyright: ignore[reportAttributeAccessIssue]
        if summary is not None:
            return [(name, _as_walked(value)) for name, value in summary]
    entries = [(name, value) for name, value, _ in node._entries() if not isinstance(value, Draws)]
    return [("_0" if kind == "Enum" else name, value) for name, value in entries]


def _heading(node: Node) -> str:
    """The name of a module's type or active variant, or how long a container is (M101)."""
    kind, _, name = node._container.partition(":")
    entries = node._entries()
    match kind:
        case "Struct":
            return name
        case "Enum":
            return entries[0][0]
        case "Array":
            return f"[0..{len(entries)}]"
        case "Tuple":
            return f"({', '.join(f'L{index}' for index in range(len(entries)))})"
        case _:
            return f"{kind}<0..{len(entries)}>"
