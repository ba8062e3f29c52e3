"""``python -m tests.fuzz.fuzz_readers READER [CORPUS] [OPTIONS OF LIBFUZZER]``: coverage-guided fuzzing of a reader.

What must hold of any input is in `any_file`. An input that breaks it is written
to the current directory (``-artifact_prefix=``), and given in place of CORPUS
it is put to it again. It runs until something breaks, or for
``-max_total_time=SECONDS``. CORPUS is a folder, by default one for this run
alone; `seeds` are put into it first. `keeping` makes a small one of it for the tests.

It needs the package `atheris` (``pip install 'layerloom[fuzz]'``).
"""

import resource
import sys
import tempfile
import zlib
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["records", "zipfile", "pickletools"]):
    from tests.fuzz.any_file import READERS, check

from tests.fuzz.damage import damaged
from tests.fuzz.seeds import seeds, write_shards

_ADDRESS_SPACE = 3 * 2**30  # bytes: an absurd array is a MemoryError, though none of its pages is ever touched
_MAX_NBYTES = 8192


def main() -> None:
    """Fuzz the reader that the command line names."""
    if len(sys.argv) < 2 or sys.argv[1] not in READERS:
        sys.exit(f"usage: python -m tests.fuzz.fuzz_readers {{{','.join(READERS)}}} [CORPUS] [OPTIONS]")
    reader, *given = sys.argv[1:]
    options = [one for one in given if one.startswith("-")]
    with tempfile.TemporaryDirectory() as made:
        folder, corpus = Path(made, "files"), Path(made, "corpus")
        for path in (folder, corpus):
            path.mkdir()
        places = [Path(one) for one in given if not one.startswith("-")] or [corpus]
        write_shards(folder)
        if places[0].is_dir():
            for number, data in enumerate(seeds(reader, Path(made))):
                Path(places[0], f"seed-{number}").write_bytes(data)
        outcomes: dict[str, int] = {}

        def one_input(data: bytes) -> None:
            outcome = check(data, reader, folder, with_commands=zlib.crc32(data) % 8 == 0)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            count = sum(outcomes.values())
            if count & (count - 1) == 0:
                print(f"outcomes of {count}: {outcomes}", file=sys.stderr)

        def mutator(data: bytes, max_size: int, seed: int) -> bytes:
            return damaged(reader, data, seed, lambda part: atheris.Mutate(part, max_size))[:max_size]

        limits = ["-timeout=10", "-rss_limit_mb=1500", f"-max_len={_MAX_NBYTES}"]
        atheris.Setup([sys.argv[0], *limits, *options, *map(str, places)], one_input, custom_mutator=mutator)
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
