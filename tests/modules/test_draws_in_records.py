"""Draws in records: the count of draws, that a resumed run goes on from (DESIGN, Draws; D8)."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules import Draws, Module, ParamGroup
from records import ModuleRecord, RecordValidationError, open_record

from .small_modules import Holder, numbers
from .test_draws import ALL, Layer, held


def drawn(module: Module, counts: tuple[int, int]) -> Module:
    """The module after so many draws."""
    for draws, count in zip(held(module), counts, strict=True):
        for _ in range(count):
            draws.uniform((1,), "cpu:0")
    return module


COUNTS: Final = st.tuples(st.integers(0, 3), st.integers(0, 3))


@given(counts=COUNTS, others=COUNTS)
def test_a_record_holds_the_counts_that_are_not_0_and_a_load_restores_them(counts, others):
    """DESIGN, Draws: as the scalar draws/PATH, restored where present."""
    source, target = drawn(Layer(), counts), drawn(Layer(), others)

    record = ModuleRecord.from_bytes(source.into_record().into_bytes())
    loaded = target.load_record(record)

    expected = {"draws/draws": counts[0], "draws/more.0": counts[1]}
    assert {name: int(count) for name, count in record.scalars.items()} == {n: c for n, c in expected.items() if c}
    assert [draws.count for draws in held(loaded)] == [c or o for c, o in zip(counts, others, strict=True)]
    assert [draws.count for draws in held(target)] == list(others)
    assert [draws.count for draws in held(source)] == list(counts)


@pytest.mark.parametrize(
    ("group", "names"),
    [
        (ALL, ["draws/draws", "draws/more.0"]),
        (ParamGroup.from_path("draws"), ["draws/draws"]),
        (ParamGroup.from_predicate("more"), ["draws/more.0"]),
        (ParamGroup.from_regex(r"\d$"), ["draws/more.0"]),
        (ALL - ParamGroup.from_path("draws"), ["draws/more.0"]),
        (ParamGroup.from_ids([0]), []),
        (~ParamGroup.from_ids([0]), ["draws/draws", "draws/more.0"]),
        (ParamGroup.from_path("weight") | ParamGroup.from_path("more.0"), ["draws/more.0"]),
        (ALL & ParamGroup.from_path("weight"), []),
    ],
    ids=repr,
)
def test_a_groups_record_holds_the_counts_whose_path_it_matches(group: ParamGroup, names: list[str]):
    """DESIGN, Draws; R6. They have no id."""
    assert list(drawn(Layer(), (1, 2)).into_record_group(group).scalars) == names


@given(before=st.integers(0, 3), after=st.integers(1, 3), place=st.sampled_from(["cpu:0", "cpu:1"]))
def test_a_resumed_run_draws_what_an_uninterrupted_one_does(before, after, place):
    """The same bits, by way of a file's bytes under a prefix, into a build of the same seed on another device."""
    x = numbers(4)
    whole = Layer()
    for _ in range(before):
        whole(x)
    stopped = whole.into_record().under("model").with_scalars(step=before).into_bytes()

    record = ModuleRecord.from_bytes(stopped)
    resumed = Layer(device=place).load_record(record.part("model"))

    assert int(record.scalars["step"]) == before
    for _ in range(after):
        assert resumed(x.to_device(place)).tobytes() == whole(x).tobytes()


def test_a_file_holds_the_counts(tmp_path: Any):
    """R64: scalars of a burnpack file."""
    file = tmp_path / "layer.bpk"
    drawn(Layer(), (3, 0)).save_file(file)

    with open_record(file) as record:
        assert int(record.scalars["draws/draws"]) == 3
    assert [draws.count for draws in held(Layer().load_file(file))] == [3, 0]


def test_scalars_that_are_nobodys_count_are_let_be():
    """A record may hold any scalars; the counts of a module that is not there are none of ours."""
    record = Layer().into_record().with_scalars(step=3, **{"draws/elsewhere": 2, "draws/weight": 1})

    assert [draws.count for draws in held(Layer().load_record(record))] == [0, 0]


@pytest.mark.parametrize("count", [-1, 1.0, True])
def test_what_is_no_count_is_a_mismatch(count: Any):
    """R29: all findings at once; nothing is loaded, and the module stays as it is."""
    module = drawn(Layer(), (1, 2))
    record = Layer(6).into_record().with_scalars(**{"draws/draws": count, "draws/more.0": 5})

    result = module.try_load_record(record)

    assert isinstance(result.error, RecordValidationError)
    assert [mismatch.path for mismatch in result.mismatched] == ["draws/draws"]
    assert f"draws/draws: the record has {count!r}" in str(result.error)
    assert [draws.count for draws in held(module)] == [1, 2]
    loaded = module.load_record(record.with_options(validate=False))
    assert [draws.count for draws in held(loaded)] == [1, 5]


def test_one_count_serves_all_places_of_tied_draws_and_two_must_be_equal():
    """D8: they are recorded for each place."""
    one = Draws(1)
    module = Holder(a=one, b=[one])
    one.uniform((1,), "cpu:0")
    record = module.into_record()

    assert {name: int(count) for name, count in record.scalars.items()} == {"draws/a": 1, "draws/b.0": 1}
    loaded = module.load_record(ModuleRecord(scalars={"draws/b.0": 4}))
    assert loaded.at("a") is loaded.at("b.0")
    assert loaded.at("a").count == 4
    with pytest.raises(RecordValidationError, match=r"draws/b\.0: tied to a in the module"):
        module.load_record(record.with_scalars(**{"draws/b.0": 2}))


def test_a_refused_load_restores_no_count():
    """R29, L58: neither in the module nor anywhere else."""
    module = drawn(Layer(), (1, 0))
    record = drawn(Layer(), (3, 3)).into_record()
    missing = ModuleRecord(scalars=record.scalars)

    assert module.try_load_record(missing).module is None
    assert [draws.count for draws in held(module)] == [1, 0]
