"""The measurements, pair by pair: which copies are compared, at what sizes, and the arithmetic of the rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Final, NamedTuple

from bench.answers import check_same
from bench.report import Row, at_least
from bench.settings import Settings
from bench.timing import Timing
from engine import Device

from . import nvbandwidth, plots, pytorch
from .calls import Bare, Copy, by_engine, by_numpy, own_route, pattern, reading, repeats_of
from .point import LAYOUTS, WAYS, Layout, Point, Way

_SIZES: Final = tuple(1 << exponent for exponent in range(10, 31, 2))
_QUICK_SIZES: Final = (1 << 10, 1 << 14)
_READING: Final = 0.01  # seconds that a reading lasts at least
_ON_THE_WAY: Final = 1 << 28  # bytes of one direction that a reading may put on its way
_CHECKED: Final = 1 << 20  # size up to which what arrives is compared
_NEEDED: Final = 8  # times the size that must be free on each device
_FULL: Final = 1 << 26  # size from which the bound holds


class Case(NamedTuple):
    """What is measured in the same rounds."""

    source: Device
    destination: Device
    layout: Layout
    way: Way
    nbytes: int

    def point(self, route: str) -> Point:
        """The point of one route."""
        source, destination, layout, way, nbytes = self
        return Point(
            source=str(source), destination=str(destination), route=route, layout=layout, way=way, nbytes=nbytes
        )


def devices_of(settings: Settings) -> Sequence[Device]:
    """Those given; else the CPU with all GPUs, or two CPU devices where there is none."""
    gpus = Device.available("cuda")
    return settings.devices or [Device("cpu:0"), *(gpus or [Device("cpu:1")])]


def measure(settings: Settings) -> Iterable[Row]:
    """All pairs, then PyTorch and nvbandwidth beside them, and the plots if a folder is given for them."""
    devices, rows = devices_of(settings), list[Row]()
    for found in (between(settings, devices, _sizes(settings)), pytorch.rows(settings, devices, _sizes(settings))):
        for row in found:
            rows.append(row)
            yield row
    yield from nvbandwidth.rows(rows)
    if settings.plots is not None:
        plots.draw(rows, settings.plots)


def _sizes(settings: Settings) -> Sequence[int]:
    return settings.size(_SIZES, _QUICK_SIZES)


def between(settings: Settings, devices: Sequence[Device], sizes: Sequence[int]) -> Iterator[Row]:
    """The rows of every ordered pair of devices; of the first size the latency too."""
    bare = Bare()
    cases = list(_cases(devices, sizes))
    settings.progress.expect(len(cases))
    for case in cases:
        yield from _measured(settings, bare, case, is_smallest=case.nbytes == sizes[0])


def _cases(devices: Sequence[Device], sizes: Sequence[int]) -> Iterator[Case]:
    """Every ordered pair one way, and every pair both ways."""
    for (at, source), (of, destination) in permutations(enumerate(devices), 2):
        for way in WAYS if at < of else WAYS[:1]:
            for layout in LAYOUTS:
                for nbytes in sizes:
                    yield Case(source, destination, layout, way, nbytes)


def _measured(settings: Settings, bare: Bare, case: Case, *, is_smallest: bool) -> Iterator[Row]:
    free = min(device.memory().free for device in case[:2])
    if free < _NEEDED * case.nbytes:
        why = f"not measured: {_NEEDED} times its size must be free on each device"
        settings.progress.part(1, 1)
        yield Row(what=case.point("all routes").what, value=None, unit="GB/s", note=why)
        return
    copies = _copies(case, bare)
    sent = pattern(case.nbytes).tobytes() if case.nbytes <= _CHECKED else b""
    readings = []
    for route, several in copies.items():
        for copy in several if sent else ():
            copy.issue()
            check_same(f"copies, {case.point(route).what}", copy.arrived() == sent, True)
        repeat = repeats_of(several, case.nbytes, settings.least_seconds(_READING), _ON_THE_WAY)
        readings.append(reading(several, repeat))
    timings = settings.interleaved(*readings, rounds=10)
    yield from rows_of(case, dict(zip(copies, timings, strict=True)), is_smallest=is_smallest)


def _copies(case: Case, bare: Bare) -> Mapping[str, Sequence[Copy]]:
    """The routes of a pair, and for each its copy, or its two for both ways; the reference first."""
    source, destination, layout, way, _ = case
    forward = _one_way(case, bare)
    if way == "one way":
        return {route: [copy] for route, copy in forward.items()}
    back = _one_way(Case(destination, source, layout, way, case.nbytes), bare)
    names = dict(zip(forward, back, strict=True))  # an upload comes back as a download
    return {route: [copy, back[names[route]]] for route, copy in forward.items()}


def _one_way(case: Case, bare: Bare) -> Mapping[str, Copy]:
    source, destination, layout, _, nbytes = case
    own = own_route(source, destination)
    engine = {own: by_engine(source, destination, layout, nbytes)}
    if own == "host":
        return {"numpy.copyto": by_numpy(nbytes), **engine}
    if own in ("upload", "download"):
        found = {"pinned": bare.host(source, destination, nbytes, pinned=True), **engine}
        if layout == "contiguous":
            found["pageable"] = bare.host(source, destination, nbytes, pinned=False)
        return found
    if own == "peer":
        engine["staged"] = by_engine(source, destination, layout, nbytes, "staged")
    found = {"driver": bare.driver(source, destination, nbytes), **engine}
    if layout == "contiguous":
        found["pageable"] = bare.pageable(source, destination, nbytes)
    return found


def rows_of(case: Case, timings: Mapping[str, Timing], *, is_smallest: bool) -> Iterator[Row]:
    """A row for each route: its rate, and the ratio of that to the reference's; of the smallest size the time too."""
    reference = next(iter(timings))
    moved = case.nbytes * (2 if case.way == "both ways" else 1)
    for route, timing in timings.items():
        point = case.point(route)
        if route == reference and case.layout == "strided":
            continue  # it is that of what is contiguous
        whole = route == "peer" and case.layout == "contiguous" and case.way == "one way" and case.nbytes >= _FULL
        yield Row(
            what=point.what,
            value=timing.rate(moved / 1e9),
            unit="GB/s",
            ratio=None if route == reference else timings[reference].over(timing),
            to="" if route == reference else reference,
            bound=at_least(0.95) if whole else None,
            goal=at_least(0.97) if whole else None,
            tags=point.tags("bandwidth"),
        )
        if is_smallest and case.way == "one way":
            tags = point.tags("latency")
            yield Row(what=f"{point.what}, latency", value=timing.spread(1e-6), unit="µs", tags=tags)
