"""What a check of a file's bytes found."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One thing: damage, or a note about something that readers take and writers do not make."""

    is_damage: bool
    text: str


def damage(text: str) -> Finding:
    """Something that the file must not have."""
    return Finding(True, text)


def note(text: str) -> Finding:
    """Something unusual."""
    return Finding(False, text)
