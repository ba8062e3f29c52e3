"""``python -m tests.fuzz.keeping READER CORPUS …``: the small corpus that a test goes through, of what the fuzzer left.

Of the files in the folders CORPUS, and of those in the archive that is there
already, the smallest are kept that together go through every line of
`records`, by every way from line to line, that all of them go through.
"""

import sys
import tempfile
import zipfile
from pathlib import Path
from types import FrameType
from typing import Any, Final

import records

from .any_file import READERS, check
from .seeds import write_shards

KEPT: Final = Path(__file__).parents[1] / "records" / "data" / "fuzzed"

_SOURCE: Final = str(Path(records.__file__).parent)
_DATE: Final = (2020, 1, 1, 0, 0, 0)  # so that the same files make the same archive


def kept(reader: str) -> list[bytes]:
    """The files that are kept for a reader, the smallest first."""
    with zipfile.ZipFile(KEPT / f"{reader}.zip") as archive:
        return [archive.read(name) for name in archive.namelist()]


def ways(data: bytes, reader: str, folder: Path) -> set[tuple[Any, ...]]:
    """Where in `records` a file leads: pairs of lines one after the other, and what comes of it."""
    found: set[tuple[Any, ...]] = set()
    before: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call" and not frame.f_code.co_filename.startswith(_SOURCE):
            return None
        found.add((frame.f_code, before.get(frame, 0), frame.f_lineno))
        before[frame] = frame.f_lineno
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        outcome = check(data, reader, folder)
    finally:
        sys.settrace(previous)
    return found | {(outcome,)}


def main(arguments: list[str]) -> None:
    """Choose the files, and write the archive."""
    reader, *folders = arguments
    if reader not in READERS:
        sys.exit(f"{reader} is no reader; there are {', '.join(READERS)}")
    files = {file.read_bytes() for folder in folders for file in Path(folder).iterdir()}
    if (KEPT / f"{reader}.zip").exists():
        files.update(kept(reader))
    seen: set[tuple[Any, ...]] = set()
    chosen: list[bytes] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_shards(folder)
        for data in sorted(files, key=lambda data: (len(data), data)):
            found = ways(data, reader, folder)
            if not found <= seen:
                seen |= found
                chosen.append(data)
    KEPT.mkdir(exist_ok=True)
    written = KEPT / f"{reader}.zip"
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for number, data in enumerate(chosen):
            archive.writestr(zipfile.ZipInfo(f"{number:03}", _DATE), data, zipfile.ZIP_DEFLATED)
    print(f"{written}: {len(chosen)} of {len(files)} files, {written.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
