"""What a step of `adapt` did to the entries of a record, found by comparing what went in with what came out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .entry import RecordEntry

_SHOWN = 5


@dataclass(frozen=True)
class StepChanges:
    """What one step did. As text: a line of counts, and below it the first of each kind.

    Attributes:
        step: what the step is called.
        renamed: pairs of old and new path, for entries that are the same otherwise.
        changed: path, and what the entry was and is, for entries of another dtype or shape.
        made: paths of new entries, such as joined ones.
        dropped: paths of entries that are gone, those that went into joined ones too.
        untouched: how many stayed as they were.
    """

    step: str
    renamed: tuple[tuple[str, str], ...]
    changed: tuple[tuple[str, str, str], ...]
    made: tuple[str, ...]
    dropped: tuple[str, ...]
    untouched: int

    @classmethod
    def between(
        cls, step: object, before: Mapping[str, RecordEntry], after: Mapping[str, RecordEntry]
    ) -> "StepChanges":
        """What a step did that was given `before` and gave `after`."""
        paths: dict[int, list[str]] = {}  # of the entries, which are the same objects where a step left them
        for path, entry in before.items():
            paths.setdefault(id(entry), []).append(path)
        renamed: list[tuple[str, str]] = []
        changed: list[tuple[str, str, str]] = []
        made: list[str] = []
        untouched = 0
        origins: set[str] = set()
        for path, entry in after.items():
            candidates = paths.get(id(entry), ())
            if path in candidates:
                untouched += 1
                origins.add(path)
            elif candidates:
                origin = next((one for one in candidates if one not in origins), candidates[0])
                origins.add(origin)
                renamed.append((origin, path))
            elif path in before:
                origins.add(path)
                changed.append((path, _described(before[path]), _described(entry)))
            else:
                made.append(path)
        dropped = tuple(path for path in before if path not in origins)
        name = getattr(step, "__name__", type(step).__name__)
        return cls(str(name), tuple(renamed), tuple(changed), tuple(made), dropped, untouched)

    def __str__(self) -> str:
        counts = {
            "renamed": len(self.renamed),
            "changed": len(self.changed),
            "made": len(self.made),
            "dropped": len(self.dropped),
        }
        said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        lines = [f"{self.step}: {said or 'nothing changed'}, {self.untouched} untouched"]
        lines += _shown(f"{old} -> {new}" for old, new in self.renamed)
        lines += _shown(f"{path}: {old} -> {new}" for path, old, new in self.changed)
        lines += _shown(f"made {path}" for path in self.made)
        lines += _shown(f"dropped {path}" for path in self.dropped)
        return "\n".join(lines)


def _described(entry: RecordEntry) -> str:
    return f"{entry.dtype} {list(entry.shape)}"


def _shown(texts: Iterable[str]) -> list[str]:
    all_ = list(texts)
    more = [f"  … and {len(all_) - _SHOWN} more"] if len(all_) > _SHOWN else []
    return [f"  {text}" for text in all_[:_SHOWN]] + more
