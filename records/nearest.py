"""The path that somebody probably meant."""

import difflib
from collections.abc import Iterable

_COMPARED = 200  # paths that are compared letter by letter; the others differ from `path` in more components


def nearest(path: str, others: Iterable[str]) -> str | None:
    """The path among `others` that is most like `path`; of equally near ones the first, None if there are none.

    Components that both have in the same places, counted from either end,
    decide first, then the letters.
    """
    components = path.split(".")
    ranked = sorted(others, key=lambda other: -_common(components, other.split(".")))[:_COMPARED]
    if not ranked:
        return None
    matcher = difflib.SequenceMatcher(b=path, autojunk=False)
    best, best_score = ranked[0], (-1.0, -1.0)
    for other in ranked:
        matcher.set_seq1(other)
        score = _common(components, other.split(".")), matcher.ratio()
        if score > best_score:
            best, best_score = other, score
    return best


def _common(one: list[str], other: list[str]) -> float:
    """How many components are the same, of the longer path's: from the front, and then from the end."""
    length = min(len(one), len(other))
    front = next((at for at in range(length) if one[at] != other[at]), length)
    back = next((at for at in range(length - front) if one[-1 - at] != other[-1 - at]), length - front)
    return (front + back) / max(len(one), len(other))
