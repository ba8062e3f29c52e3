"""The `repr` of modules and their containers: a tree that tells what is where, short enough for one screen.

Each line is a module or a leaf: its name; its type with its configuration, or
its dtype and shape; then where it is, whether it is lazy, whether it is frozen
(configured not to train), and how many parameters it has. These are left out
where they are those of the module around. After a plus sign stands a parameter's
reparameterization. Parameters are counted once; if some stand twice, what
`num_params` counts beyond that is added as *tied*. Items of a list that follow
each other and are alike share a line; where only their configuration differs,
it tells the values. Nothing is made by showing it.
"""

import reprlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, TypeAlias

from engine import Tensor

from .draws import Draws
from .flag import Flag
from .param import Param
from .running_state import RunningState
from .tree import Leaf, Node, joined, leaves, num_elements

_WIDTH: Final = 110
_SETTINGS_WIDTH: Final = 60

_Texts: TypeAlias = tuple[str, ...]


def represent(node: Node) -> str:
    """The text of a module, or of a container of a module's children, which is headed by its type and length."""
    shown = node._shown
    part = _Parts().of_node("", shown, "")
    if shown is not node:
        part = replace(part, what=f"{type(node).__qualname__} of {part.what}")
    elif not node._container.startswith(("Struct:", "Enum:")):
        part = replace(part, what=f"{type(node).__qualname__} of {len(node._entries())}")
    return "\n".join(_lines(part, "", "", _Part((), "")))


# What is shown


@dataclass(frozen=True)
class _Part:
    """What one line shows, and what belongs to it: a module, a container or a leaf, or several that are alike."""

    names: _Texts  # its name; of several the first and the last
    what: str  # a module's type, "" for a container, else what a leaf is
    devices: _Texts = ()
    is_lazy: bool = False
    is_frozen: bool = False
    params: str = ""
    settings: tuple[tuple[str, _Texts], ...] = ()  # configuration by name, all values of several
    attached: str = ""  # the reparameterization of a parameter
    tied_to: _Texts = ()
    parts: "tuple[_Part, ...] | None" = None  # None for a leaf
    count: int = 1


class _Parts:
    """Makes the parts of one tree, in traversal order, and knows where each parameter stood first."""

    def __init__(self) -> None:
        self._first: dict[int, str] = {}

    def of_node(self, name: str, node: Node, path: str) -> _Part:
        kind, _, type_name = node._container.partition(":")
        is_module = kind in ("Struct", "Enum")
        settings: list[tuple[str, _Texts]] = []
        parts: list[_Part] = []
        for field, value, is_child in node._entries():
            if is_child:
                parts.append(self._of_child(field, value, joined(path, field)))
            elif is_module:
                settings.append((field, (brief(value),)))
            else:
                parts.append(_Part((field,), brief(value)))
        if not (is_module or parts):
            return _Part((name,), f"empty {'list' if kind in ('Vec', 'Array') else kind.lower()}")
        below = [leaf for _, leaf in leaves(node)]
        return _Part(
            (name,),
            type_name,
            devices=tuple(dict.fromkeys(str(_value(leaf).device) for leaf in below if not isinstance(leaf, Flag))),
            is_lazy=_are_lazy(below),
            is_frozen=_are_frozen(below),
            params=_params(below),
            settings=tuple(settings),
            parts=tuple(parts if is_module or kind == "Dict" else _runs(parts)),
        )

    def _of_child(self, name: str, child: Any, path: str) -> _Part:
        if isinstance(child, Node):
            return self.of_node(name, child._shown, path)
        if child is None or isinstance(child, Flag):
            return _Part((name,), repr(child))
        if isinstance(child, Draws):
            return _Part((name,), f"{child.count} so far")
        value = _value(child)
        notes = {RunningState: " running", Tensor: " constant"}
        what = f"{value.dtype} {list(value.shape)}{notes.get(type(child), '')}"
        place = child._bare if isinstance(child, Param) else child  # ties hold below a reparameterization
        first = path if isinstance(child, Tensor) else self._first.setdefault(id(place), path)
        return _Part(
            (name,),
            what,
            devices=(str(value.device),),
            is_lazy=_are_lazy([child]),
            is_frozen=_are_frozen([child]),
            attached=_attached_text(child),
            tied_to=() if first == path else (first,),
        )


def _value(leaf: Leaf) -> Any:
    """What tells the dtype, shape and device of a leaf that is no flag."""
    return leaf.value() if isinstance(leaf, RunningState) else leaf


def _attached_text(child: Any) -> str:
    """The name of a parameter's reparameterization and the shapes of what it holds; empty without one."""
    attached = child.reparameterization if isinstance(child, Param) else None
    if attached is None:
        return ""
    shapes = [f"{path} {list(_value(leaf).shape)}" for path, leaf in leaves(attached) if not isinstance(leaf, Flag)]
    return f" + {attached.NAME}" + (f" ({', '.join(shapes)})" if shapes else "")


def _are_lazy(below: Iterable[Leaf]) -> bool:
    """Whether there are parameters among these leaves and none has a value."""
    made = [leaf.is_initialized for leaf in below if isinstance(leaf, Param)]
    return bool(made) and not any(made)


def _are_frozen(below: Iterable[Leaf]) -> bool:
    """Whether there are parameters of floats among these leaves and none is configured to train."""
    training = [leaf.trainable for leaf in below if isinstance(leaf, Param) and leaf.kind == "float"]
    return bool(training) and not any(training)


def _params(below: list[Leaf]) -> str:
    """How many elements the parameters have, each once, and how many more `num_params` counts."""
    total = sum(map(num_elements, below))
    distinct = sum(map(num_elements, {id(leaf): leaf for leaf in below}.values()))
    tied = f" + {_short(total - distinct)} tied" if total > distinct else ""
    return f"{_short(distinct)} param{'' if distinct == 1 else 's'}{tied}" if total else ""


def _short(number: int) -> str:
    """A number in full below a million, then in millions or billions."""
    for unit, name in ((10**9, "B"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.1f}{name}"
    return f"{number:,}"


# Several in one line


def _runs(parts: Iterable[_Part]) -> Iterator[_Part]:
    """The parts, those that follow each other and are alike in one."""
    for _, run in groupby(parts, _structure):
        several = list(run)
        names = _each_once((several[0].names[0], several[-1].names[0]))
        yield _as_one(several, names, len(several))


def _structure(part: _Part, anywhere: bool = False) -> Any:
    """What alike parts have in common: all but names, the values of configuration, what they are tied to, or where."""
    return (
        part.what,
        part.devices if not anywhere else None,
        part.is_lazy,
        part.is_frozen,
        part.params,
        tuple(name for name, _ in part.settings),
        part.attached,
        bool(part.tied_to),
        part.parts and tuple((inner.names, inner.count, _structure(inner, anywhere)) for inner in part.parts),
    )


def _as_one(alike: Sequence[_Part], names: _Texts, count: int) -> _Part:
    """One part in the place of several of the same structure."""
    first = alike[0]
    inside = zip(*(part.parts or () for part in alike), strict=True)
    return replace(
        first,
        names=names,
        count=count,
        settings=tuple(
            (several[0][0], _each_once(value for _, values in several for value in values))
            for several in zip(*(part.settings for part in alike), strict=True)
        ),
        tied_to=_each_once(path for part in alike for path in part.tied_to),
        parts=first.parts and tuple(_as_one(several, several[0].names, several[0].count) for several in inside),
    )


def _each_once(texts: Iterable[str]) -> _Texts:
    return tuple(dict.fromkeys(texts))


def _differences(part: _Part, other: _Part, prefix: str) -> Iterator[str]:
    """What a part says inside that one of the same structure does not: configuration and ties."""
    for inner, inner_other in zip(part.parts or (), other.parts or (), strict=True):
        path = f"{prefix}{_name(inner)}"
        for (name, values), (_, values_other) in zip(inner.settings, inner_other.settings, strict=True):
            if values != values_other:
                yield f"{path}.{name}={_of_several(values)}"
        if inner.tied_to != inner_other.tied_to:
            yield f"{path} tied to {_of_several(inner.tied_to)}"
        yield from _differences(inner, inner_other, f"{path}.")


# The text


def _lines(part: _Part, prefix: str, times: str, around: _Part, indent: str = "") -> Iterator[str]:
    """The lines of a part inside the module `around`; a container has none of its own, its items bear its name.

    Args:
        part: what is shown.
        prefix: what is put before its name.
        times: of how many like containers around it is shown as one.
        around: the module of which devices, laziness and freezing are not said again.
        indent: of its first line.
    """
    if part.parts is None:
        yield _label(part, prefix, times, indent) + _leaf_text(part, around)
    elif not part.what:
        yield from _siblings(part.parts, f"{prefix}{_name(part)}.", times + _times(part), around, indent)
    else:
        heading = _heading(part, prefix, times, around, indent)
        line = f"{heading}: {', '.join(_short_item(leaf, part) for leaf in part.parts)}"
        if part.parts and _holds_only_leaves(part) and len(line) <= _WIDTH:
            yield line
            return
        yield heading
        yield from _siblings(part.parts, "", "", part, indent + "  ")


def _siblings(parts: tuple[_Part, ...], prefix: str, times: str, around: _Part, indent: str) -> Iterator[str]:
    """The lines of the parts of one module or container; one that is like an earlier one elsewhere has only one."""
    shown: dict[Any, _Part] = {}
    for part in parts:
        if part.what and part.parts and not _holds_only_leaves(part):
            like = shown.setdefault(_structure(part, anywhere=len(part.devices) == 1), part)
            if like is not part:
                differences = ", ".join(_differences(part, like, ""))
                line = f"{_heading(part, prefix, times, around, indent)}, like {prefix}{_name(like)}"
                line += f" but {differences}" if differences else ""
                if len(line) <= _WIDTH:
                    yield line
                    continue
        yield from _lines(part, prefix, times, around, indent)


def _holds_only_leaves(part: _Part) -> bool:
    return all(inner.parts is None for inner in part.parts or ())


def _label(part: _Part, prefix: str, times: str, indent: str) -> str:
    name = prefix + _name(part)
    return f"{indent}{name}: {times}{_times(part)}" if name else indent


def _times(part: _Part) -> str:
    return f"{part.count} x " if part.count > 1 else ""


def _name(part: _Part) -> str:
    return "-".join(part.names)


def _short_item(leaf: _Part, around: _Part) -> str:
    return f"{_name(leaf)} {_times(leaf)}{_leaf_text(leaf, around)}"


def _leaf_text(leaf: _Part, around: _Part) -> str:
    tied = f" tied to {_of_several(leaf.tied_to)}" if leaf.tied_to else ""
    return f"{leaf.what}{_state(leaf, around, ' ')}{_place(leaf, around)}{leaf.attached}{tied}"


def _heading(part: _Part, prefix: str, times: str, around: _Part, indent: str) -> str:
    params = f", {part.params}" if part.params else ""
    each = " each" if params and (times or part.count > 1) else ""
    label = _label(part, prefix, times, indent)
    place, state = _place(part, around), _state(part, around, ", ")
    return f"{label}{part.what}{_settings_text(part)}{place}{state}{params}{each}"


def _state(part: _Part, around: _Part, separator: str) -> str:
    lazy = f"{separator}lazy" if part.is_lazy and not around.is_lazy else ""
    return lazy + (f"{separator}frozen" if part.is_frozen and not around.is_frozen else "")


def _place(part: _Part, around: _Part) -> str:
    return f" on {', '.join(part.devices)}" if part.devices and part.devices != around.devices else ""


def _settings_text(part: _Part) -> str:
    if not part.settings:
        return ""
    text = ", ".join(f"{name}={_of_several(values)}" for name, values in part.settings)
    return f"({text if len(text) <= _SETTINGS_WIDTH else text[: _SETTINGS_WIDTH - 1] + '…'})"


def _of_several(texts: _Texts) -> str:
    return " | ".join(texts) if len(texts) <= 3 else f"{texts[0]} … {texts[-1]}"


# Configuration


class _Brief(reprlib.Repr):
    """A `repr` of bounded length that never fails."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxother = 40

    def repr_function(self, function: Any, level: int) -> str:
        return function.__name__

    repr_type = repr_builtin_function_or_method = repr_function


_BRIEF: Final = _Brief()


def brief(value: Any) -> str:
    """A `repr` of at most about 40 characters, on one line; functions and types by their name."""
    text = " ".join(_BRIEF.repr(value).split())
    return text if len(text) <= _BRIEF.maxother else f"{text[: _BRIEF.maxother - 1]}…"
