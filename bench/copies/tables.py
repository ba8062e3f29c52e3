"""The figures as matrices, a row for each source and a column for each destination, as `nvbandwidth` prints them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from bench.report import COLUMNS, Row, Table, number_text
from bench.report import cells as cells_of_row

from .point import LAYOUTS, WAYS, Measured, Point, size_text

Cells: TypeAlias = Mapping[tuple[str, str], float]


def tables(rows: Sequence[Row]) -> Sequence[Table]:
    """A matrix for each route, layout and direction at the largest size, latencies for each route, and others'."""
    return [*_bandwidths(rows), *_latencies(rows), *_beside(rows)]


def _bandwidths(rows: Sequence[Row]) -> Iterator[Table]:
    found = points(rows, "bandwidth")
    if not found:
        return
    nbytes = max(point.nbytes for point, _ in found)
    for route in dict.fromkeys(point.route for point, _ in found):
        for way in WAYS:
            for layout in LAYOUTS:
                kind = (route, layout, way, nbytes)
                cells = matrix([pair for pair in found if (*_kind(pair[0]), pair[0].nbytes) == kind])
                if cells:
                    yield _table(f"{route}, {way}, {layout}, {size_text(nbytes)}: GB/s", found, cells)


def _latencies(rows: Sequence[Row]) -> Iterator[Table]:
    found = points(rows, "latency")
    for route, layout, way in dict.fromkeys(_kind(point) for point, _ in found):
        chosen = [pair for pair in found if _kind(pair[0]) == (route, layout, way)]
        title = f"{route}, {layout}, latency of {size_text(chosen[0][0].nbytes)}: µs"
        yield _table(title, found, matrix(chosen))


def _beside(rows: Sequence[Row]) -> Iterator[Table]:
    """Our figures of the largest size, and the ratio to those that somebody else has of the same copy."""
    found = [(row, point) for row in rows if (point := Point.of(row, "beside")) is not None]
    largest = {row.to: max(point.nbytes for other, point in found if other.to == row.to) for row, _ in found}
    lines = [cells_of_row(row) for row, point in found if point.nbytes == largest[row.to]]
    if lines:
        yield Table("ours beside others'", COLUMNS[:4], [line[:4] for line in lines])


def _kind(point: Point) -> tuple[str, str, str]:
    return point.route, point.layout, point.way


def points(rows: Sequence[Row], measured: Measured) -> list[tuple[Point, float]]:
    """What was measured of that kind, with the median."""
    found = ((Point.of(row, measured), row.value) for row in rows)
    return [(point, value.median) for point, value in found if point is not None and value is not None]


def matrix(found: Sequence[tuple[Point, float]]) -> Cells:
    """A figure for each source and destination; one of both ways is that of both orders."""
    cells: dict[tuple[str, str], float] = {}
    for point, figure in found:
        cells[point.source, point.destination] = figure
        if point.way == "both ways":
            cells[point.destination, point.source] = figure
    return cells


def names(found: Sequence[tuple[Point, float]]) -> list[str]:
    """All devices, in the order in which they were given: that of sources."""
    return list(dict.fromkeys([*(point.source for point, _ in found), *(point.destination for point, _ in found)]))


def _table(title: str, found: Sequence[tuple[Point, float]], cells: Cells) -> Table:
    devices = names(found)
    rows = [
        (source, *("N/A" if (cell := cells.get((source, to))) is None else number_text(cell) for to in devices))
        for source in devices
    ]
    return Table(title, ("", *devices), rows)
