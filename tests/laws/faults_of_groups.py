"""Faults of parameter groups; see `faults`."""

import re
from collections.abc import Iterable
from typing import Any

from modules import Module, Param, ParamGroup, RunningState, group
from modules.tree import leaves

from .faults import Patch, fault


@fault("X20 a union drops what its sides exclude", "L46", "L47")
def _x20(patch: Patch) -> None:
    original = ParamGroup.__or__

    def bare(one: ParamGroup) -> ParamGroup:
        chain = one._chain
        if chain is None or chain.operator != "&":
            return one
        (_, first), *others = [(sign, part) for sign, part in chain.parts if sign != "-"]
        for _, part in others:
            first = first & part
        return first

    patch.setattr(ParamGroup, "__or__", lambda self, other: original(bare(self), bare(other)))


class _Whole:
    """A pattern that must match all of a text."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.compiled = re.compile(pattern)

    def search(self, text: str) -> Any:
        return self.compiled.fullmatch(text)


@fault("X21 a regular expression must match the whole path", "L45")
def _x21(patch: Patch) -> None:
    original = group._compiled

    def compiled(name: str, patterns: Iterable[str]) -> list[Any]:
        return [_Whole(pattern.pattern) for pattern in original(name, patterns)]

    patch.setattr(group, "_compiled", compiled)


@fault("X22 a group matches on the last component", "L45", "L50")
def _x22(patch: Patch) -> None:
    original = ParamGroup.matches

    def matches(self: ParamGroup, id: Any, path: str | None = None) -> bool:
        return original(self, id, path and path.split(".")[-1])

    patch.setattr(ParamGroup, "matches", matches)


@fault("Y41 a piece must be a whole component", "L45")
def _y41(patch: Patch) -> None:
    original = ParamGroup.from_predicates.__func__

    def from_predicates(cls: Any, pieces: Iterable[str]) -> ParamGroup:
        wanted = list(pieces)
        if not wanted:
            return original(cls, wanted)
        return cls._by_path("", lambda path: all(piece in path.split(".") for piece in wanted))

    patch.setattr(ParamGroup, "from_predicates", classmethod(from_predicates))


@fault("Y42 the ids of a module are those without its flags'", "L45", "L52")
def _y42(patch: Patch) -> None:
    def ids_from_module(cls: Any, tree: Any) -> ParamGroup:
        return cls.from_ids(leaf.id for _, leaf in leaves(tree) if isinstance(leaf, (Param, RunningState)))

    patch.setattr(ParamGroup, "ids_from_module", classmethod(ids_from_module))


@fault("Y43 a difference forgets all that is excluded but the last", "L46", "L47")
def _y43(patch: Patch) -> None:
    original = ParamGroup.__sub__

    def minus(self: ParamGroup, other: ParamGroup) -> ParamGroup:
        chain = self._chain
        first = chain.parts[0][1] if chain is not None and chain.parts[-1][0] == "-" else self
        return original(first, other)

    patch.setattr(ParamGroup, "__sub__", minus)


@fault("Y44 any of nothing is everything", "L48")
def _y44(patch: Patch) -> None:
    original = ParamGroup.from_any_predicates.__func__

    def from_any_predicates(cls: Any, pieces: Iterable[str]) -> ParamGroup:
        wanted = list(pieces)
        return original(cls, wanted or [""])

    patch.setattr(ParamGroup, "from_any_predicates", classmethod(from_any_predicates))


class _Late:
    """A pattern that is looked at when it is needed."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def search(self, text: str) -> Any:
        return re.search(self.pattern, text)


@fault("Y45 a bad pattern is noticed when it is asked", "L49")
def _y45(patch: Patch) -> None:
    patch.setattr(group, "_compiled", lambda name, patterns: [_Late(pattern) for pattern in patterns])


@fault("Y46 freeze_group leaves flags alone", "L34", "L50", "L51")
def _y46(patch: Patch) -> None:
    patch.setattr(Module, "freeze_group", lambda self, chosen: self.set_require_grad_group(chosen, False))


@fault("Y47 a group that matches nothing is taken for all", "L50", "L51")
def _y47(patch: Patch) -> None:
    original = Module.unfreeze_group

    def unfreeze_group(self: Module, chosen: ParamGroup) -> Module:
        return original(self, chosen) if chosen.paths(self) else self.unfreeze()

    patch.setattr(Module, "unfreeze_group", unfreeze_group)


@fault("Y48 a group of ids goes by the paths that had them", "L52")
def _y48(patch: Patch) -> None:
    original = ParamGroup.ids_from_module.__func__

    def ids_from_module(cls: Any, tree: Any) -> ParamGroup:
        found = original(cls, tree)
        return found | cls.from_paths([path for path, _ in leaves(tree)])

    patch.setattr(ParamGroup, "ids_from_module", classmethod(ids_from_module))


@fault("Y49 of a list of ids only the first counts", "L34", "L45")
def _y49(patch: Patch) -> None:
    original = ParamGroup.from_ids.__func__

    def from_ids(cls: Any, ids: Iterable[Any]) -> ParamGroup:
        return original(cls, list(ids)[:1])

    patch.setattr(ParamGroup, "from_ids", classmethod(from_ids))
