"""What fuzzing found worth keeping: files of every format, damaged in ways that reach all of its reader. L66 to L68."""

import pytest

from tests.fuzz.any_file import READERS, check
from tests.fuzz.damage import damaged
from tests.fuzz.keeping import kept
from tests.fuzz.seeds import seeds, write_shards


@pytest.mark.parametrize("reader", READERS)
def test_any_file_is_refused_by_name_or_is_a_record_in_every_use(reader, tmp_path):
    """The corpus of the fuzzer, which covers what its runs of minutes have covered."""
    write_shards(tmp_path)
    outcomes = {check(data, reader, tmp_path).split()[0] for data in kept(reader)}
    assert outcomes >= {"refused", "read"}


@pytest.mark.golden
@pytest.mark.parametrize("reader", READERS)
def test_damage_that_keeps_checksums_and_lengths_right_is_found_too(reader, tmp_path):
    """The fuzzer's own changes of its seeds: a few of each, without its eyes for coverage."""
    files, folder = tmp_path / "files", tmp_path / "seeds"
    files.mkdir()
    folder.mkdir()
    write_shards(files)
    outcomes = []
    for number, data in enumerate(seeds(reader, folder)):
        assert check(data, reader, files) is not None
        for seed in range(5):
            changed = damaged(reader, data, 1000 * number + seed, lambda part: part[: len(part) // 2])
            outcomes.append(check(changed, reader, files).split()[0])
    assert outcomes.count("refused") >= len(outcomes) // 4
