"""How layers display themselves, as Burn's do: their settings on one line (M102)."""

from typing import Final

from modules.display import DisplaySettings
from modules.flag import Flag

ONE_LINE: Final = DisplaySettings(new_line_after_attribute=False)


def training_if_off(training: Flag) -> list[tuple[str, Flag]]:
    """What a layer displays of its flag: nothing while it is on."""
    return [] if training.is_enabled else [("training", training)]
