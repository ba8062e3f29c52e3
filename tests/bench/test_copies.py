"""The benchmark of copies: its arithmetic, and its GPU half over a fake CuPy, never on a GPU."""

import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import copies
from bench.answers import AnswerError
from bench.beside.client import Beside
from bench.copies import calls, measuring, nvbandwidth, plots, pytorch
from bench.copies.calls import Copy, Lane, by_engine, by_numpy, pattern, reading, repeats_of
from bench.copies.measuring import Case, rows_of
from bench.copies.point import Point, size_text
from bench.copies.tables import tables
from bench.report import Row
from bench.settings import Settings
from bench.timing import Spread, Timing
from engine import Device
from tests.fake_cupy import Machine, installed

CPU0, CPU1, GPU0, GPU1 = map(Device, ("cpu:0", "cpu:1", "cuda:0", "cuda:1"))
MIB = 1 << 20


def measured(*devices: Device, **more: Any) -> list[Row]:
    """The rows of a quick run, without PyTorch."""
    settings = Settings(quick=True, devices=devices, **more)
    return [row for row in copies.measure(settings) if "PyTorch" not in row.what]


def test_rates_are_bytes_by_seconds_and_ratios_are_of_rates() -> None:
    """1 MiB in 1, 2 and 4 ms is 1.048576, 0.524288 and 0.262144 GB/s; half as fast as the reference in each round."""
    case = Case(CPU0, CPU1, "contiguous", "one way", MIB)
    timings = {"numpy.copyto": Timing((0.0005, 0.001, 0.002)), "host": Timing((0.001, 0.002, 0.004))}
    reference, ours = rows_of(case, timings, is_smallest=False)
    assert reference.value is not None
    assert reference.value.median == pytest.approx(1.048576)
    assert reference.ratio is None
    assert ours.value == pytest.approx((0.393216, 0.524288, 0.786432))
    assert (ours.ratio, ours.to, ours.unit) == (pytest.approx((0.5, 0.5, 0.5)), "numpy.copyto", "GB/s")
    assert ours.what == "cpu:0 → cpu:1, host, contiguous, 1 MiB"


def test_both_ways_count_the_bytes_of_both() -> None:
    case = Case(CPU0, CPU1, "contiguous", "both ways", MIB)
    rows = list(rows_of(case, {"numpy.copyto": Timing((0.001,)), "host": Timing((0.002,))}, is_smallest=True))
    assert [row.value.median for row in rows if row.value] == pytest.approx([2.097152, 1.048576])
    assert rows[1].what == "cpu:0 ↔ cpu:1, host, contiguous, 1 MiB"


def test_of_the_smallest_size_the_time_is_a_row_too() -> None:
    case = Case(CPU0, CPU1, "contiguous", "one way", 1024)
    rows = list(rows_of(case, {"numpy.copyto": Timing((1e-6,)), "host": Timing((5e-6,))}, is_smallest=True))
    latency = rows[-1]
    assert latency.what == "cpu:0 → cpu:1, host, contiguous, 1 KiB, latency"
    assert latency.value == pytest.approx((5, 5, 5))
    assert latency.unit == "µs"


def test_strided_copies_stand_beside_the_contiguous_reference_whose_row_is_not_repeated() -> None:
    case = Case(CPU0, CPU1, "strided", "one way", MIB)
    (row,) = rows_of(case, {"numpy.copyto": Timing((0.001,)), "host": Timing((0.004,))}, is_smallest=False)
    assert row.ratio == pytest.approx((0.25, 0.25, 0.25))


@pytest.mark.parametrize(("nbytes", "bound"), [(1 << 26, True), (1 << 24, False)])
def test_the_bound_is_for_large_peer_copies_one_way(nbytes: int, bound: bool) -> None:
    """95% of the driver's own copy; the goal is 97%."""
    timings = {"driver": Timing((0.96,)), "peer": Timing((1.0,)), "staged": Timing((2.0,))}
    rows = {row.what: row for row in rows_of(Case(GPU0, GPU1, "contiguous", "one way", nbytes), timings, is_smallest=0)}
    peer = next(row for what, row in rows.items() if "peer" in what)
    assert (peer.bound is not None) == bound
    if bound:
        assert peer.holds
        assert peer.goal is not None
        assert not peer.goal.holds(peer.judged or 0)
    assert sum(row.bound is not None for row in rows.values()) == bound
    for layout, way in (("strided", "one way"), ("contiguous", "both ways")):
        assert not any(row.bound for row in rows_of(Case(GPU0, GPU1, layout, way, 1 << 26), timings, is_smallest=0))


def test_sizes_are_named_in_the_largest_unit_that_divides_them() -> None:
    assert [size_text(n) for n in (1, 1023, 1024, 1536, MIB, 3 * MIB, 1 << 30)] == [
        "1 B", "1023 B", "1 KiB", "1536 B", "1 MiB", "3 MiB", "1 GiB",
    ]  # fmt: skip


def test_a_point_comes_back_from_the_tags_of_its_row() -> None:
    point = Point(source="cpu:0", destination="cuda:3", route="upload", layout="strided", way="one way", nbytes=7)
    row = Row(what=point.what, value=Spread(1, 2, 3), unit="GB/s", tags=point.tags("bandwidth"))
    assert Point.of(row, "bandwidth") == point
    assert Point.of(row, "latency") is None
    assert Point.of(Row(what="x", value=Spread(1, 2, 3), unit="GB/s"), "bandwidth") is None
    assert Point.of(Row(what="x", value=None, unit="GB/s", tags=row.tags), "bandwidth") is None


def test_a_reading_is_the_time_of_one_of_many_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    clock = iter([10.0, 16.0])
    monkeypatch.setattr(calls, "perf_counter", lambda: next(clock))
    assert reading([Copy(lambda: made.append(1), (), lambda: b"")], 4)() == 1.5
    assert len(made) == 4


def test_both_ways_at_once_each_copy_is_made_as_often() -> None:
    made: list[int] = []
    reading([Copy(lambda at=at: made.append(at), (), lambda: b"") for at in (1, 2)], 5)()
    assert sorted(made) == [1] * 5 + [2] * 5


def test_repeats_last_long_enough_and_put_no_more_than_so_much_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "reading", lambda copies, repeat: lambda: 0.001)
    assert repeats_of([], 1024, 0.01, 1 << 28) == 10
    assert repeats_of([], 1 << 26, 0.01, 1 << 28) == 4
    assert repeats_of([], 1 << 30, 0.01, 1 << 28) == 1


@pytest.mark.parametrize("layout", ["contiguous", "strided"])
def test_what_is_copied_arrives(layout: Any) -> None:
    assert by_engine(CPU0, CPU1, layout, 4096).arrived() == pattern(4096).tobytes()
    copy = by_numpy(4096)
    copy.issue()
    assert copy.arrived() == pattern(4096).tobytes()
    assert pattern(4096).tobytes() != pattern(8192).tobytes()[256 : 256 + 4096]


def test_a_copy_that_loses_bytes_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Copy(lambda: None, (), lambda: bytes(1024))
    monkeypatch.setattr(measuring, "by_engine", lambda *given: lost)
    with pytest.raises(AnswerError, match="cpu:0 → cpu:1, host"):
        measured(CPU0, CPU1)


def test_sizes_for_which_there_is_no_memory_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_NEEDED", 1 << 60)
    rows = measured(CPU0, CPU1)
    assert rows
    assert all(row.value is None and row.note.startswith("not measured") for row in rows)
    assert tables(rows) == []


# Over a fake CuPy


def routes(rows: Sequence[Row], source: Device, destination: Device) -> set[str]:
    points = [Point.of(row, "bandwidth") for row in rows]
    return {p.route for p in points if p and (p.source, p.destination) == (str(source), str(destination))}


@pytest.mark.parametrize("peers", [None, ()])
def test_every_ordered_pair_is_measured_by_each_of_its_routes(peers: Any) -> None:
    """Events, peer copies, pinned and ordinary memory, both layouts, both directions; what arrives is compared."""
    with installed(Machine(2, peers=peers)), warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = measured(CPU0, GPU0, GPU1)
    between = {"driver", "staged", "pageable"} | ({"peer"} if peers is None else set())
    assert routes(rows, GPU0, GPU1) == routes(rows, GPU1, GPU0) == between
    for gpu in (GPU0, GPU1):
        assert routes(rows, CPU0, gpu) == {"pinned", "pageable", "upload"}
        assert routes(rows, gpu, CPU0) == {"pinned", "pageable", "download"}
    own = "staged" if peers == () else "peer"
    for what in (f"cuda:0 → cuda:1, {own}, strided", f"cuda:0 ↔ cuda:1, {own}, contiguous", "cpu:0 ↔ cuda:1, upload"):
        assert any(row.what.startswith(what) for row in rows)
    assert len({row.what for row in rows}) == len(rows)
    assert not any(row.what.startswith(("cuda:1 ↔", "cuda:0 ↔ cpu:0")) for row in rows)
    titles = [table.title for table in tables(rows)]
    assert f"{own}, one way, contiguous, 16 KiB: GB/s" in titles
    assert "driver, contiguous, latency of 1 KiB: µs" in titles


def test_times_of_gpus_are_those_between_two_events_around_all_streams() -> None:
    """The first lane waits for the others before the last event, and they for the first one."""
    with installed(Machine(2)) as machine:
        lanes = [Lane.of(GPU0), Lane.of(GPU1)]
        elapsed = GPU0.xp.cuda.get_elapsed_time
        seen = []

        def watched(start: Any, end: Any) -> float:
            seen.append((start.device_id, end.device_id, dict(start.clock), dict(end.clock)))
            elapsed(start, end)
            return 12.0

        GPU0.xp.cuda.get_elapsed_time = watched
        array = by_engine(GPU0, GPU1, "contiguous", 1024)
        assert reading([Copy(array.issue, lanes, lambda: b"")], 4)() == pytest.approx(0.003)
        ((started_on, ended_on, start, end),) = seen
        queues = {queue.ptr: queue.timeline for queue in machine._queues}
        for lane in lanes:
            assert end[queues[lane.stream.ptr]] > start.get(queues[lane.stream.ptr], 0)
        assert (started_on, ended_on) == (0, 0)


# Tables, plots, and others' figures


def bandwidth(source: str, destination: str, figure: float, **more: Any) -> Row:
    given = {"route": "host", "layout": "contiguous", "way": "one way", "nbytes": MIB, **more}
    point = Point(source=source, destination=destination, **given)
    return Row(what=point.what, value=Spread(0, figure, 99), unit="GB/s", tags=point.tags("bandwidth"))


def test_a_matrix_has_sources_as_rows_and_destinations_as_columns_at_the_largest_size() -> None:
    rows = [
        bandwidth("cpu:0", "cpu:1", 1.5, nbytes=1024),
        bandwidth("cpu:0", "cpu:1", 2.5),
        bandwidth("cpu:1", "cpu:0", 3.5),
        bandwidth("cpu:0", "cpu:1", 7, way="both ways"),
    ]
    one_way, both_ways = tables(rows)
    assert one_way.title == "host, one way, contiguous, 1 MiB: GB/s"
    assert one_way.columns == ("", "cpu:0", "cpu:1")
    assert one_way.rows == [("cpu:0", "N/A", "2.5"), ("cpu:1", "3.5", "N/A")]
    assert both_ways.rows == [("cpu:0", "N/A", "7"), ("cpu:1", "7", "N/A")]


def test_plots_are_png_and_svg_of_sizes_and_of_the_matrix(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        bandwidth("cpu:0", "cpu:1", 2.0, nbytes=1024),
        bandwidth("cpu:0", "cpu:1", 30.0),
        bandwidth("cpu:1", "cpu:0", 40.0),
    ]
    files = plots.draw(rows, tmp_path / "new")
    assert sorted(file.name for file in files) == [
        "copies-matrix.png", "copies-matrix.svg", "copies-sizes.png", "copies-sizes.svg",
    ]  # fmt: skip
    for file in files:
        start = file.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if file.suffix == ".png" else b"<?xml" in start
    assert plots.draw([], tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_matplotlib_is_imported_only_to_plot() -> None:
    program = "import sys, bench.__main__; print('matplotlib' in sys.modules, 'cupy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


NVBANDWIDTH = {
    "nvbandwidth": {
        "CUDA Runtime Version": 12080,
        "testcases": [
            {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["50", "25.5"]]},
            {"name": "device_to_host_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["40", "N/A"]]},
            {
                "name": "device_to_device_memcpy_write_ce",
                "status": "Passed",
                "bandwidth_matrix": [["N/A", "380"], ["370", "N/A"]],
            },
        ],
    }
}


def test_the_figures_of_nvbandwidth_are_read_by_pair() -> None:
    """Rows are sources among GPUs; the host is a row of its own in the tests with it."""
    assert nvbandwidth.read("a line before\n" + json.dumps(NVBANDWIDTH)) == {
        ("cpu", "cuda:0"): 50.0,
        ("cpu", "cuda:1"): 25.5,
        ("cuda:0", "cpu"): 40.0,
        ("cuda:0", "cuda:1"): 380.0,
        ("cuda:1", "cuda:0"): 370.0,
    }
    waived = {"nvbandwidth": {"testcases": [{"name": "device_to_device_memcpy_write_ce", "status": "Waived"}]}}
    assert nvbandwidth.read(json.dumps(waived)) == {}


@pytest.mark.parametrize(
    "text", ["", "nothing", "{", "{}", '{"nvbandwidth": {"error": "no driver"}}', '{"nvbandwidth": []}',
             '{"nvbandwidth": {"testcases": [{"name": "other", "bandwidth_matrix": [["1"]]}]}}',
             '{"nvbandwidth": {"testcases": [{"name": "host_to_device_memcpy_ce", "bandwidth_matrix": [["x"]]}]}}'],
)  # fmt: skip
def test_what_is_no_output_of_nvbandwidth_is_one_error(text: str) -> None:
    with pytest.raises(ValueError):
        nvbandwidth.read(text)


def test_nvbandwidth_stands_beside_our_bare_copy_of_the_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        bandwidth("cuda:0", "cuda:1", 9, route="driver", nbytes=1024),
        bandwidth("cuda:0", "cuda:1", 190, route="driver"),
        bandwidth("cuda:0", "cuda:1", 5, route="driver", way="both ways", nbytes=1 << 30),
        bandwidth("cuda:0", "cuda:1", 5, route="peer", nbytes=1 << 30),
        bandwidth("cpu:0", "cuda:0", 60, route="pinned"),
    ]
    assert list(nvbandwidth.rows(rows)) == []
    monkeypatch.setattr(nvbandwidth.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(nvbandwidth, "_output", lambda program: json.dumps(NVBANDWIDTH))
    theirs, ours, host, up = nvbandwidth.rows(rows)
    assert (theirs.what, theirs.value) == ("cuda:0 → cuda:1, nvbandwidth, 512 MiB", (380, 380, 380))
    assert ours.ratio is not None
    assert (ours.ratio.median, ours.to) == (0.5, "nvbandwidth")
    (table,) = tables([theirs, ours, host, up])
    assert [line[0] for line in table.rows] == [ours.what, up.what]
    assert [line[2:] for line in table.rows] == [("0.5 (0 … 0.261)", "nvbandwidth"), ("1.2 (0 … 1.98)", "nvbandwidth")]
    assert host.value == (50, 50, 50)
    assert up.ratio is not None
    assert up.ratio.median == 1.2
    monkeypatch.setattr(nvbandwidth, "_output", lambda program: "no GPU")
    (trouble,) = nvbandwidth.rows(rows)
    assert trouble.note.startswith("not measured")
    assert list(nvbandwidth.rows([])) == []


class Process:
    """A PyTorch that says that a copy takes a microsecond and another for each MiB."""

    version = "torch of a test"

    def __init__(self, *given: Any) -> None:
        self.asked: list[dict[str, Any]] = []

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *error: object) -> None: ...

    def ask(self, do: str, ids: Sequence[int] = (), **request: Any) -> dict[str, Any]:
        self.asked.append(request)
        return {"seconds": request["repeat"] * 1e-6 * (1 + request["nbytes"] / MIB)}

    reading = Beside.reading


def test_copies_by_pytorch_are_bytes_by_seconds_and_cpu_devices_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()
    monkeypatch.setattr(pytorch, "Beside", lambda *given: process)
    monkeypatch.setattr("bench.beside.client._REST", 0.0)
    settings = Settings(quick=True, beside=Path(sys.executable))
    with installed(Machine(1)):
        rows = list(pytorch.rows(settings, [CPU0, CPU1, GPU0], [1024, MIB]))
    theirs, ours = rows[2::4], rows[3::4]
    assert [row.what.split(", ")[0] for row in theirs] == ["cpu:0 → cpu:1", "cpu:0 → cuda:0", "cuda:0 → cpu:0"]
    for row in theirs:
        assert row.value == pytest.approx((524.288, 524.288, 524.288))
        assert row.note == "by torch of a test"
    assert [row.what for row in ours] == [
        f"{pair}, contiguous, 1 MiB, beside PyTorch"
        for pair in ("cpu:0 → cpu:1, host", "cpu:0 → cuda:0, upload", "cuda:0 → cpu:0, download")
    ]
    for row in ours:
        assert row.value is not None
        assert row.ratio == pytest.approx([rate / 524.288 for rate in row.value])
        assert row.to == "PyTorch"
    beside = tables(rows)[-1]
    assert [line[0] for line in beside.rows] == [row.what for row in ours]
    assert settings.progress.done == settings.progress.steps == 6
    assert {(request["source"], request["destination"]) for request in process.asked} == {
        ("cpu", "cpu"), ("cpu", "cuda:0"), ("cuda:0", "cpu"),
    }  # fmt: skip


def test_without_pytorch_a_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch.importlib.util, "find_spec", lambda name: None)
    (row,) = pytorch.rows(Settings(quick=True), [CPU0, CPU1], [1024])
    assert row.value is None
    assert "--beside" in row.note
