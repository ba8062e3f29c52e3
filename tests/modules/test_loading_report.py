"""The report of a load: what was loaded, cast, missing, unused, mismatched; and the dry run, which loads nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Device, Tensor, zeros
from modules import LoadReport, Module, Param, RunningState, preview_load
from records import Cast, Drop, KeyRemapper, ModuleRecord, NormNames, RecordEntry, RecordFormatError, Transpose

from .small_modules import Holder, LazyLinear, Linear, numbers


def record_of(**tensors: Tensor) -> ModuleRecord:
    return ModuleRecord((path.replace("_", "."), RecordEntry(tensor)) for path, tensor in tensors.items())


def model(made: list[Device] | None = None) -> Module:
    """A lazy linear layer, a running state, a parameter in two places."""
    tied = Param(numbers(2))
    return Holder(
        a=LazyLinear(2, 3, "cpu:1", made),
        mean=RunningState(numbers(2)),
        first=Holder(w=tied),
        second=Holder(w=tied),
    )


def full() -> dict[str, Tensor]:
    return {"a_weight": numbers(2, 3), "mean": numbers(2), "first_w": numbers(2)}


def test_a_report_says_where_each_entry_goes_and_what_it_becomes():
    """R14, R35, D8: devices, dtypes before and after, the other places of a tied parameter."""
    record = record_of(**{**full(), "a_weight": numbers(2, 3).cast("float16")})
    report = model().try_load_record(record).report

    weight, mean, first = report.loaded
    assert (weight.path, weight.stored, weight.loaded, weight.before) == ("a.weight", "float16", "float16", "float32")
    assert (str(weight.device), str(mean.device)) == ("cpu:1", "cpu:0")
    assert (first.path, first.tied) == ("first.w", ("second.w",))
    assert not report.cast
    assert not report.findings
    assert str(report) == (
        "3 loaded, 0 cast, 0 missing, 0 unused, 0 mismatched: it loads\n"
        "loaded:\n"
        "  a.weight: float16 [2, 3] -> cpu:1, was float32\n"
        "  mean: float32 [2] -> cpu:0\n"
        "  first.w: float32 [2] -> cpu:0, tied to second.w"
    )


def test_what_is_cast_is_told_and_is_what_the_module_then_has():
    """R14: under CastToModule, the module's dtypes stay."""
    record = record_of(**{**full(), "mean": numbers(2).cast("float64")}).cast_to_module_dtype()
    result = model().try_load_record(record)

    assert [(one.path, one.stored, one.loaded) for one in result.report.cast] == [("mean", "float64", "float32")]
    assert str(result.unwrap().mean.value().dtype) == "float32"
    assert "  mean: float64 cast to float32 [2] -> cpu:0" in str(result).splitlines()


def test_what_does_not_load_is_told_with_the_nearest_paths_and_what_would_help():
    """R23 to R27: all at once; a turned weight is called so."""
    record = record_of(a_weight=numbers(3, 2), mean_x=numbers(2), first_v=numbers(2))
    result = model().try_load_record(record)

    assert result.module is None
    report = result.report
    assert (report.missing, report.unused) == (("mean", "first.w", "second.w"), ("first.v", "mean.x"))
    assert [mismatch.path for mismatch in report.mismatched] == list(report.turned) == ["a.weight"]
    assert report.nearest("mean.x") == "mean"
    assert str(result) == (
        "0 loaded, 0 cast, 3 missing, 2 unused, 1 mismatched: it does not load\n"
        "missing from the record:\n  mean\n  first.w\n  second.w\n"
        "unused, not in the module:\n"
        "  first.v, the nearest path of the module is first.w\n"
        "  mean.x, the nearest path of the module is mean\n"
        "does not fit:\n"
        "  a.weight: the record has shape [3, 2], the module [2, 3]; "
        r"it fits once it is turned, by Transpose('^a\\.weight$')"
    )
    turned = record.adapt(Transpose(r"^a\.weight$"))
    assert not preview_load(model(), turned).mismatched


def test_options_decide_whether_it_loads_and_not_what_is_told():
    """L57: the lists are the same whatever the options allow."""
    record = record_of(mean=numbers(2), x=numbers(1))
    strict = preview_load(model(), record)
    lenient = preview_load(model(), record.with_options(allow_partial=True, allow_unused=True))

    assert strict.findings
    assert not lenient.findings
    assert (strict.loaded, strict.missing, strict.unused) == (lenient.loaded, lenient.missing, lenient.unused)


class Refusing:
    """Data that must not be read."""

    dtype, shape, nbytes = np.dtype("float32"), (2, 3), 24

    def host(self):
        raise AssertionError("read")

    def read(self, device):
        raise AssertionError("read")


def test_a_dry_run_reads_no_data_and_makes_no_initial_value():
    """R21, R41."""
    made: list[Device] = []
    module = model(made)
    record = ModuleRecord([("a.weight", RecordEntry(Refusing()))])  # pyright: ignore[reportArgumentType]
    report = preview_load(module, record)

    assert [one.path for one in report.loaded] == ["a.weight"]
    assert not made
    assert not module.a.weight.is_initialized


@given(
    kept=st.sets(st.sampled_from(["a.weight", "mean", "first.w", "second.w"])), extra=st.sets(st.sampled_from("xyz"))
)
def test_every_entry_and_every_path_is_told_once(kept, extra):
    """Entries are loaded, unused or mismatched; paths of the module loaded, tied to one that is, or missing."""
    shapes = {"a.weight": (2, 3)}
    record = ModuleRecord(
        [(path, RecordEntry(zeros(shapes.get(path, (2,)), device="cpu:0"))) for path in sorted(kept | extra)]
    )
    module = model()
    report = preview_load(module, record)
    loaded = [one.path for one in report.loaded]

    assert sorted([*loaded, *report.unused]) == sorted(record)
    served = [*loaded, *(path for one in report.loaded for path in one.tied)]
    assert sorted([*served, *report.missing]) == sorted(report.paths)
    result = module.try_load_record(record)
    assert result.report == report
    assert (result.module is None) == bool(report.findings)


def test_long_lists_are_cut_short_unless_all_is_asked_for():
    record = ModuleRecord([(f"x{at}", RecordEntry(numbers(1))) for at in range(30)])
    report = preview_load(Holder(w=Param(numbers(1))), record)

    assert "  … and 20 more" in report.text().splitlines()
    assert sum(line.startswith("  x") for line in report.text(None).splitlines()) == 30
    assert sum(line.startswith("  x") for line in report.text(2).splitlines()) == 2


def test_a_file_that_cannot_be_read_is_told_in_its_own_words(tmp_path):
    (tmp_path / "r.bpk").write_bytes(b"x")
    result = model().try_load_file(tmp_path / "r.bpk")

    assert str(result).startswith("it does not load: ")
    assert "r.bpk" in str(result)
    assert result.report == LoadReport()


def test_a_chain_of_steps_and_a_dry_run_bring_a_pytorch_file_into_a_module():
    """The names, layouts and dtypes of PyTorch, step by step, until the report says that it loads."""
    module = Holder(
        linear=Holder(weight=Param(numbers(4, 3)), bias=Param(numbers(3))),
        norm=Holder(gamma=Param(numbers(3)), beta=Param(numbers(3)), running_mean=RunningState(numbers(3))),
    )
    state = record_of(
        net_linear_weight=numbers(3, 4).cast("float16"),
        net_linear_bias=numbers(3),
        net_norm_weight=numbers(3),
        net_norm_bias=numbers(3),
    )
    state |= ModuleRecord([("net.norm.running_mean", RecordEntry(numbers(3))),
                           ("net.norm.num_batches_tracked", RecordEntry(numbers(1).cast("int64")))])  # fmt: skip
    assert preview_load(module, state).findings
    adapted = state.adapt(
        KeyRemapper([(r"^net\.", "")]),
        Drop(r"num_batches_tracked$"),
        NormNames(),
        Transpose(r"linear\.weight$"),
        Cast("float32"),
    )
    report = preview_load(module, adapted)
    assert not report.findings
    assert not report.unused
    loaded = module.load_record(adapted)
    assert np.array_equal(loaded.linear.weight.val().numpy(), numbers(3, 4).numpy().T)
    assert len(adapted.adapted) == 5


def test_a_dry_run_of_tied_entries_that_cannot_be_read_raises():
    """D8: those are compared, so they are read."""

    class Damaged(Refusing):
        shape, nbytes = (2,), 8

        def host(self):
            raise RecordFormatError("damaged")

    record = ModuleRecord([("first.w", RecordEntry(numbers(2))), ("second.w", RecordEntry(Damaged()))])  # pyright: ignore[reportArgumentType]
    with pytest.raises(RecordFormatError, match="damaged"):
        preview_load(model(), record)


def test_a_preview_takes_a_module_and_a_record():
    with pytest.raises(TypeError, match="a module loads a ModuleRecord, not a str"):
        preview_load(Holder(a=Linear(2, 2)), "m.bpk")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="preview_load takes a module, not a NoneType"):
        preview_load(None, ModuleRecord())  # pyright: ignore[reportArgumentType]
