"""A version of a module in the model of the rules; see `model_adapter`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from .group_expressions import Group, matched
from .model_leaves import Cell, Leaf, RefusalError, Switch, Weight
from .spec_tree import StructSpec, TreeSpec, attached_at, places

SEEN: Final = ("param", "running")


@dataclass(frozen=True)
class Version:
    """A handle: the leaves and plain tensors of a module by path.

    All versions share the first one's cells by path, and the groups that were
    kept, by name.
    """

    spec: TreeSpec
    leaves: Mapping[str, Leaf]
    cells: Mapping[str, Cell]
    kept: dict[str, Group]

    @property
    def ids(self) -> dict[str, int]:
        """The ids of what visitors see, by path, in order."""
        return {path: leaf.id for path, leaf in self.leaves.items() if isinstance(leaf, Switch) or leaf.role in SEEN}

    def with_attached(
        self, held: "Mapping[str, tuple[str, StructSpec] | None]", leaves: Mapping[str, Leaf]
    ) -> "Version":
        """The version with this attached to the parameters at some paths, or nothing; leaves in the tree's order."""
        spec = attached_at(self.spec, held)
        return replace(self, spec=spec, leaves={path: leaves[path] for path in places(spec) if path in leaves})

    def each(self, change: Callable[[Leaf], Leaf], group: Group | None = None) -> "Version":
        """One result per object, in all its places that the group has (D8); running states are always its own (M97).

        Raises:
            RefusalError: `change` does, and the path is added to its message.
        """
        chosen = set(self.leaves) if group is None else {*matched(group, self.ids, self.kept)}
        made: dict[int, Leaf] = {}
        leaves = dict(self.leaves)
        for path, leaf in self.leaves.items():
            running = isinstance(leaf, Weight) and leaf.role == "running"
            if path not in chosen and not running:
                continue
            if id(leaf) not in made:
                try:
                    changed = change(leaf)
                except RefusalError as error:
                    raise RefusalError(error.refused.kind, f"{path}: {error.refused.message}") from error
                made[id(leaf)] = replace(leaf) if running and changed is leaf else changed
            leaves[path] = made[id(leaf)]
        return replace(self, leaves=leaves)
